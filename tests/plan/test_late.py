"""Late policies and EMIT ON WINDOW CLOSE, at random: at every tick contents, late rows and ledgers are those of the model.

However the log is split into ticks, and however often the workspace is closed in between.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.testing import inspect_workspace
from tests.equation.feeding import (
    MAX_AHEAD,
    NOON,
    SETTINGS,
    Feed,
    contents,
    created,
    declared,
    micros,
    told,
)
from tests.equation.late_model import QUERIES, SECOND, Log, Policy, Query

pytestmark = pytest.mark.slow

LONG = bool(os.environ.get("HEADWATER_LONG"))
POLICIES = [
    Policy(late, correct_for, emits)
    for (late, correct_for), emits in product(
        [("correct", None), ("correct", 45 * SECOND), ("divert", None), ("drop", None)], [False, True]
    )
]
ALL = [(kind, policy) for policy in POLICIES for kind in QUERIES]
SEEDS = range(400) if LONG else range(1)
VIEWS = 7
"""Of a case: three of them have every kind of query and every policy, fifteen have each with each."""
ROUNDS = 5


@dataclass
class Case:
    """A workspace with some views, and the log that it has, as the model has it."""

    folder: Path
    spark: SparkSession
    seed: int
    feed: Feed = field(init=False)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))
    log: Log = field(init=False)
    views: dict[str, tuple[Query, Policy]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        topics = ("clicks", "pays")
        self.feed = Feed(self._open(), topics, self.clock, self.random, max_ahead=MAX_AHEAD)
        self.ws.sql(declared(topics, ", max_ahead = '10 minutes'"))
        for n in range(VIEWS):
            kind, policy = ALL[(self.seed * VIEWS + n) * 5 % len(ALL)]
            name = f"{kind}_{n}"
            self.views[name] = QUERIES[kind], policy
            self.ws.sql(created(name, QUERIES[kind].select, policy))

    def _open(self) -> hw.Workspace:
        return hw.open(self.folder, spark=self.spark, clock=self.clock, settings=SETTINGS)

    @property
    def ws(self) -> hw.Workspace:
        return self.feed.ws

    def reopen(self) -> None:
        """Close it, or leave it as a crash does."""
        (self.ws if self.random.random() < 0.5 else self.ws.log).close()
        self.feed.ws = self._open()

    def play(self) -> None:
        """Rounds of appends and punctuations with ticks after each; between two of them it is opened anew."""
        opened = self.random.randrange(1, ROUNDS)
        for n in range(ROUNDS):
            self.feed.play(self.random.randint(2, 5))
            if n == opened:
                self.reopen()
            self.run()

    def run(self) -> None:
        """Ticks, small or large; then what the newest holds is what the model says."""
        report = self.ws.run(tick_rows=self.random.choice([2, 5, 1000]))
        assert not report.stopped, report.stopped
        self.log = self.feed.log()
        self.check_newest()

    def check_newest(self) -> None:
        """What the newest tick holds and tells, and the ledgers."""
        for name, (query, policy) in self.views.items():
            want = query.answer(self.log, policy)
            assert contents(self.ws.view(name).read()) == want.contents, name
            assert self.ws.view(name).ledger() == want.ledger, name
            if policy.tells:
                have = contents(self.ws.view(f"{name}.late").read())
                assert have == told(want.late, query.topics), name

    def check_ticks(self) -> None:
        """At every tick the changes so far add up to what the model says at its cut."""
        store = inspect_workspace(self.ws).store
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
                    assert held_late == told(want.late, query.topics), (name, tick)

    def finish(self) -> None:
        """Everything is final at the end."""
        self.feed.finish()
        self.run()
        for query, policy in self.views.values():
            final = query.answer(self.log, policy).contents
            assert final == query.answer(self.log, replace(policy, emits=False)).contents


def by_tick(changes: pa.Table) -> dict[int, Counter[Any]]:
    found: dict[int, Counter[Any]] = {}
    for row in changes.to_pylist():
        tick, weight = row.pop("_tick"), row.pop("_weight")
        found.setdefault(tick, Counter())[micros(row)] += weight
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_late_rows_and_final_rows_are_those_of_the_model_at_every_tick(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    case = Case(tmp_path / "ws", spark, seed)
    try:
        case.play()
        case.check_ticks()
        for name in list(case.views)[:2]:
            case.ws.view(name).rebuild(verify=False)  # in one tick, what was made in many
        case.run()
        if seed % 2:
            case.finish()
        verified = case.ws.verify()
        assert verified.ok, verified.differences
        assert any(query.answer(case.log, policy).late for query, policy in case.views.values())
    finally:
        case.ws.close()
