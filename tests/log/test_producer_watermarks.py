"""Producers join, promise, append, retire and expire at random: the watermark is what the definition says, for ever.

The model is the definition written out: it keeps the whole history and works every watermark out from its beginning.
"""

import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.core.clock import ManualClock, to_us
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.log.embedded import EmbeddedLog
from headwater.log.embedded.journal.journal_file import Scanned, scan
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append, Log, Producer
from headwater.log.topic import END_OF_TIME
from tests.raising import raises

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us", tz="UTC"))])
FEED = define_topic(
    "feed", SCHEMA, time="at", lateness="1 minute", options={"partitions": 2, "watermark": "producers"}
)
TINY = LogSettings(
    durability="os", segment_bytes_max=2_000, checkpoint_bytes=4_000, inline_bytes_max=500, receipts_max=4
)

names = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("promise"), names, st.integers(0, 20)),
    st.tuples(st.just("append"), st.none() | names, st.integers(0, 20)),
    st.tuples(st.just("retire"), names),
    st.tuples(st.just("expire"), names, st.booleans()),
    st.tuples(st.just("wait")),
    st.tuples(st.just("maintain")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("crash")),
)


class Model:
    """The history of a topic, and what follows from it."""

    def __init__(self) -> None:
        self.history: list[tuple[str, str | None, int | None]] = []

    def known(self) -> dict[str, int | None]:
        """Who has promised what, None where nothing yet, at the end of the history."""
        known: dict[str, int | None] = {}
        for what, name, moment in self.history:
            if name is None:
                continue
            if what == "retire":
                known.pop(name, None)
            elif what == "append":
                known.setdefault(name, None)
            else:
                known[name] = max(m for m in (known.get(name), moment) if m is not None)
        return known

    def watermark(self) -> int | None:
        """The highest minimum over the known producers that there has been."""
        levels = []
        for end in range(len(self.history) + 1):
            past = Model()
            past.history = self.history[:end]
            known = past.known()
            if known and None not in known.values():
                levels.append(min(m for m in known.values() if m is not None))
        return max(levels, default=None)


def moment(minute: int) -> int:
    return to_us(NOON + timedelta(minutes=minute))


