"""Changes as Z-sets: rows, each with an integer weight. State built from deltas is in `runs`.

Two rows are equal if their values are equal bit by bit, where NULL equals NULL and all NaNs are one value; column names
do not matter. A Z-set is defined by its consolidation: the weights of equal rows added up, rows of weight 0 dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import Hashes, Indices, Mask, identities
from headwater.core.parallel import side_by_side
from headwater.operators.zset.radix_sort import stable_order

Weights = npt.NDArray[np.int64]

_SMALL = 4_096
"""Maximum number of rows for which batches are concatenated in one call instead of column by column."""
_MANY = 100_000
"""Minimum number of rows for which columns are gathered in parallel."""

_UNCHECKED = pc.TakeOptions(boundscheck=False)


@dataclass(frozen=True, eq=False, init=False)
class Delta:
    """Rows inserted (positive weight) and retracted (negative weight); a row may occur several times.

    `len(weights)` is the number of changes: a batch without columns has no row count.
    """

    rows: pa.RecordBatch
    weights: Weights
    distinct: bool = False
    """Whether the delta is already consolidated: no row occurs twice or has weight 0. `consolidate` then skips the check."""
    hashes: Hashes | None = None
    """Hash of the group key of each row, ascending; set only on the direct output of an aggregation."""

    def __init__(
        self, rows: pa.RecordBatch, weights: Weights, distinct: bool = False, hashes: Hashes | None = None
    ) -> None:
        # Every step of every view creates deltas, and the generated constructor of a frozen dataclass takes twice as long.
        fields = self.__dict__
        fields["rows"], fields["weights"] = rows, weights
        fields["distinct"], fields["hashes"] = distinct, hashes
        if rows.num_rows != len(weights) and rows.num_columns:
            raise ValueError(f"{rows.num_rows} rows have {len(weights)} weights")

    def __len__(self) -> int:
        return len(self.weights)

    @staticmethod
    def empty(schema: pa.Schema) -> Delta:
        """Return a delta without changes."""
        return Delta(empty_rows(schema), np.zeros(0, dtype=np.int64))

    @staticmethod
    def of(rows: pa.RecordBatch) -> Delta:
        """Return a delta that inserts each of the rows once."""
        return Delta(rows, np.ones(rows.num_rows, dtype=np.int64))

    def negated(self) -> Delta:
        """Return the inverse delta, which retracts this delta."""
        return Delta(self.rows, -self.weights, self.distinct, self.hashes)

    def take(self, indices: Indices) -> Delta:
        """Return the changes at these indices, in this order."""
        return Delta(take_rows(self.rows, indices), self.weights[indices])

    def slice(self, start: int, count: int) -> Delta:
        """Return up to `count` changes from index `start` on, without copying."""
        return Delta(self.rows.slice(start, count), self.weights[start : start + count], self.distinct)

    def filter(self, mask: Mask) -> Delta:
        """Return the changes where the mask is true."""
        if mask.all():
            return self
        places = np.flatnonzero(mask)
        return Delta(take_rows(self.rows, places), self.weights[places], self.distinct)

    def with_rows(self, rows: pa.RecordBatch) -> Delta:
        """Return a delta of other rows with the weights of this delta, row by row."""
        return Delta(rows, self.weights)

    def renamed(self, rows: pa.RecordBatch) -> Delta:
        """Return this delta with its rows in a batch with other column names."""
        return Delta(rows, self.weights, self.distinct, self.hashes)


def empty_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def take_rows(rows: pa.RecordBatch, indices: Indices) -> pa.RecordBatch:
    """Return the rows at these indices, in this order, copying only them; indices are not bounds-checked."""
    if not rows.num_columns:
        return rows
    places = pa.array(indices)
    if len(indices) < _MANY:
        return pc.call_function("take", [rows, places], _UNCHECKED)
    columns = side_by_side(
        lambda column: pc.call_function("take", [column, places], _UNCHECKED),
        rows.columns,
        size=len(indices) * 8 * rows.num_columns,
    )
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def concat_rows(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate the rows of all batches under the column names of `schema`; a single batch is not copied.

    Raises ArrowInvalid if a text column would exceed 2 GiB.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return empty_rows(schema)
    if len(filled) > 1 and _are_small_and_alike(filled):
        # For many small batches this takes a tenth of the time; beyond 2 GiB several batches remain.
        filled = pa.Table.from_batches(filled).combine_chunks().to_batches()
    if len(filled) == 1:
        batch = filled[0]
        if batch.schema.equals(schema):
            return batch
        columns = batch.columns
    else:
        columns = side_by_side(
            lambda i: pa.concat_arrays([batch.column(i) for batch in filled]),
            range(filled[0].num_columns),
            size=sum(batch.nbytes for batch in filled) if len(filled[0]) > _SMALL else 0,
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _are_small_and_alike(batches: Sequence[pa.RecordBatch]) -> bool:
    first = batches[0]
    if not first.num_columns or len(first) > _SMALL:
        return False
    return all(batch.schema.equals(first.schema) for batch in batches)


def concat(deltas: Sequence[Delta], schema: pa.Schema) -> Delta:
    """Concatenate the changes of several deltas, without consolidating."""
    filled = [delta for delta in deltas if len(delta)]
    if not filled:
        return Delta.empty(schema)
    if len(filled) == 1 and filled[0].rows.schema.equals(schema):
        return filled[0]
    rows = concat_rows([delta.rows for delta in filled], schema)
    return Delta(rows, np.concatenate([delta.weights for delta in filled]))


def row_hashes(rows: pa.RecordBatch) -> tuple[Hashes, Hashes]:
    """Return a 128-bit identity for each row, nested values included."""
    return identities(rows.columns, rows.num_rows, exact=True)


def consolidate(delta: Delta) -> Delta:
    """Return an equal Z-set with each row once and no weight 0, in the order in which rows first appear."""
    if delta.distinct:
        return delta
    count = len(delta)
    if not delta.rows.num_columns:
        total = int(delta.weights.sum())
        return Delta(delta.rows, np.full(int(total != 0), total), distinct=True)
    if count >= 2 and (groups := groups_of(*row_hashes(delta.rows))) is not None:
        sums = np.add.reduceat(delta.weights[groups.order], groups.starts)
        kept = sums != 0
        firsts, sums = groups.firsts[kept], sums[kept]
        appearance = np.argsort(firsts)
        return Delta(take_rows(delta.rows, firsts[appearance]), sums[appearance], distinct=True)
    nonzero = delta.filter(delta.weights != 0)
    return Delta(nonzero.rows, nonzero.weights, distinct=True)


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows grouped by identity: an order of the rows, the start of each group in it, and each group's lowest row index."""

    order: Indices
    starts: Indices
    firsts: Indices


def groups_of(high: Hashes, low: Hashes) -> RowGroups | None:
    """Group rows by their identity, given as two halves; None if every row is its own group."""
    order = stable_order(high)
    sorted_high = high[order]
    same = sorted_high[1:] == sorted_high[:-1]
    if not same.any():
        return None
    sorted_low = low[order]
    same_low = sorted_low[1:] == sorted_low[:-1]
    if (same & ~same_low).any():
        order = np.lexsort((low, high))
        sorted_high, sorted_low = high[order], low[order]
        same = (sorted_high[1:] == sorted_high[:-1]) & (sorted_low[1:] == sorted_low[:-1])
        if not same.any():
            return None
    starts = np.flatnonzero(np.concatenate(([True], ~same)))
    return RowGroups(order, starts, np.minimum.reduceat(order, starts))
