"""`durability = 'os'` and a loss of power: what is stored outside the log never knows of a commit that the disk has lost.

Log, state and engine are on one disk that loses what was not synced; the next process goes on with other records.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.engine.tick.tick_engine import Engine
from headwater.events import event_positions
from headwater.events.aggregate_store import Store
from headwater.events.snapshots import EVERY
from headwater.log import key_index
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Append
from headwater.sources.base import Commit, Event, Evolve, Position, Quiet
from headwater.sources.source_runner import Capture
from headwater.state.ownership import claim
from headwater.state.store import StateStore
from headwater.testing import FaultyStorage, inspect_workspace
from tests.events.accounts import Deposit, accounts
from tests.sources.test_source_runner import SCHEMA, TOPIC, rows

LOOSE = LogSettings(durability="os", maintenance_every_ms=0)
SMALL = 1_000
"""Rows that the journal carries; more are in the segments alone."""
DECLARED = """
CREATE TOPIC orders (n BIGINT) WITH (partitions = 2);
CREATE TOPIC safe (n BIGINT) WITH (durability = 'fsync');
CREATE MATERIALIZED VIEW sums AS SELECT count(*) AS orders, sum(n) AS total FROM orders;
"""


def open_log(storage: FaultyStorage) -> EmbeddedLog:
    return EmbeddedLog.open(storage.root, settings=LOOSE, clock=ManualClock(), storage=storage)


def test_a_tick_covers_no_commit_that_the_disk_may_lose(tmp_path: Path, spark: Any) -> None:
    clock, storage = ManualClock(), FaultyStorage(tmp_path / "ws")
    with hw.Workspace(open_log(storage), clock, storage.root, spark) as ws:
        ws.sql(DECLARED)
        orders = ws.topic("orders")
        with claim(storage, clock) as ownership:
            context = inspect_workspace(ws).engine_context()
            engine = Engine(ws.log, StateStore(storage, clock), ownership, context, clock)
            for size in (3, 20 * SMALL, 5):
                orders.append([{"n": n} for n in range(size)])
                assert engine.tick() is not None
        orders.append([{"n": -1}])
    for seed in range(4):
        image = storage.image(tmp_path / f"after-{seed}", lose_power=seed)
        with hw.open(image.root, settings=LOOSE, clock=clock, spark=spark) as after:
            manifest = inspect_workspace(after).manifest()
            assert manifest is not None
            ends = after.log.ends(["orders"])["orders"]
            assert all(ends[p] >= end for p, end in manifest.positions["orders"].items())
            after.topic("orders").append([{"n": 7_000_000 + n} for n in range(3)])
            after.run()
            assert after.verify().ok
            (row,) = after.query("SELECT * FROM sums").to_pylist()
            assert row["orders"] in (20 * SMALL + 11, 20 * SMALL + 12)


def test_snapshots_and_indexes_know_of_no_event_that_the_disk_may_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "FILE_KEYS", 16)
    monkeypatch.setattr(event_positions, "RECENT_MAX", 32)
    storage = FaultyStorage(tmp_path / "ws")
    log = open_log(storage)
    store = Store(log, ManualClock(), accounts, folder=tmp_path / "events")
    for _ in range(8):
        store.execute_all([store.send(f"a{n % 3}", Deposit(5)) for n in range(EVERY // 2 // 3 * 3)])
    files = {path.suffix for path in (tmp_path / "events").rglob("*.*")}
    assert {".json", ".keys"} <= files
    store.close()
    for seed in range(3):
        after = open_log(storage.image(tmp_path / f"after-{seed}", lose_power=seed))
        shutil.copytree(tmp_path / "events", tmp_path / f"events-{seed}")
        writing = Store(after, ManualClock(), accounts)  # a process that keeps no snapshots
        writing.execute_all([writing.send(f"a{n % 3}", Deposit(1)) for n in range(4 * EVERY)])
        reading = Store(after, ManualClock(), accounts, folder=tmp_path / f"events-{seed}")
        for one in ("a0", "a1", "a2"):
            paid = sum(event.event.amount for event in writing.events(one))
            assert reading.load(one).state.balance == writing.load(one).state.balance == paid
            assert [e.offset for e in reading.events(one)] == [e.offset for e in writing.events(one)]
        reading.close()
        after.close()


class _Watched:
    """A source that loses the power whenever it is told that something is durable."""

    def __init__(self, storage: FaultyStorage) -> None:
        self.told: list[tuple[int, FaultyStorage]] = []
        self._storage = storage

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        yield Evolve(TOPIC)
        for number in range(1, 4):
            yield rows(*((number * 1_000 + n, "a") for n in range(number)))
            yield Commit(number, {"transactions": number})
        while True:
            yield Quiet()

    def durable(self, sequence: int, position: Position | None) -> None:
        place = self._storage.root.parent / f"told-{sequence}"
        self.told.append((sequence, self._storage.image(place, lose_power=sequence)))

    def end(self) -> int:
        return 3

    def close(self) -> None:
        """Nothing to let go of."""


def test_a_source_is_told_of_no_commit_that_the_disk_may_lose(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path / "ws")
    log, source = open_log(storage), _Watched(storage)
    log.create_topic(TOPIC)
    capture = Capture(log, "shop", source, lambda definition: None, ManualClock())
    capture.run(until=3)
    assert [sequence for sequence, _ in source.told] == [1, 2, 3]
    for sequence, image in source.told:
        after = open_log(image)
        known = after.producer("source:shop")
        assert known is not None
        assert known.sequence == sequence
        assert after.partitions("people")[0].rows == sum(range(sequence + 1))


def test_a_sync_that_has_nothing_to_do_touches_no_file(tmp_path: Path) -> None:
    for durability, syncs in (("fsync", 0), ("os", 2)):
        storage = FaultyStorage(tmp_path / durability)
        log = EmbeddedLog.open(
            storage.root, settings=replace(LOOSE, durability=durability), clock=ManualClock(), storage=storage
        )
        plain = define_topic("plain", SCHEMA)
        log.create_topic(plain)
        log.append(Append({"plain": [conform([{"id": 1, "name": "a"}], plain)]}))
        before = len(storage.calls)
        log.sync()
        assert sum(call.operation == "sync" for call in storage.calls[before:]) == syncs
        before = len(storage.calls)
        log.sync()
        assert len(storage.calls) == before
