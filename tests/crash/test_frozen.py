"""A writer is frozen (SIGSTOP) at any point of its append: others go on after the timeout, and when it wakes up its
append is either found to count or done again. Nothing is lost, nothing is there twice."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headwater.core.storage import Storage
from headwater.log.embedded import EmbeddedLog
from tests.crash.script import ORDERS, append, numbers, problems
from tests.crash.workers import PATIENCE

ROOT = Path(__file__).parents[2]
PLACES = [
    "with the lock",
    "frames written",
    "record written",
    "record half written",
    "before the sync",
    "before publishing",
    "between publishing and waking",
]


def orders(log: EmbeddedLog) -> dict[int, int]:
    end = log.partitions("orders")[0].end
    return {r["_offset"]: r["n"] for b in log.read("orders", 0, 0, end) for r in b.to_pylist()}


@pytest.mark.parametrize("where", PLACES)
def test_a_writer_is_frozen(tmp_path: Path, where: str) -> None:
    log = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    log.create_topic(ORDERS)
    append(log, {"orders": numbers(0, 3)})
    command = [sys.executable, "-m", "tests.crash.workers", "frozen", str(tmp_path / "ws"), where]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), "it did not stop"
            mine = [append(log, {"orders": numbers(10 * n, 2)}).positions["orders"][0] for n in range(1, 4)]
            other = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
            mine.append(append(other, {"orders": numbers(40, 2)}).positions["orders"][0])
            asleep = orders(other)
            os.kill(child.pid, signal.SIGCONT)
            assert child.stdout is not None
            theirs = [tuple(json.loads(line)) for line in child.stdout]
            child.wait(30)
        finally:
            if child.poll() is None:
                child.kill()
    found = orders(log)
    assert found == orders(other) == orders(EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE))
    assert {o: n for o, n in found.items() if o in asleep} == asleep, "what was read has changed"
    assert len(theirs) == 2, "the frozen writer did not finish"
    assert sorted(found.values()) == sorted(
        [0, 1, 2, 10, 11, 20, 21, 30, 31, 40, 41, 1_000, 1_001, 1_002, 1_003, 1_004, 2_000, 2_001]
    )
    assert [found[o] for o in range(*theirs[0])] == [1_000, 1_001, 1_002, 1_003, 1_004], (
        "its receipt is wrong"
    )
    assert [found[o] for o in range(*theirs[1])] == [2_000, 2_001]
    for number, receipt in enumerate(mine, 1):
        assert [found[o] for o in range(*receipt)] == [10 * number, 10 * number + 1]
    assert sorted(found) == list(range(18)), "offsets have gaps"
    assert problems(log) == problems(other) == []


def _stopped(child: subprocess.Popen[str]) -> bool:
    return os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])


@pytest.mark.parametrize("checkpoints", [0, 3], ids=["in the same journal", "three journals later"])
def test_a_publisher_that_resumes_hides_nothing_that_was_acknowledged_meanwhile(
    tmp_path: Path, checkpoints: int
) -> None:
    log = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    log.create_topic(ORDERS)
    append(log, {"orders": numbers(0, 3)})
    reader = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    command = [sys.executable, "-m", "tests.crash.workers", "publisher", str(tmp_path / "ws")]
    with subprocess.Popen(command, cwd=ROOT, text=True) as child:
        try:
            assert _stopped(child), "it did not stop before it published"
            append(log, {"orders": numbers(10, 2)})
            for n in range(checkpoints):
                with log.core.exclusive():
                    log.core.checkpoint()
                append(log, {"orders": numbers(20 + n, 1)})
            acknowledged = orders(log)
            assert len(acknowledged) == 10 + checkpoints
            os.kill(child.pid, signal.SIGCONT)
            assert _stopped(child), "it did not stop after it had published"
            assert orders(reader) == acknowledged, "what was acknowledged is invisible"
            assert orders(log) == acknowledged
            opened = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
            assert orders(opened) == acknowledged
            assert log.wait("orders", log.ends(["orders"])["orders"], 0) is False
            append(opened, {"orders": numbers(30, 1)})
            assert sorted(orders(log)) == list(range(11 + checkpoints))
        finally:
            child.kill()
    assert problems(log) == problems(opened) == []
    for one in (reader, opened, log):
        one.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("below", ["topics/orders-1/0", "commits"])
def test_one_that_clears_up_removes_nothing_that_others_wrote_while_it_did_not_move(
    tmp_path: Path, below: str, when: str
) -> None:
    log = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    log.create_topic(ORDERS)
    receipts = [append(log, {"orders": numbers(0, 3)})]
    garbage = tmp_path / "ws" / "topics" / "orders-1" / "0" / f"{3:020d}-1-9.arrow"
    garbage.write_bytes(b"of a writer that died")
    command = [sys.executable, "-m", "tests.crash.workers", "sweeper", str(tmp_path / "ws"), below, when]
    with subprocess.Popen(command, cwd=ROOT, text=True) as child:
        try:
            assert _stopped(child), "it did not stop"
            for n in range(1, 4):
                receipts.append(append(log, {"orders": numbers(10 * n, 2)}))
                if below == "commits":
                    with log.core.exclusive():
                        log.core.checkpoint()
            os.kill(child.pid, signal.SIGCONT)
            assert child.wait(30) == 0
        finally:
            if child.poll() is None:
                child.kill()
    opened = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    for one in (log, opened):
        assert sorted(orders(one).values()) == [0, 1, 2, 10, 11, 20, 21, 30, 31]
        assert problems(one) == []
        for receipt in receipts:
            assert receipt.commit is not None
            assert one.commit_id(receipt.commit.number) == receipt.commit.id
    opened.maintain(force=True)
    assert not garbage.exists()
    opened.close()
    log.close()


def test_a_commit_that_is_published_beside_a_frozen_publisher_wakes_those_who_wait(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    log.create_topic(ORDERS)
    other = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    frozen = Storage(tmp_path / "ws").open("head")
    assert frozen.try_lock()
    before = other.sequence()
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(other.wait_commit(before, 1_500)))
    waiter.start()
    append(log, {"orders": numbers(0, 1)})
    waiter.join(30)
    assert woken == [True]
    frozen.close()
    log.close()
    other.close()


def test_a_frozen_flusher_is_waited_for_once_and_not_at_every_append(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    log.create_topic(ORDERS)
    holder = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    assert holder.core.publisher.flush_file.try_lock()
    waits = []
    for n in range(6):
        before = log.core.journal.clock_ms()
        append(log, {"orders": numbers(10 * n, 1)})
        waits.append(log.core.journal.clock_ms() - before >= PATIENCE.lock_timeout_ms)
    assert waits == [True, False, False, False, False, False]
    holder.core.publisher.flush_file.unlock()
    append(log, {"orders": numbers(60, 1)})
    assert log.core.publisher.stuck == set()
    assert sorted(orders(log).values()) == [0, 10, 20, 30, 40, 50, 60]
    holder.close()
    log.close()
