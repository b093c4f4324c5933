"""Open a workspace of ten thousand segments: as appends leave it, just after and before a checkpoint, all sealed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks import data
from benchmarks.harness import Bench, Case
from headwater.core.settings import LogSettings

TITLE = "Opening a workspace"
GOAL_MS = 200.0
TOPICS, PARTITIONS = 10, 10
ROW_GROUPS = 10
"""Row groups, and so checksums, of a sealed segment of the usual size."""


def run(bench: Bench) -> None:
    """Ten topics of ten partitions with a hundred tiny segments each; one workspace, four states of it."""
    rounds = bench.size(100, 2)
    with bench.space() as space:
        path = space / "ws"
        group = f"{_fill(path, rounds):,} segments"
        _measure(bench, path, group, "as appends left it")
        _checkpoint(path)
        _measure(bench, path, group, "after a checkpoint")
        _fill_journal(path, bench.size(LogSettings().checkpoint_records * 19 // 20, 20))
        _measure(bench, path, group, "just before one, after appends of a row")
        _checkpoint(path, sealed=True)
        _measure(bench, path, group, "all sealed (segment list only)")
        empty = space / "empty"
        hw.open(empty).close()
        _measure(bench, empty, "0 segments", "empty")


def _measure(bench: Bench, path: Path, group: str, name: str) -> None:
    opened: list[Any] = []

    def work(_: Any) -> float:
        opened.append(hw.open(path))
        return 1

    case = Case(name, work, clean=lambda _: opened.pop().close(), goal=GOAL_MS)
    bench.compare(group, [case], unit="ms", runs=2 if bench.quick else 9)


def _fill(path: Path, rounds: int) -> int:
    """Segments that close after a frame, so that each append begins one in every partition; how many there are."""
    settings = LogSettings(durability="os", segment_bytes_max=1, maintenance_every_ms=0)
    rows = data.clicks(200)
    with hw.open(path, settings=settings) as workspace:
        names = [f"clicks_{number}" for number in range(TOPICS)]
        for name in names:
            workspace.topic(name, data.COLUMNS, partitions=PARTITIONS, partition_by="user")
        for _ in range(rounds):
            for name in names:
                workspace.topic(name).append(rows)
        return sum(info.segments for topic in workspace.topics() for info in topic.partitions().values())


def _fill_journal(path: Path, records: int) -> None:
    """Appends of one row, as many as a journal holds before it is folded into a checkpoint."""
    row = data.clicks(1)
    with hw.open(path, settings=LogSettings(durability="os", maintenance_every_ms=0)) as workspace:
        topic = workspace.topic("clicks_0")
        for _ in range(records):
            topic.append(row)


def _checkpoint(path: Path, *, sealed: bool = False) -> None:
    """Fold the journal into a checkpoint; `sealed` first gives each segment the checksums a sealed one has."""
    with hw.open(path) as workspace, workspace.log.core.exclusive() as state:  # type: ignore[attr-defined]
        if sealed:
            for topic in state.topics.values():
                for partition in topic.partitions:
                    partition.segments = [_as_sealed(s) for s in partition.segments]
        workspace.log.core.checkpoint()  # type: ignore[attr-defined]


def _as_sealed(segment: Any) -> Any:
    return dataclasses.replace(
        segment, kind="parquet", closed=True, index=[], checksums=["0123456789abcdef"] * (ROW_GROUPS + 1)
    )
