"""Snapshots beside the stream: which are wanted, which chunk is under way, and what the stream brings meanwhile.

How a chunk is selected and what is left out of it is in `headwater.capture.postgres.snapshot`. What is to be remembered is part of
the position of the next commit (`remembered`); where none would come by itself, a mark makes one.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from queue import Empty
from typing import Any

import pyarrow as pa

from headwater.capture.postgres.connection import Connection
from headwater.capture.postgres.emptying import emptied
from headwater.capture.postgres.relations import Table
from headwater.capture.postgres.setup import Captured
from headwater.capture.postgres.snapshot import (
    Chunk,
    Chunks,
    Request,
    is_early,
    read_mark,
    rest_of,
    rows_of,
    write_mark,
)
from headwater.capture.postgres.standing import Connected
from headwater.capture.postgres.stream import MARK_PREFIX, Unit
from headwater.capture.source import Evolve, Position, Rows
from headwater.errors import BadRowError
from headwater.records import adapt

RECENT_XIDS = 10_000
"""Transactions that are remembered as having been in the stream: more than can be between the log and being visible."""

AGAIN_S = 0.1
"""How long to wait before a chunk is selected again because what the stream had was not visible yet."""


class Beside:
    """The snapshots that a session makes beside its stream."""

    def __init__(self, at: Connected) -> None:
        self._at = at
        self._requests: list[Request] = []
        self._paused = False
        self._noted, self._noting = True, False
        self._chunks: Chunks | None = None
        self._chunk: Chunk | None = None
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._passed_over: dict[int, str] = {}
        self._recent: deque[int] = deque(maxlen=RECENT_XIDS)
        self._not_before = 0.0

    def request(self, tables: Sequence[Captured], *, replace: bool = False) -> None:
        """Have tables snapshotted."""
        self._requests += [Request(str(table), replace=replace) for table in tables]
        self._noted = False

    def restore(self, position: Position, tables: Sequence[Captured]) -> None:
        """What a position remembers of the tables that are still captured."""
        names = {str(table) for table in tables}
        requests = [Request.from_json(plain) for plain in position.get("snapshots", [])]
        self._requests = [request for request in requests if request.table in names]
        self._paused = bool(position.get("paused"))

    def remembered(self) -> dict[str, Any]:
        """What goes into the position of the commit that is being made."""
        self._noted, self._noting = True, False
        return {"snapshots": [request.to_json() for request in self._requests], "paused": self._paused}

    def note(self) -> None:
        """Something is to be part of the position that is not yet."""
        self._noted = False

    @property
    def is_noted(self) -> bool:
        """Whether the last position says everything."""
        return self._noted

    # What the stream brings.

    def saw(self, unit: Unit) -> None:
        """Transactions were in the stream."""
        self._recent.extend(unit.xids)

    def passes_over(self, oid: int) -> bool:
        """Whether what the stream has of a table is from before it was taken up again."""
        return oid in self._passed_over

    def truncated(self, oid: int) -> None:
        """A table was emptied."""
        if self._chunk is not None and self._chunk.table.relation.oid == oid:
            self._chunk.emptied = True

    def keeps_back(self, batch: pa.RecordBatch, oid: int, table: Table) -> bool:
        """Note rows of a table that is being snapshotted. True if they are kept back: rows without a key can only be told from
        those of the snapshot by their transactions, which are known once it is there."""
        if not table.key:
            held = any(request.table == table.relation.table for request in self._requests)
            if held:
                self._held.setdefault(oid, []).append(batch)
            return held
        if self._chunk is not None and self._chunk.table.relation.oid == oid:
            self._chunk.changed.add([batch.column(name) for name in table.key], batch.num_rows)
        return False

    def marked(self, unit: Unit) -> Iterator[Rows]:
        """What marks in a unit set off: the rows of a chunk."""
        for message, transaction in unit.messages:
            mark = read_mark(message.content) if message.prefix == MARK_PREFIX else None
            if mark is None:
                continue
            self._passed_over = {oid: until for oid, until in self._passed_over.items() if until != mark}
            if self._chunk is not None and mark == self._chunk.mark:
                yield from self._hand_over(self._chunk, (unit.end, transaction.time_us, transaction.xid))

    # What is to be done.

    def take_up(self, table: Captured) -> None:
        """Snapshot a table anew whose changes were left out. What the stream still has of it from before now is left out, too:
        it may have the shape that the topic could not take, and the snapshot has what came of it."""
        self._requests = [request for request in self._requests if request.table != str(table)]
        self.request([table], replace=True)
        mark = f"{self._at.options.slot} {uuid.uuid4().hex}"
        self._passed_over[table.state.oid] = mark
        write_mark(self._at.connection, mark)

    def go_on(self) -> Iterator[Evolve]:
        """Take orders, and see to it that a chunk is under way where one is wanted."""
        yield from self._take_orders()
        if self._chunk is not None:
            found = self._chunk.found
            if found is not None and found.done() and found.exception() is not None:
                self._chunk = None
                found.result()
            return
        if not self._noted and not self._noting:
            write_mark(self._at.connection, f"{self._at.options.slot} note")
            self._noting = True
        self._begin()

    def close(self) -> None:
        """Leave the chunk that is under way."""
        if self._chunks is not None:
            self._chunks.close()
        if self._chunk is not None:
            self._chunk.discard()

    def _take_orders(self) -> Iterator[Evolve]:
        while True:
            try:
                order = self._at.standing.orders.get_nowait()
            except Empty:
                return
            self._noted = False
            if isinstance(order, bool):
                self._paused = order
            elif isinstance(order, Request):
                self._requests.append(order)
            elif (table := self._at.tables.captured(str(order))) is not None:
                self._at.tables.stopped.pop(str(table), None)
                yield from self._at.tables.learn_now(self._at.connection, self._at.publications, [table])
                if str(table) not in self._at.tables.stopped:
                    self.take_up(table)

    def _begin(self) -> None:
        """Have the next chunk selected, if one is wanted."""
        if time.monotonic() < self._not_before:
            return
        while self._requests and not self._paused and not self._passed_over:
            request = self._requests[0]
            shape = self._shape(request)
            if shape is not None:
                if self._chunks is None:
                    own = Connection(self._at.options.url, self._at.source)
                    self._chunks = Chunks(
                        own, self._at.options.slot, self._at.options.chunk_rows, self._at.folder
                    )
                condition = self._at.filters.get(request.table)
                self._chunk = self._chunks.begin(request, shape, condition, frozenset(self._recent))
                self._at.standing.state = (
                    f"streaming, and copying {request.table}: {request.rows:,} rows so far"
                )
                return
            self._requests.pop(0)
            self._noted = False
        self._at.standing.state = "streaming"

    def _shape(self, request: Request) -> Table | None:
        """How the rows of a request are read; None if there is nothing to be had: rows without a key are never given twice."""
        table = self._at.tables.captured(request.table)
        if table is None:
            return None
        relation = self._at.tables.relation_now(self._at.connection, self._at.publications, table)
        shape = self._at.tables.table(relation)
        return None if shape is None or (request.replace and not shape.key) else shape

    def _hand_over(self, chunk: Chunk, stamps: tuple[int, int, int]) -> Iterator[Rows]:
        table = self._at.tables.captured(chunk.request.table)
        self._chunk, self._noted = None, False
        if table is None or self._at.tables.topic(table.state.oid) is None:
            chunk.discard()
            self._requests.pop(0)
            return
        if is_early(chunk):
            chunk.discard()
            self._not_before = time.monotonic() + AGAIN_S
            return
        rest = rest_of(chunk)
        self._requests[:1] = [] if rest is None else [rest]
        self._begin()
        definition = self._at.tables.definition(table.topic)
        if not chunk.table.key:
            yield from self._kept_back(chunk, table.topic)
        elif chunk.request.replace:
            yield from emptied(self._at.history, definition, stamps, spared=chunk.changed)
        try:
            for batch in rows_of(chunk, stamps):
                yield Rows(table.topic, adapt(batch, definition.row_schema))
        except BadRowError as error:
            self._at.tables.stop(table.state.oid, error)

    def _kept_back(self, chunk: Chunk, topic: str) -> Iterator[Rows]:
        """Rows without a key that came in meanwhile and are not in the snapshot."""
        assert chunk.found is not None
        visible = chunk.found.result().visible
        schema = self._at.tables.definition(topic).row_schema
        for batch in self._held.pop(chunk.table.relation.oid, []):
            new = pa.array([not visible.sees(xid) for xid in batch.column("_transaction").to_pylist()])
            if (rows := batch.filter(new)).num_rows:
                yield Rows(topic, adapt(rows, schema))
