"""The first copy of tables: as of the beginning of a new slot, in one append."""

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
    """What a session copies before its stream. The tables are held meanwhile: nobody empties or rewrites them."""

    def __init__(self, at: SessionContext, gaps: Gaps, outbox: Outbox | None) -> None:
        self._at = at
        self._options = at.options
        self._standing = at.standing
        self._gaps = gaps
        self._outbox = outbox

    def copy_all(self, captured: Sequence[Captured], begins: int, snapshot: str) -> Iterator[Event]:
        """Tables as of the slot's beginning, in one append. What the topics had before is replaced."""
        copier = Connection(self._options.url, self._at.source)
        try:
            yield from self._hold(copier, captured, snapshot)
            self._gaps.begin(captured)  # they are held: nobody changes them while they are copied
            now_us: Microseconds = copier.value("SELECT (extract(epoch FROM now()) * 1000000)::int8")
            # The tables are as they will be until they are copied; what they were at the snapshot's moment no longer matters.
            yield from self._at.tables.learn_now(self._at.connection, self._at.publications, captured)
            for table in captured:
                if table.is_outbox and self._standing.began_before:
                    self._standing.miss(table, f"before {lsn_text(begins)}, since the source began anew")
                elif table.is_outbox:
                    yield from self._copy_outbox(copier, table, (begins, now_us, None))
            for table in captured:
                self._standing.state = f"copying table {table}"
                yield from self._copy(copier, table, (begins, now_us, None))
        finally:
            copier.close()

    def _hold(self, copier: Connection, captured: Sequence[Captured], snapshot: str) -> Iterator[Quiet]:
        """See to it that nobody empties or rewrites what is to be copied, and that nobody has since the snapshot."""
        names = [table.state.name for table in captured]
        try:
            while not begin_holding(copier, names, snapshot):
                self._standing.state = "waiting for whoever has one of the tables to himself, to copy it"
                yield Quiet()
        except SourceRefusedError as error:
            if error.facts.get("sqlstate") in GONE:
                raise SessionEndedError("a table is gone that was there just now") from None
            raise
        check_still(copier, self._at.connection, captured)

    def _copy(self, copier: Connection, table: Captured, stamps: tuple[int, int, None]) -> Iterator[Rows]:
        tables = self._at.tables
        shape = tables.table(tables.relation_now(self._at.connection, self._at.publications, table))
        if shape is None:
            return
        if not shape.key and not self._at.history.is_empty(table.topic):
            self._standing.miss(table, f"before {lsn_text(int(stamps[0]))}, since the slot was lost")
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
        """The events that are in the outbox already, as they lie there; gone through twice, for topics are made before rows come."""
        shape = self._at.tables.outbox(
            self._at.tables.relation_now(self._at.connection, self._at.publications, table)
        )
        if shape is not None and self._outbox is not None:
            for batch in copied(copier, shape, None, stamps):
                yield from self._outbox.learn(self._outbox.read(batch))
            for batch in copied(copier, shape, None, stamps):
                yield from self._outbox.rows(self._outbox.read(batch))
