"""The overlap of what the server sends and what was taken in before: the proof that both have one history.

A server that was set back to an earlier state has the same system identifier, and once it has gone on for a while its log is as long
as before. What it cannot have is the same transactions. A slot remembers how far it was confirmed; it is never told more than what
the log has, so that the stream begins at or before the position. Transactions that were taken in already come again and are left out. The
last of them must be the one that the position names, with its number and its time, and none that the position does not know
may come before its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.core.errors import SlotError
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction
from headwater.sources.postgres.server.connection import lsn_of, lsn_text


@dataclass(frozen=True)
class LastTransaction:
    """The last transaction that was taken in. Without a number nothing was since the slot began there."""

    lsn: int
    xid: int = 0
    time_us: int = 0

    @classmethod
    def of(cls, transaction: CapturedTransaction) -> LastTransaction:
        """The anchor that a transaction is."""
        return cls(transaction.position, transaction.xid, transaction.time_us)

    def to_json(self) -> list[Any]:
        """As part of a position."""
        return [lsn_text(self.lsn), self.xid, self.time_us]

    @classmethod
    def from_json(cls, plain: list[Any]) -> LastTransaction:
        """What `to_json` wrote."""
        return cls(lsn_of(plain[0]), *plain[1:])


class Overlap:
    """Compares what comes again with the anchor of a position; SlotError where they differ."""

    def __init__(self, source: str, slot: str, anchor: LastTransaction, known: int, confirmed: int) -> None:
        """`known`: everything up to there was taken in. `confirmed`: where the slot begins to send."""
        self._source = source
        self._slot = slot
        self._anchor = anchor
        self._is_checked = anchor.lsn <= known
        self._is_awaited = self._is_checked and bool(anchor.xid) and confirmed < anchor.lsn

    def again(self, transaction: CapturedTransaction) -> None:
        """A transaction with rows or messages ends at or before the position."""
        if not self._is_checked or transaction.position < self._anchor.lsn:
            return
        if LastTransaction.of(transaction) != self._anchor and (
            self._anchor.xid or transaction.position > self._anchor.lsn
        ):
            raise self._other_history(f"it sends transaction {transaction.xid} there, which was not taken in")
        self._is_awaited = False

    def reached(self, end: int) -> None:
        """The server has sent everything up to there."""
        if self._is_awaited and end > self._anchor.lsn:
            raise self._other_history(f"it does not have transaction {self._anchor.xid} any more")

    def _other_history(self, detail: str) -> SlotError:
        return set_back(self._source, self._slot, self._anchor.lsn, detail)


def set_back(source: str, slot: str, lsn: int, detail: str) -> SlotError:
    """The error for a server that does not have what was read from it."""
    return SlotError(
        f"the server of source {source!r} was set back: what was read from it up to {lsn_text(lsn)} is not what it has now",
        detail=f"{detail}; is it a restored copy, or a standby that was promoted before it had everything?",
        hint=f"ALTER SOURCE {source} RESTART makes a new slot and snapshots the tables anew; "
        "with on_gap = 'snapshot' that happens by itself",
        slot=slot,
        reason="set back",
        source=source,
    )
