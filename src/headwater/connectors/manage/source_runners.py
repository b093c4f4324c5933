"""The sources that this process reads: each in a thread of its own, or once, up to what is committed in them now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headwater.catalog.connectors import SOURCE
from headwater.connectors.manage.source_declarations import SourceDeclarations
from headwater.connectors.manage.source_orders import SourceOrders
from headwater.connectors.manage.source_positions import position_text
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.clock import Clock
from headwater.core.errors import HeadwaterError, UsageError
from headwater.log.protocol import Entry, Log
from headwater.sources.registry import HANDED_OVER, LISTENING
from headwater.sources.source_faults import SourceFaults
from headwater.sources.source_runner import Capture, Capturing, producer_of, too_slow

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

AT_ONCE_S = 0.05
"""Time to wait before a source is made to report its position."""


class SourceRunners:
    """The sources that run here, and those that are caught up in a caller's thread if no process runs them."""

    def __init__(
        self, declared: SourceDeclarations, log: Log, clock: Clock, views: Callable[[], Views]
    ) -> None:
        self._declared = declared
        self._orders = SourceOrders(log)
        self._log = log
        self._clock = clock
        self._views = views
        self._guard = threading.RLock()
        self._running: dict[str, tuple[Entry, Capturing]] = {}

    def running(self, name: str) -> Capturing | None:
        """Return the capture thread of a source, if it runs here."""
        known = self._running.get(name)
        return None if known is None else known[1]

    def all(self) -> dict[str, Capturing]:
        """Return every capture thread of this process, by source."""
        return {name: capturing for name, (_, capturing) in list(self._running.items())}

    def start(self) -> None:
        """Run every source from now on, each in a thread of its own. A source that an error has stopped stays stopped until
        its declaration changes; one that is no longer declared ends."""
        declared = self._log.entries(SOURCE)
        for name in self._running.keys() - set(declared):
            self.stop_one(name)
        for name, entry in declared.items():
            if entry.document["kind"] in HANDED_OVER:
                continue
            with self._guard:
                known = self._running.get(name)
                if known is not None and known[1].capture is not None:
                    self._orders.hand_over(name, known[1].capture)
                if known is None or known[0].sequence != entry.sequence:
                    if known is not None:
                        known[1].stop()
                    report = partial(self._stopped_by, entry)
                    made = Capturing(name, partial(self._capture, entry), self._clock, report)
                    self._running[name] = (entry, made)

    def stop(self) -> None:
        """Stop all sources, each after the transaction under way."""
        for name in list(self._running):
            self.stop_one(name)

    def catch_up(self, timeout_s: float) -> None:
        """Capture everything that is committed in the sources by now."""
        for entry in self._log.entries(SOURCE).values():
            running = self._running.get(entry.name)
            if running is not None and running[1].running:
                running[1].wait(self.end(entry), timeout_s)
                continue
            if entry.document["kind"] in LISTENING:
                continue
            if self._views().engine() is not None:
                self._wait_elsewhere(entry, timeout_s)
                continue
            try:
                self._catch_up_or_restart(entry)
            except Exception as error:
                if not (isinstance(error, HeadwaterError) and error.retryable):
                    SourceFaults(self._log.faults, entry.name).stopped(error)
                raise

    def _catch_up_or_restart(self, entry: Entry) -> None:
        try:
            self._catch_up_here(entry)
        except HeadwaterError as error:
            if not self._declared.restarts_itself(entry, error):
                raise
            self._declared.restart(entry)
            self._catch_up_here(self._log.entries(SOURCE)[entry.name])

    def _stopped_by(self, entry: Entry, error: HeadwaterError) -> None:
        """Restart a source that stopped here, if its options say so; otherwise report the error."""
        try:
            if self._declared.restarts_itself(entry, error):
                self._declared.restart(entry)
                # `start` finds the changed declaration, and runs it
                return
        except HeadwaterError as failed:
            error = failed
        SourceFaults(self._log.faults, entry.name).stopped(error)

    def _catch_up_here(self, entry: Entry) -> None:
        capture = self._capture(entry)
        try:
            self._orders.hand_over(entry.name, capture)
            capture.run(until=capture.end())
            self._orders.hand_over(entry.name, capture)
        finally:
            capture.close()

    def _wait_elsewhere(self, entry: Entry, timeout_s: float) -> None:
        """Wait for another process, which runs the engine and with it the sources."""
        end, deadline = self.end(entry), self._clock.steady_ms() + timeout_s * 1_000
        while self.sequence(entry.name) < end:
            if self._clock.steady_ms() > deadline:
                raise too_slow(entry.name, timeout_s)
            self._log.wait_commit(self._log.sequence(), 100)

    def wait(self, name: str, sequence: int, timeout_s: float) -> None:
        """Wait until the log has everything of a source up to a sequence; without an engine, capture it in this thread."""
        name = self._declared.entries.entry(name).name
        if self._log.entries(SOURCE)[name].document["kind"] in HANDED_OVER:
            raise UsageError(
                f"source {name!r} receives deliveries, and has no positions to wait for",
                hint="the response to a delivery has its receipt: after=receipt waits for it",
                source=name,
            )
        running = self._running.get(name)
        if self.sequence(name) >= sequence:
            return
        if running is not None and running[1].running:
            capture = running[1].capture
            if capture is not None and not running[1].reaches(sequence, AT_ONCE_S):
                # an idle server sends nothing: this makes the source advance to the server's position
                capture.end()
            running[1].wait(sequence, timeout_s)
        else:
            self.catch_up(timeout_s)

    def sequence(self, name: str) -> int:
        """Return the sequence up to which the log has everything of a source, as far as known; -1 before the first."""
        running = self._running.get(name)
        made = self._declared.entries.all().get(name)
        known = self._log.producer(producer_of(name, made.generation if made is not None else 0))
        stored = -1 if known is None else known.sequence
        return stored if running is None else max(stored, running[1].progress.sequence)

    def _capture(self, entry: Entry) -> Capture:
        made = self._declared.entries.read(entry)
        source = self._declared.open(made)

        def after() -> str | None:
            return position_text(made.kind, capture.progress.sequence)

        define_topic = partial(define, self._log, self._views, after=after)
        capture = Capture(self._log, made.name, source, define_topic, self._clock, made.generation)
        return capture

    def end(self, entry: Entry) -> int:
        """Return the position at which a source ends now, from the external system."""
        source = self._declared.open(self._declared.entries.read(entry))
        try:
            return source.end()
        finally:
            source.close()

    def stop_one(self, name: str) -> None:
        """Stop the thread of a source, after the transaction under way."""
        with self._guard:
            known = self._running.pop(name, None)
        if known is not None:
            known[1].stop()
