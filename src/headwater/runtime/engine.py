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

from headwater.clock import Clock
from headwater.errors import CorruptionError
from headwater.log.cuts import next_cut
from headwater.log.protocol import CursorMove, Log
from headwater.positions import Ends
from headwater.runtime.attempt import Attempt, Target
from headwater.runtime.catalog import Catalog
from headwater.runtime.units import Unit
from headwater.state.damage import damaged, is_of_state, lost
from headwater.state.manifest import Manifest
from headwater.state.ownership import Ownership
from headwater.state.store import StateStore

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

    def _attempt(self, units: Sequence[Unit], before: Manifest | None, rows_max: int) -> Attempt:
        """Do a tick's work. Views whose state turns out to be damaged are built anew in it."""
        while True:
            positions, sequence = self._cut(units, before, rows_max)
            target = Target(self.next_tick(), self._ownership.epoch, positions, sequence, rows_max)
            attempt = Attempt(self._log, self._store, units, before, self._damaged, target)
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
