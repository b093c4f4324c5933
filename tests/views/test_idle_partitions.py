"""When nothing is heard: which partitions are raised, to where, and how often that is written."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.core.clock import ManualClock, from_us, to_us
from headwater.log.embedded import EmbeddedLog
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append, Log
from headwater.views.idle_partitions import Heard, IdlePartitions, decide, without_input

MINUTE = 60_000_000
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us", tz="UTC"))])


def raised(partitions: dict[int, Heard], now: int = 100) -> dict[int, int]:
    return decide(partitions, idle_after_us=10, lateness_us=3, now_us=now)


def test_an_idle_partition_goes_up_to_the_lowest_of_the_others() -> None:
    assert raised({0: Heard(50, 95), 1: Heard(70, 99), 2: Heard(20, 90), 3: Heard(None, 1)}) == {2: 50, 3: 50}


def test_a_partition_is_idle_from_idle_after_on() -> None:
    partitions = {0: Heard(0, 90), 1: Heard(0, 91)}
    assert without_input(partitions, 10, 100) == {0}
    assert without_input(partitions, 10, 101) == {0, 1}


def test_nothing_is_raised_while_a_speaking_partition_has_no_watermark() -> None:
    assert raised({0: Heard(None, 95), 1: Heard(20, 1)}) == {}


def test_a_topic_that_is_wholly_idle_goes_with_the_clock_less_the_lateness() -> None:
    assert raised({0: Heard(50, 1), 1: Heard(None, 1)}) == {0: 97, 1: 97}


def test_a_watermark_is_never_lowered_nor_written_again() -> None:
    assert raised({0: Heard(50, 95), 1: Heard(50, 1), 2: Heard(60, 1)}) == {}
    assert raised({0: Heard(97, 1), 1: Heard(200, 1)}) == {}


@given(
    st.dictionaries(
        st.integers(0, 5),
        st.builds(Heard, st.none() | st.integers(0, 200), st.integers(0, 120)),
        min_size=1,
    )
)
def test_after_the_decision_nothing_is_left_to_decide(partitions: dict[int, Heard]) -> None:
    moments = raised(partitions)
    for p, moment in moments.items():
        before = partitions[p].watermark
        assert before is None or before < moment
        assert 100 - partitions[p].since >= 10
    after = {p: Heard(moments.get(p, h.watermark), h.since) for p, h in partitions.items()}
    assert raised(after) == {}
    if moments:
        speaking = [h.watermark for h in partitions.values() if 100 - h.since < 10]
        assert set(moments.values()) == {min(speaking) if speaking else 97}  # type: ignore[type-var]


class Stage:
    """A log under a manual clock, and the idle partitions of an engine that was started now."""

    def __init__(self, log: Log, clock: ManualClock) -> None:
        self.log, self.clock = log, clock
        self.began = from_us(clock.now_us())
        log.create_topic(
            define_topic(
                "clicks",
                SCHEMA,
                time="at",
                lateness="1 minute",
                options={"partitions": 2, "partition_by": "n", "idle_after": "4 minutes"},
            )
        )
        self.idle = IdlePartitions(log, clock)

    def append(self, n: int, minute: float) -> int:
        """A row with an event time so many minutes after the start; the partition that it went to."""
        rows = [{"n": n, "at": self.began + timedelta(minutes=minute)}]
        batch = conform(rows, self.log.topic("clicks"))
        (p,) = self.log.append(Append({"clicks": [batch]})).positions["clicks"]
        return p

    def go(self, minutes: float) -> None:
        """Time passes, and the engine looks at the end of it."""
        self.clock.advance(timedelta(minutes=minutes))
        self.idle.check()

    def levels(self) -> list[float | None]:
        """The watermarks, in minutes after the start."""
        infos = self.log.partitions("clicks").values()
        return [None if i.watermark is None else (i.watermark - to_us(self.began)) / MINUTE for i in infos]

    def marks(self) -> int:
        """Offsets that hold no record."""
        return sum(i.end - i.first - i.rows for i in self.log.partitions("clicks").values())


@pytest.fixture(params=["memory", "embedded"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    clock = ManualClock(to_us(datetime(2026, 3, 1, 12, tzinfo=UTC)))
    log: Log = MemoryLog(clock) if request.param == "memory" else EmbeddedLog.open(tmp_path, clock=clock)
    yield Stage(log, clock)
    log.close()


def test_a_partition_that_never_had_a_row_follows_the_one_that_has(stage: Stage) -> None:
    p = stage.append(1, minute=0)
    for minute in range(1, 4):
        stage.go(1)
        stage.append(1, minute)
    assert stage.levels()[1 - p] is None, "not before idle_after"
    stage.go(1)
    assert stage.levels() == [2, 2]
    stage.append(1, 9)
    stage.go(0.001)
    assert stage.levels()[1 - p] == 2, "at most once a second"
    stage.go(0.1)
    assert stage.levels() == [8, 8]


def test_a_topic_that_becomes_idle_closes_its_last_windows_without_another_event(stage: Stage) -> None:
    stage.append(1, minute=0)
    stage.go(4)
    assert stage.levels() == [3, 3]
    stage.go(60)
    assert stage.levels() == [63, 63]


def test_a_wholly_idle_topic_is_written_at_most_once_in_a_quarter_of_idle_after(stage: Stage) -> None:
    stage.append(1, minute=0)
    stage.go(4)
    first = stage.marks()
    for _ in range(240):  # a minute, in steps of a quarter of a second
        stage.go(0.25 / 60)
    assert stage.marks() == first + 2, "one in each of the two partitions"


def test_nothing_is_written_while_nothing_changes(stage: Stage) -> None:
    p = stage.append(1, minute=0)
    stage.go(3.5)
    stage.append(1, minute=0)
    stage.go(1)
    assert stage.levels() == [-1, -1]
    marks = stage.marks()
    for _ in range(20):
        stage.go(0.1)
    assert (stage.marks(), stage.levels()) == (marks, [-1, -1])
    assert stage.log.partitions("clicks")[p].rows == 2


def test_a_partition_that_speaks_again_is_waited_for_again(stage: Stage) -> None:
    p = stage.append(1, minute=0)
    stage.go(5)
    assert stage.levels() == [4, 4]
    other = next(n for n in range(2, 99) if stage.append(n, minute=5) != p)
    stage.append(other, minute=20)
    stage.go(1)
    assert stage.levels()[1 - p] == 19
    assert stage.levels()[p] == 19, "it is the one that is silent now"
    stage.append(1, minute=6)
    stage.append(other, minute=40)
    stage.go(1)
    assert stage.levels()[p] == 19, "nothing is decided over its head while it speaks"


def test_an_engine_that_comes_up_after_a_break_waits_first(stage: Stage) -> None:
    stage.append(1, minute=0)
    stage.clock.advance("10 days")
    stage.idle = IdlePartitions(stage.log, stage.clock)
    stage.idle.check()
    stage.go(3.9)
    assert sorted(stage.levels(), key=str) == [-1, None]
    stage.go(0.1)
    assert stage.levels() == [10 * 24 * 60 + 3, 10 * 24 * 60 + 3]


def test_a_declared_punctuation_is_a_sign_of_life(stage: Stage) -> None:
    stage.append(1, minute=0)
    stage.go(3)
    stage.log.punctuate("clicks", dict.fromkeys((0, 1), to_us(stage.began)))
    stage.go(3)
    assert stage.levels() == [0, 0]
    stage.go(1)
    assert stage.levels() == [6, 6]


def test_topics_without_idle_after_or_event_time_are_left_alone() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    log.create_topic(define_topic("timed", SCHEMA, time="at"))
    log.create_topic(define_topic("plain", SCHEMA, options={"idle_after": "1 second"}))
    idle = IdlePartitions(log, clock)
    clock.advance("1 day")
    idle.check()
    assert log.ends(["timed", "plain"]) == {"timed": {0: 0}, "plain": {0: 0}}


def test_a_topic_that_is_dropped_meanwhile_is_passed_over() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    log.create_topic(define_topic("clicks", SCHEMA, time="at", options={"idle_after": "1 second"}))
    topics = log.topics()
    log.drop_topic("clicks")
    idle = IdlePartitions(log, clock)
    log.topics = lambda: topics  # type: ignore[method-assign]
    clock.advance("1 day")
    idle.check()


def test_a_producer_that_is_silent_for_its_timeout_expires() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    options = {"watermark": "producers", "producer_timeout": "5 minutes"}
    log.create_topic(define_topic("feed", SCHEMA, time="at", options=options))
    idle = IdlePartitions(log, clock)
    log.declare_watermark("feed", "a", 10)
    log.declare_watermark("feed", "b", 5)
    clock.advance("3 minutes")
    log.declare_watermark("feed", "a", 90)
    clock.advance("1 minute")
    idle.check()
    assert set(log.producer_watermarks("feed")) == {"a", "b"}
    clock.advance("1 minute")
    idle.check()
    assert set(log.producer_watermarks("feed")) == {"a"}
    assert log.partitions("feed")[0].watermark == 90
    clock.advance("1 day")
    idle.check()
    assert (log.producer_watermarks("feed"), log.partitions("feed")[0].watermark) == ({}, 90)
