"""A disk without room for what is kept beside the log: events that are committed are told as committed."""

import errno
from pathlib import Path
from typing import Any

import pytest

from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.events import event_positions
from headwater.events.aggregate_store import Store
from headwater.events.snapshots import EVERY
from headwater.log import key_index
from headwater.log.embedded import EmbeddedLog
from headwater.testing import FaultyStorage
from tests.events.accounts import Deposit, accounts

LOOSE = LogSettings(durability="os", maintenance_every_ms=0)


@pytest.mark.parametrize("operation", ["create", "write_at", "truncate", "sync", "rename"])
def test_a_command_is_done_whatever_becomes_of_the_index_and_the_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Any
) -> None:
    """A client that is told of a full disk would send the command again, and have it done twice."""
    monkeypatch.setattr(key_index, "FILE_KEYS", 16)
    monkeypatch.setattr(event_positions, "RECENT_MAX", 32)
    faults = []

    def full(folder: Path) -> FaultyStorage:
        storage = FaultyStorage(folder)
        faults.append(storage.fail(errno.ENOSPC, on=operation, times=None))
        return storage

    monkeypatch.setattr(key_index, "Storage", full)
    log = EmbeddedLog.open(tmp_path / "ws", settings=LOOSE, clock=ManualClock())
    store = Store(log, ManualClock(), accounts, folder=tmp_path / "events")
    for _ in range(8):
        done = store.execute_all([store.send(f"a{n % 3}", Deposit(1)) for n in range(EVERY // 6 * 3)])
        assert all(outcome.version for outcome in done)
    assert any(fault.met for fault in faults)
    assert list((tmp_path / "events").rglob("*.new")) == [], "attempts that fail fill the disk"
    expected = 8 * (EVERY // 6)
    assert [store.load(f"a{n}").state.balance for n in range(3)] == [expected] * 3
    store.close()
    log.close()


def test_a_command_is_done_where_the_log_cannot_be_synced_for_a_snapshot(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path / "ws")
    log = EmbeddedLog.open(storage.root, settings=LOOSE, clock=ManualClock(), storage=storage)
    store = Store(log, ManualClock(), accounts, folder=tmp_path / "events")
    store.execute_all([store.send("a0", Deposit(1)) for _ in range(EVERY - 1)])
    fault = storage.fail(errno.EIO, on="sync", name="topics/*")
    (done,) = store.execute_all([store.send("a0", Deposit(1))])
    assert fault.met
    assert done.version == EVERY
    store.execute_all([store.send("a0", Deposit(1))])
    assert store.load("a0").state.balance == EVERY + 1
    store.close()
    log.close()
