"""Snapshots beside the stream: which are wanted, which chunk is under way, and what the stream brings meanwhile.

How a chunk is selected and what is left out of it is in `headwater.capture.postgres.snapshot`. What is to be remembered is part of
the position of the next commit (`remembered`); where none would come by itself, a mark makes one.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty
from typing import Any

import pyarrow as pa

from headwater.capture.postgres.connection import Connection, lsn_text
from headwater.capture.postgres.emptying import emptied
from headwater.capture.postgres.holding import GONE
from headwater.capture.postgres.lacking import KEYS_MAX, Key, Lack, keys_of
from headwater.capture.postgres.relations import Table
from headwater.capture.postgres.setup import Captured
from headwater.capture.postgres.snapshot import (
    XID_SPAN,
    Chunk,
    Chunks,
    Request,
    is_early,
    read_mark,
    rest_of,
    rows_of,
    write_mark,
)
from headwater.capture.postgres.standing import Connected, SessionEndedError
from headwater.capture.postgres.stream import MARK_PREFIX, Unit
from headwater.capture.source import Evolve, Position, Rows
from headwater.errors import BadRowError, SourceRefusedError
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
        self._lacking: dict[str, dict[Key, None]] = {}

    def begin(self, tables: Sequence[Captured], position: int, *, settled: bool) -> None:
        """Have tables snapshotted as of a new slot; what their topics have already is from before it, and is replaced."""
        for table in tables:
            when = f"before {lsn_text(position)}, since the slot was lost"
            self._begin_anew(table, when, settled=settled)

    def _begin_anew(self, table: Captured, when: str, *, settled: bool = False) -> None:
        if self._at.history.is_empty(table.topic):
            self.request([table], settled=settled)
        elif table.is_keyed:
            self.request([table], replace=True, settled=settled)
        else:
            self._at.standing.miss(table, when)
            self._noted = False

    def request(
        self,
        tables: Sequence[Captured],
        *,
        replace: bool = False,
        part: tuple[str, str] | None = None,
        settled: bool = False,
    ) -> None:
        """Have tables snapshotted, or a partition of one. `settled`: whatever is not in the stream has ended before it began;
        else they may have been published just now, while transactions were under way."""
        horizon = self._at.connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        horizon = None if settled else int(horizon) % XID_SPAN
        since = self._at.history.moment() if replace else 0
        self._requests += [
            Request(str(table), replace=replace, since=since, horizon=horizon, part=part) for table in tables
        ]
        self._noted = False

    def restore(self, position: Position, tables: Sequence[Captured]) -> None:
        """What a position remembers of the tables that are still captured."""
        names = {str(table) for table in tables}
        requests = [Request.from_json(plain) for plain in position.get("snapshots", [])]
        self._requests = [request for request in requests if request.table in names]
        self._paused = bool(position.get("paused"))
        self._at.standing.missing = dict(position.get("missing", {}))
        for table, keys in position.get("lacking", {}).items():
            if table in names:
                self._lacking[table] = dict.fromkeys(map(tuple, keys))

    def remembered(self) -> dict[str, Any]:
        """What goes into the position of the commit that is being made."""
        self._noted, self._noting = True, False
        return {
            "snapshots": [request.to_json() for request in self._requests],
            "paused": self._paused,
            "missing": self._at.standing.missing,
            "lacking": {table: list(map(list, keys)) for table, keys in self._lacking.items() if keys},
        }

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
        for table in self._at.tables.all():
            if table.state.oid == oid and self._lacking.pop(str(table), {}):
                self._noted = False
        if self._chunk is not None and self._chunk.table.relation.oid == oid:
            self._chunk.emptied = True
            self._chunk.held.clear()

    def since(self, table: str) -> int:
        """The moment of the log after which what it has of a table is right."""
        return max((request.since for request in self._requests if request.table == table), default=0)

    def lacks(self, lack: Lack, table: Table) -> None:
        """Rows that are left out because they lack values are to be had as a whole."""
        self._noted = False
        name, chunk = table.relation.table, self._chunk
        if chunk is not None and chunk.table.relation.oid == table.relation.oid:
            chunk.held.add(lack, table, chunk.changed)
        if any(one.table == name and one.is_whole and one != self._under_way for one in self._requests):
            return  # everything is still to come
        wanted = self._lacking.setdefault(name, {})
        keys = lack.keys(table, KEYS_MAX)
        if keys is not None and len(every := wanted | dict.fromkeys(keys)) <= KEYS_MAX:
            self._lacking[name] = every
        else:
            self._requests.append(Request(name))
            del self._lacking[name]

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
        self._begin_anew(table, "while it was stopped")
        mark = f"{self._at.options.slot} {uuid.uuid4().hex}"
        self._passed_over[table.state.oid] = mark
        write_mark(self._at.connection, mark)

    def go_on(self) -> Iterator[Evolve]:
        """Take orders, and see to it that a chunk is under way where one is wanted."""
        yield from self._take_orders()
        if self._chunk is not None:
            self._check(self._chunk)
            return
        if not self._noted and not self._noting:
            write_mark(self._at.connection, f"{self._at.options.slot} note")
            self._noting = True
        if (request := self._next()) is not None and (table := self._at.tables.captured(request.table)):
            at = self._at
            with suppress(SourceRefusedError):  # it is gone, and stops once that is noticed
                yield from at.tables.learn_now(at.connection, at.publications, [table], ahead=True)
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
                had_stopped = self._at.tables.stopped.pop(str(table), None) is not None
                if not had_stopped and self._at.standing.missing.pop(str(table), None) is not None:
                    continue  # it is as it is, and that is known
                if not self._is_there(table):
                    raise SessionEndedError(f"table {table} is another one than it was")
                yield from self._at.tables.learn_now(self._at.connection, self._at.publications, [table])
                if str(table) not in self._at.tables.stopped:
                    self.take_up(table)

    def _check(self, chunk: Chunk) -> None:
        """Raise what went wrong with a chunk, unless the table was changed just now: then it is selected again."""
        found = chunk.found
        if found is None or not found.done() or (error := found.exception()) is None:
            return
        self._chunk = None
        self._not_before = time.monotonic() + AGAIN_S
        if not isinstance(error, SourceRefusedError) or error.facts.get("sqlstate") not in GONE:
            raise error
        if chunk.request.part is not None:  # a partition that is none any more
            self._forget(chunk.request)

    @property
    def _under_way(self) -> Request | None:
        return None if self._chunk is None else self._chunk.request

    def _next(self) -> Request | None:
        """What is to be selected next: single rows that are lacking, whatever rests."""
        if time.monotonic() < self._not_before or self._passed_over:
            return None
        for table, keys in self._lacking.items():
            if keys:
                return Request(table, keys=tuple(keys))
        return self._requests[0] if self._requests and not self._paused else None

    def _begin(self) -> None:
        """Have the next chunk selected, if one is wanted and can be read."""
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
                    self._at.standing.stream(f"copying {request.table}: {request.rows:,} rows so far")
                return
            if self._is_possible(request):
                return  # its shape is still to be learned
            self._forget(request)
        if not self._requests or self._paused:
            self._at.standing.stream()

    def _is_there(self, table: Captured) -> bool:
        return bool(
            self._at.connection.value("SELECT 1 FROM pg_class WHERE oid = %s::int8::oid", table.state.oid)
        )

    def _is_possible(self, request: Request) -> bool:
        table = self._at.tables.captured(request.table)
        return table is not None and self._at.tables.topic(table.state.oid) is not None

    def _shape(self, request: Request) -> Table | None:
        """How the rows of a request are read; None if they cannot be, now or ever."""
        table = self._at.tables.captured(request.table)
        if table is None:
            return None
        try:
            relation = self._at.tables.relation_now(self._at.connection, self._at.publications, table)
        except SourceRefusedError:
            return None
        return self._at.tables.table(relation)

    def _forget(self, request: Request) -> None:
        self._noted = False
        if request.keys:
            self._lacking.pop(request.table, None)
        elif request in self._requests:
            self._requests.remove(request)

    def _hand_over(self, chunk: Chunk, stamps: tuple[int, int, int]) -> Iterator[Rows]:
        table = self._at.tables.captured(chunk.request.table)
        self._chunk, self._noted = None, False
        if table is None or self._at.tables.topic(table.state.oid) is None:
            chunk.discard()
            self._forget(chunk.request)
            return
        if is_early(chunk) or chunk.held.is_full:
            chunk.discard()
            # Whatever was in the stream so far the next one sees.
            self._held.pop(chunk.table.relation.oid, None)
            self._at.standing.stream(f"waiting for transactions under way to end, to copy {table}")
            self._not_before = time.monotonic() + AGAIN_S
            return
        if not chunk.request.keys and chunk.request not in self._requests:
            chunk.discard()
            return
        is_last_word = not self._lacking.get(chunk.request.table)
        if is_last_word:  # the next is selected while this one is handed over
            self._settle(chunk)
            self._begin()
        definition = self._at.tables.definition(table.topic)
        if not chunk.table.key:
            yield from self._kept_back(chunk, table.topic)
        elif chunk.request.replace:
            yield from emptied(self._at.history, definition, stamps, spared=chunk.changed)
        try:
            for batch in rows_of(chunk, definition.row_schema, stamps):
                self._is_had(chunk, batch)
                yield Rows(table.topic, batch)
        except BadRowError as error:
            self._at.tables.stop(table.state.oid, error)
        if not is_last_word:
            self._settle(chunk)
            self._begin()

    def _settle(self, chunk: Chunk) -> None:
        """What is left to be done behind a chunk."""
        if chunk.request.keys:
            wanted = self._lacking.get(chunk.request.table, {})
            for key in set(chunk.request.keys) - chunk.held.again:
                wanted.pop(key, None)
            return
        rest = rest_of(chunk)
        place = self._requests.index(chunk.request)
        self._requests[place : place + 1] = [] if rest is None else [rest]

    def _is_had(self, chunk: Chunk, batch: pa.RecordBatch) -> None:
        """Rows that came with a chunk are lacking no longer."""
        wanted = self._lacking.get(chunk.request.table)
        if wanted and chunk.table.key:
            for key in keys_of(batch, chunk.table):
                wanted.pop(key, None)

    def _kept_back(self, chunk: Chunk, topic: str) -> Iterator[Rows]:
        """Rows without a key that came in meanwhile and are not in the snapshot."""
        assert chunk.found is not None
        visible = chunk.found.result().visible
        schema = self._at.tables.definition(topic).row_schema
        for batch in self._held.pop(chunk.table.relation.oid, []):
            new = pa.array([not visible.sees(xid) for xid in batch.column("_transaction").to_pylist()])
            if (rows := batch.filter(new)).num_rows:
                yield Rows(topic, adapt(rows, schema))
