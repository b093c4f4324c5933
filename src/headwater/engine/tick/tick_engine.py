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
from typing import Any

from headwater.core.clock import Clock, parse_span_us
from headwater.core.errors import CorruptionError, HeadwaterError, OtherHistoryError
from headwater.core.positions import Ends, Token
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.retention_holds import let_go
from headwater.engine.collections.shadow_builds import old_ticks
from headwater.engine.collections.workload import Workload, marks_of
from headwater.engine.deletion import rebuild_after_delete
from headwater.engine.deletion.retract import UNSURE, unsure
from headwater.engine.merging.background_merge import Merging, clear_faults
from headwater.engine.metrics import phases
from headwater.engine.metrics.phases import Phases
from headwater.engine.metrics.rows_taken import ReadSpan
from headwater.engine.metrics.tick_totals import NAME as FIGURES
from headwater.engine.metrics.tick_totals import TickFigures, figures_of
from headwater.engine.tick.deletion_run import DeletionRun
from headwater.engine.tick.tick_run import TickRun
from headwater.engine.tick.tick_state import TickEnvironment, TickTarget
from headwater.log.cuts import next_cut
from headwater.log.deletion_entries import DeletionEntry, deletion_entries
from headwater.log.protocol import Log
from headwater.state.base_ticks import Bases
from headwater.state.damage import damaged, is_of_state, lost
from headwater.state.manifest import Manifest
from headwater.state.ownership import Ownership
from headwater.state.store import StateStore

TICK_ROWS_MAX = 1_000_000
"""Rows of a tick unless told otherwise: what bounds the memory that a long history takes."""
TICKS_KEPT = 100
"""Past ticks that can be read at once, unless told otherwise; older ones are collected."""
TICKS_KEPT_US = parse_span_us("5 minutes")
TICKS_KEPT_MAX = 2_000
"""Unless told otherwise, ticks of the last minutes are kept too, up to so many: who follows changes may restart."""
COLLECT_EVERY_TICKS = 16
TICKS_RESERVED = 10_000
LET_GO_EVERY_MS = 5_000.0
LOOK_EVERY_MS = 5_000.0
"""How often an engine that goes on looks whether its state is what it has written."""

_ENGINE, _TICKS = "engine", "ticks"


