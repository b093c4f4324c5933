"""Advancing a tick: collections run their steps, level by level; small steps of the same shape are executed as one.

Collections of one level do not read each other. Live collections advance to the cut of the tick. A collection that is
behind reads a part of its backlog, and becomes live once it has reached the cut. An error of one collection stops that
collection, not the tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headwater.core.errors import (
    ClosedError,
    FencedError,
    HeadwaterError,
    KeyStoreError,
    StorageError,
)
from headwater.core.positions import Ends
from headwater.engine.collections.arrangements import Added
from headwater.engine.collections.collection_steps import CollectionOutcome, CollectionStep, begin_step
from headwater.engine.collections.collections import Collection, DerivedRelation, ViewCollection
from headwater.engine.collections.row_ledger import added
from headwater.engine.dataflow.executor import RowsInMemory, StageRows, run_one
from headwater.engine.input.log_range import log_ranges
from headwater.engine.merging.run_compaction import merged_run
from headwater.engine.row_errors.late_rows import watermarks_at
from headwater.engine.tick.backfill_parts import PASSING, is_early, is_passing, more_rows
from headwater.engine.tick.collection_progress import CollectionProgress
from headwater.engine.tick.planning import TickPlan
from headwater.engine.tick.tick_state import TickState
from headwater.log.cuts import next_cut
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.state.damage import is_of_state
from headwater.state.manifest import Manifest

Changes = dict[str, StageRows]
"""The input of a collection, by the names in its graph."""


class TickAdvance:
    """Advances the collections of a tick."""

    def __init__(self, state: TickState, plan: TickPlan) -> None:
        self.state = state
        self.plan = plan
        self._target = state.target
        self._executor = state.environment.executor

    def steps(self, units: Sequence[Collection]) -> Iterator[CollectionStep]:
        """Yield the steps of the live collections of a level, and advance the collections that are behind in passing."""
        for unit in units:
            if (progress := self.plan.visit(unit)) is None:
                continue
            try:
                step = None
                if progress.status != "live":
                    self._catch_up(unit, progress)
                else:
                    step = self._live_step(unit, progress)
            except HeadwaterError as error:
                self.failed(unit, error)
                continue
            if step is not None:
                yield step

    def switch(self, units: Sequence[Collection]) -> None:
        """Replace views by those of their shadow builds in a level that have become live."""
        for unit in units:
            is_live = self.state.progress[unit.name].status == "live"
            if isinstance(unit, ViewCollection) and unit.replaces is not None and is_live:
                self._switch(unit, unit.replaces)

    def failed(self, unit: Collection, error: HeadwaterError) -> None:
        """Stop a collection because of its own error; raise any other error, which ends the tick."""
        if not self.is_own(error):
            raise error
        progress = self.state.progress[unit.name]
        if isinstance(error, KeyStoreError):
            progress.is_blocked = (
                True  # other collections go on without it; it is rebuilt once its keys are available
            )
        self.plan.stop(unit, progress, str(error.message))
        self.state.errors[unit.name] = error

    def is_own(self, error: HeadwaterError) -> bool:
        """Whether an error belongs to one collection, and would recur if the tick were run again."""
        if isinstance(error, KeyStoreError):
            return True
        is_of_tick = isinstance(error, (FencedError, StorageError, ClosedError))
        return not (is_of_tick or error.retryable or is_of_state(error))

    # --- collections that are live -----------------------------------------------------------------------------------

    def _live_step(self, unit: Collection, progress: CollectionProgress) -> CollectionStep | None:
        """Return the step of a live collection to the cut; None if its input has not changed."""
        changes, watermarks = self._changes(unit, progress), self._watermarks(unit, self._target.positions)
        if not self.must_step(unit, progress, changes, watermarks):
            progress.change = None
            self._arrived(unit, progress)
            return None
        self._prepare(unit, progress, watermarks)
        return self.step(unit, changes, watermarks, first=False)

    def step(
        self, unit: Collection, changes: Changes, watermarks: Mapping[str, int], *, first: bool
    ) -> CollectionStep:
        """Return the step of a collection over a change."""
        held = self.state.arrangements.of(unit)
        return begin_step(unit, changes, held, first=first, watermarks=watermarks)

    def finished(self, step: CollectionStep) -> None:
        """Add the outcome of a live collection's step to the tick."""
        unit = step.unit
        self._take(unit, step.result())
        self._arrived(unit, self.state.progress[unit.name])

    def _changes(self, unit: Collection, progress: CollectionProgress) -> Changes:
        """Return the input of a live collection: records up to the cut, and the changes of the collections that it reads."""
        changes = self.read(unit, progress.positions, self._target.positions)
        for name in unit.units:
            below = self.state.progress[name]
            if below.joined:
                change = self.plan.replaced(name)
            else:
                change = below.change or Delta.empty(self.state.relation(name).schema)
            changes[name] = RowsInMemory(change)
        return changes

    def must_step(
        self, unit: Collection, progress: CollectionProgress, changes: Changes, watermarks: Mapping[str, int]
    ) -> bool:
        """Whether the input or the watermarks of a live collection have changed."""
        return watermarks != progress.watermarks or not all(rows.is_empty for rows in changes.values())

    def _arrived(self, unit: Collection, progress: CollectionProgress) -> None:
        progress.positions = _own_cut(unit, self._target.positions)
        progress.sequence = self._target.sequence

    # --- collections that are behind ---------------------------------------------------------------------------------

    def _catch_up(self, unit: Collection, progress: CollectionProgress) -> None:
        """Read a part of a backlog; the collection becomes live if that was the last part.

        If a part fails with an error that more rows may avoid, it is read again with twice as many rows.
        """
        first, watermarks = not progress.begun, progress.watermarks
        rows = self._target.part_rows
        while True:
            target, sequence = self._part(unit, progress, rows)
            joins = sequence >= self._target.sequence
            changes = self.read(unit, progress.positions, target)
            if joins:
                changes |= {name: RowsInMemory(self._since(name, progress.base)) for name in unit.units}
            at = self._watermarks(unit, {**self._target.positions, **target} if joins else target)
            try:
                if first or self.must_step(unit, progress, changes, at):
                    self._prepare(unit, progress, at)
                    step = self.step(unit, changes, at, first=first)
                    self._take(unit, run_one(self._executor, step, lambda ended: ended.result()))
                break
            except PASSING as error:
                given = {name: each.load() for name, each in changes.items()}
                passes = is_early(unit, self._target.sequence) if joins else is_passing(unit, given, error)
                if not passes:
                    raise
                progress.watermarks = watermarks
                if joins:
                    return
                rows = more_rows(rows, given)
        progress.positions, progress.sequence, progress.begun = _own_cut(unit, target), sequence, True
        if joins:
            progress.status, progress.joined, progress.base = "live", True, None
            if not first:
                self._change_is_all(unit, progress)

    def _part(self, unit: Collection, progress: CollectionProgress, rows: int) -> tuple[Ends, int]:
        """Return the cut that a collection which is behind reaches with this many rows, and the log commit of that cut."""
        cut, sequence, inputs = self._target.positions, self._target.sequence, self.state.inputs
        if not unit.topics:
            return {}, sequence
        if self.state.before is None:
            return cut, sequence
        found = next_cut(self.state.log, list(unit.topics), progress.positions, rows)
        if found.sequence < sequence:
            return found.positions, found.sequence
        common = {t: cut[t] for t in unit.topics if t in cut}
        return {
            t: common.get(t) or inputs.clip(t, progress.positions, found.positions, sequence)
            for t in unit.topics
        }, sequence

    def _since(self, name: str, base: Manifest | None) -> Delta:
        """Return the rows of an input that a rebuilt collection has not read yet: all rows, or those that are not in
        its base."""
        now = self.state.contents(name)
        if base is None:
            return now
        relation = self.state.relation(name)
        then = base.arrangements.get(base.views[name].contents, ())
        self.state.environment.bases.restore(ref.file for ref in then)
        old = relation.rows(self.state.arrangements.opened(then))
        return consolidate(concat([now, old.negated()], relation.schema))

    # --- a step ------------------------------------------------------------------------------------------------------

    def read(self, unit: Collection, start: Ends, end: Ends) -> Changes:
        """Return the records of a collection's topics between two cuts."""
        state = self.state
        return {**log_ranges(state.inputs, unit, start, end, state.environment.phases)}

    def _watermarks(self, unit: Collection, at: Ends) -> dict[str, int]:
        """Return the watermarks, at a cut, of the topics whose watermarks a collection depends on."""
        if not isinstance(unit, ViewCollection) or not unit.waits_for:
            return {}
        return watermarks_at(self.state.log, unit.waits_for, at)

    def _prepare(self, unit: Collection, progress: CollectionProgress, watermarks: Mapping[str, int]) -> None:
        """Prepare the arrangements of a collection for a step at these watermarks."""
        progress.watermarks = watermarks
        if not isinstance(unit, ViewCollection):
            return
        arrangements = self.state.arrangements
        if progress.key is not None and progress.key != unit.key:
            # an earlier version arranged the contents by other columns
            for run in unit.arranged(arrangements.runs(unit, unit.contents), progress.key):
                arrangements.replace(unit, unit.contents, run)
            progress.key = unit.key
        if unit.is_past_replay(progress.positions):
            arrangements.expire(unit, watermarks)

    def _take(self, unit: Collection, done: CollectionOutcome) -> None:
        """Add the outcome of a step to the tick."""
        progress = self.state.progress[unit.name]
        for slot, run in done.runs.items():
            added_run = self.state.arrangements.add(unit, slot, run)
            if slot is unit.contents and not unit.is_table:
                self.state.changes[unit.name] = added_run
            if slot in done.derived:
                progress.derived_refs[slot.name] = added_run
        progress.change = done.change
        progress.derived = {slot.name: change for slot, change in done.derived.items()}
        progress.ledger = added(progress.ledger, done.counted)

    # --- views that join or replace others ---------------------------------------------------------------------------

    def _switch(self, unit: ViewCollection, name: str) -> None:
        """Replace a view by its shadow build, for all readers in this tick, unless the shadow build is still being
        compared."""
        if unit.verification is not None and not unit.verification.is_over:
            return
        state = self.state
        old, progress = state.unit(name), state.progress[unit.name]
        if not progress.joined:  # it has been live since an earlier tick, and has been compared since then
            progress.joined = True
            self._change_is_all(unit, progress)
        if unit.verification is not None and state.before is not None:
            progress.old = state.before.tick
        state.arrangements.drop(old)
        state.units[state.units.index(unit)] = unit.in_place()
        state.units.remove(old)
        state.progress[name] = state.progress.pop(unit.name)
        state.changes.pop(name, None)
        if unit.name in state.changes:
            state.changes[name] = state.changes.pop(unit.name)
        if not unit.schema.equals(old.schema):
            state.reshaped.add(name)

    def _change_is_all(self, unit: Collection, progress: CollectionProgress) -> None:
        """Report all rows of a view and its derived relations as the change of this tick, because they were built over
        several ticks."""
        if not isinstance(unit, ViewCollection):
            return
        if (whole := self._whole(unit, unit)) is not None:
            self.state.changes[unit.name] = whole
        for derived in unit.derived:
            if (whole := self._whole(unit, derived)) is not None:
                progress.derived_refs[derived.contents.name] = whole

    def _whole(self, unit: ViewCollection, relation: ViewCollection | DerivedRelation) -> Added | None:
        """Write the whole contents of a relation as one run, and return it; None if the relation is empty."""
        slot, arrangements = relation.contents, self.state.arrangements
        runs = arrangements.runs(unit, slot)
        return arrangements.replace(unit, slot, merged_run(slot, runs, bottom=True)) if runs else None


def _own_cut(unit: Collection, cut: Ends) -> Ends:
    return {topic: dict(cut[topic]) for topic in unit.topics if topic in cut}
