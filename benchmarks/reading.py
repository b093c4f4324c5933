"""Read from earliest, every column: active and sealed segments, beside SQLite, a plain file and bare pyarrow."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import headwater as hw
from benchmarks import data
from benchmarks.harness import Bench, Case
from benchmarks.yardsticks import PlainFile, Sqlite
from headwater.core.settings import LogSettings

TITLE = "Read of 100-byte records from the earliest"
GOAL = 5_000_000.0
APPEND_ROWS = (1_000, 100_000)
"""Rows of the appends that wrote the topic: small frames and large ones."""


def run(bench: Bench) -> None:
    """Active segments by the size of the appends, sealed ones, one column of them, then the yardsticks."""
    rows = bench.size(3_000_000, 5_000)
    with bench.space() as space, contextlib.ExitStack() as stack:
        active = [_topic(space / f"active-{size}", rows, size, stack) for size in APPEND_ROWS]
        workspace, sealed = _topic(space / "sealed", rows, 100_000, stack)
        workspace.maintain()
        cases = [
            Case(f"active, appends of {size:,}", lambda _, t=topic: _read(t), goal=GOAL)
            for size, (_, topic) in reversed(list(zip(APPEND_ROWS, active, strict=True)))
        ]
        cases += [
            Case("sealed", lambda _: _read(sealed), goal=GOAL),
            Case("sealed, one column", lambda _: _read(sealed, ["user"])),
            Case("sealed files by pyarrow alone", lambda _: _parquet(space / "sealed")),
            *_yardsticks(space, min(rows, 1_000_000), stack),
        ]
        bench.compare(f"{rows:,} records, warm", cases)


def _topic(path: Path, rows: int, size: int, stack: contextlib.ExitStack) -> tuple[Any, Any]:
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    workspace = stack.enter_context(hw.open(path, settings=settings))
    topic = workspace.topic("clicks", data.COLUMNS)
    for batch in data.batches(rows, size):
        topic.append(batch)
    return workspace, topic


def _read(topic: Any, columns: list[str] | None = None) -> int:
    return sum(batch.num_rows for batch in topic.read("earliest", columns=columns))


def _parquet(path: Path) -> int:
    """Every column of every file, as any other reader of Parquet has them."""
    files = (pq.ParquetFile(name) for name in sorted(path.glob("topics/*/*/*.parquet")))
    return sum(batch.num_rows for file in files for batch in file.iter_batches(65_536))


def _yardsticks(space: Path, rows: int, stack: contextlib.ExitStack) -> list[Case]:
    table = stack.enter_context(contextlib.closing(Sqlite(space / "yardstick.db", "NORMAL")))
    table.append(data.tuples(min(rows, 100_000)) * max(1, rows // 100_000))
    plain = stack.enter_context(contextlib.closing(PlainFile(space / "plain")))
    for _ in range(max(1, rows // 100_000)):
        plain.append(data.raw(min(rows, 100_000)))
    return [
        Case("SQLite, WAL", lambda _: table.read()),
        Case("plain file", lambda _: plain.read()),
    ]
