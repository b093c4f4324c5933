"""Processes beside the tests of alerts, which look and tell until they are killed.

One process, `python -m tests.connectors.alert_worker`, has everything imported and forks them, so that a start takes no
seconds: a line on its input, a job and a folder, starts one, and its number is the line of output. None outlives it, and it does not
outlive its input.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import headwater as hw
from headwater.connectors.alerts import alerts
from headwater.testing import inspect_workspace

ROOT = Path(__file__).parents[2]
EVALUATE_EVERY_S = 0.01


class Workers:
    """The process that starts the others."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.connectors.alert_worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, job: str, folder: Path) -> int:
        """Start one that does a job for a workspace; its number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{job} {folder}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End, and all of them with it."""
        self._process.communicate()


@contextmanager
def workers() -> Iterator[Workers]:
    """None of them outlives the block."""
    started = Workers()
    try:
        yield started
    finally:
        started.close()


def kill(worker: int) -> None:
    """Kill -9, whatever it does; one that is dead already stays so."""
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)


# --- the side of the workers -----------------------------------------------------------------------------------------


def beside(folder: str) -> None:
    """Watch and tell, as it is done beside an engine."""
    alerts.EVALUATE_EVERY_S = EVALUATE_EVERY_S
    with hw.open(folder, durability="os") as ws, inspect_workspace(ws).claim_engine():
        inspect_workspace(ws).alerts.start()
        threading.Event().wait()


def again(folder: str) -> None:
    """Look and tell once, again and again, as it is done at the end of a run."""
    with hw.open(folder, durability="os") as ws:
        while True:
            inspect_workspace(ws).evaluate_alerts()


def _forked(job: str, folder: str, parent: int) -> None:
    def end_with_parent() -> None:
        while os.getppid() == parent:
            threading.Event().wait(0.05)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        {"beside": beside, "again": again}[job](folder)
    finally:
        os._exit(2)


def _serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    with hw.open("memory:") as ws:
        ws.metrics()  # everything is imported
    this = os.getpid()
    for line in iter(sys.stdin.readline, ""):
        job, folder = line.split()
        if not (child := os.fork()):
            _forked(job, folder, this)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
