"""An order-independent checksum of a set of stored rows, maintained incrementally: the sum of a hash of each row.

Definition. The checksum is the sum, modulo 2**64, of `headwater.core.hashing.hash_rows` with seed 5 over the columns of each
row, once per occurrence of the row. A column of floats is hashed by the bits of its doubles, with one NaN, so that -0.0
differs from 0.0. Inserted rows are added and deleted rows subtracted: an update costs as much as the change, and the
checksum of a million rows takes a fraction of a second. Checksums are stored in targets, so the definition must never
change.
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
    """The checksum and the number of a set of rows."""

    checksum: int = 0
    rows: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally((self.checksum + other.checksum) % _MODULUS, self.rows + other.rows)

    def __sub__(self, other: Tally) -> Tally:
        return Tally((self.checksum - other.checksum) % _MODULUS, self.rows - other.rows)


def row_checksums(stored: pa.RecordBatch) -> Hashes:
    """Return the amount that each row adds to the checksum."""
    return hash_rows([_bits(column) for column in stored.columns], stored.num_rows, seed=_SEED)


def tally(stored: pa.RecordBatch, weights: Weights | None = None) -> Tally:
    """Return the tally of rows, each counted once or as often as its weight says."""
    hashes = row_checksums(stored)
    if weights is None:
        return Tally(int(hashes.sum(dtype=np.uint64)), stored.num_rows)
    total = (hashes * weights.view(np.uint64)).sum(dtype=np.uint64)
    return Tally(int(total), int(weights.sum()))


def tally_all(batches: Iterable[pa.RecordBatch], weight: str | None = None) -> Tally:
    """Return the tally of all batches together; `weight` names the column with the weight of each row."""
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
