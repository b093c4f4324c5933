"""Running the engine: once until the views have what the log holds, or in the background until told to stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

from headwater.clock import Clock
from headwater.errors import EngineRunningError, HeadwaterError, LogTimeoutError
from headwater.log.protocol import Log
from headwater.parallel import WaitedThread
from headwater.runtime.catalog import definitions
from headwater.runtime.comparing import Comparing, Tries, hold_trials
from headwater.runtime.engine import Engine, TickReport
from headwater.runtime.pacing import Pace
from headwater.runtime.silence import Silence
from headwater.runtime.tools import Tools
from headwater.runtime.tracing import Tracing, tracing
from headwater.runtime.trials import BESIDE, due
from headwater.runtime.units import view_of
from headwater.state.manifest import Manifest
from headwater.state.ownership import STALE_AFTER_MS, Ownership, alive, claim
from headwater.state.store import StateStore
from headwater.storage import Storage

IDLE_WAIT_MS = 500.0
"""How long a running engine waits for a commit before it gives its next sign of life."""


@dataclass(frozen=True)
class RunReport:
    """What a run did: the last tick, the records taken in, and how long it took."""

    tick: int
    rows: int
    seconds: float
    ticks: int = 0
    stopped: Mapping[str, str] = field(default_factory=dict)
    """Views that have stopped, in this run or before it, with the reason."""
    errors: Mapping[str, HeadwaterError] = field(default_factory=dict)
    """What stopped them, where it was an error: the cause of a user's function's is the user's own exception."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """The seconds that each phase of its ticks took; see `headwater.runtime.phases`."""


class Listener:
    """Told what goes on, for those who show it: override what is of interest. Nothing waits for an answer.

    `ticked` is called by the thread that makes ticks.
    """

    enough: bool = False
    """Set it to end `run` after the tick under way; the rest is left to the next."""

    def starting_spark(self) -> AbstractContextManager[None]:
        """Spark is needed for the first time in this workspace: it starts within the block, unless one is up already."""
        return nullcontext()

    def began_late(self, view: str, where: str) -> None:
        """A view was created over topics whose first records had been removed."""

    def ticked(self, report: TickReport, manifest: Manifest) -> None:
        """A tick was committed."""

    def verifying(self, views: Sequence[str]) -> None:
        """These views are about to be computed in batch and compared."""

    def verified(self, view: str, difference: str | None, *, on_base: bool = False) -> None:
        """A view was compared with what its SELECT gives in batch; None if it is equal. `on_base`: records that it was
        made from were removed, so that it was computed from its base and the log after it."""


@dataclass(frozen=True)
class EngineRoom:
    """What an engine needs of its workspace."""

    log: Log
    storage: Storage
    store: StateStore
    clock: Clock
    tools: Callable[[], Tools]
    listener: Callable[[], Listener] = Listener
    stale_after_ms: float = STALE_AFTER_MS
    keep_ticks: int | None = None

    def claim(self) -> Ownership:
        """Become the engine of the workspace; EngineRunningError if another is alive."""
        ownership = claim(self.storage, self.clock, stale_after_ms=self.stale_after_ms)
        ownership.beat_by_itself()
        return ownership

    @cached_property
    def tracing(self) -> Tracing:
        """Who is told of ticks, by the variables of the environment."""
        return tracing(str(self.storage.root), os.environ)

    def close(self) -> None:
        """Nothing runs any more."""
        if "tracing" in self.__dict__:
            self.tracing.close()

    def tick(self, engine: Engine, rows_max: int | None) -> TickReport | None:
        """A tick of an engine, traced."""
        began = self.clock.now_us()
        try:
            report = engine.tick(rows_max)
        except Exception as error:
            self.tracing.failed(began, error, engine.watch)
            raise
        if report is not None:
            self.tracing.ticked(began, report, engine.watch)
        return report


def run(room: EngineRoom, tick_rows: int | None = None) -> RunReport:
    """Bring every view up to what the log holds now. Beside a running engine: wait until that one has got there."""
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
        engine = Engine(room.log, room.store, ownership, room.tools().catalog, room.clock, room.keep_ticks)
        done, tries = _Done(), Tries()
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
    return done.report(engine.manifest, (room.clock.steady_ms() - started) / 1000)


def _compare(room: EngineRoom, manifest: Manifest | None, tries: Tries) -> bool:
    """Compare the views that were built anew and have caught up; whether there were some, so that a tick has more to do."""
    listener = room.listener()
    listener.verifying(list(due(room.log, manifest)))

    def told(view: str, difference: str | None, on_base: bool) -> None:
        listener.verified(view, difference, on_base=on_base)

    return hold_trials(room.log, room.store, manifest, room.tools, told, tries)


class _Done:
    """What the ticks of a run have done so far."""

    def __init__(self) -> None:
        self._rows = self._ticks = 0
        self._stopped: dict[str, str] = {}
        self._errors: dict[str, HeadwaterError] = {}
        self._phases: dict[str, float] = {}

    def add(self, tick: TickReport) -> None:
        """One more."""
        self._rows += tick.rows
        self._ticks += 1
        self._stopped |= tick.stopped
        self._errors |= tick.errors
        for name, seconds in tick.phases.items():
            self._phases[name] = self._phases.get(name, 0.0) + seconds

    def report(self, manifest: Manifest | None, seconds: float) -> RunReport:
        """All of them, the last of which is in the manifest."""
        tick = manifest.tick if manifest else 0
        stopped = {**still_stopped(manifest), **self._stopped}
        phases = {name: round(spent, 6) for name, spent in self._phases.items()}
        return RunReport(tick, self._rows, seconds, self._ticks, stopped, self._errors, phases)


