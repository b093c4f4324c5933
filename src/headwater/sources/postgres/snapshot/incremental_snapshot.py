"""Incremental snapshots, copied while the stream continues: the chunk in progress, and changes that the stream has meanwhile.

`snapshot_rows` selects chunks and leaves out rows that have changed; `wanted_snapshots` has the requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty

import pyarrow as pa

from headwater.catalog.conform import adapt
from headwater.core.errors import BadRowError, SourceRefusedError
from headwater.sources.base import Evolve, Rows
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.postgres.rows.toast_pending import IncompleteRows
from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.server.publications import Captured, find_tables, row_filters, tables_of
from headwater.sources.postgres.session_state import SessionContext, SessionEndedError
from headwater.sources.postgres.snapshot.empty_topic import emptied
from headwater.sources.postgres.snapshot.snapshot_rows import (
    Chunks,
    SnapshotChunk,
    SnapshotRequest,
    is_early,
    key_shape,
    keys_in,
    read_mark,
    rows_of,
)
from headwater.sources.postgres.snapshot.table_locks import GONE
from headwater.sources.postgres.snapshot.wanted_snapshots import WantedSnapshots
from headwater.sources.postgres.stream.transactions import MARK_PREFIX, TransactionGroup

RECENT_XIDS = 10_000
"""Number of latest transactions of the stream that are remembered: more than can be in the WAL and not visible yet."""

AGAIN_S = 0.1
"""Pause before a chunk is selected again, for example because a transaction of the stream was not visible yet."""


class IncrementalSnapshots:
    """Runs the incremental snapshots of a session."""

    def __init__(self, at: SessionContext) -> None:
        self._at = at
        self.wanted = WantedSnapshots(at)
        self._chunks: Chunks | None = None
        self._chunk: SnapshotChunk | None = None
        self._buffered: dict[int, list[pa.RecordBatch]] = {}
        self.resumed: list[Captured] = []
        """Tables that a request has resumed; the reader of this list clears it."""
        self._recent: deque[int] = deque(maxlen=RECENT_XIDS)
        self._not_before = 0.0
        self._refused: dict[str, str] = {}
        """By table whose current definition its topic rejects: the mark after which the stream has no rows of the earlier
        definition; empty once the mark has come."""
        self.is_outdated = False
        """Whether a chunk has shown that a table has changed since its last comparison. The code that compares the tables
        resets it."""

    # Events of the stream.

    def saw(self, unit: TransactionGroup) -> None:
        """Remember the transactions of a group, which were in the stream."""
        self._recent.extend(unit.xids)

    def truncated(self, oid: int) -> None:
        """Handle a TRUNCATE: the rows of the table that are pending or selected are void."""
        for table in self._at.tables.all():
            if table.state.oid == oid:
                self.wanted.emptied(str(table))
        if self._chunk is not None and self._chunk.table.relation.oid == oid:
            self._chunk.emptied = True
            self._chunk.pending.clear()

    def request_rows(self, incomplete: IncompleteRows, table: CapturedTable) -> None:
        """Request whole rows in place of changes that are skipped because they lack values."""
        self.wanted.note()
        chunk = self._chunk
        if chunk is not None and chunk.table.relation.oid == table.relation.oid:
            chunk.pending.add(incomplete, table, chunk.changed)
        self.wanted.request_rows(incomplete, table, None if chunk is None else chunk.request)

    def buffer_changes(self, batch: pa.RecordBatch, oid: int, table: CapturedTable) -> bool:
        """Record the keys of changed rows for the chunk in progress. Returns True if the rows are buffered instead of emitted:
        rows without a key can be distinguished from rows of the snapshot only by the transactions that the snapshot sees."""
        if not table.key:
            is_buffered = any(request.table == table.relation.table for request in self.wanted.requests)
            if is_buffered:
                self._buffered.setdefault(oid, []).append(batch)
            return is_buffered
        if self._chunk is not None and self._chunk.table.relation.oid == oid:
            self._chunk.changed.add([batch.column(name) for name in table.key], batch.num_rows)
        return False

    def marked(self, unit: TransactionGroup) -> Iterator[Rows]:
        """Handle the marks in a group of transactions. Yields the rows of the chunk whose mark is among them."""
        for message, transaction in unit.messages:
            mark = read_mark(message.content) if message.prefix == MARK_PREFIX else None
            if mark is None:
                continue
            self.wanted.marked(mark)
            self._refused = {
                table: "" if awaited == mark else awaited for table, awaited in self._refused.items()
            }
            if self._chunk is not None and mark == self._chunk.mark:
                yield from self._hand_over(self._chunk, (unit.end, transaction.time_us, transaction.xid))

    # Requests and their execution.
    def copy_again(self, table: Captured) -> None:
        """Request a new copy of a table whose rows were rewritten; a chunk of it that is in progress is void."""
        self.wanted.copy_again(table)
        if self._chunk is not None and self._chunk.request.table == str(table):
            self._chunk.emptied = True
            self._chunk.pending.clear()

    def refuse(self, table: Captured) -> None:
        """Stop a table whose current definition its topic rejects, once the stream has delivered the rows of the earlier
        definition."""
        if str(table) not in self._refused:
            self._refused[str(table)] = self.wanted.mark()

    def is_refused(self, table: Captured) -> bool:
        """Whether a table is about to stop because its topic rejects its current definition."""
        return str(table) in self._refused

    def prune(self, table: Captured) -> None:
        """Request the deletion of rows that the topic has and the table does not; a chunk in progress for this is void."""
        self.wanted.prune(table)
        if self._chunk is not None and self._chunk.request == SnapshotRequest(str(table), prune=True):
            self._chunk.is_void = True

    def go_on(self) -> Iterator[Evolve]:
        """Handle requests to the source, and begin the next chunk if one is wanted and none is in progress. Yields the topics
        that must be changed first."""
        yield from self._take_orders()
        yield from self._stop_refused()
        self.wanted.trust()
        if self._chunk is not None:
            self._check(self._chunk)
            return
        self.wanted.ensure_noted()
        if (request := self._next()) is not None and (table := self._at.tables.captured(request.table)):
            at = self._at
            with suppress(SourceRefusedError):  # the table is gone; a later check stops it
                yield from at.tables.learn_now(at.connection, at.publications, [table], ahead=True)
        self._begin()

    def close(self) -> None:
        """Close the connection, and discard the chunk in progress."""
        if self._chunks is not None:
            self._chunks.close()
        if self._chunk is not None:
            self._chunk.discard()

    def _take_orders(self) -> Iterator[Evolve]:
        while True:
            try:
                order = self._at.progress.orders.get_nowait()
            except Empty:
                return
            self.wanted.note()
            if isinstance(order, bool):
                self.wanted.is_paused = order
            elif isinstance(order, SnapshotRequest):
                self.wanted.requests.append(order)
            elif (table := self._at.tables.captured(str(order))) is None:
                self._find_table(str(order))
            else:
                had_stopped = self._at.tables.stopped.pop(str(table), None) is not None
                if not had_stopped and self._at.progress.missing.pop(str(table), None) is not None:
                    continue  # the user has accepted the missing rows
                # The current position marks the table, in case the session ends before the next position is committed.
                self._at.progress.resume_later(str(table))
                if not self._is_there(table):
                    raise SessionEndedError(f"table {table} was dropped and created again")
                self._at.filters = row_filters(self._at.connection, self._at.publications)
                yield from self._at.tables.learn_now(self._at.connection, self._at.publications, [table])
                if str(table) not in self._at.tables.stopped:
                    self.wanted.resume_table(table)
                    self.resumed.append(table)

    def _stop_refused(self) -> Iterator[Evolve]:
        """Stop rejected tables whose mark has come, with the reason. A table whose definition is accepted again is copied."""
        at = self._at
        for name in [name for name, awaited in self._refused.items() if not awaited]:
            del self._refused[name]
            self.is_outdated = True
            table = at.tables.captured(name)
            if table is None or name in at.tables.stopped:
                continue
            with suppress(SourceRefusedError):  # the table is gone; a later check stops it
                if at.tables.change_of(at.connection, at.publications, table) == "refused":
                    yield from at.tables.learn_now(at.connection, at.publications, [table])
                else:
                    self.copy_again(table)

    def _find_table(self, name: str) -> None:
        """Handle the request to resume a table that did not exist, or could not be captured, when the session began.
        SessionEndedError if the table exists: the next session resumes it, or reports why it cannot be captured. A table that
        is still missing is no longer listed as stopped."""
        unfit: list[str] = []
        found = find_tables(self._at.connection, self._at.options, lambda table, error: unfit.append(table))
        self._at.tables.stopped.pop(name, None)
        if name in unfit or name in map(str, found):
            self._at.tables.absent.discard(name)
            self._at.progress.resume_later(name)
            raise SessionEndedError(f"table {name} is to be resumed")

    def _check(self, chunk: SnapshotChunk) -> None:
        """Raise the error of a chunk, unless its table has just been changed: then the chunk is selected again."""
        found = chunk.found
        if found is None or not found.done() or (error := found.exception()) is None:
            return
        self._chunk = None
        self._not_before = time.monotonic() + AGAIN_S
        if not isinstance(error, SourceRefusedError) or error.facts.get("sqlstate") not in GONE:
            raise error
        partition, known = chunk.request.part, self._at.attached(chunk.request.table)
        if partition and partition not in known:  # the table no longer has that partition
            self.wanted.forget(chunk.request)
        self.is_outdated |= partition in known

    def _next(self) -> SnapshotRequest | None:
        """Return the request to select next; None during the pause before a chunk is selected again."""
        return None if time.monotonic() < self._not_before else self.wanted.next()

    def _begin(self) -> None:
        """Begin the next chunk, if one is wanted and its table can be read."""
        while (request := self._next()) is not None:
            shape = self._shape(request)
            if shape is not None:
                if self._chunks is None:
                    own = Connection(self._at.options.url, self._at.source)
                    self._chunks = Chunks(
                        own, self._at.options.slot, self._at.options.chunk_rows, self._at.folder
                    )
                condition = self._at.filters.get(request.table)
                self._chunk = self._chunks.begin(request, shape, condition, frozenset(self._recent))
                if not request.keys:
                    self._at.progress.stream(f"copying {request.table}: {request.rows:,} rows so far")
                return
            if self._is_possible(request):
                return  # the definition of the table is not learned yet
            self.wanted.forget(request)
        if not self.wanted.requests or self.wanted.is_paused:
            self._at.progress.stream()

    def _is_there(self, table: Captured) -> bool:
        """Whether the table with this name is still the captured one, with the same key."""
        state = table.state
        return tables_of(self._at.connection, state.schema, state.table) == [state]

    def _is_possible(self, request: SnapshotRequest) -> bool:
        table = self._at.tables.captured(request.table)
        return table is not None and self._at.tables.topic(table.state.oid) is not None

    def _shape(self, request: SnapshotRequest) -> CapturedTable | None:
        """Return how the rows of a request are decoded; None if they cannot be read now, or at all."""
        table = self._at.tables.captured(request.table)
        if table is None:
            return None
        try:
            relation = self._at.tables.relation_now(self._at.connection, self._at.publications, table)
        except SourceRefusedError:
            return None
        shape = self._at.tables.table(relation)
        return shape if shape is None or not request.prune else key_shape(shape)

    def _hand_over(self, chunk: SnapshotChunk, stamps: tuple[int, int, int]) -> Iterator[Rows]:
        try:
            yield from self._rows_of(chunk, stamps)
        finally:
            chunk.discard()

    def _rows_of(self, chunk: SnapshotChunk, stamps: tuple[int, int, int]) -> Iterator[Rows]:
        """Yield the rows of a chunk whose mark has come, unless it must be selected again or is no longer wanted."""
        table = self._at.tables.captured(chunk.request.table)
        self._chunk = None
        self.wanted.note()
        if table is None or self._at.tables.topic(table.state.oid) is None:
            self.wanted.forget(chunk.request)
            return
        assert chunk.found is not None
        selected, known = chunk.found.result(), self._at.attached(chunk.request.table)
        # The next comparison would not show that a partition was attached only during the SELECT.
        is_other = not selected.steady or selected.partitions != known
        if is_other or is_early(chunk) or chunk.pending.is_full:
            # The snapshot of the next chunk includes all changes that were in the stream so far.
            self._buffered.pop(chunk.table.relation.oid, None)
            self.is_outdated |= is_other
            waits_for = (
                "its columns and partitions to be compared" if is_other else "running transactions to end"
            )
            self._at.progress.stream(f"waiting for {waits_for}, to copy {table}")
            self._not_before = time.monotonic() + AGAIN_S
            return
        if chunk.request.part and chunk.request.part not in known:
            self.wanted.forget(chunk.request)
            return
        if chunk.is_void or not self.wanted.is_wanted(chunk.request):
            return
        is_last_word = self.wanted.is_last_word(chunk.request)
        if is_last_word:  # the next chunk is selected while this one is emitted
            self.wanted.settle(chunk)
            self._begin()
        definition = self._at.tables.definition(table.topic)
        if chunk.request.prune:
            yield from emptied(self._at.history, definition, stamps, spared=keys_in(chunk))
            return
        if not chunk.table.key:
            yield from self._buffered_rows(chunk, table.topic)
        elif chunk.request.replace:
            yield from emptied(self._at.history, definition, stamps, spared=chunk.changed)
        try:
            for batch in rows_of(chunk, definition.row_schema, stamps):
                self.wanted.discard_keys(batch, chunk.table, chunk.request.table)
                yield Rows(table.topic, batch)
        except BadRowError as error:
            self._at.tables.stop(table.state.oid, error)
        if not is_last_word:
            self.wanted.settle(chunk)
            self._begin()

    def _buffered_rows(self, chunk: SnapshotChunk, topic: str) -> Iterator[Rows]:
        """Yield the buffered rows without a key that the snapshot does not include."""
        assert chunk.found is not None
        visible = chunk.found.result().visible
        schema = self._at.tables.definition(topic).row_schema
        for batch in self._buffered.pop(chunk.table.relation.oid, []):
            new = pa.array([not visible.sees(xid) for xid in batch.column("_transaction").to_pylist()])
            if (rows := batch.filter(new)).num_rows:
                yield Rows(topic, adapt(rows, schema))
