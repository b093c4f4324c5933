"""Functions over frames of sorted rows: the bounds of each frame, and count, sum, avg, min and max over it.

A value over a frame depends on the rows of the frame alone, to the last bit, whatever rows surround it. Sums are
differences of running sums, which are exact, for floats too: each float is split into 32-bit integers at fixed powers
of two, and the integers are recombined after summing. A minimum is the lesser of the minima of two overlapping ranges
whose lengths are powers of two; the minima of all such ranges are computed one length after the other (a sparse table).
So the cost is proportional to the number of rows, not to the overlap of their frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Indices, doubles_of, null_mask
from headwater.operators.aggregate import aggregate_functions
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.zset import exact_sums, numpy_columns
from headwater.operators.zset.collation import ColumnOrder, order_words
from headwater.operators.zset.delta import Weights
from headwater.operators.zset.exact_sums import Bools, Floats, Ints, Words

_LIMITS = np.iinfo(np.int64)
_MASK = (1 << 32) - 1
_SPAN_MAX = 2.0**62
"""Upper bound of the total length of all concatenated stretches, as a number, for the combined stretch and time code."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Half-open index ranges in sorted rows."""

    starts: Indices
    ends: Indices

    def at(self, places: Indices) -> Frames:
        """Return the frames at these indices."""
        return Frames(self.starts[places], self.ends[places])


@dataclass(frozen=True, eq=False)
class Timeline:
    """Rows sorted by stretch and time.

    Stretches are numbered upwards. The times of a `bare` stretch are undefined, and the frame of each of its rows is
    the whole stretch.
    """

    stretches: Indices
    times: Ints
    bare: Bools
    """Mask of the rows that belong to a bare stretch."""


def shifted(values: Ints, by: int) -> Ints:
    """Add a number to values, saturating at the limits of their type."""
    by = max(min(by, _LIMITS.max), _LIMITS.min)
    if by >= 0:
        return np.where(values > _LIMITS.max - by, _LIMITS.max, values + by)
    return np.where(values < _LIMITS.min - by, _LIMITS.min, values + by)


def bounds(line: Timeline, at: Indices, low: int, high: int) -> Frames:
    """Return the frames [time + low, time + high] of the rows at some indices."""
    count = len(line.times)
    firsts = np.flatnonzero(np.concatenate(([True], line.stretches[1:] != line.stretches[:-1])))
    sizes = np.diff(firsts, append=count)
    number = np.repeat(np.arange(len(firsts)), sizes)
    lowest, highest = line.times[firsts], line.times[firsts + sizes - 1]
    mine = number[at]
    begin, end = shifted(line.times[at], low), shifted(line.times[at], high)
    widths = highest.astype(np.float64) - lowest.astype(np.float64)
    if float(np.sum(widths + 2)) < _SPAN_MAX:
        # One number encodes stretch and time: the stretches are concatenated.
        spans = highest - lowest + 2
        base = np.cumsum(spans) - spans - lowest
        codes = line.times + base[number]
        begin = np.clip(begin, lowest[mine], highest[mine] + 1) + base[mine]
        end = np.clip(end, lowest[mine] - 1, highest[mine]) + 1 + base[mine]
    else:
        known = np.unique(line.times)
        width = len(known) + 1
        codes = number * width + np.searchsorted(known, line.times)
        begin = mine * width + np.searchsorted(known, begin)
        end = mine * width + np.searchsorted(known, end, side="right")
    starts, ends = np.searchsorted(codes, begin), np.searchsorted(codes, end)
    bare = line.bare[at]
    if bare.any():
        starts = np.where(bare, firsts[mine], starts)
        ends = np.where(bare, (firsts + sizes)[mine], ends)
    return Frames(starts, ends)


class Weighted:
    """Sorted rows with multiplicities: a row counts as often as its weight."""

    def __init__(self, rows: pa.RecordBatch, weights: Weights) -> None:
        self._rows = rows
        self._weights = weights
        self._counts: dict[tuple[Any, ...], Ints] = {}
        self._sums: dict[tuple[Any, ...], Floats] = {}

    def buffers(
        self,
        function: AggregateFunction,
        frames: Frames,
        overflow: Callable[[AggregateFunction, Bools], None],
    ) -> list[pa.Array]:
        """Return the buffer columns of a function over each frame; `overflow` receives a mask of the sums that fit
        their type."""
        taken = self._taken(function)
        if function.kind in ("min", "max"):
            column = self._rows.column(function.args[0])
            return [_extremes(column, taken > 0, frames, greatest=function.kind == "max")]
        shared = (function.args, function.filter, id(frames))
        if shared not in self._counts:
            self._counts[shared] = _difference(taken, frames)
        count = self._counts[shared]
        if function.kind == "count":
            return [pa.array(count)]
        if function.kind not in ("sum", "avg"):
            raise ValueError(f"{function.kind} is not supported over frames")
        column = self._rows.column(function.args[0])
        if not pa.types.is_floating(column.type):
            limbs = exact_sums.carry([_difference(limb * taken, frames) for limb in _limbs(column)])
            return aggregate_functions.finish(function, column.type, count, limbs, overflow)
        if shared not in self._sums:
            self._sums[shared] = _float_sums(numpy_columns.floats(column), taken, frames)
        total = self._sums[shared]
        if function.kind == "avg":
            return [pa.array(total), pa.array(count)]
        return [numpy_columns.array(total, pa.float64(), count != 0)]

    def _taken(self, function: AggregateFunction) -> Weights:
        """Return the weight of each row for a function: 0 where an argument is NULL or the filter does not hold."""
        weights = self._weights
        for arg in function.args:
            if (absent := null_mask(self._rows.column(arg))) is not None:
                weights = np.where(absent, 0, weights)
        if function.filter is not None:
            weights = np.where(numpy_columns.booleans(self._rows.column(function.filter)), weights, 0)
        return weights


