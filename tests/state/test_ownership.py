"""One engine at a time: a second is refused, a frozen one is left behind, and epochs only rise."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from headwater.core.clock import ManualClock
from headwater.core.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    EngineRunningError,
    FencedError,
)
from headwater.core.storage import Storage
from headwater.state.ownership import Ownership, claim, current_epoch, owner
from headwater.testing import FaultyStorage
from tests.raising import raises


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


def test_a_workspace_without_an_engine_has_no_owner(storage: Storage) -> None:
    assert owner(storage) is None
    assert current_epoch(storage) == 0
    assert storage.list(".") == []


def test_epochs_rise_by_one(storage: Storage, clock: ManualClock) -> None:
    for epoch in (1, 2, 3):
        with claim(storage, clock) as ownership:
            assert ownership.epoch == epoch == current_epoch(storage)
    assert storage.list("state") == ["engine-3.lock"]


def test_a_second_engine_is_told_which_one_runs(storage: Storage, clock: ManualClock) -> None:
    with claim(storage, clock):
        with raises(EngineRunningError, pid=os.getpid(), epoch=1) as caught:
            claim(storage, clock)
        assert caught.value.since.date().isoformat() == "2023-11-14"
        assert f"process {os.getpid()} on " in caught.value.message
    assert claim(storage, clock).epoch == 2


def test_others_see_who_runs(storage: Storage, clock: ManualClock) -> None:
    started = clock.now_us()
    ownership = claim(storage, clock)
    clock.advance("5 seconds")
    ownership.beat()
    seen = owner(storage)
    assert seen is not None
    assert (seen.epoch, seen.pid, seen.started_at, seen.heartbeat) == (
        1,
        os.getpid(),
        started,
        started + 5_000_000,
    )
    ownership.release()
    assert owner(storage) is None
    ownership.release()
    with pytest.raises(ClosedError):
        ownership.check()


def test_a_heartbeat_is_written_at_most_once_a_second(tmp_path: Path, clock: ManualClock) -> None:
    storage = FaultyStorage(tmp_path)
    ownership = claim(storage, clock)
    clock.advance("2 seconds")
    ownership.beat()
    calls = len(storage.calls)
    for _ in range(9):
        clock.advance("100 ms")
        ownership.beat()
    assert len(storage.calls) == calls
    clock.advance("100 ms")
    ownership.beat()
    assert len(storage.calls) == calls + 1


def test_a_frozen_engine_is_left_behind(storage: Storage, clock: ManualClock) -> None:
    frozen = claim(storage, clock)
    clock.advance("9 seconds")
    with pytest.raises(EngineRunningError):
        claim(storage, clock)
    clock.advance("2 seconds")
    newer = claim(storage, clock)
    assert newer.epoch == 2
    newer.check()
    for sign_of_life in (frozen.check, frozen.beat):
        with raises(FencedError, epoch=1, newest=2, reason="newer-engine"):
            sign_of_life()
    frozen.release()
    with pytest.raises(EngineRunningError):
        claim(storage, clock)
    newer.check()


def test_an_engine_that_beats_is_not_left_behind(storage: Storage, clock: ManualClock) -> None:
    ownership = claim(storage, clock)
    for _ in range(5):
        clock.advance("8 seconds")
        ownership.beat()
        with pytest.raises(EngineRunningError):
            claim(storage, clock)


def test_of_many_that_claim_at_once_one_succeeds(storage: Storage, clock: ManualClock) -> None:
    for frozen in (False, True):
        before = claim(storage, clock)
        if frozen:
            clock.advance("1 minute")
        else:
            before.release()
        won: list[Ownership] = []
        refused: list[EngineRunningError] = []

        def try_it(won: list[Ownership] = won, refused: list[EngineRunningError] = refused) -> None:
            try:
                won.append(claim(Storage(storage.root), clock))
            except EngineRunningError as error:
                refused.append(error)

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(refused)) == (1, 7)
        assert won[0].epoch == before.epoch + 1
        won[0].release()
        before.release()


def test_a_claim_that_failed_lets_go(tmp_path: Path, clock: ManualClock) -> None:
    storage = FaultyStorage(tmp_path)
    storage.full(times=1)
    with pytest.raises(DiskFullError):
        claim(storage, clock)
    assert claim(storage, clock).epoch == 1


def test_a_damaged_file_of_a_running_engine_is_told(tmp_path: Path, clock: ManualClock) -> None:
    storage = FaultyStorage(tmp_path)
    running = claim(storage, clock)
    storage.flip("state/engine-1.lock", 0)
    with raises(CorruptionError, file="state/engine-1.lock", offset=0):
        claim(storage, clock)
    running.release()
    assert claim(storage, clock).epoch == 2


def test_a_claim_that_freezes_half_way_keeps_nobody_out(tmp_path: Path, clock: ManualClock) -> None:
    storage = FaultyStorage(tmp_path)
    link = storage.link
    rivals: list[Ownership] = []

    def freeze(old: str, new: str) -> None:
        if not rivals:
            rivals.append(claim(Storage(tmp_path), clock))
        link(old, new)

    storage.link = freeze  # type: ignore[method-assign]
    with pytest.raises(EngineRunningError):
        claim(storage, clock)
    rivals[0].check()
    assert storage.list("state") == ["engine-1.lock"]


def test_an_engine_that_was_killed_is_followed_at_once(storage: Storage, clock: ManualClock) -> None:
    script = """
        import sys
        from headwater.core.clock import SystemClock
        from headwater.state.ownership import claim
        from headwater.core.storage import Storage
        ownership = claim(Storage(sys.argv[1]), SystemClock())
        print(ownership.epoch, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(storage.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        seen = owner(storage)
        assert seen is not None
        assert seen.pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert owner(storage) is None
    assert claim(storage, clock).epoch == 2
