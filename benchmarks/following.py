"""Followers: how soon another process has an append, and what a hundred followers cost while nothing happens."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks.harness import Bench
from headwater.core.settings import LogSettings

TITLE = "Followers in other processes"
MEDIAN_GOAL_MS, P99_GOAL_MS, IDLE_GOAL = 5.0, 20.0, 5.0
PER_SECOND = 200
FOLLOWERS = 100


def run(bench: Bench) -> None:
    """Latency first, then idleness."""
    count = bench.size(1_000, 20)
    with bench.space() as space:
        since_call, since_return = _latency(space / "ws", count)
        group = f"{count:,} appends of a row at {PER_SECOND}/s, fsync, {os.cpu_count()} cores"
        for name, taken, goals in (
            ("after append returned", since_return, (MEDIAN_GOAL_MS, P99_GOAL_MS)),
            ("after append was called", since_call, (None, None)),
        ):
            bench.note(group, f"{name}, median", "ms", [statistics.median(taken)], goal=goals[0])
            p99 = sorted(taken)[int(len(taken) * 0.99)]
            bench.note(group, f"{name}, p99", "ms", [p99], goal=goals[1])
    followers = bench.size(FOLLOWERS, 5)
    with bench.space() as space:
        shares = _idle(space / "ws", followers, bench.size(10, 1))
        bench.note(
            f"{followers} idle followers, a process each",
            "all together",
            "% of a core",
            [shares],
            goal=IDLE_GOAL,
        )


def _latency(path: Path, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds until a follower has each row: since append was called, and since it returned."""
    with hw.open(path, settings=LogSettings(maintenance_every_ms=0)) as workspace:
        topic = workspace.topic("beats", "number BIGINT")
        topic.append([{"number": -1}])
        context = multiprocessing.get_context("spawn")
        ready, seen = context.Event(), context.SimpleQueue()
        follower = context.Process(target=_follow, args=(path, count, ready, seen), daemon=True)
        follower.start()
        ready.wait(60)
        called, returned = [], []
        begin = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begin + number / PER_SECOND - time.monotonic()))
            called.append(time.monotonic())
            topic.append([{"number": number}])
            returned.append(time.monotonic())
        arrived = seen.get()
        follower.join()
    since_call = [(a - c) * 1e3 for a, c in zip(arrived, called, strict=True)]
    since_return = [max(0.0, a - r) * 1e3 for a, r in zip(arrived, returned, strict=True)]
    return since_call, since_return


def _follow(path: Path, count: int, ready: Any, seen: Any) -> None:
    """Note when each row came; the first row, read before anything is timed, warms the process up."""
    arrived: list[float] = []
    with hw.open(path) as workspace:
        reader = workspace.topic("beats").read("earliest", follow=True, timeout=60)
        next(reader)
        threading.Timer(0.3, ready.set).start()  # by then it waits
        for batch in reader:
            now = time.monotonic()
            arrived += [now] * batch.num_rows
            if len(arrived) >= count:
                break
    seen.put(arrived)


def _idle(path: Path, followers: int, seconds: float) -> float:
    """The share of a core, in percent, that followers use while nothing is appended."""
    with hw.open(path) as workspace:
        workspace.topic("quiet", "number BIGINT").append([{"number": 1}])
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    nursery = context.Process(target=_nursery, args=(path, followers, seconds, answers))
    nursery.start()
    used = answers.get()
    nursery.join()
    return 100 * float(used) / seconds


def _nursery(path: Path, followers: int, seconds: float, answers: Any) -> None:
    """Forks the followers, so that a hundred of them share the pages of one interpreter."""
    read_end, write_end = os.pipe()
    children = []
    for _ in range(followers):
        child = os.fork()
        if not child:
            _idle_follower(path, seconds, write_end)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        answers.put(sum(float(line) for line in lines))


def _idle_follower(path: Path, seconds: float, write_end: int) -> None:
    """Follow in a thread, and say how much CPU the process used in the given time."""
    workspace = hw.open(path)
    reader = workspace.topic("quiet").read("latest", follow=True)
    threading.Thread(target=lambda: next(reader, None), daemon=True).start()
    time.sleep(3.0)  # until all have started and come to rest
    before = time.process_time()
    time.sleep(seconds)
    os.write(write_end, f"{time.process_time() - before}\n".encode())
    os._exit(0)
