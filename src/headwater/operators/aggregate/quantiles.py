"""Approximate quantiles of a group: Greenwald-Khanna summaries, merged in batches.

A summary is a list of tuples (value, gap, slack), ascending. The gap is the number of values that a tuple represents:
those above the value of the previous tuple, up to its own. The sum of gaps up to a tuple is the least rank that its
value may have; adding the slack gives the greatest. **Invariant**: for every tuple gap + slack <= max(1, 2 * n /
accuracy), where n is the number of values; so for any rank there is a tuple whose own rank differs by at most n /
accuracy. Three operations preserve it:

- a single value is a tuple of gap 1 and slack 0;
- when two summaries are merged, a tuple may come after as many values of the other summary as the next tuple there
  represents, less one: its slack grows by gap + slack - 1 of that tuple. The bounds of both add up to the bound of the
  merged summary;
- a tuple is merged into the next one, which then represents its values too, where the invariant leaves room for it.

A value that occurs many times may exceed the bound: its first tuple obeys the invariant, and a second tuple has all
other occurrences, whose ranks are off by no more than that of the value itself. The least value is never merged into
another.

Summaries are compressed only when they have more than `4 * accuracy` tuples (at least 64), so results over fewer
distinct values are exact. The state of a summary depends on how its values were partitioned; the invariant does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.operators.aggregate.sketches import Lane, flattened, listed
from headwater.operators.zset import numpy_columns
from headwater.operators.zset.exact_sums import Bools, Ints

_TUPLES_PER_ACCURACY = 4
_TUPLES_MIN = 64


@dataclass(frozen=True, eq=False)
class _Summaries:
    """The tuples of all groups, concatenated; ordered by owner, then by value."""

    owners: Ints
    values: Lane
    gaps: Ints
    slacks: Ints

    def take(self, places: Ints | Bools) -> _Summaries:
        return _Summaries(self.owners[places], self.values[places], self.gaps[places], self.slacks[places])

    def __len__(self) -> int:
        return len(self.owners)


@dataclass(frozen=True)
class Quantiles:
    """Summary of values of a type, with rank errors of at most 1 / `accuracy` of the number of values."""

    kind: pa.DataType
    accuracy: int
    shares: tuple[float, ...]
    """Requested quantiles as fractions: 0.5 is the median."""
    many: bool
    """Whether the result is a list."""

    def __post_init__(self) -> None:
        if not summed_up(self.kind):
            raise TypeError(f"quantiles of type {self.kind} are not supported")

    @property
    def repeatable(self) -> bool:
        return False

    @property
    def bound(self) -> str:
        return f"a value whose rank is off by 1/{self.accuracy} of the values at most"

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """Types of the values, gaps and slacks; gaps are omitted where all are 1, and slacks where all are 0."""
        value = pa.float64() if pa.types.is_floating(self.kind) else pa.int64()
        return pa.list_(value), pa.list_(pa.int64()), pa.list_(pa.int64())

    @property
    def result(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.kind)) if self.many else self.kind

    def collect(self, values: pa.Array, weights: Ints, owners: Ints, count: int) -> list[pa.Array]:
        lane: Lane
        if pa.types.is_floating(self.kind):
            lane = numpy_columns.floats(values)
        elif pa.types.is_decimal(self.kind):
            lane = numpy_columns.words(values)[0].view(np.int64)
        else:
            lane = numpy_columns.integers(values)
        order = np.lexsort((lane, owners))
        found = _Summaries(owners[order], lane[order], weights[order], np.zeros(len(order), dtype=np.int64))
        heavy = np.flatnonzero(found.gaps > 1)
        if len(heavy):  # the first occurrence gets a tuple of its own
            twice = np.repeat(np.arange(len(found)), 1 + (found.gaps > 1))
            first = np.concatenate(([True], twice[1:] != twice[:-1]))
            found = found.take(twice)
            found = _Summaries(found.owners, found.values, np.where(first, 1, found.gaps - 1), found.slacks)
        return self._packed_state(self._thinned(_without_repeats(found), count), count)

    def merge(self, states: Sequence[pa.Array], owners: Ints, count: int) -> list[pa.Array]:
        values, sizes = flattened(states[0])
        found = _Summaries(
            np.repeat(owners, sizes),
            values,
            _filled(states[1], sizes, 1),
            _filled(states[2], sizes, 0),
        )
        there = np.flatnonzero(sizes)
        of_cell = owners[there]
        # The parts of a group are numbered and merged pairwise.
        firsts = np.flatnonzero(np.diff(of_cell, prepend=-1))
        number = np.arange(len(there)) - np.repeat(firsts, np.diff(firsts, append=len(there)))
        part = np.repeat(number, sizes[there])
        while len(part) and part.max() > 0:
            found, part = _paired(found, part)
        return self._packed_state(self._thinned(_without_repeats(found), count), count)

    def finish(self, states: Sequence[pa.Array]) -> pa.Array:
        values, sizes = flattened(states[0])
        count = len(sizes)
        there = sizes > 0
        starts = (np.cumsum(sizes) - sizes)[there]
        owners = np.repeat(np.arange(np.count_nonzero(there)), sizes[there])
        least, greatest, worst = _ranks(
            values, _filled(states[1], sizes, 1), _filled(states[2], sizes, 0), owners, starts
        )
        ends = np.cumsum(sizes)[there] - 1
        total = least[ends] if len(ends) else np.zeros(0, dtype=np.int64)
        answers = np.zeros((count, len(self.shares)), dtype=values.dtype)
        for column, share in enumerate(self.shares):
            wanted = np.maximum(np.ceil(share * total).astype(np.int64), 1)
            reach = worst // 2 if share else 0  # the minimum and maximum are exact
            within = greatest <= (wanted + reach)[owners]
            chosen = np.where(within, np.arange(len(values)), -1)
            if len(starts):
                answers[there, column] = values[np.maximum(np.maximum.reduceat(chosen, starts), starts)]
        cells = self._typed(answers.ravel() if self.many else answers[:, 0])
        if not self.many:
            return cells if there.all() else pc.if_else(pa.array(there), cells, pa.scalar(None, self.kind))
        offsets = np.arange(count + 1, dtype=np.int32) * len(self.shares)
        mask = None if there.all() else pa.array(~there)
        return pa.ListArray.from_arrays(pa.array(offsets), cells, type=self.result, mask=mask)

    def _typed(self, lane: Lane) -> pa.Array:
        if pa.types.is_decimal(self.kind):
            return numpy_columns.decimals(lane.view(np.uint64), lane >> 63, self.kind)
        if self.kind.bit_width == 64:
            return numpy_columns.array(lane, self.kind)
        narrow = pa.types.is_date32(self.kind) or pa.types.is_time32(self.kind)
        made = pa.array(lane).cast(pa.int32() if narrow else self.kind)
        return made.view(self.kind) if narrow else made

    def _packed_state(self, found: _Summaries, count: int) -> list[pa.Array]:
        sizes = np.bincount(found.owners, minlength=count)
        present = sizes > 0
        made = [listed(found.values, sizes, present)]
        for lane, usual in ((found.gaps, 1), (found.slacks, 0)):
            differs = np.zeros(count, dtype=np.bool_)
            differs[found.owners[lane != usual]] = True
            made.append(listed(lane[differs[found.owners]], np.where(differs, sizes, 0), present))
        return made

    def _thinned(self, found: _Summaries, count: int) -> _Summaries:
        """Compress summaries that have too many tuples, as far as the invariant allows."""
        sizes = np.bincount(found.owners, minlength=count)
        long = sizes > max(_TUPLES_MIN, _TUPLES_PER_ACCURACY * self.accuracy)
        if not long.any():
            return found
        total = np.bincount(found.owners, found.gaps, minlength=count)
        room = np.where(long, np.floor(2.0 * total / self.accuracy), 0).astype(np.int64)
        even = True
        while True:
            before = len(found)
            found = _halved(found, room, even=even)
            found = _halved(found, room, even=not even)
            if before - len(found) <= before // 16:
                return found


def summed_up(kind: pa.DataType) -> bool:
    """Whether values of a type fit a 64-bit word whose order is theirs."""
    types = pa.types
    return bool(
        types.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64())
        or (types.is_decimal128(kind) and kind.precision <= 18)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_time64(kind)
    )


def _filled(cells: pa.Array, sizes: Ints, usual: int) -> Ints:
    """Return the numbers of all tuples; a cell without numbers has the value `usual` throughout."""
    values, own = flattened(cells)
    if not len(values):
        return np.full(int(sizes.sum()), usual, dtype=np.int64)
    made = np.full(int(sizes.sum()), usual, dtype=np.int64)
    made[np.repeat(own > 0, sizes)] = values
    return made


def _ranks(values: Lane, gaps: Ints, slacks: Ints, owners: Ints, starts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the least and greatest rank of each tuple, and the maximum rank distance of adjacent tuples for each group.

    Distances to the second tuple of a frequent value do not count.
    """
    upto = np.cumsum(gaps)
    before = (upto[starts] - gaps[starts]) if len(starts) else np.zeros(0, dtype=np.int64)
    least = upto - before[owners] if len(owners) else upto
    apart = gaps + slacks - 1
    apart[1:][_same(values, owners)] = 0
    worst = np.maximum.reduceat(apart, starts) if len(starts) else np.zeros(0, dtype=np.int64)
    return least, least + slacks, worst + 1


