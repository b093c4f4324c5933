"""The rows that a table has already: all of it as of one moment, or in chunks beside the stream.

**As of one moment.** A new slot comes with a snapshot of the database at the very position that its stream begins at. Tables
are copied under it; nobody who reads or writes waits (`holding`), and no change is missed or seen twice.

**In chunks**, by the watermark method of DBLog. A chunk is the next rows by key, selected while changes come in. Behind it a mark
is written into the server's log, with `pg_logical_emit_message`. When the stream brings the mark, the chunk is handed over,
without the rows whose key was in the stream since before the chunk was selected: live changes always win. The last key is part of
the position, so that it goes on where it was, whatever happens.

What the method needs of Postgres is that everything that came before the mark and is not in the chunk was seen. A transaction
may be in the stream before others can see its rows. Those are known from the chunk's own snapshot (`Visible`): if one of them was
in the stream before keys were watched, the chunk is selected again. So it is while a transaction runs that may have written before
the table was published (`SnapshotRequest.horizon`): what it wrote is not in the stream.
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
from headwater.sources.postgres.rows.column_attributes import Attribute, ColumnSnapshot, look
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
"""A chunk ends where it has so many bytes, however few rows that are: it is in memory, and decoded at once."""


@dataclass(frozen=True)
class SnapshotRequest:
    """Rows of a table that are to be snapshotted beside the stream; plain enough to be part of a position."""

    table: str
    """With its schema."""
    where: str | None = None
    after: tuple[str, ...] | None = None
    """The last key that was handed over, as Postgres writes it."""
    rows: int = 0
    """How many were."""
    replace: bool = False
    """What the topic has by now is no longer known to be right: it is emptied first."""
    since: int = 0
    """The moment of the log after which what it has is right; 0 if all of it is."""
    horizon: int | None = None
    """The first transaction of which it is known that everything it writes is in the stream."""
    part: int = 0
    """Of a table with partitions: just this one, by oid; 0 if all of them."""
    keys: tuple[tuple[str, ...], ...] = ()
    """Just the rows with these keys, all in one chunk. Such a request is not remembered as it is."""
    prune: bool = False
    """Just the keys, all in one chunk: rows that the topic has and the table has not are deleted."""

    @property
    def is_whole(self) -> bool:
        """Whether it is of all rows of the table, none of which were handed over."""
        some = self.where is not None or self.part or self.keys or self.prune
        return self.after is None and not some

    def to_json(self) -> dict[str, Any]:
        """As part of a position."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> SnapshotRequest:
        """What `to_json` wrote. An older version has named a partition, whose name another table may have by now: all of the table is
        snapshotted then."""
        if isinstance(plain.get("part"), list):
            plain = {name: value for name, value in plain.items() if name not in ("part", "after", "rows")}
        return cls(**{**plain, **({"after": tuple(plain["after"])} if plain.get("after") else {})})


@dataclass(frozen=True)
class Visible:
    """Which transactions a snapshot sees: pg_current_snapshot()."""

    xmin: int
    """The oldest that may still run."""
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Visible:
        """From xmin:xmax:xip,xip,..."""
        xmin, xmax, running = text.split(":")
        others = frozenset(int(xid) % XID_SPAN for xid in running.split(",") if xid)
        return cls(int(xmin) % XID_SPAN, int(xmax) % XID_SPAN, others)

    def is_past(self, xid: int) -> bool:
        """Whether all transactions before this one have ended."""
        return (self.xmin - xid) % XID_SPAN < XID_SPAN // 2

    def sees(self, xid: int) -> bool:
        """Whether the changes of a transaction that has ended are in it."""
        later = (xid - self.xmax) % XID_SPAN < XID_SPAN // 2
        return not later and xid not in self.running


