"""Late policies and EMIT ON WINDOW CLOSE, at random: at every tick contents, late rows and ledgers are those of the model.

However the log is split into ticks, and however often the workspace is closed in between.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.clock import ManualClock
from headwater.settings import LogSettings
from tests.engine.late_model import MINUTE, QUERIES, SECOND, Late, Log, Policy, Punctuation, Query, Row

pytestmark = pytest.mark.slow

LONG = bool(os.environ.get("HEADWATER_LONG"))
SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
NOON = 1_767_268_800_000_000
"""2026-01-01 12:00 UTC"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PARTITIONS = 2
LATENESS = {"clicks": MINUTE, "pays": 30 * SECOND}
MAX_AHEAD = 10 * MINUTE
DECLARED = "; ".join(
    f"CREATE TOPIC {topic} (user BIGINT, x INT, at TIMESTAMP, "
    f"WATERMARK FOR at AS at - INTERVAL '{lateness // SECOND} seconds') "
    f"WITH (partitions = {PARTITIONS}, partition_by = 'user', max_ahead = '10 minutes')"
    for topic, lateness in LATENESS.items()
)
POLICIES = [
    Policy(late, correct_for, emits)
    for (late, correct_for), emits in product(
        [("correct", None), ("correct", 45 * SECOND), ("divert", None), ("drop", None)], [False, True]
    )
]
ALL = [(kind, policy) for policy in POLICIES for kind in QUERIES]
SEEDS = range(400) if LONG else range(2)
VIEWS = 7
"""Of a case: four of them have every kind of query and every policy, eleven have each with each."""
ROUNDS = 5


