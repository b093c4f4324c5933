"""Messages of logical replication in the format of `pgoutput`, protocol versions 1 to 4, except those of single rows.

One CopyData of the replication stream is a keepalive, or an envelope of 25 bytes with one message. Most messages are rows:
these are kept as bytes (`row_buffer`) and decoded many at a time (`decode_rows`). All other messages are parsed here. Times are
in microseconds since 1970 in UTC; positions (LSN) are integers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError

ENVELOPE_BYTES = 25
"""Size of the envelope before a message: the letter w, the start and end of the message in the WAL, and the server's time."""
XLOG, KEEPALIVE = b"wk"
ROWS = frozenset(b"IUD")
"""First bytes of row messages: insert, update, delete."""
_EPOCH_US = 946_684_800_000_000
"""Epoch of Postgres, 2000-01-01, in microseconds since 1970."""


@dataclass(frozen=True)
class Keepalive:
    """Keepalive: the server has sent everything up to `end`. `reply`: the server asks for an immediate status update."""

    end: int
    time_us: Microseconds
    reply: bool


@dataclass(frozen=True)
class Begin:
    """Begin of a transaction, whose commit record is at `lsn`. The rows up to `CommitMessage` belong to it."""

    lsn: int
    time_us: Microseconds
    xid: int


@dataclass(frozen=True)
class CommitMessage:
    """Commit of a transaction; `end` is the position after its commit record."""

    lsn: int
    end: int
    time_us: Microseconds


@dataclass(frozen=True)
class OriginMessage:
    """Origin of a transaction that reached the server by replication."""

    lsn: int
    name: str


@dataclass(frozen=True)
class RelationColumn:
    """A published column. `key`: the column is part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True)
class RelationMessage:
    """Description of a table for the rows that follow. `identity`: d(efault), n(othing), f(ull) or i(ndex)."""

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def table(self) -> str:
        """Qualified name of the table for messages to users."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True)
class TypeName:
    """Name of a type that is not built in."""

    oid: int
    namespace: str
    name: str


@dataclass(frozen=True)
class Truncate:
    """TRUNCATE of tables."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True)
class LogicalMessage:
    """A message written with pg_logical_emit_message. A message that is not `transactional` is valid at once, even if the
    transaction that wrote it aborts."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True)
class StreamStart:
    """Start of a block of a streamed transaction, which is still in progress on the server. The block ends with
    `StreamStop`."""

    xid: int
    first: bool


@dataclass(frozen=True)
class StreamStop:
    """End of a block of a streamed transaction."""


@dataclass(frozen=True)
class StreamCommit:
    """Commit of a streamed transaction."""

    xid: int
    lsn: int
    end: int
    time_us: Microseconds


@dataclass(frozen=True)
class StreamAbort:
    """Abort of a streamed transaction, or of a subtransaction if `subxid` differs from `xid`."""

    xid: int
    subxid: int


@dataclass(frozen=True)
class BeginPrepare:
    """Begin of a prepared transaction. The rows up to `Prepare` belong to it; it is not committed yet."""

    lsn: int
    end: int
    time_us: Microseconds
    xid: int
    gid: str


@dataclass(frozen=True)
class Prepare:
    """PREPARE of a transaction, which may still be committed or rolled back. `streamed` if it was sent in blocks."""

    lsn: int
    end: int
    time_us: Microseconds
    xid: int
    gid: str
    streamed: bool


@dataclass(frozen=True)
class CommitPrepared:
    """Commit of a prepared transaction."""

    lsn: int
    end: int
    time_us: Microseconds
    xid: int
    gid: str


@dataclass(frozen=True)
class RollbackPrepared:
    """Rollback of a prepared transaction."""

    prepare_end: int
    end: int
    time_us: Microseconds
    xid: int
    gid: str


Message = (
    Keepalive
    | Begin
    | CommitMessage
    | OriginMessage
    | RelationMessage
    | TypeName
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
)


def unpack(data: bytes, *, streamed: bool = False) -> Message:
    """Parse one CopyData that is not a row message; `streamed` if it was sent between StreamStart and StreamStop.

    CorruptionError for bytes that are not a message of this protocol.
    """
    kind = data[0]
    try:
        if kind == KEEPALIVE:
            end, time_us, reply = struct.unpack_from(">QqB", data, 1)
            return Keepalive(end, time_us + _EPOCH_US, bool(reply))
        if kind == XLOG:
            kind = data[ENVELOPE_BYTES]
            return _READERS[kind](_Fields(data, ENVELOPE_BYTES + 1), streamed)
    except (struct.error, KeyError, IndexError, ValueError) as error:
        cause: Exception | None = error
    else:
        cause = None
    raise CorruptionError(
        f"the replication stream has a message {chr(kind)!r} of {len(data)} bytes that cannot be read",
        hint="check whether a proxy between Headwater and Postgres alters the replication stream",
        reason="message",
    ) from cause


