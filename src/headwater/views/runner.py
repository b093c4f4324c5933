"""Running the engine: once, until the views have everything in the log, or in the background until stopped."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

from headwater.core.clock import Clock
from headwater.core.errors import (
    ClosedError,
    CorruptionError,
    EngineRunningError,
    FencedError,
    HeadwaterError,
    LogTimeoutError,
    TickNotKeptError,
)
from headwater.core.faults import Component
from headwater.core.parallel import WaitedThread
from headwater.core.storage import Storage
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.shadow_builds import SHADOW, due
from headwater.engine.collections.workload import definitions
from headwater.engine.metrics.rows_taken import TakenIn
from headwater.engine.row_errors.rejected_row_counts import RejectedRows, since
from headwater.engine.tick.listener import Listener
from headwater.engine.tick.tick_engine import Engine, EngineOptions, TickReport
from headwater.engine.tick.tracing import Tracing, tracing
from headwater.log.protocol import Log
from headwater.state.manifest import Manifest
from headwater.state.ownership import STALE_AFTER_MS, Ownership, alive, claim, current_epoch
from headwater.state.store import StateStore
from headwater.verify.shadow_comparison import ShadowComparison, Tries, compare_shadow_builds
from headwater.views.idle_partitions import IdlePartitions
from headwater.views.pacing import Pace

IDLE_WAIT_MS = 500.0
"""Time that a running engine waits for a commit before its next heartbeat."""


@dataclass(frozen=True)
class RunReport:
    """The result of a run: the last tick, the rows taken in, the duration, and the rows left out."""

    tick: int
    rows: int
    """Number of log records that the ticks took in, each counted once, however many views read it and in however many ticks.
    The backfill of a view takes in the records of its topics: these count, unless the same run took them in for another
    view. Rows that a source rejected are not rows of its topic: they are in `rejected`."""
    seconds: float
    ticks: int = 0
    stopped: Mapping[str, str] = field(default_factory=dict)
    """Views that have stopped, in this run or before it, with the reason."""
    errors: Mapping[str, HeadwaterError] = field(default_factory=dict)
    """Errors that stopped views: for a user's function, the cause is the user's own exception."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each phase of the ticks; see `headwater.engine.metrics.phases`."""
    rejected: Sequence[RejectedRows] = ()
    """Rows that sources, views, sinks and queues left out during this run."""
    captured: int = 0
    """Number of records that sources added to their topics during this run, whether or not a view reads these topics."""

    def and_then(self, more: RunReport) -> RunReport:
        """Return the combined report of this run and the one that followed."""
        phases = {
            name: round(self.phases.get(name, 0.0) + more.phases.get(name, 0.0), 6)
            for name in dict.fromkeys((*self.phases, *more.phases))
        }
        return replace(
            more,
            rows=self.rows + more.rows,
            seconds=self.seconds + more.seconds,
            ticks=self.ticks + more.ticks,
            stopped={**self.stopped, **more.stopped},
            errors={**self.errors, **more.errors},
            phases=phases,
        )


@dataclass
class LastRun:
    """The last run of this process."""

    ended: tuple[int, int] | None = None
    """The epoch of its engine, which has ended, and its last tick. Replaced as a whole, because threads may run in turn."""


@dataclass(frozen=True)
class EngineHost:
    """The parts of a workspace that an engine needs."""

    log: Log
    storage: Storage
    store: StateStore
    clock: Clock
    tools: Callable[[], EngineContext]
    listener: Callable[[], Listener] = Listener
    stale_after_ms: float = STALE_AFTER_MS
    keep_ticks: int | None = None
    last_run: LastRun = field(default_factory=LastRun)

    def newest(self) -> Manifest | None:
        """Return the newest tick whose manifest is not damaged. Manifests are listed only if another engine has started since
        the last run here, because only that engine could have committed a tick."""
        ended = self.last_run.ended
        if ended is not None and current_epoch(self.storage) == ended[0]:
            with suppress(TickNotKeptError, CorruptionError):
                return self.store.manifest(ended[1])
        return self.store.latest_whole()

    def claim(self) -> Ownership:
        """Acquire ownership of the engine of the workspace; EngineRunningError if another engine is alive."""
        ownership = claim(self.storage, self.clock, stale_after_ms=self.stale_after_ms)
        ownership.beat_by_itself()
        self.component.begin()
        return ownership

    @cached_property
    def component(self) -> Component:
        """The engine as a component of the fault registry."""
        return Component(self.log.faults, "engine", "engine")

    def ended_by(self, error: Exception) -> None:
        """Report the error that ends an engine. A takeover by another engine, or a closed workspace, is not a fault."""
        if not isinstance(error, FencedError | EngineRunningError | ClosedError):
            self.component.failed(error)

    @cached_property
    def tracing(self) -> Tracing:
        """Tracing of ticks, configured by environment variables."""
        return tracing(str(self.storage.root), os.environ)

    def close(self) -> None:
        """Close tracing; nothing runs any more."""
        if "tracing" in self.__dict__:
            self.tracing.close()

    def tick(self, engine: Engine, rows_max: int | None) -> TickReport | None:
        """Run a tick of an engine, traced."""
        began = self.clock.now_us()
        try:
            report = engine.tick(rows_max)
        except Exception as error:
            self.tracing.failed(began, error, engine.watch)
            raise
        self.component.works()
        if report is not None:
            self.tracing.ticked(began, report, engine.watch)
        return report


