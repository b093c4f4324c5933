"""One try at a tick: every unit moved to a cut, and the manifest that says so.

Nothing that it computes is seen before its manifest is committed, and all of it is a function of the log and of the
manifest before, so that it can be given up at any point and done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headwater.errors import ClosedError, FencedError, HeadwaterError, StorageError
from headwater.log.cuts import next_cut
from headwater.log.protocol import Log
from headwater.operators.delta import Delta, concat, consolidate
from headwater.positions import Ends
from headwater.runtime.arrangements import Arrangements, arrangement_id
from headwater.runtime.compaction import merged_run
from headwater.runtime.inputs import Inputs
from headwater.runtime.units import Done, Unit, ViewUnit
from headwater.state.damage import is_of_state
from headwater.state.manifest import Manifest, ViewState, encode_schema
from headwater.state.refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer

BACKFILL_ROWS = 500_000
"""Rows that a view which is behind takes per tick: enough to be fast, few enough not to hold up the others."""


@dataclass(frozen=True)
class Target:
    """What a tick is to be: its number, by whom, and the cut that live views move to."""

    tick: int
    epoch: int
    positions: Ends
    sequence: int
    """The commit of the log that the positions stand for."""
    rows_max: int


@dataclass
class _Standing:
    """Where a unit is before and after a tick."""

    state: ViewState | None
    change: Delta | None = None
    """Of this tick; None unless the unit is live in it."""
    joined: bool = False
    """Live from this tick on: who reads it gets its whole contents."""
    status: str = "backfilling"
    reason: str | None = None
    sequence: int = 0
    positions: Ends = field(default_factory=dict)
    begun: bool = False
    """Whether it has made its first step, in which constants and empty aggregates come in."""
    built: int = 0
    """The tick at which it began."""
    begins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """topic -> its partitions' first offsets then: what was removed since cannot be read again."""


