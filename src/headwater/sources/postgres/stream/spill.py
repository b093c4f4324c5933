"""Rows of a transaction that is not committed yet, in order: in memory while they are few, else in a temporary file.

Rows are stored as received. Rows of aborted subtransactions, and rows before a TRUNCATE of their table in the same transaction,
are left out when the rows are read back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from headwater.core.storage import translated
from headwater.sources.postgres.decode.pgoutput import ENVELOPE_BYTES, LogicalMessage, RelationMessage
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction, RowRun

MEMORY_BYTES_MAX = 32 << 20
"""Number of bytes of a transaction kept in memory before it is spilled to disk; also the number of bytes decoded at a time."""
_XID_AT = ENVELOPE_BYTES + 1
"""Offset of the subtransaction id in a message within a stream."""


@dataclass
class _Piece:
    """Messages of one table: in memory, or as a range of the file."""

    relation: RelationMessage
    streamed: bool
    messages: list[bytes] | None
    count: int
    offset: int = 0
    size: int = 0


class Underway:
    """A transaction in progress, from its first row to its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: list[_Piece] = []
        self._file: IO[bytes] | None = None
        self._bytes = 0
        self._truncates: list[tuple[int, frozenset[int], int]] = []
        self._messages: list[tuple[LogicalMessage, int]] = []
        self._aborted: set[int] = set()
        self.transaction: CapturedTransaction | None = None
        """The transaction's origin; None until the commit is received."""

    def add_rows(self, runs: Sequence[RowRun]) -> None:
        """Append rows to the transaction."""
        for run in runs:
            if run.messages:
                self._pieces.append(_Piece(run.relation, run.streamed, run.messages, len(run.messages)))
                self._bytes += sum(map(len, run.messages))
        if self._bytes > MEMORY_BYTES_MAX:
            self._spill()

    def truncate(self, oids: Sequence[int], subxid: int) -> None:
        """Record a TRUNCATE of tables; it is void if the subtransaction `subxid` aborts."""
        self._truncates.append((len(self._pieces), frozenset(oids), subxid))

    def add_message(self, message: LogicalMessage, subxid: int) -> None:
        """Record a message written in the transaction."""
        self._messages.append((message, subxid))

    def abort(self, subxid: int) -> None:
        """Record the abort of a subtransaction: everything that it wrote is void."""
        self._aborted.add(subxid)

    @property
    def is_large(self) -> bool:
        """Whether the transaction was spilled to disk."""
        return self._file is not None

    @property
    def truncated(self) -> frozenset[int]:
        """Oids of the tables that the transaction has truncated."""
        return frozenset().union(*(oids for _, oids, xid in self._truncates if xid not in self._aborted))

    @property
    def messages(self) -> list[LogicalMessage]:
        """Messages written in the transaction with pg_logical_emit_message."""
        return [message for message, xid in self._messages if xid not in self._aborted]

    def relations(self) -> list[RelationMessage]:
        """Return the descriptions of the tables with rows, in the order of their first rows."""
        return list(dict.fromkeys(piece.relation for piece in self._living()))

    def runs(self) -> Iterator[RowRun]:
        """Yield the rows in order, in runs of bounded size; can be called repeatedly."""
        for piece in self._living():
            for messages in self._read(piece):
                if self._aborted and piece.streamed:
                    gone = {xid.to_bytes(4, "big") for xid in self._aborted}
                    messages = [m for m in messages if m[_XID_AT : _XID_AT + 4] not in gone]
                if messages:
                    whole = [(len(messages), self.transaction)] if self.transaction is not None else []
                    yield RowRun(piece.relation, piece.streamed, messages, whole)

    def close(self) -> None:
        """Close and delete the temporary file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _living(self) -> Iterator[_Piece]:
        emptied: dict[int, int] = {}
        for place, oids, xid in self._truncates:
            if xid not in self._aborted:
                emptied.update(dict.fromkeys(oids, place))
        for place, piece in enumerate(self._pieces):
            if place >= emptied.get(piece.relation.oid, 0):
                yield piece

    def _spill(self) -> None:
        with translated(str(self._folder)):
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder, prefix="transaction-")  # noqa: SIM115
        for piece in self._pieces:
            if piece.messages is not None:
                lengths = np.fromiter(map(len, piece.messages), dtype="<u4", count=piece.count)
                piece.offset = self._file.seek(0, 2)
                piece.size = int(lengths.sum())
                self._file.write(lengths.tobytes())
                self._file.writelines(piece.messages)
                piece.messages = None
        self._bytes = 0

    def _read(self, piece: _Piece) -> Iterator[list[bytes]]:
        if piece.messages is not None:
            yield piece.messages
            return
        assert self._file is not None
        self._file.flush()
        self._file.seek(piece.offset)
        lengths = np.frombuffer(self._file.read(4 * piece.count), dtype="<u4")
        ends = np.cumsum(lengths, dtype=np.int64)
        at, start = 0, piece.offset + 4 * piece.count
        while at < piece.count:
            before = int(ends[at - 1]) if at else 0
            behind = max(int(np.searchsorted(ends, before + MEMORY_BYTES_MAX, "right")), at + 1)
            self._file.seek(start + before)
            data = self._file.read(int(ends[behind - 1]) - before)
            bounds = [0, *(ends[at:behind] - before).tolist()]
            yield [data[a:b] for a, b in pairwise(bounds)]
            at = behind
