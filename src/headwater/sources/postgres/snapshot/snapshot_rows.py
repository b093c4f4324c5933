"""Reads the existing rows of a table: all of them as of one point in time, or in chunks while the stream continues.

**As of one point in time.** A new slot comes with a snapshot of the database at exactly the position at which its stream
begins. Tables are copied in this snapshot. No reader or writer of the tables waits (see `table_locks`), and no change is lost
or duplicated.

**In chunks**, by the watermark method of DBLog. A chunk is the next rows by key, selected while changes come in. After the
SELECT, a mark is written into the WAL with `pg_logical_emit_message`. When the stream reaches the mark, the chunk is emitted
without the rows whose key was in the stream since before the chunk was selected: live changes always take precedence. The last
key is part of the position, so that the snapshot continues there after a crash.

The method requires that every change before the mark that the chunk does not contain was noticed in the stream. In Postgres, a
transaction may be in the stream before its rows are visible to others. The chunk's own snapshot (`Visible`) shows which
transactions are visible: if one that is not was in the stream before its keys were recorded, the chunk is selected again. The
chunk is also selected again while a transaction runs that may have written before the table was published
(`SnapshotRequest.horizon`), because those changes are not in the stream.
"""

from __future__ import annotations

import json
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import adapt
from headwater.core.storage import translated
from headwater.sources.postgres.decode.copy_format import decode_copy
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.postgres.rows.column_attributes import Attribute, ColumnSnapshot, read_columns
from headwater.sources.postgres.rows.toast_fill import KeySet
from headwater.sources.postgres.rows.toast_pending import PendingChanges, keys_condition
from headwater.sources.postgres.server.connection import Connection, identifier, literal
from headwater.sources.postgres.snapshot.empty_topic import Stamps, located
from headwater.sources.postgres.snapshot.table_locks import (
    attached_partitions,
    begin_holding,
    has_name,
    name_of,
)
from headwater.sources.postgres.stream.transactions import MARK_PREFIX

XID_SPAN = 1 << 32
CHUNK_BYTES_MAX = 64 << 20
"""Size at which a chunk ends, however few rows it has: a chunk is in memory, and decoded as a whole."""