@dataclass
class SnapshotChunk:
    """Rows on their way: selected by another thread, handed over when the stream brings the mark."""

    request: SnapshotRequest
    table: CapturedTable
    mark: str
    before: frozenset[int]
    """Transactions that were in the stream before keys were watched."""
    changed: KeySet = field(default_factory=KeySet)
    """Keys that were in the stream since."""
    emptied: bool = False
    """The table was truncated since."""
    is_void: bool = False
    """The rows may have been selected too early: they are to be selected again."""
    held: PendingChanges = field(default_factory=PendingChanges)
    """Changes since of rows that the log does not have, and that lack values which the chunk may have."""
    found: Future[Selected] | None = None

    def discard(self) -> None:
        """Let go of what was selected, if it was."""
        found = self.found
        if found is None or not found.done() or found.cancelled() or found.exception() is not None:
            return
        found.result().close()


@dataclass(frozen=True)
class Selected:
    """What a chunk's SELECT gave. A table without a key is one chunk, however large: its lines are in a file."""

    lines: list[bytes]
    visible: Visible
    last: tuple[str, ...] | None
    """The last row's key; None if the table ends here."""
    file: IO[bytes] | None = None
    sizes: list[int] = field(default_factory=list)
    is_cut: bool = False
    """Whether there are more rows than these, which have as many bytes as a chunk may have."""
    steady: bool = True
    """Whether the table was the one that is captured, and had the same partitions and columns until the mark was written."""
    partitions: Mapping[int, int | None] = field(default_factory=dict)
    """By oid of a partition that rows were selected from, or might have been: the transaction that attached it."""

    def close(self) -> None:
        """Let go of the file, if there is one."""
        if self.file is not None:
            self.file.close()

    def blocks(self) -> Iterator[list[bytes]]:
        """The lines, in pieces that fit in memory; once."""
        if self.file is None:
            yield self.lines
            return
        with self.file as file:
            file.seek(0)
            for size in self.sizes:
                yield [file.read(size)]


class Chunks:
    """Selects chunks on a connection of its own, one at a time."""

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
        """Have the next chunk of a request selected."""
        chunk = SnapshotChunk(request, table, f"{self._slot} {uuid.uuid4().hex}", before)
        chunk.found = self._worker.submit(self._select, chunk, condition)
        return chunk

    def close(self) -> None:
        """Wait for what is under way, and leave."""
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
                # From here on nobody renames it, or detaches a partition of it; one may be attached.
                columns, partitions = self._columns(table), self._partitions(table)
                visible = Visible.parse(self._connection.value("SELECT pg_current_snapshot()::text"))
                self._connection.rows("SAVEPOINT held")
                selected = self._selected(chunk, name, condition, visible)
                if selected.is_cut:  # the COPY was canceled, and the locks are kept
                    self._connection.rows("ROLLBACK TO held")
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
        """The rows of a chunk from the table or partition of a name, in the transaction that sees `visible`."""
        request, table = chunk.request, chunk.table
        conditions = (condition, request.where, keys_condition(table, request.keys))
        rows = None if request.keys or request.prune else self._rows
        statement = select_of(table, conditions, request.after, rows, name)
        parts: Iterator[list[bytes]] = iter(())
        if not is_before(visible, request):  # else what it has is not wanted yet
            parts = self._connection.copied(f"COPY ({statement}) TO STDOUT")
        if not chunk.table.key or request.prune:
            return Selected([], visible, None, *self._kept(parts))
        lines, is_cut = _bounded(parts)
        last = _last_key(lines[-1], chunk.table) if is_cut or len(lines) == rows else None
        return Selected(lines, visible, last, is_cut=is_cut)

    def _columns(self, table: CapturedTable) -> tuple[Attribute, ...]:
        return (
            look(self._connection, [table.relation.oid]).get(table.relation.oid, ColumnSnapshot()).attributes
        )

    def _partitions(self, table: CapturedTable) -> dict[int, int | None]:
        return attached_partitions(self._connection, table.relation.oid) if table.divided else {}

    def _kept(self, parts: Iterator[list[bytes]]) -> tuple[IO[bytes], list[int]]:
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
    """The lines that a chunk may have, and whether there may be more."""
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
    """Write a message of ours into the server's log, in a transaction of its own."""
    connection.rows(
        "SELECT pg_logical_emit_message(true, %s, %s::text)", MARK_PREFIX, json.dumps({"mark": mark})
    )


