"""One try at a tick: every unit moved to a cut, and the manifest that says so.

Nothing that it computes is seen before its manifest is committed, and all of it is a function of the log and of the
manifest before, so that it can be given up at any point and done again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import (
    ClosedError,
    CorruptionError,
    FencedError,
    HeadwaterError,
    KeyStoreError,
    StorageError,
    TickNotKeptError,
    WorkspaceMissingError,
)
from headwater.log.cuts import next_cut
from headwater.log.protocol import Log
from headwater.operators.delta import Delta, concat, consolidate
from headwater.positions import Ends
from headwater.runtime import phases
from headwater.runtime.arrangements import Added, Arrangements, arrangement_id
from headwater.runtime.background import Merging
from headwater.runtime.catalog import Broken, Workload
from headwater.runtime.compaction import merged_run
from headwater.runtime.erasing import copied
from headwater.runtime.hidden import is_changelog
from headwater.runtime.history import base_of, base_slot, beginning, hold_from_start, removed
from headwater.runtime.inputs import Inputs
from headwater.runtime.lateness import watermarks_at
from headwater.runtime.mending import Mending
from headwater.runtime.moved import Standing
from headwater.runtime.phases import Phases
from headwater.runtime.pipeline import Again
from headwater.runtime.placement import Parts
from headwater.runtime.together import Move, together
from headwater.runtime.trials import OLD
from headwater.runtime.units import BESIDE, Derived, Done, Unit, ViewUnit, added, view_of
from headwater.runtime.versions import VersionsUnit
from headwater.state.bases import Bases
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
    erased: Mapping[str, str] | None = None
    """Arrangements that hold what was deleted, if something was: these are made anew, and all others copied."""
    mending: Mending | None = None
    """What is taken back from those that need not be made anew."""


class Attempt:
    """One try at a tick."""

    def __init__(
        self,
        log: Log,
        store: StateStore,
        workload: Workload,
        before: Manifest | None,
        damaged: Mapping[str, str],
        bases: Bases,
        target: Target,
        watch: Phases,
        merging: Merging | None = None,
    ) -> None:
        self._phases = watch
        self._log = log
        self._store = store
        self._bases = bases
        self._units = list(workload.units)
        self._broken = workload.broken
        self._before = before
        self._erases = target.erased is not None
        self._mending = target.mending
        self.mended: set[str] = set()
        """Units that something is taken back from in this tick."""
        self._damaged = {**damaged, **(target.erased or {})}
        self._cut = target.positions
        self._sequence = target.sequence
        self._backfill_rows = min(BACKFILL_ROWS, target.rows_max)
        self.tick = target.tick
        self._epoch = target.epoch
        self.writer: Writer = store.begin(self.tick, self._epoch)
        self.inputs = Inputs(log)
        self._standing: dict[str, Standing] = {}
        self._derives = any(isinstance(unit, ViewUnit) and unit.derived for unit in self._units)
        self._derived: dict[str, Derived] = {}
        """What the views that have moved give beside their rows, by name."""
        self._arrangements = Arrangements(store, self.writer, self.tick, watch, merging)
        self._changes: dict[str, Added] = {}
        self.newly_stopped: dict[str, str] = {}
        self.errors: dict[str, HeadwaterError] = {}
        self._reshaped: set[str] = set()
        """Views that have other columns from this tick on: those who read them are planned anew for the next."""

    @property
    def rows(self) -> int:
        """Records of the log that were taken in."""
        return self.inputs.rows

    # --- moving ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Move every unit, sources first."""
        for units in _side_by_side(list(self._units)):
            self._derive()
            with self._phases(phases.COMPUTE):
                together(map(self._turn, units))
        self._derive()
        self._rewrite()
        self._arrangements.settle()
        for name, broken in self._broken.items():
            state = self._before.views.get(name) if self._before else None
            if not broken.waits and (state is None or state.status != "stopped"):
                self.newly_stopped[name] = broken.reason

    def _turn(self, unit: Unit) -> Move[None]:
        """Move a unit, if it can be moved."""
        standing = self._standing[unit.name] = self._stand(unit)
        if standing.status == "stopped":
            return
        blocked = self._blocked(unit)
        if blocked is not None:
            status, reason = blocked
            standing = self._unmended(unit, standing, reason)
            if status == "stopped":
                standing.is_blocked = True
                self._stop(unit, standing, reason)
            elif standing.status == "live":
                self._standing[unit.name] = self._anew(unit, standing.state, reason)
            return
        if standing.status == "live" and (below := self._taken_back(unit)) is not None:
            reason = f"{below} was made anew, without rows that it had"
            standing = self._standing[unit.name] = self._anew(unit, standing.state, reason)
            if standing.status == "stopped":
                return
        try:
            yield from self._move(unit, standing)
        except (FencedError, StorageError, ClosedError):
            raise
        except (
            KeyStoreError
        ) as error:  # others go on without it, and it is built anew once its keys are there
            standing = self._unmended(unit, standing, str(error.message))
            standing.is_blocked = True
            self._stop(unit, standing, str(error.message))
            self.errors[unit.name] = error
        except HeadwaterError as error:
            if error.retryable or is_of_state(error):
                raise
            if (
                unit.name in self.mended
            ):  # what it holds cannot stay as it is: it is built from the next tick on
                self._unmended(unit, standing, str(error.message))
                return
            self._stop(unit, standing, str(error.message))
            self.errors[unit.name] = error
        if isinstance(unit, ViewUnit) and unit.replaces is not None and standing.status == "live":
            self._switch(unit, unit.replaces)

    def _derive(self) -> None:
        """What views give beside their rows stands where they stand, and goes with a view that is replaced."""
        if not self._derives:
            return
        for name in self._derived:
            self._standing.pop(name)
        self._derived = {
            derived.name: derived
            for unit in self._units
            if isinstance(unit, ViewUnit) and unit.replaces is None and unit.name in self._standing
            for derived in unit.derived
        }
        for name, derived in self._derived.items():
            view = self._standing[derived.view]
            change = view.beside.get(derived.contents.name) if view.status == "live" else None
            self._standing[name] = dataclasses.replace(view, change=change)

    def _switch(self, unit: ViewUnit, name: str) -> None:
        """A view that was built beside another takes its place, for all who read it, in this very tick; not while it is on
        trial."""
        if unit.trial is not None and not unit.trial.is_over:
            return
        old = self._unit(name)
        standing = self._standing[unit.name]
        if not standing.joined:  # it was on trial since it did
            standing.joined = True
            self._change_is_all(unit)
            standing.beside_refs |= self._beside_is_all(unit)
        if unit.trial is not None and self._before is not None:
            standing.old = self._before.tick
        self._arrangements.drop(old)
        place = self._units.index(unit)
        self._units[place] = unit.in_place()
        self._units.remove(old)
        self._standing[name] = self._standing.pop(unit.name)
        if unit.name in self._changes:
            self._changes[name] = self._changes.pop(unit.name)
        else:
            self._changes.pop(name, None)
        if not unit.schema.equals(old.schema):
            self._reshaped.add(name)

    def _stand(self, unit: Unit) -> Standing:
        state = self._before.views.get(unit.name) if self._before else None
        if self._before is not None and (state is None or state.extra.get("identity") != unit.identity):
            state = self._before.views.get(f"{unit.name}{BESIDE}")  # what it was to replace is gone
        if state is None or state.extra.get("identity") != unit.identity:
            then = self._before.views.get(unit.name) if self._before else None
            is_same = then is not None and isinstance(unit, ViewUnit) and then.incarnation == unit.incarnation
            return self._anew(unit, then if is_same else None, "it is planned otherwise now")
        if "unplanned" in state.extra:
            return self._anew(unit, state, state.reason or "")
        if "blocked" in state.extra and state.status == "stopped" and self._blocked(unit) is None:
            return self._anew(unit, state, "what it reads was built anew")
        wrong = self._damage(unit)
        if wrong is not None and (state.status != "stopped" or self._erases):
            return self._anew(unit, state, f"its state is not what it should be: {wrong}")
        assert self._before is not None
        self._arrangements.take_over(unit, self._before)
        if self._mending is not None and unit.name in self._mending.units:
            self.mended.add(unit.name)
            self._arrangements.rewritten.add(unit.identity)
        return Standing(
            state,
            status=state.status,
            reason=state.reason,
            sequence=int(state.extra["sequence"]),
            positions=state.positions,
            begun=bool(state.extra["begun"]),
            built=state.built,
            begins=state.extra["begins"],
            base=self._bases.newest() if "base" in state.extra else None,
            ledger=state.extra.get("ledger", {}),
            watermarks=state.extra.get("watermarks", {}),
            is_blocked="blocked" in state.extra,
            key=tuple(state.extra["key"]),
            old=state.extra.get(OLD),
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

    def _anew(self, unit: Unit, state: ViewState | None, reason: str) -> Standing:
        """Begin to build a unit; `state` is what it loses thereby, if something, and `reason` why.

        If records that it was built from were removed, it goes on from its base. Without one it would not be the same
        again: then it is stopped instead.
        """
        hold_from_start(self._log, unit.topics)
        needs_all = isinstance(unit, VersionsUnit)
        begins = {
            topic: beginning(self._log, topic, every_record=needs_all or is_changelog(name))
            for topic, name in unit.named.items()
        }
        based = base_of(self._log, unit, self._bases.newest())
        if based is not None and removed(self._log, based.extra["begins"]):
            return self._from_base(unit, based, state)
        if state is not None and removed(self._log, state.extra["begins"]):
            return self._stopped_at(
                unit, state, f"{reason}, and records that it was made from were removed since"
            )
        self._arrangements.clear(unit)
        return Standing(None, built=self.tick, begins=begins)

    def _from_base(self, unit: Unit, based: ViewState, state: ViewState | None) -> Standing:
        base = self._bases.newest()
        assert base is not None
        refs = {slot.name: base.arrangements.get(base_slot(based, slot), ()) for slot in unit.slots}
        try:
            self._bases.restore(ref.file for each in refs.values() for ref in each)
            for each in refs.values():
                for ref in each:
                    self._store.verify(ref)
        except (CorruptionError, TickNotKeptError, WorkspaceMissingError) as error:
            return self._stopped_at(unit, state or based, f"its base at tick {base.tick} is damaged: {error}")
        self._arrangements.put(unit, refs)
        return Standing(
            None,
            built=self.tick,
            begins=based.extra["begins"],
            positions=based.positions,
            sequence=int(based.extra["sequence"]),
            begun=True,
            base=base,
            ledger=based.extra.get("ledger", {}),
            watermarks=based.extra.get("watermarks", {}),
            key=tuple(based.extra["key"]),
        )

    def _stopped_at(self, unit: Unit, state: ViewState, reason: str) -> Standing:
        standing = Standing(state, None, built=state.built, begins=state.extra["begins"], begun=True)
        standing.positions, standing.sequence = state.positions, int(state.extra["sequence"])
        self._stop(unit, standing, reason)
        return standing

    def _blocked(self, unit: Unit) -> tuple[str, str] | None:
        if isinstance(unit, ViewUnit) and unit.trial is not None:
            if unit.trial.problem is not None:
                return "stopped", unit.trial.problem
            for name in unit.units:
                if (new := self._standing.get(f"{name}{BESIDE}")) is not None and self._is_on_trial(name):
                    status = "stopped" if new.status == "stopped" else "backfilling"
                    return status, f"it reads {name}, which is being built anew"
        for name in unit.units:
            below = self._standing.get(name)
            if below is None:
                return "stopped", f"{name} is not there any more"
            if name in self._reshaped:
                return "backfilling", f"{name} has other columns now"
            if below.status != "live":
                return below.status, f"it reads {name}, which is {below.status}"
        return None

    def _is_on_trial(self, name: str) -> bool:
        unit = self._unit(f"{name}{BESIDE}")
        return isinstance(unit, ViewUnit) and unit.trial is not None

    def _taken_back(self, unit: Unit) -> str | None:
        """A view below that was made anew, and from this tick on lacks rows which the unit counts on."""
        for name in unit.counts_on if isinstance(unit, ViewUnit) else ():
            if self._standing[name].joined and (self._replaced(name).weights < 0).any():
                return name
        return None

    def _move(self, unit: Unit, standing: Standing) -> Move[None]:
        first = not standing.begun
        if standing.status == "live":
            changes = self._read(unit, standing.positions, self._cut)
            below = {n: self._standing[n] for n in unit.units}
            changes |= {
                n: self._replaced(n) if s.joined else s.change or self._nothing(n) for n, s in below.items()
            }
            yield from self._apply(unit, standing, changes, self._watermarks(unit, self._cut), first=False)
            standing.positions, standing.sequence = self._own_cut(unit, self._cut), self._sequence
            return
        target, sequence = self._chunk(unit, standing)
        joins = sequence >= self._sequence
        changes = self._read(unit, standing.positions, target)
        if joins:
            changes |= {n: self._since(n, standing.base) for n in unit.units}
        at = {**self._cut, **target} if joins else target
        yield from self._apply(unit, standing, changes, self._watermarks(unit, at), first=first)
        standing.positions, standing.sequence, standing.begun = self._own_cut(unit, target), sequence, True
        if joins:
            standing.status, standing.joined, standing.base = "live", True, None
            if not first:
                self._change_is_all(unit)
                standing.beside_refs |= self._beside_is_all(unit)

    def _read(self, unit: Unit, start: Ends, end: Ends) -> dict[str, Delta | pa.RecordBatch]:
        with self._phases(phases.READ):
            changes = self.inputs.changes(unit, start, end)
            if self._mending is not None and unit.name in self.mended:
                changes = self._mending.added(unit, changes, start, self.inputs)
            return changes

    def _again(self, unit: ViewUnit) -> Again:
        """Computes groups of a view again that something is taken back from."""
        assert self._mending is not None
        return self._mending.again(unit, self._cut, self.inputs, self._contents)

    def _since(self, name: str, base: Manifest | None) -> Delta:
        """What a unit that is built anew has yet to read of one below it: all, or what is not in its base."""
        now = self._contents(name)
        if base is None:
            return now
        unit = self._relation(name)
        then = base.arrangements.get(base.views[name].contents, ())
        self._bases.restore(ref.file for ref in then)
        old = unit.rows(self._arrangements.opened(then))
        return consolidate(concat([now, old.negated()], unit.schema))

    def _nothing(self, name: str) -> Delta:
        return Delta.empty(self._relation(name).schema)

    def _replaced(self, name: str) -> Delta:
        """What a view that was built anew and joins in this tick changes for those who read the one before it."""
        now = self._contents(name)
        then = self._before.views.get(name) if self._before else None
        if then is None or self._before is None or then.status != "live":
            return now
        runs = self._arrangements.opened(self._before.arrangements.get(then.contents, ()))
        old = self._relation(name).rows(runs)
        return consolidate(concat([now, old.negated()], self._relation(name).schema))

    def _chunk(self, unit: Unit, standing: Standing) -> tuple[Ends, int]:
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
            t: common.get(t) or self.inputs.clip(t, standing.positions, cut.positions, self._sequence)
            for t in unit.topics
        }
        return clipped, self._sequence

    def _own_cut(self, unit: Unit, cut: Ends) -> Ends:
        return {t: dict(cut[t]) for t in unit.topics if t in cut}

    def _watermarks(self, unit: Unit, at: Ends) -> dict[str, int]:
        """The watermarks of the topics that a unit waits for, at some positions; none is there for one without."""
        if not isinstance(unit, ViewUnit) or not unit.waits_for:
            return {}
        return watermarks_at(self._log, unit.waits_for, at)

    def _apply(
        self,
        unit: Unit,
        standing: Standing,
        changes: Mapping[str, Delta | pa.RecordBatch],
        watermarks: Mapping[str, int],
        *,
        first: bool,
    ) -> Move[None]:
        nothing = not first and unit.name not in self.mended and not any(map(_size, changes.values()))
        if nothing and watermarks == standing.watermarks:
            standing.change = None
            return
        standing.watermarks = watermarks
        held = self._arrangements.of(unit)
        if isinstance(unit, ViewUnit):
            self._arrange(unit, standing)
            if unit.is_past_replay(standing.positions):
                self._arrangements.expire(unit, watermarks)
            again = self._again(unit) if unit.name in self.mended else None
            done: Done = yield from unit.move(changes, held, first=first, watermarks=watermarks, again=again)
        else:
            done = unit.step(changes, held, first=first)
        for slot, run in done.runs.items():
            if isinstance(run, Parts):
                self._arrangements.add_parts(unit, slot, run)
                continue
            added_run = self._arrangements.add(unit, slot, run)
            if slot is unit.contents and not unit.is_table:
                self._changes[unit.name] = added_run
            if slot in done.beside:
                standing.beside_refs[slot.name] = added_run
        standing.change = done.change
        standing.beside = {slot.name: change for slot, change in done.beside.items()}
        standing.ledger = added(standing.ledger, done.counted)

    def _arrange(self, unit: ViewUnit, standing: Standing) -> None:
        """Before contents are added to, arrange them as they are now, if it was by other columns that they were once."""
        if standing.key is not None and standing.key != unit.key:
            for run in unit.arranged(self._arrangements.runs(unit, unit.contents), standing.key):
                self._arrangements.replace(unit, unit.contents, run)
            standing.key = unit.key

    def _unmended(self, unit: Unit, standing: Standing, reason: str) -> Standing:
        """Build a unit anew that something was to be taken back from, and cannot be."""
        if unit.name not in self.mended:
            return standing
        self.mended.remove(unit.name)
        self._arrangements.rewritten.discard(unit.identity)
        made = self._standing[unit.name] = self._anew(unit, standing.state, reason)
        return made

    def _rewrite(self) -> None:
        """Write what something was taken back from as a whole: to those who follow, it is another that was built here."""
        for unit in self._units:
            if unit.name in self.mended:
                self._standing[unit.name].built = self.tick
                for slot in unit.slots:
                    added_run = self._arrangements.rewrite(unit, slot)
                    self._standing[unit.name].beside_refs[slot.name] = added_run
                    if slot is unit.contents and not unit.is_table:
                        self._changes[unit.name] = added_run

    def _stop(self, unit: Unit, standing: Standing, reason: str) -> None:
        # what it did in this tick is undone by not being named: its arrangements are those of the last tick, unless that must go
        self._arrangements.clear(unit)
        is_erased = self._erases and self._damage(unit) is not None
        if standing.state is not None and self._before is not None and not is_erased:
            self._arrangements.take_over(unit, self._before)
        if standing.status != "stopped":
            self.newly_stopped[unit.name] = reason
        standing.status, standing.reason, standing.change = "stopped", reason, None
        standing.ledger = standing.state.extra.get("ledger", {}) if standing.state is not None else {}
        standing.key = tuple(standing.state.extra["key"]) if standing.state is not None else None

    # --- state -----------------------------------------------------------------------------------------------------

    def _unit(self, name: str) -> Unit:
        """A unit, by its name or that of what it gives beside its rows."""
        name = self._derived[name].view if name in self._derived else name
        return next(u for u in self._units if u.name == name)

    def _relation(self, name: str) -> Unit | Derived:
        """What a view reads."""
        return self._derived[name] if name in self._derived else self._unit(name)

    def _contents(self, name: str) -> Delta:
        relation = self._relation(name)
        return relation.rows(self._arrangements.runs(self._unit(name), relation.contents))

    def _change_is_all(self, unit: Unit) -> None:
        """A view that joins after several chunks: to those who follow it, the change is all that it holds."""
        runs = self._arrangements.runs(unit, unit.contents)
        if unit.is_table or not runs:
            return
        whole = merged_run(unit.contents, runs, bottom=True)
        self._changes[unit.name] = self._arrangements.replace(unit, unit.contents, whole)

    def _beside_is_all(self, unit: Unit) -> dict[str, Added]:
        """The same for what it gives beside its rows."""
        refs = {}
        for derived in unit.derived if isinstance(unit, ViewUnit) else ():
            if runs := self._arrangements.runs(unit, derived.contents):
                whole = merged_run(derived.contents, runs, bottom=True)
                refs[derived.contents.name] = self._arrangements.replace(unit, derived.contents, whole)
        return refs

    # --- committing ------------------------------------------------------------------------------------------------

    def worth_committing(self) -> bool:
        """Whether anything is new: rows, a view that came, went, joined or stopped."""
        if self._before is None:
            return bool(self._units)
        if (
            self._erases
            or self.newly_stopped
            or self.rows
            or any(s.state is None for s in self._standing.values())
        ):
            return True
        live = {t for u in self._units if self._standing[u.name].status == "live" for t in u.topics}
        if any(self._cut[t] != self._before.positions.get(t) for t in live):
            return True  # offsets that hold no record were passed
        moved = (*self._units, *self._derived.values())
        now: dict[str, tuple[Any, str]] = {u.name: (u.identity, self._standing[u.name].status) for u in moved}
        left = (self._broken_state(name, broken) for name, broken in self._broken.items())
        now |= {state.name: (state.extra.get("identity"), state.status) for state in left}
        then = {n: (v.extra.get("identity"), v.status) for n, v in self._before.views.items()}
        if now != then:
            return True
        behind = (s for s in self._standing.values() if s.status == "backfilling")
        return any(s.state and s.sequence != int(s.state.extra["sequence"]) for s in behind)

    def commit(self, extra: Mapping[str, Any]) -> Manifest:
        """Write the tick, with what the engine has to say in it."""
        live = [self._standing[u.name] for u in self._units if self._standing[u.name].status == "live"]
        # a topic that nobody read before is not in the cut: one that joins has its position by itself
        own = {topic: dict(ends) for standing in live for topic, ends in standing.positions.items()}
        manifest = Manifest(
            tick=self.tick,
            epoch=self._epoch,
            committed_at=self._store.commit_time(),
            sequence=self._sequence,
            positions={t: own[t] for t in sorted(own)}
            or dict(self._before.positions if self._before else {}),
            arrangements=copied(self._store, self.writer, self._arrangements.refs)
            if self._erases
            else self._arrangements.refs,
            views={u.name: self._view_state(u) for u in self._units}
            | {name: self._derived_state(derived) for name, derived in self._derived.items()}
            | {name: self._broken_state(name, broken) for name, broken in self._broken.items()},
            extra=extra,
        )
        self._store.commit(manifest)
        self._arrangements.committed(manifest)
        return manifest

    def _broken_state(self, name: str, broken: Broken) -> ViewState:
        """A view that cannot be planned stays where it was: what it held can be read at the last tick that it was in."""
        state = self._before.views.get(name) if self._before else None
        if state is not None and state.incarnation == broken.definition.incarnation:
            extra = {**state.extra, "unplanned": True}
            return dataclasses.replace(
                state, status="stopped", reason=broken.reason, change=None, extra=extra
            )
        return ViewState(
            name=name,
            incarnation=broken.definition.incarnation,
            status="backfilling" if broken.waits else "stopped",
            contents="",
            schema=encode_schema(broken.definition.columns),
            reason=broken.reason,
            built=self.tick,
            extra={"unplanned": True, "begins": {}, "key": []},
        )

    def _derived_state(self, derived: Derived) -> ViewState:
        """What a view gives beside its rows is as the view is."""
        unit = self._unit(derived.view)
        state, then = self._view_state(unit), self._before.views.get(derived.name) if self._before else None
        live = state.status == "live"
        return dataclasses.replace(
            state,
            name=derived.name,
            contents=arrangement_id(unit, derived.contents),
            schema=encode_schema(derived.schema),
            last_tick=self.tick if live else (then.last_tick if then else None),
            change=_ref(self._standing[derived.view].beside_refs.get(derived.contents.name))
            if live
            else None,
            extra={k: v for k, v in state.extra.items() if k != "ledger"}
            | {"key": list(derived.contents.key), "derived": True},
        )

    def _view_state(self, unit: Unit) -> ViewState:
        standing = self._standing[unit.name]
        then = self._before.views.get(unit.name) if self._before else None
        live = standing.status == "live"
        return ViewState(
            name=unit.name,
            incarnation=unit.incarnation,
            status=standing.status,  # type: ignore[arg-type]
            contents=arrangement_id(unit, unit.contents),
            schema=unit.contents.layout
            if unit.contents.schema is unit.schema
            else encode_schema(unit.schema),
            reason=standing.reason,
            last_tick=self.tick if live else (then.last_tick if then else None),
            positions=standing.positions,
            change=_ref(self._changes.get(unit.name)) if live else None,
            built=standing.built,
            extra={
                "identity": unit.identity,
                "fingerprint": unit.fingerprint,
                "sequence": standing.sequence,
                "begun": standing.begun,
                "begins": standing.begins,
                "table": unit.is_table,
                "key": list(unit.key if standing.key is None else standing.key),
            }
            | ({"base": standing.base.tick} if standing.base is not None else {})
            | ({"blocked": True} if standing.is_blocked else {})
            | ({OLD: standing.old} if standing.old is not None else {})
            | ({"ledger": standing.ledger} if isinstance(unit, ViewUnit) else {})
            | ({"watermarks": standing.watermarks} if standing.watermarks else {})
            | ({"keeps": list(unit.keeps)} if unit.keeps else {}),
        )


def _side_by_side(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Units in their order, those taken together that do not read each other; one that takes another's place is by itself."""
    found: dict[str, Unit] = {}
    for unit in units:
        replaces = isinstance(unit, ViewUnit) and unit.replaces is not None
        reads = any(name in found or view_of(name) in found for name in unit.units)
        if found and (replaces or reads):
            yield list(found.values())
            found = {}
        found[unit.name] = unit
        if replaces:
            yield list(found.values())
            found = {}
    if found:
        yield list(found.values())


def _ref(added_run: Added | None) -> RunRef | None:
    return None if added_run is None else added_run.ref


def _size(change: Delta | pa.RecordBatch) -> int:
    return change.num_rows if isinstance(change, pa.RecordBatch) else len(change)
