"""Several writers: four processes on one topic, and sixteen threads whose small appends may share a sync."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks import data
from benchmarks.harness import Bench, Case
from headwater.core.settings import Durability, LogSettings

TITLE = "Several writers"
PROCESSES, THREADS = 4, 16


def run(bench: Bench) -> None:
    """Processes first, then threads."""
    for size, full, quick in ((1_000, 100, 2), (10_000, 40, 2)):
        count = bench.size(full, quick)
        figures: dict[int, list[float]] = {1: [], PROCESSES: []}
        for _ in range(2 if bench.quick else 3):
            for writers, taken in figures.items():
                with bench.space() as space:
                    taken.append(_processes(space / "ws", writers, size, max(1, count // writers)))
        base = sorted(figures[1])[len(figures[1]) // 2]
        for writers, taken in figures.items():
            name = f"{writers} process{'es' if writers > 1 else ''}"
            ratio = sorted(taken)[len(taken) // 2] / base
            bench.note(f"{size:,} rows an append, fsync", name, "records/s", taken, ratio=ratio)
    count = bench.size(20, 2)
    with bench.space() as space:
        cases = [
            _threads(space / f"{d}-{n}", d, n, count) for n in (1, THREADS) for d in ("fsync", "group", "os")
        ]
        bench.compare("1 row an append, threads", cases)
        for case in cases:
            case.prepare.workspace.close()  # type: ignore[attr-defined]


def _processes(path: Path, writers: int, size: int, count: int) -> float:
    """Records per second over all writers, from the first append to the last."""
    with hw.open(path) as workspace:
        workspace.topic("clicks", data.COLUMNS, partitions=4)
    context = multiprocessing.get_context("spawn")
    barrier, spans = context.Barrier(writers), context.SimpleQueue()
    workers = [
        context.Process(target=_write, args=(path, size, count, barrier, spans), daemon=True)
        for _ in range(writers)
    ]
    for worker in workers:
        worker.start()
    found = [spans.get() for _ in workers]
    for worker in workers:
        worker.join()
    seconds = max(end for _, end in found) - min(begin for begin, _ in found)
    return writers * count * size / seconds


def _write(path: Path, size: int, count: int, barrier: Any, spans: Any) -> None:
    batch = data.clicks(size)
    with hw.open(path, settings=LogSettings(maintenance_every_ms=0)) as workspace:
        topic = workspace.topic("clicks")
        topic.append(batch.slice(0, 0))
        barrier.wait()
        begin = time.monotonic()
        for _ in range(count):
            topic.append(batch)
        spans.put((begin, time.monotonic()))


class _Prepared:
    """A workspace that stays open between the runs of a case."""

    def __init__(self, path: Path, durability: Durability) -> None:
        settings = LogSettings(durability=durability, maintenance_every_ms=0)
        self.workspace = hw.open(path, settings=settings)
        self.topic = self.workspace.topic("clicks", data.COLUMNS)

    def __call__(self) -> Any:
        return self.topic


def _threads(path: Path, durability: Durability, threads: int, count: int) -> Case:
    batch = data.clicks(1)

    def work(topic: Any) -> float:
        def append() -> None:
            for _ in range(count):
                topic.append(batch)

        workers = [threading.Thread(target=append) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return threads * count

    name = f"{threads} thread{'s' if threads > 1 else ''}, {durability}"
    return Case(name, work, prepare=_Prepared(path, durability))
