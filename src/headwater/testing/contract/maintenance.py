"""Contract of maintenance: what it may remove and what it must keep. Tests use `maintain(force=True)`; less is up to
the backend."""

from __future__ import annotations

import dataclasses
from typing import Any

from headwater.catalog.definitions import define_topic
from headwater.core.clock import to_us
from headwater.core.errors import GapError
from headwater.log.protocol import CursorMove, MaintenanceReport
from headwater.testing.contract.contract_base import KEYED, Bench, columns, minutes, refused


class UpkeepContract(Bench):
    """Tests of `maintain`: retention, compaction, holds."""

    def maintain(self, *, override_holds: bool = False) -> MaintenanceReport:
        """Run all maintenance twice; the second run must find nothing to remove."""
        report = self.log.maintain(force=True, override_holds=override_holds)
        again = self.log.maintain(force=True, override_holds=override_holds)
        assert (again.rows_removed, again.rows_compacted) == (0, 0)
        return report

    def fill(self, *, appends: int = 6, **options: Any) -> None:
        """Create a topic with ten rows a day."""
        self.create("clicks", **options)
        for day in range(appends):
            self.append("clicks", self.numbers(10, start=day * 10))
            self.log.maintain(force=True)
            self.clock.advance("1 day")

    def first(self) -> int:
        """Return the first offset that is kept."""
        return self.log.partitions("clicks")[0].first

    # ---- retention

    def test_without_retention_nothing_is_removed(self) -> None:
        self.fill()
        self.clock.advance("1000 days")
        self.maintain()
        assert self.column("clicks", "n") == list(range(60))

    def test_records_older_than_the_retention_are_removed(self) -> None:
        self.fill()
        old = self.log.topics()["clicks"]
        self.log.alter_topic(old, dataclasses.replace(old, retention_us=3 * 86_400_000_000))
        report = self.maintain()
        assert self.first() == 30
        assert report.rows_removed == 30
        assert self.column("clicks", "n") == list(range(30, 60))
        assert self.ends("clicks") == {0: 60}

    def test_nothing_younger_than_the_retention_is_removed(self) -> None:
        self.create("clicks", retention="3 days")
        for day in range(10):
            self.append("clicks", self.numbers(10, start=day * 10))
            self.clock.advance("1 day")
            self.maintain()
            kept = self.column("clicks", "n")
            youngest = max(0, day - 2) * 10
            assert set(range(youngest, (day + 1) * 10)) <= set(kept)

    def test_everything_may_be_removed_and_offsets_go_on(self) -> None:
        self.fill(retention="1 day")
        self.clock.advance("30 days")
        self.maintain()
        assert (self.first(), self.ends("clicks")) == (60, {0: 60})
        self.log = self.reopen(self.log)
        assert self.append("clicks", self.numbers(1)).positions == {"clicks": {0: (60, 61)}}

    def test_bounds_and_contents_stay_removed_after_reopening(self) -> None:
        self.fill(retention="3 days")
        self.maintain()
        before = (self.first(), self.column("clicks", "n"))
        self.log = self.reopen(self.log)
        assert (self.first(), self.column("clicks", "n")) == before

    def test_records_beyond_the_retained_size_are_removed_from_the_front(self) -> None:
        self.fill()
        old = self.log.topics()["clicks"]
        size = self.log.partitions("clicks")[0].size_bytes
        self.log.alter_topic(old, dataclasses.replace(old, retention_bytes=size * 5 // 12))
        assert self.maintain().rows_removed == 30
        assert self.column("clicks", "n") == list(range(30, 60))
        assert self.log.partitions("clicks")[0].size_bytes >= size * 5 // 12

    def test_a_segment_larger_than_the_retained_size_stays_until_another_holds_it(self) -> None:
        self.create("clicks", retention_bytes=1)
        self.append("clicks", self.numbers(10))
        assert self.maintain().rows_removed == 0
        info = self.log.partitions("clicks")[0]
        assert info.oldest_bytes == info.size_bytes > 0
        self.append("clicks", self.numbers(10, start=10))
        assert self.maintain().rows_removed == 10
        assert self.column("clicks", "n") == list(range(10, 20))

    def test_punctuation_does_not_push_out_the_newest_records(self) -> None:
        self.create("clicks", "n BIGINT, at TIMESTAMP", time="at", retention_bytes=1)
        self.append("clicks", [{"n": 1, "at": minutes(1)}])
        for minute in range(2, 5):
            self.maintain()
            self.log.punctuate("clicks", {0: to_us(minutes(minute))})
        assert self.maintain().rows_removed == 0
        assert self.column("clicks", "n") == [1]

    def test_a_size_that_is_not_reached_removes_nothing(self) -> None:
        self.fill(retention_bytes="1 GB")
        self.maintain()
        assert self.first() == 0

    def test_the_watermark_outlives_the_records(self) -> None:
        self.create("clicks", "n BIGINT, at TIMESTAMP", time="at", retention="1 day")
        self.append("clicks", [{"n": 1, "at": minutes(5)}])
        self.log.maintain(force=True)
        self.clock.advance("2 days")
        self.maintain()
        self.log = self.reopen(self.log)
        assert self.log.partitions("clicks")[0].rows == 0
        assert self.log.partitions("clicks")[0].watermark == to_us(minutes(5))
        self.append("clicks", [{"n": 2, "at": minutes(3)}])
        assert self.column("clicks", "_watermark") == [minutes(5)]

    def test_a_removed_position_is_a_gap_that_says_what_was_missed(self) -> None:
        self.fill(retention="3 days")
        self.maintain()
        with refused(GapError) as refusal:
            self.table("clicks", start=4, end=60)
        error, first = refusal.error, self.first()
        assert (error.topic, error.partition, error.position) == ("clicks", 0, 4)
        assert (error.first_available, error.missed) == (first, first - 4)

    def test_reading_goes_on_at_the_first_available_position(self) -> None:
        self.fill(retention="3 days")
        self.maintain()
        assert self.column("clicks", "n", start=self.first())[0] == self.first()

    def test_times_are_sought_among_what_is_kept(self) -> None:
        self.fill(retention="3 days")
        self.maintain()
        assert self.log.offset_at("clicks", 0, 0, "appended") == self.first()

    # ---- holds

    def test_what_a_holding_cursor_needs_is_not_removed(self) -> None:
        self.create("clicks", retention="1 day")
        self.log.create_cursor("clicks", "archive", {0: 0}, True)
        for day in range(6):
            self.append("clicks", self.numbers(10, start=day * 10))
            self.log.maintain(force=True)
            self.clock.advance("1 day")
        self.log.move_cursor(CursorMove("clicks", "archive", {0: 25}))
        self.maintain()
        assert 0 < self.first() <= 25
        self.log.move_cursor(CursorMove("clicks", "archive", {0: 60}))
        self.clock.advance("3 days")
        self.maintain()
        assert self.first() == 60

    def test_the_slowest_holding_cursor_decides(self) -> None:
        self.fill(retention="1 day", appends=1)
        self.log.create_cursor("clicks", "fast", {0: 10}, True)
        self.log.create_cursor("clicks", "slow", {0: 0}, True)
        self.clock.advance("9 days")
        self.maintain()
        assert self.first() == 0

    def test_a_cursor_without_hold_holds_nothing(self) -> None:
        self.fill(retention="1 day")
        self.log.create_cursor("clicks", "mailer", {0: 0}, False)
        self.clock.advance("9 days")
        self.maintain()
        assert self.first() == 60

    def test_holds_can_be_overridden(self) -> None:
        self.fill(retention="1 day", appends=1)
        self.log.create_cursor("clicks", "archive", {0: 0}, True)
        self.clock.advance("9 days")
        self.maintain(override_holds=True)
        assert self.first() == 10

    # ---- compaction

    def customers(self, *rows: tuple[int, str | None], **options: Any) -> None:
        """Append each row on its own to a compacted topic; a name of None is a tombstone."""
        if "customers" not in self.log.topics():
            self.create("customers", KEYED, key="id", cleanup="compact", **options)
        for number, name in rows:
            row = {"id": number, "_op": "delete"} if name is None else {"id": number, "name": name}
            self.append("customers", [row])

    def kept(self) -> list[tuple[int, int, str | None]]:
        """Return (offset, id, name) of every record of the first partition."""
        columns = [self.column("customers", name) for name in ("_offset", "id", "name")]
        return list(zip(*columns, strict=True))

    def test_the_latest_record_of_each_key_stays_at_its_offset(self) -> None:
        self.customers((1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e"))
        report = self.maintain()
        assert report.rows_compacted == 2
        assert self.kept() == [(2, 1, "c"), (3, 3, "d"), (4, 2, "e")]

    def test_of_two_rows_of_one_append_the_later_stays(self) -> None:
        self.create("customers", KEYED, key="id", cleanup="compact")
        self.append("customers", [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
        self.maintain()
        assert self.kept() == [(1, 1, "b")]

    def test_compaction_moves_neither_first_nor_end(self) -> None:
        self.customers((1, "a"), (1, "b"), (1, "c"))
        self.maintain()
        info = self.log.partitions("customers")[0]
        assert (info.first, info.end, info.rows) == (0, 3, 1)

    def test_reading_from_a_compacted_offset_is_no_gap(self) -> None:
        self.customers((1, "a"), (1, "b"))
        self.maintain()
        table = self.table("customers", start=0)
        assert table is not None
        assert table.column("_offset").to_pylist() == [1]

    def test_compaction_goes_on_with_later_records(self) -> None:
        self.customers((1, "a"), (2, "b"))
        self.maintain()
        self.log = self.reopen(self.log)
        self.customers((1, "c"))
        self.maintain()
        assert self.kept() == [(1, 2, "b"), (2, 1, "c")]

    def test_a_tombstone_stays_for_its_time_and_then_goes(self) -> None:
        self.customers((1, "a"), (2, "b"), (1, None), tombstone_retention="1 hour")
        self.maintain()
        assert self.kept() == [(1, 2, "b"), (2, 1, None)]
        self.clock.advance("2 hours")
        self.maintain()
        assert self.kept() == [(1, 2, "b")]

    def test_a_key_that_came_back_after_its_tombstone_stays(self) -> None:
        self.customers((1, "a"), (1, None), (1, "b"), tombstone_retention="1 hour")
        self.clock.advance("2 hours")
        self.maintain()
        assert self.kept() == [(2, 1, "b")]

    def test_compaction_of_nothing_but_old_tombstones_leaves_nothing(self) -> None:
        self.customers((1, None), (2, None), tombstone_retention="1 hour")
        self.clock.advance("2 hours")
        self.maintain()
        assert self.kept() == []
        assert self.ends("customers") == {0: 2}
        self.customers((3, "c"))
        self.log = self.reopen(self.log)
        assert self.kept() == [(2, 3, "c")]

    def test_keys_of_several_columns_and_types_are_told_apart(self) -> None:
        rows: list[dict[str, Any]] = [
            {"id": "a", "d": 1.0, "name": "old"},
            {"id": "a", "d": 2.0, "name": "other"},
            {"id": "a", "d": 1.0, "name": "new"},
            {"id": "", "d": 1.0, "name": "empty"},
            {"id": "b", "d": 0.0, "name": "plus"},
            {"id": "b", "d": -0.0, "name": "minus"},
        ]
        schema = columns("id STRING, d DOUBLE, name STRING")
        self.log.create_topic(
            define_topic("customers", schema, key=("id", "d"), options={"cleanup": "compact"})
        )
        self.append("customers", rows)
        self.maintain()
        assert self.column("customers", "name") == ["other", "new", "empty", "minus"]

    def test_a_holding_cursor_keeps_what_it_has_not_read(self) -> None:
        self.customers((1, "a"), (1, "b"), (1, "c"), (1, "d"))
        self.log.create_cursor("customers", "archive", {0: 2}, True)
        self.maintain()
        assert [offset for offset, _, _ in self.kept()] == [1, 2, 3]

    def test_compaction_changes_no_watermark(self) -> None:
        self.create("customers", "id BIGINT, at TIMESTAMP", key="id", time="at", cleanup="compact")
        for number, minute in ((1, 9), (2, 3), (1, 5), (2, 12), (3, 1)):
            self.append("customers", [{"id": number, "at": minutes(minute)}])
        before = [self.log.watermark("customers", 0, offset) for offset in range(6)]
        self.maintain()
        self.log = self.reopen(self.log)
        assert self.column("customers", "_watermark") == [minutes(9), minutes(9), minutes(12)]
        assert [self.log.watermark("customers", 0, offset) for offset in range(6)] == before

    def test_compaction_changes_no_watermark_that_punctuation_raised(self) -> None:
        self.create("customers", "id BIGINT, at TIMESTAMP", key="id", time="at", cleanup="compact")
        self.log.punctuate("customers", {0: to_us(minutes(15))})
        for minute in (8, 10):
            self.append("customers", [{"id": 1, "at": minutes(minute)}])
        self.log.punctuate("customers", {0: to_us(minutes(20))})
        for minute in (3, 4):
            self.append("customers", [{"id": 1, "at": minutes(minute)}])
        before = [self.log.watermark("customers", 0, offset) for offset in range(7)]
        for _ in range(2):
            self.maintain()
            self.log = self.reopen(self.log)
            assert [self.log.watermark("customers", 0, offset) for offset in range(7)] == before

    def test_topics_that_are_not_compacted_keep_every_record(self) -> None:
        self.create("customers", KEYED, key="id")
        self.append("customers", [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
        self.maintain()
        assert [name for _, _, name in self.kept()] == ["a", "b"]

    def test_cleanup_can_be_switched_on_later(self) -> None:
        self.create("customers", KEYED, key="id")
        self.append("customers", [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
        old = self.log.topics()["customers"]
        self.log.alter_topic(old, dataclasses.replace(old, cleanup="compact"))
        self.maintain()
        assert [name for _, _, name in self.kept()] == ["b"]

    def test_upkeep_of_an_empty_log_does_nothing(self) -> None:
        report = self.maintain()
        assert (report.segments_removed, report.rows_removed, report.rows_compacted) == (0, 0, 0)