class Play:
    """Does the steps on a log and in the model, and remembers the watermark at every offset that was an end."""

    def __init__(self, log: Log, clock: ManualClock, again: Callable[[Log, bool], Log]) -> None:
        self.log, self.clock, self.again = log, clock, again
        self.model = Model()
        self.seen: dict[tuple[int, int], int | None] = {}
        self.sequence = 0
        log.create_topic(FEED)

    def step(self, what: str, *given: Any) -> None:
        getattr(self, f"_{what}")(*given)
        wanted = self.model.watermark()
        level = None if wanted is None else moment(wanted)
        for p, info in self.log.partitions("feed").items():
            assert info.watermark == level
            assert self.seen.setdefault((p, info.end), level) == level, "one offset has one watermark"
        declared = {name: p.moment for name, p in self.log.producer_watermarks("feed").items()}
        known = self.model.known()
        assert declared == {n: None if m is None else moment(m) for n, m in known.items()}

    def _promise(self, name: str, minute: int) -> None:
        self.log.declare_watermark("feed", name, moment(minute))
        self.model.history.append(("promise", name, minute))

    def _append(self, name: str | None, minute: int) -> None:
        self.sequence += 1
        rows = [{"n": self.sequence, "at": NOON + timedelta(minutes=minute)}]
        producer = None if name is None else Producer(name, self.sequence)
        self.log.append(Append({"feed": [conform(rows, FEED)]}, producer))
        self.model.history.append(("append", name, None))

    def _retire(self, name: str) -> None:
        assert self.log.retire("feed", name) == (name in self.model.known())
        self.model.history.append(("retire", name, None))

    def _expire(self, name: str, in_time: bool) -> None:
        known = self.log.producer_watermarks("feed").get(name)
        since = 0 if known is None else known.heard_at - (0 if in_time else 1)
        gone = self.log.retire("feed", name, idle_since=since)
        assert gone == (known is not None and in_time)
        if gone:
            self.model.history.append(("retire", name, None))

    def _wait(self) -> None:
        self.clock.advance("1 minute")

    def _maintain(self) -> None:
        self.log.maintain(force=True)

    def _reopen(self) -> None:
        self.log = self.again(self.log, False)

    def _crash(self) -> None:
        self.log = self.again(self.log, True)

    def check_the_past(self) -> None:
        for (p, offset), level in self.seen.items():
            assert self.log.watermark("feed", p, offset) == level


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=30))
def test_in_memory_it_is_the_definition(script: list[tuple[Any, ...]]) -> None:
    clock = ManualClock()
    play = Play(MemoryLog(clock), clock, lambda log, _: log)
    for step in script:
        play.step(*step)
    play.check_the_past()


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=30))
def test_on_disk_it_is_the_definition_also_after_a_kill(script: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
        clock = ManualClock()

        def again(log: Any, killed: bool) -> Log:
            if killed:
                log.abandon()
            else:
                log.close()
            return EmbeddedLog.open(Path(folder), settings=TINY, clock=clock)

        play = Play(EmbeddedLog.open(Path(folder), settings=TINY, clock=clock), clock, again)
        try:
            for step in script:
                play.step(*step)
            play.check_the_past()
            play.step("crash")
            play.check_the_past()
        finally:
            play.log.close()


def test_what_a_wiped_out_record_said_comes_back_from_its_frames(tmp_path: Path) -> None:
    """The promise that raised the watermark, its expiry and its silence stand in the frames too."""
    clock = ManualClock()
    log = EmbeddedLog.open(tmp_path / "ws", clock=clock)
    log.create_topic(FEED)
    log.declare_watermark("feed", "a", moment(5))
    log.declare_watermark("feed", "b", moment(3))
    log.declare_watermark("feed", "a", moment(9))
    log.retire("feed", "b")
    heard = log.partitions("feed")[0].heard_at
    clock.advance("1 minute")
    log.punctuate("feed", {0: moment(20)}, idle_at={0: log.ends(["feed"])["feed"][0]})
    log.append(Append({"feed": [conform([{"n": 1, "at": NOON}], FEED)]}))
    watermarks = [log.watermark("feed", p, o) for p in (0, 1) for o in range(4)]
    log.close()
    file = Storage(tmp_path / "ws").open("journal/00000001.log")
    found = [s for s in scan(file, 0) if isinstance(s, Scanned) and "said" in s.record]
    file.close()
    assert [s.record["said"]["what"] for s in found] == ["promise", "promise", "promise", "retire", "silence"]
    for scanned in found:
        folder = shutil.copytree(tmp_path / "ws", tmp_path / f"wiped-{scanned.start}")
        journal = folder / "journal" / "00000001.log"
        data = bytearray(journal.read_bytes())
        data[scanned.start : scanned.end] = bytes(scanned.end - scanned.start)
        journal.write_bytes(data)
        log = EmbeddedLog.open(folder, clock=clock)
        assert [log.watermark("feed", p, o) for p in (0, 1) for o in range(4)] == watermarks
        assert log.partitions("feed")[0].heard_at == heard
        if scanned.record["parts"]:
            assert set(log.producer_watermarks("feed")) == {"a"}, scanned.record["said"]
        log.close()


def test_a_topic_of_producers_from_its_statement_to_its_end(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql(
            "CREATE TOPIC feed (n BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '0 seconds') "
            "WITH (watermark = 'producers', producer_timeout = '5 minutes', partitions = 2)"
        )
        feed = ws.topic("feed")
        assert feed.definition.producer_timeout_us == 300_000_000
        feed.punctuate(NOON, producer="a")
        feed.append(
            [{"n": 1, "at": NOON + timedelta(hours=9)}], producer="b", sequence=1
        )  # holds the watermark
        feed.punctuate(NOON + timedelta(minutes=5), producer="a")
        assert feed.watermark(0) == NOON
        feed.retire("b")
        assert feed.watermark(0) == feed.watermark(1) == NOON + timedelta(minutes=5)
        assert set(feed.producer_watermarks()) == {"a"}
        with raises(hw.UsageError, topic="feed", producer="b") as error:
            feed.retire("b")
        assert "its producers are a" in str(error.value.hint)
        feed.finish()
        assert feed.watermark(0) == END_OF_TIME


def test_a_promise_on_another_topic_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        clicks = ws.topic("clicks", "n BIGINT, at TIMESTAMP", time="at")
        with raises(hw.UsageError, topic="clicks", reason="not-producer-watermarks"):
            clicks.punctuate(NOON, producer="a")
        with raises(hw.UsageError, topic="clicks", reason="not-producer-watermarks"):
            clicks.retire("a")
        with raises(hw.UsageError, argument="producer", value=""):
            clicks.punctuate(NOON, producer="")


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"watermark": "nobody"}, {"option": "watermark", "value": "nobody"}),
        (
            {"watermark": "producers", "idle_after": "1 minute"},
            {"option": "idle_after", "reason": "producer-watermarks"},
        ),
        (
            {"watermark": "producers", "max_ahead": "1 minute"},
            {"option": "max_ahead", "reason": "producer-watermarks"},
        ),
        (
            {"producer_timeout": "1 minute"},
            {"option": "producer_timeout", "reason": "not-producer-watermarks"},
        ),
        (
            {"watermark": "producers", "producer_timeout": "0 seconds"},
            {"option": "producer_timeout", "reason": "not-positive"},
        ),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, Any], facts: dict[str, Any]) -> None:
    with raises(hw.SchemaError, **facts):
        define_topic("t", SCHEMA, time="at", options=options)


