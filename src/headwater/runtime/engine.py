"""The tick: one cut through the log, every view moved to it, one commit.

All views that are live stand at the same cut and move together. A view that is new (or was built anew) is *behind*: it
catches up by itself, a chunk per tick, and joins the others when it has reached their cut; until then it is no part of
the tick. A view that fails is stopped where it was, with those above it, and the tick goes on without it.

Nothing that a tick computes is seen before its manifest is committed, and all of it is a function of the log and of
the manifest before: a crash at any point leaves the last tick, and the next engine does the same work again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headwater.clock import Clock
from headwater.errors import ClosedError, CorruptionError, FencedError, HeadwaterError, StorageError
from headwater.log.cuts import next_cut
from headwater.log.protocol import CursorMove, Log
from headwater.operators.delta import Delta, concat, concat_rows, consolidate
from headwater.operators.runs import Run
from headwater.positions import Ends
from headwater.runtime.catalog import Catalog
from headwater.runtime.compaction import compacted, merged_run
from headwater.runtime.pipeline import Slot
from headwater.runtime.units import Done, Unit, ViewUnit
from headwater.state.damage import damaged, is_of_state, lost
from headwater.state.manifest import Manifest, ViewState, encode_schema
from headwater.state.ownership import Ownership
from headwater.state.refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer

BACKFILL_ROWS = 500_000
"""Rows that a view which is behind takes per tick: enough to be fast, few enough not to hold up the others."""
TICK_ROWS_MAX = 1_000_000
"""Rows of a tick unless told otherwise: what bounds the memory that a long history takes."""
TICKS_KEPT = 100
"""Past ticks that can be read; older ones are collected."""
COLLECT_EVERY_TICKS = 16
TICKS_RESERVED = 10_000
LET_GO_EVERY_MS = 5_000.0
HOLD = "headwater_views"
"""The cursor that keeps a topic's records until every view has read them."""

_ENGINE, _TICKS = "engine", "ticks"


@dataclass(frozen=True)
class TickReport:
    """What a tick did."""

    tick: int
    rows: int
    seconds: float
    stopped: Mapping[str, str] = field(default_factory=dict)


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


