"""The sinks of a workspace: declared, run in this process, waited for, and verified against their views."""

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
from headwater.connectors.manage.status_board import StatusBoard
from headwater.core.clock import Clock
from headwater.core.errors import UsageError
from headwater.core.extras import require
from headwater.log.protocol import Log
from headwater.sinks.base.rejected_rows import RejectedSinkRows
from headwater.sinks.base.sink_rebuild import Rebuilding, Step
from headwater.sinks.base.sink_verify import SinkCheck, check
from headwater.sinks.base.target import Target
from headwater.sinks.registry import is_readable, place_of, wanted_of
from headwater.sinks.topic.versions import Topics
from headwater.sql.statements import DropSink
from headwater.views.dead_letter_actions import read_actions

if TYPE_CHECKING:
    from headwater.sinks.search.search_index import SearchIndex
    from headwater.views.view_manager import Views


class Sinks:
    """All operations on sinks: on declarations, on running sinks, and on the statuses of both."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        root: Path,
        workspace: str,
        views: Callable[[], Views],
        board: StatusBoard,
    ) -> None:
        self._given = (log, clock, root, workspace, views, board)
        self._log = log
        self._clock = clock
        self._root = root
        self.declared = SinkDeclarations(log, root, views)
        self.runners = SinkRunners(self.declared, log, clock, workspace, views)
        self._statuses = SinkStatuses(self.declared, self.runners, log, board)

    # --- declarations ----------------------------------------------------------------------------------------------

    def definitions(self) -> Mapping[str, SinkDefinition]:
        """Return the declared sinks, by name."""
        return self.declared.all()

    def canonical_name(self, name: str) -> str:
        """Return a sink's name as it was declared; SinkNotFoundError."""
        return self.declared.entry(name).name

    def of_view(self, view: str) -> list[str]:
        """Return the names of the sinks of a view."""
        return self.declared.of_view(view)

    def topics_of(self, name: str) -> Topics | None:
        """Return the topics of a sink of kind TOPIC, which after a rebuild writes to another topic than the declared one.
        None for other kinds."""
        return self.declared.topics_of(name)

    def drop(self, statement: DropSink) -> None:
        """DROP SINK: the written data stays."""
        if statement.if_exists and statement.name not in self._log.entries(SINK):
            return
        entry = self.declared.entry(statement.name)
        self.runners.forget(entry.name)
        self.declared.drop(entry)

    def apart(self) -> Sinks:
        """Return the same sinks with connections of their own, for a caller that must not wait for the connections here."""
        made = Sinks(*self._given)
        made.declared.functions = self.declared.functions
        return made

    # --- running ---------------------------------------------------------------------------------------------------

    def is_open(self, name: str) -> bool:
        """Whether a runner of the sink was created here."""
        return self.runners.runner_of(name) is not None

    def start(self) -> None:
        """Run every sink from now on, each in a thread of its own. Repeated calls also start sinks declared since, and stop
        those no longer declared."""
        self.runners.start()

    def stop(self) -> None:
        """Stop all sinks, each after the change under way."""
        self.runners.stop()

    def catch_up(self, timeout_ms: float) -> None:
        """Bring every sink up to its view in this thread. The first error is raised after all were tried."""
        self.runners.catch_up(timeout_ms)

    def wait(self, name: str, tick: int, timeout_ms: float) -> None:
        """Wait until a sink has everything up to a tick; if the sink does not run here, catch up in this thread."""
        self.runners.get(name)[0].wait(tick, timeout_ms)

    def resume(self, name: str) -> None:
        """Let a stopped sink retry at once."""
        self.runners.get(name)[0].resume()

    def retry(self, name: str, letters: Collection[str] | None = None) -> int:
        """Retry the rows that a sink's target rejected, all that were not dropped or those of some letters; return how many
        of them the target accepted."""
        name = self.canonical_name(name)
        choose = chosen(name, read_actions(self._log), letters, incarnation_of(self._log, name))
        return self.runners.get(name)[0].applier.retry(choose)

    # --- status ----------------------------------------------------------------------------------------------------

    def status(self, name: str) -> SinkStatus:
        """Return the status of a sink, with the number of its dropped letters."""
        return self._statuses.get(name)

    def may_have_dropped(self, status: SinkStatus) -> bool:
        """Whether the rejected rows of a sink must be read from its target to count the dropped ones."""
        return self._statuses.may_have_dropped(status)

    def stopped(self, name: str) -> str | None:
        """Return the error that stopped a sink when it last ran, in any process; None if it is not stopped."""
        return self._statuses.stopped(name)

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the statuses of the sinks that run here, for the status board."""
        return self._statuses.running()

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the properties of each running sink, here or in another process."""
        return self._statuses.facts()

    def rejected(self, name: str) -> RejectedSinkRows:
        """Return the rows that a sink's target rejected."""
        return self._statuses.rejected(name)

    def runs_elsewhere(self, name: str) -> bool:
        """Whether another process runs a sink."""
        return self._statuses.runs_elsewhere(name)

    # --- targets ---------------------------------------------------------------------------------------------------

    def prepared(self, name: str) -> Target:
        """Return the target of a sink with a connection of its own, independent of the process that runs the sink. The
        caller closes it."""
        return self.declared.prepared(name)

    def index(self, name: str) -> SearchIndex:
        """Return the index of a sink of kind SEARCH, for readers."""
        made = self.declared.get(name)
        if made.kind != "search":
            raise UsageError(
                f"sink {made.name!r} is of kind {made.kind.upper()}, which cannot be searched",
                hint="CREATE SINK ... INTO SEARCH creates an index",
                sink=made.name,
                kind=made.kind,
            )
        require("search", f"searching sink {made.name!r}")
        from headwater.sinks.search.search_index import SearchIndex

        return SearchIndex(made.resolved().get("path") or place_of(made, self._root))

    def verify(self, *, repair: bool = False, cheap: bool = False) -> list[SinkCheck]:
        """Verify every sink whose contents can be read against its view; with `repair`, reconcile those that differ. `cheap`
        reads a view only if the checksum of its sink's contents is not the recorded one."""
        found = []
        for name, made in self.definitions().items():
            if is_readable(made):
                runner, feed = self.runners.get(name)
                found.append(check(runner.applier, feed, repair=repair, cheap=cheap))
        return found

    @contextmanager
    def versions(
        self, name: str, on_step: Callable[[Step], None] = lambda step: None
    ) -> Iterator[Rebuilding]:
        """Yield access to the versions of a sink besides the active one: a staging version to build, or the previous one.
        The sink continues meanwhile."""
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
                on_step=on_step,
            )
        finally:
            target.close()
            known = self.runners.runner_of(made.name)
            if known is not None:
                known.applier.forget()