@dataclass
class Case:
    """A workspace with some views, and the log that it has, as the model has it."""

    folder: Path
    spark: SparkSession
    seed: int
    ws: hw.Workspace = field(init=False)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))
    log: Log = field(default_factory=lambda: Log(LATENESS, PARTITIONS, max_ahead=MAX_AHEAD))
    views: dict[str, tuple[Query, Policy]] = field(default_factory=dict)
    appended: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """When each row was."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.ws = self._open()
        self.ws.sql(DECLARED)
        for n in range(VIEWS):
            kind, policy = ALL[(self.seed * VIEWS + n) * 5 % len(ALL)]
            name = f"{kind}_{n}"
            self.views[name] = QUERIES[kind], policy
            self.ws.sql(statement(name, QUERIES[kind], policy))

    def _open(self) -> hw.Workspace:
        return hw.open(self.folder, spark=self.spark, clock=self.clock, settings=SETTINGS)

    def append(self, topic: str) -> None:
        """Rows around the time that it is by now, most of them in time and on round seconds."""
        now = self.clock.now_us()
        rows = []
        for _ in range(self.random.randint(1, 5)):
            away = self.random.choice(
                [0, 0, 1, 2, 3, 6, 9, 12, 20, 30, -100 if self.random.random() < 0.1 else 4]
            )
            at = now - away * 10 * SECOND + self.random.choice([0, 0, 0, -1, 1, 5 * SECOND])
            rows.append({"user": self.random.randint(1, 4), "x": self.random.randint(0, 5), "at": moment(at)})
        receipt = self.ws.topic(topic).append(rows)
        for partition, (first, end) in receipt.positions[topic].items():
            self.appended |= {(topic, partition, offset): now for offset in range(first, end)}

    def punctuate(self, topic: str) -> None:
        """A word of the time, or a little before or after it; one in ten rows will not keep it."""
        at = self.clock.now_us() - self.random.choice([0, 1, 3, 6, -3]) * 10 * SECOND
        ends = {p: info.end for p, info in self.ws.topic(topic).partitions().items()}
        self.ws.topic(topic).punctuate(moment(at))
        told = tuple(Punctuation(topic, p, end, at) for p, end in ends.items())
        self.log = replace(self.log, punctuations=(*self.log.punctuations, *told))

    def reopen(self) -> None:
        """Close it, or leave it as a crash does."""
        (self.ws if self.random.random() < 0.5 else self.ws.log).close()
        self.ws = self._open()

    def play(self) -> None:
        """Rounds of appends and punctuations with ticks after each; between two of them it is opened anew."""
        opened = self.random.randrange(1, ROUNDS)
        for n in range(ROUNDS):
            for _ in range(self.random.randint(2, 5)):
                self.clock.advance(timedelta(seconds=10 * self.random.randint(0, 6)))
                topic = self.random.choice(["clicks", "clicks", "pays"])
                (self.append if self.random.random() < 0.75 else self.punctuate)(topic)
            if n == opened:
                self.reopen()
            self.run()

    def run(self) -> None:
        """Ticks, small or large; then what the newest holds is what the model says."""
        report = self.ws.run(tick_rows=self.random.choice([2, 5, 1000]))
        assert not report.stopped, report.stopped
        self.read_log()
        self.check_newest()

    def read_log(self) -> None:
        """Have the model know the rows of the log."""
        rows = []
        for topic in LATENESS:
            for batch in self.ws.topic(topic).read("earliest"):
                for row in batch.to_pylist():
                    rows.append(
                        Row(
                            topic,
                            row["_partition"],
                            row["_offset"],
                            micros(row["at"]),
                            row["user"],
                            row["x"],
                            self.appended[topic, row["_partition"], row["_offset"]],
                        )
                    )
        self.log = replace(self.log, rows=tuple(rows))

    def check_newest(self) -> None:
        """What the newest tick holds and tells, and the ledgers."""
        for name, (query, policy) in self.views.items():
            want = query.answer(self.log, policy)
            assert contents(self.ws.view(name).read()) == want.contents, name
            assert self.ws.view(name).ledger() == want.ledger, name
            if policy.tells:
                have = contents(self.ws.view(f"{name}.late").read())
                assert have == told(want.late, query), name

    def check_ticks(self) -> None:
        """At every tick the changes so far add up to what the model says at its cut."""
        store = self.ws._views.store
        cuts = {tick: store.manifest(tick).positions for tick in store.ticks()}
        logs = {tick: self.log.upto(cut) for tick, cut in cuts.items()}
        for name, (query, policy) in self.views.items():
            changed = by_tick(self.ws.view(name).changes(since=0))
            late = by_tick(self.ws.view(f"{name}.late").changes(since=0)) if policy.tells else {}
            held: Counter[Any] = Counter()
            held_late: Counter[Any] = Counter()
            for tick, log in logs.items():
                want = query.answer(log, policy)
                change = changed.get(tick, Counter())
                if policy.emits and policy.late != "correct":
                    assert all(weight > 0 for weight in change.values()), (name, tick, "is append-only")
                held.update(change)
                assert +held == want.contents, (name, tick)
                assert not -held, (name, tick)
                held_late.update(late.get(tick, Counter()))
                if policy.tells:
                    assert held_late == told(want.late, query), (name, tick)

    def finish(self) -> None:
        """Everything is final at the end."""
        for topic in LATENESS:
            ends = {p: info.end for p, info in self.ws.topic(topic).partitions().items()}
            self.ws.topic(topic).finish()
            at = micros(self.ws.topic(topic).watermark(0))
            self.log = replace(
                self.log,
                punctuations=(
                    *self.log.punctuations,
                    *(Punctuation(topic, p, end, at) for p, end in ends.items()),
                ),
            )
        self.run()
        for query, policy in self.views.values():
            final = query.answer(self.log, policy).contents
            assert final == query.answer(self.log, replace(policy, emits=False)).contents


def statement(name: str, query: Query, policy: Policy) -> str:
    """The CREATE of a view."""
    options = f"WITH (late = '{policy.late}')"
    if policy.correct_for is not None:
        options = f"WITH (correct_for = '{policy.correct_for // SECOND} seconds')"
    emit = " EMIT ON WINDOW CLOSE" if policy.emits else ""
    return f"CREATE MATERIALIZED VIEW {name} {options} AS {query.select}{emit}"


def moment(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def micros(value: Any) -> Any:
    """Times as microseconds, windows as pairs of them, all else as it is."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, dict):
        return tuple(micros(part) for part in value.values())
    return value


def contents(table: pa.Table) -> Counter[Any]:
    return Counter(micros(row) for row in table.to_pylist())


def by_tick(changes: pa.Table) -> dict[int, Counter[Any]]:
    found: dict[int, Counter[Any]] = {}
    for row in changes.to_pylist():
        tick, weight = row.pop("_tick"), row.pop("_weight")
        found.setdefault(tick, Counter())[micros(row)] += weight
    return found


def told(late: list[Late], query: Query) -> Counter[Any]:
    """What `<view>.late` says of late rows."""
    topic = (lambda row: (row.topic,)) if len(query.topics) > 1 else lambda row: ()
    return Counter(
        (
            *topic(each.row),
            each.row.user,
            each.row.x,
            each.row.at,
            *(each.window or (None, None)),
            each.lateness,
            each.watermark,
            each.row.partition,
            each.row.offset,
        )
        for each in late
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_late_rows_and_final_rows_are_those_of_the_model_at_every_tick(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    case = Case(tmp_path / "ws", spark, seed)
    try:
        case.play()
        case.check_ticks()
        for name in list(case.views)[:2]:
            case.ws.view(name).rebuild()  # in one tick, what was made in many
        case.run()
        if seed % 2:
            case.finish()
        verified = case.ws.verify()
        assert verified.ok, verified.differences
        assert any(query.answer(case.log, policy).late for query, policy in case.views.values())
    finally:
        case.ws.close()
