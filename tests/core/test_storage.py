"""The seam to the disk, and its faulty twin, which behaves the same until it is told to fail."""

import errno
import os
import re
from pathlib import Path

import pytest

from headwater.core.errors import (
    DiskFullError,
    PermissionDeniedError,
    SyncFailedError,
    WorkspaceMissingError,
)
from headwater.core.storage import File, Storage
from headwater.testing import Crash, FaultyStorage
from tests.raising import raises


@pytest.fixture(params=[Storage, FaultyStorage])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made: Storage = request.param(tmp_path / "root")
    made.make_dirs(".")
    return made


def test_files_are_read_and_written_at_positions(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.write_at(3, b"def")
    file.write_at(0, b"abc")
    assert (file.read_at(1, 4), file.read_at(4, 100), file.size()) == (b"bcde", b"ef", 6)
    file.truncate(2)
    assert storage.read("a") == b"ab"
    file.close()


def test_a_small_file_is_replaced_in_one_step(storage: Storage) -> None:
    storage.write_atomic("a", b"one")
    storage.write_atomic("a", b"two, longer")
    storage.write_atomic("a", b"3")
    assert storage.read("a") == b"3"
    assert storage.list(".") == ["a"]


def test_names_come_and_go(storage: Storage) -> None:
    storage.make_dirs("x/y")
    storage.write_atomic("x/y/a", b"1")
    storage.rename("x/y/a", "x/b")
    assert storage.list("x") == ["b", "y"]
    storage.remove("x/b")
    storage.remove("x/b")
    storage.remove_dir("x", re.compile(".*"))
    assert not storage.exists("x")
    assert storage.list("x") == []


def test_a_folder_is_removed_without_what_others_have_put_there(storage: Storage) -> None:
    storage.make_dirs("x/y")
    storage.make_dirs("elsewhere")
    for name in ("x/1", "x/y/2", "x/y/note", "elsewhere/3"):
        storage.write_atomic(name, b"1")
    (storage.root / "x" / "4").symlink_to(storage.root / "elsewhere")
    storage.remove_dir("x", re.compile(r"\d|y/\d"))
    assert storage.list("x") == ["4", "y"]
    assert storage.list("x/y") == ["note"]
    assert storage.list("elsewhere") == ["3"]
    assert (storage.files("x"), storage.folders("x")) == ([], ["y"])


def test_a_write_that_fails_leaves_no_temporary_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write_atomic("a", b"1")

    def full(self: File) -> None:
        raise DiskFullError("no space")

    monkeypatch.setattr(File, "sync", full)
    with pytest.raises(DiskFullError):
        storage.write_atomic("a", b"2")
    assert storage.list(".") == ["a"]
    assert storage.read("a") == b"1"


def test_a_lock_keeps_others_out_until_it_is_given_back(storage: Storage) -> None:
    one, two = storage.open("lock", create=True), storage.open("lock")
    assert one.try_lock()
    assert not two.try_lock()
    one.close()
    assert two.try_lock()
    two.close()


def test_a_removed_file_knows_it(storage: Storage) -> None:
    file = storage.open("a", create=True)
    assert file.linked()
    storage.remove("a")
    assert not file.linked()
    file.close()


def test_what_is_missing_is_named(storage: Storage) -> None:
    with raises(WorkspaceMissingError, file="nothing"):
        storage.open("nothing")
    storage.write_atomic("a", b"")
    with pytest.raises(FileExistsError):
        storage.open("a", exclusive=True)


def test_errors_of_the_twin_come_out_as_those_of_a_disk(tmp_path: Path) -> None:
    twin = FaultyStorage(tmp_path)
    file = twin.open("a", create=True)
    full = twin.full(skip=1)
    file.write_at(0, b"fits")
    with pytest.raises(DiskFullError):
        file.write_at(4, b"does not")
    assert full.met == 1
    full.lift()
    file.write_at(4, b"!")
    assert twin.read("a") == b"fits!"
    twin.fail(errno.EIO, on="sync")
    with pytest.raises(SyncFailedError):
        file.sync()
    twin.fail(errno.EACCES, on="create", name="b")
    with pytest.raises(PermissionDeniedError):
        twin.open("b", create=True)
    assert not os.path.exists(twin.path("b"))
    file.close()


def test_a_dead_process_does_nothing_more(tmp_path: Path) -> None:
    twin = FaultyStorage(tmp_path, seed=3)
    file = twin.open("a", create=True)
    twin.crash_at(2, "torn")
    with pytest.raises(Crash):
        file.write_at(0, b"0123456789")
    assert (twin.calls[-1].number, twin.calls[-1].operation, twin.calls[-1].name) == (2, "write_at", "a")
    with pytest.raises(Crash):
        file.read_at(0, 1)
    with pytest.raises(Crash):
        twin.exists("a")
    left = twin.restart().read("a")
    assert 0 < len(left) < 10
    assert b"0123456789".startswith(left)
    file.close()


def lost(twin: FaultyStorage, to: Path, seeds: int = 60) -> set[tuple[tuple[str, bytes], ...]]:
    """All the states that a loss of power may leave."""
    found = set()
    for seed in range(seeds):
        image = twin.image(to / str(seed), lose_power=seed)
        found.add(tuple((name, image.read(name)) for name in image.list(".")))
    return found


def test_what_was_not_synced_may_be_lost_and_what_was_may_not(tmp_path: Path) -> None:
    twin = FaultyStorage(tmp_path / "root")
    twin.make_dirs(".")
    file = twin.open("a", create=True)
    file.write_at(0, b"safe")
    file.sync()
    assert lost(twin, tmp_path / "1") == {(), (("a", b"safe"),)}
    twin.sync_dir(".")
    assert lost(twin, tmp_path / "2") == {(("a", b"safe"),)}
    file.write_at(4, b" or not")
    assert lost(twin, tmp_path / "3") >= {(("a", b"safe"),), (("a", b"safe or not"),)}
    file.sync()
    assert lost(twin, tmp_path / "4") == {(("a", b"safe or not"),)}
    twin.rename("a", "b")
    assert lost(twin, tmp_path / "5") == {(("a", b"safe or not"),), (("b", b"safe or not"),)}
    twin.sync_dir(".")
    twin.remove("b")
    assert lost(twin, tmp_path / "6") == {(), (("b", b"safe or not"),)}
    file.close()


def test_a_failed_sync_drops_what_it_was_to_write(tmp_path: Path) -> None:
    twin = FaultyStorage(tmp_path / "root")
    twin.make_dirs(".")
    file = twin.open("a", create=True)
    twin.sync_dir(".")
    file.write_at(0, b"one")
    twin.fail(errno.EIO, on="sync")
    with pytest.raises(SyncFailedError):
        file.sync()
    file.sync()
    assert (("a", b""),) in lost(twin, tmp_path / "1"), "a later sync brought it back"
    file.close()


def test_the_same_seed_loses_the_same_and_the_machine_starts_anew(tmp_path: Path) -> None:
    def states(folder: Path) -> list[bytes]:
        twin = FaultyStorage(folder / "root")
        twin.make_dirs(".")
        file = twin.open("a", create=True)
        twin.sync_dir(".")
        file.write_at(0, bytes(range(256)) * 40)
        return [twin.image(folder / str(seed), lose_power=seed).read("a") for seed in range(9)]

    assert states(tmp_path / "x") == states(tmp_path / "y")
    twin = FaultyStorage(tmp_path / "z")
    twin.make_dirs(".")
    twin.write_atomic("a", b"1")
    after = twin.power_loss(1)
    assert after.boot_id() != twin.boot_id()
    assert after.read("a") == b"1"
    after.flip("a", 0, 1)
    assert after.read("a") == b"3"
