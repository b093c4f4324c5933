"""Contract of optimistic concurrency: appends that state the expected end of the log."""

from __future__ import annotations

from headwater.core.errors import ConflictError, UsageError
from headwater.testing.contract.contract_base import Bench, refused


class ExpectingContract(Bench):
    """Tests of `append` with `expect`, in its three forms."""

    def test_the_expected_offset_is_the_next_one(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(2), expect=0)
        assert self.append("clicks", self.numbers(1), expect=2).positions == {"clicks": {0: (2, 3)}}

    def test_another_offset_is_a_conflict_that_names_both(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(2))
        with refused(ConflictError) as refusal:
            self.append("clicks", self.numbers(1), expect=1)
        error = refusal.error
        assert (error.topic, error.expected, error.actual) == ("clicks", 1, 2)
        assert self.ends("clicks") == {0: 2}

    def test_a_conflict_is_retryable(self) -> None:
        assert ConflictError.retryable

    def test_of_two_that_expect_the_same_offset_one_wins(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(1), expect=0)
        with refused(ConflictError):
            self.append("clicks", self.numbers(1), expect=0)

    def test_one_offset_for_rows_of_several_partitions_is_a_usage_error(self) -> None:
        self.create("clicks", partitions=4, partition_by="n")
        with refused(UsageError):
            self.append("clicks", self.numbers(50), expect=0)
        assert self.ends("clicks") == {0: 0, 1: 0, 2: 0, 3: 0}

    def test_one_offset_is_that_of_the_partition_the_rows_go_to(self) -> None:
        self.create("clicks", partitions=4, partition_by="n")
        self.append("clicks", self.numbers(50))
        (place,) = self.append("clicks", [{"n": 7}]).positions["clicks"].values()
        assert self.append("clicks", [{"n": 7}], expect=place[1]).rows == 1

    def test_offsets_may_be_expected_of_several_partitions(self) -> None:
        self.create("clicks", partitions=3, partition_by="n")
        self.append("clicks", self.numbers(30))
        self.append("clicks", self.numbers(30), expect=self.ends("clicks"))

    def test_a_conflict_in_one_of_several_partitions_is_a_conflict(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        self.append("clicks", self.numbers(30))
        ends = self.ends("clicks")
        with refused(ConflictError) as refusal:
            self.append("clicks", self.numbers(30), expect={0: ends[0], 1: ends[1] - 1})
        assert refusal.error.topic == "clicks"
        assert refusal.error.expected == {0: ends[0], 1: ends[1] - 1}
        assert refusal.error.actual == ends
        assert self.ends("clicks") == ends

    def test_a_partition_may_be_expected_that_no_row_goes_to(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        (used,) = self.append("clicks", [{"n": 7}]).positions["clicks"]
        self.append("clicks", [{"n": 7}], expect={1 - used: 0})
        with refused(ConflictError):
            self.append("clicks", [{"n": 7}], expect={1 - used: 1})

    def test_a_partition_that_is_not_there_cannot_be_expected(self) -> None:
        self.create("clicks")
        with refused(UsageError):
            self.append("clicks", self.numbers(1), expect={5: 0})

    def test_punctuation_counts_as_an_offset(self) -> None:
        self.create("clicks")
        self.log.punctuate("clicks", {0: 1})
        self.append("clicks", self.numbers(1), expect=1)

    def test_a_count_of_records_is_expected_per_key_on_a_versioned_topic(self) -> None:
        self.create("accounts", "id STRING, event STRING", versioned_by="id", partitions=2)
        self.append("accounts", [{"id": "a"}, {"id": "a"}], expect={"a": 0})
        self.append("accounts", [{"id": "b"}], expect={"b": 0, "a": 2})
        self.append("accounts", [{"id": "a"}], expect={"a": 2})

    def test_another_count_of_a_key_is_a_conflict_that_names_it(self) -> None:
        self.create("accounts", "id BIGINT, event STRING", versioned_by="id")
        self.append("accounts", [{"id": 1}, {"id": 2}])
        with refused(ConflictError) as refusal:
            self.append("accounts", [{"id": 1}], expect={1: 2, 2: 1})
        assert refusal.error.topic == "accounts"
        assert refusal.error.expected == {1: 2, 2: 1}
        assert refusal.error.actual == {1: 1, 2: 1}
        assert self.ends("accounts") == {0: 2}

    def test_counts_of_keys_are_known_after_reopening_and_upkeep(self) -> None:
        self.create("accounts", "id STRING, event STRING", versioned_by="id", partitions=2)
        for _ in range(3):
            self.append("accounts", [{"id": "a"}, {"id": "b", "event": "x" * 500}])
        self.log.maintain(force=True)
        self.log = self.reopen(self.log)
        self.append("accounts", [{"id": "a"}], expect={"a": 3, "b": 3, "never": 0})
        with refused(ConflictError):
            self.append("accounts", [{"id": "a"}], expect={"a": 3})

    def test_a_key_of_the_wrong_kind_is_a_usage_error(self) -> None:
        self.create("accounts", "id BIGINT", versioned_by="id")
        with refused(UsageError):
            self.append("accounts", [{"id": 1}], expect={"one": 0})

    def test_expectations_of_several_topics_hold_together(self) -> None:
        self.create("orders")
        self.create("payments")
        rows = {"orders": self.numbers(1), "payments": self.numbers(1)}
        self.append_all(rows, expect={"orders": 0, "payments": 0})
        with refused(ConflictError) as refusal:
            self.append_all(rows, expect={"orders": 1, "payments": 0})
        assert refusal.error.topic == "payments"
        assert self.ends("orders") == {0: 1}
