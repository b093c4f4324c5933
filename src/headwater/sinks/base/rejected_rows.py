"""Rows that a target refused and that were diverted: they stay with its stand until the view changes them.

What a target holds is the view's rows less these. They are kept whole, with the reason, so that they can be told of again
after a crash, tried again, and taken into account when the target is compared with the view.
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
"""More rows than this are not diverted: something is wrong with all of them."""

_FACTS = [pa.field("weight", pa.int64()), pa.field("letter", pa.int64()), pa.field("reason", pa.string())]
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, eq=False)
class Withheld:
    """Rows of the view, each with its weight (1 but in a changelog), the letter that told of it, and the reason."""

    rows: pa.RecordBatch
    weights: Indices
    letters: Indices
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.reasons)

    @staticmethod
    def none(schema: pa.Schema) -> Withheld:
        """No row."""
        nothing = np.zeros(0, dtype=np.int64)
        return Withheld(empty_rows(schema), nothing, nothing, ())

    @staticmethod
    def decode(data: bytes, schema: pa.Schema) -> Withheld:
        """What `encode` made; none if it is of a view with other columns."""
        if not data:
            return Withheld.none(schema)
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        count = table.num_columns - len(_FACTS)
        if not pa.schema(list(table.schema)[:count]).equals(schema):
            return Withheld.none(schema)
        (batch,) = table.combine_chunks().to_batches() or [None]
        if batch is None:
            return Withheld.none(schema)
        rows = pa.RecordBatch.from_arrays(batch.columns[:count], schema=schema)
        weights, letters, reasons = batch.columns[count:]
        return Withheld(rows, weights.to_numpy(), letters.to_numpy(), tuple(reasons.to_pylist()))

    def encode(self) -> bytes:
        """As bytes for a stand."""
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

    def take(self, indices: Indices) -> Withheld:
        """Those at these places."""
        reasons = tuple(self.reasons[i] for i in indices)
        return Withheld(take_rows(self.rows, indices), self.weights[indices], self.letters[indices], reasons)

    def and_refused(
        self, rows: pa.RecordBatch, change: TargetChange, refused: Sequence[RefusedRow], letter: int
    ) -> Withheld:
        """These, and rows of a change that were refused just now; `rows` are the view's that the change is made of."""
        at = np.array([one.index for one in refused], dtype=np.int64)
        weights = np.ones(len(at), dtype=np.int64)
        if WEIGHT.name in change.records.schema.names:
            weights = change.records.column(WEIGHT.name).to_numpy()[at]
        return Withheld(
            concat_rows([self.rows, take_rows(rows, at)], self.rows.schema),
            np.concatenate([self.weights, weights]),
            np.concatenate([self.letters, np.full(len(at), letter, dtype=np.int64)]),
            (*self.reasons, *(one.reason for one in refused)),
        )

    def and_again(
        self,
        tried: Withheld,
        given: pa.RecordBatch,
        rows: pa.RecordBatch,
        change: TargetChange,
        refused: Sequence[RefusedRow],
    ) -> Withheld:
        """These, and those of `tried` that were refused again, with the new reason: `given` were tried in their place, one for
        one, and `rows` are those of them that the change is made of, in whatever order."""
        reasons: dict[tuple[int, int], list[str]] = {}
        at = np.array([one.index for one in refused], dtype=np.int64)
        for pair, one in zip(row_pairs(take_rows(rows, at)), refused, strict=True):
            reasons.setdefault(pair, []).append(one.reason)
        # equal records of a changelog were netted: what is refused stands for all of them
        netted = WEIGHT.name in change.records.schema.names
        places, told = [], []
        for place, pair in enumerate(row_pairs(given)):
            if left := reasons.get(pair):
                places.append(place)
                told.append(left[0] if netted else left.pop())
        back = tried.take(np.array(places, dtype=np.int64))
        return Withheld(
            concat_rows([self.rows, back.rows], self.rows.schema),
            np.concatenate([self.weights, back.weights]),
            np.concatenate([self.letters, back.letters]),
            (*self.reasons, *told),
        )

    def after(self, change: TargetChange, target: Target) -> Withheld:
        """Those that a change leaves: a row whose key it deletes or upserts is not the view's any more."""
        if not len(self) or not target.key or not len(change):
            return self
        touched = concat_rows(
            [change.deletes, change.upserts.select(list(target.key))], change.deletes.schema
        )
        mine = key_identities(target.held(self.rows), target.key)
        return self._where(~_among(mine, key_identities(touched, target.key)))

    def still_in(self, view: Delta) -> Withheld:
        """Those that the view still has."""
        if not len(self):
            return self
        return self._where(_among(row_hashes(self.rows), row_hashes(view.rows)))

    def tally(self, target: Target) -> Tally:
        """The checksum and number of rows that they would add to what the target holds."""
        return tally(target.held(self.rows), self.weights) if len(self) else Tally()

    def _where(self, mask: Mask) -> Withheld:
        return self if mask.all() else self.take(np.flatnonzero(mask))


@dataclass(frozen=True, eq=False)
class Tried:
    """Which rows are to be tried again, by their places, and what is to be given for each: the row itself, or another."""

    places: Indices
    rows: pa.RecordBatch


Choose = Callable[[Withheld], Tried]
"""Picks those that are to be tried again."""


def row_pairs(rows: pa.RecordBatch) -> list[tuple[int, int]]:
    """What tells each row from others."""
    high, low = row_hashes(rows)
    return list(zip(high.tolist(), low.tolist(), strict=True))


def _among(mine: tuple[Hashes, Hashes], theirs: tuple[Hashes, Hashes]) -> Mask:
    """Whether each identity is among others; there are few of mine."""
    order = np.argsort(theirs[0], kind="stable")
    high, low = theirs[0][order], theirs[1][order]
    starts, ends = np.searchsorted(high, mine[0]), np.searchsorted(high, mine[0], side="right")
    found = [
        bool((low[start:end] == word).any()) for start, end, word in zip(starts, ends, mine[1], strict=True)
    ]
    return np.array(found, dtype=np.bool_)
