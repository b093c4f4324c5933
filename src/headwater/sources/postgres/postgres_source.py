"""Postgres source, created by `CREATE SOURCE ... FROM POSTGRES`.

Guarantee: the log equals the tables as of a position in the server's WAL, with every transaction whole and exactly once. Only
what the log has durably is confirmed to the slot; transactions that are sent again after a restart are recognized by their
position and left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError, SlotError, SourceError, UsageError
from headwater.sources.base import AWAY, Commit, Event, Position, Quiet, Rows
from headwater.sources.postgres.capture_session import QUIET_S, CaptureSession
from headwater.sources.postgres.rows.captured_tables import Tables, TopicHistory
from headwater.sources.postgres.server.connection import Connection, identifier, lsn_of
from headwater.sources.postgres.server.options import PostgresOptions, read_options, read_table
from headwater.sources.postgres.server.publications import (
    check_server,
    find_slot,
    find_tables,
    prepare_publications,
    publication_names,
)
from headwater.sources.postgres.server.server_identity import is_gap
from headwater.sources.postgres.server.slot_monitor import SlotHealth
from headwater.sources.postgres.session_state import SessionContext, SessionEndedError, SessionState
from headwater.sources.postgres.snapshot.snapshot_rows import SnapshotRequest
from headwater.sources.postgres.stream.transactions import MARK_PREFIX
from headwater.sources.source_setup import SourceSetup

BACKOFF_S = (0.1, 0.3, 1.0, 3.0, 5.0)
DROP_WAIT_MS = 5_000
IN_USE_S = 30.0
"""Time for which a slot may be in use before that is an error: the server may not have noticed yet that a previous reader has
died."""


@dataclass(frozen=True)
class SourceStatus:
    """Status of a source."""

    state: str
    """Current activity of the source, or the reason why it is idle, in words."""
    sequence: int
    durable: int
    snapshots: list[dict[str, Any]]
    """Progress of the incremental snapshots in progress, by table."""
    paused: bool
    stopped: Mapping[str, HeadwaterError]
    health: SlotHealth | None
    missing: Mapping[str, str] = field(default_factory=dict)
    """By table without a key, or outbox: the rows that its topic may lack for ever, and what to do about it."""


class PostgresSource:
    """A `DeclaredSource` of a Postgres database; see `headwater.sources.base` for the contract of each method.

    An error of `read` is final unless it is retryable. After a retryable one, rows yielded since the last `Commit` are void,
    and `read` can be called again.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any] | PostgresOptions,
        history: TopicHistory,
        folder: Path,
        generation: int = 0,
    ) -> None:
        """`folder` is for temporary data that does not fit in memory: its files are unnamed, and vanish with the process.
        `generation` is the number of times that the source was restarted from scratch."""
        self.name = name
        self.options = options if isinstance(options, PostgresOptions) else read_options(name, options)
        self._history = history
        self._folder = folder
        self._tables = Tables(name, self.options, history)
        self._progress = SessionState(name, generation)
        self._side: Connection | None = None
        self._side_turn = threading.Lock()
        self._closed = False

    @classmethod
    def declared(cls, setup: SourceSetup) -> Self:
        """Create the source of a declaration."""
        return cls(setup.name, setup.options, setup.lookups, setup.folder, setup.generation)

    def check(self) -> list[TopicDefinition]:
        """Check that the source can be captured, create the publications, and return the topics for the current tables. Raises
        the problem found. Reads no rows, and creates no slot."""
        connection = Connection(self.options.url, self.name)
        try:
            check_server(connection, self.name)
            captured = find_tables(connection, self.options)
            publications = prepare_publications(connection, self.options, captured)
            tables = Tables(self.name, self.options, self._history)
            tables.set(captured)
            for _ in tables.learn_now(connection, publications, captured, ahead=True):
                pass
            for error in tables.stopped.values():
                raise error
            return [tables.definition(table.topic) for table in captured if not table.is_outbox]
        finally:
            connection.close()

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Yield everything after the position. Temporary failures are retried: a server that restarts, a connection that
        breaks.

        An empty position restarts from scratch: with a new slot, and with snapshots that replace the content of the topics.
        """
        progress = self._progress
        progress.position, progress.sequence = position or None, sequence
        progress.durable = max(progress.durable, sequence)
        failures, in_use_since = 0, None
        while True:
            open_rows = False
            try:
                for event in self._session().events():
                    yield event
                    if isinstance(event, (Rows, Commit)):
                        open_rows = isinstance(event, Rows)
                        failures, in_use_since = 0, None
            except SourceError as error:
                in_use = isinstance(error, SlotError) and error.facts.get("reason") == "in use"
                now = time.monotonic()
                in_use_since = (in_use_since or now) if in_use else None
                waits = error.retryable or (in_use_since is not None and now - in_use_since < IN_USE_S)
                is_restarted = not open_rows and progress.position is not None and self._closes(error)
                if is_restarted:
                    self._forget()
                elif open_rows or not waits:
                    progress.state = f"stopped: {error.message}"
                    raise
                again = is_restarted or isinstance(error, SessionEndedError)
                progress.state = f"{'beginning' if again else AWAY} again: {error.message}"
            yield from self._wait(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
            failures += 1

    def durable(self, sequence: int, position: Position | None) -> None:
        """Record that the log has everything up to the sequence durably: the server may remove it."""
        self._progress.durable = max(self._progress.durable, sequence)

    def restarts(self, error: HeadwaterError) -> bool:
        """Whether the error that stopped the source is a gap that new snapshots close. Its new positions may be lower than the
        earlier ones."""
        return self._closes(error)

    def end(self) -> int:
        """Write a mark, and return its LSN, which is after everything committed so far. The stream is certain to reach it."""
        text = self._query_apart("SELECT pg_logical_emit_message(true, %s, 'end')::text", MARK_PREFIX)
        return lsn_of(text)

    def close(self) -> None:
        """Close the connections; the slot remains, and retains later changes."""
        self._closed = True
        with self._side_turn:
            if self._side is not None:
                self._side.close()
                self._side = None

    @property
    def status(self) -> SourceStatus:
        """Current status of the source."""
        progress = self._progress
        position = progress.position or {}
        return SourceStatus(
            progress.state,
            progress.sequence,
            progress.durable,
            list(position.get("snapshots", [])),
            bool(position.get("paused")),
            dict(self._tables.stopped),
            progress.health,
            dict(progress.missing),
        )

    @property
    def state(self) -> str:
        """Current activity of the source, or the reason why it is idle, in words."""
        return self._progress.state

    @property
    def health(self) -> SlotHealth | None:
        """WAL that the slot retains on the server; None until the first check."""
        return self._progress.health

    @property
    def stopped(self) -> Mapping[str, HeadwaterError]:
        """Error of each stopped table, by table; the other tables continue."""
        return self._tables.stopped

    @property
    def busy(self) -> bool:
        """Whether requests are not fulfilled yet: an incremental snapshot that is not paused, or all snapshots of a source
        restarted from scratch."""
        if self._progress.position is None:
            return True
        position = self._progress.position or {}
        asked = not self._progress.orders.empty() or (
            position.get("snapshots") and not position.get("paused")
        )
        return bool(asked or position.get("lacking"))

    def snapshot(self, table: str, where: str | None = None) -> None:
        """Request an incremental snapshot of a table, or of the rows that match a condition in Postgres SQL.

        `read` starts the snapshot, which is part of the position from its next commit on.
        """
        self._progress.orders.put(SnapshotRequest(self._named(table), where))

    def retry(self, table: str) -> None:
        """Resume a stopped table with a new incremental snapshot."""
        self._progress.orders.put(self._named(table, outbox=True))

    def pause(self) -> None:
        """Pause incremental snapshots after the current chunk, also across restarts."""
        self._progress.orders.put(True)

    def resume(self) -> None:
        """Resume incremental snapshots."""
        self._progress.orders.put(False)

    def drop(self) -> None:
        """Drop the slot and the publications on the server, unless the user named them."""
        connection = Connection(self.options.url, self.name)
        try:
            if not self.options.slot_given and find_slot(connection, self.options.slot) is not None:
                # A reader that has just disconnected may still be connected on the server.
                connection.rows(
                    "SELECT pg_terminate_backend(active_pid, %s) FROM pg_replication_slots "
                    "WHERE slot_name = %s AND active_pid IS NOT NULL",
                    DROP_WAIT_MS,
                    self.options.slot,
                )
                connection.rows("SELECT pg_drop_replication_slot(%s)", self.options.slot)
            if not self.options.publication_given:
                for name in publication_names(self.options):
                    connection.rows(f"DROP PUBLICATION IF EXISTS {identifier(name)}")
        finally:
            connection.close()

    def _closes(self, error: HeadwaterError) -> bool:
        """Whether the source closes a gap with new snapshots. It does not with an outbox: the rows of its events may be deleted
        by then."""
        if self.options.outbox is not None:
            return False
        return self.options.on_gap == "snapshot" and is_gap(error)

    def _forget(self) -> None:
        """Restart from scratch: the next session creates a new slot and snapshots all tables."""
        self._progress.position = None
        self._tables.stopped.clear()

    def _session(self) -> CaptureSession:
        shared = (self.name, self.options, self._history, self._tables, self._progress, self._folder)
        return CaptureSession(SessionContext(*shared, Connection(self.options.url, self.name)))

    def _named(self, table: str, *, outbox: bool = False) -> str:
        name, of_outbox = read_table(table), self.options.outbox_table
        if outbox and of_outbox is not None and str(name) == str(of_outbox):
            return str(name)
        known = {(captured.schema, captured.table) for captured in self.options.tables}
        if known.isdisjoint({(name.schema, name.table), (name.schema, "*")}):
            raise UsageError(
                f"source {self.name!r} does not capture table {name}",
                hint=f"its tables are {', '.join(map(str, self.options.tables))}",
                source=self.name,
                table=str(name),
            )
        return str(name)

    def _query_apart(self, statement: str, *parameters: Any) -> Any:
        """Run a query on a second connection, which threads other than the reader may use."""
        with self._side_turn:
            for is_last in (False, True):
                try:
                    if self._side is None:
                        self._side = Connection(self.options.url, self.name)
                    return self._side.value(statement, *parameters)
                except SourceError:
                    if self._side is not None:
                        self._side.close()
                        self._side = None
                    if is_last:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, seconds: float) -> Iterator[Event]:
        deadline = time.monotonic() + seconds
        while (rest := deadline - time.monotonic()) > 0:
            yield Quiet()
            time.sleep(min(rest, QUIET_S))