class Attempt:
    """One try at a tick."""

    def __init__(
        self,
        log: Log,
        store: StateStore,
        units: Sequence[Unit],
        before: Manifest | None,
        damaged: Mapping[str, str],
        target: Target,
    ) -> None:
        self._log = log
        self._store = store
        self._units = units
        self._before = before
        self._damaged = damaged
        self._cut = target.positions
        self._sequence = target.sequence
        self._backfill_rows = min(BACKFILL_ROWS, target.rows_max)
        self._tick = target.tick
        self._epoch = target.epoch
        self.writer: Writer = store.begin(self._tick, self._epoch)
        self._inputs = Inputs(log)
        self._standing: dict[str, _Standing] = {}
        self._arrangements = Arrangements(store, self.writer, self._tick)
        self._changes: dict[str, RunRef] = {}
        self.newly_stopped: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """Records of the log that were taken in."""
        return self._inputs.rows

    # --- moving ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Move every unit, sources first."""
        for unit in self._units:
            standing = self._standing[unit.name] = self._stand(unit)
            if standing.status == "stopped":
                continue
            blocked = self._blocked(unit)
            if blocked is not None:
                status, reason = blocked
                if status == "stopped":
                    self._stop(unit, standing, reason)
                elif standing.status == "live":
                    self._standing[unit.name] = self._anew(unit, standing.state, reason)
                continue
            try:
                self._move(unit, standing)
            except (FencedError, StorageError, ClosedError):
                raise
            except HeadwaterError as error:
                if error.retryable or is_of_state(error):
                    raise
                self._stop(unit, standing, str(error.message))

    def _stand(self, unit: Unit) -> _Standing:
        state = self._before.views.get(unit.name) if self._before else None
        if state is None or state.extra.get("identity") != unit.identity:
            return self._anew(unit, None, "")
        wrong = self._damage(unit)
        if wrong is not None and state.status != "stopped":
            return self._anew(unit, state, f"its state is damaged: {wrong}")
        assert self._before is not None
        self._arrangements.take_over(unit, self._before)
        return _Standing(
            state,
            status=state.status,
            reason=state.reason,
            sequence=int(state.extra["sequence"]),
            positions=state.positions,
            begun=bool(state.extra["begun"]),
            built=state.built,
            begins=state.extra["begins"],
        )

    def _damage(self, unit: Unit) -> str | None:
        """What is wrong with the state of a unit, or with that of one that it reads: its changes are not known then."""
        found = self._damaged
        if not found:
            return None
        names = [arrangement_id(unit, slot) for slot in unit.slots]
        if self._before is not None:
            names += [v.contents for v in map(self._before.views.get, unit.units) if v is not None]
        mine = (found.get(name) for name in names)
        below = (self._damage(self._unit(name)) for name in unit.units)
        return next((wrong for wrong in (*mine, *below) if wrong is not None), None)

    def _anew(self, unit: Unit, state: ViewState | None, reason: str) -> _Standing:
        """Begin to build a unit; `state` is what it loses thereby, if something, and `reason` why.

        If records that it was built from were removed, it would not be the same again: then it is stopped instead.
        """
        begins = {t: [p.first for _, p in sorted(self._log.partitions(t).items())] for t in unit.topics}
        if state is not None:
            then: Mapping[str, Sequence[int]] = state.extra["begins"]
            if any(self._removed(t, begins[t], then[t]) for t in unit.topics):
                assert self._before is not None
                self._arrangements.take_over(unit, self._before)
                standing = _Standing(state, None, built=state.built, begins=then, begun=True)
                standing.positions, standing.sequence = state.positions, int(state.extra["sequence"])
                self._stop(unit, standing, f"{reason}, and records that it was made from were removed since")
                return standing
        self._arrangements.clear(unit)
        return _Standing(None, built=self._tick, begins=begins)

    def _removed(self, topic: str, now: Sequence[int], then: Sequence[int]) -> bool:
        """Whether records were removed that are of consequence: compaction takes only those that others replace."""
        definition = self._log.topic(topic)
        if definition.retention_us is None and definition.retention_bytes is None:
            return False
        return any(a > b for a, b in zip(now, then, strict=True))

    def _blocked(self, unit: Unit) -> tuple[str, str] | None:
        for name in unit.units:
            below = self._standing.get(name)
            if below is None:
                return "stopped", f"{name} is not there any more"
            if below.status != "live":
                return below.status, f"it reads {name}, which is {below.status}"
        return None

    def _move(self, unit: Unit, standing: _Standing) -> None:
        first = not standing.begun
        if standing.status == "live":
            changes = {t: self._inputs.read(unit, t, standing.positions, self._cut) for t in unit.topics}
            below = {n: self._standing[n] for n in unit.units}
            changes |= {
                n: self._replaced(n) if s.joined else s.change or self._nothing(n) for n, s in below.items()
            }
            self._apply(unit, standing, changes, first=False)
            standing.positions, standing.sequence = self._own_cut(unit, self._cut), self._sequence
            return
        target, sequence = self._chunk(unit, standing)
        joins = sequence >= self._sequence
        changes = {t: self._inputs.read(unit, t, standing.positions, target) for t in unit.topics}
        if joins:
            changes |= {n: self._contents(n) for n in unit.units}
        self._apply(unit, standing, changes, first=first)
        standing.positions, standing.sequence, standing.begun = self._own_cut(unit, target), sequence, True
        if joins:
            standing.status, standing.joined = "live", True
            if not first:
                self._change_is_all(unit)

    def _nothing(self, name: str) -> Delta:
        return Delta.empty(self._unit(name).schema)

    def _replaced(self, name: str) -> Delta:
        """What a view that was built anew and joins in this tick changes for those who read the one before it."""
        now = self._contents(name)
        then = self._before.views.get(name) if self._before else None
        if then is None or self._before is None or then.status != "live":
            return now
        runs = self._arrangements.opened(self._before.arrangements.get(then.contents, ()))
        old = self._unit(name).rows(runs)
        return consolidate(concat([now, old.negated()], self._unit(name).schema))

    def _chunk(self, unit: Unit, standing: _Standing) -> tuple[Ends, int]:
        """How far a unit that is behind goes in this tick."""
        if not unit.topics:
            return {}, self._sequence
        if self._before is None:
            return self._cut, self._sequence
        cut = next_cut(self._log, list(unit.topics), standing.positions, self._backfill_rows)
        if cut.sequence < self._sequence:
            return cut.positions, cut.sequence
        common = {t: self._cut[t] for t in unit.topics if t in self._cut}
        clipped = {
            t: common.get(t) or self._inputs.clip(t, standing.positions, cut.positions, self._sequence)
            for t in unit.topics
        }
        return clipped, self._sequence

    def _own_cut(self, unit: Unit, cut: Ends) -> Ends:
        return {t: dict(cut[t]) for t in unit.topics if t in cut}

    def _apply(
        self, unit: Unit, standing: _Standing, changes: Mapping[str, Delta | pa.RecordBatch], *, first: bool
    ) -> None:
        nothing = not first and not any(_size(c) for c in changes.values())
        if nothing:
            standing.change = None
            return
        done: Done = unit.step(changes, lambda slot: self._arrangements.runs(unit, slot), first=first)
        for slot, run in done.runs.items():
            ref = self._arrangements.add(unit, slot, run)
            if slot is unit.contents and not unit.is_table:
                self._changes[unit.name] = ref
        standing.change = done.change

    def _stop(self, unit: Unit, standing: _Standing, reason: str) -> None:
        # what it did in this tick is undone by not being named: its arrangements are those of the last tick
        self._arrangements.clear(unit)
        if standing.state is not None and self._before is not None:
            self._arrangements.take_over(unit, self._before)
        if standing.status != "stopped":
            self.newly_stopped[unit.name] = reason
        standing.status, standing.reason, standing.change = "stopped", reason, None

    # --- state -----------------------------------------------------------------------------------------------------

    def _unit(self, name: str) -> Unit:
        return next(u for u in self._units if u.name == name)

    def _contents(self, name: str) -> Delta:
        unit = self._unit(name)
        return unit.rows(self._arrangements.runs(unit, unit.contents))

    def _change_is_all(self, unit: Unit) -> None:
        """A view that joins after several chunks: to those who follow it, the change is all that it holds."""
        runs = self._arrangements.runs(unit, unit.contents)
        if unit.is_table or not runs:
            return
        whole = merged_run(unit.contents, runs, bottom=True)
        self._changes[unit.name] = self._arrangements.replace(unit, unit.contents, whole)

    # --- committing ------------------------------------------------------------------------------------------------

    def worth_committing(self) -> bool:
        """Whether anything is new: rows, a view that came, went, joined or stopped."""
        if self._before is None:
            return bool(self._units)
        if self.newly_stopped or self.rows or any(s.state is None for s in self._standing.values()):
            return True
        live = {t for u in self._units if self._standing[u.name].status == "live" for t in u.topics}
        if any(self._cut[t] != self._before.positions.get(t) for t in live):
            return True  # offsets that hold no record were passed
        now = {u.name: (u.identity, self._standing[u.name].status) for u in self._units}
        then = {n: (v.extra.get("identity"), v.status) for n, v in self._before.views.items()}
        if now != then:
            return True
        behind = (s for s in self._standing.values() if s.status == "backfilling")
        return any(s.state and s.sequence != int(s.state.extra["sequence"]) for s in behind)

    def commit(self) -> Manifest:
        """Write the tick."""
        live = [u for u in self._units if self._standing[u.name].status == "live"]
        topics = {t for u in live for t in u.topics}
        manifest = Manifest(
            tick=self._tick,
            epoch=self._epoch,
            committed_at=self._store.commit_time(),
            sequence=self._sequence,
            positions={t: dict(self._cut[t]) for t in sorted(topics) if t in self._cut}
            or dict(self._before.positions if self._before else {}),
            arrangements=self._arrangements.refs,
            views={u.name: self._view_state(u) for u in self._units},
        )
        self._store.commit(manifest)
        return manifest

    def _view_state(self, unit: Unit) -> ViewState:
        standing = self._standing[unit.name]
        then = self._before.views.get(unit.name) if self._before else None
        live = standing.status == "live"
        return ViewState(
            name=unit.name,
            incarnation=unit.definition.incarnation if isinstance(unit, ViewUnit) else 0,
            status=standing.status,  # type: ignore[arg-type]
            contents=arrangement_id(unit, unit.contents),
            schema=encode_schema(unit.schema),
            reason=standing.reason,
            last_tick=self._tick if live else (then.last_tick if then else None),
            positions=standing.positions,
            change=self._changes.get(unit.name) if live else None,
            built=standing.built,
            extra={
                "identity": unit.identity,
                "sequence": standing.sequence,
                "begun": standing.begun,
                "begins": standing.begins,
                "table": unit.is_table,
                "key": list(unit.key),
            },
        )


def _size(change: Delta | pa.RecordBatch) -> int:
    return change.num_rows if isinstance(change, pa.RecordBatch) else len(change)
