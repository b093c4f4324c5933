"""The engine: chooses a cut through the log, advances every view to it, and commits the tick.

All live views are at the same cut and advance together. A view that is new or being rebuilt is *behind*: it catches up
independently, one chunk per tick, and becomes live when it has reached the cut of the others; until then it is not part of the
tick. A view that fails is stopped at its position, together with the views that read it, and the tick goes on without them.

Results of a tick are invisible until its manifest is committed, and they are a function of the log and of the previous
manifest: after a crash at any point, the last tick is still there, and the next engine does the same work again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.core.clock import Clock, parse_span_us
from headwater.core.errors import CorruptionError, HeadwaterError, OtherHistoryError
from headwater.core.positions import Ends, Token
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.retention_holds import release_records
from headwater.engine.collections.shadow_builds import old_ticks
from headwater.engine.collections.workload import Workload, marks_of
from headwater.engine.deletion import rebuild_after_delete
from headwater.engine.deletion.retract import UNSURE, unsure
from headwater.engine.merging.background_merge import Merging, clear_faults
from headwater.engine.metrics import phases
from headwater.engine.metrics.phases import Phases
from headwater.engine.metrics.rows_taken import ReadSpan
from headwater.engine.metrics.tick_totals import NAME as TOTALS
from headwater.engine.metrics.tick_totals import TickCost, totals_of
from headwater.engine.tick import backfill_parts
from headwater.engine.tick.deletion_run import DeletionRun
from headwater.engine.tick.tick_budget import TICK_SECONDS_MAX, TickBound, TickBudget, is_too_large
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

TICKS_KEPT = 100
"""Default number of past ticks that can be read directly; older ones are garbage-collected."""
TICKS_KEPT_US = parse_span_us("5 minutes")
TICKS_KEPT_MAX = 2_000
"""Default maximum number of ticks that are kept because they are recent: subscribers may restart and go on from them."""
COLLECT_EVERY_TICKS = 16
TICKS_RESERVED = 10_000
RELEASE_EVERY_MS = 5_000.0
CHECK_EVERY_MS = 5_000.0
"""Interval at which a running engine checks its state files for loss or modification."""

_ENGINE, _TICKS = "engine", "ticks"
_log = logging.getLogger("headwater")


@dataclass(frozen=True)
class TickReport:
    """The outcome of a tick."""

    tick: int
    rows: int
    """Number of log records that were read, each counted once, however many views read it."""
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each phase; see `headwater.engine.metrics.phases`."""
    stopped: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, HeadwaterError] = field(default_factory=dict)
    reads: Sequence[ReadSpan] = ()
    """Spans of the log that contain `rows`."""


@dataclass(frozen=True)
class EngineOptions:
    """The options of an engine."""

    keep_ticks: int | None = None
    """Number of past ticks that can be read directly; older ones are computed from the log on request."""
    in_background: bool = False
    """Whether a thread does large merges, for an engine that keeps running; it must be closed."""


DEFAULT_OPTIONS = EngineOptions()


