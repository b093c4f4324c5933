"""One number for a set of held rows, in any order, kept up to date from changes: the sum of a hash of each row.

Definition. The checksum is the sum, modulo 2**64, of `headwater.core.hashing.hash_rows` with seed 5 over the columns of each row, as
often as the row is there; a column of floats is taken as the bits of its doubles, with one NaN, so that -0.0 is not 0.0.
Rows that come are added and rows that go are subtracted: a change costs what the change is, and the sum of a million rows
takes a fraction of a second. It is kept in targets, so its definition is for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, doubles_of, hash_rows, null_mask
from headwater.operators.zset.delta import Weights

_SEED = 5
_MODULUS = 1 << 64


@dataclass(frozen=True)
class Tally:
    """The checksum and the number of some rows."""

    checksum: int = 0
    rows: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally((self.checksum + other.checksum) % _MODULUS, self.rows + other.rows)

    def __sub__(self, other: Tally) -> Tally:
        return Tally((self.checksum - other.checksum) % _MODULUS, self.rows - other.rows)


def row_checksums(held: pa.RecordBatch) -> Hashes:
    """What each row adds to the checksum."""
    return hash_rows([_bits(column) for column in held.columns], held.num_rows, seed=_SEED)


def tally(held: pa.RecordBatch, weights: Weights | None = None) -> Tally:
    """Of rows, each once or as often as its weight says."""
    hashes = row_checksums(held)
    if weights is None:
        return Tally(int(hashes.sum(dtype=np.uint64)), held.num_rows)
    total = (hashes * weights.view(np.uint64)).sum(dtype=np.uint64)
    return Tally(int(total), int(weights.sum()))


def tally_all(batches: Iterable[pa.RecordBatch], weight: str | None = None) -> Tally:
    """Of all batches, one after the other; `weight` names a column that says how often a row is there."""
    total = Tally()
    for batch in batches:
        if weight is None:
            total += tally(batch)
        else:
            weights = batch.column(weight).to_numpy().astype(np.int64, copy=False)
            total += tally(batch.drop_columns([weight]), weights)
    return total


def _bits(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    bits = doubles_of(column, exact=True).view(np.int64)
    return pa.array(bits, mask=null_mask(column))
