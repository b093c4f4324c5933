"""Contract of appends: partitions, offsets and append times of rows, and atomicity."""

from __future__ import annotations

from headwater.catalog.conform import DELETE
from headwater.core.errors import ConflictError, TopicNotFoundError
from headwater.core.positions import Receipt
from headwater.core.types import TIMESTAMP
from headwater.log.protocol import Append
from headwater.log.routing import partition_of_key
from headwater.testing.contract.contract_base import KEYED, Bench, refused


class AppendingContract(Bench):
    """Tests of `append` without producers and expectations."""

    def test_the_receipt_names_the_offsets_given(self) -> None:
        self.create("clicks")
        assert self.append("clicks", self.numbers(3)) == Receipt({"clicks": {0: (0, 3)}})
        assert self.append("clicks", self.numbers(2)) == Receipt({"clicks": {0: (3, 5)}})

    def test_offsets_have_no_gaps(self) -> None:
        self.create("clicks")
        for size in (1, 5, 2):
            self.append("clicks", self.numbers(size))
        assert self.column("clicks", "_offset") == list(range(8))

    def test_rows_of_a_partition_keep_their_order(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(100))
        self.append("clicks", self.numbers(100, start=100))
        assert self.column("clicks", "n") == list(range(200))

    def test_what_was_appended_is_there_after_reopening(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        self.append("clicks", self.numbers(50))
        before = self.all_rows("clicks")
        self.log = self.reopen(self.log)
        assert self.all_rows("clicks") == before
        assert sorted(row["n"] for row in before) == list(range(50))

    def test_appending_goes_on_after_reopening(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(3))
        self.log = self.reopen(self.log)
        assert self.append("clicks", self.numbers(2, start=3)).positions == {"clicks": {0: (3, 5)}}
        assert self.column("clicks", "n") == [0, 1, 2, 3, 4]

    def test_equal_keys_go_to_one_partition(self) -> None:
        topic = self.create("clicks", "user STRING, n BIGINT", partitions=4, partition_by="user")
        for turn in range(3):
            self.append("clicks", [{"user": f"u{i}", "n": turn} for i in range(40)])
        for partition in range(4):
            for user in self.column("clicks", "user", partition):
                assert partition_of_key(topic, [user]) == partition

    def test_order_is_kept_within_each_partition(self) -> None:
        self.create("clicks", "user BIGINT, n BIGINT", partitions=3, partition_by="user")
        self.append("clicks", [{"user": n % 7, "n": n} for n in range(100)])
        for partition in range(3):
            numbers = self.column("clicks", "n", partition)
            assert numbers == sorted(numbers)

    def test_a_primary_key_routes_by_default(self) -> None:
        topic = self.create("customers", KEYED, key="id", partitions=4)
        self.append("customers", [{"id": i} for i in range(40)])
        for partition in range(4):
            assert all(
                partition_of_key(topic, [i]) == partition for i in self.column("customers", "id", partition)
            )

    def test_rows_without_a_key_fill_the_emptiest_partition(self) -> None:
        self.create("clicks", partitions=3)
        for _ in range(3):
            self.append("clicks", self.numbers(4))
        assert self.ends("clicks") == {0: 4, 1: 4, 2: 4}

    def test_a_large_append_without_a_key_is_spread(self) -> None:
        self.create("clicks", partitions=2)
        receipt = self.append("clicks", self.numbers(1_000))
        assert receipt.positions == {"clicks": {0: (0, 500), 1: (0, 500)}}
        assert self.column("clicks", "n", 0) + self.column("clicks", "n", 1) == list(range(1_000))

    def test_several_batches_of_one_topic_are_routed_one_after_the_other(self) -> None:
        self.create("clicks", partitions=2)
        batches = [self.batch("clicks", self.numbers(3)), self.batch("clicks", self.numbers(2))]
        receipt = self.log.append(Append({"clicks": batches}))
        assert receipt.positions == {"clicks": {0: (0, 3), 1: (0, 2)}}

    def test_several_batches_for_one_partition_are_one_range(self) -> None:
        self.create("clicks")
        batches = [self.batch("clicks", self.numbers(3)), self.batch("clicks", self.numbers(2, start=3))]
        receipt = self.log.append(Append({"clicks": batches}))
        assert receipt.positions == {"clicks": {0: (0, 5)}}
        assert self.column("clicks", "n") == [0, 1, 2, 3, 4]

    def test_one_append_over_two_topics_has_one_receipt_and_one_sequence(self) -> None:
        self.create("orders")
        self.create("payments")
        receipt = self.append_all({"orders": self.numbers(2), "payments": self.numbers(1)})
        assert receipt.positions == {"orders": {0: (0, 2)}, "payments": {0: (0, 1)}}
        sequences = {*self.column("orders", "_sequence"), *self.column("payments", "_sequence")}
        assert len(sequences) == 1

    def test_later_appends_have_higher_sequences(self) -> None:
        self.create("orders")
        self.create("payments")
        self.append("orders", self.numbers(2))
        self.append("payments", self.numbers(1))
        self.log = self.reopen(self.log)
        self.append("orders", self.numbers(1))
        first, second, third = self.column("orders", "_sequence")
        (between,) = self.column("payments", "_sequence")
        assert first == second < between < third

    def test_nothing_of_a_refused_append_is_there(self) -> None:
        self.create("orders")
        self.create("payments")
        self.append("payments", self.numbers(1))
        with refused(ConflictError):
            self.append_all({"orders": self.numbers(2), "payments": self.numbers(1)}, expect={"payments": 0})
        assert (self.ends("orders"), self.ends("payments")) == ({0: 0}, {0: 1})

    def test_an_append_to_a_missing_topic_writes_nothing(self) -> None:
        self.create("orders")
        batch = self.batch("orders", self.numbers(1))
        with refused(TopicNotFoundError):
            self.log.append(Append({"orders": [batch], "gone": [batch]}))
        assert self.ends("orders") == {0: 0}

    def test_an_append_of_no_rows_writes_nothing(self) -> None:
        self.create("clicks")
        assert self.append("clicks", []) == Receipt({})
        assert self.log.append(Append({})) == Receipt({})
        assert self.ends("clicks") == {0: 0}

    def test_topics_without_rows_are_left_out_of_the_receipt(self) -> None:
        self.create("orders")
        self.create("payments")
        assert self.append_all({"orders": self.numbers(1), "payments": []}) == Receipt(
            {"orders": {0: (0, 1)}}
        )

    def test_append_time_is_the_clock(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(1))
        self.clock.advance("1 second")
        self.append("clicks", self.numbers(2))
        table = self.table("clicks", columns=["_appended_at"])
        assert table is not None
        assert table.schema.field("_appended_at").type == TIMESTAMP
        now = self.clock.now_us()
        assert table.column(0).cast("int64").to_pylist() == [now - 1_000_000, now, now]

    def test_append_time_never_goes_back(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        self.create("orders")
        self.append("orders", self.numbers(1))
        before = self.clock.now_us()
        self.clock._now_us -= 5_000_000  # a wall clock that was set back
        self.append("clicks", self.numbers(20))
        self.log = self.reopen(self.log)
        self.append("clicks", self.numbers(20))
        times = {row["_appended_at"].timestamp() for row in self.all_rows("clicks")}
        assert times == {before / 1e6}

    def test_partition_bounds_tell_the_rows_and_append_times(self) -> None:
        self.create("clicks")
        first = self.clock.now_us()
        self.append("clicks", self.numbers(3))
        self.clock.advance("1 minute")
        self.append("clicks", self.numbers(2))
        info = self.log.partitions("clicks")[0]
        assert (info.first, info.end, info.rows) == (0, 5, 5)
        assert (info.oldest_appended_at, info.last_appended_at) == (first, first + 60_000_000)
        assert info.size_bytes > 0

    def test_a_row_of_a_keyed_topic_is_an_upsert_unless_it_says_otherwise(self) -> None:
        self.create("customers", KEYED, key="id")
        ops = [None, "delete", "insert", "update", "snapshot", "upsert"]
        self.append("customers", [{"id": i, "_op": op} for i, op in enumerate(ops)])
        self.append("customers", [{"id": 9, "name": "Ada"}])
        assert self.column("customers", "_op") == ["upsert", *ops[1:], "upsert"]

    def test_a_tombstone_needs_only_its_key(self) -> None:
        self.create("customers", "id BIGINT, name STRING NOT NULL", key="id")
        batch = self.batch("customers", [{"id": 7, "_op": "delete"}])
        assert batch.column("_op").to_pylist() == [DELETE]
        self.log.append(Append({"customers": [batch]}))
        assert self.column("customers", "name") == [None]

    def test_versions_count_each_key_from_one(self) -> None:
        self.create("accounts", "id STRING, event STRING", versioned_by="id", partitions=2)
        self.append("accounts", [{"id": "a"}, {"id": "b"}, {"id": "a"}])
        self.log = self.reopen(self.log)
        self.append("accounts", [{"id": "b"}, {"id": "a"}])
        versions: dict[str, list[int]] = {}
        for row in self.all_rows("accounts"):
            versions.setdefault(row["id"], []).append(row["_version"])
        assert versions == {"a": [1, 2, 3], "b": [1, 2]}

    def test_a_large_append_is_read_back_whole(self) -> None:
        self.create("clicks", partitions=2, partition_by="n")
        receipt = self.append("clicks", self.numbers(20_000))
        assert receipt.rows == 20_000
        assert sorted(row["n"] for row in self.all_rows("clicks")) == list(range(20_000))