@dataclass(frozen=True)
class TickReport:
    """What a tick did."""

    tick: int
    rows: int
    """Records of the log that it took in, each once, however many views read it."""
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each phase; see `headwater.engine.metrics.phases`."""
    stopped: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, HeadwaterError] = field(default_factory=dict)
    reads: Sequence[ReadSpan] = ()
    """Where in the log `rows` are."""


class Engine:
    """Makes ticks. One per workspace, by `Ownership`."""

    def __init__(
        self,
        log: Log,
        store: StateStore,
        ownership: Ownership,
        context: EngineContext,
        clock: Clock,
        keep_ticks: int | None = None,
        *,
        in_background: bool = False,
    ) -> None:
        """`keep_ticks`: how many past ticks can be read at once; those before are computed from the log when asked for.

        `in_background`: large merges are left to a thread, for an engine that goes on; it is to be closed.
        """
        self._log = log
        self._store = store
        self._ownership = ownership
        self._catalog = context.catalog
        self._executor = context.executor
        self._clock = clock
        self._keep_ticks = keep_ticks
        clear_faults(log.faults)
        self._merging = self._new_merging() if in_background else None
        self._bases = Bases(store.storage)
        self.manifest, self._is_restored = self._begin()
        self._damaged = {} if self.manifest is None else lost(store, self.manifest)
        self._looked_ms = clock.steady_ms()
        entry = log.entries(_ENGINE).get(_TICKS)
        self._let_go_ms = clock.steady_ms()
        self._reserved = int(entry.document["reserved"]) if entry else 0
        self._first = self._first_tick()
        self._figures = figures_of(self.manifest)
        self.watch = Phases()
        """Where the time of the tick under way, or else of the last one, went; of one that failed too."""

    def tick(self, rows_max: int | None = None) -> TickReport | None:
        """Move every view on, by `rows_max` rows of the log at most; None if there is nothing to do."""
        rows_max = rows_max or TICK_ROWS_MAX
        started = self._clock.steady_ms()
        self._ownership.beat()
        before = self.manifest
        self._look_for_damage(before, started)
        deleted, followed = self._deletions()
        watch = self.watch = Phases()
        with watch(phases.PLAN):
            workload = self._workload(before)
        if before is None and not workload.units:
            rebuild_after_delete.settle_nothing(self._log, deleted, self._clock.now_us())
            return None
        if deleted:
            self._end_merges()
        run = self._run(workload, before, rows_max, watch, deleted)
        if not (run.commit.is_worth_it() or self._is_restored or followed):
            self._store.abandon(run.state.writer)
            return None
        with watch(phases.COMMIT):
            self._ownership.check()
            so_far = self._figures.and_then(self._cost(run, started, watch))
            manifest = run.commit.commit({FIGURES: so_far.document(), **self._deleted(run, deleted)})
        with watch(phases.TIDY):
            self._store.abandon(run.state.writer)
            self.manifest, self._damaged, self._is_restored = manifest, {}, False
            if deleted or followed:
                rebuild_after_delete.settle(
                    self._log, self._store, self._bases, manifest, {**deleted, **followed}
                )
            self._let_go()
            if manifest.tick % COLLECT_EVERY_TICKS == 0:
                kept = old_ticks(self._log, manifest).values()
                self._store.collect(self._keep_ticks or self._ticks_to_keep(manifest), kept)
        cost = self._cost(run, started, watch)
        self._figures = self._figures.and_then(cost)
        return TickReport(
            cost.tick,
            cost.rows,
            cost.seconds,
            cost.phases,
            run.state.newly_stopped,
            run.state.errors,
            run.state.inputs.reads,
        )

    def _look_for_damage(self, before: Manifest | None, now_ms: float) -> None:
        """So often, look whether files of the last tick are gone or were changed: what is in memory does not show it."""
        if before is not None and now_ms - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            self._damaged |= lost(self._store, before)

    def _deletions(self) -> tuple[dict[str, DeletionEntry], dict[str, DeletionEntry]]:
        """The deletions that the state is to follow, and those that it has followed while nobody came to say so."""
        known = self.manifest.extra.get(rebuild_after_delete.TAKEN, {}) if self.manifest is not None else {}
        found = rebuild_after_delete.pending(self._log).items()
        return {n: e for n, e in found if n not in known}, {n: e for n, e in found if n in known}

    def _deleted(self, run: TickRun, deleted: Mapping[str, DeletionEntry]) -> dict[str, Any]:
        """What a tick says of deletions, if there is something to say."""
        if not (entries := deletion_entries(self._log)):
            return {}
        retracted = run.plan.retracted if isinstance(run, DeletionRun) else set[str]()
        taken = rebuild_after_delete.taken(self._log, self.manifest, deleted, retracted)
        met = unsure(entries, deleted, self.manifest, run.state.inputs)
        return {name: told for name, told in ((rebuild_after_delete.TAKEN, taken), (UNSURE, met)) if told}

    def _cost(self, run: TickRun, started_ms: float, watch: Phases) -> TickFigures:
        seconds = (self._clock.steady_ms() - started_ms) / 1000
        return TickFigures(run.state.target.tick, run.state.inputs.rows, seconds, watch.seconds)

    def _ticks_to_keep(self, manifest: Manifest) -> int:
        before = self._store.tick_at(manifest.committed_at - TICKS_KEPT_US)
        recent = manifest.tick - before if before is not None else TICKS_KEPT_MAX
        return max(TICKS_KEPT, min(recent, TICKS_KEPT_MAX))

    def _end_merges(self) -> None:
        """Begin merges anew: what is being merged is about to be copied or removed."""
        if self._merging is not None:
            self._merging.close()
            self._merging = self._new_merging()

    def _new_merging(self) -> Merging:
        return Merging(self._store, self._ownership.epoch, self._log.faults, self._clock)

    def _run(
        self,
        workload: Workload,
        before: Manifest | None,
        rows_max: int,
        watch: Phases,
        deleted: Mapping[str, DeletionEntry],
    ) -> TickRun:
        """Do a tick's work. Views whose state turns out to be damaged are built anew in it."""
        while True:
            positions, sequence = self._cut(workload, before, rows_max)
            if marks_of(self._log.topics()) != workload.marks:
                # A column was dropped since it was planned, and the cut may have rows from after that.
                with watch(phases.PLAN):
                    workload = self._workload(before)
                continue
            target = TickTarget(self.next_tick(), self._ownership.epoch, positions, sequence, rows_max)
            environment = TickEnvironment(
                self._log, self._store, self._bases, watch, self._executor, self._merging
            )
            given = environment, workload, before, self._damaged, target
            run = DeletionRun(*given, deleted) if deleted else TickRun(*given)
            try:
                run.run()
                return run
            except CorruptionError as error:
                self._store.abandon(run.state.writer)
                if before is None or not is_of_state(error):
                    raise
                found = damaged(self._store, before)
                if found.keys() <= self._damaged.keys():
                    raise
                self._damaged |= found
            except BaseException:
                self._store.abandon(run.state.writer)
                raise

    def _let_go(self, *, now: bool = False) -> None:
        """Let the log remove what every view has read. A hold that lags behind only keeps a little more."""
        if not now and self._clock.steady_ms() - self._let_go_ms < LET_GO_EVERY_MS:
            return
        self._let_go_ms = self._clock.steady_ms()
        assert self.manifest is not None
        let_go(self._log, self._bases, self.manifest, self._clock)

    def finish(self) -> None:
        """The last act of an engine that stops in good order."""
        if self.manifest is not None:
            self._let_go(now=True)

    def close(self) -> None:
        """End what goes on in the background."""
        if self._merging is not None:
            self._merging.close()

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

    def _begin(self) -> tuple[Manifest | None, bool]:
        """The tick to go on from, and whether it is the base: the state since then is gone, and so are the records that
        would be needed to make it without the base. State of another log than this one is removed."""
        latest = self._store.latest_whole()
        try:
            base = self._bases.newest()
        except CorruptionError:
            if latest is None:
                raise
            return latest, False
        if base is not None and is_of_another_log(self._log, base):
            raise _other_base(base)
        if latest is not None and is_of_another_log(self._log, latest):
            self._store.drop()
            latest = None
        if base is None or (latest is not None and latest.tick >= base.tick):
            return latest, False
        self._bases.restore(base.files)
        return base, True

    def _first_tick(self) -> int:
        """This engine's first. After ticks that cannot be read any more a number is left out, so that followers, who
        need every tick, know that they cannot go on from them."""
        ticks = self._store.ticks()
        if self.manifest is None or not ticks:
            return max(self._reserved, self._store.last_recorded()) + 1
        newest = ticks[-1]
        return newest + 1 if newest == self.manifest.tick else newest + 2

    def settled(self) -> bool:
        """Whether every view is live or stopped: none is behind."""
        return self.manifest is not None and all(
            v.status != "backfilling" for v in self.manifest.views.values()
        )

    def _workload(self, before: Manifest | None) -> Workload:
        """What the next tick moves. Where a column is dropped that a view reads, a tick ends just before it, unless the last
        one did; the next is without that view."""
        reached = before.sequence if before is not None else 0
        while True:
            workload = self._catalog.workload(_served(before), reached)
            if before is None or workload.until is None:
                return workload
            positions, _ = self._cut(workload, before, 1)
            if any(ends != before.positions.get(topic) for topic, ends in positions.items()):
                return workload
            reached = workload.until

    def _cut(self, workload: Workload, before: Manifest | None, rows_max: int | None) -> tuple[Ends, int]:
        """The positions that live views move to, and the commit of the log that they stand for."""
        units = workload.units
        if before is None:
            topics = sorted({t for u in units for t in u.topics})
            cut = next_cut(self._log, topics, {}, rows_max)
            return cut.positions, cut.sequence
        live = {name for name, v in before.views.items() if v.status == "live"}
        topics = sorted({t for u in units if u.name in live for t in u.topics})
        if not topics:
            sequence, ends = self._log.cut(sorted({t for u in units for t in u.topics}))
            return ends, sequence
        cut = next_cut(self._log, topics, before.positions, rows_max, workload.until)
        return cut.positions, max(cut.sequence, before.sequence)


def is_of_another_log(log: Log, manifest: Manifest) -> bool:
    """Whether a tick covers commits that the log has no more, or has as others: an older copy of the log alone was put back,
    or a loss of power took its end."""
    return Token(manifest.sequence, manifest.commit).differs(log.commit_id(manifest.sequence))


def _other_base(base: Manifest) -> OtherHistoryError:
    return OtherHistoryError(
        f"the base of the views, from tick {base.tick}, is of another history of the log",
        detail=f"it covers commit {base.sequence} with the id {base.commit}, and the log has another commit there, or none: an "
        "older copy of the log was put back without the views, or a loss of power took its end",
        hint="put the folder bases of the same copy back; or remove it, and the views are made from the records that are kept",
        token=str(Token(base.sequence, base.commit)),
        found=None,
    )


def _served(manifest: Manifest | None) -> dict[str, int]:
    views = manifest.views.values() if manifest is not None else ()
    return {view.name: view.incarnation for view in views if view.status == "live"}
