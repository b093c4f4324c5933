"""The life of a store, stopped at every single call that changes the disk.

What the disk has at that moment is copied aside and opened anew, as after the death of the process and as after a loss
of power, half-done writes too. There must be the tick before or the tick under way, whole; the next engine goes on from
there, and what the crash left is collected.
"""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from headwater.core.clock import ManualClock
from headwater.core.errors import HeadwaterError, TickNotKeptError
from headwater.state.manifest import Manifest
from headwater.state.ownership import claim
from headwater.state.view_reader import view_changes, view_contents
from headwater.testing import Crash, FaultyStorage
from headwater.testing.faults import StorageCall
from tests.state.ticks import CONTENTS, VIEW, Engine, run_of

LONG = os.environ.get("HEADWATER_LONG") == "1"
POWER_SEEDS = range(40 if LONG else 4)
KEPT = 2


def merged(engine: Engine) -> None:
    """A tick that replaces all runs by one, so that there is something to collect."""
    manifest = engine.prepare({100: 1})
    before = engine.store.latest()
    assert before is not None
    rows = dict.fromkeys(held(engine, before), 1)
    writer = engine.store.begin(manifest.tick, engine.epoch)
    ref = writer.add(run_of(rows | {100: 1}), ticks=(1, manifest.tick))
    engine.store.commit(dataclasses.replace(manifest, arrangements={CONTENTS: (ref,)}))


def held(engine: Engine, manifest: Manifest) -> list[int]:
    return sorted(view_contents(engine.store, manifest, VIEW).column("n").to_pylist())


def live(storage: FaultyStorage, clock: ManualClock, told: list[int]) -> None:
    """Ticks, a merge and two collections; `told` has the ticks whose commit has returned."""
    engine = Engine(storage, clock)
    with claim(storage, clock) as ownership:
        engine.epoch = ownership.epoch
        for n in range(1, 7):
            clock.advance("2 seconds")
            ownership.beat()
            if n == 4:
                merged(engine)
            else:
                engine.tick({n: 1})
            told.append(n)
            if n in (3, 5):
                engine.store.collect(KEPT)


TRUTH = {
    0: [],
    1: [1],
    2: [1, 2],
    3: [1, 2, 3],
    4: [1, 2, 3, 100],
    5: [1, 2, 3, 5, 100],
    6: [1, 2, 3, 5, 6, 100],
}


def judge(storage: FaultyStorage, told: int, what: str) -> None:
    try:
        _judge(storage, told)
    except (AssertionError, HeadwaterError) as error:
        raise AssertionError(what) from error


def _judge(storage: FaultyStorage, told: int) -> None:
    clock = ManualClock(1_800_000_000_000_000)
    engine = Engine(storage, clock)
    latest = engine.store.latest()
    tick = latest.tick if latest else 0
    assert tick in (told, told + 1), "neither the tick before nor the one under way"
    for kept in engine.store.ticks():
        assert held(engine, engine.store.manifest(kept)) == TRUTH[kept], f"tick {kept} is not whole"
    for old in range(1, tick + 1):
        cut = engine.store.cut_of(old)
        assert (cut.positions["clicks"], cut.sequence) == ({0: old, 1: 2 * old}, 10 * old)
        assert engine.store.tick_at(cut.committed_at) == old
    with claim(storage, clock) as ownership:
        engine.epoch = ownership.epoch
        engine.tick({1000: 1})
        engine.tick({1001: 1})
        engine.store.collect(1)
    latest = engine.store.latest()
    assert latest is not None
    assert held(engine, latest) == sorted([*TRUTH[tick], 1000, 1001])
    assert set(storage.list("state/runs")) == latest.files, "garbage is left"
    assert storage.list("state/manifests") == [f"{tick + 2:012d}.json"], "garbage is left"
    assert [engine.store.cut_of(n).tick for n in range(1, tick + 3)] == list(range(1, tick + 3))
    with pytest.raises(TickNotKeptError):
        view_changes(engine.store, VIEW, tick)


def at_every_call(tmp_path: Path, power: int | None) -> None:
    storage, told = FaultyStorage(tmp_path / "run"), list[int]()
    image = tmp_path / "image"

    def look(call: StorageCall) -> None:
        kinds = [False, True] if call.operation == "write_at" and len(call.data) > 1 else [False]
        for torn in kinds:
            seed = None if power is None else power * 100_000 + call.number
            what = f"{'torn in' if torn else 'stopped before'} {call}, power {seed}"
            judge(storage.image(image, lose_power=seed, torn=torn), len(told), what)
            shutil.rmtree(image)

    storage.on_call = look
    live(storage, ManualClock(), told)
    storage.on_call = None
    assert told == [1, 2, 3, 4, 5, 6]
    judge(storage.image(image), 6, "after the last call")


def test_a_process_that_dies_at_any_call_leaves_whole_ticks(tmp_path: Path) -> None:
    at_every_call(tmp_path, None)


@pytest.mark.parametrize("seed", POWER_SEEDS)
def test_a_loss_of_power_at_any_call_leaves_whole_ticks(tmp_path: Path, seed: int) -> None:
    at_every_call(tmp_path, seed)


def test_a_disk_that_fails_at_any_call_leaves_whole_ticks(tmp_path: Path) -> None:
    """The engine meets an error, lets go, and the next one goes on."""
    storage = FaultyStorage(tmp_path / "count")
    live(storage, ManualClock(), [])
    operations = [(call.operation, call.name.rsplit("/", 1)[0]) for call in storage.calls]
    for operation, folder in sorted(set(operations)):
        for skip in range(0, operations.count((operation, folder)), 1 if LONG else 3):
            place = tmp_path / "fails"
            faulty, told = FaultyStorage(place), list[int]()
            fault = faulty.fail(5, on=operation, name=f"{folder}/*", skip=skip)
            try:
                live(faulty, ManualClock(), told)
            except HeadwaterError:
                assert fault.met
            judge(faulty.restart(), len(told), f"{operation} in {folder} failed after {skip}")
            shutil.rmtree(place)


def test_an_engine_that_dies_and_starts_again_and_again_gets_there(tmp_path: Path) -> None:
    storage, clock = FaultyStorage(tmp_path), ManualClock()
    for call in range(3, 200, 7):
        storage.crash_at(call, "torn" if call % 2 else "after")
        engine = Engine(storage, clock)
        try:
            engine.epoch = claim(storage, clock).epoch
            engine.ticks(50)
        except Crash:
            storage = storage.restart()
            clock.advance("1 minute")
            continue
        break
    engine = Engine(storage, clock)
    latest = engine.store.latest()
    assert latest is not None
    assert held(engine, latest) == list(range(1, latest.tick + 1))
