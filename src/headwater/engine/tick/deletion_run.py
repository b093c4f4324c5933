"""The run of a tick that applies deletions to the state of views.

It differs from other runs in each phase. Planning: collections with deleted values are rebuilt, unless the values can be
retracted from them. Advancing: collections with retractions read the retracted rows, and groups from which rows cannot be
retracted are recomputed. Committing: every arrangement is rewritten to new files, without the rows that shared its old files.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.core.errors import HeadwaterError, KeyStoreError
from headwater.core.positions import Ends
from headwater.engine.collections.collection_steps import CollectionStep, in_memory
from headwater.engine.collections.collections import Collection, ViewCollection
from headwater.engine.collections.workload import Workload
from headwater.engine.deletion import rebuild_after_delete
from headwater.engine.deletion.retract import Retraction
from headwater.engine.deletion.retraction_steps import RetractionViewStep
from headwater.engine.deletion.rewritten_arrangements import RewrittenArrangements
from headwater.engine.tick.advancing import Changes, TickAdvance
from headwater.engine.tick.collection_progress import CollectionProgress
from headwater.engine.tick.committing import TickCommit
from headwater.engine.tick.planning import TickPlan
from headwater.engine.tick.tick_run import TickRun
from headwater.engine.tick.tick_state import TickEnvironment, TickState, TickTarget
from headwater.log.deletion_entries import DeletionEntry
from headwater.state.manifest import Manifest, ViewState
from headwater.state.run_refs import RunRef


class DeletionPlan(TickPlan):
    """Plans a rebuild of each collection with deleted values, unless the values are retracted from it."""

    def __init__(
        self, state: TickState, arrangements: RewrittenArrangements, retraction: Retraction | None
    ) -> None:
        super().__init__(state)
        self.retracted: set[str] = set()
        """The collections from which rows are retracted in this tick."""
        self._arrangements = arrangements
        self._retracts = retraction.units if retraction is not None else set()

    def progress_of(self, unit: Collection) -> CollectionProgress:
        progress = super().progress_of(unit)
        if unit.name in self._retracts and progress.state is not None and progress.status == "live":
            self.retracted.add(unit.name)
            self._arrangements.rewritten.add(unit.identity)
        return progress

    def hold_back(self, unit: Collection, progress: CollectionProgress, status: str, reason: str) -> None:
        super().hold_back(unit, self.give_up(unit, progress, reason), status, reason)

    def give_up(self, unit: Collection, progress: CollectionProgress, reason: str) -> CollectionProgress:
        """Rebuild a collection instead, if a planned retraction turns out to be impossible."""
        if unit.name not in self.retracted:
            return progress
        self.retracted.remove(unit.name)
        self._arrangements.rewritten.discard(unit.identity)
        made = self.state.progress[unit.name] = self.rebuild(unit, progress.state, reason)
        return made

    def must_rebuild(self, state: ViewState) -> bool:
        return True

    def keeps_state(self, unit: Collection) -> bool:
        return super().keeps_state(unit) and self.damage(unit) is None


class DeletionAdvance(TickAdvance):
    """Advances collections, and retracts deleted rows from those that the plan lists."""

    plan: DeletionPlan

    def __init__(self, state: TickState, plan: DeletionPlan, retraction: Retraction | None) -> None:
        super().__init__(state, plan)
        self._retraction = retraction

    def read(self, unit: Collection, start: Ends, end: Ends) -> Changes:
        changes = super().read(unit, start, end)
        if self._retraction is None or unit.name not in self.plan.retracted:
            return changes
        given = {name: rows.load() for name, rows in changes.items()}
        return in_memory(self._retraction.added(unit, given, start, self.state.inputs))

    def must_step(
        self, unit: Collection, progress: CollectionProgress, changes: Changes, watermarks: Mapping[str, int]
    ) -> bool:
        return unit.name in self.plan.retracted or super().must_step(unit, progress, changes, watermarks)

    def step(
        self, unit: Collection, changes: Changes, watermarks: Mapping[str, int], *, first: bool
    ) -> CollectionStep:
        is_retracted = unit.name in self.plan.retracted
        if self._retraction is None or first or not is_retracted or not isinstance(unit, ViewCollection):
            return super().step(unit, changes, watermarks, first=first)
        tick = self.state
        again = self._retraction.again(unit, tick.target.positions, tick.inputs, tick.contents)
        return RetractionViewStep(unit, changes, tick.arrangements.of(unit), watermarks, again)

    def failed(self, unit: Collection, error: HeadwaterError) -> None:
        progress = self.state.progress[unit.name]
        was_retracted = unit.name in self.plan.retracted
        if not was_retracted or not self.is_own(error):
            super().failed(unit, error)
            return
        self.plan.give_up(unit, progress, str(error.message))
        if isinstance(error, KeyStoreError):
            super().failed(unit, error)


class DeletionCommit(TickCommit):
    """Commits a tick whose runs share no file with runs of earlier ticks."""

    def is_worth_it(self) -> bool:
        return bool(self.state.units) or self.state.before is not None

    def arrangements(self) -> Mapping[str, tuple[RunRef, ...]]:
        tick = self.state
        return rebuild_after_delete.copied(tick.environment.store, tick.writer, tick.arrangements.refs)


class DeletionRun(TickRun):
    """A run of a tick that removes deleted values from the state of views."""

    def __init__(
        self,
        environment: TickEnvironment,
        workload: Workload,
        before: Manifest | None,
        damaged: Mapping[str, str],
        target: TickTarget,
        deleted: Mapping[str, DeletionEntry],
    ) -> None:
        """`deleted`: the deletions that this tick is the first to apply."""
        log, store = environment.log, environment.store
        retraction: Retraction | None = None
        erased: dict[str, str] = {}
        if before is not None:
            retraction = Retraction(log, store.storage, before, deleted, workload.units)
            kept = retraction.arrangements(workload.units)
            gone = rebuild_after_delete.arrangements(log, before, deleted.values())
            erased = {name: why for name, why in gone.items() if name not in kept}
        self.state = TickState(
            environment, workload, before, {**damaged, **erased}, target, RewrittenArrangements
        )
        assert isinstance(self.state.arrangements, RewrittenArrangements)
        self._arrangements = self.state.arrangements
        self.plan = DeletionPlan(self.state, self._arrangements, retraction)
        self.advance = DeletionAdvance(self.state, self.plan, retraction)
        self.commit = DeletionCommit(self.state)

    def finish(self) -> None:
        """Rewrite every arrangement from which rows were retracted; for subscribers, the view was rebuilt in this tick."""
        tick = self.state
        for unit in tick.units:
            if unit.name not in self.plan.retracted:
                continue
            progress = tick.progress[unit.name]
            progress.built = tick.target.tick
            for slot in unit.slots:
                added_run = self._arrangements.rewrite(unit, slot)
                progress.derived_refs[slot.name] = added_run
                if slot is unit.contents and not unit.is_table:
                    tick.changes[unit.name] = added_run
