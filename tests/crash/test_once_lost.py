"""Ways in which the log once lost or doubled an acknowledged append, each as short as it can be told."""

import dataclasses
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.catalog.conform import conform
from headwater.core.clock import ManualClock
from headwater.core.errors import DiskFullError, SyncFailedError
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Append, Producer
from headwater.testing import Crash, FaultyStorage
from tests.crash.script import CLICKS, LOOSE, ORDERS, SETTINGS, append, clicks, numbers, problems
from tests.raising import raises

NO_CHECKPOINTS = dataclasses.replace(SETTINGS, checkpoint_bytes=1 << 20)


def open_log(storage: FaultyStorage) -> EmbeddedLog:
    return EmbeddedLog.open(storage.root, settings=NO_CHECKPOINTS, clock=ManualClock(), storage=storage)


def read(log: EmbeddedLog, topic: str) -> list[int]:
    return [r["n"] for b in log.read(topic, 0, 0, log.partitions(topic)[0].end) for r in b.to_pylist()]


@pytest.fixture
def storage(tmp_path: Path) -> FaultyStorage:
    storage = FaultyStorage(tmp_path / "ws")
    log = open_log(storage)
    for definition in (ORDERS, LOOSE, CLICKS):
        log.create_topic(definition)
    append(log, {"orders": numbers(0, 1)})
    log.close()
    return storage


def test_a_process_slept_through_several_checkpoints(storage: FaultyStorage) -> None:
    """Its journal was removed meanwhile; it locked and wrote the file without a name, and was told that all is well."""
    sleeper, other = open_log(storage), open_log(storage)
    rows = sleeper.topics()["orders"]
    for n in range(1, 5):
        append(other, {"orders": numbers(n, 1)})
        with other.core.exclusive():
            other.core.checkpoint()
    assert not os.path.exists(storage.path("journal/00000001.log"))
    sleeper.append(Append({"orders": [conform(numbers(5, 1), rows)]}))
    assert read(other, "orders") == read(sleeper, "orders") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(8))
def test_a_retry_is_answered_and_the_power_is_lost(storage: FaultyStorage, seed: int) -> None:
    """The first attempt had died before its sync; the retry finds it in the journal, and is not answered before that."""
    log = open_log(storage)
    before = len(storage.calls)
    append(log, {"orders": numbers(1, 1)}, producer=Producer("loader", 1))
    written = next(
        c.number for c in storage.calls[before:] if c.name.startswith("journal") and c.operation == "write_at"
    )
    log.close()
    dying = storage.restart()
    victim = open_log(dying)
    dying.crash_at(len(dying.calls) + written - before, "after")
    with pytest.raises(Crash):
        append(victim, {"orders": numbers(2, 1)}, producer=Producer("loader", 2))
    # the next process knows of everything written, and that nothing of it need be on the disk yet
    dying._dead, dying._stop = False, None
    survivor = open_log(dying)
    append(survivor, {"orders": numbers(2, 1)}, producer=Producer("loader", 2))
    after = open_log(dying.image(storage.root.parent / "after", lose_power=seed))
    assert read(after, "orders") == [0, 1, 2]


@pytest.mark.parametrize("seed", range(12))
def test_a_safe_append_after_a_loose_one(storage: FaultyStorage, seed: int) -> None:
    """Frames of the topic that is left to the operating system were lost, and the journal was cut there: with all
    that was acknowledged, as safe from a loss of power, after it."""
    log = open_log(storage)
    append(log, {"loose": numbers(0, 400)})
    append(log, {"orders": numbers(1, 1)})
    after = open_log(storage.image(storage.root.parent / "after", lose_power=seed))
    assert read(after, "orders") == [0, 1]
    assert problems(after) == []


@pytest.mark.parametrize("seed", range(8))
def test_a_frame_decays_and_the_power_is_lost(storage: FaultyStorage, seed: int) -> None:
    """One damaged frame of an acknowledged append, and a head that never reached the disk: the journal was cut there."""
    log = open_log(storage)
    append(log, {"clicks": clicks(0, 300)})
    append(log, {"orders": numbers(1, 1)})
    append(log, {"orders": numbers(2, 1)})
    image = storage.image(storage.root.parent / "after", lose_power=seed)
    segment = sorted(p for p in image.root.glob("topics/clicks*/0/*.arrow") if p.stat().st_size > 1_000)[0]
    image.flip(str(segment.relative_to(image.root)), -20)
    (image.root / "head").write_bytes(b"")
    after = open_log(image)
    assert read(after, "orders") == [0, 1, 2]
    assert [f.file for f in problems(after)] == [str(segment.relative_to(image.root))]


def test_a_sync_that_says_there_is_no_space(storage: FaultyStorage) -> None:
    """It was taken for a write that can be done again; but a sync drops what it could not write."""
    log = open_log(storage)
    storage.fail(errno.ENOSPC, on="sync", name="journal/*")
    with raises(SyncFailedError, outcome="unknown") as caught:
        append(log, {"orders": numbers(1, 1)})
    assert isinstance(caught.value.__cause__, DiskFullError)
    append(log, {"orders": numbers(2, 1)})
    for seed in range(6):
        after = open_log(storage.image(storage.root.parent / f"after-{seed}", lose_power=seed))
        assert read(after, "orders") == read(log, "orders") == [0, 2]


def test_several_processes_make_the_workspace_at_once(tmp_path: Path) -> None:
    """They wrote one temporary file together."""
    for turn in range(5):
        with ThreadPoolExecutor(4) as pool:
            opened = [
                pool.submit(EmbeddedLog.open, tmp_path / str(turn), settings=dataclasses.replace(SETTINGS))
                for _ in range(4)
            ]
            for each in opened:
                each.result().close()


def test_threads_append_while_others_checkpoint(tmp_path: Path) -> None:
    """One thread's checkpoint closes files that another is about to sync; that is no failed sync."""
    busy = dataclasses.replace(SETTINGS, checkpoint_bytes=1_500, durability="group")
    log = EmbeddedLog.open(tmp_path / "ws", settings=busy)
    log.create_topic(ORDERS)

    def work(number: int) -> None:
        for n in range(40):
            append(log, {"orders": numbers(1_000 * number + n, 1 + 99 * (n % 2))})

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()
    assert log.partitions("orders")[0].rows == 4 * 20 * 101
    assert problems(log) == []
    log.close()
