"""Assembles messages of the replication stream to whole transactions, in commit order.

Small transactions are grouped, so that one append has many of them; a large one is a group of its own, read from its temporary
file. Nothing is decoded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headwater.sources.postgres.decode.pgoutput import (
    ENVELOPE_BYTES,
    Begin,
    CommitMessage,
    Keepalive,
    LogicalMessage,
    RelationMessage,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
)
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction, RowBuffer, RowRun
from headwater.sources.postgres.server.stream_overlap import Overlap
from headwater.sources.postgres.stream.spill import MEMORY_BYTES_MAX, Underway

MARK_PREFIX = "headwater"
"""Prefix of logical messages written by Headwater itself."""
STREAMED_BYTES_MAX = 4 << 20
"""Number of bytes of streamed rows that remain in the row buffer before they are moved to their transaction."""


@dataclass
class TransactionGroup:
    """A group of whole transactions that are appended together."""

    end: int
    """Position after the last transaction."""
    xids: list[int]
    gathered: list[RowRun] = field(default_factory=list)
    large: Underway | None = None
    messages: list[tuple[LogicalMessage, CapturedTransaction]] = field(default_factory=list)
    last: CapturedTransaction | None = None
    """Last transaction with rows or messages up to the end of the group."""

    @property
    def begins(self) -> int:
        """Position after the first transaction with rows; `end` if none has rows."""
        first = (run.transactions[0][1].position for run in self.gathered if run.transactions)
        return min(first, default=self.end)

    @property
    def truncated(self) -> frozenset[int]:
        """Oids of the tables to be truncated before the group's rows."""
        return frozenset() if self.large is None else self.large.truncated

    def relations(self) -> list[RelationMessage]:
        """Return the descriptions of the tables with rows, in the order of their first rows."""
        if self.large is not None:
            return self.large.relations()
        return list(dict.fromkeys(run.relation for run in self.gathered))

    def runs(self) -> Iterator[RowRun]:
        """Yield the rows, ordered within each table; can be called repeatedly."""
        return iter(self.gathered) if self.large is None else self.large.runs()

    def close(self) -> None:
        """Release the group, which is in the log or will be read again."""
        if self.large is not None:
            self.large.close()