def _difference(lane: Ints, frames: Frames) -> Ints:
    """Return the sum over each frame; where running sums wrap around, their difference is still correct."""
    running = np.zeros(len(lane) + 1, dtype=np.int64)
    np.cumsum(lane, out=running[1:])
    found: Ints = running[frames.ends] - running[frames.starts]
    return found


def _limbs(column: pa.Array) -> list[Ints]:
    """Split integers or decimals into 32-bit limbs, lowest first; the last limb is signed."""
    if not pa.types.is_decimal(column.type):
        values = numpy_columns.integers(column)
        return [values & _MASK, values >> 32]
    low, high = numpy_columns.words(column)
    if column.type.precision <= 18:
        narrow = low.view(np.int64)
        return [narrow & _MASK, narrow >> 32]
    lower = (low & np.uint64(_MASK)).view(np.int64)
    return [lower, (low >> np.uint64(32)).view(np.int64), high & _MASK, high >> 32]


def _float_sums(values: Floats, weights: Weights, frames: Frames) -> Floats:
    """Return the sums of floats; NaN and infinities propagate as in floating-point addition."""
    finite = np.isfinite(values)
    usual = finite.all()
    total = _finite_sums(values if usual else np.where(finite, values, 0.0), weights, frames)
    if usual:
        return total
    nans, above, below = (
        _difference(np.where(special, weights, 0), frames) != 0
        for special in (np.isnan(values), values == np.inf, values == -np.inf)
    )
    total = np.where(above, np.inf, np.where(below, -np.inf, total))
    return np.where(nans | (above & below), np.nan, total)


def _finite_sums(values: Floats, weights: Weights, frames: Frames) -> Floats:
    fractions, exponents = np.frexp(values)
    whole = np.abs(fractions * 2.0**53).astype(np.int64)
    signed = np.where(fractions < 0, -weights, weights)
    places = exponents.astype(np.int64) - 53
    places[whole == 0] = places[whole != 0].min(initial=0)
    cells = places >> 5
    offset = places & 31
    lower, upper = (whole & _MASK) << offset, (whole >> 32) << offset
    parts = (
        (lower & _MASK) * signed,
        ((lower >> 32) + (upper & _MASK)) * signed,
        (upper >> 32) * signed,
    )
    first, last = (int(cells.min()), int(cells.max()) + 2) if len(cells) else (0, 0)
    alike = first + 2 == last
    found: list[Ints] = []
    for cell in range(first, last + 1):
        lane = np.zeros(len(values), dtype=np.int64)
        for above, part in enumerate(parts):
            if not alike:
                lane += np.where(cells == cell - above, part, 0)
            elif above == cell - first:
                lane = part
        found.append(_difference(lane, frames))
    # A spare limb, which has only the sign.
    found = exact_sums.carry([*found, np.zeros_like(frames.starts)])
    negative = found[-1] < 0
    found = exact_sums.carry([np.where(negative, -lane, lane) for lane in found])
    total = np.zeros(len(frames.starts))
    with np.errstate(over="ignore", under="ignore"):
        for place in range(len(found) - 1, -1, -1):
            total += np.ldexp(found[place].astype(np.float64), 32 * (first + place))
    return np.where(negative, -total, total)


def _extremes(column: pa.Array, taken: Bools, frames: Frames, *, greatest: bool) -> pa.Array:
    """Return the minimum or maximum value of each frame, or NULL."""
    words = _words(column)
    order = np.argsort(words[0], kind="stable") if len(words) == 1 else np.lexsort(words[::-1])
    count = len(order)
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.arange(count - 1, -1, -1) if greatest else np.arange(count)
    ranks[~taken] = count
    best = _lowest(ranks, frames, count)
    found = best < count
    places = np.where(found, best, 0)
    if greatest:
        places = np.where(found, count - 1 - best, 0)
    rows = order[places] if count else places
    return column.take(pa.array(rows, mask=None if found.all() else ~found))


def _words(column: pa.Array) -> list[Words]:
    """Return words that compare as the values do; for floats -0.0 is below 0.0, so that the extreme is unique."""
    if pa.types.is_floating(column.type):
        bits = doubles_of(column, exact=True).view(np.uint64)
        sign = np.uint64(1 << 63)
        return [np.where(bits >= sign, ~bits, bits | sign)]
    return order_words(column, ColumnOrder(0, descending=False, nulls_first=True))


def _lowest(ranks: Ints, frames: Frames, nothing: int) -> Ints:
    """Return the lowest rank of each frame."""
    lengths = frames.ends - frames.starts
    found = np.full(len(lengths), nothing, dtype=np.int64)
    levels = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
    level, table = 0, ranks
    while True:
        mine = np.flatnonzero((levels == level) & (lengths > 0))
        if len(mine):
            starts, ends = frames.starts[mine], frames.ends[mine] - (1 << level)
            found[mine] = np.minimum(table[starts], table[ends])
        if level >= int(levels.max(initial=0)):
            return found
        half = 1 << level
        table = np.minimum(table[:-half], table[half:])
        level += 1
