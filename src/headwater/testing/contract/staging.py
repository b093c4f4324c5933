"""Contract of stages: atomic appends that are prepared in steps and become visible at once, or never."""

from __future__ import annotations

from headwater.core.errors import ConflictError, FencedError, UsageError
from headwater.core.positions import Receipt
from headwater.log.protocol import CursorMove, Producer
from headwater.testing.contract.contract_base import KEYED, Bench, refused


class StagingContract(Bench):
    """Tests of `stage`, `add`, `commit` and `abort`."""

    def test_what_is_staged_is_not_seen(self) -> None:
        self.create("clicks")
        stage = self.log.stage()
        stage.add("clicks", self.batch("clicks", self.numbers(1_000)))
        assert self.ends("clicks") == {0: 0}
        stage.abort()

    def test_a_commit_makes_all_of_it_visible(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        self.create("orders")
        stage = self.log.stage()
        for start in range(0, 3_000, 1_000):
            stage.add("clicks", self.batch("clicks", self.numbers(1_000, start=start)))
        stage.add("orders", self.batch("orders", self.numbers(2)))
        receipt = stage.commit()
        assert receipt.rows == 3_002
        assert set(receipt.positions) == {"clicks", "orders"}
        rows = self.all_rows("clicks")
        assert sorted(row["n"] for row in rows) == list(range(3_000))
        assert len({row["_sequence"] for row in [*rows, *self.all_rows("orders")]}) == 1

    def test_order_is_that_of_adding(self) -> None:
        self.create("clicks")
        stage = self.log.stage()
        for start in range(0, 500, 50):
            stage.add("clicks", self.batch("clicks", self.numbers(50, start=start)))
        stage.commit()
        self.log = self.reopen(self.log)
        assert self.column("clicks", "n") == list(range(500))

    def test_an_aborted_stage_leaves_nothing(self) -> None:
        self.create("clicks")
        stage = self.log.stage()
        stage.add("clicks", self.batch("clicks", self.numbers(100)))
        stage.abort()
        self.append("clicks", self.numbers(1))
        assert self.ends("clicks") == {0: 1}

    def test_a_stage_that_was_never_committed_is_gone_after_reopening(self) -> None:
        self.create("clicks")
        self.log.stage().add("clicks", self.batch("clicks", self.numbers(100)))
        self.log = self.reopen(self.log)
        assert self.ends("clicks") == {0: 0}

    def test_appends_made_meanwhile_come_first(self) -> None:
        self.create("clicks")
        stage = self.log.stage()
        stage.add("clicks", self.batch("clicks", self.numbers(2)))
        self.append("clicks", self.numbers(3))
        assert stage.commit().positions == {"clicks": {0: (3, 5)}}

    def test_the_append_time_is_that_of_the_commit(self) -> None:
        self.create("clicks")
        stage = self.log.stage()
        stage.add("clicks", self.batch("clicks", self.numbers(2)))
        self.clock.advance("1 minute")
        stage.commit()
        assert self.log.partitions("clicks")[0].oldest_appended_at == self.clock.now_us()

    def test_versions_are_counted_at_the_commit(self) -> None:
        self.create("accounts", "id STRING", versioned_by="id")
        stage = self.log.stage()
        stage.add("accounts", self.batch("accounts", [{"id": "a"}, {"id": "b"}]))
        stage.add("accounts", self.batch("accounts", [{"id": "a"}]))
        self.append("accounts", [{"id": "a"}])
        stage.commit(expect={"accounts": {"a": 1}})
        assert self.column("accounts", "_version") == [1, 2, 1, 3]

    def test_deletes_can_be_staged(self) -> None:
        self.create("customers", KEYED, key="id")
        stage = self.log.stage()
        stage.add("customers", self.batch("customers", [{"id": 1, "name": "a"}, {"id": 1, "_op": "delete"}]))
        stage.commit()
        assert self.column("customers", "_op") == ["upsert", "delete"]

    def test_a_stage_without_rows_commits_nothing(self) -> None:
        self.create("clicks")
        stage = self.log.stage()
        stage.add("clicks", self.batch("clicks", []))
        assert stage.commit() == Receipt({})

    def test_a_commit_keeps_the_checks_of_an_append(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(1), producer=Producer("loader", 1, epoch=2))
        stage = self.log.stage()
        stage.add("clicks", self.batch("clicks", self.numbers(2)))
        with refused(ConflictError):
            stage.commit(expect={"clicks": 0})
        with refused(FencedError):
            stage.commit(producer=Producer("loader", 2, epoch=1))
        assert stage.commit(expect={"clicks": 1}).positions == {"clicks": {0: (1, 3)}}

    def test_a_repeated_sequence_is_answered_and_the_staged_rows_are_dropped(self) -> None:
        self.create("clicks")
        producer = Producer("loader", 1)
        first = self.append("clicks", self.numbers(200), producer=producer)
        stage = self.log.stage(producer)
        stage.add("clicks", self.batch("clicks", self.numbers(200)))
        assert stage.commit(producer=producer) == first
        assert self.ends("clicks") == {0: 200}

    def test_a_commit_can_move_a_cursor(self) -> None:
        self.create("clicks")
        self.create("orders")
        self.append("clicks", self.numbers(5))
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        stage = self.log.stage()
        stage.add("orders", self.batch("orders", self.numbers(1)))
        stage.commit(moves=(CursorMove("clicks", "mailer", {0: 5}),))
        cursor = self.log.cursor("clicks", "mailer")
        assert cursor is not None
        assert cursor.positions == {0: 5}

    def test_a_stage_that_has_ended_takes_no_more(self) -> None:
        self.create("clicks")
        batch = self.batch("clicks", self.numbers(1))
        committed, aborted = self.log.stage(), self.log.stage()
        committed.add("clicks", batch)
        committed.commit()
        aborted.abort()
        for stage in (committed, aborted):
            with refused(UsageError):
                stage.add("clicks", batch)
            with refused(UsageError):
                stage.commit()
        assert self.ends("clicks") == {0: 1}

    def test_two_stages_go_on_side_by_side(self) -> None:
        self.create("clicks")
        one, two = self.log.stage(), self.log.stage()
        one.add("clicks", self.batch("clicks", self.numbers(2)))
        two.add("clicks", self.batch("clicks", self.numbers(3, start=10)))
        assert two.commit().positions == {"clicks": {0: (0, 3)}}
        assert one.commit().positions == {"clicks": {0: (3, 5)}}
        assert self.column("clicks", "n") == [10, 11, 12, 0, 1]
