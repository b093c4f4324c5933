"""Processes that are killed at any moment: every message is acknowledged once, none is lost, and keys keep their order."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

import headwater as hw
from headwater.queues.message_positions import offset_of
from headwater.queues.queue_records import SCHEMA, from_batch
from headwater.queues.queue_state import QueueState
from tests.repo.tree import ROOT

MESSAGES, KEYS, PROCESSES, KILLS = 300, 40, 3, 4


def start(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.queues.worker", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_killed_workers_lose_nothing_and_acknowledge_nothing_twice(tmp_path: Path) -> None:
    folder, chance = tmp_path / "ws", random.Random(7)
    with hw.open(folder) as ws:
        outbox = ws.topic("outbox", "id BIGINT, customer BIGINT")
        outbox.append([{"id": n, "customer": n % KEYS} for n in range(MESSAGES)])
        queue = ws.queue("work", topic="outbox", key="customer", lease="1 second", deliveries=1_000)
        processes = [start(folder) for _ in range(PROCESSES)]
        try:
            for kill in range(KILLS):
                reached = (kill + 1) * MESSAGES // (KILLS + 2)
                while queue.standing().acknowledged < reached:
                    ws.log.wait_commit(ws.log.sequence(), 1_000)
                victim = processes.pop(chance.randrange(len(processes)))
                victim.kill()
                victim.communicate()
                processes.append(start(folder))
            for process in processes:
                process.communicate(timeout=120)
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        standing = queue.standing()
        assert (standing.waiting, standing.leased, standing.dead) == (0, 0, 0)
        assert standing.acknowledged == MESSAGES
        assert standing.delivered >= MESSAGES
        acknowledged = replayed_history(ws)
    assert Counter(acknowledged) == Counter(range(MESSAGES)), "each once, by the log's own record"
    for key in range(KEYS):
        mine = [offset for offset in acknowledged if offset % KEYS == key]
        assert mine == sorted(mine)


def replayed_history(ws: hw.Workspace) -> list[int]:
    """What was acknowledged, in order, from the records alone; no key is ever held twice on the way."""
    state, done = QueueState(), list[int]()
    end = ws.log.partitions("_queue_work")[0].end
    for batch in ws.log.read("_queue_work", 0, 0, end, [*SCHEMA.names, "_offset", "_appended_at"]):
        times = batch["_appended_at"].cast(pa.int64()).to_pylist()
        for op, number, at in zip(from_batch(batch), batch["_offset"].to_pylist(), times, strict=True):
            outcome = state.apply(op, number, at)
            if op.kind == "ack":
                lost = set(outcome.lost.tolist())
                done += [offset_of(place) for place in op.places.tolist() if place not in lost]
            held = [
                key for g in state.leases.values() if g.keys is not None for key in g.keys[g.open].tolist()
            ]
            assert len(held) == len(set(held))
    return done
