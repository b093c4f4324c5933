"""The script of a workspace's life, stopped at every single call that changes the disk.

What the disk has at that moment is copied aside and opened anew, as after the death of the process and as after a loss
of power (by several seeds); half-done writes too. There must be exactly what was acknowledged, or that and all of the
step under way; the log must go on from there.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.core.clock import ManualClock
from headwater.log.embedded import EmbeddedLog
from headwater.testing import Crash, FaultyStorage
from headwater.testing.faults import StorageCall
from tests.crash.script import (
    SCRIPT,
    SETTINGS,
    TIME_SCRIPT,
    Step,
    agrees,
    append,
    contents,
    numbers,
    problems,
    told,
)

LONG = os.environ.get("HEADWATER_LONG") == "1"
POWER_SEEDS = range(40 if LONG else 1)


class Life:
    """The script on a faulty disk, with the truth after each step known from an undisturbed run."""

    def __init__(self, folder: Path, script: list[Step]) -> None:
        self.folder = folder
        self.script = script
        self.truths: list[dict[str, Any]] = [{"cursors": {}}]
        self.now = [ManualClock().now_us()]
        self.step = 0
        clock = ManualClock()
        log = EmbeddedLog.open(
            folder / "truth", settings=SETTINGS, clock=clock, storage=FaultyStorage(folder / "truth")
        )
        for step in script:
            step.do(log, clock)
            self.truths.append(contents(log))
            self.now.append(clock.now_us())
        assert problems(log) == []
        log.close()

    def run(self, storage: FaultyStorage) -> EmbeddedLog:
        clock = ManualClock()
        self.step = 0
        log = EmbeddedLog.open(storage.root, settings=SETTINGS, clock=clock, storage=storage)
        for number, step in enumerate(self.script):
            self.step = number
            step.do(log, clock)
        self.step = len(self.script)
        return log

    def judge(self, storage: FaultyStorage, what: str, power: bool) -> None:
        """Open what the crash left and hold it against the truth."""
        at = min(self.step, len(self.script) - 1)
        try:
            self._judge(storage, at, power)
        except Exception as error:
            raise AssertionError(told(self.script, at, what)) from error

    def _judge(self, storage: FaultyStorage, at: int, power: bool) -> None:
        clock, upkeep = ManualClock(self.now[at]), self.script[at].upkeep
        log = EmbeddedLog.open(storage.root, settings=SETTINGS, clock=clock, storage=storage)
        seen = contents(log)
        first = at
        while power and first > 0 and self.script[first - 1].soft:
            first -= 1
        fits = [
            n
            for n in range(first, at + 1)
            if agrees(seen, self.truths[n], self.truths[n + 1], self.script[n].upkeep)
        ]
        assert fits, (log.findings, _difference(seen, self.truths[at], self.truths[at + 1]))
        assert problems(log) == [], log.findings
        log.abandon()
        again = EmbeddedLog.open(storage.root, settings=SETTINGS, clock=clock, storage=storage)
        assert contents(again) == seen, "a second opening gives something else"
        if (
            self.script[at].repeatable
            and (storage.seed % 8 == 0 or not upkeep)
            and seen in (self.truths[at], self.truths[at + 1])
        ):
            self.script[at].do(again, clock)
            assert contents(again) == self.truths[at + 1], "the step, done again, does not complete it"
        self._goes_on(again)
        again.close()

    def _goes_on(self, log: EmbeddedLog) -> None:
        for name in ("orders", "loose"):
            if name in log.topics():
                before = log.partitions(name)[0].end
                append(log, {name: numbers(10_000, 3)})
                rows = [r["n"] for b in log.read(name, 0, before, before + 3) for r in b.to_pylist()]
                assert rows == [10_000, 10_001, 10_002], "appends do not go on"
        assert problems(log) == []


def _difference(seen: Any, before: Any, after: Any) -> str:
    lines = []
    for name in {*seen, *before, *after}:
        got, was, will = seen.get(name), before.get(name), after.get(name)
        if got not in (was, will):
            lines.append(f"{name}: found {_short(got)}, before {_short(was)}, after {_short(will)}")
    return "\n".join(lines) or "parts of the step are there and parts are not"


def _short(value: Any) -> str:
    if isinstance(value, dict) and "rows" in value:
        return str({p: (value["ends"][p], [r["_offset"] for r in rows]) for p, rows in value["rows"].items()})
    return str(value)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """In memory where there is such a place: the twin keeps account of what is durable, no disk is needed."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path))
    yield Life(folder, SCRIPT)
    shutil.rmtree(folder)


def _at_every_call(life: Life, power: int | None) -> None:
    """Where a sealed file is written, which nobody refers to yet, a look at every sixteenth call will do."""
    storage = FaultyStorage(life.folder / "run")
    image = life.folder / "image"

    def look(call: StorageCall) -> None:
        if not LONG and call.name.endswith(".parquet") and call.operation == "write_at" and call.number % 16:
            return
        if not LONG and power is not None and (call.number + power) % 2:
            return
        storage.seed = call.number
        kinds = [False, True] if call.operation == "write_at" and len(call.data) > 1 else [False]
        for torn in kinds:
            what = f"{'torn in' if torn else 'stopped before'} {call}" + (
                f", power lost by seed {power}" if power is not None else ""
            )
            seed = None if power is None else power * 100_000 + call.number
            life.judge(storage.image(image, lose_power=seed, torn=torn), what, power is not None)
            shutil.rmtree(image)

    storage.on_call = look
    log = life.run(storage)
    storage.on_call = None
    life.judge(storage.image(image), "after the last call", False)
    log.close()


def test_the_process_dies_at_every_call(life: Life) -> None:
    _at_every_call(life, None)


@pytest.mark.parametrize("seed", POWER_SEEDS)
def test_the_power_is_lost_at_every_call(life: Life, seed: int) -> None:
    _at_every_call(life, seed)


@pytest.mark.parametrize("power", [None, 0])
def test_what_is_said_of_time_survives_at_every_call(tmp_path: Path, power: int | None) -> None:
    _at_every_call(Life(tmp_path, TIME_SCRIPT), power)


@pytest.mark.parametrize("when", ["before", "torn", "after"])
def test_a_crash_stops_the_program_where_it_is(life: Life, tmp_path: Path, when: Any) -> None:
    """The twin's own way of dying: the exception passes through everything, and nothing is written afterwards."""
    for number in range(30, 200, 41):
        storage = FaultyStorage(tmp_path / f"dies-{number}")
        storage.crash_at(number, when)
        with pytest.raises(Crash):
            life.run(storage)
        assert len(storage.calls) == number
        life.judge(storage.restart(), f"died {when} call {number}", False)