def still_stopped(manifest: Manifest | None) -> dict[str, str]:
    """The views that are stopped at a tick, with the reason."""
    states = manifest.views.values() if manifest is not None else ()
    return {s.name: s.reason or "" for s in states if s.status == "stopped" and view_of(s.name) == s.name}


def _caught_up(room: EngineRoom) -> Callable[[Manifest], bool]:
    """Whether a tick has every view that is there now, at what the log holds now.

    Asked by positions: the log's last commit may be of a kind that no tick takes in.
    """
    views = definitions(room.log)
    read = {name for view in views.values() for name in view.reads}
    _, ends = room.log.cut(sorted(read & set(room.log.topics())))

    def reached(manifest: Manifest) -> bool:
        for name in views.keys() & definitions(room.log).keys():
            state, wanted = manifest.views.get(name), views[name].incarnation
            beside = manifest.views.get(f"{name}{BESIDE}")
            if beside is not None and beside.status == "stopped" and beside.incarnation >= wanted:
                continue  # it is not going to take the place of the other
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
    room: EngineRoom, reached: Callable[[Manifest], bool], timeout_ms: float | None
) -> Manifest | None:
    """Wait for another engine to commit a tick of which `reached` is true; None if it ends, or freezes, before that."""
    deadline = None if timeout_ms is None else room.clock.steady_ms() + timeout_ms
    while True:
        latest = room.store.latest()
        if latest is not None and reached(latest):
            return latest
        if alive(room.storage, room.clock, stale_after_ms=room.stale_after_ms) is None:
            return None
        if deadline is not None and room.clock.steady_ms() > deadline:
            raise LogTimeoutError(
                f"the running engine did not get there within {timeout_ms:.0f} ms",
                hint="`headwater status` says how far it is behind",
            )
        threading.Event().wait(0.01)


class Beside(Protocol):
    """What an engine keeps going beside itself: what fills topics, and what follows views."""

    def look(self) -> None:
        """Start what is declared and not at work. Called again and again."""
        ...

    def stop_sources(self) -> None:
        """Nothing more comes in."""
        ...

    def stop_sinks(self) -> None:
        """Nothing more goes out."""
        ...


class Runner:
    """An engine that keeps going in a thread of its own. Made by `ws.start()`; a context manager that stops it."""

    def __init__(
        self,
        room: EngineRoom,
        pace: Pace,
        tick_rows: int | None,
        ownership: Ownership | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._room = room
        self._pace = pace
        self._tick_rows = tick_rows
        self._beside = beside
        self._beside_turn = threading.Lock()
        self._stop = threading.Event()
        self._started_ms = room.clock.steady_ms()
        self._done = _Done()
        self._silence = Silence(room.log, room.clock)
        self._error: BaseException | None = None
        self._comparing = Comparing(room.log, partial(_compare, room))
        self._ownership = room.claim() if ownership is None else ownership
        try:
            catalog = room.tools().catalog
            self._engine = Engine(
                room.log,
                room.store,
                self._ownership,
                catalog,
                room.clock,
                room.keep_ticks,
                in_background=True,
            )
        except BaseException:
            self._ownership.release()
            raise
        self._thread = WaitedThread(self._loop, "headwater-engine")
        self._thread.start()

    def stop(self) -> RunReport:
        """Stop after the tick under way, and say what was done. Raises what ended the engine, if something did."""
        with self._beside_turn:  # whoever looks later sees that it is over, and starts nothing again
            self._stop.set()
        if self._beside is not None:
            self._beside.stop_sources()
        self._thread.join()
        if self._beside is not None:
            self._beside.stop_sinks()
        self._room.tracing.flush()
        if self._error is not None:
            raise self._error
        seconds = (self._room.clock.steady_ms() - self._started_ms) / 1000
        return self._done.report(self._engine.manifest, seconds)

    @property
    def running(self) -> bool:
        """Whether it still goes on."""
        return self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether an error has ended it, which `stop` raises."""
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
        except Exception as error:  # noqa: BLE001 - whatever it is, `stop` raises it where it is seen
            self._error = error
        finally:
            self._comparing.close()
            self._engine.close()

    def _turn(self) -> None:
        began = self._room.clock.steady_ms()
        self._silence.look()
        if self._beside is not None:
            with self._beside_turn:
                if not self._stop.is_set():
                    self._beside.look()
        seen = self._room.log.sequence()
        report = self._room.tick(self._engine, self._tick_rows)
        self._comparing.look(self._engine.manifest)
        if report is None:
            self._ownership.beat()
            self._room.log.wait_commit(seen, IDLE_WAIT_MS)
            return
        self._done.add(report)
        assert self._engine.manifest is not None
        self._room.listener().ticked(report, self._engine.manifest)
        behind = self._engine.manifest.sequence < seen or not self._engine.settled()
        cost_ms = self._room.clock.steady_ms() - began
        rest_ms = self._pace.rest_ms(cost_ms, report.rows, behind=behind)
        if rest_ms > 0:
            self._stop.wait(rest_ms / 1_000)