class Engine:
    """Makes ticks. One per workspace, by `Ownership`."""

    def __init__(
        self, log: Log, store: StateStore, ownership: Ownership, catalog: Catalog, clock: Clock
    ) -> None:
        self._log = log
        self._store = store
        self._ownership = ownership
        self._catalog = catalog
        self._clock = clock
        self.manifest = store.latest_whole()
        self._damaged = {} if self.manifest is None else lost(store, self.manifest)
        entry = log.entries(_ENGINE).get(_TICKS)
        self._let_go_ms = clock.steady_ms()
        self._reserved = int(entry.document["reserved"]) if entry else 0
        self._first = self._first_tick()

    def tick(self, rows_max: int | None = None) -> TickReport | None:
        """Move every view on, by `rows_max` rows of the log at most; None if there is nothing to do."""
        rows_max = rows_max or TICK_ROWS_MAX
        started = self._clock.steady_ms()
        self._ownership.beat()
        units = self._catalog.units()
        before = self.manifest
        if before is None and not units:
            return None
        attempt = self._attempt(units, before, rows_max)
        if not attempt.worth_committing():
            return None
        self._ownership.check()
        manifest = attempt.commit()
        self.manifest, self._damaged = manifest, {}
        self._let_go()
        if manifest.tick % COLLECT_EVERY_TICKS == 0:
            self._store.collect(TICKS_KEPT, ())
        seconds = (self._clock.steady_ms() - started) / 1000
        return TickReport(manifest.tick, attempt.rows, seconds, attempt.newly_stopped)

    def _attempt(self, units: Sequence[Unit], before: Manifest | None, rows_max: int | None) -> _Attempt:
        """Do a tick's work. Views whose state turns out to be damaged are built anew in it."""
        while True:
            cut, sequence = self._cut(units, before, rows_max)
            attempt = _Attempt(self, units, before, cut, sequence, rows_max)
            try:
                attempt.run()
                return attempt
            except CorruptionError as error:
                if before is None or not is_of_state(error):
                    raise
                found = damaged(self._store, before)
                if found.keys() <= self._damaged.keys():
                    raise
                self._damaged |= found
                self._store.abandon(attempt.writer)

    def _let_go(self, *, now: bool = False) -> None:
        """Let the log remove what every view has read. A hold that lags behind only keeps a little more."""
        if not now and self._clock.steady_ms() - self._let_go_ms < LET_GO_EVERY_MS:
            return
        self._let_go_ms = self._clock.steady_ms()
        units = self._catalog.units()
        for cursor in self._log.cursors():
            if cursor.name != HOLD:
                continue
            read = [self._position(u).get(cursor.topic, {}) for u in units if cursor.topic in u.topics]
            least = {p: min((r.get(p, 0) for r in read), default=0) for p in cursor.positions}
            moved = {p: end for p, end in least.items() if end > cursor.positions[p]}
            if moved:
                self._log.move_cursor(CursorMove(cursor.topic, HOLD, moved))

    def _position(self, unit: Unit) -> Ends:
        state = self.manifest.views.get(unit.name) if self.manifest else None
        return state.positions if state is not None and state.extra.get("identity") == unit.identity else {}

    def finish(self) -> None:
        """The last act of an engine that stops in good order."""
        if self.manifest is not None:
            self._let_go(now=True)

    def next_tick(self) -> int:
        """The number of the next tick: never one that was there before, also if all state was deleted since.

        Numbers are reserved in the log, many at a time, because a commit of the log per tick would be one too many.
        """
        tick = max(self._first, self.manifest.tick + 1 if self.manifest else 0)
        if tick > self._reserved:
            entry = self._log.entries(_ENGINE).get(_TICKS)
            self._reserved = tick + TICKS_RESERVED
            document = {"reserved": self._reserved}
            self._log.put_entry(_ENGINE, _TICKS, document, expect=entry.sequence if entry else None)
        return tick

    def _first_tick(self) -> int:
        """This engine's first. After ticks that cannot be read any more a number is left out, so that followers, who
        need every tick, know that they cannot go on from them."""
        if self.manifest is None:
            return self._reserved + 1
        newest = self._store.ticks()[-1]
        return newest + 1 if newest == self.manifest.tick else newest + 2

    def settled(self) -> bool:
        """Whether every view is live or stopped: none is behind."""
        return self.manifest is not None and all(
            v.status != "backfilling" for v in self.manifest.views.values()
        )

    def _cut(self, units: Sequence[Unit], before: Manifest | None, rows_max: int | None) -> tuple[Ends, int]:
        """The positions that live views move to, and the commit of the log that they stand for."""
        if before is None:
            topics = sorted({t for u in units for t in u.topics})
            cut = next_cut(self._log, topics, {}, rows_max)
            return cut.positions, cut.sequence
        live = {name for name, v in before.views.items() if v.status == "live"}
        topics = sorted({t for u in units if u.name in live for t in u.topics})
        if not topics:
            sequence, ends = self._log.cut(sorted({t for u in units for t in u.topics}))
            return ends, sequence
        cut = next_cut(self._log, topics, before.positions, rows_max)
        return cut.positions, max(cut.sequence, before.sequence)


