"""The embedded log does what the in-memory one does, step by step, also when it is closed or killed in between.

Both run under one manual clock. After every step their topics, bounds, contents, watermarks, positions by time and
cursors are compared. Retention is left out: the embedded log removes whole segments, so what it may and must not
remove is held by the contract, for each backend on its own.
"""

import os
import random
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, add_column, define_topic, widen_column
from headwater.core.clock import ManualClock, from_us, to_us
from headwater.core.errors import HeadwaterError
from headwater.core.settings import LogSettings
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append, CursorMove, Log, Producer

LONG = os.environ.get("HEADWATER_LONG") == "1"
TINY = {"segment_bytes_max": 2_000, "checkpoint_bytes": 4_000, "inline_bytes_max": 500, "receipts_max": 4}
pytestmark = pytest.mark.slow

TIMESTAMP = pa.timestamp("us", tz="UTC")
BASE = datetime(2023, 11, 14, 22, tzinfo=UTC)
TOPICS = (
    define_topic(
        "plain",
        pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())]),
        options={"partitions": 2},
    ),
    define_topic(
        "clicks",
        pa.schema([pa.field("user", pa.int32()), pa.field("n", pa.int16()), pa.field("at", TIMESTAMP)]),
        time="at",
        lateness="1 minute",
        options={"partitions": 3, "partition_by": "user", "max_ahead": "1 hour"},
    ),
    define_topic(
        "customers",
        pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("at", TIMESTAMP)]),
        key=("id",),
        time="at",
        options={"partitions": 2, "cleanup": "compact", "tombstone_retention": "1 hour"},
    ),
    define_topic(
        "accounts",
        pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int32())]),
        options={"partitions": 2, "versioned_by": "id"},
    ),
    define_topic(
        "feed",
        pa.schema([pa.field("n", pa.int64()), pa.field("at", TIMESTAMP)]),
        time="at",
        options={"partitions": 2, "watermark": "producers"},
    ),
    define_topic(
        "meters",
        pa.schema([("id", pa.int32()), ("occurred_at", TIMESTAMP), ("sent_at", TIMESTAMP)]),
        time="corrected_at",
        lateness="1 minute",
        options={"partitions": 2, "clock": "id"},
    ),
)

