"""Changes as Z-sets: rows, each with an integer weight. What state is made of them is in `runs`.

Two rows are the same if their values are bit for bit, where NULL is NULL and all NaNs are one value; column names play
no part. A Z-set is what its consolidation says: the weights of equal rows added up, rows of weight 0 left out.
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
"""Batches of so few rows are put together at once, not column by column."""
_MANY = 100_000
"""From here on, columns are gathered side by side."""

_UNCHECKED = pc.TakeOptions(boundscheck=False)


@dataclass(frozen=True, eq=False, init=False)
class Delta:
    """Rows that come (positive weight) and go (negative); the same row may be there several times.

    The number of changes is that of the weights: a batch without columns does not keep count.
    """

    rows: pa.RecordBatch
    weights: Weights
    distinct: bool = False
    """Known to be consolidated: no row twice, none of weight 0. It spares the work of finding out."""
    hashes: Hashes | None = None
    """Of the key of the group that each row is the result of, ascending, where an aggregation has just made them."""

    def __init__(
        self, rows: pa.RecordBatch, weights: Weights, distinct: bool = False, hashes: Hashes | None = None
    ) -> None:
        # every step of every view makes some, and what is generated for a frozen class takes twice as long
        fields = self.__dict__
        fields["rows"], fields["weights"] = rows, weights
        fields["distinct"], fields["hashes"] = distinct, hashes
        if rows.num_rows != len(weights) and rows.num_columns:
            raise ValueError(f"{rows.num_rows} rows have {len(weights)} weights")

    def __len__(self) -> int:
        return len(self.weights)

    @staticmethod
    def empty(schema: pa.Schema) -> Delta:
        """No change."""
        return Delta(empty_rows(schema), np.zeros(0, dtype=np.int64))

    @staticmethod
    def of(rows: pa.RecordBatch) -> Delta:
        """Each of the rows comes once."""
        return Delta(rows, np.ones(rows.num_rows, dtype=np.int64))

    def negated(self) -> Delta:
        """What takes this change back."""
        return Delta(self.rows, -self.weights, self.distinct, self.hashes)

    def take(self, indices: Indices) -> Delta:
        """The changes at these places, in this order."""
        return Delta(take_rows(self.rows, indices), self.weights[indices])

    def slice(self, start: int, count: int) -> Delta:
        """So many changes from a place on, as far as there are; nothing is copied."""
        return Delta(self.rows.slice(start, count), self.weights[start : start + count], self.distinct)

    def filter(self, mask: Mask) -> Delta:
        """The changes where the mask is true."""
        if mask.all():
            return self
        places = np.flatnonzero(mask)
        return Delta(take_rows(self.rows, places), self.weights[places], self.distinct)

    def with_rows(self, rows: pa.RecordBatch) -> Delta:
        """The same weights on other rows, one for one."""
        return Delta(rows, self.weights)

    def renamed(self, rows: pa.RecordBatch) -> Delta:
        """The same rows in a batch with other names."""
        return Delta(rows, self.weights, self.distinct, self.hashes)


def empty_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of no rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def take_rows(rows: pa.RecordBatch, indices: Indices) -> pa.RecordBatch:
    """The rows at these places, which must exist, in this order; copies these rows and no others."""
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
    """The rows of all batches, one after the other, under the names of `schema`; no copy if there is but one.

    ArrowInvalid if a column of text would have more than 2 GiB.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return empty_rows(schema)
    if len(filled) > 1 and _are_small_and_alike(filled):
        # of many small batches that takes a tenth of the time; beyond 2 GiB there remain several
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
    """All changes, one after the other; not consolidated."""
    filled = [delta for delta in deltas if len(delta)]
    if not filled:
        return Delta.empty(schema)
    if len(filled) == 1 and filled[0].rows.schema.equals(schema):
        return filled[0]
    rows = concat_rows([delta.rows for delta in filled], schema)
    return Delta(rows, np.concatenate([delta.weights for delta in filled]))


def row_hashes(rows: pa.RecordBatch) -> tuple[Hashes, Hashes]:
    """128 bits for each row that stand for its identity; nested values included."""
    return identities(rows.columns, rows.num_rows, exact=True)


def consolidate(delta: Delta) -> Delta:
    """The same Z-set with each row once and no weight 0, in the order in which rows first appear."""
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
    """Rows of equal identity brought together: an order of the rows, where in it each group starts, its lowest row."""

    order: Indices
    starts: Indices
    firsts: Indices


def groups_of(high: Hashes, low: Hashes) -> RowGroups | None:
    """The groups of rows whose identity, of two halves, is equal; None if every row is its own group."""
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
