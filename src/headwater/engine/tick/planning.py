"""Planning a tick: which collections are advanced, from where, and which are rebuilt, held back or stopped."""

from __future__ import annotations

from headwater.core.errors import CorruptionError, TickNotKeptError, WorkspaceMissingError
from headwater.engine.collections.arrangements import arrangement_id
from headwater.engine.collections.collections import Collection, ViewCollection
from headwater.engine.collections.retention_holds import (
    base_of,
    base_slot,
    beginning,
    hold_from_start,
    removed,
)
from headwater.engine.collections.shadow_builds import SHADOW
from headwater.engine.collections.version_table import VersionCollection
from headwater.engine.tick.collection_progress import CollectionProgress
from headwater.engine.tick.tick_state import TickState
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.plan.relations.metadata_columns import is_changelog
from headwater.state.manifest import ViewState


class TickPlan:
    """Plans each collection after its inputs have been advanced."""

    def __init__(self, state: TickState) -> None:
        self.state = state
        self._log = state.log
        self._bases = state.environment.bases

    def visit(self, unit: Collection) -> CollectionProgress | None:
        """Return the progress of a collection that this tick advances; None for a collection that is stopped or held back."""
        progress = self.state.progress[unit.name] = self.progress_of(unit)
        if progress.status == "stopped":
            return None
        if (blocked := self._blocked(unit)) is not None:
            self.hold_back(unit, progress, *blocked)
            return None
        if progress.status == "live" and (below := self._missing_retractions(unit)) is not None:
            reason = f"{below} was rebuilt without some of its rows"
            progress = self.state.progress[unit.name] = self.rebuild(unit, progress.state, reason)
        return None if progress.status == "stopped" else progress

    def hold_back(self, unit: Collection, progress: CollectionProgress, status: str, reason: str) -> None:
        """Hold back a collection because of the status of a collection that it reads."""
        if status == "stopped":
            progress.is_blocked = True
            self.stop(unit, progress, reason)
        elif progress.status == "live":
            self.state.progress[unit.name] = self.rebuild(unit, progress.state, reason)

    def progress_of(self, unit: Collection) -> CollectionProgress:
        """Return the progress of a collection after the previous tick, or that of a rebuild which begins now."""
        state = self.state.state_before(unit.name)
        if state is None or state.record.identity != unit.identity:
            state = self.state.state_before(f"{unit.name}{SHADOW}")  # the view that it replaces is gone
        if state is None or state.record.identity != unit.identity:
            then = self.state.state_before(unit.name)
            is_same = (
                then is not None and isinstance(unit, ViewCollection) and then.incarnation == unit.incarnation
            )
            return self.rebuild(unit, then if is_same else None, "its plan has changed")
        if state.record.unplanned:
            return self.rebuild(unit, state, state.reason or "")
        if state.record.blocked and state.status == "stopped" and self._blocked(unit) is None:
            return self.rebuild(unit, state, "a view that it reads was rebuilt")
        wrong = self.damage(unit)
        if wrong is not None and self.must_rebuild(state):
            return self.rebuild(unit, state, f"its state is damaged: {wrong}")
        assert self.state.before is not None
        self.state.arrangements.take_over(unit, self.state.before)
        return CollectionProgress(
            state,
            status=state.status,
            reason=state.reason,
            sequence=state.record.sequence,
            positions=state.positions,
            begun=state.record.begun,
            built=state.built,
            begins=state.record.begins,
            base=self._bases.newest() if state.record.base is not None else None,
            ledger=state.record.ledger or {},
            watermarks=state.record.watermarks,
            is_blocked=state.record.blocked,
            key=state.record.key,
            old=state.record.old,
        )

    def rebuild(self, unit: Collection, state: ViewState | None, reason: str) -> CollectionProgress:
        """Begin to rebuild a collection, and return its progress. `state` is the state that is discarded, if any.

        If records from which the collection was built have been removed, it is rebuilt from its base. If it has no
        base, a rebuild could not reproduce it, so it is stopped instead.
        """
        hold_from_start(self._log, unit.topics)
        needs_all = isinstance(unit, VersionCollection)
        begins = {
            topic: beginning(self._log, topic, every_record=needs_all or is_changelog(name))
            for topic, name in unit.named.items()
        }
        based = base_of(self._log, unit, self._bases.newest())
        if based is not None and removed(self._log, based.record.begins):
            return self._from_base(unit, based, state)
        if state is not None and removed(self._log, state.record.begins):
            return self._stopped_at(
                unit, state, f"{reason}, and records that it was built from have been removed"
            )
        self.state.arrangements.clear(unit)
        return CollectionProgress(None, built=self.state.target.tick, begins=begins)

    def _from_base(self, unit: Collection, based: ViewState, state: ViewState | None) -> CollectionProgress:
        base = self._bases.newest()
        assert base is not None
        refs = {slot.name: base.arrangements.get(base_slot(based, slot), ()) for slot in unit.slots}
        try:
            self._bases.restore(ref.file for each in refs.values() for ref in each)
            for each in refs.values():
                for ref in each:
                    self.state.environment.store.verify(ref)
        except (CorruptionError, TickNotKeptError, WorkspaceMissingError) as error:
            return self._stopped_at(unit, state or based, f"its base at tick {base.tick} is damaged: {error}")
        self.state.arrangements.put(unit, refs)
        return CollectionProgress(
            None,
            built=self.state.target.tick,
            begins=based.record.begins,
            positions=based.positions,
            sequence=based.record.sequence,
            begun=True,
            base=base,
            ledger=based.record.ledger or {},
            watermarks=based.record.watermarks,
            key=based.record.key,
        )

    def _stopped_at(self, unit: Collection, state: ViewState, reason: str) -> CollectionProgress:
        progress = CollectionProgress(state, None, built=state.built, begins=state.record.begins, begun=True)
        progress.positions, progress.sequence = state.positions, state.record.sequence
        self.stop(unit, progress, reason)
        return progress

    def stop(self, unit: Collection, progress: CollectionProgress, reason: str) -> None:
        """Stop a collection at the previous tick. Runs that it wrote in this tick are not referenced, and so have no
        effect."""
        self.state.arrangements.clear(unit)
        if progress.state is not None and self.keeps_state(unit):
            assert self.state.before is not None
            self.state.arrangements.take_over(unit, self.state.before)
        if progress.status != "stopped":
            self.state.newly_stopped[unit.name] = reason
        progress.status, progress.reason, progress.change = "stopped", reason, None
        progress.ledger = progress.state.record.ledger or {} if progress.state is not None else {}
        progress.key = progress.state.record.key if progress.state is not None else None

    def must_rebuild(self, state: ViewState) -> bool:
        """Whether a collection with damaged state is rebuilt; a stopped collection is not."""
        return state.status != "stopped"

    def keeps_state(self, unit: Collection) -> bool:
        """Whether a stopped collection keeps its state of the previous tick."""
        return self.state.before is not None

    def damage(self, unit: Collection) -> str | None:
        """Return the damage to the state of a collection, or of a collection that it reads (its changes are unknown
        then); else None."""
        found = self.state.damaged
        if not found:
            return None
        names = [arrangement_id(unit, slot) for slot in unit.slots]
        names += [v.contents for v in map(self.state.state_before, unit.units) if v is not None]
        mine = (found.get(name) for name in names)
        below = (self.damage(self.state.unit(name)) for name in unit.units)
        return next((wrong for wrong in (*mine, *below) if wrong is not None), None)

    def _blocked(self, unit: Collection) -> tuple[str, str] | None:
        if isinstance(unit, ViewCollection) and unit.verification is not None:
            if unit.verification.problem is not None:
                return "stopped", unit.verification.problem
            for name in unit.units:
                if (
                    new := self.state.progress.get(f"{name}{SHADOW}")
                ) is not None and self._is_shadow_rebuild(name):
                    status = "stopped" if new.status == "stopped" else "backfilling"
                    return status, f"it reads {name}, which is being rebuilt"
        for name in unit.units:
            below = self.state.progress.get(name)
            if below is None:
                return "stopped", f"{name} does not exist any more"
            if name in self.state.reshaped:
                return "backfilling", f"the columns of {name} have changed"
            if below.status != "live":
                return below.status, f"it reads {name}, which is {below.status}"
        return None

    def _is_shadow_rebuild(self, name: str) -> bool:
        unit = self.state.unit(f"{name}{SHADOW}")
        return isinstance(unit, ViewCollection) and unit.verification is not None

    # --- changes of views that become live ------------------------------------------------------------------------

    def replaced(self, name: str) -> Delta:
        """Return the difference between a rebuilt view that becomes live in this tick and its previous version, for its
        readers."""
        state = self.state
        now, then = state.contents(name), state.state_before(name)
        if then is None or state.before is None or then.status != "live":
            return now
        runs = state.arrangements.opened(state.before.arrangements.get(then.contents, ()))
        old = state.relation(name).rows(runs)
        return consolidate(concat([now, old.negated()], state.relation(name).schema))

    def _missing_retractions(self, unit: Collection) -> str | None:
        """Return the name of a rebuilt input that has lost rows which the collection cannot retract, or None."""
        for name in unit.counts_on if isinstance(unit, ViewCollection) else ():
            if self.state.progress[name].joined and (self.replaced(name).weights < 0).any():
                return name
        return None
