"""The sources of a workspace: declared, run in this process or caught up once, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.catalog.connectors import SOURCE, SourceDefinition
from headwater.connectors.manage.recent_counts import Recent
from headwater.connectors.manage.source_declarations import SourceDeclarations
from headwater.connectors.manage.source_orders import SourceOrders
from headwater.connectors.manage.source_positions import parse_lsn, position_text
from headwater.connectors.manage.source_runners import SourceRunners
from headwater.connectors.manage.status_board import StatusBoard
from headwater.connectors.manage.webhooks import NOT_SERVED, Hooks
from headwater.core.arguments import whole_number
from headwater.core.clock import Clock
from headwater.log.protocol import Log
from headwater.sources.base import AGAIN, AWAY, Backlog, Counting, OfTables, Retaining, Stated
from headwater.sources.registry import HANDED_OVER
from headwater.sources.source_faults import faults_of
from headwater.sources.source_runner import Capture, Capturing, producer_of
from headwater.sql.statements import AlterSource, DropSource

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

STOPPED = "stopped: "
"""Prefix of the state of a source that an error has stopped."""
LOST = ("malformed", "dropped_by_kernel", "dropped_here")
"""Names of counts of data that listening sources did not take."""


@dataclass(frozen=True)
class SourceSummary:
    """The state of a source in words, and the position up to which the log has everything."""

    state: str
    position: str | None


class SourceManager:
    """All operations on sources: on declarations, on running sources, and on the statuses of both."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        root: Path,
        views: Callable[[], Views],
        board: StatusBoard,
        hooks_board: StatusBoard,
    ) -> None:
        self._log = log
        self._views = views
        self._board = board
        self.declared = SourceDeclarations(log, root, views)
        self.runners = SourceRunners(self.declared, log, clock, views)
        self.hooks = Hooks(log, clock, self.declared.entries, hooks_board)
        """Webhook sources, to which deliveries are posted."""
        self._recent = Recent(clock)

    # --- declarations ----------------------------------------------------------------------------------------------

    def definitions(self) -> Mapping[str, SourceDefinition]:
        """Return the declared sources, by name."""
        return self.declared.entries.all()

    def canonical_name(self, name: str) -> str:
        """Return a source's name as it was declared; SourceNotFoundError."""
        return self.declared.entries.entry(name).name

    def position_of(self, after: str | int) -> int:
        """Return a position in a source as a number, from the form that users have: for Postgres, an LSN."""
        return parse_lsn(after) if isinstance(after, str) else whole_number(after, "after")

    def drop(self, statement: DropSource) -> None:
        """DROP SOURCE: remove what the source created in the external system; its topics stay, without a writer."""
        if statement.if_exists and statement.name not in self._log.entries(SOURCE):
            return
        entry = self.declared.entries.entry(statement.name)
        self.runners.stop_one(entry.name)
        self.declared.drop(entry)

    def alter(self, statement: AlterSource) -> None:
        """ALTER SOURCE: record an order for the process that reads the source, this one or another, now or at its next
        start."""
        entry = self.declared.entries.entry(statement.name)
        if statement.action == "restart" and statement.table is None:
            self.runners.stop_one(entry.name)
            self.declared.restart(entry)
            return
        source = self.declared.open(self.declared.entries.read(entry))
        try:
            SourceOrders(self._log).put(entry.name, source, statement)
        finally:
            source.close()

    # --- running ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run every source from now on, each in a thread of its own. A source that an error has stopped stays stopped until
        its declaration changes; one that is no longer declared ends."""
        self.runners.start()

    def stop(self) -> None:
        """Stop all sources, each after the transaction under way."""
        self.runners.stop()

    def catch_up(self, timeout_s: float) -> None:
        """Capture everything that is committed in the sources by now."""
        self.runners.catch_up(timeout_s)

    def wait(self, name: str, sequence: int, timeout_s: float) -> None:
        """Wait until the log has everything of a source up to a sequence; without an engine, capture it in this thread."""
        self.runners.wait(name, sequence, timeout_s)

    def sequence(self, name: str) -> int:
        """Return the sequence up to which the log has everything of a source, as far as known; -1 before the first."""
        return self.runners.sequence(name)

    # --- status ----------------------------------------------------------------------------------------------------

    def status(self, name: str) -> SourceSummary:
        """Return the state and position of a source, as far as this process knows."""
        running, sequence = self.runners.running(name), self.sequence(name)
        kind = self.definitions()[name].kind
        position = position_text(kind, sequence)
        if kind in HANDED_OVER:
            return SourceSummary(self.hooks.facts().get(name, {}).get("state", NOT_SERVED), None)
        if running is None:
            published = self._board.read()
            if published is not None and name in published.sources:
                return SourceSummary(str(published.sources[name]["state"]), position)
            whole, _ = faults_of(self._log.faults, name)
            if whole is not None:
                return SourceSummary(f"{STOPPED}{whole.reason}", position)
            elsewhere = self._views().engine() is not None
            return SourceSummary("captured by another process" if elsewhere else "not running", position)
        return SourceSummary(_state(running), position)

    def stopped_tables(self, name: str) -> Mapping[str, str]:
        """Return the tables of a source that are no longer captured, with the reason and the next step. For a source that
        does not run, the tables are those that were stopped when it was last read."""
        _, faults = faults_of(self._log.faults, name)
        reasons = {
            t: f"{fault.reason}; {fault.hint}" if fault.hint else fault.reason for t, fault in faults.items()
        }
        if name in (facts := self.facts()):
            found: Mapping[str, str] = facts[name]["stopped_tables"]
            return {**reasons, **found}
        made = self.definitions()[name]
        known = self._log.producer(producer_of(name, made.generation))
        tables = ((known.note if known is not None else None) or {}).get("stopped", ())
        again = f"ALTER SOURCE {name} RESTART captures it again, or reports the obstacle"
        return {**dict.fromkeys(tables, again), **reasons}

    def stopped(self) -> dict[str, str]:
        """Return stopped sources, and stopped tables as `source shop, table orders`, with the reason and the next step."""
        found = {}
        for name in self.definitions():
            whole, _ = faults_of(self._log.faults, name)
            if whole is not None:
                found[f"source {name}"] = f"{whole.reason}; {whole.hint}" if whole.hint else whole.reason
            for table, reason in self.stopped_tables(name).items():
                found[f"source {name}, table {table}"] = reason
        return found

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the statuses of the sources that run here, for the status board."""
        found = {}
        for name, capturing in self.runners.all().items():
            progress, capture = capturing.progress, capturing.capture
            health = _health(capture)
            counts, last_refused = _counted(capture)
            found[name] = {
                "state": (state := _state(capturing)),
                "up": capturing.error is None and not state.startswith((AWAY, AGAIN)),
                "rows": progress.rows,
                "commits": progress.commits,
                "committed_at": progress.committed_at,
                "stopped_tables": _stopped(capture),
                "retained_bytes": None if health is None else health.retained_bytes,
                "behind_bytes": None if health is None else health.behind_bytes,
                "over_budget": None if health is None else health.over_budget,
                "counts": counts,
                "recent_rejected": self._recent.of(name, sum(counts.get(what, 0) for what in LOST)),
                "last_refused": last_refused,
            }
        return found

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the properties of each running source, here or in another process."""
        published = None if self.runners.all() else self._board.read()
        return {**(self.statuses() if published is None else published.sources), **self.hooks.facts()}


def _stopped(capture: Capture | None) -> dict[str, str]:
    """Return the reasons why tables of a source are no longer captured, and the next steps, by table."""
    if capture is None or not isinstance(capture.source, OfTables):
        return {}
    errors = dict(capture.source.stopped)
    return {str(table): f"{error.message}; {error.hint}" for table, error in sorted(errors.items())}


def _health(capture: Capture | None) -> Backlog | None:
    """Return what the server of a source retains for it, if known."""
    if capture is None or not isinstance(capture.source, Retaining):
        return None
    return capture.source.health


def _counted(capture: Capture | None) -> tuple[dict[str, int], list[str]]:
    """Return the counts of a source, and its last rejected rows."""
    if capture is None or not isinstance(capture.source, Counting):
        return {}, []
    return dict(capture.source.counts), list(capture.source.last_refused)


def _state(capturing: Capturing) -> str:
    """Return the state of a source that runs here, in words."""
    if capturing.error is not None:
        return f"{STOPPED}{capturing.error.message}"
    if (passing := capturing.retries) is not None:
        return f"{AGAIN}: {passing.message}"
    if capturing.capture is None:
        return "starting"
    source = capturing.capture.source
    return source.state if isinstance(source, Stated) else "capturing"
