"""Contract of watermarks, which are a function of the log, and of offsets found by time."""

from __future__ import annotations

from typing import Any

from headwater.core.clock import from_us, to_us
from headwater.core.errors import UsageError
from headwater.testing.contract.contract_base import KEYED, TIMED, Bench, minutes, refused

MINUTE = 60_000_000


class TimeContract(Bench):
    """Tests of `watermark`, `punctuate`, idle partitions, `offset_at` and the `_watermark` column."""

    def append_at(self, *times: float) -> None:
        """Append rows with event times this many minutes after START."""
        self.append("clicks", [{"n": n, "at": minutes(t)} for n, t in enumerate(times)])

    def watermarks(self, *, upto: int) -> list[float | None]:
        """Return the watermark at each offset, in minutes after START."""
        found = [self.log.watermark("clicks", 0, offset) for offset in range(upto)]
        return [None if w is None else (w - to_us(minutes(0))) / MINUTE for w in found]

    def test_there_is_no_watermark_before_the_first_record(self) -> None:
        self.create("clicks", TIMED, time="at")
        assert self.log.watermark("clicks", 0, 0) is None
        assert self.log.partitions("clicks")[0].watermark is None

    def test_it_is_the_highest_event_time_before_an_offset(self) -> None:
        self.create("clicks", TIMED, time="at")
        self.append_at(5, 3, 9)
        self.append_at(1, 12)
        assert self.watermarks(upto=6) == [None, 5, 5, 9, 9, 12]

    def test_it_is_less_the_declared_lateness(self) -> None:
        self.create("clicks", TIMED, time="at", lateness="10 minutes")
        self.append_at(5, 30, 20)
        assert self.watermarks(upto=4) == [None, -5, 20, 20]

    def test_each_record_carries_the_watermark_before_it(self) -> None:
        self.create("clicks", TIMED, time="at", lateness="1 minute")
        self.append_at(5, 3, 9)
        self.append_at(1)
        expected: list[Any] = [None, minutes(4), minutes(4), minutes(8)]
        assert self.column("clicks", "_watermark") == expected

    def test_partition_bounds_tell_the_watermark_at_the_end(self) -> None:
        self.create("clicks", TIMED, time="at")
        self.append_at(5, 3)
        assert self.log.partitions("clicks")[0].watermark == to_us(minutes(5))

    def test_partitions_have_watermarks_of_their_own(self) -> None:
        self.create("clicks", TIMED, time="at", partitions=2, partition_by="n")
        (used,) = self.append("clicks", [{"n": 1, "at": minutes(1)}]).positions["clicks"]
        assert self.log.watermark("clicks", used, 1) == to_us(minutes(1))
        assert self.log.watermark("clicks", 1 - used, 0) is None

    def test_watermarks_stay_the_same_after_reopening_and_sealing(self) -> None:
        self.create("clicks", TIMED, time="at", lateness="2 minutes")
        for start in range(0, 40, 5):
            self.append_at(*((start * 31 + n * 17) % 40 for n in range(5)))
            self.log.punctuate("clicks", {0: to_us(minutes(start))})
        before, column = self.watermarks(upto=49), self.column("clicks", "_watermark")
        for _ in range(2):
            self.log.maintain(force=True)
            self.log = self.reopen(self.log)
            assert self.watermarks(upto=49) == before
            assert self.column("clicks", "_watermark") == column

    def test_topics_without_event_time_have_no_watermark(self) -> None:
        self.create("clicks")
        self.append("clicks", self.numbers(2))
        assert self.log.watermark("clicks", 0, 2) is None
        assert self.column("clicks", "_watermark") == [None, None]

    def test_a_tombstone_without_event_time_leaves_the_watermark(self) -> None:
        self.create("clicks", "id BIGINT, at TIMESTAMP", key="id", time="at")
        self.append("clicks", [{"id": 1, "at": minutes(5)}, {"id": 1, "_op": "delete"}])
        assert self.watermarks(upto=3) == [None, 5, 5]

    def test_rows_too_far_ahead_do_not_raise_it_and_are_counted(self) -> None:
        self.create("clicks", TIMED, time="at", max_ahead="1 hour")
        now = from_us(self.clock.now_us())
        hour = from_us(self.clock.now_us() + 60 * MINUTE)
        beyond = from_us(self.clock.now_us() + 60 * MINUTE + 1)
        self.append("clicks", [{"n": n, "at": at} for n, at in enumerate([now, beyond, hour])])
        assert self.column("clicks", "_watermark") == [None, now, now]
        info = self.log.partitions("clicks")[0]
        assert (info.watermark, info.ahead) == (to_us(hour), 1)
        self.log = self.reopen(self.log)
        assert self.log.partitions("clicks")[0].ahead == 1

    def test_without_max_ahead_any_time_raises_it(self) -> None:
        self.create("clicks", TIMED, time="at")
        self.append_at(1e7)
        assert self.watermarks(upto=2) == [None, 1e7]

    def test_punctuation_raises_the_watermark_after_its_offset(self) -> None:
        self.create("clicks", TIMED, time="at", lateness="10 minutes")
        self.append_at(5)
        self.log.punctuate("clicks", {0: to_us(minutes(7))})
        self.append_at(8)
        assert self.watermarks(upto=4) == [None, -5, 7, 7]
        assert self.column("clicks", "_watermark") == [None, minutes(7)]

    def test_punctuation_takes_an_offset_that_readers_skip(self) -> None:
        self.create("clicks", TIMED, time="at")
        self.append_at(1)
        self.log.punctuate("clicks", {0: to_us(minutes(2))})
        self.append_at(3)
        assert self.ends("clicks") == {0: 3}
        assert self.column("clicks", "_offset") == [0, 2]
        assert self.log.partitions("clicks")[0].rows == 2
        assert list(self.log.read("clicks", 0, 1, 2)) == []

    def test_punctuation_below_the_watermark_changes_nothing_but_takes_an_offset(self) -> None:
        self.create("clicks", TIMED, time="at")
        self.append_at(9)
        self.log.punctuate("clicks", {0: to_us(minutes(2))})
        assert self.ends("clicks") == {0: 2}
        assert self.watermarks(upto=3) == [None, 9, 9]

    def test_punctuation_goes_to_the_partitions_named(self) -> None:
        self.create("clicks", TIMED, time="at", partitions=3)
        self.log.punctuate("clicks", {0: to_us(minutes(1)), 2: to_us(minutes(2))})
        assert self.ends("clicks") == {0: 1, 1: 0, 2: 1}
        assert self.log.watermark("clicks", 2, 1) == to_us(minutes(2))
        self.log = self.reopen(self.log)
        assert [info.watermark for info in self.log.partitions("clicks").values()] == [
            to_us(minutes(1)),
            None,
            to_us(minutes(2)),
        ]

    def test_a_partition_of_nothing_but_punctuation_reads_empty(self) -> None:
        self.create("clicks", TIMED, time="at")
        for minute in range(3):
            self.log.punctuate("clicks", {0: to_us(minutes(minute))})
        self.log.maintain(force=True)
        self.log = self.reopen(self.log)
        assert self.column("clicks", "n") == []
        assert self.ends("clicks") == {0: 3}
        assert self.watermarks(upto=4) == [None, 0, 1, 2]

    def test_punctuation_of_a_partition_that_is_not_there_is_a_usage_error(self) -> None:
        self.create("clicks", TIMED, time="at")
        with refused(UsageError):
            self.log.punctuate("clicks", {0: 1, 5: 1})
        assert self.ends("clicks") == {0: 0}

    def test_silence_raises_partitions_that_have_not_grown_since(self) -> None:
        self.create("clicks", TIMED, time="at", partitions=3, partition_by="n")
        (used,) = self.append("clicks", [{"n": 1, "at": minutes(1)}]).positions["clicks"]
        quiet = [p for p in range(3) if p != used]
        moments = {p: to_us(minutes(9)) for p in range(3)}
        self.log.punctuate("clicks", moments, idle_at={used: 0, quiet[0]: 0, quiet[1]: 0})
        assert self.ends("clicks") == {used: 1, quiet[0]: 1, quiet[1]: 1}
        assert self.log.watermark("clicks", used, 1) == to_us(minutes(1))
        assert [self.log.watermark("clicks", p, 1) for p in quiet] == [to_us(minutes(9))] * 2

    def test_silence_writes_nothing_where_the_watermark_is_as_high(self) -> None:
        self.create("clicks", TIMED, time="at")
        self.append_at(5)
        before = self.log.sequence()
        self.log.punctuate("clicks", {0: to_us(minutes(5))}, idle_at={0: 1})
        self.log.punctuate("clicks", {0: to_us(minutes(4))}, idle_at={0: 1})
        assert (self.ends("clicks"), self.log.sequence()) == ({0: 1}, before)

    def test_a_partition_is_heard_by_its_records_and_punctuations_but_not_by_silence(self) -> None:
        created = self.clock.now_us()
        self.create("clicks", TIMED, time="at", partitions=2, partition_by="n")

        def heard() -> list[float]:
            infos = self.log.partitions("clicks").values()
            return [(info.heard_at - created) / MINUTE for info in infos]

        self.clock.advance("1 minute")
        assert heard() == [0, 0]
        (used,) = self.append("clicks", [{"n": 1, "at": minutes(1)}]).positions["clicks"]
        self.clock.advance("1 minute")
        self.log.punctuate("clicks", {1 - used: to_us(minutes(1))}, idle_at={1 - used: 0})
        assert heard() == ([1, 0] if used == 0 else [0, 1])
        for _ in range(2):
            self.log.maintain(force=True)
            self.log = self.reopen(self.log)
            assert heard() == ([1, 0] if used == 0 else [0, 1])
        self.log.punctuate("clicks", {0: to_us(minutes(9)), 1: to_us(minutes(9))})
        assert heard() == [2, 2]

    def test_a_row_of_a_far_future_makes_nothing_late_where_max_ahead_is_set(self) -> None:
        self.create("clicks", TIMED, time="at", max_ahead="1 hour")
        now = from_us(self.clock.now_us())
        far = now.replace(year=2099)
        self.append("clicks", [{"n": 0, "at": now}, {"n": 1, "at": far}, {"n": 2, "at": now}])
        self.append("clicks", [{"n": 3, "at": now}])
        assert self.column("clicks", "_watermark") == [None, now, now, now]
        info = self.log.partitions("clicks")[0]
        assert (info.watermark, info.ahead) == (to_us(now), 1)

    def test_an_offset_is_found_by_append_time(self) -> None:
        self.create("clicks")
        start = self.clock.now_us()
        for _ in range(4):
            self.append("clicks", self.numbers(3))
            self.clock.advance("1 minute")
        for moment, offset in (
            (0, 0),
            (start, 0),
            (start + 1, 3),
            (start + MINUTE, 3),
            (start + 3 * MINUTE, 9),
        ):
            assert self.log.offset_at("clicks", 0, moment, "appended") == offset
        assert self.log.offset_at("clicks", 0, start + 3 * MINUTE + 1, "appended") == 12

    def test_an_offset_is_found_by_event_time(self) -> None:
        self.create("clicks", TIMED, time="at", lateness="5 minutes")
        self.append_at(1, 3, 2)
        self.append_at(8, 4, 10)
        at = {m: self.log.offset_at("clicks", 0, to_us(minutes(m)), "event") for m in range(12)}
        assert at == {0: 0, 1: 0, 2: 1, 3: 1, 4: 3, 5: 3, 6: 3, 7: 3, 8: 3, 9: 5, 10: 5, 11: 6}

    def test_rows_too_far_ahead_are_found_by_their_event_time(self) -> None:
        self.create("clicks", TIMED, time="at", max_ahead="1 hour")
        now = self.clock.now_us()
        late = now + 600 * MINUTE
        self.append("clicks", [{"n": n, "at": from_us(t)} for n, t in enumerate([now, late, now + 1])])
        self.append("clicks", [{"n": 3, "at": from_us(now + 2)}])
        for _ in range(2):
            assert self.log.offset_at("clicks", 0, now + 1, "event") == 1
            assert self.log.offset_at("clicks", 0, late, "event") == 1
            assert self.log.offset_at("clicks", 0, late + 1, "event") == 4
            self.log.maintain(force=True)
            self.log = self.reopen(self.log)

    def test_offsets_by_time_are_the_same_after_sealing_and_reopening(self) -> None:
        self.create("clicks", TIMED, time="at")
        start = self.clock.now_us()
        for turn in range(12):
            self.append_at(*(turn * 3 + n for n in (2, 0, 4)))
            self.clock.advance("1 minute")

        def found() -> list[int]:
            return [self.log.offset_at("clicks", 0, start + m * MINUTE, "appended") for m in range(14)] + [
                self.log.offset_at("clicks", 0, to_us(minutes(m)), "event") for m in range(40)
            ]

        before = found()
        self.log.maintain(force=True)
        self.log = self.reopen(self.log)
        assert found() == before

    def test_the_end_is_found_in_an_empty_partition(self) -> None:
        self.create("clicks", TIMED, time="at")
        assert self.log.offset_at("clicks", 0, 0, "appended") == 0
        assert self.log.offset_at("clicks", 0, 0, "event") == 0

    def test_event_time_is_not_sought_on_topics_that_have_none(self) -> None:
        self.create("customers", KEYED, key="id")
        with refused(UsageError):
            self.log.offset_at("customers", 0, 0, "event")
