"""Accumulators: numeric columns of a group's state that can be added, and retracted by negative weights.

`aggregate_functions` defines which accumulators a function needs and what it computes from them; minima and maxima are
in `min_max`. Accumulators compare by value: two functions over the same argument and filter share accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.hashing import null_mask
from headwater.operators.zset import exact_sums, numpy_columns
from headwater.operators.zset.exact_sums import SCALE, Bools, Floats, Ints, Pair, Words
from headwater.operators.zset.grouping import KeyGroups

HUGE_SCALE = 2.0**-560
"""Factor applied to values of 2**64 and above before they are squared."""
Lane = npt.NDArray[Any]
Lanes = list[Lane]
_Term = tuple[Floats, Floats | None]
"""Finite terms, and their rounding errors if there are any."""


class GroupedRows:
    """The rows of a delta in the order of their groups, converted column by column on request."""

    def __init__(self, rows: pa.RecordBatch, weights: Ints, groups: KeyGroups) -> None:
        self.rows = rows
        self.groups = groups
        self._weights = None if (weights == 1).all() else self.sorted(weights)
        self._kept: dict[tuple[Any, ...], Any] = {}

    def sorted(self, lane: Lane) -> Lane:
        """Reorder a numpy column over the delta's rows into the order of the groups."""
        return lane if self.groups.order is None else np.take(lane, self.groups.order)

    def integers(self, column: int) -> Ints:
        """Return a column as 64-bit integers."""
        made: Ints = self._once(
            ("integers", column), lambda: self.sorted(numpy_columns.integers(self.rows.column(column)))
        )
        return made

    def floats(self, column: int) -> Floats:
        """Return a column as doubles."""
        made: Floats = self._once(
            ("floats", column), lambda: self.sorted(numpy_columns.floats(self.rows.column(column)))
        )
        return made

    def words(self, column: int) -> tuple[Words, Ints]:
        """Return the lower and upper words of a decimal column."""
        low, high = numpy_columns.words(self.rows.column(column))
        return self.sorted(low), self.sorted(high)

    def weights(self, args: tuple[int, ...], condition: int | None) -> Ints | None:
        """Return the weight of each row, 0 where an argument is NULL or the filter does not hold; None if all are 1."""
        made: Ints | None = self._once(("weights", args, condition), lambda: self._selected(args, condition))
        return made

    def _selected(self, args: tuple[int, ...], condition: int | None) -> Ints | None:
        mask: Bools | None = (
            None if condition is None else numpy_columns.booleans(self.rows.column(condition))
        )
        for arg in args:
            nulls = null_mask(self.rows.column(arg))
            if nulls is not None:
                mask = ~nulls if mask is None else mask & ~nulls
        if mask is None:
            return self._weights
        chosen: Ints = self.sorted(mask).astype(np.int64)
        return chosen if self._weights is None else chosen * self._weights

    def _once(self, name: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


class Accumulator(Protocol):
    """Numeric columns per group; `kinds` are their types in the state."""

    @property
    def kinds(self) -> tuple[pa.DataType, ...]: ...

    @property
    def count(self) -> Count: ...

    def collect(self, batch: GroupedRows) -> Lanes:
        """Return the columns for each group of a delta."""
        ...

    def merge(self, parts: Sequence[Lane], starts: Ints) -> Lanes:
        """Add up, for each segment, columns that were collected separately."""
        ...

    def add(self, old: Sequence[Lane], new: Sequence[Lane]) -> Lanes:
        """Add the columns of two states, group by group."""
        ...

    def settled(self, kept: Lanes, count: Ints) -> Lanes:
        """Return the columns without residue of retracted rows; `count` is the number of rows left."""
        ...


@dataclass(frozen=True)
class Count:
    """The number of rows without NULL among the arguments."""

    args: tuple[int, ...]
    filter: int | None

    @property
    def kinds(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    @property
    def count(self) -> Count:
        return self

    def collect(self, batch: GroupedRows) -> Lanes:
        weights = batch.weights(self.args, self.filter)
        groups = batch.groups
        return [groups.sizes if weights is None else np.add.reduceat(weights, groups.starts)]

    def merge(self, parts: Sequence[Lane], starts: Ints) -> Lanes:
        return [np.add.reduceat(parts[0], starts)]

    def add(self, old: Sequence[Lane], new: Sequence[Lane]) -> Lanes:
        return [old[0] + new[0]]

    def settled(self, kept: Lanes, count: Ints) -> Lanes:
        return kept


@dataclass(frozen=True)
class Exact:
    """The exact sum of integers or decimals, in limbs."""

    arg: int
    filter: int | None
    limbs: int
    decimal: bool

    @property
    def kinds(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(),) * self.limbs

    @property
    def count(self) -> Count:
        return Count((self.arg,), self.filter)

    def collect(self, batch: GroupedRows) -> Lanes:
        weights = batch.weights((self.arg,), self.filter)
        starts = batch.groups.starts
        if self.decimal:
            low, high = batch.words(self.arg)
            return list(exact_sums.wide_sums(low, high, weights, starts, self.limbs))
        return list(exact_sums.integer_sums(batch.integers(self.arg), weights, starts, self.limbs))

    def merge(self, parts: Sequence[Lane], starts: Ints) -> Lanes:
        return list(exact_sums.carry([np.add.reduceat(part, starts) for part in parts]))

    def add(self, old: Sequence[Lane], new: Sequence[Lane]) -> Lanes:
        return list(exact_sums.carry([a + b for a, b in zip(old, new, strict=True)]))

    def settled(self, kept: Lanes, count: Ints) -> Lanes:
        return kept


class _Floats:
    """Columns of float sums: some counts, the last of which counts huge terms, then pairs.

    The first half of the pairs are sums of the terms that are not huge, the second half sums of the huge terms, so that
    a retracted huge term (often a placeholder value) leaves no rounding error in the sum of the other terms.
    """

    counts: ClassVar[int]

    def merge(self, parts: Sequence[Lane], starts: Ints) -> Lanes:
        made: Lanes = [np.add.reduceat(part, starts) for part in parts[: self.counts]]
        for pair in self._pairs(parts):
            made += exact_sums.pair_sums(pair, starts)
        return made

    def add(self, old: Sequence[Lane], new: Sequence[Lane]) -> Lanes:
        made: Lanes = [a + b for a, b in zip(old[: self.counts], new[: self.counts], strict=True)]
        tame = not (old[self.counts - 1].any() or new[self.counts - 1].any())
        half = (len(old) - self.counts) // 4
        for place, (a, b) in enumerate(zip(self._pairs(old), self._pairs(new), strict=True)):
            made += b if tame and place >= half else exact_sums.pair_add(a, b)  # both sides are zero
        return made

    def settled(self, kept: Lanes, count: Ints) -> Lanes:
        empty, tame = count == 0, kept[self.counts - 1] == 0
        half = (self.counts + len(kept)) // 2
        if empty.any():
            kept = [np.where(empty, lane.dtype.type(0), lane) for lane in kept]
        if tame.any():
            kept = [*kept[:half], *(np.where(tame, 0.0, lane) for lane in kept[half:])]
        return kept

    def values(self, kept: Sequence[Lane]) -> list[Pair]:
        """Return the sums over all terms, as pairs."""
        found = self._pairs(kept)
        half = len(found) // 2
        if not kept[self.counts - 1].any():
            return found[:half]
        return [exact_sums.pair_add(a, b) for a, b in zip(found[:half], found[half:], strict=True)]

    def _pairs(self, kept: Sequence[Lane]) -> list[Pair]:
        return [(kept[i], kept[i + 1]) for i in range(self.counts, len(kept), 2)]

    def _collected(
        self, terms: Sequence[_Term], counts: Lanes, huge: Bools, weights: Ints | None, groups: KeyGroups
    ) -> Lanes:
        """Return the columns of finite terms; `counts` are the counts that precede the count of huge terms."""
        none = np.zeros(len(groups))
        if not huge.any():
            made = [lane for term in terms for lane in _weighted_sums(term, weights, groups.starts)]
            return [*counts, np.zeros(len(groups), dtype=np.int64), *made, *[none] * len(made)]
        made = []
        for band in (~huge, huge):
            for high, low in terms:
                term = np.where(band, high, 0.0), None if low is None else np.where(band, low, 0.0)
                made += _weighted_sums(term, weights, groups.starts)
        return [*counts, np.add.reduceat(_weighted(huge, weights), groups.starts), *made]


@dataclass(frozen=True)
class Compensated(_Floats):
    """The scaled sum of floats, and the number of NaNs, infinities, negative infinities and huge terms.

    After a term is retracted, the sum is off by at most 2**-100 of the term, and exact with regard to terms above 2**64.
    """

    arg: int
    filter: int | None
    counts: ClassVar[int] = 4

    @property
    def kinds(self) -> tuple[pa.DataType, ...]:
        return (*[pa.int64()] * 4, *[pa.float64()] * 4)

    @property
    def count(self) -> Count:
        return Count((self.arg,), self.filter)

    def collect(self, batch: GroupedRows) -> Lanes:
        weights = batch.weights((self.arg,), self.filter)
        groups = batch.groups
        values = batch.floats(self.arg)
        counts: Lanes = [np.zeros(len(groups), dtype=np.int64)] * 3
        finite = np.isfinite(values)
        if not finite.all():
            kinds = (np.isnan(values), values == np.inf, values == -np.inf)
            counts = [np.add.reduceat(_weighted(kind, weights), groups.starts) for kind in kinds]
            values = np.where(finite, values, 0.0)
        return self._collected([(values * SCALE, None)], counts, np.abs(values) >= 2.0**64, weights, groups)


@dataclass(frozen=True)
class Powers:
    """Long sums of products of arguments, and the number of out-of-range rows and of huge rows.

    A product is a tuple of arguments: (1, 1) is the sum of squares of column 1. NaN and infinities are out of range:
    counted, and left out of the sums. Huge rows, which have a value of 2**64 or above, have sums of their own, so that
    a retracted huge row leaves no rounding error in the other sums. Where all products are powers of one argument up to
    its square, the sums of huge rows use scaled values, so that no square overflows; otherwise values are not scaled,
    and rows whose product would overflow are out of range too.
    """

    args: tuple[int, ...]
    filter: int | None
    products: tuple[tuple[int, ...], ...]

    @property
    def kinds(self) -> tuple[pa.DataType, ...]:
        return (*[pa.int64()] * 2, *[pa.float64()] * (2 * exact_sums.WORDS * len(self.products)))

    @property
    def count(self) -> Count:
        return Count(self.args, self.filter)

    @property
    def scale(self) -> float:
        """Factor applied to huge values."""
        return HUGE_SCALE if self._is_scaled else 1.0

    @property
    def _is_scaled(self) -> bool:
        return self._factors == 2 and len(self.args) == 1

    @property
    def _factors(self) -> int:
        return max(len(product) for product in self.products)

    def collect(self, batch: GroupedRows) -> Lanes:
        weights = batch.weights(self.args, self.filter)
        groups = batch.groups
        values = {arg: batch.floats(arg) for arg in self.args}
        size = np.max(np.abs(list(values.values())), axis=0)
        within = np.isfinite(size) if self._is_scaled else size < 2.0 ** (960 // self._factors)
        none = np.zeros(len(groups), dtype=np.int64)
        beyond = none
        if not within.all():
            beyond = np.add.reduceat(_weighted(~within, weights), groups.starts)
            values = {arg: np.where(within, lane, 0.0) for arg, lane in values.items()}
        huge = within & (size >= 2.0**64)
        if not huge.any():
            nothing = [np.zeros(len(groups))] * (exact_sums.WORDS * len(self.products))
            return [beyond, none, *self._sums(values, weights, groups.starts), *nothing]
        tame = {arg: np.where(huge, 0.0, lane) for arg, lane in values.items()}
        wild = {arg: np.where(huge, lane * self.scale, 0.0) for arg, lane in values.items()}
        made = [lane for band in (tame, wild) for lane in self._sums(band, weights, groups.starts)]
        return [beyond, np.add.reduceat(_weighted(huge, weights), groups.starts), *made]

    def merge(self, parts: Sequence[Lane], starts: Ints) -> Lanes:
        counts: Lanes = [np.add.reduceat(part, starts) for part in parts[:2]]
        return [
            *counts,
            *(word for words in _by_words(parts) for word in exact_sums.long_sums(words, starts)),
        ]

    def add(self, old: Sequence[Lane], new: Sequence[Lane]) -> Lanes:
        made: Lanes = [a + b for a, b in zip(old[:2], new[:2], strict=True)]
        tame = not (old[1].any() or new[1].any())
        for place, (a, b) in enumerate(zip(_by_words(old), _by_words(new), strict=True)):
            if tame and place >= len(self.products):
                made += b  # both sides are zero
            else:
                made += exact_sums.in_words([word for both in zip(a, b, strict=True) for word in both])
        return made

    def settled(self, kept: Lanes, count: Ints) -> Lanes:
        empty, tame = count == 0, kept[1] == 0
        half = (2 + len(kept)) // 2
        if empty.any():
            kept = [np.where(empty, lane.dtype.type(0), lane) for lane in kept]
        if tame.any():
            kept = [*kept[:half], *(np.where(tame, 0.0, lane) for lane in kept[half:])]
        return kept

    def values(self, kept: Sequence[Lane]) -> list[list[Floats]]:
        """Return the sums of all products in words, for groups without huge rows."""
        return _by_words(kept)[: len(self.products)]

    def scaled(self, kept: Sequence[Lane]) -> list[list[Floats]]:
        """Return the sums of all products in words, with every factor scaled."""
        found = _by_words(kept)
        half = len(self.products)
        made = []
        for product, tame, wild in zip(self.products, found[:half], found[half:], strict=True):
            small = tame
            for _ in product:
                small = [word * self.scale for word in small]
            made.append(
                exact_sums.in_words([word for both in zip(wild, small, strict=True) for word in both])
            )
        return made

    def _sums(self, values: dict[int, Floats], weights: Ints | None, starts: Ints) -> Lanes:
        terms: dict[tuple[int, ...], _Term] = {}
        made: Lanes = []
        for product in self.products:
            terms[product] = _product(values, product, terms)
            made += exact_sums.long_sums(_weighted_terms(terms[product], weights), starts)
        return made


def _by_words(kept: Sequence[Lane]) -> list[list[Floats]]:
    return [list(kept[i : i + exact_sums.WORDS]) for i in range(2, len(kept), exact_sums.WORDS)]


def _weighted_terms(term: _Term, weights: Ints | None) -> list[Floats]:
    """Multiply terms by weights; return the products as columns to be summed."""
    lanes_of = [lane for lane in term if lane is not None]
    if weights is None:
        return lanes_of
    factors = weights.astype(np.float64)
    if (np.abs(weights) <= 1).all():
        return [lane * factors for lane in lanes_of]
    return [part for lane in lanes_of for part in exact_sums.two_product(lane, factors)]


def _product(
    values: dict[int, Floats], product: tuple[int, ...], known: dict[tuple[int, ...], _Term]
) -> _Term:
    last = values[product[-1]]
    if len(product) == 1:
        return last, None
    high, low = known[product[:-1]]
    if low is None:
        return exact_sums.two_product(high, last)
    return exact_sums.pair_multiply((high, low), (last, np.zeros(len(last))))


def _weighted(mask: Bools, weights: Ints | None) -> Ints:
    return mask.astype(np.int64) if weights is None else np.where(mask, weights, 0)


def _weighted_sums(terms: _Term, weights: Ints | None, starts: Ints) -> Pair:
    """Return the sum of finite term times weight over each segment."""
    high, low = terms
    if weights is not None:
        factors = weights.astype(np.float64)
        if (np.abs(weights) <= 1).all():
            high, low = high * factors, None if low is None else low * factors
        elif low is None:
            high, low = exact_sums.two_product(high, factors)
        else:
            high, low = exact_sums.pair_multiply((high, low), (factors, np.zeros(len(factors))))
    return exact_sums.float_sums(high, starts) if low is None else exact_sums.pair_sums((high, low), starts)
