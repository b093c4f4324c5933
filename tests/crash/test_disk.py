"""The disk says no: full, forbidden, gone, unable to sync. Each has its own error, and the log goes on afterwards."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.core.clock import ManualClock
from headwater.core.errors import (
    DiskFullError,
    HeadwaterError,
    NewerVersionError,
    NotAWorkspaceError,
    PermissionDeniedError,
    SyncFailedError,
    WorkspaceMissingError,
)
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.log.embedded.journal import checkpoint
from headwater.log.protocol import Producer
from headwater.testing import FaultyStorage
from tests.crash.script import CLICKS, ORDERS, SETTINGS, append, clicks, numbers, problems
from tests.raising import raises

CUSTOMER_SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


def open_log(storage: FaultyStorage, settings: LogSettings = SETTINGS) -> EmbeddedLog:
    return EmbeddedLog.open(storage.root, settings=settings, clock=ManualClock(), storage=storage)


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
    log: EmbeddedLog,
    storage: FaultyStorage,
    operation: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused as a whole, or not known, and each error says which; once there is space the next append goes through, without
    reopening."""
    monkeypatch.setattr(checkpoint, "RETRY_MIN_MS", 0.0)
    refused, unknown, done = 0, 0, 0
    for skip in range(40):
        fault = storage.fail(errno.ENOSPC, on=operation, skip=skip, times=None)  # type: ignore[arg-type]
        before, rows = (
            orders(log),
            {"orders": numbers(1_000 * skip, 1), "clicks": clicks(skip * count, count)},
        )
        producer: Producer | None = Producer("loader", skip)
        error: HeadwaterError | None = None
        try:
            append(log, rows, producer=producer)
        except (DiskFullError, SyncFailedError) as caught:
            error = caught
        if isinstance(error, DiskFullError):
            assert error.outcome == "not-written"
            refused, producer = refused + 1, None  # as it says: the same append, by whoever it is
        elif error is not None:
            assert error.facts["outcome"] == "unknown"
            unknown += 1
        assert orders(log) in (before, [*before, 1_000 * skip])
        fault.lift()
        append(log, rows, producer=producer)
        assert orders(log) == [*before, 1_000 * skip], (
            f"refused at {operation} number {skip}, then lost or doubled"
        )
        done += 1
    assert refused or operation in ("create", "truncate", "rename", "sync_dir", "sync")
    assert unknown or operation not in ("write_at", "sync")
    assert problems(log) == []
    other = open_log(storage.restart())
    assert len(orders(other)) == done + 1
    assert problems(other) == []


@pytest.mark.parametrize("operation", ["write_at", "create", "sync", "sync_dir", "rename", "make_dirs"])
def test_a_full_disk_at_every_call_of_an_append_that_is_larger_than_memory(
    storage: FaultyStorage, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "RETRY_MIN_MS", 0.0)
    log = open_log(storage, replace(SETTINGS, staging_bytes_max=1))
    log.create_topic(ORDERS)

    def stage(number: int, producer: Producer | None) -> None:
        staged = log.stage(producer)
        try:
            for half in range(2):
                staged.add("orders", conform(numbers(10 * number + 5 * half, 5), ORDERS))
            staged.commit(producer=producer)
        finally:
            staged.abort()

    wanted: list[int] = []
    for number in range(14):
        fault = storage.fail(errno.ENOSPC, on=operation, skip=number, times=None)  # type: ignore[arg-type]
        before, producer = wanted, Producer("loader", number)
        wanted = [*before, *range(10 * number, 10 * number + 10)]
        error: HeadwaterError | None = None
        try:
            stage(number, producer)
        except (DiskFullError, SyncFailedError) as caught:
            error = caught
        unwritten = error is not None and error.facts.get("outcome") != "unknown"
        assert orders(log) in ((before,) if unwritten else (before, wanted))
        fault.lift()
        stage(number, None if unwritten else producer)
        assert orders(log) == wanted
    assert problems(log) == []
    assert orders(open_log(storage.restart())) == wanted