@dataclass(frozen=True)
class SnapshotRequest:
    """Request to copy rows of a table while the stream continues. Stored in positions as JSON."""

    table: str
    """Name of the table, with its schema."""
    where: str | None = None
    after: tuple[str, ...] | None = None
    """Last key that was emitted, as text of Postgres."""
    rows: int = 0
    """Number of rows emitted so far."""
    replace: bool = False
    """Whether the topic is emptied first, because its rows may be outdated."""
    since: int = 0
    """Commit of the log: the topic's records after it are right; 0 if all records are."""
    horizon: int | None = None
    """Transaction id: everything written by this transaction and later ones is in the stream. None if the stream has
    everything."""
    part: int = 0
    """Oid of the only partition to copy; 0 for the whole table."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Keys of the only rows to copy, all in one chunk. Such a request is not stored in the position; its keys are."""
    prune: bool = False
    """Whether only keys are selected, all in one chunk, to delete rows of the topic that the table does not have."""

    @property
    def is_whole(self) -> bool:
        """Whether the request is for all rows of the table, and none has been emitted."""
        some = self.where is not None or self.part or self.keys or self.prune
        return self.after is None and not some

    def to_json(self) -> dict[str, Any]:
        """Return the request as part of a position."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> SnapshotRequest:
        """Return the request that `to_json` wrote. An earlier version stored the name of a partition, which another table may
        have by now: the whole table is copied then."""
        if isinstance(plain.get("part"), list):
            plain = {name: value for name, value in plain.items() if name not in ("part", "after", "rows")}
        return cls(**{**plain, **({"after": tuple(plain["after"])} if plain.get("after") else {})})


@dataclass(frozen=True)
class Visible:
    """The transactions whose changes a snapshot sees, as in `pg_current_snapshot()`."""

    xmin: int
    """Oldest transaction that was still running."""
    xmax: int
    """First transaction that had not begun."""
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Visible:
        """Parse the form `xmin:xmax:xip,xip,...`."""
        xmin, xmax, running = text.split(":")
        others = frozenset(int(xid) % XID_SPAN for xid in running.split(",") if xid)
        return cls(int(xmin) % XID_SPAN, int(xmax) % XID_SPAN, others)

    def is_past(self, xid: int) -> bool:
        """Whether all transactions before `xid` have ended."""
        return (self.xmin - xid) % XID_SPAN < XID_SPAN // 2

    def sees(self, xid: int) -> bool:
        """Whether the snapshot includes the changes of a transaction that has ended by now."""
        later = (xid - self.xmax) % XID_SPAN < XID_SPAN // 2
        return not later and xid not in self.running


@dataclass
class SnapshotChunk:
    """A chunk in progress: selected by another thread, emitted when the stream reaches its mark."""

    request: SnapshotRequest
    table: CapturedTable
    mark: str
    before: frozenset[int]
    """Transactions that were in the stream before the chunk was begun."""
    changed: KeySet = field(default_factory=KeySet)
    """Keys that were in the stream since the chunk was begun."""
    emptied: bool = False
    """Whether the selected rows are void, because the table was truncated or rewritten since the chunk was begun."""
    is_void: bool = False
    """Whether the rows may have been selected too early, and must be selected again."""
    pending: PendingChanges = field(default_factory=PendingChanges)
    """Changes in the stream since the chunk was begun, of rows that the log does not have: they lack values that the chunk may
    have."""
    found: Future[Selected] | None = None

    def discard(self) -> None:
        """Release the selected rows, if there are any."""
        found = self.found
        if found is None or not found.done() or found.cancelled() or found.exception() is not None:
            return
        found.result().close()


@dataclass(frozen=True)
class Selected:
    """Result of a chunk's SELECT. A table without a key is one chunk of any size, whose lines are in a file."""

    lines: list[bytes]
    visible: Visible
    last: tuple[str, ...] | None
    """Key of the last row; None at the end of the table."""
    file: IO[bytes] | None = None
    sizes: list[int] = field(default_factory=list)
    is_cut: bool = False
    """Whether the chunk was cut at its maximum size, so that there may be more rows."""
    steady: bool = True
    """Whether the selected table was the captured one, and kept its partitions and columns until the mark was written."""
    partitions: Mapping[int, int | None] = field(default_factory=dict)
    """Partitions of the table at the SELECT: by oid, the transaction that attached each."""

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.file is not None:
            self.file.close()

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield the lines in pieces that fit in memory. Lines in a file can be read only once."""
        if self.file is None:
            yield self.lines
            return
        with self.file as file:
            file.seek(0)
            for size in self.sizes:
                yield [file.read(size)]


class Chunks:
    """Selects chunks on a separate connection, one at a time."""

    def __init__(self, connection: Connection, slot: str, rows: int, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._slot = slot
        self._rows = rows
        self._ended = threading.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="headwater-snapshot")

    def begin(
        self, request: SnapshotRequest, table: CapturedTable, condition: str | None, before: frozenset[int]
    ) -> SnapshotChunk:
        """Begin to select the next chunk of a request in the worker thread."""
        chunk = SnapshotChunk(request, table, f"{self._slot} {uuid.uuid4().hex}", before)
        chunk.found = self._worker.submit(self._select, chunk, condition)
        return chunk

    def close(self) -> None:
        """End the worker thread after the SELECT under way, and close the connection."""
        self._ended.set()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._connection.close()

    def _select(self, chunk: SnapshotChunk, condition: str | None) -> Selected:
        request, table = chunk.request, chunk.table
        oid = request.part or table.relation.oid
        name = name_of(self._connection, oid) if request.part else table_name(table)
        while not begin_holding(self._connection, [name]):
            if self._ended.is_set():
                raise CancelledError
        selected: Selected | None = None
        try:
            try:
                # The lock prevents a rename and the detaching of a partition; a partition may still be attached.
                columns, partitions = self._columns(table), self._partitions(table)
                visible = Visible.parse(self._connection.value("SELECT pg_current_snapshot()::text"))
                self._connection.rows("SAVEPOINT copying")
                selected = self._selected(chunk, name, condition, visible)
                if selected.is_cut:  # the COPY was canceled; the savepoint keeps the locks
                    self._connection.rows("ROLLBACK TO copying")
                is_same = has_name(self._connection, oid, name) and self._partitions(table) == partitions
            finally:
                self._connection.rows("ROLLBACK")
            write_mark(self._connection, chunk.mark)
            steady = is_same and self._columns(table) == columns
            return replace(selected, steady=steady, partitions=partitions)
        except BaseException:
            if selected is not None:
                selected.close()
            raise

    def _selected(self, chunk: SnapshotChunk, name: str, condition: str | None, visible: Visible) -> Selected:
        """Return the rows of a chunk from the table or partition `name`, in the transaction that sees `visible`."""
        request, table = chunk.request, chunk.table
        conditions = (condition, request.where, keys_condition(table, request.keys))
        rows = None if request.keys or request.prune else self._rows
        statement = select_of(table, conditions, request.after, rows, name)
        parts: Iterator[list[bytes]] = iter(())
        if not is_before(visible, request):  # else the chunk is selected again later
            parts = self._connection.copied(f"COPY ({statement}) TO STDOUT")
        if not chunk.table.key or request.prune:
            return Selected([], visible, None, *self._spool(parts))
        lines, is_cut = _bounded(parts)
        last = _last_key(lines[-1], chunk.table) if is_cut or len(lines) == rows else None
        return Selected(lines, visible, last, is_cut=is_cut)

    def _columns(self, table: CapturedTable) -> tuple[Attribute, ...]:
        return (
            read_columns(self._connection, [table.relation.oid])
            .get(table.relation.oid, ColumnSnapshot())
            .attributes
        )

    def _partitions(self, table: CapturedTable) -> dict[int, int | None]:
        return attached_partitions(self._connection, table.relation.oid) if table.divided else {}

    def _spool(self, parts: Iterator[list[bytes]]) -> tuple[IO[bytes], list[int]]:
        with translated(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self._folder, prefix="snapshot-")  # noqa: SIM115
            try:
                sizes = [file.write(b"".join(part)) for part in parts]
                file.flush()
            except BaseException:
                file.close()
                raise
        return file, sizes


def _bounded(parts: Iterator[list[bytes]]) -> tuple[list[bytes], bool]:
    """Return the lines up to the maximum size of a chunk, and whether there may be more."""
    lines: list[bytes] = []
    size = 0
    for part in parts:
        lines += part
        size += sum(map(len, part))
        if size >= CHUNK_BYTES_MAX:
            parts.close()  # type: ignore[attr-defined]
            return lines, True
    return lines, False


def write_mark(connection: Connection, mark: str) -> None:
    """Write a mark into the WAL, in its own transaction."""
    connection.rows(
        "SELECT pg_logical_emit_message(true, %s, %s::text)", MARK_PREFIX, json.dumps({"mark": mark})
    )


def read_mark(content: bytes) -> str | None:
    """Return the mark in the content of a logical message with the prefix of marks; None if it has none."""
    try:
        said = json.loads(content)
    except ValueError:
        return None
    return said.get("mark") if isinstance(said, dict) else None


def table_name(table: CapturedTable) -> str:
    """Return the name of a table, quoted for SQL."""
    return identifier(table.relation.namespace, table.relation.name)


def select_of(
    table: CapturedTable,
    conditions: Sequence[str | None],
    after: Sequence[str] | None = None,
    rows: int | None = None,
    name: str | None = None,
) -> str:
    """Return the SELECT of a table's columns, for rows that meet all conditions. `after`: only rows after this key. `rows`:
    only the first rows by key. `name`: name of the partition to select from, in place of the whole table."""
    columns = ", ".join(identifier(column.name) for column in table.columns)
    key = ", ".join(identifier(name) for name in table.key)
    held = [f"({condition})" for condition in conditions if condition]
    if after is not None:
        held.append(f"({key}) > ({', '.join(map(literal, after))})")
    only = "" if table.divided else "ONLY "
    statement = f"SELECT {columns} FROM {only}{name or table_name(table)}"
    if held:
        statement += f" WHERE {' AND '.join(held)}"
    return statement if rows is None or not key else f"{statement} ORDER BY {key} LIMIT {rows}"


def copied(
    connection: Connection, table: CapturedTable, condition: str | None, stamps: Stamps
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a table as of the snapshot of the connection's transaction, in batches."""
    for lines in connection.copied(f"COPY ({select_of(table, [condition])}) TO STDOUT"):
        yield located(decode_copy(lines, table), stamps)


