"""One sink in a thread of its own: it follows its view, and retries while its target is unavailable. No sink slows another.

The work is in `applier`; this module decides when it runs and what happens to errors. A target that does not answer is
retried forever, with a backoff of up to half a minute. An error that an operator must fix stops the sink until `resume`.
"""

from __future__ import annotations

import threading

from headwater.core.clock import Clock
from headwater.core.errors import (
    ClosedError,
    HeadwaterError,
    LogTimeoutError,
    TickNotKeptError,
    ViewUnavailableError,
)
from headwater.core.faults import Component
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.circuit_breaker import jittered
from headwater.sinks.base.target import SinkError
from headwater.sinks.base.view_feed import SinkFeed

FIRST_RETRY_MS = 100.0
LAST_RETRY_MS = 30_000.0
WAIT_MS = 500.0


class SinkRunner:
    """Runs an applier in a background thread between `start` and `stop`."""

    def __init__(
        self, applier: Applier, feed: SinkFeed, clock: Clock, component: Component | None = None
    ) -> None:
        """`component` is notified when the sink stops and when it works."""
        self.applier = applier
        self._component = component
        self._feed = feed
        self._clock = clock
        self._ending = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the thread of the sink is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start to follow the view in the background."""
        self._begin()
        self._thread = threading.Thread(target=self._run, name=f"sink {self.applier.shape.sink}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the change that is being applied, and close the target."""
        self._ending.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        self.applier.close()

    def resume(self) -> None:
        """Retry at once, even if the sink is stopped or the circuit breaker of its target is open."""
        self.applier.resume()
        self._woken.set()

    def wait(self, tick: int, timeout_ms: float) -> None:
        """Return when the target has everything up to a tick; if the thread does not run, catch up here. SinkError if the
        sink is stopped, LogTimeoutError after the timeout."""
        if not self.running:
            self.catch_up(tick, timeout_ms)
            return
        if self.applier.report.wait(tick, timeout_ms):
            return
        raise self._behind_error(tick, timeout_ms)

    def catch_up(self, tick: int | None = None, timeout_ms: float = LAST_RETRY_MS) -> int | None:
        """Bring the target up to a tick, or to the newest one, in this thread, and retry while the target does not answer.
        Return the tick reached; None if the view is part of no tick."""
        until_ms = self._clock.steady_ms() + timeout_ms
        delay_ms = FIRST_RETRY_MS
        self._begin()
        while True:
            try:
                while self.applier.step():
                    delay_ms = FIRST_RETRY_MS
                self._works()
                reached = self.applier.status().tick
                if tick is None or (reached is not None and reached >= tick):
                    return reached
                self._feed.wait(min(WAIT_MS, max(until_ms - self._clock.steady_ms(), 0.0)))
            except HeadwaterError as error:
                if not _passes(error):
                    self._stopped(error, error.message)
                    raise
                if self._clock.steady_ms() + delay_ms > until_ms:
                    self.applier.report.note("stopped", error.message)
                    raise
                self.applier.report.note(
                    "retrying", error.message, attempts=self.applier.status().attempts + 1
                )
                self._ending.wait(jittered(delay_ms) / 1_000)
                delay_ms = min(delay_ms * 2, LAST_RETRY_MS)
            except Exception as error:
                self._stopped(error, f"{type(error).__name__}: {error}")
                raise
            if tick is not None and self._clock.steady_ms() > until_ms:
                raise self._behind_error(tick, timeout_ms)

    def _run(self) -> None:
        delay_ms = FIRST_RETRY_MS
        failed: Exception
        while not self._ending.is_set():
            self._woken.clear()  # before the attempt, so that a resume() during it is not lost
            try:
                did_something = self.applier.step()
                self._works()
                if not did_something:
                    self._feed.wait(WAIT_MS)
                delay_ms = FIRST_RETRY_MS
                continue
            except ClosedError:
                return
            except HeadwaterError as error:
                failed, passes, reason = error, _passes(error), error.message
            except Exception as error:  # noqa: BLE001 - a defect of a target must not end the thread unseen
                failed, passes, reason = error, False, f"{type(error).__name__}: {error}"
            if self._ending.is_set():
                return
            if passes:
                self.applier.report.note("retrying", reason, attempts=self.applier.status().attempts + 1)
                self._woken.wait(jittered(delay_ms) / 1_000)
                delay_ms = min(delay_ms * 2, LAST_RETRY_MS)
            else:
                self._stopped(failed, reason)
                self._woken.wait()

    def _begin(self) -> None:
        if self._component is not None:
            self._component.begin()

    def _works(self) -> None:
        if self._component is not None:
            self._component.works()

    def _stopped(self, error: Exception, reason: str) -> None:
        if self._component is not None and not isinstance(error, ClosedError):
            self._component.failed(error)
        self.applier.report.note("stopped", reason)

    def _behind_error(self, tick: int, timeout_ms: float) -> HeadwaterError:
        status = self.applier.status()
        if status.state == "stopped":
            return SinkError(
                f"sink {status.sink!r} is stopped: {status.reason}",
                hint="correct the cause and resume the sink, or restart the engine",
                sink=status.sink,
                status=status.state,
            )
        return LogTimeoutError(
            f"sink {status.sink!r} did not reach tick {tick} within {timeout_ms / 1_000:g} s: it is "
            f"{'before the first tick' if status.tick is None else f'at tick {status.tick}'}, and {status.state}",
            detail=status.reason,
            hint="`headwater lag` shows how far behind it is",
            sink=status.sink,
            tick=tick,
            last_tick=status.tick,
        )


def _passes(error: HeadwaterError) -> bool:
    """Whether an error is transient, so that the next attempt may succeed."""
    return error.retryable or isinstance(error, TickNotKeptError | ViewUnavailableError)
