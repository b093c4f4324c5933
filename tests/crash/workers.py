"""Processes that crash tests start, kill and freeze: `python -m tests.crash.workers KIND FOLDER ...`.

Each says on its standard output, line by line and at once, what was acknowledged to it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from typing import Any

from headwater.core.settings import LogSettings
from headwater.core.storage import File, Storage
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Producer
from tests.crash.script import append, numbers

BUSY = LogSettings(
    segment_bytes_max=20_000, checkpoint_bytes=30_000, inline_bytes_max=2_000, maintenance_every_ms=0
)
PATIENCE = LogSettings(lock_timeout_ms=300, maintenance_every_ms=0)
WIDTH = 1_000_000


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def value(producer: int, sequence: int, row: int) -> int:
    return (producer * WIDTH + sequence) * 100 + row


def rows_of(producer: int, sequence: int) -> list[dict[str, int]]:
    """The rows that a producer appends under a sequence: the same each time, because a killed append may be committed."""
    count = random.Random(f"{producer} {sequence}").choice([1, 1, 2, 5, 99])
    return [{"n": value(producer, sequence, row)} for row in range(count)]


def appender(folder: str, number: str, start: str, idempotent: str) -> None:
    """Append to both topics for ever: rows that name their producer and sequence, in pieces of any size."""
    log = EmbeddedLog.open(folder, settings=BUSY)
    producer, sequence = int(number), int(start)
    while True:
        rows = rows_of(producer, sequence)
        named = Producer(f"p{producer}", sequence) if idempotent == "yes" else None
        append(log, {"left": rows, "right": rows}, producer=named)
        say([sequence, len(rows)])
        sequence += 1


def maintainer(folder: str) -> None:
    """Seal and compact for ever."""
    log = EmbeddedLog.open(folder, settings=BUSY)
    while True:
        say(log.maintain(force=True).sealed)


def frozen(folder: str, where: str) -> None:
    """Append once, and stop at a given place on the way until told to go on."""
    log = EmbeddedLog.open(folder, settings=PATIENCE)
    core: Any = log.core
    armed = [True]

    def stop() -> None:
        if armed.pop() if armed else False:
            os.kill(os.getpid(), signal.SIGSTOP)

    def around(owner: Any, name: str, *, before: bool, only: str = "") -> None:
        inner = getattr(owner, name)

        def outer(*given: Any, **named: Any) -> Any:
            if before:
                stop()
            result = inner(*given, **named)
            if not before:
                stop()
            return result

        setattr(owner, name, outer)

    if where == "with the lock":
        around(core, "_catch_up", before=False)
    elif where == "frames written":
        around(core, "commit", before=True)
    elif where == "record written":
        around(core.journal.file(), "write_at", before=False)
    elif where == "record half written":
        file = core.journal.file()
        inner = file.write_at

        def halves(offset: int, data: bytes) -> None:
            inner(offset, data[: len(data) // 2])
            stop()
            inner(offset + len(data) // 2, data[len(data) // 2 :])

        file.write_at = halves
    elif where == "before the sync":
        around(core.publisher, "sync", before=True)
    elif where == "before publishing":
        around(core.publisher, "publish", before=True)
    elif where == "between publishing and waking":
        around(core.publisher, "_wake", before=True)
    else:
        raise SystemExit(f"where is {where!r}?")
    receipt = append(log, {"orders": numbers(1_000, 5)})
    say(receipt.positions["orders"][0])
    receipt = append(log, {"orders": numbers(2_000, 2)})
    say(receipt.positions["orders"][0])
    log.close()


def publisher(folder: str) -> None:
    """Append once, and stop before and after each write of the head."""
    log = EmbeddedLog.open(folder, settings=PATIENCE)
    inner = File.write_at

    def stopping(self: File, offset: int, data: Any) -> None:
        is_head = self.name.startswith("head") and offset == 0
        if is_head:
            os.kill(os.getpid(), signal.SIGSTOP)
        inner(self, offset, data)
        if is_head:
            os.kill(os.getpid(), signal.SIGSTOP)

    File.write_at = stopping  # type: ignore[method-assign]
    append(log, {"orders": numbers(1_000, 5)})


def sweeper(folder: str, below: str, when: str) -> None:
    """Checkpoint and clear up, and stop at the first look into a folder with the lock: before it or after it."""
    log = EmbeddedLog.open(folder, settings=PATIENCE)
    armed = [True]

    def stopping(method: str) -> None:
        inner = getattr(Storage, method)

        def outer(self: Storage, name: str) -> Any:
            if name != below or not armed:
                return inner(self, name)
            armed.clear()
            found = inner(self, name) if when == "after" else None
            os.kill(os.getpid(), signal.SIGSTOP)
            return inner(self, name) if found is None else found

        setattr(Storage, method, outer)

    stopping("files")
    stopping("list")
    if below == "commits":
        with log.core.exclusive():
            log.core.checkpoint()
    else:
        log.maintain(force=True)
    log.close()


if __name__ == "__main__":
    kinds = {
        "appender": appender,
        "maintainer": maintainer,
        "frozen": frozen,
        "publisher": publisher,
        "sweeper": sweeper,
    }
    kinds[sys.argv[1]](*sys.argv[2:])
