"""Contract of reads: half-open ranges, whole commits only, in the requested columns."""

from __future__ import annotations

import pyarrow as pa

from headwater.core.errors import ClosedError, UsageError
from headwater.core.types import TIMESTAMP
from headwater.log.protocol import Finding
from headwater.testing.contract.contract_base import KEYED, TIMED, Bench, minutes, refused


class ReadingContract(Bench):
    """Tests of `read`, `ends`, `appended_at` and `close`."""

    def test_a_range_is_half_open(self) -> None:
        self.create("clicks")
        for start in range(0, 20, 4):
            self.append("clicks", self.numbers(4, start=start))
        for start, end in ((0, 20), (0, 1), (3, 5), (4, 8), (19, 20), (7, 7), (20, 20)):
            table = self.table("clicks", start=start, end=end)
            assert ([] if table is None else table.column("n").to_pylist()) == list(range(start, end))

    def test_a_range_ends_at_the_end_of_the_partition(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(3))
        table = self.table("clicks", start=1, end=1_000)
        assert table is not None
        assert table.column("n").to_pylist() == [1, 2]

    def test_reading_past_the_end_gives_nothing(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(3))
        assert list(self.log.read("clicks", 0, 3, 10)) == []
        assert list(self.log.read("clicks", 0, 7, 10)) == []

    def test_the_columns_are_the_declared_ones_then_the_hidden_ones(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(1))
        table = self.table("clicks")
        assert table is not None
        assert table.column_names == ["n", "text", "_offset", "_appended_at", "_watermark", "_sequence"]
        assert table.schema.types == [pa.int64(), pa.string(), pa.int64(), TIMESTAMP, TIMESTAMP, pa.int64()]

    def test_keyed_topics_have_an_op_as_text(self) -> None:
        self.create("customers", KEYED, key="id")
        self.append("customers", [{"id": 1}])
        table = self.table("customers")
        assert table is not None
        assert table.column_names[2:] == ["_offset", "_appended_at", "_watermark", "_sequence", "_op"]
        assert table.schema.field("_op").type == pa.string()

    def test_versioned_topics_have_a_version(self) -> None:
        self.create("accounts", "id BIGINT", versioned_by="id")
        self.append("accounts", [{"id": 1}])
        table = self.table("accounts")
        assert table is not None
        assert table.column_names[1:] == ["_offset", "_appended_at", "_watermark", "_sequence", "_version"]
        assert table.schema.field("_version").type == pa.int64()

    def test_columns_are_given_in_the_order_asked_for(self) -> None:
        self.create("customers", KEYED, key="id")
        self.append("customers", [{"id": 1, "name": "Ada"}])
        for names in (
            ["name", "id"],
            ["_offset"],
            ["_op", "name"],
            ["_sequence", "_appended_at", "id", "_watermark"],
        ):
            table = self.table("customers", columns=names)
            assert table is not None
            assert table.column_names == names
            assert table.num_rows == 1

    def test_columns_are_the_same_from_sealed_records(self) -> None:
        self.create("customers", "id BIGINT, name STRING, at TIMESTAMP", key="id", time="at")
        self.append("customers", [{"id": i, "name": f"n{i}", "at": minutes(i)} for i in range(5)])
        whole, part = self.table("customers"), self.table("customers", columns=["_watermark", "_op", "name"])
        assert whole is not None
        assert part is not None
        self.log.maintain(force=True)
        self.log = self.reopen(self.log)
        assert self.table("customers") == whole
        assert self.table("customers", columns=["_watermark", "_op", "name"]) == part

    def test_an_unknown_column_is_a_usage_error(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(1))
        with refused(UsageError):
            self.table("clicks", columns=["nothing"])

    def test_a_partition_that_is_not_there_is_a_usage_error(self) -> None:
        self.create("clicks", partitions=2)
        for partition in (2, -1):
            with refused(UsageError):
                list(self.log.read("clicks", partition, 0, 1))

    def test_ends_of_several_topics_are_one_cut(self) -> None:
        self.create("orders", partitions=2, partition_by="n")
        self.create("payments")
        self.append_all({"orders": self.numbers(10), "payments": self.numbers(3)})
        ends = self.log.ends(["orders", "payments"])
        assert sum(ends["orders"].values()) == 10
        assert dict(ends["payments"]) == {0: 3}

    def test_every_range_reads_the_same_after_reopening_and_sealing(self) -> None:
        self.create("clicks", TIMED, time="at", lateness="1 minute")
        for start in range(0, 60, 7):
            self.append("clicks", [{"n": n, "at": minutes((n * 37) % 20)} for n in range(start, start + 7)])
        whole = self.all_rows("clicks")
        for change in (lambda: None, lambda: self.log.maintain(force=True), lambda: None):
            change()
            self.log = self.reopen(self.log)
            assert self.all_rows("clicks") == whole
            for start, end in ((0, 3), (5, 50), (13, 14), (62, 63)):
                table = self.table("clicks", start=start, end=end)
                assert table is not None
                assert table.to_pylist() == whole[start:end]

    def test_a_reader_goes_on_while_others_append_and_tidy_up(self) -> None:
        self.create("clicks")
        for start in range(0, 100, 10):
            self.append("clicks", self.numbers(10, start=start))
        reader = self.log.read("clicks", 0, 0, 100, ["n"])
        seen = next(reader).column(0).to_pylist()
        self.append("clicks", self.numbers(10, start=100))
        self.log.maintain(force=True)
        for batch in reader:
            seen += batch.column(0).to_pylist()
        assert seen == list(range(100))

    def test_append_time_of_the_first_record_at_or_after_an_offset(self) -> None:
        self.create("clicks")
        first = self.clock.now_us()
        self.append("clicks", self.numbers(2))
        self.clock.advance("1 minute")
        self.log.punctuate("clicks", {0: 1})
        self.clock.advance("1 minute")
        self.append("clicks", self.numbers(1))
        times = [self.log.appended_at("clicks", 0, offset) for offset in range(5)]
        assert times == [first, first, first + 120_000_000, first + 120_000_000, None]

    def test_a_closed_log_says_so(self) -> None:
        self.create("clicks")
        self.log.close()
        with refused(ClosedError):
            self.log.topics()

    def test_closing_twice_is_fine(self) -> None:
        self.log.close()
        self.log.close()

    def test_a_sound_log_verifies_without_findings(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(100))
        checked = list(self.log.verify())
        assert [found for found in checked if isinstance(found, Finding)] == []
        assert checked[-1] != 0
