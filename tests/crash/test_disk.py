"""The disk says no: full, forbidden, gone, unable to sync. Each has its own error, and the log goes on afterwards."""

import errno
import shutil
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from headwater.catalog import define_topic
from headwater.clock import ManualClock
from headwater.errors import (
    DiskFullError,
    NewerVersionError,
    NotAWorkspaceError,
    PermissionDeniedError,
    SyncFailedError,
    WorkspaceMissingError,
)
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Producer
from headwater.testing import FaultyStorage
from tests.crash.script import CLICKS, ORDERS, SETTINGS, append, clicks, numbers, problems

CUSTOMER_SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


def open_log(storage: FaultyStorage) -> EmbeddedLog:
    return EmbeddedLog.open(storage.root, settings=SETTINGS, clock=ManualClock(), storage=storage)


def orders(log: EmbeddedLog) -> list[int]:
    return [r["n"] for b in log.read("orders", 0, 0, log.partitions("orders")[0].end) for r in b.to_pylist()]


@pytest.fixture
def storage(tmp_path: Path) -> FaultyStorage:
    return FaultyStorage(tmp_path / "ws")


@pytest.fixture
def log(storage: FaultyStorage) -> EmbeddedLog:
    log = open_log(storage)
    log.create_topic(ORDERS)
    log.create_topic(CLICKS)
    append(log, {"orders": numbers(0, 1), "clicks": clicks(0, 5)})
    return log


@pytest.mark.parametrize("count", [2, 120], ids=["carried by the journal", "not carried"])
@pytest.mark.parametrize("operation", ["write_at", "create", "truncate", "sync", "sync_dir", "rename"])
def test_a_full_disk_at_every_call_of_an_append(
    log: EmbeddedLog, storage: FaultyStorage, operation: str, count: int
) -> None:
    """Refused as a whole; once there is space the next append goes through, without reopening."""
    refused, done = 0, 0
    for skip in range(40):
        fault = storage.fail(errno.ENOSPC, on=operation, skip=skip, times=None)  # type: ignore[arg-type]
        before, rows = (
            orders(log),
            {"orders": numbers(1_000 * skip, 1), "clicks": clicks(skip * count, count)},
        )
        try:
            append(log, rows, producer=Producer("loader", skip))
        except DiskFullError:
            refused += 1
        assert orders(log) in (before, [*before, 1_000 * skip])
        fault.lift()
        append(log, rows, producer=Producer("loader", skip))
        assert orders(log) == [*before, 1_000 * skip], (
            f"refused at {operation} number {skip}, then lost or doubled"
        )
        done += 1
    assert refused or operation in ("create", "truncate", "rename", "sync_dir")
    assert problems(log) == []
    other = open_log(storage.restart())
    assert len(orders(other)) == done + 1
    assert problems(other) == []


def test_access_is_denied(log: EmbeddedLog, storage: FaultyStorage) -> None:
    fault = storage.fail(errno.EACCES, on="write_at", name="topics/*", times=None)
    with pytest.raises(PermissionDeniedError) as caught:
        append(log, {"orders": numbers(1, 1)})
    assert "permission" in (caught.value.hint or "")
    fault.lift()
    append(log, {"orders": numbers(1, 1)})
    assert orders(log) == [0, 1]


@pytest.mark.parametrize("name", ["journal/*", "topics/*"])
def test_a_sync_fails(log: EmbeddedLog, storage: FaultyStorage, name: str) -> None:
    """What it was to write is gone from the page cache: nothing acknowledged hangs on it, here or in another process."""
    other = open_log(storage)
    append(other, {"orders": numbers(1, 1)})
    storage.fail(errno.EIO, on="sync", name=name)
    with pytest.raises(SyncFailedError):
        append(log, {"orders": numbers(2, 1), "clicks": clicks(0, 200)})
    append(log, {"orders": numbers(3, 1)})
    append(other, {"orders": numbers(4, 1)})
    append(log, {"orders": numbers(5, 1)})
    assert orders(log) == orders(other)
    assert [n for n in orders(log) if n != 2] == [0, 1, 3, 4, 5]
    assert problems(log) == problems(other) == []
    for seed in range(6):
        survivor = open_log(storage.image(storage.root.parent / f"after-{seed}", lose_power=seed))
        assert orders(survivor) == orders(log), f"power lost by seed {seed}"
        assert problems(survivor) == []


def test_a_sync_fails_while_another_process_acknowledges(log: EmbeddedLog, storage: FaultyStorage) -> None:
    """The process whose sync failed knows less than was published; what others acknowledged since is not voided."""
    other = open_log(storage)
    storage.fail(errno.EIO, on="sync", name="journal/*")
    with pytest.raises(SyncFailedError):
        append(log, {"orders": numbers(1, 1)})
    append(other, {"orders": numbers(2, 1)})
    append(log, {"orders": numbers(3, 1)})
    assert [n for n in orders(other) if n != 1] == [0, 2, 3]
    assert orders(other) == orders(log)


def test_a_versioned_topic_after_a_failed_sync(storage: FaultyStorage) -> None:
    """Regression: the counts per key had kept the append that was voided."""
    log = open_log(storage)
    definition = define_topic("accounts", CUSTOMER_SCHEMA, options={"versioned_by": "id"})
    log.create_topic(definition)
    row = [{"id": 7, "name": "a"}]
    append(log, {"accounts": row}, expect={"accounts": {7: 0}})
    storage.fail(errno.EIO, on="sync", name="journal/*")
    with pytest.raises(SyncFailedError):
        append(log, {"accounts": row}, expect={"accounts": {7: 1}})
    append(log, {"accounts": row}, expect={"accounts": {7: 1}})
    versions = [r["_version"] for b in log.read("accounts", 0, 0, 9) for r in b.to_pylist()]
    assert versions == [1, 2]


def test_the_folder_is_gone(log: EmbeddedLog, storage: FaultyStorage) -> None:
    """Open files still take writes; the append is refused all the same."""
    shutil.rmtree(storage.root)
    with pytest.raises(WorkspaceMissingError) as caught:
        append(log, {"orders": numbers(1, 1)})
    assert caught.value.hint
    log.close()


def test_a_workspace_of_a_newer_version(log: EmbeddedLog, storage: FaultyStorage) -> None:
    log.close()
    about = orjson.loads((storage.root / "headwater.json").read_bytes())
    (storage.root / "headwater.json").write_bytes(orjson.dumps({**about, "format": 99, "news": True}))
    with pytest.raises(NewerVersionError, match="99") as caught:
        open_log(storage.restart())
    assert "upgrade" in (caught.value.hint or "")


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(NotAWorkspaceError, match=r"photo\.jpg"):
        EmbeddedLog.open(tmp_path)
    with pytest.raises(NotAWorkspaceError):
        EmbeddedLog.open(tmp_path / "photo.jpg")
    with pytest.raises(WorkspaceMissingError):
        EmbeddedLog.open(tmp_path / "nowhere", create=False)
