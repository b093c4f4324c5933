"""What the state asks of the disk beyond what the log does: a second name for a file, and a look at a lock."""

import errno
from pathlib import Path

import pytest

from headwater.core.errors import StorageError, WorkspaceMissingError
from headwater.core.storage import Storage
from headwater.testing import Crash, FaultyStorage


@pytest.fixture(params=[Storage, FaultyStorage])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made: Storage = request.param(tmp_path)
    return made


def test_a_second_name_is_given_once(storage: Storage) -> None:
    storage.write_atomic("a", b"one")
    storage.write_atomic("b", b"two")
    storage.link("a", "c")
    with pytest.raises(FileExistsError):
        storage.link("b", "c")
    storage.remove("a")
    assert (storage.list("."), storage.read("c")) == (["b", "c"], b"one")
    with pytest.raises(WorkspaceMissingError):
        storage.link("a", "d")


def test_looking_at_a_lock_takes_nothing(storage: Storage) -> None:
    holder, one, two = (storage.open("lock", create=True) for _ in range(3))
    assert not one.locked()
    assert holder.try_lock()
    assert one.locked()
    assert two.locked()
    holder.close()
    assert not one.locked()
    assert two.try_lock()
    one.close()
    two.close()


def test_a_second_name_lasts_once_its_folder_is_synced(tmp_path: Path) -> None:
    found = set()
    for seed in range(20):
        disk = FaultyStorage(tmp_path / str(seed))
        disk.make_dirs(".")
        disk.write_atomic("a", b"one")
        disk.link("a", "b")
        found.add(tuple(disk.image(tmp_path / f"{seed}-lost", lose_power=seed).list(".")))
        disk.sync_dir(".")
        after = disk.power_loss(seed)
        assert after.list(".") == ["a", "b"]
        assert after.read("b") == b"one"
    assert found == {("a",), ("a", "b")}


def test_a_link_can_be_made_to_fail(tmp_path: Path) -> None:
    disk = FaultyStorage(tmp_path)
    disk.write_atomic("a", b"one")
    disk.fail(errno.EIO, on="link")
    with pytest.raises(StorageError):
        disk.link("a", "b")
    disk.crash_at(len(disk.calls) + 1)
    with pytest.raises(Crash):
        disk.link("a", "b")
    assert (disk.calls[-1].operation, disk.calls[-1].name) == ("link", "b")
    assert disk.restart().list(".") == ["a"]