moments = st.integers(0, 600).map(lambda minute: BASE + timedelta(minutes=minute))
texts = st.one_of(st.none(), st.text(max_size=8), st.just("long " * 200))
plain_rows = st.fixed_dictionaries(
    {"n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), "text": texts}
)
click_rows = st.fixed_dictionaries({"user": st.integers(0, 9), "n": st.integers(-9, 9), "at": moments})
customer_rows = st.one_of(
    st.fixed_dictionaries({"id": st.integers(0, 5), "name": texts, "at": moments}),
    st.fixed_dictionaries({"id": st.integers(0, 5), "_op": st.just("delete")}),
)
account_rows = st.fixed_dictionaries({"id": st.sampled_from("abc"), "n": st.integers(0, 9)})
feed_rows = st.fixed_dictionaries({"n": st.integers(0, 9), "at": moments})
meter_rows = st.fixed_dictionaries(
    {"id": st.integers(0, 3), "occurred_at": st.none() | moments, "sent_at": st.none() | moments}
)
ROWS = {
    "plain": plain_rows,
    "clicks": click_rows,
    "customers": customer_rows,
    "accounts": account_rows,
    "feed": feed_rows,
    "meters": meter_rows,
}
names = st.sampled_from(sorted(ROWS))


def lists_of(topic: str, *, min_size: int = 0) -> st.SearchStrategy[list[dict[str, Any]]]:
    few = st.lists(ROWS[topic], min_size=min_size, max_size=6)
    if topic == "plain":  # enough to be spread over the partitions
        return st.one_of(few, st.integers(150, 300).map(lambda n: [{"n": i, "text": None} for i in range(n)]))
    return few


some_rows = names.flatmap(lambda name: st.tuples(st.just(name), lists_of(name, min_size=1)))
appends = st.lists(some_rows, min_size=1, max_size=3, unique_by=lambda pair: pair[0]).map(dict)
producers = st.none() | st.builds(Producer, st.sampled_from("pq"), st.integers(0, 12), st.integers(0, 3))


class LogMachine(RuleBasedStateMachine):
    """Drives `self.log` and `self.model` side by side."""

    durability = "os"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model: Log = MemoryLog(clock=self.clock, receipts_max=TINY["receipts_max"])
        self.temporary = tempfile.TemporaryDirectory(prefix="headwater-")
        self.log = self.open()
        self.random = random.Random(0)

    def open(self) -> Log:
        from headwater.log.embedded import EmbeddedLog

        tiny = LogSettings(durability=self.durability, **TINY)
        return EmbeddedLog.open(Path(self.temporary.name), settings=tiny, clock=self.clock)

    def abandon(self) -> None:
        """What kill -9 leaves."""
        self.log.abandon()

    def teardown(self) -> None:
        self.log.close()
        self.temporary.cleanup()

    def both(self, act: Callable[[Log], Any]) -> Any:
        """Do it on both logs: the same result, or the same kind of error with the same facts."""
        wanted, found = outcome(act, self.model), outcome(act, self.log)
        assert found == wanted
        return wanted

    def batches(self, rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[pa.RecordBatch]]:
        topics = self.model.topics()
        return {name: [conform(some, topics[name])] for name, some in rows.items()}

    # ------------------------------------------------------------------ steps

    @initialize()
    def create(self) -> None:
        for topic in TOPICS:
            self.both(lambda log, topic=topic: log.create_topic(topic))

    @rule(rows=appends, producer=producers)
    def append(self, rows: dict[str, Any], producer: Producer | None) -> None:
        batches = self.batches(rows)
        self.both(lambda log: log.append(Append(batches, producer)))

    @rule(rows=some_rows, shift=st.sampled_from([0, 0, 1, -1]), producer=producers)
    def append_at_one_offset(self, rows: tuple[str, Any], shift: int, producer: Producer | None) -> None:
        name, some = rows
        batches = self.batches({name: some})
        expected = self.model.ends([name])[name][self.random.randrange(2)] + shift
        self.both(lambda log: log.append(Append(batches, producer, {name: expected})))

    @rule(rows=some_rows, shift=st.sampled_from([0, 0, 1, -1]))
    def append_at_offsets(self, rows: tuple[str, Any], shift: int) -> None:
        name, some = rows
        if name == "accounts":
            return
        batches = self.batches({name: some})
        expected = {p: end + shift for p, end in self.model.ends([name])[name].items()}
        self.both(lambda log: log.append(Append(batches, None, {name: expected})))

    @rule(rows=lists_of("accounts", min_size=1), shift=st.sampled_from([0, 0, 1, -1]))
    def append_at_versions(self, rows: list[dict[str, Any]], shift: int) -> None:
        batches = self.batches({"accounts": rows})
        known = [i for p in range(2) for i in contents(self.model)["accounts", p].column("id").to_pylist()]
        expected = {row["id"]: known.count(row["id"]) + shift for row in rows}
        self.both(lambda log: log.append(Append(batches, None, {"accounts": expected})))

    @rule(rows=appends, producer=producers, name=names, share=st.floats(0, 1))
    def append_and_move(
        self, rows: dict[str, Any], producer: Producer | None, name: str, share: float
    ) -> None:
        batches = self.batches(rows)
        move = CursorMove(name, "mailer", self.positions(name, share), lost=1)
        self.both(lambda log: log.append(Append(batches, producer, {}, (move,))))

    @rule(pieces=st.lists(some_rows, min_size=1, max_size=5), producer=producers, commit=st.booleans())
    def stage(self, pieces: list[tuple[str, Any]], producer: Producer | None, commit: bool) -> None:
        topics = self.model.topics()
        batches = [(name, conform(rows, topics[name])) for name, rows in pieces]

        def act(log: Log) -> Any:
            stage = log.stage(producer)
            for name, batch in batches:
                stage.add(name, batch)
            return stage.commit(producer=producer) if commit else stage.abort()

        self.both(act)

    @rule(name=names, at=st.dictionaries(st.integers(0, 1), moments.map(to_us), min_size=1))
    def punctuate(self, name: str, at: dict[int, int]) -> None:
        self.both(lambda log: log.punctuate(name, at))

    @rule(name=names, at=moments.map(to_us), grown=st.integers(0, 1))
    def fall_silent(self, name: str, at: int, grown: int) -> None:
        ends = {p: end + grown * (p == 1) for p, end in self.model.ends([name])[name].items()}
        self.both(lambda log: log.punctuate(name, dict.fromkeys(ends, at), idle_at=ends))

    @rule(producer=st.sampled_from("pqr"), at=moments.map(to_us))
    def promise(self, producer: str, at: int) -> None:
        self.both(lambda log: log.declare_watermark("feed", producer, at))

    @rule(producer=st.sampled_from("pqr"), since=st.none() | moments.map(to_us))
    def retire(self, producer: str, since: int | None) -> None:
        self.both(lambda log: log.retire("feed", producer, idle_since=since))

    @rule(name=names)
    def add_column(self, name: str) -> None:
        old = self.model.topics()[name]
        if len(old.schema) < 6 + 2 * (name == "meters"):
            new = add_column(old, pa.field(f"added_{len(old.schema)}", pa.list_(pa.string())))
            self.both(lambda log: log.alter_topic(old, new))

    @rule(column=st.sampled_from([("clicks", "user"), ("clicks", "n"), ("accounts", "n"), ("meters", "id")]))
    def widen(self, column: tuple[str, str]) -> None:
        old = self.model.topics()[column[0]]
        wider = {pa.int16(): pa.int32(), pa.int32(): pa.int64()}.get(old.schema.field(column[1]).type)
        if wider is not None:
            new = widen_column(old, column[1], wider)
            self.both(lambda log: log.alter_topic(old, new))

    @rule(known=st.sampled_from(TOPICS))
    def alter_from_the_first_definition(self, known: TopicDefinition) -> None:
        self.both(lambda log: log.alter_topic(known, known))

    @rule(name=names)
    def drop_and_create(self, name: str) -> None:
        if self.random.random() < 0.7:  # not too often, or nothing grows
            return
        topic = next(topic for topic in TOPICS if topic.name == name)
        self.both(lambda log: log.drop_topic(name))
        self.both(lambda log: log.create_topic(topic))

    @rule(name=names, share=st.floats(0, 1), hold=st.booleans())
    def create_cursor(self, name: str, share: float, hold: bool) -> None:
        positions = self.positions(name, share)
        self.both(lambda log: log.create_cursor(name, "mailer", positions, hold))

    @rule(name=names, share=st.floats(0, 1))
    def move_cursor(self, name: str, share: float) -> None:
        move = CursorMove(name, "mailer", self.positions(name, share))
        self.both(lambda log: log.move_cursor(move))

    @rule(name=names)
    def drop_cursor(self, name: str) -> None:
        self.both(lambda log: log.drop_cursor(name, "mailer"))

    def positions(self, name: str, share: float) -> dict[int, int]:
        return {p: int(end * share) for p, end in self.model.ends([name])[name].items()}

    @rule(override_holds=st.booleans())
    def maintain(self, override_holds: bool) -> None:
        self.both(lambda log: log.maintain(force=True, override_holds=override_holds).rows_compacted)

    @rule(span=st.sampled_from(["1 microsecond", "1 second", "10 minutes", "2 hours"]))
    def advance(self, span: str) -> None:
        self.clock.advance(span)

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.open()

    @rule()
    def crash(self) -> None:
        self.abandon()
        self.log = self.open()

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def both_are_the_same(self) -> None:
        assert dict(self.log.topics()) == dict(self.model.topics())
        assert by_name(self.log) == by_name(self.model)
        tables, wanted_tables = contents(self.log), contents(self.model)
        for topic in self.model.topics().values():
            assert self.log.producer_watermarks(topic.name) == self.model.producer_watermarks(topic.name)
            found, wanted = self.log.partitions(topic.name), self.model.partitions(topic.name)
            for p, bounds in wanted.items():
                for fact in ("first", "end", "rows", "watermark", "ahead", "heard_at"):
                    assert getattr(found[p], fact) == getattr(bounds, fact), f"{fact} of {topic.name}/{p}"
                assert_equal(tables[topic.name, p], wanted_tables[topic.name, p])
                self.compare_places(topic, p, bounds.end, wanted_tables[topic.name, p])

    def compare_places(self, topic: TopicDefinition, p: int, end: int, table: pa.Table) -> None:
        """A random range, and the watermark and offsets by time at random places."""
        offsets = table.column("_offset").to_pylist()
        start, stop = sorted(self.random.randint(0, end) for _ in range(2))
        name, columns = topic.name, self.random.sample(table.column_names, 2)
        if "_sequence" not in columns:
            assert_equal(*(read(log, name, p, start, stop, columns) for log in (self.log, self.model)))
        for offset in (start, stop):
            assert self.log.watermark(name, p, offset) == self.model.watermark(name, p, offset)
            assert self.log.appended_at(name, p, offset) == self.model.appended_at(name, p, offset)
        appended = to_us(self.random.choice(table.column("_appended_at").to_pylist() or [BASE]))
        for moment in (appended, appended + self.random.choice([-1, 1])):
            self.compare_seek(name, p, moment, "appended", offsets)
        if topic.time is not None:
            self.compare_seek(
                name, p, to_us(BASE) + self.random.randint(0, 600) * 60_000_000, "event", offsets
            )

    def compare_seek(self, name: str, p: int, moment: int, axis: Any, offsets: list[int]) -> None:
        """A position is where reading goes on, so that positions in one gap are the same."""
        found, wanted = (log.offset_at(name, p, moment, axis) for log in (self.log, self.model))
        following = [next((o for o in offsets if o >= at), None) for at in (found, wanted)]
        assert following[0] == following[1], f"{axis} {from_us(moment)} in {name}/{p}: {found}, not {wanted}"


def outcome(act: Callable[[Log], Any], log: Log) -> Any:
    try:
        return act(log)
    except HeadwaterError as error:
        told = {"expected", "actual", "producer", "sequence", "last", "position", "first_available", "missed"}
        return type(error), {name: fact for name, fact in error.facts.items() if name in told}


def by_name(log: Log) -> dict[tuple[str, str], Any]:
    return {(cursor.topic, cursor.name): cursor for cursor in log.cursors()}


def read(log: Log, topic: str, p: int, start: int, end: int, columns: list[str] | None = None) -> pa.Table:
    """A range as one table; its columns are there also where it is empty."""
    batches = list(log.read(topic, p, start, end, columns))
    if batches:
        return pa.Table.from_batches(batches).combine_chunks()
    names = columns or [*log.topics()[topic].schema.names, "_offset", "_appended_at", "_sequence"]
    return pa.table({name: pa.array([], pa.int64()) for name in names})


def contents(log: Log) -> dict[tuple[str, int], pa.Table]:
    """Every partition in full. Of `_sequence` just the order is compared: which commit is before which, and which
    records share one; how a backend numbers them beyond that is its own affair.
    """
    tables = {
        (topic, p): read(log, topic, p, bounds.first, bounds.end)
        for topic in log.topics()
        for p, bounds in log.partitions(topic).items()
    }
    numbers = np.unique(
        np.concatenate([table.column("_sequence").to_numpy() for table in tables.values()] or [[]])
    )
    for key, table in tables.items():
        ranks = np.searchsorted(numbers, table.column("_sequence").to_numpy())
        tables[key] = table.set_column(table.column_names.index("_sequence"), "_sequence", pa.array(ranks))
    return tables


def assert_equal(found: pa.Table, wanted: pa.Table) -> None:
    assert found.schema.names == wanted.schema.names
    assert found.schema.types == wanted.schema.types
    if not found.equals(wanted):
        assert found.to_pylist() == wanted.to_pylist()
        raise AssertionError("equal as Python values, not as Arrow values")


class SyncedLogMachine(LogMachine):
    """The same with every append synced, which is slow, so fewer of it."""

    durability = "fsync"


# No explanations: tracing every line of the log takes longer than finding what is wrong.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=1_500 if LONG else 50, stateful_step_count=60 if LONG else 30, phases=PHASES
)
TestSyncedLog = SyncedLogMachine.TestCase
TestSyncedLog.settings = settings(max_examples=200 if LONG else 10, stateful_step_count=30, phases=PHASES)
