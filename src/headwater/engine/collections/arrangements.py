"""The arrangements of a tick under way: those of the previous tick, and the runs that this tick adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwater.engine.collections.collections import Collection
from headwater.engine.dataflow.executor import RunParts
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.merging.background_merge import Merging
from headwater.engine.merging.run_compaction import Compaction, Due, is_settled
from headwater.engine.metrics import phases
from headwater.engine.metrics.phases import Phases
from headwater.operators.zset.runs import Run
from headwater.state.manifest import Manifest
from headwater.state.run_refs import RunRef
from headwater.state.state_files import FileOrigin
from headwater.state.store import StateStore
from headwater.state.task_exchange import Exchange
from headwater.state.writer import Writer

TOGETHER_ROWS_MAX = 2_048
"""Maximum number of rows of runs that are written together: larger runs would use memory while they wait, and gain little."""


@dataclass(eq=False)
class Added:
    """A run that was added in a tick; `ref` is set at the latest when the arrangements have settled."""

    ref: RunRef | None = None


@dataclass(frozen=True, eq=False)
class _Waiting:
    unit: Collection
    slot: ArrangementSpec
    run: Run
    added: Added


class Arrangements:
    """The arrangements that the next manifest will reference. Runs are opened at first use; added runs are written in
    the tick."""

    def __init__(
        self, store: StateStore, writer: Writer, tick: int, watch: Phases, merging: Merging | None = None
    ) -> None:
        """`merging`: the thread that does large merges; if it is None, they are done in the tick."""
        self.phases = watch
        self._store = store
        self.writer = writer
        self._tick = tick
        self._ticks = (tick, tick)
        self._merging = merging
        self._compaction = Compaction(writer, store, large=merging is None)
        self._later: dict[str, tuple[ArrangementSpec, tuple[RunRef, ...], bool, int | None]] = {}
        self._watermarks: dict[str, Mapping[str, int]] = {}
        self._exchanges = 0
        self._waiting: dict[str, _Waiting] = {}
        """Small runs that were added, by arrangement; they are written together."""
        self._runs: dict[str, list[Run]] = {}
        self.refs: dict[str, tuple[RunRef, ...]] = {}

    def take_over(self, unit: Collection, before: Manifest) -> None:
        """Reset the arrangements of a collection to those of the previous tick; runs added since are not referenced any
        more."""
        for slot in unit.slots:
            name = arrangement_id(unit, slot)
            self._forget(name)
            refs = tuple(before.arrangements.get(name, ()))
            self.refs[name] = refs if self._merging is None else self._merging.adopted(name, refs)

    def expire(self, unit: Collection, watermarks: Mapping[str, int]) -> None:
        """Let merges drop the rows that no row after these watermarks can match."""
        self._watermarks[unit.identity] = watermarks

    def clear(self, unit: Collection) -> None:
        """Reset the arrangements of a collection to empty ones."""
        for slot in unit.slots:
            self.clear_slot(unit, slot)

    def clear_slot(self, unit: Collection, slot: ArrangementSpec) -> None:
        """Reset one arrangement of a collection to an empty one."""
        name = arrangement_id(unit, slot)
        self._forget(name)
        self.refs[name] = ()

    def drop(self, unit: Collection) -> None:
        """Remove the arrangements of a collection."""
        for slot in unit.slots:
            self._forget(arrangement_id(unit, slot))
            self.refs.pop(arrangement_id(unit, slot), None)

    def _forget(self, name: str) -> None:
        self._runs.pop(name, None)
        self._waiting.pop(name, None)

    def put(self, unit: Collection, refs: Mapping[str, Sequence[RunRef]]) -> None:
        """Reset the arrangements of a collection to existing runs, by the names of the arrangements."""
        self.clear(unit)
        for slot in unit.slots:
            self.refs[arrangement_id(unit, slot)] = tuple(refs[slot.name])

    def runs(self, unit: Collection, slot: ArrangementSpec) -> list[Run]:
        """Return the runs of an arrangement, oldest first."""
        name = arrangement_id(unit, slot)
        if name not in self._runs:
            added = [self._waiting[name].run] if name in self._waiting else []
            self._runs[name] = [*self.opened(self.refs.get(name, ())), *added]
        return list(self._runs[name])

    def opened(self, refs: Sequence[RunRef]) -> list[Run]:
        """Open runs by their references."""
        return self._store.open_all(refs)

    def add(self, unit: Collection, slot: ArrangementSpec, run: Run | RunParts) -> Added:
        """Add a run to an arrangement. A small run is written when the arrangements settle; `RunParts` have been
        written already."""
        if isinstance(run, RunParts):
            return self._add_parts(unit, slot, run)
        name = arrangement_id(unit, slot)
        if name in self._waiting:
            self.settle()
        if name in self._runs:
            self._runs[name].append(run)
        waiting = _Waiting(unit, slot, run, Added())
        if 0 < len(run) <= TOGETHER_ROWS_MAX:
            self._waiting[name] = waiting
        else:
            self._take(waiting, self._written(run))
        return waiting.added

    def settle(self) -> None:
        """Write the small runs that were added, those with the same columns together, and do the merges that are due."""
        alike: dict[str, list[_Waiting]] = {}
        for name, each in self._waiting.items():
            is_as_declared = each.run.rows.schema.equals(each.slot.schema, check_metadata=True)
            alike.setdefault(each.slot.layout if is_as_declared else name, []).append(each)
        waiting, self._waiting = list(self._waiting.values()), {}
        with self.phases(phases.WRITE):
            for some in alike.values():
                runs = [each.run for each in some]
                ticks = [self._ticks] * len(runs)
                for each, ref in zip(some, self.writer.add_shared(runs, ticks=ticks), strict=True):
                    self._store.remember(ref, each.run)
                    each.added.ref = ref
        due: dict[str, Due] = {}
        for each in waiting:
            assert each.added.ref is not None
            name = arrangement_id(each.unit, each.slot)
            if (found := self._named(each, each.added.ref)) is not None:
                due[name] = found
        self._compact(due)

    def _take(self, waiting: _Waiting, ref: RunRef) -> None:
        """Reference a run that was written, and do the merges that are due."""
        if (due := self._named(waiting, ref)) is not None:
            self._compact({arrangement_id(waiting.unit, waiting.slot): due})

    def _named(self, waiting: _Waiting, ref: RunRef) -> Due | None:
        """Reference a run that was written; return the arrangement if a merge is due in it, else None."""
        unit, slot = waiting.unit, waiting.slot
        waiting.added.ref = ref
        name = arrangement_id(unit, slot)
        refs = (*self.refs.get(name, ()), ref)
        leave = self._busy(name, refs)
        if is_settled(refs, leave):
            self.refs[name] = refs
            return None
        if name not in self._runs:
            self._runs[name] = [*self.opened(refs[:-1]), waiting.run]
        return Due(slot, refs, self._runs[name], leave, self._level(unit, slot))

    def _add_parts(self, unit: Collection, slot: ArrangementSpec, parts: RunParts) -> Added:
        assert len(parts.refs) == 1 or slot is not unit.contents, "the change of a view is one run"
        name = arrangement_id(unit, slot)
        if name in self._waiting:
            self.settle()
        refs = (*self.refs.get(name, ()), *parts.refs)
        runs = [*self.runs(unit, slot), *self.opened(parts.refs)]
        self._compact({name: Due(slot, refs, runs, self._busy(name, refs), self._level(unit, slot))})
        return Added(parts.refs[0] if len(parts.refs) == 1 else None)

    def _compact(self, due: Mapping[str, Due]) -> None:
        """Do the merges that are due in these arrangements."""
        if not due:
            return
        with self.phases(phases.MERGE):
            made = self._compaction.all_done(list(due.values()))
        for (name, each), done in zip(due.items(), made, strict=True):
            self.refs[name], self._runs[name] = done.refs, done.runs
            if done.later is not None:
                self._later[name] = (each.slot, done.refs[done.later], done.later.start == 0, each.level)

    def _level(self, unit: Collection, slot: ArrangementSpec) -> int | None:
        """Return the watermark by which rows of an arrangement expire; None if no watermark applies."""
        known = self._watermarks.get(unit.identity, {})
        if slot.expires is None or any(topic not in known for topic in slot.expires.topics):
            return None
        return min(known[topic] for topic in slot.expires.topics)

    def _busy(self, name: str, refs: Sequence[RunRef]) -> int:
        """Return how many of the oldest runs must not be merged now."""
        return 0 if self._merging is None else self._merging.busy(name, refs)

    def committed(self, manifest: Manifest) -> None:
        """Request the large merges that the committed tick has left to the background."""
        if self._merging is not None:
            self._merging.committed(manifest)
            for name, (slot, parts, bottom, level) in self._later.items():
                self._merging.ask(name, slot, parts, bottom=bottom, tick=self._tick + 1, level=level)

    def durable(self, unit: Collection, slot: ArrangementSpec) -> tuple[RunRef, ...]:
        """Return the references of an arrangement's runs, all of which other processes can read."""
        if arrangement_id(unit, slot) in self._waiting:
            self.settle()
        refs = self.refs.get(arrangement_id(unit, slot), ())
        if any(ref.file in self.writer.files for ref in refs):
            self.writer.flush()
        return refs

    def exchange(self) -> Exchange:
        """Return a folder for a step that is divided among tasks."""
        self._exchanges += 1
        return self._store.exchange(self.writer, self._exchanges)

    def of(self, unit: Collection) -> ArrangementReader:
        """Return the arrangements of one collection."""
        return ArrangementReader(self, unit, str(self._store.storage.root.absolute()), self.writer.origin)

    def replace(self, unit: Collection, slot: ArrangementSpec, run: Run) -> Added:
        """Replace all runs of an arrangement by a single run."""
        name = arrangement_id(unit, slot)
        ref = self._written(run)
        self._forget(name)
        self.refs[name], self._runs[name] = (ref,), [run]
        return Added(ref)

    def _written(self, run: Run) -> RunRef:
        with self.phases(phases.WRITE):
            ref = self.writer.add(run, ticks=self._ticks)
            self._store.remember(ref, run)
            return ref


class ArrangementReader:
    """The arrangements of a collection in a tick under way, as the state of its step."""

    def __init__(self, arrangements: Arrangements, unit: Collection, root: str, origin: FileOrigin) -> None:
        self._all = arrangements
        self._unit = unit
        self.root = root
        """The folder of the workspace."""
        self.origin = origin
        """The origin that marks the tick's files."""

    def __call__(self, slot: ArrangementSpec) -> list[Run]:
        """Return the runs of an arrangement, oldest first."""
        return self._all.runs(self._unit, slot)

    def refs(self, slot: ArrangementSpec) -> tuple[RunRef, ...]:
        """Return references to the runs of an arrangement, oldest first; all of them are on disk and durable."""
        return self._all.durable(self._unit, slot)

    def exchange(self) -> Exchange:
        """Return a new folder for the files of one step."""
        return self._all.exchange()


def arrangement_id(unit: Collection, slot: ArrangementSpec) -> str:
    """Return the name of an arrangement in manifests."""
    return f"{unit.identity}/{slot.name}"
