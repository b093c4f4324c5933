"""Seek by time in a topic of ten million rows: the offset, a cursor moved there, and the first batch from there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headwater as hw
from benchmarks import data
from benchmarks.harness import Bench
from headwater.core.clock import ManualClock, to_us
from headwater.core.settings import LogSettings

TITLE = "Seek by time"
GOAL_MS = 5.0
BATCH_ROWS = 100_000
BATCH_SPAN = timedelta(minutes=1)


def run(bench: Bench) -> None:
    """Over active segments first, then over the same rows sealed."""
    rows = bench.size(10_000_000, 20_000)
    with bench.space() as space:
        span = _fill(space / "ws", rows, min(rows // 4, BATCH_ROWS))
        _measure(bench, space / "ws", span, f"{rows:,} rows, active segments")
        with _open(space / "ws") as workspace:
            workspace.maintain()
        _measure(bench, space / "ws", span, f"{rows:,} rows, sealed segments")


def _open(path: Path, clock: ManualClock | None = None) -> Any:
    return hw.open(path, settings=LogSettings(durability="os", maintenance_every_ms=0), clock=clock)


def _fill(path: Path, rows: int, size: int) -> timedelta:
    """Append with a clock that moves a minute per batch; the time between the first append and the last."""
    clock = ManualClock(to_us(data.BEGIN))
    with _open(path, clock) as workspace:
        topic = workspace.topic("clicks", data.COLUMNS, time="at")
        for number in range(rows // size):
            batch = data.clicks(size)
            shifted = _shifted(batch, number * int(BATCH_SPAN.total_seconds() * 1e6))
            topic.append(shifted)
            clock.advance(BATCH_SPAN)
    return BATCH_SPAN * (rows // size - 1)


def _shifted(batch: Any, by_us: int) -> Any:
    moved = pc.add(batch.column("at").view(pa.int64()), by_us).view(batch.column("at").type)
    return batch.set_column(batch.schema.get_field_index("at"), "at", moved)


def _measure(bench: Bench, path: Path, span: timedelta, group: str) -> None:
    draw = random.Random(7)
    moments = [data.BEGIN + span * draw.random() for _ in range(bench.size(200, 5))]
    with _open(path) as workspace:
        topic, cursor = workspace.topic("clicks"), workspace.topic("clicks").cursor("bench")
        cold = _timed(lambda m: cursor.seek(m), moments[:1])
        bench.note(group, "first seek after opening", "ms", cold)
        for name, work in _works(topic, cursor).items():
            work(moments[0])
            goal = GOAL_MS if "seek" in name else None  # a first batch is 65,536 rows, read and decoded
            bench.note(group, name, "ms", _timed(work, moments), goal=goal)


def _works(topic: Any, cursor: Any) -> dict[str, Callable[[datetime], object]]:
    return {
        "cursor.seek by append time": lambda m: cursor.seek(m),
        "cursor.seek by event time": lambda m: cursor.seek(m, by="event"),
        "first batch of read(from_time=...)": lambda m: next(topic.read(from_time=m)),
        "first 100 rows of it": lambda m: next(topic.read(from_time=m, batch_rows=100)),
    }


def _timed(work: Callable[[datetime], object], moments: list[datetime]) -> list[float]:
    taken = []
    for moment in moments:
        started = time.perf_counter()
        work(moment)
        taken.append((time.perf_counter() - started) * 1e3)
    return taken
