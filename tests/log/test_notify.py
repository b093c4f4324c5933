"""Waiting for a file to be written, without looking at it."""

import os
import resource
import threading
import time
from pathlib import Path

import pytest

from headwater.log.embedded.journal import notify
from headwater.log.embedded.journal.notify import Notifier, mechanism


def test_a_write_wakes_who_waits(tmp_path: Path) -> None:
    path = tmp_path / "wake"
    path.write_bytes(b"0")
    notifier = Notifier()
    before = notifier.count(str(path))
    writer = threading.Timer(0.05, lambda: path.write_bytes(b"1"))
    writer.start()
    began = time.monotonic()
    notifier.wait(str(path), before, 10_000)
    assert time.monotonic() - began < 5
    assert notifier.count(str(path)) != before or mechanism() == "polling"
    writer.join()
    notifier.close()


def test_a_write_between_looking_and_waiting_is_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "wake"
    path.write_bytes(b"0")
    notifier = Notifier()
    before = notifier.count(str(path))
    path.write_bytes(b"1")
    began = time.monotonic()
    notifier.wait(str(path), before, 10_000)
    assert time.monotonic() - began < 5
    notifier.close()


def test_the_timeout_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "wake"
    path.write_bytes(b"0")
    notifier = Notifier()
    began = time.monotonic()
    notifier.wait(str(path), notifier.count(str(path)), 30)
    assert 0.02 < time.monotonic() - began < 5
    notifier.close()


def test_closing_wakes_everyone(tmp_path: Path) -> None:
    path = tmp_path / "wake"
    path.write_bytes(b"0")
    notifier = Notifier()
    count = notifier.count(str(path))
    waiting = threading.Thread(target=notifier.wait, args=(str(path), count, 30_000))
    waiting.start()
    notifier.close()
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_file_that_is_not_there_is_looked_at_now_and_then(tmp_path: Path) -> None:
    notifier = Notifier()
    count = notifier.count(str(tmp_path / "missing"))
    began = time.monotonic()
    notifier.wait(str(tmp_path / "missing"), count, 60_000)
    assert time.monotonic() - began < 5
    notifier.close()


def test_a_process_with_thousands_of_open_files_waits_too(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_000:
        pytest.fail("this machine lets a process open too few files to try")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        notifier = Notifier()
        file = tmp_path / "wake"
        file.write_bytes(b"")
        count = notifier.count(str(file))
        file.write_bytes(b"x")
        notifier.wait(str(file), count, 5_000)
        assert notifier.count(str(file)) > count
        notifier.close()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_platform_without_inotify_has_kqueue_or_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mechanism("linux") == "inotify"
    monkeypatch.setattr(notify.select, "kqueue", object, raising=False)
    assert mechanism("darwin") == "kqueue"
    monkeypatch.delattr(notify.select, "kqueue")
    assert mechanism("win32") == "polling"


def polls(notifier: Notifier, path: Path) -> bool:
    """Whether a wait ends soon although nothing is written."""
    began = time.monotonic()
    notifier.wait(str(path), notifier.count(str(path)), 60_000)
    return time.monotonic() - began < 5


@pytest.mark.parametrize("error", [OSError("no instance is left"), ImportError("inotify_simple")])
def test_without_a_watcher_waits_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Missing:
        def __init__(self) -> None:
            raise error

    monkeypatch.setattr(notify, "_Inotify", Missing)
    monkeypatch.setattr(notify, "_Kqueue", Missing)
    notifier = Notifier()
    assert polls(notifier, tmp_path)
    notifier.close()


def test_a_wait_ends_when_the_watcher_fails_and_later_ones_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = threading.Event()

    class Failing:
        def add(self, path: str) -> int:
            return 1

        def drain(self) -> list[int]:
            fails.wait()
            raise OSError("the watcher is broken")

        def stop(self) -> None: ...

    monkeypatch.setattr(notify, "_Inotify", Failing)
    monkeypatch.setattr(notify, "_Kqueue", Failing)
    notifier = Notifier()
    count = notifier.count(str(tmp_path))
    waiting = threading.Thread(target=notifier.wait, args=(str(tmp_path), count, 60_000))
    waiting.start()
    fails.set()
    waiting.join(5)
    assert not waiting.is_alive()
    assert polls(notifier, tmp_path)
    notifier.close()


def test_a_forked_process_watches_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy of the notifier has no thread: counting starts again, and writes are seen."""
    path = tmp_path / "wake"
    path.write_bytes(b"0")
    notifier, parent = Notifier(), os.getpid()
    before = notifier.count(str(path))
    path.write_bytes(b"1")
    notifier.wait(str(path), before, 10_000)
    notifier.close()
    monkeypatch.setattr(notify.os, "getpid", lambda: parent + 1)
    assert notifier.count(str(path)) == 0
    path.write_bytes(b"2")
    notifier.wait(str(path), 0, 10_000)
    assert notifier.count(str(path)) > 0 or mechanism() == "polling"
    notifier.close()