def is_early(chunk: SnapshotChunk) -> bool:
    """Whether a chunk must be selected again, because its snapshot does not include a transaction that was in the stream before
    the chunk was begun, or one whose changes will never be in the stream."""
    assert chunk.found is not None
    visible = chunk.found.result().visible
    if is_before(visible, chunk.request):
        return True
    return not all(visible.sees(xid) for xid in chunk.before)


def is_before(visible: Visible, request: SnapshotRequest) -> bool:
    """Whether a transaction was running that may have made changes which are not in the stream."""
    return request.horizon is not None and not visible.is_past(request.horizon)


def rest_of(chunk: SnapshotChunk) -> SnapshotRequest | None:
    """Return the rest of a request after a chunk; None if nothing remains."""
    assert chunk.found is not None
    selected = chunk.found.result()
    if selected.last is None:
        return None
    so_far = chunk.request.rows + len(selected.lines)
    # The first chunk of a replacing request empties the topic, after which all its records are right. Otherwise `since` applies
    # to the last chunk.
    since = 0 if chunk.request.replace else chunk.request.since
    return replace(chunk.request, after=selected.last, rows=so_far, replace=False, since=since, horizon=None)


def rows_of(chunk: SnapshotChunk, schema: pa.Schema, stamps: Stamps) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk whose mark has come, without rows whose key was in the stream since the chunk was begun. Rows
    with pending changes (`SnapshotChunk.pending`) are yielded with these changes applied."""
    assert chunk.found is not None
    selected = chunk.found.result()
    for lines in selected.blocks():
        batch = decode_copy(lines, chunk.table)
        if chunk.emptied:
            continue
        if chunk.table.key:
            keys = [batch.column(name) for name in chunk.table.key]
            changed = chunk.changed.has(keys, batch.num_rows)
            if changed.any():
                batch = batch.filter(pc.invert(pa.array(changed)))
        batch = adapt(located(batch, stamps), schema)
        if chunk.pending.rows:
            batch = chunk.pending.apply_to(batch, chunk.table, selected.visible.sees)
        if batch.num_rows:
            yield batch


def keys_in(chunk: SnapshotChunk) -> KeySet:
    """Return the keys that a chunk has, and those that were in the stream since it was begun."""
    assert chunk.found is not None
    found = KeySet()
    for lines in chunk.found.result().blocks():
        batch = decode_copy(lines, chunk.table)
        found.add([batch.column(name) for name in chunk.table.key], batch.num_rows)
    found.update(chunk.changed)
    return found


def key_shape(table: CapturedTable) -> CapturedTable:
    """Return a table with only the columns of its key."""
    columns = {column.name: column for column in table.columns}
    return replace(table, columns=tuple(columns[name] for name in table.key))


def _last_key(line: bytes, table: CapturedTable) -> tuple[str, ...]:
    values = line.rstrip(b"\n").split(b"\t")
    return tuple(_meant(values[place]).decode() for place in table.key_places)


_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _meant(value: bytes) -> bytes:
    """Return a value of COPY with its escape sequences decoded."""
    if b"\\" not in value:
        return value
    head, *rest = value.split(b"\\")
    result, literal_next = head, False
    for part in rest:
        if literal_next:  # the part after the second of two backslashes
            result, literal_next = result + b"\\" + part, False
        elif not part:
            literal_next = True
        else:
            result += _ESCAPES.get(part[:1], part[:1]) + part[1:]
    return result
