"""Periodic checks of a session: its slot, its publications and its tables are compared with their recorded state."""

from __future__ import annotations

from contextlib import suppress

from headwater.core.errors import PublicationError, SourceLockedError, SourceRefusedError
from headwater.sources.base import Position
from headwater.sources.postgres.gaps import Gaps
from headwater.sources.postgres.server.connection import identifier
from headwater.sources.postgres.server.publications import (
    Captured,
    check_partitions,
    check_published,
    find_tables,
    prepare_publications,
)
from headwater.sources.postgres.server.slot_monitor import over_budget, read_slot_health
from headwater.sources.postgres.session_state import SessionContext, SessionEndedError
from headwater.sources.postgres.snapshot.incremental_snapshot import IncrementalSnapshots
from headwater.sources.postgres.stream.receiver import Receiver


class Upkeep:
    """Runs the periodic checks of a session while it reads the stream."""

    def __init__(self, at: SessionContext, gaps: Gaps, incremental: IncrementalSnapshots) -> None:
        self._at = at
        self._options = at.options
        self._progress = at.progress
        self._gaps = gaps
        self._incremental = incremental

    def run(self, receiver: Receiver, position: Position | None) -> None:
        """Compare the slot, the publications and the tables with their recorded state; `position` is the next position to be
        committed. If a lock blocks the comparison, the stream continues, and the check is repeated next time."""
        try:
            self._check_slot(receiver)
            if position is not None:
                self._check_publications(position)
            self._gaps.compare()
            self._gaps.check_stopped()
        except SourceLockedError:
            self._progress.note(
                "lock", "not comparing tables, because another transaction holds a lock on one of them"
            )
        else:
            self._progress.note("lock", None)

    def _check_slot(self, receiver: Receiver) -> None:
        at = self._at
        self._progress.health = health = read_slot_health(at.connection, self._options, at.source)
        if health.over_budget and self._options.over_wal == "drop_slot":
            receiver.close()
            at.connection.rows(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
                "WHERE slot_name = %s AND active_pid IS NOT NULL",
                self._options.slot,
            )
            drop_slot(at)
            raise over_budget(self._options, at.source, health.retained_bytes, dropped=True)
        for table in self._unpublished():
            if str(table) not in at.tables.stopped:
                add = f"ALTER PUBLICATION {identifier(at.publications[0])} ADD TABLE {table.state.name}"
                self._gaps.stop(table, "the publication no longer contains it", add)
        for table in at.tables.all():
            if at.tables.topic(table.state.oid) is not None:
                try:
                    check_partitions(at.connection, table.state, table.state.key)
                except SourceRefusedError as error:
                    at.tables.stop(table.state.oid, error)

    def _unpublished(self) -> list[Captured]:
        """Return the tables that are no longer published; with on_gap = 'snapshot', the session ends if they can be published
        again."""
        at = self._at
        try:
            gone = check_published(at.connection, at.publications, at.tables.all())
            again = [table for table in gone if str(table) not in at.tables.stopped]
        except PublicationError as error:
            if not self._gaps.snapshots:
                raise
            raise SessionEndedError(error.message) from None
        if again and self._gaps.snapshots:
            for table in again:
                with suppress(PublicationError, SourceRefusedError):
                    prepare_publications(at.connection, self._options, [table])
                    raise SessionEndedError(f"table {table} was not published")
        return gone

    def _check_publications(self, position: Position) -> None:
        """Raise SessionEndedError if a pattern matches new tables: the next session captures them."""
        at = self._at
        known = {*position.get("tables", ()), *at.tables.stopped}
        if any(name.table == "*" for name in self._options.tables):
            found = find_tables(at.connection, self._options, lambda table, error: None)
            if new := [str(table) for table in found if str(table) not in known]:
                raise SessionEndedError(f"the new table {new[0]} is to be captured")


def drop_slot(at: SessionContext) -> None:
    """Drop the slot of a session on the server."""
    at.connection.rows("SELECT pg_drop_replication_slot(%s)", at.options.slot)
