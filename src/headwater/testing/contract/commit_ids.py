"""Contract of commit ids: random ids that distinguish commits of the same number, and receipts that include them."""

from __future__ import annotations

from headwater.core.errors import OtherHistoryError
from headwater.core.positions import Receipt, Token
from headwater.log.commit_history import check_commit, token_of
from headwater.log.protocol import Append, Producer
from headwater.testing.contract.contract_base import Bench, refused


class NamingContract(Bench):
    """Tests of `commit_id`, and of the commit in a receipt."""

    def test_every_commit_has_an_id_of_its_own_also_after_reopening(self) -> None:
        assert self.log.commit_id(self.log.sequence() + 1) == ""
        first = self.log.sequence() + 1
        self.create("clicks")
        self.log.put_entry("view", "revenue", {"n": 1}, expect=None)
        self.log.create_cursor("clicks", "mailer", {0: 0}, hold=False)
        for _ in range(20):
            self.append("clicks", self.numbers(50))
        commits = range(first, self.log.sequence() + 1)
        ids = [self.log.commit_id(sequence) for sequence in commits]
        assert all(ids)
        assert len(set(ids)) == len(ids) >= 23
        self.log = self.reopen(self.log)
        assert [self.log.commit_id(sequence) for sequence in commits] == ids
        assert self.log.commit_id(-1) == "" == self.log.commit_id(1 << 60)

    def test_a_receipt_names_its_commit_and_so_does_its_text(self) -> None:
        self.create("clicks")
        receipt = self.append("clicks", self.numbers(2), producer=Producer("loader", 1))
        assert receipt.commit == token_of(self.log, self.log.sequence())
        parsed = Receipt.parse(str(receipt))
        assert (parsed, parsed.commit) == (receipt, receipt.commit)
        check_commit(self.log, parsed.commit)
        self.log = self.reopen(self.log)
        self.append("clicks", self.numbers(1))
        again = self.append("clicks", self.numbers(2), producer=Producer("loader", 1))
        assert (again, again.commit) == (receipt, receipt.commit)
        assert self.log.append(Append({})).commit is None

    def test_a_commit_of_another_history_is_refused(self) -> None:
        self.create("clicks")
        receipt = self.append("clicks", self.numbers(2))
        assert receipt.commit is not None
        for other in (
            Token(receipt.commit.number, "0" * 16),
            Token(receipt.commit.number + 9, receipt.commit.id),
        ):
            with refused(OtherHistoryError):
                check_commit(self.log, other)
        # a token without an id is accepted by its number
        check_commit(self.log, Token(receipt.commit.number))
        check_commit(self.log, None)
