"""The arrangements of a tick under way: those of the tick before, and the runs that this one adds to them."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.operators.runs import Run
from headwater.runtime.compaction import compacted
from headwater.runtime.pipeline import Slot
from headwater.runtime.units import Unit
from headwater.state.manifest import Manifest
from headwater.state.refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer


class Arrangements:
    """What the next manifest names. Runs are opened when they are asked for; added ones are written with the tick."""

    def __init__(self, store: StateStore, writer: Writer, tick: int) -> None:
        self._store = store
        self._writer = writer
        self._tick = tick
        self._runs: dict[str, list[Run]] = {}
        self.refs: dict[str, tuple[RunRef, ...]] = {}

    def take_over(self, unit: Unit, before: Manifest) -> None:
        """Begin with what a unit had at the tick before; what it did since then is undone by not being named."""
        for slot in unit.slots:
            name = arrangement_id(unit, slot)
            self._runs.pop(name, None)
            self.refs[name] = tuple(before.arrangements.get(name, ()))

    def clear(self, unit: Unit) -> None:
        """Begin with nothing."""
        for slot in unit.slots:
            name = arrangement_id(unit, slot)
            self._runs.pop(name, None)
            self.refs[name] = ()

    def runs(self, unit: Unit, slot: Slot) -> list[Run]:
        """The runs of an arrangement, oldest first."""
        name = arrangement_id(unit, slot)
        if name not in self._runs:
            self._runs[name] = self.opened(self.refs.get(name, ()))
        return list(self._runs[name])

    def opened(self, refs: Sequence[RunRef]) -> list[Run]:
        """Runs by their references."""
        return [self._store.open_run(ref) for ref in refs]

    def add(self, unit: Unit, slot: Slot, run: Run) -> RunRef:
        """Add a run, and merge what is due; says where the run itself is."""
        name = arrangement_id(unit, slot)
        runs = self.runs(unit, slot)
        ref = self._written(run)
        refs = (*self.refs.get(name, ()), ref)
        self.refs[name], self._runs[name] = compacted(slot, refs, [*runs, run], self._writer, self._store)
        return ref

    def replace(self, unit: Unit, slot: Slot, run: Run) -> RunRef:
        """Put one run in the place of all."""
        name = arrangement_id(unit, slot)
        ref = self._written(run)
        self.refs[name], self._runs[name] = (ref,), [run]
        return ref

    def _written(self, run: Run) -> RunRef:
        ref = self._writer.add(run, ticks=(self._tick, self._tick))
        self._store.remember(ref, run)
        return ref


def arrangement_id(unit: Unit, slot: Slot) -> str:
    """The name of an arrangement in manifests."""
    return f"{unit.identity}/{slot.name}"