class _Fields:
    """Reads the fields of a message in order."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def text(self) -> str:
        end = self._data.index(0, self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def bytes(self, length: int) -> bytes:
        if self._at + length > len(self._data):
            raise ValueError("the message is truncated")
        return self._data[self._at : self._at + length]

    def skip_xid(self, streamed: bool) -> None:
        """Skip the subtransaction id, which messages have within a stream."""
        if streamed:
            self._at += 4


def _begin(fields: _Fields, streamed: bool) -> Message:
    lsn, time_us, xid = fields.take(">QqI")
    return Begin(lsn, time_us + _EPOCH_US, xid)


def _commit(fields: _Fields, streamed: bool) -> Message:
    _, lsn, end, time_us = fields.take(">BQQq")
    return CommitMessage(lsn, end, time_us + _EPOCH_US)


def _origin(fields: _Fields, streamed: bool) -> Message:
    (lsn,) = fields.take(">Q")
    return OriginMessage(lsn, fields.text())


def _relation(fields: _Fields, streamed: bool) -> Message:
    fields.skip_xid(streamed)
    (oid,) = fields.take(">I")
    namespace, name = fields.text(), fields.text()
    identity, count = fields.take(">BH")
    columns = []
    for _ in range(count):
        (flags,) = fields.take(">B")
        column = fields.text()
        type_oid, typmod = fields.take(">Ii")
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & 1)))
    return RelationMessage(oid, namespace or "pg_catalog", name, chr(identity), tuple(columns))


def _type(fields: _Fields, streamed: bool) -> Message:
    fields.skip_xid(streamed)
    (oid,) = fields.take(">I")
    return TypeName(oid, fields.text() or "pg_catalog", fields.text())


def _truncate(fields: _Fields, streamed: bool) -> Message:
    fields.skip_xid(streamed)
    count, options = fields.take(">IB")
    return Truncate(fields.take(f">{count}I"), bool(options & 1), bool(options & 2))


def _logical_message(fields: _Fields, streamed: bool) -> Message:
    fields.skip_xid(streamed)
    flags, lsn = fields.take(">BQ")
    prefix = fields.text()
    (length,) = fields.take(">I")
    return LogicalMessage(bool(flags & 1), lsn, prefix, fields.bytes(length))


def _stream_start(fields: _Fields, streamed: bool) -> Message:
    xid, first = fields.take(">IB")
    return StreamStart(xid, bool(first))


def _stream_commit(fields: _Fields, streamed: bool) -> Message:
    xid, _, lsn, end, time_us = fields.take(">IBQQq")
    return StreamCommit(xid, lsn, end, time_us + _EPOCH_US)


def _stream_abort(fields: _Fields, streamed: bool) -> Message:
    xid, subxid = fields.take(">II")
    return StreamAbort(xid, subxid)


def _begin_prepare(fields: _Fields, streamed: bool) -> Message:
    lsn, end, time_us, xid = fields.take(">QQqI")
    return BeginPrepare(lsn, end, time_us + _EPOCH_US, xid, fields.text())


def _prepare(fields: _Fields, streamed: bool) -> Message:
    _, lsn, end, time_us, xid = fields.take(">BQQqI")
    return Prepare(lsn, end, time_us + _EPOCH_US, xid, fields.text(), streamed=False)


def _stream_prepare(fields: _Fields, streamed: bool) -> Message:
    _, lsn, end, time_us, xid = fields.take(">BQQqI")
    return Prepare(lsn, end, time_us + _EPOCH_US, xid, fields.text(), streamed=True)


def _commit_prepared(fields: _Fields, streamed: bool) -> Message:
    _, lsn, end, time_us, xid = fields.take(">BQQqI")
    return CommitPrepared(lsn, end, time_us + _EPOCH_US, xid, fields.text())


def _rollback_prepared(fields: _Fields, streamed: bool) -> Message:
    _, prepare_end, end, _, time_us, xid = fields.take(">BQQqqI")
    return RollbackPrepared(prepare_end, end, time_us + _EPOCH_US, xid, fields.text())


_READERS: dict[int, Callable[[_Fields, bool], Message]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("T"): _truncate,
    ord("M"): _logical_message,
    ord("S"): _stream_start,
    ord("E"): lambda fields, streamed: StreamStop(),
    ord("c"): _stream_commit,
    ord("A"): _stream_abort,
    ord("b"): _begin_prepare,
    ord("P"): _prepare,
    ord("p"): _stream_prepare,
    ord("K"): _commit_prepared,
    ord("r"): _rollback_prepared,
}
