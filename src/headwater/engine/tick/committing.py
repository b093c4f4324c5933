"""Committing a tick: the manifest with the positions and status of every collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.core.positions import new_id
from headwater.engine.collections.collections import Collection, DerivedRelation
from headwater.engine.collections.workload import Broken
from headwater.engine.tick.collection_states import broken_state, derived_state, unit_state
from headwater.engine.tick.tick_state import TickState
from headwater.state.manifest import Manifest, ViewState
from headwater.state.run_refs import RunRef


class TickCommit:
    """Decides whether a tick has changed anything, and commits it."""

    def __init__(self, state: TickState) -> None:
        self.state = state

    def is_worth_it(self) -> bool:
        """Whether the tick has changed anything: rows were read, or a view was added, dropped, stopped or became live."""
        tick, before = self.state, self.state.before
        if before is None:
            return bool(tick.units)
        if tick.newly_stopped or tick.inputs.rows or any(p.state is None for p in tick.progress.values()):
            return True
        live = {t for u in tick.units if tick.progress[u.name].status == "live" for t in u.topics}
        if any(tick.target.positions[t] != before.positions.get(t) for t in live):
            return True  # the tick has passed offsets without records
        moved = (*tick.units, *tick.derived.values())
        now: dict[str, tuple[Any, str]] = {u.name: (u.identity, tick.progress[u.name].status) for u in moved}
        left = (self._broken_state(name, broken) for name, broken in tick.broken.items())
        now |= {state.name: (state.record.identity, state.status) for state in left}
        then = {n: (v.record.identity, v.status) for n, v in before.views.items()}
        if now != then:
            return True
        behind = (p for p in tick.progress.values() if p.status == "backfilling")
        return any(p.state and p.sequence != p.state.record.sequence for p in behind)

    def commit(self, extra: Mapping[str, Any]) -> Manifest:
        """Write and commit the manifest of the tick; `extra` contains additional entries from the engine."""
        tick, before, target = self.state, self.state.before, self.state.target
        live = [tick.progress[u.name] for u in tick.units if tick.progress[u.name].status == "live"]
        # a topic without readers so far is not in the cut: a collection that becomes live has its own position in it
        own = {topic: dict(ends) for progress in live for topic, ends in progress.positions.items()}
        store = tick.environment.store
        manifest = Manifest(
            tick=target.tick,
            epoch=target.epoch,
            committed_at=store.commit_time(before),
            sequence=target.sequence,
            positions={t: own[t] for t in sorted(own)} or dict(before.positions if before else {}),
            arrangements=self.arrangements(),
            views={unit.name: self._unit_state(unit) for unit in tick.units}
            | {name: self._derived_state(derived) for name, derived in tick.derived.items()}
            | {name: self._broken_state(name, broken) for name, broken in tick.broken.items()},
            extra=extra,
            id=new_id(),
            previous=before.id if before is not None else "",
            commit=tick.log.commit_id(target.sequence) or "",
        )
        tick.log.sync()  # a tick survives a power failure, so every commit that it covers must be durable too
        store.commit(manifest)
        tick.arrangements.committed(manifest)
        return manifest

    def arrangements(self) -> Mapping[str, tuple[RunRef, ...]]:
        """The runs that the manifest references, by arrangement."""
        return self.state.arrangements.refs

    def _unit_state(self, unit: Collection) -> ViewState:
        tick = self.state
        then, change = tick.state_before(unit.name), tick.changes.get(unit.name)
        return unit_state(unit, tick.progress[unit.name], then, tick.target.tick, change)

    def _derived_state(self, derived: DerivedRelation) -> ViewState:
        tick = self.state
        unit = tick.unit(derived.view)
        change = tick.progress[derived.view].derived_refs.get(derived.contents.name)
        return derived_state(derived, unit, self._unit_state(unit), tick.state_before(derived.name), change)

    def _broken_state(self, name: str, broken: Broken) -> ViewState:
        return broken_state(name, broken, self.state.state_before(name), self.state.target.tick)