def test_an_append_that_counts_is_no_error_though_what_was_staged_cannot_be_removed(
    storage: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(storage, replace(SETTINGS, staging_bytes_max=1))
    log.create_topic(ORDERS)

    def refused(*arguments: object) -> None:
        raise PermissionDeniedError("the folder cannot be removed")

    staged = log.stage()
    staged.add("orders", conform(numbers(0, 10), ORDERS))
    monkeypatch.setattr(storage, "remove_dir", refused)
    assert staged.commit().rows == 10
    assert orders(log) == list(range(10))


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("write_at", "checkpoints/*"),
        ("create", "checkpoints/*"),
        ("sync_dir", "checkpoints"),
        ("create", "journal/*"),
        ("write_at", "journal/*.tmp"),
        ("sync", "journal/*.tmp"),
        ("rename", "journal/*"),
        ("sync_dir", "journal"),
    ],
)
def test_a_disk_without_room_for_a_checkpoint_takes_appends(
    log: EmbeddedLog, storage: FaultyStorage, operation: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append is committed whatever becomes of the checkpoint: a client that tries it again would write it twice."""
    monkeypatch.setattr(checkpoint, "RETRY_MIN_MS", 0.0)
    other = open_log(storage)
    fault = storage.fail(errno.ENOSPC, on=operation, name=name, times=None)  # type: ignore[arg-type]
    for n in range(1, 31):
        append(log if n % 2 else other, {"orders": numbers(n, 1)})
    assert fault.met, "no checkpoint was tried"
    assert orders(log) == orders(other) == list(range(31))
    found = {one.name: one for one in log.faults.current()}
    assert "no space" in found["checkpoint of the journal"].reason
    assert "free some space" in str(found["checkpoint of the journal"].hint)
    assert list(storage.root.glob("*/*.tmp")) == [], "attempts that fail fill the disk"
    fault.lift()
    for n in range(31, 35):
        append(log if n % 2 else other, {"orders": numbers(n, 1)})
    assert log.faults.current() == []
    assert log.core.journal.number > 1
    assert orders(log) == orders(other) == orders(open_log(storage.restart())) == list(range(35))


@pytest.mark.parametrize("where", ["of a checkpoint", "of an append"])
def test_what_a_failed_sync_has_dropped_is_written_again_before_the_journal_goes(
    storage: FaultyStorage, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames lie in the journal alone until a checkpoint syncs their segment, and a second sync says nothing of the first."""
    monkeypatch.setattr(checkpoint, "RETRY_MIN_MS", 0.0)
    log = open_log(storage)
    log.create_topic(ORDERS)
    append(log, {"orders": numbers(0, 3)})
    append(log, {"orders": numbers(3, 3)})
    storage.fail(errno.EIO, on="sync", name="topics/*")
    if where == "of a checkpoint":
        with pytest.raises(SyncFailedError), log.core.exclusive():
            log.core.checkpoint()
    else:
        with pytest.raises(SyncFailedError):
            append(log, {"orders": numbers(1_000, 400)})
    other = open_log(storage)
    for _ in range(3):
        with other.core.exclusive():
            other.core.checkpoint()
    assert not (storage.root / "journal" / "00000001.log").exists()
    assert other.faults.current() == []
    for seed in range(6):
        survivor = open_log(storage.image(storage.root.parent / f"after-{seed}", lose_power=seed))
        assert orders(survivor) == list(range(6)), f"power lost by seed {seed}"
        assert problems(survivor) == []
        survivor.close()


def test_access_is_denied(log: EmbeddedLog, storage: FaultyStorage) -> None:
    fault = storage.fail(errno.EACCES, on="write_at", name="topics/*", times=None)
    with pytest.raises(PermissionDeniedError):
        append(log, {"orders": numbers(1, 1)})
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
    with raises(NewerVersionError, found=99):
        open_log(storage.restart())


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with raises(NotAWorkspaceError, file="photo.jpg", reason="other-files"):
        EmbeddedLog.open(tmp_path)
    with raises(NotAWorkspaceError, reason="file"):
        EmbeddedLog.open(tmp_path / "photo.jpg")
    with pytest.raises(WorkspaceMissingError):
        EmbeddedLog.open(tmp_path / "nowhere", create=False)
