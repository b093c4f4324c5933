"""Emits the rows of whole transactions: decoded, complete, and in the columns of their topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import adapt
from headwater.core.errors import BadRowError
from headwater.sources.base import Evolve, Rows
from headwater.sources.postgres.decode.decode_rows import INSERT, DecodedRows, decode
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.postgres.decode.row_buffer import RowRun
from headwater.sources.postgres.outbox import Happened, Outbox
from headwater.sources.postgres.rows.column_attributes import Attributes
from headwater.sources.postgres.rows.toast_fill import Earlier, Find, Mask, fill, find_earlier
from headwater.sources.postgres.rows.toast_pending import IncompleteRows
from headwater.sources.postgres.session_state import SessionContext
from headwater.sources.postgres.snapshot.empty_topic import emptied
from headwater.sources.postgres.snapshot.incremental_snapshot import IncrementalSnapshots
from headwater.sources.postgres.stream.transactions import TransactionGroup
from headwater.sources.row_sizes import RowsTooLargeError


class RowEmitter:
    """Converts groups of transactions to rows of topics."""

    def __init__(
        self,
        at: SessionContext,
        incremental: IncrementalSnapshots,
        outbox: Outbox | None,
        attributes: Attributes,
    ) -> None:
        self._at = at
        self._attributes = attributes
        self._incremental = incremental
        self._outbox = outbox

    def learn(self, unit: TransactionGroup) -> Iterator[Evolve]:
        """Yield the changes of topics that must precede the rows of a group."""
        relations = [
            relation
            for relation in unit.relations()
            if not self._incremental.wanted.passes_over(relation.oid)
        ]
        yield from self._at.tables.learn(self._at.connection, relations)
        if self._outbox is not None:
            for run in unit.runs():
                if (events := self._events(run)) is not None:
                    yield from self._outbox.learn(events)
            yield from self._outbox.learn(self._outbox.read_messages(unit.messages))

    def rows(self, unit: TransactionGroup) -> Iterator[Rows]:
        """Yield the rows of a group, ordered within each topic."""
        for oid in unit.truncated:
            yield from self._truncated(oid, unit)
        earlier: dict[str, Earlier] = {}
        begun: set[str] = set()
        try:
            for number, run in enumerate(unit.runs()):
                if (events := self._events(run)) is not None:
                    assert self._outbox is not None
                    yield from self._outbox.rows(events)
                    continue
                topic, table = self._at.tables.topic(run.relation.oid), self._at.tables.table(run.relation)
                if topic is None or table is None or self._incremental.wanted.passes_over(run.relation.oid):
                    continue
                before, begun = (number if topic in begun else 0), {*begun, topic}
                for batch in self._decoded(run, table, topic, unit, before, earlier):
                    if batch.num_rows and not self._incremental.buffer_changes(
                        batch, run.relation.oid, table
                    ):
                        yield Rows(topic, adapt(batch, self._at.tables.definition(topic).row_schema))
        finally:
            for kept in earlier.values():
                kept.close()
        if self._outbox is not None:
            yield from self._outbox.rows(self._outbox.read_messages(unit.messages))

    def _events(self, run: RowRun) -> list[Happened] | None:
        """Return the events in rows of the outbox's table; None for a run of another table."""
        table = self._at.tables.outbox(run.relation)
        if table is None or self._outbox is None:
            return None
        batch = decode(run, table).batch
        return self._outbox.read(batch.filter(pc.equal(batch.column("_op"), INSERT)))

    def _decoded(
        self,
        run: RowRun,
        table: CapturedTable,
        topic: str,
        unit: TransactionGroup,
        number: int,
        earlier: dict[str, Earlier],
    ) -> Iterator[pa.RecordBatch]:
        """Yield complete rows. `number` is the number of earlier runs in the group, if one of them has rows of the same topic;
        else 0."""
        try:
            changes = decode(run, table)
        except BadRowError as error:
            self._at.tables.stop(run.relation.oid, error)
            return
        if not table.key:
            yield changes.batch.filter(pc.equal(changes.batch.column("_op"), INSERT))
            return
        if changes.unchanged and number and topic not in earlier:
            earlier[topic] = self._earlier(unit, number, topic)
        for part, batch, pending in self._in_parts(changes, table, topic, unit, earlier):
            if pending.any():
                self._incremental.request_rows(IncompleteRows.of(part, batch, pending), table)
                batch = batch.filter(pa.array(~pending))
            if topic in earlier:
                earlier[topic].add(batch, table.key)
            yield batch

    def _in_parts(
        self,
        changes: DecodedRows,
        table: CapturedTable,
        topic: str,
        unit: TransactionGroup,
        earlier: dict[str, Earlier],
    ) -> Iterator[tuple[DecodedRows, pa.RecordBatch, Mask]]:
        """Yield the rows with unchanged values filled in, and the mask of the rows that still lack one: in parts, if the values
        are large. The caller must add the result of each part to the `earlier` rows before the next part is requested."""
        try:
            yield changes, *self._filled(changes, table, topic, unit, earlier.get(topic))
            return
        except RowsTooLargeError as error:
            rows = min(error.rows, changes.batch.num_rows // 2)
        earlier.setdefault(topic, Earlier(self._at.folder))
        for part in changes.parts(rows):
            yield from self._in_parts(part, table, topic, unit, earlier)

    def _earlier(self, unit: TransactionGroup, number: int, topic: str) -> Earlier:
        """Decode the first `number` runs of a group again: later rows may need their values."""
        kept = Earlier(self._at.folder)
        for place, run in enumerate(unit.runs()):
            if place >= number:
                break
            table = self._at.tables.table(run.relation)
            if table is not None and self._at.tables.topic(run.relation.oid) == topic:
                changes = decode(run, table)
                for _, batch, pending in self._in_parts(changes, table, topic, unit, {topic: kept}):
                    kept.add(batch.filter(pa.array(~pending)), table.key)
        return kept

    def _filled(
        self,
        changes: DecodedRows,
        table: CapturedTable,
        topic: str,
        unit: TransactionGroup,
        earlier: Earlier | None,
    ) -> tuple[pa.RecordBatch, Mask]:
        """Return the rows with unchanged values filled in, and the mask of the rows whose values cannot be found."""
        after = 0
        if changes.unchanged and table.key:
            name = self._at.tables.name(table.relation.oid)
            after = self._attributes.after(name, table.relation, changes.unchanged)
            if unit.begins <= after:
                return changes.batch, np.logical_or.reduce([*changes.unchanged.values()])
        finds: list[Find] = [] if earlier is None else [find_earlier(earlier)]
        since = self._incremental.wanted.since(table.relation.table)

        def in_log(keys: pa.RecordBatch, columns: Sequence[str]) -> tuple[pa.RecordBatch, Mask]:
            found = self._at.history.last_values(topic, keys, columns, since, after)
            there = np.asarray(found.column("_found"))
            if earlier is not None:
                there = there & ~earlier.deletes(*earlier.last(keys.columns, keys.num_rows))
            return found.select(list(columns)), there

        return fill(changes, table, [*finds, in_log])

    def _truncated(self, oid: int, unit: TransactionGroup) -> Iterator[Rows]:
        topic = self._at.tables.topic(oid)
        self._incremental.truncated(oid)
        if topic is None or self._incremental.wanted.passes_over(oid):
            return
        definition = self._at.tables.definition(topic)
        if definition.keyed:
            assert unit.large is not None
            transaction = unit.large.transaction
            assert transaction is not None
            stamps = (transaction.position, transaction.time_us, transaction.xid)
            yield from emptied(self._at.history, definition, stamps)