def test_promises_need_an_event_time() -> None:
    with raises(hw.SchemaError, option="watermark", reason="no-watermark"):
        define_topic("t", SCHEMA, options={"watermark": "producers"})


def test_the_statement_of_a_topic_makes_it_again(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql(
            "CREATE TOPIC feed (n BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 second') "
            "WITH (watermark = 'producers', producer_timeout = '90 seconds')"
        )
        made = ws.topic("feed").definition
        ws.sql("DROP TOPIC feed")
        ws.sql(made.to_sql())
        assert ws.topic("feed").definition == made
        ws.sql("ALTER TOPIC feed SET (producer_timeout = '1 hour')")
        assert ws.topic("feed").definition.producer_timeout_us == 3_600_000_000
        with raises(hw.SchemaError, option="watermark", reason="fixed-option"):
            ws.sql("ALTER TOPIC feed SET (watermark = 'events')")


def test_a_topic_tells_what_raises_its_watermark_and_who_has_promised(tmp_path: Path) -> None:
    clock = ManualClock(moment(0))
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        ws.sql(
            "CREATE TOPIC feed (n BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '0 seconds') "
            "WITH (watermark = 'producers', producer_timeout = '5 minutes');"
            "CREATE TOPIC clicks (n BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute') "
            "WITH (max_ahead = '1 hour', idle_after = '30 seconds');"
            "CREATE TOPIC meters (device BIGINT, occurred_at TIMESTAMP, sent_at TIMESTAMP) WITH (clock = 'device')"
        )
        ws.topic("feed").punctuate(NOON, producer="a")
        ws.topic("feed").append([{"n": 1, "at": NOON}], producer="b", sequence=1)
        ws.topic("clicks").append([{"n": 1, "at": NOON}, {"n": 2, "at": NOON.replace(year=2099)}])
        feed, clicks, meters = (facts(ws, f"EXPLAIN {name}") for name in ("feed", "clicks", "meters"))
        assert feed["watermark"] == "the lowest that its producers declare for at"
        assert feed["producer_timeout"].startswith("5 minutes: ")
        assert feed["producer a"].startswith(
            "declared 2026-03-01T12:00:00+00:00, last heard from at 2026-03-01T12"
        )
        assert feed["producer b"].startswith("no watermark declared yet")
        assert clicks["watermark"] == "at minus 1 minute"
        assert clicks["idle_after"].startswith("30 seconds: ")
        assert clicks["max_ahead"].startswith("1 hour: ")
        assert clicks["partition 0"].endswith("1 rows ahead")
        assert meters["clock"].startswith("of device: occurred_at and sent_at give corrected_at")
        shown = {row["topic"]: row for row in ws.sql("SHOW TOPICS").to_pylist()}  # type: ignore[union-attr]
        assert shown["feed"]["watermark"] == NOON
        assert (shown["clicks"]["watermark"], shown["clicks"]["ahead"]) == (NOON - timedelta(minutes=1), 1)
        assert shown["meters"]["watermark"] is None
        roles = {row["column"]: row["role"] for row in ws.sql("DESCRIBE meters").to_pylist()}  # type: ignore[union-attr]
        assert roles["device"] == "partition, clock"
        assert roles["clock_flag"] == "filled by the log"


def facts(ws: hw.Workspace, statement: str) -> dict[str, str]:
    table = ws.sql(statement)
    assert table is not None
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