class _Attempt:
    """One try at a tick."""

    def __init__(
        self,
        engine: Engine,
        units: Sequence[Unit],
        before: Manifest | None,
        cut: Ends,
        sequence: int,
        rows_max: int | None,
    ) -> None:
        self._engine = engine
        self._log = engine._log
        self._store = engine._store
        self._units = units
        self._before = before
        self._cut = cut
        self._sequence = sequence
        self._backfill_rows = min(BACKFILL_ROWS, rows_max or BACKFILL_ROWS)
        self._tick = engine.next_tick()
        self._epoch = engine._ownership.epoch
        self.writer: Writer = self._store.begin(self._tick, self._epoch)
        self._standing: dict[str, _Standing] = {}
        self._arrangements: dict[str, tuple[RunRef, ...]] = {}
        self._runs: dict[str, list[Run]] = {}
        self._changes: dict[str, RunRef] = {}
        self._reads: dict[tuple[str, str], pa.RecordBatch] = {}
        self.newly_stopped: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """Records of the log that were taken in."""
        return sum(batch.num_rows for batch in self._reads.values())

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
        self._take_over(unit)
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
        found = self._engine._damaged
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
                self._take_over(unit)
                standing = _Standing(state, None, built=state.built, begins=then, begun=True)
                standing.positions, standing.sequence = state.positions, int(state.extra["sequence"])
                self._stop(unit, standing, f"{reason}, and records that it was made from were removed since")
                return standing
        self._arrangements |= {arrangement_id(unit, slot): () for slot in unit.slots}
        return _Standing(None, built=self._tick, begins=begins)

    def _removed(self, topic: str, now: Sequence[int], then: Sequence[int]) -> bool:
        """Whether records were removed that are of consequence: compaction takes only those that others replace."""
        definition = self._log.topic(topic)
        if definition.retention_us is None and definition.retention_bytes is None:
            return False
        return any(a > b for a, b in zip(now, then, strict=True))

    def _take_over(self, unit: Unit) -> None:
        assert self._before is not None
        for slot in unit.slots:
            name = arrangement_id(unit, slot)
            self._arrangements[name] = tuple(self._before.arrangements.get(name, ()))

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
            changes = {t: self._read(unit, t, standing.positions, self._cut) for t in unit.topics}
            below = {n: self._standing[n] for n in unit.units}
            changes |= {
                n: self._replaced(n) if s.joined else s.change or self._nothing(n) for n, s in below.items()
            }
            self._apply(unit, standing, changes, first=False)
            standing.positions, standing.sequence = self._own_cut(unit, self._cut), self._sequence
            return
        target, sequence = self._chunk(unit, standing)
        joins = sequence >= self._sequence
        changes = {t: self._read(unit, t, standing.positions, target) for t in unit.topics}
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
        runs = [self._store.open_run(ref) for ref in self._before.arrangements.get(then.contents, ())]
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
        clipped = {t: common.get(t) or self._clip(t, standing.positions, cut.positions) for t in unit.topics}
        return clipped, self._sequence

    def _clip(self, topic: str, start: Ends, end: Ends) -> dict[int, int]:
        """Positions of a topic at the tick's commit, where a cut went beyond it."""
        clipped: dict[int, int] = {}
        for partition, stop in end[topic].items():
            begin = start.get(topic, {}).get(partition)
            if begin is None:
                begin = self._log.partitions(topic)[partition].first
            clipped[partition] = stop
            for batch in self._log.read(topic, partition, begin, stop, ["_offset", "_sequence"]):
                later = np.flatnonzero(batch.column("_sequence").to_numpy() > self._sequence)
                if len(later):
                    clipped[partition] = int(batch.column("_offset")[int(later[0])].as_py())
                    break
        return clipped

    def _own_cut(self, unit: Unit, cut: Ends) -> Ends:
        return {t: dict(cut[t]) for t in unit.topics if t in cut}

    def _apply(
        self, unit: Unit, standing: _Standing, changes: Mapping[str, Delta | pa.RecordBatch], *, first: bool
    ) -> None:
        nothing = not first and not any(_size(c) for c in changes.values())
        if nothing:
            standing.change = None
            return
        done: Done = unit.step(changes, lambda slot: self._state(unit, slot), first=first)
        for slot, run in done.runs.items():
            self._add(unit, slot, run)
        standing.change = done.change

    def _stop(self, unit: Unit, standing: _Standing, reason: str) -> None:
        # what it did in this tick is undone by not being named: its arrangements are those of the last tick
        for slot in unit.slots:
            name = arrangement_id(unit, slot)
            self._arrangements[name] = ()
            self._runs.pop(name, None)
        if standing.state is not None:
            self._take_over(unit)
        if standing.status != "stopped":
            self.newly_stopped[unit.name] = reason
        standing.status, standing.reason, standing.change = "stopped", reason, None

    # --- state -----------------------------------------------------------------------------------------------------

    def _unit(self, name: str) -> Unit:
        return next(u for u in self._units if u.name == name)

    def _state(self, unit: Unit, slot: Slot) -> list[Run]:
        name = arrangement_id(unit, slot)
        if name not in self._runs:
            self._runs[name] = [self._store.open_run(ref) for ref in self._arrangements.get(name, ())]
        return list(self._runs[name])

    def _contents(self, name: str) -> Delta:
        unit = self._unit(name)
        return unit.rows(self._state(unit, unit.contents))

    def _add(self, unit: Unit, slot: Slot, run: Run) -> None:
        name = arrangement_id(unit, slot)
        runs = self._state(unit, slot)
        ref = self.writer.add(run, ticks=(self._tick, self._tick))
        self._store.remember(ref, run)
        refs = (*self._arrangements.get(name, ()), ref)
        if slot is unit.contents and not unit.is_table:
            self._changes[unit.name] = ref
        refs, runs = compacted(slot, refs, [*runs, run], self.writer, self._store)
        self._arrangements[name] = refs
        self._runs[name] = runs

    def _change_is_all(self, unit: Unit) -> None:
        """A view that joins after several chunks: to those who follow it, the change is all that it holds."""
        runs = self._state(unit, unit.contents)
        if unit.is_table or not runs:
            return
        whole = merged_run(unit.contents, runs, bottom=True)
        ref = self.writer.add(whole, ticks=(self._tick, self._tick))
        self._store.remember(ref, whole)
        name = arrangement_id(unit, unit.contents)
        self._arrangements[name], self._runs[name] = (ref,), [whole]
        self._changes[unit.name] = ref

    def _read(self, unit: Unit, topic: str, start: Ends, end: Ends) -> Delta | pa.RecordBatch:
        """The records of a topic between two cuts: in the order of the log for a table, as a change for a view."""
        begins, stops = start.get(topic, {}), end[topic]
        known = (topic, f"{unit.is_table}{sorted(begins.items())}{sorted(stops.items())}")
        if known not in self._reads:
            self._reads[known] = self._records(unit, topic, begins, stops)
        records = self._reads[known]
        return records if unit.is_table else Delta.of(records)

    def _records(
        self, unit: Unit, topic: str, begins: Mapping[int, int], stops: Mapping[int, int]
    ) -> pa.RecordBatch:
        schema = self._log.topic(topic).schema
        columns = [*schema.names, "_op"] if unit.is_table else list(schema.names)
        batches: list[pa.RecordBatch] = []
        for partition, stop in sorted(stops.items()):
            begin = begins.get(partition)
            if begin is None:
                begin = self._log.partitions(topic)[partition].first
            if begin < stop:
                batches += self._log.read(topic, partition, begin, stop, columns)
        if not batches:
            full = pa.schema([*schema, pa.field("_op", pa.string())]) if unit.is_table else schema
            return Delta.empty(full).rows
        return concat_rows(batches, batches[0].schema)

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
            arrangements=self._arrangements,
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


def arrangement_id(unit: Unit, slot: Slot) -> str:
    """The name of an arrangement in manifests."""
    return f"{unit.identity}/{slot.name}"


def _size(change: Delta | pa.RecordBatch) -> int:
    return change.num_rows if isinstance(change, pa.RecordBatch) else len(change)