def run(room: EngineHost, tick_rows: int | None = None) -> RunReport:
    """Bring every view up to what the log has now. If another engine runs, wait until that one has."""
    started = room.clock.steady_ms()
    target, caught_up = room.log.sequence(), _caught_up(room)
    while True:
        try:
            ownership = room.claim()
            break
        except EngineRunningError:
            if (reached := wait_for(room, caught_up, None)) is not None:
                return RunReport(reached.tick, 0, (room.clock.steady_ms() - started) / 1000)
    with ownership:
        try:
            engine, done = _run_to(room, ownership, target, tick_rows)
        except Exception as error:
            room.ended_by(error)
            raise
    room.last_run.ended = None if engine.manifest is None else (ownership.epoch, engine.manifest.tick)
    return done.report(engine.manifest, (room.clock.steady_ms() - started) / 1000)


def _run_to(
    room: EngineHost, ownership: Ownership, target: int, tick_rows: int | None
) -> tuple[Engine, _RunTotals]:
    """Run ticks until every view has the log commit `target`."""
    options = EngineOptions(room.keep_ticks)
    engine = Engine(room.log, room.store, ownership, room.tools(), room.clock, options)
    done, tries = _RunTotals(room.log), Tries()
    while True:
        while (report := room.tick(engine, tick_rows)) is not None:
            done.add(report)
            assert engine.manifest is not None
            listener = room.listener()
            listener.ticked(report, engine.manifest)
            if listener.enough or (engine.manifest.sequence >= target and engine.settled()):
                break
        if room.listener().enough or not _compare(room, engine.manifest, tries):
            break
    engine.finish()
    return engine, done


def _compare(room: EngineHost, manifest: Manifest | None, tries: Tries) -> bool:
    """Compare shadow builds that have caught up with their SELECTs; return whether there were any, so that another tick is
    needed."""
    listener = room.listener()
    listener.verifying(list(due(room.log, manifest)))

    def report(view: str, difference: str | None, on_base: bool) -> None:
        listener.verified(view, difference, on_base=on_base)

    return compare_shadow_builds(room.log, room.store, manifest, room.tools, report, tries)


class _RunTotals:
    """Totals over the ticks of a run."""

    def __init__(self, log: Log) -> None:
        self._ticks = 0
        self._taken = TakenIn(log)
        self._stopped: dict[str, str] = {}
        self._errors: dict[str, HeadwaterError] = {}
        self._phases: dict[str, float] = {}

    def add(self, tick: TickReport) -> None:
        """Add a tick."""
        self._taken.add(tick.reads)
        self._ticks += 1
        self._stopped |= tick.stopped
        self._errors |= tick.errors
        for name, seconds in tick.phases.items():
            self._phases[name] = self._phases.get(name, 0.0) + seconds

    def report(self, manifest: Manifest | None, seconds: float) -> RunReport:
        """Return the report of all ticks; the manifest is that of the last one."""
        tick = manifest.tick if manifest else 0
        stopped = {**still_stopped(manifest), **self._stopped}
        phases = {name: round(spent, 6) for name, spent in self._phases.items()}
        return RunReport(tick, self._taken.rows, seconds, self._ticks, stopped, self._errors, phases)


def still_stopped(manifest: Manifest | None) -> dict[str, str]:
    """Return the stopped views of a tick, with the reason."""
    states = manifest.views.values() if manifest is not None else ()
    return {s.name: s.reason or "" for s in states if s.status == "stopped" and view_of(s.name) == s.name}


def _caught_up(room: EngineHost) -> Callable[[Manifest], bool]:
    """Return a function that tells whether a tick has every view that exists now, up to what the log has now.

    The function compares positions, because the last commit of the log may be of a kind that no tick takes in.
    """
    views = definitions(room.log)
    read = {name for view in views.values() for name in view.reads}
    _, ends = room.log.cut(sorted(read & set(room.log.topics())))

    def reached(manifest: Manifest) -> bool:
        for name in views.keys() & definitions(room.log).keys():
            state, wanted = manifest.views.get(name), views[name].incarnation
            build = manifest.views.get(f"{name}{SHADOW}")
            if build is not None and build.status == "stopped" and build.incarnation >= wanted:
                continue  # the shadow build will not become active
            if state is None or state.incarnation < wanted or state.status == "backfilling":
                return False
        live = (v.positions for v in manifest.views.values() if v.status == "live")
        return all(
            parts.get(p, 0) >= end
            for positions in live
            for topic, parts in positions.items()
            for p, end in ends.get(topic, {}).items()
        )

    return reached


