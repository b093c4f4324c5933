"""Append: one writer, batches of 1 to 100,000 rows, each durability, Arrow and dicts, beside SQLite and a plain file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks import data
from benchmarks.harness import Bench, Case
from benchmarks.yardsticks import PlainFile, Sqlite
from headwater.core.settings import Durability, LogSettings

TITLE = "Append of 100-byte records by one writer"
ARROW_GOAL, DICTS_GOAL = 1_000_000.0, 300_000.0
GOAL_ROWS = 10_000
"""The batch size at which the goals are held."""
DURABILITIES: tuple[Durability, ...] = ("fsync", "group", "os")
# rows of an append -> appends of a full run, of a quick one
SIZES = {1: (200, 3), 100: (200, 3), 1_000: (100, 2), 10_000: (50, 2), 100_000: (5, 1)}


def run(bench: Bench) -> None:
    """A group of rows per batch size; the first of each, which ratios refer to, is Arrow with fsync."""
    for size, (full, quick) in SIZES.items():
        if bench.quick and size > GOAL_ROWS:
            continue
        os.sync()  # what the group before has written is not to be this one's burden
        with bench.space() as space, contextlib.ExitStack() as stack:
            cases = _cases(space, stack, size, bench.size(full, quick))
            bench.compare(f"{size:,} row{'s' if size > 1 else ''} an append", cases)


def _cases(space: Path, stack: contextlib.ExitStack, size: int, count: int) -> list[Case]:
    batch, rows, tuples, raw = data.clicks(size), data.dicts(size), data.tuples(size), data.raw(size)
    cases = []
    for durability in DURABILITIES:
        topic = _topic(space / durability, durability, stack)
        goal = ARROW_GOAL if size == GOAL_ROWS and durability == "fsync" else None
        cases.append(Case(f"Arrow, {durability}", _repeat(topic.append, batch, count, size), goal=goal))
    for durability in DURABILITIES:
        topic = _topic(space / f"{durability}-dicts", durability, stack)
        goal = DICTS_GOAL if size == GOAL_ROWS and durability == "fsync" else None
        cases.append(Case(f"dicts, {durability}", _repeat(topic.append, rows, count, size), goal=goal))
    for synchronous in ("FULL", "NORMAL"):
        table = stack.enter_context(contextlib.closing(Sqlite(space / f"{synchronous}.db", synchronous)))
        cases.append(Case(f"SQLite, WAL, {synchronous}", _repeat(table.append, tuples, count, size)))
    plain = stack.enter_context(contextlib.closing(PlainFile(space / "plain")))
    cases.append(Case("plain file, fsync", _repeat(plain.append, raw, count, size)))
    return cases


def _topic(path: Path, durability: Durability, stack: contextlib.ExitStack) -> Any:
    settings = LogSettings(durability=durability, maintenance_every_ms=0)
    workspace = stack.enter_context(hw.open(path, settings=settings))
    return workspace.topic("clicks", data.COLUMNS)


def _repeat(append: Callable[[Any], object], rows: Any, count: int, size: int) -> Callable[[Any], float]:
    def work(_: Any) -> float:
        for _ in range(count):
            append(rows)
        return count * size

    return work