class TransactionAssembler:
    """Turns messages into groups of whole transactions. Transactions that end at or before `known` are compared by `overlap`
    and left out."""

    def __init__(self, known: int, folder: Path, overlap: Overlap | None = None) -> None:
        self.reached = known
        """Position up to which every committed transaction was returned, or is `waiting`."""
        self.wants_reply = False
        self.described: set[RelationMessage] = set()
        """Table descriptions received since the caller last cleared the set: the server describes a table again after it has
        changed."""
        self.followed: dict[int, tuple[int, int]] = {}
        """By oid of a table described since then: the oid described directly before it, and the transaction. This shows which
        partition belongs to a table, because the description of the partition follows that of the table as which its rows are
        sent."""
        self._described_last: int | None = None
        self._known = known
        self._overlap = overlap
        self._last: CapturedTransaction | None = None
        self._folder = folder
        self._gathering = RowBuffer()
        self._begun: Begin | None = None
        self._aside: Underway | None = None
        self._streams: dict[int, Underway] = {}
        self._inside: int | None = None
        self._xids: list[int] = []
        self._end = known
        self._messages: list[tuple[LogicalMessage, CapturedTransaction]] = []
        self._said: list[LogicalMessage] = []
        self._early: list[RowRun] = []
        self._shapes: dict[int, RelationMessage] = {}

    @property
    def rows(self) -> int:
        """Number of buffered rows of all transactions."""
        return self._gathering.rows

    @property
    def waiting(self) -> bool:
        """Whether whole transactions are waiting to be returned by `take`."""
        return bool(self._xids)

    def feed(self, datas: Sequence[bytes]) -> Iterator[TransactionGroup]:
        """Process messages. Yields groups that must not be combined with others; `take` returns the rest."""
        feed = self._gathering.feed
        for data in datas:
            message = feed(data)
            if message is None:
                continue
            if isinstance(message, RelationMessage):
                yield from self._describe(message)
            elif isinstance(message, Begin):
                self._begun = message
            elif isinstance(message, CommitMessage):
                yield from self._commit(message)
            elif isinstance(message, Keepalive):
                self.wants_reply |= message.reply
                self._compare(message.end)
                self.reached = max(self.reached, message.end)
            elif isinstance(message, Truncate):
                yield from self._truncate(message.oids, _subxid(data))
            elif isinstance(message, LogicalMessage):
                yield from self._add_message(message, _subxid(data))
            elif isinstance(message, StreamStart):
                self._inside = message.xid
                self._streams.setdefault(message.xid, Underway(self._folder))
            elif isinstance(message, StreamStop):
                self._end_piece()
            elif isinstance(message, StreamAbort):
                self._abort(message)
            elif isinstance(message, StreamCommit):
                yield from self._commit_streamed(message)
        if self._gathering.bytes > MEMORY_BYTES_MAX:
            if self._inside is None:
                yield from self._set_aside()
            else:  # a piece of a streamed transaction is as large as logical_decoding_work_mem
                self._streams[self._inside].add_rows(self._gathering.take(self._inside))

    def take(self) -> TransactionGroup | None:
        """Return the waiting transactions as one group, or None."""
        if not self._xids:
            return None
        runs, rest = _split(self._gathering.take())
        if rest:
            self._buffer_rows(rest)
        unit = TransactionGroup(self._end, self._xids, self._early + runs, None, self._messages, self._last)
        self._xids, self._messages, self._early = [], [], []
        return unit

    def close(self) -> None:
        """Discard all transactions in progress."""
        for underway in (*self._streams.values(), *([self._aside] if self._aside else [])):
            underway.close()

    def _commit(self, commit: CommitMessage) -> Iterator[TransactionGroup]:
        assert self._begun is not None
        transaction = CapturedTransaction(self._begun.xid, commit.end, commit.time_us)
        self._begun = None
        aside, self._aside = self._aside, None
        said, self._said = self._said, []
        self.reached = max(self.reached, commit.end)
        self._compare(commit.end)
        if commit.end <= self._known:
            if self._gathering.take() or aside is not None or said:
                self._is_again(transaction)
            return
        if self._gathering.has_open or aside is not None or said:
            self._last = transaction
        if aside is not None and (aside.is_large or aside.truncated):
            aside.add_rows(self._gathering.take())
            yield self._whole(aside, transaction, [(message, transaction) for message in said])
            return
        if aside is not None:
            aside.transaction = transaction
            self._early += aside.runs()
        self._gathering.seal(transaction)
        self._xids.append(transaction.xid)
        self._end = commit.end
        self._messages += [(message, transaction) for message in said]
        if any(message.prefix == MARK_PREFIX for message in said):
            unit = self.take()
            assert unit is not None
            yield unit

    def _commit_streamed(self, commit: StreamCommit) -> Iterator[TransactionGroup]:
        self.reached = max(self.reached, commit.end)
        underway = self._streams.pop(commit.xid, None) or Underway(self._folder)
        underway.add_rows(self._gathering.take(commit.xid))
        self._gathering.end(commit.xid, committed=True)
        self._compare(commit.end)
        transaction = CapturedTransaction(commit.xid, commit.end, commit.time_us)
        has_content = bool(underway.messages or underway.truncated or next(underway.runs(), None))
        if commit.end <= self._known:
            underway.close()
            if has_content:
                self._is_again(transaction)
            return
        if (earlier := self.take()) is not None:
            yield earlier
        self._last = transaction if has_content else self._last
        yield self._whole(underway, transaction, [(message, transaction) for message in underway.messages])

    def _whole(
        self,
        underway: Underway,
        transaction: CapturedTransaction,
        messages: list[tuple[LogicalMessage, CapturedTransaction]],
    ) -> TransactionGroup:
        underway.transaction = transaction
        self._end = transaction.position
        return TransactionGroup(transaction.position, [transaction.xid], [], underway, messages, self._last)

    def _is_again(self, transaction: CapturedTransaction) -> None:
        if self._overlap is not None:
            self._overlap.again(transaction)

    def _compare(self, end: int) -> None:
        if self._overlap is not None:
            self._overlap.reached(end)

    def _describe(self, relation: RelationMessage) -> Iterator[TransactionGroup]:
        """Record the description of a table. If a table has changed, transactions committed before are yielded first, so that
        their rows reach the topic before its columns change."""
        self.described.add(relation)
        xid = self._inside if self._inside is not None else self._begun.xid if self._begun is not None else 0
        if self._described_last is not None:
            self.followed.setdefault(relation.oid, (self._described_last, xid))
        self._described_last = relation.oid
        if self._inside is None and self._shapes.setdefault(relation.oid, relation) != relation:
            self._shapes[relation.oid] = relation
            if (earlier := self.take()) is not None:
                yield earlier

    def _truncate(self, oids: Sequence[int], subxid: int) -> Iterator[TransactionGroup]:
        if self._inside is not None:
            underway = self._streams[self._inside]
            underway.add_rows(self._gathering.take(self._inside))
            underway.truncate(oids, subxid)
        else:
            yield from self._set_aside()
            assert self._aside is not None
            self._aside.truncate(oids, 0)

    def _add_message(self, message: LogicalMessage, subxid: int) -> Iterator[TransactionGroup]:
        if message.transactional and self._inside is not None:
            self._streams[self._inside].add_message(message, subxid)
        elif message.transactional:
            self._said.append(message)
        elif message.lsn >= self._known:
            if (earlier := self.take()) is not None:
                yield earlier
            # A message outside of a transaction has no end LSN of its own, and its LSN is the end of what came before it.
            transaction = CapturedTransaction(0, max(message.lsn, self._end) + 1, 0)
            self._end = transaction.position
            self.reached = max(self.reached, self._end)
            yield TransactionGroup(self._end, [], [], None, [(message, transaction)])

    def _end_piece(self) -> None:
        xid, self._inside = self._inside, None
        if xid is not None and self._gathering.bytes > STREAMED_BYTES_MAX:
            self._streams[xid].add_rows(self._gathering.take(xid))

    def _abort(self, message: StreamAbort) -> None:
        if message.xid == message.subxid:
            gone = self._streams.pop(message.xid, None)
            if gone is not None:
                gone.close()
        elif message.xid in self._streams:
            self._streams[message.xid].abort(message.subxid)

    def _set_aside(self) -> Iterator[TransactionGroup]:
        """Yield the whole transactions, and move the rows of the current transaction to a separate buffer."""
        if (earlier := self.take()) is not None:
            yield earlier
        if self._begun is not None:
            self._buffer_rows(self._gathering.take())

    def _buffer_rows(self, runs: list[RowRun]) -> None:
        if self._aside is None:
            self._aside = Underway(self._folder)
        self._aside.add_rows(runs)


def _split(runs: Sequence[RowRun]) -> tuple[list[RowRun], list[RowRun]]:
    """Split runs into rows of whole transactions, and rows of the current transaction."""
    whole, rest = [], []
    for run in runs:
        behind = run.transactions[-1][0] if run.transactions else 0
        if behind == len(run.messages):
            whole.append(run)
        elif behind:
            whole.append(RowRun(run.relation, run.streamed, run.messages[:behind], run.transactions))
        if behind < len(run.messages):
            rest.append(RowRun(run.relation, run.streamed, run.messages[behind:]))
    return whole, rest


def _subxid(data: bytes) -> int:
    """Return the subtransaction id of a message within a stream; meaningless for other messages."""
    return int.from_bytes(data[ENVELOPE_BYTES + 1 : ENVELOPE_BYTES + 5], "big")
