"""Processes beside the tests: `python -m tests.engine.workers JOB FOLDER`, for tests that kill, freeze and fence them.

A worker says what it does in lines on its output, and ends when its input is closed.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headwater as hw
from headwater.core.clock import SystemClock
from headwater.core.errors import HeadwaterError
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.engine.tick.listener import Listener
from headwater.state.ownership import claim
from headwater.testing import inspect_workspace

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
ROOT = Path(__file__).parents[2]


def declare_code(ws: hw.Workspace) -> None:
    """Declare the functions that views of these tests may call."""
    ws.aggregate("seen", **hw.BloomFilter("BIGINT", items=20).aggregate)


# --- the side of the tests -------------------------------------------------------------------------------------------


class Worker:
    """A process that does a job on a workspace."""

    def __init__(self, job: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.workers", job, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def line(self, beginning: str = "") -> str:
        """The next line of its output that begins so, without that; AssertionError if it ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError(f"the worker ended ({self._process.wait()}) before it said {beginning!r}")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send it kill -9, and wait until it is dead."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Let it end by itself."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


@contextmanager
def worker(job: str, folder: Path) -> Iterator[Worker]:
    """A worker that does not outlive the block."""
    started = Worker(job, folder)
    try:
        yield started
    finally:
        started.kill()
        started.end()


# --- the side of the worker ------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Write a line that the test waits for."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class _Aloud(Listener):
    def ticked(self, report: object, manifest: object) -> None:
        say(f"tick {report.tick}")  # type: ignore[attr-defined]


def _closed() -> threading.Event:
    done = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    return done


def run_engine(folder: str) -> None:
    """A running engine: says each tick, and what ended it."""
    from tests.shared_spark import make_session

    done = _closed()
    with hw.open(folder, settings=SETTINGS, spark=make_session()) as ws:
        declare_code(ws)
        inspect_workspace(ws).on_progress(_Aloud())
        runner = ws.start()
        say(f"running {os.getpid()}")
        while runner.running and not done.wait(0.01):
            pass
        try:
            runner.stop()
        except HeadwaterError as error:
            say(f"ended {type(error).__name__}: {error.message}")


def only_claim(folder: str) -> None:
    """The lock of an engine, and nothing else; no Spark."""
    done = _closed()
    with claim(Storage(folder), SystemClock()) as ownership:
        ownership.beat_by_itself()
        say(f"running {os.getpid()}")
        done.wait()


def try_to_start(folder: str) -> None:
    """What a second engine is told, before it has started Spark."""
    with hw.open(folder, settings=SETTINGS) as ws:
        try:
            ws.start()
        except HeadwaterError as error:
            say(f"told {type(error).__name__} {error.pid} {'pyspark' in sys.modules}")


def standing_queries(folder: str) -> None:
    """Queries and documents stored in turns, with ticks between them, without end; no Spark."""
    with hw.open(folder, settings=SETTINGS) as ws:
        news, articles = ws.standing("news"), ws.topic("articles")
        say(f"running {os.getpid()}")
        for turn in itertools.count():
            back = "1 day" if turn % 2 else None
            news.add_all(
                {"id": "pqr"[n % 3] if n < 3 else f"{turn % 5} {n}", "query": query, "owner": "AB"[turn % 2]}
                | {"backfill": back}
                for n, query in enumerate(("ash", "birch AND cedar", "cedar", "ash OR birch"))
            )
            if turn % 3 == 2:
                news.remove("pqr"[turn % 2])
            articles.append([{"id": turn % 7, "text": text} for text in ("ash", "birch cedar", "birch")])
            ws.run()
            say(f"turn {turn}")


if __name__ == "__main__":
    {
        "engine": run_engine,
        "claim": only_claim,
        "start": try_to_start,
        "standing": standing_queries,
    }[sys.argv[1]](sys.argv[2])
