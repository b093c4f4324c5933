"""From messages of the replication stream to whole transactions, in the order in which they were committed.

Small transactions are gathered, so that one append takes many; a large one is handed over by itself, from its spool. Nothing is
decoded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headwater.capture.postgres.gathering import Gathering, Run, Transaction
from headwater.capture.postgres.messages import (
    ENVELOPE_BYTES,
    Begin,
    Commit,
    Keepalive,
    LogicalMessage,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
)
from headwater.capture.postgres.spool import MEMORY_BYTES_MAX, Underway

MARK_PREFIX = "headwater"
"""Of messages that we write ourselves."""
STREAMED_BYTES_MAX = 4 << 20
"""Rows of streamed transactions that stay where they were gathered before they are put with those that came before."""


@dataclass
class Unit:
    """Whole transactions that are appended together."""

    end: int
    """The position behind the last."""
    xids: list[int]
    gathered: list[Run] = field(default_factory=list)
    large: Underway | None = None
    messages: list[tuple[LogicalMessage, Transaction]] = field(default_factory=list)

    @property
    def truncated(self) -> frozenset[int]:
        """The tables that are emptied before its rows."""
        return frozenset() if self.large is None else self.large.truncated

    def relations(self) -> list[Relation]:
        """The shapes of its rows, in the order in which they were first met."""
        if self.large is not None:
            return self.large.relations()
        return list(dict.fromkeys(run.relation for run in self.gathered))

    def runs(self) -> Iterator[Run]:
        """Its rows: those of one table in order; may be asked for again."""
        return iter(self.gathered) if self.large is None else self.large.runs()

    def close(self) -> None:
        """It is in the log, or will be read again."""
        if self.large is not None:
            self.large.close()


class Assembly:
    """Takes messages in, gives whole transactions out. Those that end at or before `known` are left out."""

    def __init__(self, known: int, folder: Path) -> None:
        self.reached = known
        """Everything that was committed before this position was given out, or is `waiting`."""
        self.wants_reply = False
        self._known = known
        self._folder = folder
        self._gathering = Gathering()
        self._begun: Begin | None = None
        self._aside: Underway | None = None
        self._streams: dict[int, Underway] = {}
        self._inside: int | None = None
        self._xids: list[int] = []
        self._end = known
        self._messages: list[tuple[LogicalMessage, Transaction]] = []
        self._said: list[LogicalMessage] = []
        self._early: list[Run] = []
        self._shapes: dict[int, Relation] = {}

    @property
    def rows(self) -> int:
        """How many rows are kept, of whatever transaction."""
        return self._gathering.rows

    @property
    def waiting(self) -> bool:
        """Whether there are whole transactions that were not given out."""
        return bool(self._xids)

    def feed(self, datas: Sequence[bytes]) -> Iterator[Unit]:
        """Take in messages; gives what cannot be gathered with others. The rest is for `take`."""
        feed = self._gathering.feed
        for data in datas:
            message = feed(data)
            if message is None:
                continue
            if isinstance(message, Relation):
                yield from self._describe(message)
            elif isinstance(message, Begin):
                self._begun = message
            elif isinstance(message, Commit):
                yield from self._commit(message)
            elif isinstance(message, Keepalive):
                self.wants_reply |= message.reply
                self.reached = max(self.reached, message.end)
            elif isinstance(message, Truncate):
                yield from self._truncate(message.oids, _subxid(data))
            elif isinstance(message, LogicalMessage):
                yield from self._say(message, _subxid(data))
            elif isinstance(message, StreamStart):
                self._inside = message.xid
                self._streams.setdefault(message.xid, Underway(self._folder))
            elif isinstance(message, StreamStop):
                self._end_piece()
            elif isinstance(message, StreamAbort):
                self._abort(message)
            elif isinstance(message, StreamCommit):
                yield from self._commit_streamed(message)
        if self._gathering.bytes > MEMORY_BYTES_MAX and self._inside is None:
            yield from self._set_aside()

    def take(self) -> Unit | None:
        """The whole transactions that are here."""
        if not self._xids:
            return None
        runs, rest = _split(self._gathering.take())
        if rest:
            self._put_aside(rest)
        unit = Unit(self._end, self._xids, self._early + runs, None, self._messages)
        self._xids, self._messages, self._early = [], [], []
        return unit

    def close(self) -> None:
        """Forget what is here."""
        for underway in (*self._streams.values(), *([self._aside] if self._aside else [])):
            underway.close()

    def _commit(self, commit: Commit) -> Iterator[Unit]:
        assert self._begun is not None
        transaction = Transaction(self._begun.xid, commit.end, commit.time_us)
        self._begun = None
        aside, self._aside = self._aside, None
        said, self._said = self._said, []
        self.reached = max(self.reached, commit.end)
        if commit.end <= self._known:
            self._gathering.take()
            return
        if aside is not None and (aside.is_large or aside.truncated):
            aside.keep(self._gathering.take())
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

    def _commit_streamed(self, commit: StreamCommit) -> Iterator[Unit]:
        self.reached = max(self.reached, commit.end)
        underway = self._streams.pop(commit.xid, None) or Underway(self._folder)
        underway.keep(self._gathering.take(commit.xid))
        self._gathering.end(commit.xid, committed=True)
        if commit.end <= self._known:
            underway.close()
            return
        if (earlier := self.take()) is not None:
            yield earlier
        transaction = Transaction(commit.xid, commit.end, commit.time_us)
        yield self._whole(underway, transaction, [(message, transaction) for message in underway.messages])

    def _whole(
        self, underway: Underway, transaction: Transaction, messages: list[tuple[LogicalMessage, Transaction]]
    ) -> Unit:
        underway.transaction = transaction
        self._end = transaction.position
        return Unit(transaction.position, [transaction.xid], [], underway, messages)

    def _describe(self, relation: Relation) -> Iterator[Unit]:
        """What was committed before a table changed is given out by itself: to its topic the change comes after it."""
        if self._inside is None and self._shapes.setdefault(relation.oid, relation) != relation:
            self._shapes[relation.oid] = relation
            if (earlier := self.take()) is not None:
                yield earlier

    def _truncate(self, oids: Sequence[int], subxid: int) -> Iterator[Unit]:
        if self._inside is not None:
            underway = self._streams[self._inside]
            underway.keep(self._gathering.take(self._inside))
            underway.truncate(oids, subxid)
        else:
            yield from self._set_aside()
            assert self._aside is not None
            self._aside.truncate(oids, 0)

    def _say(self, message: LogicalMessage, subxid: int) -> Iterator[Unit]:
        if message.transactional and self._inside is not None:
            self._streams[self._inside].say(message, subxid)
        elif message.transactional:
            self._said.append(message)
        elif message.lsn >= self._known:
            if (earlier := self.take()) is not None:
                yield earlier
            # A message that is of no transaction has no end of its own, and begins where what came before it ends.
            transaction = Transaction(0, max(message.lsn, self._end) + 1, 0)
            self._end = transaction.position
            self.reached = max(self.reached, self._end)
            yield Unit(self._end, [], [], None, [(message, transaction)])

    def _end_piece(self) -> None:
        xid, self._inside = self._inside, None
        if xid is not None and self._gathering.bytes > STREAMED_BYTES_MAX:
            self._streams[xid].keep(self._gathering.take(xid))

    def _abort(self, message: StreamAbort) -> None:
        if message.xid == message.subxid:
            gone = self._streams.pop(message.xid, None)
            if gone is not None:
                gone.close()
        elif message.xid in self._streams:
            self._streams[message.xid].abort(message.subxid)

    def _set_aside(self) -> Iterator[Unit]:
        """Give out what is whole, and keep the transaction under way by itself."""
        if (earlier := self.take()) is not None:
            yield earlier
        if self._begun is not None:
            self._put_aside(self._gathering.take())

    def _put_aside(self, runs: list[Run]) -> None:
        if self._aside is None:
            self._aside = Underway(self._folder)
        self._aside.keep(runs)


def _split(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """What is of whole transactions, and the rest."""
    whole, rest = [], []
    for run in runs:
        behind = run.transactions[-1][0] if run.transactions else 0
        if behind == len(run.messages):
            whole.append(run)
        elif behind:
            whole.append(Run(run.relation, run.streamed, run.messages[:behind], run.transactions))
        if behind < len(run.messages):
            rest.append(Run(run.relation, run.streamed, run.messages[behind:]))
    return whole, rest


def _subxid(data: bytes) -> int:
    """The transaction that a message within a stream is of; means nothing elsewhere."""
    return int.from_bytes(data[ENVELOPE_BYTES + 1 : ENVELOPE_BYTES + 5], "big")
