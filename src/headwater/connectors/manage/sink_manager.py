"""The sinks of a workspace: what follows which view, kept in step here, waited for and held against the view."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.catalog.connectors import SINK, SinkDefinition
from headwater.connectors.dead_letter_store.sink_letters import chosen, incarnation_of
from headwater.connectors.manage.sink_declarations import SinkDeclarations
from headwater.connectors.manage.sink_runners import SinkRunners
from headwater.connectors.manage.sink_statuses import SinkStatus, SinkStatuses
from headwater.connectors.manage.status_board import Board
from headwater.core.clock import Clock
from headwater.core.errors import UsageError
from headwater.core.extras import require
from headwater.log.protocol import Log
from headwater.sinks.base.rejected_rows import Withheld
from headwater.sinks.base.sink_rebuild import Rebuilding, Step
from headwater.sinks.base.sink_verify import SinkCheck, check
from headwater.sinks.base.target import Target
from headwater.sinks.registry import is_readable, place_of, wanted_of
from headwater.sinks.topic.versions import Topics
from headwater.sql.statements import DropSink
from headwater.views.dead_letter_actions import read_deeds

if TYPE_CHECKING:
    from headwater.sinks.search.search_index import SearchIndex
    from headwater.views.view_manager import Views


class Sinks:
    """Everything about sinks: those that are declared, those that are kept in step here, and how all of them are doing."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        root: Path,
        workspace: str,
        views: Callable[[], Views],
        board: Board,
    ) -> None:
        self._given = (log, clock, root, workspace, views, board)
        self._log = log
        self._clock = clock
        self._root = root
        self.declared = SinkDeclarations(log, root, views)
        self.runners = SinkRunners(self.declared, log, clock, workspace, views)
        self._statuses = SinkStatuses(self.declared, self.runners, log, board)

    # --- declared --------------------------------------------------------------------------------------------------

    def definitions(self) -> Mapping[str, SinkDefinition]:
        """What is declared, by name."""
        return self.declared.all()

    def spelled(self, name: str) -> str:
        """A sink's name as it was declared; SinkNotFoundError."""
        return self.declared.entry(name).name

    def of_view(self, view: str) -> list[str]:
        """The sinks that follow a view."""
        return self.declared.of_view(view)

    def topics_of(self, name: str) -> Topics | None:
        """Which topics a sink of kind TOPIC has: after it was built anew it writes to another than the one it was declared with.
        None for other kinds."""
        return self.declared.topics_of(name)

    def drop(self, statement: DropSink) -> None:
        """DROP SINK: what it has written stays where it is."""
        if statement.if_exists and statement.name not in self._log.entries(SINK):
            return
        entry = self.declared.entry(statement.name)
        self.runners.forget(entry.name)
        self.declared.drop(entry)

    def apart(self) -> Sinks:
        """The same sinks with connections of their own, for one who may not wait for those that are here."""
        made = Sinks(*self._given)
        made.declared.functions = self.declared.functions
        return made

    # --- kept in step ----------------------------------------------------------------------------------------------

    def is_open(self, name: str) -> bool:
        """Whether its target was asked something from here."""
        return self.runners.known(name) is not None

    def start(self) -> None:
        """Keep every sink in step from now on, each in a thread of its own; also those that are declared later.
        One that is no longer declared ends."""
        self.runners.start()

    def stop(self) -> None:
        """Stop all sinks, each after the change that it is applying."""
        self.runners.stop()

    def catch_up(self, timeout_ms: float) -> None:
        """Bring every sink level with its view, here and now. The first error is raised when all have been tried."""
        self.runners.catch_up(timeout_ms)

    def wait(self, name: str, tick: int, timeout_ms: float) -> None:
        """Until a sink has everything up to a tick; without an engine here that is brought about."""
        self.runners.get(name)[0].wait(tick, timeout_ms)

    def resume(self, name: str) -> None:
        """Have a sink that is stopped try again at once."""
        self.runners.get(name)[0].resume()

    def retry(self, name: str, letters: Collection[str] | None = None) -> int:
        """Try the rows again that a sink's target has refused, all that were not dropped or those of some letters; how many it
        took."""
        name = self.spelled(name)
        choose = chosen(name, read_deeds(self._log), letters, incarnation_of(self._log, name))
        return self.runners.get(name)[0].applier.retry(choose)

    # --- how they are doing ----------------------------------------------------------------------------------------

    def status(self, name: str) -> SinkStatus:
        """How a sink is doing, with how many of its letters were dropped."""
        return self._statuses.get(name)

    def may_have_dropped(self, told: SinkStatus) -> bool:
        """Whether a sink's target is to be asked for the rows that it has refused, to count those that were dropped."""
        return self._statuses.may_have_dropped(told)

    def stopped(self, name: str) -> str | None:
        """What has stopped a sink when it was last kept in step, by whichever process; None if nothing has."""
        return self._statuses.stopped(name)

    def news(self) -> dict[str, dict[str, Any]]:
        """Of the sinks that are kept in step here."""
        return self._statuses.news()

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each sink that is kept in step, here or in another process."""
        return self._statuses.facts()

    def withheld(self, name: str) -> Withheld:
        """The rows that a sink's target has refused."""
        return self._statuses.withheld(name)

    def is_kept_elsewhere(self, name: str) -> bool:
        """Whether another process keeps a sink in step."""
        return self._statuses.is_kept_elsewhere(name)

    # --- their targets ---------------------------------------------------------------------------------------------

    def prepared(self, name: str) -> Target:
        """The target of a sink, connected to beside whoever keeps it in step, for one who asks and closes it."""
        return self.declared.prepared(name)

    def index(self, name: str) -> SearchIndex:
        """The index of a sink of kind SEARCH, for readers."""
        made = self.declared.get(name)
        if made.kind != "search":
            raise UsageError(
                f"sink {made.name!r} is of kind {made.kind.upper()}, which is not searched",
                hint="CREATE SINK ... INTO SEARCH makes an index",
            )
        require("search", f"searching sink {made.name!r}")
        from headwater.sinks.search.search_index import SearchIndex

        return SearchIndex(made.resolved().get("path") or place_of(made, self._root))

    def verify(self, *, repair: bool = False, cheap: bool = False) -> list[SinkCheck]:
        """Hold every sink against its view that can be read back; with `repair` bring those level that differ.
        `cheap` reads a view only where its sink's checksum is not the one that was kept."""
        found = []
        for name, made in self.definitions().items():
            if is_readable(made):
                runner, feed = self.runners.get(name)
                found.append(check(runner.applier, feed, repair=repair, cheap=cheap))
        return found

    @contextmanager
    def versions(self, name: str, told: Callable[[Step], None] = lambda step: None) -> Iterator[Rebuilding]:
        """Another version of a sink, beside the one in force: to be built, or kept from before. The sink goes on meanwhile."""
        made = self.declared.get(name)
        diverts = wanted_of(made).on_error == "divert"
        target = self.declared.open(made)
        try:
            yield Rebuilding(
                self.declared.shape_of(made),
                target,
                self.runners.feed(made),
                self._clock,
                on_error="divert" if diverts else "stop",
                told=told,
            )
        finally:
            target.close()
            known = self.runners.known(made.name)
            if known is not None:
                known.applier.forget()