def read_mark(content: bytes) -> str | None:
    """The mark that a message of ours is."""
    try:
        said = json.loads(content)
    except ValueError:
        return None
    return said.get("mark") if isinstance(said, dict) else None


def table_name(table: CapturedTable) -> str:
    """The name of a table as SQL needs it."""
    return identifier(table.relation.namespace, table.relation.name)


def select_of(
    table: CapturedTable,
    conditions: Sequence[str | None],
    after: Sequence[str] | None = None,
    rows: int | None = None,
    name: str | None = None,
) -> str:
    """The SELECT of a table's columns, of rows for which all conditions hold, by key if only some of them are wanted. `name`: of the
    partition, where all rows are of one."""
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
    """A whole table as it is to this connection's transaction, in batches."""
    for lines in connection.copied(f"COPY ({select_of(table, [condition])}) TO STDOUT"):
        yield located(decode_copy(lines, table), stamps)


def is_early(chunk: SnapshotChunk) -> bool:
    """Whether a chunk was selected before something could be seen that was in the stream already, or that will never be: it is to be
    selected again."""
    assert chunk.found is not None
    visible = chunk.found.result().visible
    if is_before(visible, chunk.request):
        return True
    return not all(visible.sees(xid) for xid in chunk.before)


def is_before(visible: Visible, request: SnapshotRequest) -> bool:
    """Whether a transaction is under way that may have written what the stream does not have."""
    return request.horizon is not None and not visible.is_past(request.horizon)


def rest_of(chunk: SnapshotChunk) -> SnapshotRequest | None:
    """What remains of a request behind a chunk."""
    assert chunk.found is not None
    selected = chunk.found.result()
    if selected.last is None:
        return None
    so_far = chunk.request.rows + len(selected.lines)
    # Behind a first chunk that replaces everything, what the log has is right; else the moment holds to the end.
    since = 0 if chunk.request.replace else chunk.request.since
    return replace(chunk.request, after=selected.last, rows=so_far, replace=False, since=since, horizon=None)


def rows_of(chunk: SnapshotChunk, schema: pa.Schema, stamps: Stamps) -> Iterator[pa.RecordBatch]:
    """What is to be handed over of a chunk whose mark has come: rows whose keys were not in the stream since it was begun, and with
    what was held of the others."""
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
        if chunk.held.rows:
            batch = chunk.held.put_into(batch, chunk.table, selected.visible.sees)
        if batch.num_rows:
            yield batch


def keys_in(chunk: SnapshotChunk) -> KeySet:
    """The keys that the table had, and those that were in the stream since."""
    assert chunk.found is not None
    found = KeySet()
    for lines in chunk.found.result().blocks():
        batch = decode_copy(lines, chunk.table)
        found.add([batch.column(name) for name in chunk.table.key], batch.num_rows)
    found.update(chunk.changed)
    return found


def key_shape(table: CapturedTable) -> CapturedTable:
    """A table with the columns of its key alone."""
    columns = {column.name: column for column in table.columns}
    return replace(table, columns=tuple(columns[name] for name in table.key))


def _last_key(line: bytes, table: CapturedTable) -> tuple[str, ...]:
    values = line.rstrip(b"\n").split(b"\t")
    return tuple(_meant(values[place]).decode() for place in table.key_places)


_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _meant(value: bytes) -> bytes:
    """A value of COPY without what was escaped in it."""
    if b"\\" not in value:
        return value
    head, *rest = value.split(b"\\")
    result, literal_next = head, False
    for part in rest:
        if literal_next:  # the part behind the second of two backslashes
            result, literal_next = result + b"\\" + part, False
        elif not part:
            literal_next = True
        else:
            result += _ESCAPES.get(part[:1], part[:1]) + part[1:]
    return result
