"""The state of a tick under way: what its three phases share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.core.errors import HeadwaterError
from headwater.core.positions import Ends
from headwater.engine.collections.arrangements import Added, Arrangements
from headwater.engine.collections.collections import Collection, DerivedRelation, ViewCollection
from headwater.engine.collections.workload import Workload
from headwater.engine.dataflow.executor import Executor
from headwater.engine.input.log_input import Inputs
from headwater.engine.merging.background_merge import Merging
from headwater.engine.metrics.phases import Phases
from headwater.engine.tick.collection_progress import CollectionProgress
from headwater.log.protocol import Log
from headwater.operators.zset.delta import Delta
from headwater.state.base_ticks import Bases
from headwater.state.manifest import Manifest, ViewState
from headwater.state.store import StateStore
from headwater.state.writer import Writer


@dataclass(frozen=True)
class TickEnvironment:
    """The log, the stores and the helpers that every tick of an engine uses."""

    log: Log
    store: StateStore
    bases: Bases
    phases: Phases
    executor: Executor
    merging: Merging | None = None
    """The background thread for large merges; None if they are done in the tick."""


@dataclass(frozen=True)
class TickTarget:
    """The target of a tick: its number, the epoch of its engine, and the cut that live views advance to."""

    tick: int
    epoch: int
    positions: Ends
    sequence: int
    """The log commit at the cut."""
    part_rows: int
    """How many rows a collection that is behind may take in."""


class TickState:
    """The progress of every collection in a tick under way, and the runs that the tick has written."""

    def __init__(
        self,
        environment: TickEnvironment,
        workload: Workload,
        before: Manifest | None,
        damaged: Mapping[str, str],
        target: TickTarget,
        arrangements: type[Arrangements] = Arrangements,
    ) -> None:
        """`damaged`: the arrangements of the previous tick that cannot be used, with the reason."""
        self.environment = environment
        self.log = environment.log
        self.before = before
        self.damaged = damaged
        self.target = target
        self.units = list(workload.units)
        self.broken = workload.broken
        self.writer: Writer = environment.store.begin(target.tick, target.epoch)
        self.inputs = Inputs(environment.log)
        self.arrangements = arrangements(
            environment.store, self.writer, target.tick, environment.phases, environment.merging
        )
        self.progress: dict[str, CollectionProgress] = {}
        self.derived: dict[str, DerivedRelation] = {}
        """The derived relations (late rows, rejected rows) of the views that have been advanced, by name."""
        self._derives = any(isinstance(unit, ViewCollection) and unit.derived for unit in self.units)
        self.changes: dict[str, Added] = {}
        """By view, the run with its change in this tick."""
        self.reshaped: set[str] = set()
        """Views whose columns change with this tick; their readers are planned again for the next tick."""
        self.newly_stopped: dict[str, str] = {}
        self.errors: dict[str, HeadwaterError] = {}

    def state_before(self, name: str) -> ViewState | None:
        """Return the state of a collection after the previous tick; None if it had none."""
        return self.before.views.get(name) if self.before is not None else None

    def unit(self, name: str) -> Collection:
        """Return the collection of this name, or the one that has a derived relation of this name."""
        name = self.derived[name].view if name in self.derived else name
        return next(u for u in self.units if u.name == name)

    def relation(self, name: str) -> Collection | DerivedRelation:
        """Return the collection or derived relation of this name."""
        return self.derived[name] if name in self.derived else self.unit(name)

    def contents(self, name: str) -> Delta:
        """Return the rows of a relation, including the changes of this tick so far."""
        relation = self.relation(name)
        return relation.rows(self.arrangements.runs(self.unit(name), relation.contents))

    def derive(self) -> None:
        """Give each derived relation the progress of its view."""
        if not self._derives:
            return
        for name in self.derived:
            self.progress.pop(name)
        self.derived = {
            derived.name: derived
            for unit in self.units
            if isinstance(unit, ViewCollection) and unit.replaces is None and unit.name in self.progress
            for derived in unit.derived
        }
        for name, derived in self.derived.items():
            view = self.progress[derived.view]
            change = view.derived.get(derived.contents.name) if view.status == "live" else None
            self.progress[name] = dataclasses.replace(view, change=change)
