"""One log, many histories: engines on disks of their own, over the log and the plans of one workspace.

An engine may take everything in one tick or in many, die at any call to its disk, merge all its state in every tick, so that
whatever may expire does, or keep what has expired. What they hold in the end is the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headwater import Workspace
from headwater.core.clock import ManualClock
from headwater.engine.collections.row_ledger import balanced, total
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.merging import run_compaction
from headwater.engine.tick.tick_engine import Engine
from headwater.log.protocol import Log
from headwater.operators.zset.runs import Run
from headwater.state.manifest import Manifest
from headwater.state.merge_policy import Merge
from headwater.state.ownership import claim
from headwater.state.store import StateStore
from headwater.state.view_reader import view_changes, view_contents
from headwater.testing import FaultyStorage, inspect_workspace
from headwater.testing.faults import Crash, StorageCall
from tests.equation.feeding import contents

CALLS_BETWEEN = 20
"""An engine that is to die does so after fewer calls to its disk than this."""

Rows = Counter[tuple[Any, ...]]
Sizes = Callable[[], int | None]
"""How many rows the next tick may have; None for all."""


@dataclass(frozen=True)
class Held:
    """What an engine has made of a log: by relation its rows, by view what became of the rows that it read."""

    rows: Mapping[str, Rows]
    ledgers: Mapping[str, Mapping[str, int]]
    store: StateStore = field(compare=False)
    ticks: int = field(compare=False)
    crashes: int = field(compare=False, default=0)

    def at(self, tick: int, view: str) -> Rows:
        """The rows of a view at a tick that was kept."""
        return contents(view_contents(self.store, self.store.manifest(tick), view))

    def is_append_only(self, view: str) -> bool:
        """Whether no row of it was taken back after the first tick."""
        weights = view_changes(self.store, view, self.store.ticks()[0]).column("_weight").to_pylist()
        return all(weight > 0 for weight in weights)


class _Death:
    """The end of an engine, at one of its next calls: of the process alone, or of the power. `image` is what is left."""

    def __init__(self, disk: FaultyStorage, place: Path, chance: random.Random) -> None:
        self.image: FaultyStorage | None = None
        self._disk, self._place = disk, place
        self._last = len(disk.calls) + chance.randrange(1, CALLS_BETWEEN)
        self._power = chance.choice([None, chance.randrange(10**6)])
        self._is_torn = chance.random() < 0.5

    def __call__(self, call: StorageCall) -> None:
        if call.number >= self._last and self.image is None:
            torn = self._is_torn and call.operation == "write_at" and len(call.data) > 1
            self.image = self._disk.image(self._place, lose_power=self._power, torn=torn)
            raise Crash


@dataclass
class Histories:
    """Engines for the views of a workspace. `log` is another log than its own, with the same definitions, if not None."""

    ws: Workspace
    folder: Path
    log: Log | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    _disks: int = 0

    def one_tick(self) -> Held:
        """Everything at once."""
        return self._lived(self._disk(), lambda: None)

    def ticks(self, sizes: Sizes) -> Held:
        """In as many ticks as it takes."""
        return self._lived(self._disk(), sizes)

    def eager(self, sizes: Sizes) -> Held:
        """The same, and whatever may expire does, in every tick."""
        with _patched("to_merge", _all_at_once):
            return self._lived(self._disk(), sizes)

    def keeping(self, sizes: Sizes) -> Held:
        """The same, and nothing ever expires."""
        with _patched("unexpired", _kept):
            return self._lived(self._disk(), sizes)

    def crashing(self, sizes: Sizes, chance: random.Random, crashes: int) -> Held:
        """The same, by engines that die one after the other, each at some call but the last: with its process, or with the
        power, when what it did not sync may be gone."""
        disk, met = self._disk(), 0
        for _ in range(crashes):
            death = _Death(disk, self._place(), chance)
            disk.on_call = death
            try:
                self._live(disk, sizes)
            except Crash:
                assert death.image is not None
                disk, met = death.image, met + 1
        held = self._lived(disk, sizes)
        return replace(held, crashes=met)

    def _lived(self, disk: FaultyStorage, sizes: Sizes) -> Held:
        self._live(disk, sizes)
        store = StateStore(disk, self.clock)
        manifest = store.latest()
        assert manifest is not None
        views = {n: v for n, v in manifest.views.items() if not v.record.table}
        stopped = {name: view.reason for name, view in views.items() if view.status != "live"}
        assert not stopped, stopped
        ledgers = {
            n: total(balanced(v.record.ledger)) for n, v in views.items() if v.record.ledger is not None
        }
        return Held(_all_rows(store, manifest, views), ledgers, store, len(store.ticks()))

    def _live(self, disk: FaultyStorage, sizes: Sizes) -> None:
        """A life of an engine up to the end of the log."""
        log = self.ws.log if self.log is None else self.log
        ownership = claim(disk, self.clock)
        context = inspect_workspace(self.ws).engine_context()
        with ownership:
            engine = Engine(log, StateStore(disk, self.clock), ownership, context, self.clock)
            while engine.tick(sizes()) is not None:
                pass
            engine.finish()

    def _disk(self) -> FaultyStorage:
        return FaultyStorage(self._place())

    def _place(self) -> Path:
        self._disks += 1
        return self.folder / f"disk-{self._disks}"


def _all_rows(store: StateStore, manifest: Manifest, names: Mapping[str, Any]) -> dict[str, Rows]:
    return {name: contents(view_contents(store, manifest, name)) for name in names}


@contextmanager
def _patched(name: str, by: Callable[..., Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_compaction, name, by)
        yield


def _all_at_once(sizes: list[int]) -> list[Merge]:
    return [Merge(0, len(sizes), sum(sizes), now=True)] if len(sizes) > 1 else []


def _kept(slot: ArrangementSpec, run: Run, level: int | None) -> Run:
    del slot, level
    return run
