"""Contract of cuts: positions in several topics, all as of one commit."""

from __future__ import annotations

from headwater.core.errors import TopicNotFoundError, UsageError
from headwater.log.cuts import Cut, next_cut
from headwater.testing.contract.contract_base import KEYED, TIMED, Bench, minutes, refused


class CuttingContract(Bench):
    """Tests of `cut` and `next_cut`."""

    def test_a_cut_is_the_ends_with_the_number_of_the_commit(self) -> None:
        self.create("clicks", partitions=2)
        self.create("orders")
        assert self.log.cut(["clicks", "orders"]) == (
            self.log.sequence(),
            {"clicks": {0: 0, 1: 0}, "orders": {0: 0}},
        )
        self.append_all({"clicks": self.numbers(3), "orders": self.numbers(2)})
        sequence, ends = self.log.cut(["orders", "clicks"])
        assert sequence == self.log.sequence()
        assert ends == self.log.ends(["orders", "clicks"])

    def test_a_cut_of_a_missing_topic_is_refused(self) -> None:
        with refused(TopicNotFoundError):
            self.log.cut(["gone"])

    def test_without_a_bound_it_is_everything(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(3))
        self.append("clicks", self.numbers(4))
        assert next_cut(self.log, ["clicks"], {}, None) == Cut({"clicks": {0: 7}}, self.log.sequence(), 7)
        start = {"clicks": {0: 7}}
        assert next_cut(self.log, ["clicks"], start, None) == Cut(start, self.log.sequence(), 0)
        assert next_cut(self.log, ["clicks"], start, 1) == Cut(start, self.log.sequence(), 0)

    def test_a_bound_is_kept_by_whole_commits(self) -> None:
        self.create("clicks")
        ends = []
        for size in (2, 3, 4):
            self.append("clicks", self.numbers(size))
            ends.append(self.log.sequence())
        assert next_cut(self.log, ["clicks"], {}, 4) == Cut({"clicks": {0: 2}}, ends[0], 2)
        assert next_cut(self.log, ["clicks"], {}, 5) == Cut({"clicks": {0: 5}}, ends[1], 5)
        assert next_cut(self.log, ["clicks"], {}, 8) == Cut({"clicks": {0: 5}}, ends[1], 5)
        assert next_cut(self.log, ["clicks"], {"clicks": {0: 2}}, 7) == Cut({"clicks": {0: 9}}, ends[2], 7)

    def test_a_commit_larger_than_the_bound_is_taken_whole(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        self.create("orders")
        self.append_all({"clicks": self.numbers(60), "orders": self.numbers(10)})
        first = self.log.sequence()
        self.append("orders", self.numbers(1))
        cut = next_cut(self.log, ["clicks", "orders"], {}, 7)
        assert (cut.sequence, cut.rows, cut.positions["orders"]) == (first, 70, {0: 10})
        assert sum(cut.positions["clicks"].values()) == 60
        after = next_cut(self.log, ["clicks", "orders"], cut.positions, 7)
        assert (after.rows, after.positions["orders"]) == (1, {0: 11})

    def test_commits_of_other_topics_count_for_nothing(self) -> None:
        self.create("clicks")
        self.create("orders")
        self.append("clicks", self.numbers(2))
        self.append("orders", self.numbers(50))
        between = self.log.sequence()
        self.append("clicks", self.numbers(2))
        assert next_cut(self.log, ["clicks"], {}, 3) == Cut({"clicks": {0: 2}}, between, 2)
        assert next_cut(self.log, ["clicks"], {}, 1) == Cut({"clicks": {0: 2}}, between, 2)

    def test_punctuation_alone_moves_it_on(self) -> None:
        self.create("clicks", TIMED, time="at", partitions=2)
        self.log.punctuate("clicks", {0: 5, 1: 5})
        assert next_cut(self.log, ["clicks"], {}, None).positions == {"clicks": {0: 1, 1: 1}}
        assert next_cut(self.log, ["clicks"], {}, 1).positions == {"clicks": {0: 1, 1: 1}}

    def test_punctuation_takes_a_position_and_no_row(self) -> None:
        self.create("clicks", TIMED, time="at")
        for n in range(3):
            self.append("clicks", [{"n": n, "at": minutes(n)}])
            self.log.punctuate("clicks", {0: 5})
        assert next_cut(self.log, ["clicks"], {}, 2).rows == 2
        assert next_cut(self.log, ["clicks"], {}, 2).positions == {"clicks": {0: 4}}
        assert next_cut(self.log, ["clicks"], {}, 3).positions == {"clicks": {0: 6}}
        assert next_cut(self.log, ["clicks"], {}, 3).rows == 3

    def test_what_compaction_took_away_counts_for_nothing(self) -> None:
        self.create("people", KEYED, key="id", cleanup="compact")
        for _ in range(30):
            self.append("people", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        self.log.maintain(force=True)
        self.log = self.reopen(self.log)
        self.append("people", [{"id": 3, "name": "c"}])
        cut = next_cut(self.log, ["people"], {}, 2)
        assert (cut.positions, cut.rows) == ({"people": {0: 60}}, 2)
        assert next_cut(self.log, ["people"], cut.positions, 2).positions == {"people": {0: 61}}

    def test_partitions_that_are_not_named_start_at_their_first_record(self) -> None:
        self.create("clicks", retention="1 hour")
        self.append("clicks", self.numbers(5))
        self.clock.advance("2 hours")
        self.log.maintain(force=True)
        for _ in range(2):
            self.append("clicks", self.numbers(2))
        assert self.log.partitions("clicks")[0].first == 5
        assert next_cut(self.log, ["clicks"], {}, 3).positions == {"clicks": {0: 7}}

    def test_a_bound_is_at_least_one_row(self) -> None:
        self.create("clicks")
        with refused(UsageError):
            next_cut(self.log, ["clicks"], {}, 0)
