"""A writer is frozen (SIGSTOP) at any point of its append: others go on after the timeout, and when it wakes up its
append is either found to count or done again. Nothing is lost, nothing is there twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_frozen_flusher_is_waited_for_once_and_not_at_every_append(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    log.create_topic(ORDERS)
    holder = EmbeddedLog.open(tmp_path / "ws", settings=PATIENCE)
    assert holder.core._flush_file.try_lock()
    waits = []
    for n in range(6):
        before = log.core.clock_ms()
        append(log, {"orders": numbers(10 * n, 1)})
        waits.append(log.core.clock_ms() - before >= PATIENCE.lock_timeout_ms)
    assert waits == [True, False, False, False, False, False]
    holder.core._flush_file.unlock()
    append(log, {"orders": numbers(60, 1)})
    assert log.core._stuck == set()
    assert sorted(orders(log).values()) == [0, 10, 20, 30, 40, 50, 60]
    holder.close()
    log.close()
