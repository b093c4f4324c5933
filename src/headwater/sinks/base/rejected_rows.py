"""Rows that a target rejected and that were diverted: they stay in the checkpoint until the view changes them.

A target holds the rows of the view without the rejected ones. Rejected rows are stored whole, with the reason, so that they
can be reported again after a crash, retried, and taken into account when the target is compared with the view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, Mask
from headwater.operators.zset.delta import Delta, concat_rows, empty_rows, row_hashes, take_rows
from headwater.sinks.base.checksums import Tally, tally
from headwater.sinks.base.net_changes import key_identities
from headwater.sinks.base.target import WEIGHT, RefusedRow, Target, TargetChange

ROWS_MAX = 1_000
"""Maximum number of diverted rows: with more, something is wrong with all rows."""

_FACTS = [pa.field("weight", pa.int64()), pa.field("letter", pa.int64()), pa.field("reason", pa.string())]
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, eq=False)
class RejectedSinkRows:
    """Rejected rows of the view, each with its weight (1 except in a changelog), the serial of the dead letter that reported
    it, and the reason."""

    rows: pa.RecordBatch
    weights: Indices
    letters: Indices
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.reasons)

    @staticmethod
    def none(schema: pa.Schema) -> RejectedSinkRows:
        """Return an empty set of rows."""
        nothing = np.zeros(0, dtype=np.int64)
        return RejectedSinkRows(empty_rows(schema), nothing, nothing, ())

    @staticmethod
    def decode(data: bytes, schema: pa.Schema) -> RejectedSinkRows:
        """Return the rows encoded by `encode`; an empty set if the columns of `schema` differ."""
        if not data:
            return RejectedSinkRows.none(schema)
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        count = table.num_columns - len(_FACTS)
        if not pa.schema(list(table.schema)[:count]).equals(schema):
            return RejectedSinkRows.none(schema)
        (batch,) = table.combine_chunks().to_batches() or [None]
        if batch is None:
            return RejectedSinkRows.none(schema)
        rows = pa.RecordBatch.from_arrays(batch.columns[:count], schema=schema)
        weights, letters, reasons = batch.columns[count:]
        return RejectedSinkRows(rows, weights.to_numpy(), letters.to_numpy(), tuple(reasons.to_pylist()))

    def encode(self) -> bytes:
        """Return the rows as bytes for a checkpoint."""
        if not len(self):
            return b""
        facts = [
            pa.array(self.weights, pa.int64()),
            pa.array(self.letters, pa.int64()),
            pa.array(self.reasons, pa.string()),
        ]
        schema = pa.schema([*self.rows.schema, *_FACTS])
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema, options=_COMPRESSED) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([*self.rows.columns, *facts], schema=schema))
        return bytes(out.getvalue())

    def take(self, indices: Indices) -> RejectedSinkRows:
        """Return the rows at these indices."""
        reasons = tuple(self.reasons[i] for i in indices)
        return RejectedSinkRows(
            take_rows(self.rows, indices), self.weights[indices], self.letters[indices], reasons
        )

    def with_rejected(
        self, rows: pa.RecordBatch, change: TargetChange, refused: Sequence[RefusedRow], letter: int
    ) -> RejectedSinkRows:
        """Return these rows and the rows of a change that were rejected just now; `rows` are the rows of the view from which
        the change is made."""
        at = np.array([one.index for one in refused], dtype=np.int64)
        weights = np.ones(len(at), dtype=np.int64)
        if WEIGHT.name in change.records.schema.names:
            weights = change.records.column(WEIGHT.name).to_numpy()[at]
        return RejectedSinkRows(
            concat_rows([self.rows, take_rows(rows, at)], self.rows.schema),
            np.concatenate([self.weights, weights]),
            np.concatenate([self.letters, np.full(len(at), letter, dtype=np.int64)]),
            (*self.reasons, *(one.reason for one in refused)),
        )

    def and_again(
        self,
        tried: RejectedSinkRows,
        given: pa.RecordBatch,
        rows: pa.RecordBatch,
        change: TargetChange,
        refused: Sequence[RefusedRow],
    ) -> RejectedSinkRows:
        """Return these rows and the rows of `tried` that were rejected again, with the new reason. `given` were written in
        place of `tried`, one for one; `rows` are the ones of `given` from which the change is made, in any order."""
        reasons: dict[tuple[int, int], list[str]] = {}
        at = np.array([one.index for one in refused], dtype=np.int64)
        for pair, one in zip(row_pairs(take_rows(rows, at)), refused, strict=True):
            reasons.setdefault(pair, []).append(one.reason)
        # equal records of a changelog were netted, so one rejection is for all of them
        netted = WEIGHT.name in change.records.schema.names
        places, why = [], []
        for place, pair in enumerate(row_pairs(given)):
            if left := reasons.get(pair):
                places.append(place)
                why.append(left[0] if netted else left.pop())
        back = tried.take(np.array(places, dtype=np.int64))
        return RejectedSinkRows(
            concat_rows([self.rows, back.rows], self.rows.schema),
            np.concatenate([self.weights, back.weights]),
            np.concatenate([self.letters, back.letters]),
            (*self.reasons, *why),
        )

    def after(self, change: TargetChange, target: Target) -> RejectedSinkRows:
        """Return the rows that a change leaves rejected: a row whose key it deletes or upserts is no longer in the view."""
        if not len(self) or not target.key or not len(change):
            return self
        touched = concat_rows(
            [change.deletes, change.upserts.select(list(target.key))], change.deletes.schema
        )
        mine = key_identities(target.stored_form(self.rows), target.key)
        return self._where(~_among(mine, key_identities(touched, target.key)))

    def still_in(self, view: Delta) -> RejectedSinkRows:
        """Return the rows that are still in the view."""
        if not len(self):
            return self
        return self._where(_among(row_hashes(self.rows), row_hashes(view.rows)))

    def tally(self, target: Target) -> Tally:
        """Return the checksum and number of rows that these rows would add to the target."""
        return tally(target.stored_form(self.rows), self.weights) if len(self) else Tally()

    def _where(self, mask: Mask) -> RejectedSinkRows:
        return self if mask.all() else self.take(np.flatnonzero(mask))


@dataclass(frozen=True, eq=False)
class Tried:
    """The indices of the rejected rows to retry, and for each the row to write: the row itself, or another one."""

    places: Indices
    rows: pa.RecordBatch


Choose = Callable[[RejectedSinkRows], Tried]
"""Callable that picks the rejected rows to retry."""


def row_pairs(rows: pa.RecordBatch) -> list[tuple[int, int]]:
    """Return a 128-bit hash of each row."""
    high, low = row_hashes(rows)
    return list(zip(high.tolist(), low.tolist(), strict=True))


def _among(mine: tuple[Hashes, Hashes], theirs: tuple[Hashes, Hashes]) -> Mask:
    """Return for each of `mine` whether it is among `theirs`; `mine` are few."""
    order = np.argsort(theirs[0], kind="stable")
    high, low = theirs[0][order], theirs[1][order]
    starts, ends = np.searchsorted(high, mine[0]), np.searchsorted(high, mine[0], side="right")
    found = [
        bool((low[start:end] == word).any()) for start, end, word in zip(starts, ends, mine[1], strict=True)
    ]
    return np.array(found, dtype=np.bool_)
