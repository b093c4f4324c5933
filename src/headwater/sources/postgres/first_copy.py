"""The first copy of tables: their rows as of the beginning of a new slot, in one append."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.catalog.conform import adapt
from headwater.core.clock import Microseconds
from headwater.core.errors import SourceRefusedError
from headwater.sources.base import Event, Quiet, Rows
from headwater.sources.postgres.gaps import Gaps
from headwater.sources.postgres.outbox import Outbox
from headwater.sources.postgres.server.connection import Connection, lsn_text
from headwater.sources.postgres.server.publications import Captured
from headwater.sources.postgres.session_state import SessionContext, SessionEndedError
from headwater.sources.postgres.snapshot.empty_topic import emptied
from headwater.sources.postgres.snapshot.snapshot_rows import copied
from headwater.sources.postgres.snapshot.table_locks import (
    GONE,
    attached_partitions,
    begin_holding,
    check_still,
)


class FirstCopy:
    """Copies tables before the stream of a session. The tables are locked against TRUNCATE and rewrites during the copy."""

    def __init__(self, at: SessionContext, gaps: Gaps, outbox: Outbox | None) -> None:
        self._at = at
        self._options = at.options
        self._progress = at.progress
        self._gaps = gaps
        self._outbox = outbox

    def copy_all(self, captured: Sequence[Captured], begins: int, snapshot: str) -> Iterator[Event]:
        """Yield the rows of the tables as of the slot's beginning, in one append; they replace earlier rows of the topics."""
        copier = Connection(self._options.url, self._at.source)
        try:
            yield from self._hold(copier, captured, snapshot)
            self._gaps.begin(captured)  # the locks keep the facts unchanged during the copy
            now_us: Microseconds = copier.value("SELECT (extract(epoch FROM now()) * 1000000)::int8")
            # Definitions as of now, not as of the snapshot: because of the locks they apply until the tables are copied.
            yield from self._at.tables.learn_now(self._at.connection, self._at.publications, captured)
            for table in captured:
                if table.is_outbox and self._progress.began_before:
                    self._progress.miss(
                        table, f"before {lsn_text(begins)}, because the source was restarted from scratch"
                    )
                elif table.is_outbox:
                    yield from self._copy_outbox(copier, table, (begins, now_us, None))
            for table in captured:
                self._progress.state = f"copying table {table}"
                yield from self._copy(copier, table, (begins, now_us, None))
        finally:
            copier.close()

    def _hold(self, copier: Connection, captured: Sequence[Captured], snapshot: str) -> Iterator[Quiet]:
        """Lock the tables against TRUNCATE and rewrites, and check that neither has happened since the snapshot. Yields while
        another transaction holds a conflicting lock; SessionEndedError if a table is gone or was changed."""
        names = [table.state.name for table in captured]
        try:
            while not begin_holding(copier, names, snapshot):
                self._progress.state = (
                    "waiting for a lock that another transaction holds on one of the tables to copy"
                )
                yield Quiet()
        except SourceRefusedError as error:
            if error.facts.get("sqlstate") in GONE:
                raise SessionEndedError("a table was dropped while it was being copied") from None
            raise
        check_still(copier, self._at.connection, captured)

    def _copy(self, copier: Connection, table: Captured, stamps: tuple[int, int, None]) -> Iterator[Rows]:
        tables = self._at.tables
        shape = tables.table(tables.relation_now(self._at.connection, self._at.publications, table))
        if shape is None:
            return
        if not shape.key and not self._at.history.is_empty(table.topic):
            self._progress.miss(table, f"before {lsn_text(int(stamps[0]))}, because the slot was lost")
            return
        definition = tables.definition(table.topic)
        if shape.key:
            yield from emptied(self._at.history, definition, stamps)
        for batch in copied(copier, shape, self._at.filters.get(str(table)), stamps):
            yield Rows(table.topic, adapt(batch, definition.row_schema))
        if shape.divided:
            self._gaps.copied_from(table, attached_partitions(copier, table.state.oid))

    def _copy_outbox(
        self, copier: Connection, table: Captured, stamps: tuple[int, int, None]
    ) -> Iterator[Event]:
        """Yield the events that are in the outbox table already, in the table's order. The table is read twice: all missing
        topics are created before the first rows."""
        shape = self._at.tables.outbox(
            self._at.tables.relation_now(self._at.connection, self._at.publications, table)
        )
        if shape is not None and self._outbox is not None:
            for batch in copied(copier, shape, None, stamps):
                yield from self._outbox.learn(self._outbox.read(batch))
            for batch in copied(copier, shape, None, stamps):
                yield from self._outbox.rows(self._outbox.read(batch))
