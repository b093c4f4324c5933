"""The sinks that run in this process, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headwater.catalog.connectors import SinkDefinition
from headwater.connectors.dead_letter_store.sink_letters import (
    letter_ids,
    put_letters,
    store_rejected_letters,
)
from headwater.connectors.manage.sink_declarations import FAULT, SinkDeclarations
from headwater.core.clock import Clock
from headwater.core.errors import HeadwaterError
from headwater.core.faults import Component
from headwater.log.protocol import Entry, Log
from headwater.sinks.base.applier import Applier, Status
from headwater.sinks.base.at_least_once import one_tick_at_a_time
from headwater.sinks.base.sink_runner import SinkRunner
from headwater.sinks.base.view_feed import SinkFeed, StoreFeed
from headwater.sinks.registry import is_readable, wanted_of

if TYPE_CHECKING:
    from headwater.views.view_manager import Views


class SinkRunners:
    """The runners of sinks in this process. A runner is created, and its target connected to, at the first request for the
    sink."""

    def __init__(
        self, declared: SinkDeclarations, log: Log, clock: Clock, workspace: str, views: Callable[[], Views]
    ) -> None:
        self._declared = declared
        self._log = log
        self._clock = clock
        self._workspace = workspace
        self._views = views
        self._guard = threading.RLock()
        self._open: dict[str, tuple[Entry, SinkRunner, SinkFeed]] = {}

    def start(self) -> None:
        """Run every sink from now on, each in a thread of its own. Repeated calls also start sinks declared since, and stop
        those no longer declared."""
        declared = self._declared.all()
        for name in self._open.keys() - set(declared):
            self.forget(name)
        for name in declared:
            try:
                runner = self.get(name)[0]
            except HeadwaterError as error:
                # this process lacks a user's function or a password; the other sinks start
                self._log.faults.report(FAULT, name, error)
                continue
            if not runner.running:
                runner.start()

    def stop(self) -> None:
        """Stop all sinks, each after the change under way."""
        with self._guard:
            known, self._open = list(self._open.values()), {}
        for _, runner, _ in known:
            runner.stop()

    def catch_up(self, timeout_ms: float) -> None:
        """Bring every sink up to its view in this thread. The first error is raised after all were tried."""
        failed: Exception | None = None
        for name in self._declared.all():
            try:
                runner = self.get(name)[0]
                latest = self._views().store.latest()
                if runner.running and latest is not None:
                    runner.wait(latest.tick, timeout_ms)
                elif not runner.running:
                    runner.catch_up(timeout_ms=timeout_ms)
            except Exception as error:  # noqa: BLE001 - one sink that fails holds up no other
                failed = failed or error
        if failed is not None:
            raise failed

    def runner_of(self, name: str) -> SinkRunner | None:
        """Return the runner of a sink, if one was created here."""
        known = self._open.get(name)
        return None if known is None else known[1]

    def running(self) -> dict[str, SinkRunner]:
        """Return the runners whose threads are alive, by sink."""
        return {name: runner for name, (_, runner, _) in list(self._open.items()) if runner.running}

    def get(self, name: str) -> tuple[SinkRunner, SinkFeed]:
        """Return the runner of a sink, created at the first call, and the feed that it reads."""
        with self._guard:
            entry = self._declared.entry(name)
            known = self._open.get(entry.name)
            if known is not None and known[0].sequence == entry.sequence:
                return known[1:]
            self.forget(entry.name)
            made = self._declared.read(entry)
            feed: SinkFeed = self.feed(made)
            if not is_readable(made):
                feed = one_tick_at_a_time(feed)
            diverts = wanted_of(made).on_error == "divert"
            applier = Applier(
                self._declared.shape_of(made),
                self._declared.open(made),
                feed,
                self._clock,
                on_error="divert" if diverts else "stop",
                letters=partial(put_letters, self._log) if diverts else None,
            )
            applier.report.listen(partial(self._keep_refused, applier))
            component = Component(self._log.faults, FAULT, entry.name)
            runner = SinkRunner(applier, feed, self._clock, component)
            self._open[entry.name] = (entry, runner, feed)
            return runner, feed

    def _keep_refused(self, applier: Applier, status: Status) -> None:
        """Store the dead letters of a sink in the log whenever it has caught up with its view."""
        if status.state == "following":
            letters = letter_ids(status.sink, applier.refused()) if status.withheld else ()
            store_rejected_letters(self._log, status.sink, letters)

    def feed(self, made: SinkDefinition) -> StoreFeed:
        """Return the feed of the view that a sink follows."""
        views = self._views()
        return StoreFeed(
            views.store, views.names.canonical_name(made.view), views.arrivals.wait, self._workspace
        )

    def forget(self, name: str) -> None:
        """Stop and remove the runner of a sink, and close its target."""
        with self._guard:
            known = self._open.pop(name, None)
        if known is not None:
            known[1].stop()
