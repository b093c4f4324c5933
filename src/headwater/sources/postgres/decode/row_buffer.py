"""Buffers rows of the replication stream: undecoded bytes, by table and in order.

The order between tables of one transaction is not kept: a transaction is appended as a whole. The order within a table is kept.
The caller takes the buffered rows from time to time and decodes them (`decode_rows`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError
from headwater.sources.postgres.decode.pgoutput import (
    ENVELOPE_BYTES,
    ROWS,
    XLOG,
    BeginPrepare,
    Message,
    Prepare,
    RelationMessage,
    StreamAbort,
    StreamStart,
    StreamStop,
    unpack,
)

_OID_AT = ENVELOPE_BYTES + 1
"""Offset of the table oid in a row message; within a stream it is four bytes later, after the transaction id."""


@dataclass(frozen=True)
class CapturedTransaction:
    """Origin of captured rows: their transaction. `position` is the LSN after its commit."""

    xid: int
    position: int
    time_us: Microseconds


@dataclass
class RowRun:
    """Row messages of one table, in order, with the same description of the table.

    `transactions` are pairs in ascending order: the index after the last message of a transaction, and the transaction.
    Messages of a transaction that is not complete come last. `streamed`: the messages contain the id of their subtransaction.
    """

    relation: RelationMessage
    streamed: bool = False
    messages: list[bytes] = field(default_factory=list)
    transactions: list[tuple[int, CapturedTransaction]] = field(default_factory=list)


@dataclass
class _Open:
    """Buffered rows of the transactions that are not streamed, or of one streamed or prepared transaction."""

    relations: dict[bytes, RelationMessage] = field(default_factory=dict)
    latest: dict[bytes, RowRun] = field(default_factory=dict)
    runs: list[RowRun] = field(default_factory=list)


class RowBuffer:
    """Takes each CopyData of the stream: buffers rows, and returns other messages.

    Descriptions of tables within a streamed transaction apply only to that transaction until it is committed.
    """

    def __init__(self) -> None:
        self.rows = 0
        """Number of buffered rows."""
        self.bytes = 0
        """Number of bytes of the buffered rows."""
        self._plain = _Open()
        self._others: dict[int, _Open] = {}
        self._now = self._plain
        self._oid_at = _OID_AT

    def feed(self, data: bytes) -> Message | None:
        """Take one CopyData with its envelope. Returns None for a row, which is buffered, else the parsed message.

        Messages about tables and streams also update the buffer; the caller handles all others.
        """
        if data[0] == XLOG and data[ENVELOPE_BYTES] in ROWS:
            at = self._oid_at
            run = self._now.latest.get(data[at : at + 4])
            if run is None:
                run = self._begin_run(data[at : at + 4])
            run.messages.append(data)
            self.rows += 1
            self.bytes += len(data)
            return None
        message = unpack(data, streamed=self._streaming)
        if isinstance(message, RelationMessage):
            self._describe(message)
        elif isinstance(message, StreamStart):
            self._now = self._others.setdefault(message.xid, _Open())
            self._oid_at = _OID_AT + 4
        elif isinstance(message, BeginPrepare):
            self._now = self._others.setdefault(message.xid, _Open())
        elif isinstance(message, (StreamStop, Prepare)):
            self._now, self._oid_at = self._plain, _OID_AT
        elif isinstance(message, StreamAbort):
            self._drop(message.xid, message.subxid)
        return message

    def seal(self, transaction: CapturedTransaction) -> None:
        """Mark the buffered rows as rows of a complete transaction. Rows of a streamed transaction must still be taken by its
        xid."""
        for run in self._others.get(transaction.xid, self._plain).runs:
            behind = run.transactions[-1][0] if run.transactions else 0
            if len(run.messages) > behind:
                run.transactions.append((len(run.messages), transaction))

    @property
    def has_open(self) -> bool:
        """Whether rows of an incomplete transaction that is not streamed are buffered."""
        return any(
            len(run.messages) > (run.transactions[-1][0] if run.transactions else 0)
            for run in self._plain.runs
        )

    def take(self, xid: int | None = None) -> list[RowRun]:
        """Return and remove the buffered rows: of the streamed or prepared transaction `xid`, or of all other transactions.

        Runs of one table are in order. Later rows begin new runs.
        """
        open_ = self._plain if xid is None else self._others.get(xid, _Open())
        runs, open_.runs = open_.runs, []
        open_.latest.clear()
        for run in runs:
            self._forget(run.messages)
        return [run for run in runs if run.messages]

    def end(self, xid: int, *, committed: bool) -> None:
        """End a streamed or prepared transaction. Its remaining rows are dropped; its descriptions of tables become valid for
        all transactions if it was committed."""
        open_ = self._others.pop(xid, _Open())
        for run in open_.runs:
            self._forget(run.messages)
        if committed:
            for relation in open_.relations.values():
                self._describe(relation)

    def relation(self, oid: int) -> RelationMessage | None:
        """Return the latest description of a table that is valid for the next row; None if the table was not described."""
        return self._relation(struct.pack(">I", oid))

    @property
    def _streaming(self) -> bool:
        return self._oid_at != _OID_AT

    def _relation(self, oid: bytes) -> RelationMessage | None:
        return self._now.relations.get(oid) or self._plain.relations.get(oid)

    def _describe(self, relation: RelationMessage) -> None:
        oid = struct.pack(">I", relation.oid)
        differs = self._relation(oid) != relation
        if self._streaming:
            self._now.relations[oid] = relation
        elif differs:
            self._plain.relations[oid] = relation
            self._plain.latest.pop(oid, None)
        if differs:
            self._now.latest.pop(oid, None)

    def _begin_run(self, oid: bytes) -> RowRun:
        relation = self._relation(oid)
        if relation is None:
            raise CorruptionError(
                f"the replication stream has a row of table {int.from_bytes(oid)} before a description of the table",
                hint="check whether a proxy between Headwater and Postgres alters the replication stream",
                reason="undescribed-table",
            )
        run = self._now.latest[oid] = RowRun(relation, self._streaming)
        self._now.runs.append(run)
        return run

    def _drop(self, xid: int, subxid: int) -> None:
        if xid == subxid:
            self.end(xid, committed=False)
            return
        aborted = struct.pack(">I", subxid)
        for run in self._others.get(xid, _Open()).runs:
            dropped = [m for m in run.messages if m[_OID_AT : _OID_AT + 4] == aborted]
            if dropped:
                run.messages = [m for m in run.messages if m[_OID_AT : _OID_AT + 4] != aborted]
                self._forget(dropped)

    def _forget(self, messages: list[bytes]) -> None:
        self.rows -= len(messages)
        self.bytes -= sum(map(len, messages))
