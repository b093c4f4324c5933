"""The minimum and maximum of a group: which row is selected, and what state a group keeps.

NULL is never selected, and NaN is the greatest number. `min_by` and `max_by` select the value of the row with the
extreme ordering; among rows with equal ordering, `min_by` selects the smallest value and `max_by` the greatest, with
NULL below all others. As an ordering, -0.0 equals 0.0; as a value, -0.0 is just below 0.0, so that the result never
depends on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import doubles_of, null_mask
from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.zset.collation import ColumnOrder, order_words
from headwater.operators.zset.delta import row_hashes
from headwater.operators.zset.exact_sums import Bools, Ints, Words
from headwater.operators.zset.numpy_columns import integers, nulls

_LAST = np.uint64(2**64 - 1)
_INTEGER = pa.int64()


@dataclass(frozen=True)
class Extreme:
    """A value selected per group, stored together with the ordering it was selected by.

    If `retractable`, the ordered multiset of the input is needed to find the next best value when the best is retracted.
    """

    value: int
    ordering: int | None
    filter: int | None
    greatest: bool
    retractable: bool

    @staticmethod
    def of(function: AggregateFunction) -> Extreme:
        """Return the selection of a `min`, `max`, `min_by` or `max_by` function."""
        ordering = function.args[1] if len(function.args) == 2 else None
        greatest = function.kind.startswith("max")
        return Extreme(function.args[0], ordering, function.filter, greatest, not function.append_only)

    @property
    def columns(self) -> tuple[int, ...]:
        """Input columns stored for each group: the value and, if there is one, the ordering."""
        return (self.value,) if self.ordering is None else (self.value, self.ordering)

    def kinds(self, schema: pa.Schema) -> tuple[pa.DataType, ...]:
        """Return the types of the stored columns."""
        return tuple(schema.field(i).type for i in self.columns)

    @property
    def decisive(self) -> int:
        """The input column that must not be NULL for a row to be selected."""
        return self.value if self.ordering is None else self.ordering

    def collect(self, batch: GroupedRows) -> list[pa.Array]:
        """Return the best inserted value for each group of a delta; NULL where none is inserted. Retractions are ignored."""
        weights = batch.weights((self.decisive,), self.filter)
        columns = [batch.rows.column(i) for i in self.columns]
        if weights is None and self._is_of_integers(columns[0]):
            return [pa.array(self._pick.reduceat(batch.integers(self.value), batch.groups.starts))]
        ranked = [batch.sorted(lane) for lane in self._ranks(columns)]
        groups = batch.groups
        alive = None if weights is None else weights > 0
        places = best(ranked, alive, groups.starts, groups.sizes)
        chosen = places if groups.order is None else np.where(places < 0, -1, groups.order[places])
        return [take(column, chosen) for column in columns]

    def better(self, one: Sequence[pa.Array], other: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the better of two values, group by group; both have the columns of `collect`."""
        count = len(one[0])
        if self._is_of_integers(one[0]) and not other[0].null_count:
            mine, theirs, missing = integers(one[0]), integers(other[0]), null_mask(one[0])
            better = self._pick(mine, theirs)
            return [pa.array(better if missing is None else np.where(missing, theirs, better))]
        columns = [pa.concat_arrays(both) for both in zip(one, other, strict=True)]
        order = np.arange(2 * count).reshape(2, count).T.ravel()
        return self.pick(columns, order, np.arange(0, 2 * count, 2), np.full(count, 2))

    def pick(self, columns: Sequence[pa.Array], order: Ints, starts: Ints, sizes: Ints) -> list[pa.Array]:
        """Return the best value of each segment of rows in the given order; NULL where there is none."""
        nulls = null_mask(columns[-1])
        alive = None if nulls is None else ~nulls[order]
        places = best([lane[order] for lane in self._ranks(columns)], alive, starts, sizes)
        chosen = np.where(places < 0, -1, order[places])
        return [take(column, chosen) for column in columns]

    def pick_by(self, columns: Sequence[pa.Array], group: Ints, count: int) -> list[pa.Array]:
        """Return the best value of each of `count` groups, given the ascending group of each row; NULL for a group
        without rows."""
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        sizes = np.diff(starts, append=len(group))
        if not len(starts):
            return [nulls(count, column.type) for column in columns]
        picked = self.pick(columns, np.arange(len(group)), starts, sizes)
        places = np.full(count, -1, dtype=np.int64)
        places[group[starts]] = np.arange(len(starts))
        return [take(column, places) for column in picked]

    def _is_of_integers(self, column: pa.Array) -> bool:
        """Whether this is the minimum or maximum of 64-bit integers, where equal values are interchangeable."""
        return self.ordering is None and bool(column.type == _INTEGER)

    @property
    def _pick(self) -> np.ufunc:
        return np.maximum if self.greatest else np.minimum

    def _ranks(self, columns: Sequence[pa.Array]) -> list[Words]:
        by = ColumnOrder(0, descending=self.greatest, nulls_first=not self.greatest)
        distinguishing = [~word if self.greatest else word for word in _identity(columns[0])]
        return [*(word for column in reversed(columns) for word in order_words(column, by)), *distinguishing]


def _identity(column: pa.Array) -> list[Words]:
    """Return words that distinguish values that compare as equal: -0.0 and 0.0, alone or nested."""
    if pa.types.is_floating(column.type):
        return [(~np.signbit(doubles_of(column, exact=True))).astype(np.uint64)]
    if pa.types.is_nested(column.type):
        return list(row_hashes(pa.RecordBatch.from_arrays([column], names=["value"])))
    return []


def best(ranked: Sequence[Words], alive: Bools | None, starts: Ints, sizes: Ints) -> Ints:
    """Return for each segment the index of the first row with the least ranks, first rank first; -1 if no row is alive."""
    count = int(sizes.sum())
    left = np.ones(count, dtype=np.bool_) if alive is None else alive.copy()
    for lane in ranked:
        least = np.minimum.reduceat(np.where(left, lane, _LAST), starts)
        left &= lane == np.repeat(least, sizes)
    places = np.flatnonzero(left)
    found = np.full(len(starts), -1, dtype=np.int64)
    # If an index is written several times, the last write wins: write in reverse order to keep the first row.
    found[np.repeat(np.arange(len(starts)), sizes)[places[::-1]]] = places[::-1]
    return found


def take(column: pa.Array, places: Ints) -> pa.Array:
    """Return the values at these indices, NULL where an index is negative."""
    missing = places < 0
    return column.take(pa.array(places, mask=missing if missing.any() else None))
