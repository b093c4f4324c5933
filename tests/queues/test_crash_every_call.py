"""A worker's life stopped at every call that changes the disk, by the death of the process and by a loss of power.

What was acknowledged stays acknowledged; all else comes, and none of it twice at once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import headwater.queues.queue_client as ledger_module
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.log.embedded.embedded_log import EmbeddedLog
from headwater.queues.queue import Queue
from headwater.testing import FaultyStorage
from headwater.testing.faults import StorageCall
from headwater.workspace import Workspace
from tests.conftest import LONG

SETTINGS = LogSettings(maintenance_every_ms=0)
MESSAGES = 8


class Life:
    """What a worker was told was done, as it goes on."""

    def __init__(self) -> None:
        self.done: set[int] = set()
        self.trying: set[int] = set()
        self.returned: set[int] = set()

    def live(self, ws: Workspace) -> None:
        ws.topic("outbox", "id BIGINT").append([{"id": n} for n in range(MESSAGES)])
        queue = ws.queue("work", topic="outbox", lease="10 seconds", deliveries=2)
        first = queue.receive(2)
        self.ack(queue, first)
        second = queue.receive(3)
        self.ack(queue, second[:1])
        queue.nack(second[1], error="no")
        self.returned.add(second[1].offset)
        again = queue.receive(1)
        queue.nack(again, error="no")  # its second delivery: it is dead
        self.ack(queue, queue.receive(1))

    def ack(self, queue: Queue, messages: object) -> None:
        offsets = {message.offset for message in messages}  # type: ignore[attr-defined]
        self.trying |= offsets
        queue.ack(messages)  # type: ignore[arg-type]
        self.done |= offsets


def judge(life: Life, storage: FaultyStorage, clock: ManualClock, what: str) -> None:
    """Open what is left, and work until nothing comes any more."""
    log = EmbeddedLog.open(storage.root, settings=SETTINGS, clock=clock, storage=storage)
    ws = Workspace(log, clock, storage.root)
    if "work" not in log.entries("queue"):
        assert not life.done, what
        log.close()
        return
    queue, got = ws.queue("work"), []
    for _ in range(6):
        clock.advance("11 seconds")
        for message in queue.receive(MESSAGES):
            got.append(message.offset)
            message.ack()
    dead = {row["offset"] for batch in ws.topic("work.dead").read() for row in batch.to_pylist()}
    assert len(got) == len(set(got)), what
    assert not life.done & set(got), f"{what}: acknowledged, and here again"
    present = set(range(log.ends(["outbox"])["outbox"][0]))
    assert present - set(got) - dead <= life.trying, f"{what}: lost"
    assert dead <= life.returned, what
    assert queue.standing().waiting == queue.standing().leased == 0, what
    log.close()


def test_wherever_it_stops_nothing_acknowledged_is_lost_or_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "CHECKPOINT_OPS", 4)
    life, storage, clock = Life(), FaultyStorage(tmp_path / "ws"), ManualClock()
    every = 1 if LONG else 2

    def stop(call: StorageCall) -> None:
        if call.number % every:
            return
        for power in (None, call.number):
            place = tmp_path / "image"
            left = storage.image(place, lose_power=power)
            judge(life, left, ManualClock(clock.now_us()), f"{call}, power {power}")
            shutil.rmtree(place)

    log = EmbeddedLog.open(storage.root, settings=SETTINGS, clock=clock, storage=storage)
    storage.on_call = stop
    life.live(Workspace(log, clock, storage.root))
    storage.on_call = None
    judge(life, storage.image(tmp_path / "end"), clock, "the end")
    log.close()