def wait_for(
    room: EngineHost, reached: Callable[[Manifest], bool], timeout_ms: float | None
) -> Manifest | None:
    """Wait for another engine to commit a tick for which `reached` is true; None if that engine ends, or freezes, before."""
    deadline = None if timeout_ms is None else room.clock.steady_ms() + timeout_ms
    while True:
        latest = room.store.latest()
        if latest is not None and reached(latest):
            return latest
        if alive(room.storage, room.clock, stale_after_ms=room.stale_after_ms) is None:
            return None
        if deadline is not None and room.clock.steady_ms() > deadline:
            raise LogTimeoutError(
                f"the running engine did not reach this position within {timeout_ms:.0f} ms",
                hint="`headwater status` shows how far it is behind",
            )
        threading.Event().wait(0.01)


class EngineCompanions(Protocol):
    """The sources and sinks that an engine runs."""

    def reconcile(self) -> None:
        """Start declared connectors that do not run. Called repeatedly."""
        ...

    def stop_sources(self) -> None:
        """Stop all sources."""
        ...

    def stop_sinks(self) -> None:
        """Stop all sinks."""
        ...

    def rejected(self) -> Sequence[RejectedRows]:
        """Return the rows that were left out so far."""
        ...


class Runner:
    """An engine that runs in a thread of its own, started by `ws.start()`; a context manager that stops it."""

    def __init__(
        self,
        room: EngineHost,
        pace: Pace,
        tick_rows: int | None,
        ownership: Ownership | None = None,
        companions: EngineCompanions | None = None,
    ) -> None:
        self._room = room
        self._pace = pace
        self._tick_rows = tick_rows
        self._companions = companions
        self._companions_lock = threading.Lock()
        self._stop = threading.Event()
        self._started_ms = room.clock.steady_ms()
        self._done = _RunTotals(room.log)
        self._rejected = () if companions is None else companions.rejected()
        self._idle_partitions = IdlePartitions(room.log, room.clock)
        self._error: BaseException | None = None
        self._listening = Component(room.log.faults, "background", "listener of ticks")
        self._comparing = ShadowComparison(room.log, partial(_compare, room))
        self._ownership = room.claim() if ownership is None else ownership
        try:
            context = room.tools()
            self._engine = Engine(
                room.log,
                room.store,
                self._ownership,
                context,
                room.clock,
                EngineOptions(room.keep_ticks, in_background=True),
            )
        except BaseException as error:
            self._ownership.release()
            if isinstance(error, Exception):
                room.ended_by(error)
            raise
        self._thread = WaitedThread(self._loop, "headwater-engine")
        self._thread.start()

    def stop(self) -> RunReport:
        """Stop after the tick under way, and return the report. Raises the error that ended the engine, if any."""
        # a later `reconcile` sees the stop, and starts no connector again
        with self._companions_lock:
            self._stop.set()
        if self._companions is not None:
            self._companions.stop_sources()
        self._thread.join()
        if self._companions is not None:
            self._companions.stop_sinks()
        self._room.tracing.flush()
        if self._error is not None:
            raise self._error
        seconds = (self._room.clock.steady_ms() - self._started_ms) / 1000
        report = self._done.report(self._engine.manifest, seconds)
        rejected = () if self._companions is None else since(self._rejected, self._companions.rejected())
        return replace(report, rejected=rejected)

    @property
    def running(self) -> bool:
        """Whether the engine thread is alive."""
        return self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether an error has ended the engine, which `stop` raises."""
        return self._error is not None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _loop(self) -> None:
        try:
            with self._ownership:
                while not self._stop.is_set():
                    self._turn()
                self._engine.finish()
        except Exception as error:  # noqa: BLE001 - `stop` raises it in the caller's thread
            self._room.ended_by(error)
            self._error = error
        finally:
            self._comparing.close()
            self._engine.close()

    def _notify(self, report: TickReport, manifest: Manifest) -> None:
        """Notify the listener of a tick. A listener that fails is reported and does not end the engine."""
        try:
            self._room.listener().ticked(report, manifest)
        except Exception as error:  # noqa: BLE001 - the listener is the user's
            self._listening.failed(error, "the engine continues; correct `ticked` of the listener")
        else:
            self._listening.works()

    def _turn(self) -> None:
        began = self._room.clock.steady_ms()
        self._idle_partitions.check()
        if self._companions is not None:
            with self._companions_lock:
                if not self._stop.is_set():
                    self._companions.reconcile()
        seen = self._room.log.sequence()
        report = self._room.tick(self._engine, self._tick_rows)
        self._comparing.check(self._engine.manifest)
        if report is None:
            self._ownership.beat()
            self._room.log.wait_commit(seen, IDLE_WAIT_MS)
            return
        self._done.add(report)
        assert self._engine.manifest is not None
        self._notify(report, self._engine.manifest)
        behind = self._engine.manifest.sequence < seen or not self._engine.settled()
        cost_ms = self._room.clock.steady_ms() - began
        rest_ms = self._pace.rest_ms(cost_ms, report.rows, behind=behind)
        if rest_ms > 0:
            self._stop.wait(rest_ms / 1_000)
