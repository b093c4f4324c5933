"""Overlap of the stream with what was captured before: proof that both have the same history.

A server that was restored to an earlier state has the same system identifier, and after some time its WAL is as long as before.
But it cannot have the same transactions. The slot confirms only positions that the log has, so the stream begins at or before
the position. Transactions that were captured already are sent again and left out. The last of them must be the anchor: the
transaction that the position names, with its number and time; and no transaction unknown to the position may end before the
anchor's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.core.errors import SlotError
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction
from headwater.sources.postgres.server.connection import lsn_of, lsn_text


@dataclass(frozen=True)
class LastTransaction:
    """Last captured transaction, the anchor of a position. Without a number, nothing was captured since the slot began at
    `lsn`."""

    lsn: int
    xid: int = 0
    time_us: int = 0

    @classmethod
    def of(cls, transaction: CapturedTransaction) -> LastTransaction:
        """Return a transaction as an anchor."""
        return cls(transaction.position, transaction.xid, transaction.time_us)

    def to_json(self) -> list[Any]:
        """Return the anchor as part of a position."""
        return [lsn_text(self.lsn), self.xid, self.time_us]

    @classmethod
    def from_json(cls, plain: list[Any]) -> LastTransaction:
        """Return the anchor that `to_json` wrote."""
        return cls(lsn_of(plain[0]), *plain[1:])


class Overlap:
    """Compares transactions that are sent again with the anchor of a position; SlotError if they differ."""

    def __init__(self, source: str, slot: str, anchor: LastTransaction, known: int, confirmed: int) -> None:
        """`known`: position up to which everything was captured. `confirmed`: position at which the slot begins to send."""
        self._source = source
        self._slot = slot
        self._anchor = anchor
        self._is_checked = anchor.lsn <= known
        self._is_awaited = self._is_checked and bool(anchor.xid) and confirmed < anchor.lsn

    def again(self, transaction: CapturedTransaction) -> None:
        """Check a transaction with rows or messages that ends at or before the position."""
        if not self._is_checked or transaction.position < self._anchor.lsn:
            return
        if LastTransaction.of(transaction) != self._anchor and (
            self._anchor.xid or transaction.position > self._anchor.lsn
        ):
            raise self._other_history(
                f"it sends transaction {transaction.xid} there, which the source did not read",
                transaction.xid,
            )
        self._is_awaited = False

    def reached(self, end: int) -> None:
        """Check that the anchor has been sent, now that the server has sent everything up to `end`."""
        if self._is_awaited and end > self._anchor.lsn:
            raise self._other_history(f"it no longer has transaction {self._anchor.xid}", self._anchor.xid)

    def _other_history(self, detail: str, xid: int) -> SlotError:
        return set_back(self._source, self._slot, self._anchor.lsn, detail, xid=xid)


def set_back(source: str, slot: str, lsn: int, detail: str, **difference: int) -> SlotError:
    """Return the error for a server that no longer has what was read from it. `difference`: the fact that shows it."""
    return SlotError(
        f"the server of source {source!r} was restored to an earlier state: its WAL up to {lsn_text(lsn)} differs from what "
        "the source read",
        detail=f"{detail}; the server may be a restored copy, or a standby that was promoted before it had all WAL",
        hint=f"ALTER SOURCE {source} RESTART creates a new slot and takes a new snapshot of the tables; "
        "on_gap = 'snapshot' does that automatically",
        slot=slot,
        reason="set back",
        source=source,
        lsn=lsn,
        **difference,
    )