def _same(values: Lane, owners: Ints) -> Bools:
    """Return a mask, from the second tuple on, of the tuples with the value and group of the previous tuple."""
    same: Bools = (values[1:] == values[:-1]) | ((values[1:] != values[1:]) & (values[:-1] != values[:-1]))
    same &= owners[1:] == owners[:-1]
    return same


def _without_repeats(found: _Summaries) -> _Summaries:
    """Reduce the tuples of each value of a group to at most two: the first, and one for all other occurrences."""
    if not len(found):
        return found
    same = np.concatenate(([False], _same(found.values, found.owners)))
    second = same & ~np.concatenate(([False], same[:-1]))
    starts = np.flatnonzero(~same | second)
    ends = np.append(starts[1:], len(found)) - 1
    gaps = np.add.reduceat(found.gaps, starts)
    return _Summaries(found.owners[ends], found.values[ends], gaps, found.slacks[ends])


def _paired(found: _Summaries, part: Ints) -> tuple[_Summaries, Ints]:
    """Merge parts 0 and 1 of each group, parts 2 and 3, and so on."""
    side, pair = part & 1, part >> 1
    # Tuples come by group and part, so that among equal values those of the first part stay first.
    whole = found.owners * (int(pair.max()) + 1) + pair
    order = np.lexsort((found.values, whole))
    found, side, pair = found.take(order), side[order], pair[order]
    count = len(found)
    slacks = found.slacks.copy()
    for mine in (0, 1):
        # The next tuple of the other side, if it belongs to the same pair.
        other = np.where(side == mine, count, np.arange(count))
        following = np.minimum.accumulate(other[::-1])[::-1]
        places = np.flatnonzero((side == mine) & (following < count))
        after = following[places]
        alike = (found.owners[after] == found.owners[places]) & (pair[after] == pair[places])
        places, after = places[alike], after[alike]
        slacks[places] += found.gaps[after] + found.slacks[after] - 1
    made = _Summaries(found.owners, found.values, found.gaps, slacks)
    return made, pair


def _halved(found: _Summaries, room: Ints, *, even: bool) -> _Summaries:
    """Merge every second tuple into the next one, where there is room; the first tuple of a group stays."""
    count = len(found)
    if count < 3:
        return found
    place = np.arange(count)
    inner = np.concatenate(([False], found.owners[1:] == found.owners[:-1]))
    joined = found.gaps[:-1] + found.gaps[1:] + found.slacks[1:]
    goes = inner[:-1] & inner[1:] & ((place[:-1] & 1) == (0 if even else 1))
    goes &= joined <= room[found.owners[:-1]]
    gone = np.flatnonzero(goes)
    if not len(gone):
        return found
    gaps = found.gaps.copy()
    gaps[gone + 1] += gaps[gone]
    stays = np.ones(count, dtype=np.bool_)
    stays[gone] = False
    return _Summaries(found.owners[stays], found.values[stays], gaps[stays], found.slacks[stays])
