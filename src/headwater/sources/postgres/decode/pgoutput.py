"""The messages of logical replication as `pgoutput` writes them, protocol versions 1 to 4, but for those of single rows.

One CopyData of the replication stream is a keepalive, or an envelope of 25 bytes with one message in it. Rows are by far
the most of them: they are kept as bytes (`gathering`) and decoded many at a time (`decoding`). All others are read here.
Times are in microseconds since 1970 in UTC; positions (LSN) are integers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError

ENVELOPE_BYTES = 25
"""What comes before a message: the letter w, where it begins and ends in the WAL, and the server's time."""
XLOG, KEEPALIVE = b"wk"
ROWS = frozenset(b"IUD")
"""The first bytes of messages of rows: insert, update, delete."""
_EPOCH_US = 946_684_800_000_000
"""2000-01-01, where Postgres counts from."""


@dataclass(frozen=True)
class Keepalive:
    """The server is there, and has sent everything up to `end`; it may want to hear from us at once."""

    end: int
    time_us: Microseconds
    reply: bool


@dataclass(frozen=True)
class Begin:
    """The rows that follow, up to `CommitMessage`, are of one transaction, whose commit record is at `lsn`."""

    lsn: int
    time_us: Microseconds
    xid: int


@dataclass(frozen=True)
class CommitMessage:
    """The transaction is whole; `end` is the position behind it."""

    lsn: int
    end: int
    time_us: Microseconds


@dataclass(frozen=True)
class OriginMessage:
    """The transaction came to the server by replication itself."""

    lsn: int
    name: str


@dataclass(frozen=True)
class RelationColumn:
    """A column as it is sent. `key`: it is part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True)
class RelationMessage:
    """What a table's rows look like from here on. `identity`: d(efault), n(othing), f(ull) or i(ndex)."""

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def table(self) -> str:
        """Its name with the schema's, as messages to people have it."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True)
class TypeName:
    """The name of a type that is not built in."""

    oid: int
    namespace: str
    name: str


@dataclass(frozen=True)
class Truncate:
    """Tables are empty from here on."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True)
class LogicalMessage:
    """What someone wrote with pg_logical_emit_message; one that is not `transactional` counts at once, whatever becomes
    of its transaction."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True)
class StreamStart:
    """What follows, up to `StreamStop`, is of a transaction that is still under way on the server."""

    xid: int
    first: bool


@dataclass(frozen=True)
class StreamStop:
    """The piece of a streamed transaction ends."""


@dataclass(frozen=True)
class StreamCommit:
    """A streamed transaction is whole."""

    xid: int
    lsn: int
    end: int
    time_us: Microseconds


@dataclass(frozen=True)
class StreamAbort:
    """A streamed transaction, or one within it (then `subxid` is another than `xid`), never was."""

    xid: int
    subxid: int


@dataclass(frozen=True)
class BeginPrepare:
    """The rows that follow, up to `Prepare`, are of a transaction that is prepared and not committed."""

    lsn: int
    end: int
    time_us: Microseconds
    xid: int
    gid: str


@dataclass(frozen=True)
class Prepare:
    """A transaction is prepared: whether it will be committed is not known. `streamed` if it came in pieces."""

    lsn: int
    end: int
    time_us: Microseconds
    xid: int
    gid: str
    streamed: bool


@dataclass(frozen=True)
class CommitPrepared:
    """A prepared transaction is committed."""

    lsn: int
    end: int
    time_us: Microseconds
    xid: int
    gid: str


@dataclass(frozen=True)
class RollbackPrepared:
    """A prepared transaction never was."""

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
    """What one CopyData says that is not of a row; `streamed` if it comes between StreamStart and StreamStop.

    CorruptionError for bytes that are no message of this protocol.
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
        hint="is something between Headwater and Postgres that does not speak its protocol?",
    ) from cause


class _Fields:
    """The fields of a message, one after the other."""

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
            raise ValueError("cut off")
        return self._data[self._at : self._at + length]

    def skip_xid(self, streamed: bool) -> None:
        """Within a stream, messages that may be of a transaction within it say which."""
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
