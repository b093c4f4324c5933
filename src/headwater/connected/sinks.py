"""The sinks of a workspace: what follows which view, kept in step here, waited for and held against the view."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.clock import Clock
from headwater.connected.declaring import Declared
from headwater.connected.letters import make_letters, put_letters
from headwater.connections import SINK, SinkDefinition
from headwater.errors import HeadwaterError, SinkExistsError, SinkNotFoundError, StatementError, UsageError
from headwater.log.protocol import Entry, Log
from headwater.queries.statements import CreateSink, DropSink
from headwater.runtime.dependencies import below
from headwater.sinks.applying import Applier, Lag, Status, refuse_occupied
from headwater.sinks.checking import SinkCheck, check
from headwater.sinks.deliveries import one_tick_at_a_time
from headwater.sinks.feed import Feed, StoreFeed
from headwater.sinks.keys import check_key
from headwater.sinks.kinds import forget, is_readable, open_target, place_of, wanted_of
from headwater.sinks.python import Function
from headwater.sinks.running import SinkRunner
from headwater.sinks.target import Shape, SinkError

if TYPE_CHECKING:
    from headwater.runtime.views import Views
    from headwater.sinks.search_index import SearchIndex


@dataclass(frozen=True)
class SinkStatus:
    """How a sink is doing, as far as this process knows, and how far it is behind its view."""

    status: Status
    lag: Lag


class Sinks:
    """Everything about sinks. A sink is connected to when something is first asked of its target."""

    def __init__(
        self, log: Log, clock: Clock, root: Path, workspace: str, views: Callable[[], Views]
    ) -> None:
        self._log = log
        self._clock = clock
        self._root = root
        self._workspace = workspace
        self._views = views
        self._declared = Declared(log, SINK, SinkDefinition.from_document, SinkExistsError, SinkNotFoundError)
        self.functions: dict[str, Function] = {}
        """The user's, by name, for sinks of kind PYTHON."""
        self._guard = threading.RLock()
        self._open: dict[str, tuple[Entry, SinkRunner, Feed]] = {}

    # --- declaring -------------------------------------------------------------------------------------------------

    def definitions(self) -> Mapping[str, SinkDefinition]:
        """What is declared, by name."""
        return self._declared.all()

    def create(self, statement: CreateSink) -> None:
        """CREATE SINK: its key is checked against the view, and its target asked, before anything is declared."""
        if not self._declared.is_new(statement):
            return
        made = statement.definition
        made = replace(made, key=self._key(made))
        self._refuse_circle(made)
        shape = self._shape(made)
        target = open_target(made, self._root, self._log, self.functions)
        try:
            target.prepare(shape)
            if not made.resolved().get("adopt"):
                refuse_occupied(shape, target)
        finally:
            target.close()
        if wanted_of(made).on_error == "divert":
            make_letters(self._log, made.name)
        self._declared.put(made)

    def drop(self, statement: DropSink) -> None:
        """DROP SINK: what it has written stays where it is."""
        if statement.if_exists and statement.name not in self._log.entries(SINK):
            return
        entry = self._declared.entry(statement.name)
        self._forget(entry.name)
        self._log.drop_entry(SINK, entry.name, expect=entry.sequence)
        forget(self._declared.read(entry), self._log)

    def _refuse_circle(self, made: SinkDefinition) -> None:
        """A view must not read, by whatever way, what its own sink writes: it would never come to rest."""
        topic = str(made.options.get("topic", "")) if made.kind == "topic" else ""
        view = self._views().spelled(made.view)
        if topic and topic.lower() in (name.lower() for name in below(self._log, view)):
            raise StatementError(
                f"view {made.view!r} reads topic {topic!r}, which sink {made.name!r} would write to",
                hint="write to another topic",
            )

    def of_view(self, view: str) -> list[str]:
        """The sinks that follow a view."""
        return [name for name, made in self.definitions().items() if made.view.lower() == view.lower()]

    def spelled(self, name: str) -> str:
        """A sink's name as it was declared; SinkNotFoundError."""
        return self._declared.entry(name).name

    # --- at work ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Keep every sink in step from now on, each in a thread of its own; also those that are declared later.
        One that is no longer declared ends."""
        declared = self.definitions()
        for name in self._open.keys() - set(declared):
            self._forget(name)
        for name in declared:
            with suppress(
                SinkError
            ):  # this process lacks what it takes: `status` says so, and the others go on
                runner = self._runner(name)[0]
                if not runner.running:
                    runner.start()

    def stop(self) -> None:
        """Stop all of them, each after the change that it is applying."""
        with self._guard:
            known, self._open = list(self._open.values()), {}
        for _, runner, _ in known:
            runner.stop()

    def catch_up(self, timeout_ms: float) -> None:
        """Bring every sink level with its view, here and now. The first error is raised when all have been tried."""
        failed: Exception | None = None
        for name in self.definitions():
            runner = self._runner(name)[0]
            try:
                latest = self._views().store.latest()
                if runner.running and latest is not None:
                    runner.wait(latest.tick, timeout_ms)
                elif not runner.running:
                    runner.catch_up(timeout_ms=timeout_ms)
            except Exception as error:  # noqa: BLE001 - one sink that fails holds up no other
                failed = failed or error
        if failed is not None:
            raise failed

    def wait(self, name: str, tick: int, timeout_ms: float) -> None:
        """Until a sink has everything up to a tick; without an engine here that is brought about."""
        self._runner(name)[0].wait(tick, timeout_ms)

    def status(self, name: str) -> SinkStatus:
        """How a sink is doing. Where it is not kept in step here, its target is asked where it stands."""
        try:
            runner, _ = self._runner(name)
        except SinkError as error:  # this process lacks what it takes, such as the code of a user's function
            return SinkStatus(Status(name, "stopped", error.message), Lag(0, None, 0.0))
        applier = runner.applier
        if not runner.running:
            try:
                applier.look()
            except HeadwaterError as error:
                applier.note("retrying" if error.retryable else "stopped", error.message)
        return SinkStatus(applier.status(), applier.lag())

    def index(self, name: str) -> SearchIndex:
        """The index of a sink of kind SEARCH, for readers."""
        made = self.definitions()[self.spelled(name)]
        if made.kind != "search":
            raise UsageError(
                f"sink {made.name!r} is of kind {made.kind.upper()}, which is not searched",
                hint="CREATE SINK ... INTO SEARCH makes an index",
            )
        from headwater.sinks.search_index import SearchIndex

        return SearchIndex(made.resolved().get("path") or place_of(made, self._root))

    def retry(self, name: str) -> int:
        """Try the rows again that a sink's target has refused; how many it took."""
        return self._runner(name)[0].applier.retry()

    def resume(self, name: str) -> None:
        """Have a sink that is stopped try again at once."""
        self._runner(name)[0].resume()

    def verify(self, *, repair: bool = False, cheap: bool = False) -> list[SinkCheck]:
        """Hold every sink against its view that can be read back; with `repair` bring those level that differ.
        `cheap` reads a view only where its sink's checksum is not the one that was kept."""
        found = []
        for name, made in self.definitions().items():
            if is_readable(made):
                runner, feed = self._runner(name)
                found.append(check(runner.applier, feed, repair=repair, cheap=cheap))
        return found

    # --- one of them -----------------------------------------------------------------------------------------------

    def _runner(self, name: str) -> tuple[SinkRunner, Feed]:
        with self._guard:
            entry = self._declared.entry(name)
            known = self._open.get(entry.name)
            if known is not None and known[0].sequence == entry.sequence:
                return known[1:]
            self._forget(entry.name)
            made = self._declared.read(entry)
            views = self._views()
            feed: Feed = StoreFeed(
                views.store, views.spelled(made.view), views.arrivals.wait, self._workspace
            )
            if not is_readable(made):
                feed = one_tick_at_a_time(feed)
            diverts = wanted_of(made).on_error == "divert"
            applier = Applier(
                self._shape(made),
                open_target(made, self._root, self._log, self.functions),
                feed,
                self._clock,
                on_error="divert" if diverts else "stop",
                letters=partial(put_letters, self._log) if diverts else None,
            )
            runner = SinkRunner(applier, feed, self._clock)
            self._open[entry.name] = (entry, runner, feed)
            return runner, feed

    def _forget(self, name: str) -> None:
        with self._guard:
            known = self._open.pop(name, None)
        if known is not None:
            known[1].stop()

    def _shape(self, made: SinkDefinition) -> Shape:
        views = self._views()
        view = views.spelled(made.view)
        return Shape(made.name, view, views.columns(view), made.key, wanted_of(made).mode)

    def _key(self, made: SinkDefinition) -> tuple[str, ...]:
        """What rows are replaced by; StatementError if nothing shows that it is unique in the view."""
        wanted, shape, views = wanted_of(made), self._shape(made), self._views()
        if wanted.mode == "upsert":
            return check_key(shape, wanted.key, views.keys(shape.view))
        if wanted.mode == "append" and not views.only_grows(shape.view):
            raise StatementError(
                f"sink {made.name!r} would append, and view {shape.view!r} takes rows back",
                hint="mode = 'changelog' appends every change, with _weight and _tick; or give a key",
            )
        return ()