class Engine:
    """Runs ticks. A workspace has one engine at a time, by `Ownership`."""

    def __init__(
        self,
        log: Log,
        store: StateStore,
        ownership: Ownership,
        context: EngineContext,
        clock: Clock,
        options: EngineOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._log = log
        self._store = store
        self._ownership = ownership
        self._catalog = context.catalog
        self._executor = context.executor
        self._clock = clock
        self._keep_ticks = options.keep_ticks
        clear_faults(log.faults)
        self._merging = self._new_merging() if options.in_background else None
        self._budget = TickBudget(seconds_max=TICK_SECONDS_MAX if options.in_background else None)
        self._bases = Bases(store.storage)
        self.manifest, self._is_restored = self._begin()
        self._damaged = {} if self.manifest is None else lost(store, self.manifest)
        self._checked_ms = clock.steady_ms()
        entry = log.entries(_ENGINE).get(_TICKS)
        self._released_ms = clock.steady_ms()
        self._reserved = int(entry.document["reserved"]) if entry else 0
        self._first = self._first_tick()
        self._totals = totals_of(self.manifest)
        self.watch = Phases()
        """Time per phase of the tick under way, or else of the last tick, even if that failed."""

    def tick(self, rows_max: int | None = None) -> TickReport | None:
        """Run a tick that advances every view by at most `rows_max` rows of the log, or by as many as the memory allows;
        return None if there is nothing to do."""
        started = self._clock.steady_ms()
        self._ownership.beat()
        before = self.manifest
        self._check_for_damage(before, started)
        deleted, followed = self._deletions()
        watch = self.watch = Phases()
        with watch(phases.PLAN):
            workload = self._workload(before)
        if before is None and not workload.units:
            rebuild_after_delete.settle_nothing(self._log, deleted, self._clock.now_us())
            return None
        if deleted:
            self._end_merges()
        bound = (
            self._budget.bound(self._log, workload.units, before) if rows_max is None else TickBound(rows_max)
        )
        with self._budget.watching(bound) as memory:
            run = self._run(workload, before, bound.rows_max, watch, deleted)
        if memory is not None:
            seconds = (self._clock.steady_ms() - started) / 1000
            self._budget.record(run.state.inputs.rows, memory, seconds)
        self._budget.relax()
        if not (run.commit.is_worth_it() or self._is_restored or followed):
            self._store.abandon(run.state.writer)
            return None
        with watch(phases.COMMIT):
            self._ownership.check()
            so_far = self._totals.and_then(self._cost(run, started, watch))
            manifest = run.commit.commit({TOTALS: so_far.document(), **self._deleted(run, deleted)})
        with watch(phases.TIDY):
            self._store.abandon(run.state.writer)
            self.manifest, self._damaged, self._is_restored = manifest, {}, False
            if deleted or followed:
                rebuild_after_delete.settle(
                    self._log, self._store, self._bases, manifest, {**deleted, **followed}
                )
            self._release_records()
            if manifest.tick % COLLECT_EVERY_TICKS == 0:
                kept = old_ticks(self._log, manifest).values()
                self._store.collect(self._keep_ticks or self._ticks_to_keep(manifest), kept)
        cost = self._cost(run, started, watch)
        self._totals = self._totals.and_then(cost)
        return TickReport(
            cost.tick,
            cost.rows,
            cost.seconds,
            cost.phases,
            run.state.newly_stopped,
            run.state.errors,
            run.state.inputs.reads,
        )

    def _check_for_damage(self, before: Manifest | None, now_ms: float) -> None:
        """Check periodically whether files of the last tick are missing or were changed, which cached runs would not show."""
        if before is not None and now_ms - self._checked_ms >= CHECK_EVERY_MS:
            self._checked_ms = now_ms
            self._damaged |= lost(self._store, before)

    def _deletions(self) -> tuple[dict[str, DeletionEntry], dict[str, DeletionEntry]]:
        """Return the deletions that the next tick must apply, and those that an earlier tick has applied without
        settling them."""
        known = self.manifest.extra.get(rebuild_after_delete.TAKEN, {}) if self.manifest is not None else {}
        found = rebuild_after_delete.pending(self._log).items()
        return {n: e for n, e in found if n not in known}, {n: e for n, e in found if n in known}

    def _deleted(self, run: TickRun, deleted: Mapping[str, DeletionEntry]) -> dict[str, Any]:
        """Return the manifest entries about deletions; empty if there are none."""
        if not (entries := deletion_entries(self._log)):
            return {}
        retracted = run.plan.retracted if isinstance(run, DeletionRun) else set[str]()
        taken = rebuild_after_delete.taken(self._log, self.manifest, deleted, retracted)
        met = unsure(entries, deleted, self.manifest, run.state.inputs)
        return {name: found for name, found in ((rebuild_after_delete.TAKEN, taken), (UNSURE, met)) if found}

    def _cost(self, run: TickRun, started_ms: float, watch: Phases) -> TickCost:
        seconds = (self._clock.steady_ms() - started_ms) / 1000
        return TickCost(run.state.target.tick, run.state.inputs.rows, seconds, watch.seconds)

    def _ticks_to_keep(self, manifest: Manifest) -> int:
        before = self._store.tick_at(manifest.committed_at - TICKS_KEPT_US)
        recent = manifest.tick - before if before is not None else TICKS_KEPT_MAX
        return max(TICKS_KEPT, min(recent, TICKS_KEPT_MAX))

    def _end_merges(self) -> None:
        """Restart the merge thread: the runs that are being merged are about to be copied or removed."""
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
        """Run a tick up to its commit; views whose state turns out to be damaged are rebuilt in it, and a tick that runs out
        of memory is run again with fewer rows."""
        too_large: tuple[Ends, int] | None = None
        while True:
            positions, sequence = self._cut(workload, before, rows_max)
            if marks_of(self._log.topics()) != workload.marks:
                # A column was dropped after the planning, and the cut may include rows from after that.
                with watch(phases.PLAN):
                    workload = self._workload(before)
                continue
            is_waited_for = self._merging is not None and bool(_served(before))
            part_rows = backfill_parts.part_rows(rows_max, is_waited_for=is_waited_for)
            # a part of a backlog becomes smaller with the bound, and so does a cut unless it is a single commit
            size = positions, part_rows if len(_served(before)) < len(workload.units) else 0
            if too_large == size and rows_max > 1:
                rows_max = self._budget.halve(rows_max)
                continue
            target = TickTarget(self.next_tick(), self._ownership.epoch, positions, sequence, part_rows)
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
            except Exception as error:
                self._store.abandon(run.state.writer)
                if not is_too_large(error):
                    raise
                if rows_max == 1 or too_large == size:
                    self._budget.forget_limit()
                    raise
                too_large = size
                rows_max = self._budget.halve(min(rows_max, run.state.inputs.rows or rows_max))
                _log.warning("a tick is run again with at most %d rows: %s", rows_max, error)
            except BaseException:
                self._store.abandon(run.state.writer)
                raise

    def _release_records(self, *, now: bool = False) -> None:
        """Let the log remove records that every view has read. If this runs late, only a little more is kept."""
        if not now and self._clock.steady_ms() - self._released_ms < RELEASE_EVERY_MS:
            return
        self._released_ms = self._clock.steady_ms()
        assert self.manifest is not None
        release_records(self._log, self._bases, self.manifest, self._clock)

    def finish(self) -> None:
        """Release records once more, when an engine stops regularly."""
        if self.manifest is not None:
            self._release_records(now=True)

    def close(self) -> None:
        """Stop the background thread."""
        if self._merging is not None:
            self._merging.close()

    def next_tick(self) -> int:
        """Return the number of the next tick: greater than any earlier one, even if all state was deleted since.

        Numbers are reserved in the log, many at a time, to save a commit of the log per tick.
        """
        tick = max(self._first, self.manifest.tick + 1 if self.manifest else 0)
        if tick > self._reserved:
            entry = self._log.entries(_ENGINE).get(_TICKS)
            self._reserved = tick + TICKS_RESERVED
            document = {"reserved": self._reserved}
            self._log.put_entry(_ENGINE, _TICKS, document, expect=entry.sequence if entry else None)
        return tick

    def _begin(self) -> tuple[Manifest | None, bool]:
        """Return the tick to start from, and whether it is the base.

        The base is used if the state after it is lost, because records that a rebuild without the base would need may
        be gone too. State that belongs to another log is removed.
        """
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
        """Return the number of this engine's first tick.

        If ticks were lost, a number is skipped, so that subscribers, which need every tick, detect that they cannot go on.
        """
        ticks = self._store.ticks()
        if self.manifest is None or not ticks:
            return max(self._reserved, self._store.last_recorded()) + 1
        newest = ticks[-1]
        return newest + 1 if newest == self.manifest.tick else newest + 2

    def settled(self) -> bool:
        """Whether every view is live or stopped, and no view is behind."""
        return self.manifest is not None and all(
            v.status != "backfilling" for v in self.manifest.views.values()
        )

    def _workload(self, before: Manifest | None) -> Workload:
        """Return the collections of the next tick.

        If a column that a view reads has been dropped, a tick ends just before the drop, unless the previous one did;
        the next tick excludes that view.
        """
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
        """Return the positions to which live views advance, and the corresponding log commit."""
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
    """Whether a tick covers commits that are missing from the log or differ there: an older copy of the log alone was
    restored, or a power failure truncated it."""
    return Token(manifest.sequence, manifest.commit).differs(log.commit_id(manifest.sequence))


def _other_base(base: Manifest) -> OtherHistoryError:
    return OtherHistoryError(
        f"the base of the views, from tick {base.tick}, belongs to another history of the log",
        detail=f"it covers commit {base.sequence} with the id {base.commit}, which the log does not have: an older copy of the log was restored without the views, or a power failure truncated it",
        hint="restore the folder bases of the same copy; or remove it, and the views are rebuilt from the records that are kept",
        token=str(Token(base.sequence, base.commit)),
        found=None,
    )


def _served(manifest: Manifest | None) -> dict[str, int]:
    views = manifest.views.values() if manifest is not None else ()
    return {view.name: view.incarnation for view in views if view.status == "live"}
