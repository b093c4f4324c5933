"""Files that an error leaves behind open: nobody closes them, and their descriptors are given back all the same."""

import os
from pathlib import Path

import pytest

from headwater.core.storage import Storage


def fails_with_a_file_open(storage: Storage) -> None:
    file = storage.open("f", create=True)
    file.write_at(0, b"a")
    raise RuntimeError("on purpose")


def test_a_file_that_nobody_holds_is_closed_and_gives_its_lock_back(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.open("f", create=True).close()
    file = storage.open("f")
    assert file.try_lock()
    del file
    other = storage.open("f")
    assert other.try_lock()
    other.close()


@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="shows the open files of a process where /proc does"
)
def test_errors_leave_no_descriptor_behind(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with pytest.raises(RuntimeError):
            fails_with_a_file_open(storage)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
