"""Ctrl-C in the middle of anything that a queue does leaves the process with the state that the log says."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import pytest

import headwater.queues
from headwater.core.clock import ManualClock
from headwater.core.errors import LeaseLostError
from headwater.log.memory import MemoryLog
from headwater.queues import queue_checkpoint
from headwater.queues.message import Message
from headwater.queues.queue_client import Ledgers
from headwater.workspace import Workspace
from tests.interrupts import interrupted


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_interrupted_the_state_is_that_of_the_log(seed: int, in_order: bool) -> None:
    chance, clock = random.Random(seed), ManualClock()
    log = MemoryLog(clock)
    ws = Workspace(log, clock, None)
    topic = ws.topic("outbox", "k BIGINT")
    queue = ws.queue(
        "work", topic="outbox", lease="10 s", deliveries=3, key="k" if in_order else None, worker="me"
    )
    held: list[Message] = []
    done: list[int] = []

    def receive() -> None:
        held.extend(queue.receive(chance.randint(1, 6), wait=0))

    def settle(message: Message) -> None:
        with suppress(LeaseLostError):
            if chance.random() < 0.7:
                queue.ack([message])
                done.append(message.offset)
            else:
                queue.nack([message], delay="1 s")

    for _ in range(60):
        topic.append([{"k": chance.randrange(4)} for _ in range(chance.randint(0, 4))])
        act = partial(settle, held.pop()) if held and chance.random() < 0.6 else receive
        interrupted(act, chance, headwater.queues) if chance.random() < 0.6 else act()
        clock.advance(chance.choice(["0 s", "1 s", "11 s"]))
        mine, fresh = (each.of("work").current() for each in (queue._ledgers, Ledgers(log, clock)))
        assert queue_checkpoint.encode(mine) == queue_checkpoint.encode(fresh)
    while len(rest := queue.receive(10, wait=0)):
        queue.ack(rest)
        done += [message.offset for message in rest]
        clock.advance("11 s")
    assert len(done) == len(set(done)) > 2
