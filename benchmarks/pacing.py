"""The choice between delay and throughput: rows come at fixed rates from another process, and an engine follows them."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import headwater as hw
from benchmarks import event_rows
from benchmarks.harness import Bench
from headwater.core.settings import LogSettings
from headwater.engine.tick.tick_engine import TickReport
from headwater.state.manifest import Manifest
from headwater.testing import inspect_workspace
from headwater.views.runner import Listener

TITLE = "Delay and throughput"
PACES = ("auto", "50 ms", "200 ms", "1 s")
RATES = (100, 10_000, 100_000, 1_000_000)
CALM, BURST = 1_000, 1_000_000
APPENDS_PER_SECOND = 100
VIEWS = (
    "SELECT k, count(*) AS n, sum(amount) AS s FROM ev GROUP BY k",
    "SELECT id, amount FROM ev WHERE v > 99.9",
    "SELECT note, avg(v) AS a, max(amount) AS m FROM ev GROUP BY note",
)


Schedule = Sequence[tuple[int, float]]
"""Rates in rows a second, each with the seconds that it lasts."""


def run(bench: Bench) -> None:
    """The curve: for every rate and pace how soon rows are visible, in how many ticks, at what cost. Then a burst."""
    seconds = bench.size(10, 1)
    _follow(bench, [(CALM, bench.size(5, 1))], "0 ms")  # a JVM that is cold is another subject
    for rate in RATES[: bench.size(len(RATES), 2)]:
        for every in PACES[: bench.size(len(PACES), 2)]:
            found = _follow(bench, [(rate, seconds)], every)
            group = f"{rate:,} rows a second, every {every}"
            delays = found.delays_ms
            sizes = [size for _, size in found.ticks]
            bench.note(group, "append called to row visible, median", "ms", [float(np.median(delays))])
            bench.note(group, "append called to row visible, p99", "ms", [float(np.quantile(delays, 0.99))])
            bench.note(group, "ticks", "ticks/s", [len(sizes) / found.span_s])
            bench.note(group, "a tick", "rows", [statistics.median(sizes)])
            bench.note(group, "the engine with its JVM", "% of a core", [100 * found.cpu_s / found.span_s])
    _burst(bench)


def _burst(bench: Bench) -> None:
    """More than it can do, for a while: ticks grow, and come back."""
    calm, burst = bench.size(5, 1), bench.size(3, 1)
    found = _follow(bench, [(CALM, calm), (BURST, burst), (CALM, 3 * calm)], "auto")
    group = f"{CALM:,} rows a second, then {BURST:,} for {burst} s, then as before, every auto"
    before = found.called_s < calm
    during = ~before & (found.called_s < calm + burst)
    visible = found.called_s + found.delays_ms / 1e3
    usual = float(np.median(found.delays_ms[before]))
    caught_up = float(visible[during].max()) if during.any() else calm + burst
    after = found.called_s > caught_up
    for name, chosen, start, stop in (
        ("before", before, 0.0, calm),
        ("during", during, calm, caught_up),
        ("after", after, caught_up, np.inf),
    ):
        delays = found.delays_ms[chosen]
        sizes = [size for at, size in found.ticks if start < at <= stop]
        bench.note(
            group, f"{name}: delay, median", "ms", [float(np.median(delays)) if len(delays) else usual]
        )
        bench.note(group, f"{name}: a tick, the largest", "rows", [max(sizes, default=0)])
    bench.note(group, "end of the burst until all of it is visible", "ms", [1e3 * (caught_up - calm - burst)])


@dataclass(frozen=True)
class _Found:
    """What an engine did while rows came. Seconds are since the first append."""

    called_s: np.ndarray[Any, np.dtype[np.float64]]
    delays_ms: np.ndarray[Any, np.dtype[np.float64]]
    ticks: list[tuple[float, int]]
    span_s: float
    cpu_s: float


def _follow(bench: Bench, schedule: Schedule, every: str) -> _Found:
    with bench.space() as space, hw.open(space / "ws", settings=_SETTINGS) as ws:
        ws.sql(f"CREATE TOPIC ev ({event_rows.EVENT}) WITH (partitions = 2)")
        for number, query in enumerate(VIEWS):
            ws.sql(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
        ws.topic("ev").append(event_rows.events(1_000))
        ws.run()
        inspect_workspace(ws).on_progress(seen := _Seen())
        with _appender(space / "ws", schedule) as answers:
            runner = ws.start(every=every)
            cpu_s = _cpu_seconds()
            appended = answers.get()
            cpu_s = _cpu_seconds() - cpu_s
            ws.run()  # waits until the engine has all
            runner.stop()
    called = np.array([at for at, _ in appended])
    span_s = float(called[-1] - called[0])
    place = np.searchsorted(np.array(seen.ends), np.array([end for _, end in appended]))
    visible = np.array(seen.times)[np.minimum(place, len(seen.ends) - 1)]
    ticks = [(at - called[0], size) for at, size in zip(seen.times, seen.sizes, strict=True)]
    return _Found(called - called[0], (visible - called) * 1e3, ticks, span_s, cpu_s)


_SETTINGS = LogSettings(maintenance_every_ms=0, durability="os")


@dataclass
class _Seen(Listener):
    """When each tick was there, and up to where."""

    times: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def ticked(self, report: TickReport, manifest: Manifest) -> None:
        """By the engine's thread, right after the commit."""
        self.times.append(time.monotonic())
        self.ends.append(sum(manifest.positions["ev"].values()))
        self.sizes.append(report.rows)


@contextmanager
def _appender(path: Path, schedule: Schedule) -> Iterator[Any]:
    """Another process that appends; it answers when it called each append, and how many rows there were after it."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=_append, args=(path, schedule, answers), daemon=True)
    process.start()
    try:
        answers.get()
        yield answers
    except BaseException:
        process.kill()  # it may wait for someone to take its answer
        raise
    finally:
        process.join()


def _append(path: Path, schedule: Schedule, answers: Any) -> None:
    appended: list[tuple[float, int]] = []
    with hw.open(path, settings=_SETTINGS) as ws:
        topic = ws.topic("ev")
        total = sum(info.end for info in ws.log.partitions("ev").values())
        sizes = {rate: max(1, rate // APPENDS_PER_SECOND) for rate, _ in schedule}
        batches = {size: event_rows.events(size) for size in sizes.values()}
        answers.put("ready")
        due = time.monotonic()
        for rate, seconds in schedule:
            until = due + seconds
            while due < until:
                time.sleep(max(0.0, due - time.monotonic()))
                called = time.monotonic()
                topic.append(batches[sizes[rate]])
                total += sizes[rate]
                appended.append((called, total))
                due += sizes[rate] / rate
    answers.put(appended)


def _cpu_seconds() -> float:
    """What this process has used, with the JVM that it started."""
    return time.process_time() + sum(map(_child_cpu_seconds, _children(os.getpid())))


def _children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and "java" in (folder / "comm").read_text():
            found.append(int(folder.name))
    return found


def _child_cpu_seconds(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
