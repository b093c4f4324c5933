"""Processes beside the tests of capture: `python -m tests.connectors.capture_worker JOB FOLDER ...`.

`capture` does nothing else, until it is killed; no Spark. `client` is an application that writes to its database and reads
what follows it, beside an engine in another process. Each says what it does in lines on its output, and none outlives its input.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

import headwater as hw
from headwater.catalog.connectors import SourceDefinition
from headwater.catalog.definitions import TopicDefinition
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.clock import SystemClock
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Log
from headwater.sources.registry import open_source
from headwater.sources.source_runner import Capture

BUSY = LogSettings(
    durability="os",
    segment_bytes_max=200_000,
    checkpoint_bytes=100_000,
    inline_bytes_max=4_000,
    staging_bytes_max=50_000,
    maintenance_every_ms=0,
)
"""A log that turns every page of its book often."""
SOURCE = "bank"
TABLES = ("accounts", "transfers", "items", "journal")
ROOT = Path(__file__).parents[2]


def capture_of(log: Log, folder: Path, url: str, snapshot: str) -> Capture:
    """What brings the tables of the bank into a log."""
    options = {"url": url, "tables": ", ".join(TABLES), "snapshot": snapshot, "chunk_rows": "40"}
    source = open_source(SourceDefinition(SOURCE, "postgres", options), log, folder / "staging")

    def make(topic: TopicDefinition) -> None:
        define(log, _no_views, topic)

    return Capture(log, SOURCE, source, make, SystemClock())


def _no_views() -> hw.Workspace:
    raise AssertionError("there are no views")


# --- the side of the tests -------------------------------------------------------------------------------------------


class Worker:
    """A process that does a job."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.connectors.capture_worker", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line of its output; AssertionError if it ends before."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said, f"the worker ended with status {self._process.wait()}"
        return said.strip()

    def check(self) -> None:
        """AssertionError if it has ended by itself."""
        assert self._process.poll() is None, f"the worker ended with status {self._process.returncode}"

    def kill(self) -> None:
        """Kill -9, whatever it does."""
        self.check()
        self._process.kill()
        self._process.communicate()

    def wait(self) -> str:
        """Until it has ended well; what it said."""
        said, _ = self._process.communicate()
        assert not self._process.returncode, said
        return said


@contextmanager
def worker(*words: str) -> Iterator[Worker]:
    """A worker that does not outlive the block."""
    started = Worker(*words)
    try:
        yield started
    finally:
        started._process.kill()
        started._process.communicate()


# --- the side of the worker ------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Write a line that the test waits for."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def capture(folder: str, url: str, snapshot: str) -> None:
    """Bring everything into the log, for ever."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    log = EmbeddedLog.open(folder, settings=BUSY)
    say("capturing")
    capture_of(log, Path(folder), url, snapshot).run()


def client(folder: str, url: str, first: str, times: str) -> None:
    """Write orders to the database, and look for each of them in the view and in both followers."""
    from tests.connectors.test_read_your_writes import Client

    with hw.open(folder, durability="os") as ws, closing(psycopg.connect(url, autocommit=True)) as session:
        mine = Client(ws, session, os.environ["CACHE_URL"], os.environ["REPORT_URL"])
        for number in range(int(first), int(first) + int(times)):
            mine.write(number)
            mine.look_everywhere(number)
            say(f"saw {number}")


JOBS: dict[str, Callable[..., None]] = {"capture": capture, "client": client}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*sys.argv[2:])
