"""Positions of messages as integers, ranges of positions, and the set of positions that a queue ever handed out. Pure
functions.

A position packs a partition and an offset into one 64-bit integer, so that positions sort by partition and then by
offset, and adjacent offsets are adjacent integers. All ranges are half open.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

OFFSET_BITS = 48
OFFSET_MASK = (1 << OFFSET_BITS) - 1
TURN_BITS = 6
NONE: Places = np.empty(0, dtype=np.int64)


def place_of(partition: int, offset: int) -> int:
    """Return the position of one message."""
    return partition << OFFSET_BITS | offset


def partition_of(place: int) -> int:
    """Return the partition of a position."""
    return place >> OFFSET_BITS


def offset_of(place: int) -> int:
    """Return the offset of a position in its partition."""
    return place & OFFSET_MASK


def shown(place: int) -> str:
    """Return a position as text: partition and offset, such as 0-17."""
    return f"{partition_of(place)}-{offset_of(place)}"


def in_turns(places: Places) -> Places:
    """Return the order in which positions are handed out: log order, round-robin over the partitions by blocks of
    offsets. No partition starves, and adjacent positions stay together, so that many positions form few ranges."""
    return np.lexsort((places, (places & OFFSET_MASK) >> TURN_BITS))


def to_ranges(places: Places) -> tuple[list[int], list[int]]:
    """Return positions as ranges in the same order: the first position of each range, and the end."""
    if len(places) < 2:
        return places.tolist(), (places + 1).tolist()
    breaks = np.flatnonzero(np.diff(places) != 1)
    firsts = places[np.concatenate(([0], breaks + 1))]
    ends = places[np.concatenate((breaks, [len(places) - 1]))] + 1
    return firsts.tolist(), ends.tolist()


def from_ranges(firsts: Sequence[int], ends: Sequence[int]) -> Places:
    """Return the positions of some ranges, in the order given."""
    if len(firsts) == 1:
        return np.arange(firsts[0], ends[0], dtype=np.int64)
    if not len(firsts):
        return NONE
    return np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in zip(firsts, ends, strict=True)])


class Ranges:
    """A set of positions as disjoint, non-adjacent ranges: its size depends on the number of ranges, not of positions."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._arrays: tuple[Places, Places] | None = None
        for first, end in ranges:
            self.add(first, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and (self._firsts, self._ends) == (other._firsts, other._ends)

    __hash__ = None  # type: ignore[assignment]

    def add(self, first: int, end: int) -> None:
        """Add all positions from `first` up to but not including `end`."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]
        self._arrays = None

    def contains(self, places: Places) -> Mask:
        """Return which of these positions are in the set."""
        if not self._firsts:
            return np.zeros(len(places), dtype=bool)
        if self._arrays is None:
            self._arrays = np.array(self._firsts, dtype=np.int64), np.array(self._ends, dtype=np.int64)
        firsts, ends = self._arrays
        at = np.searchsorted(firsts, places, side="right") - 1
        found: Mask = (at >= 0) & (places < ends[at])
        return found

    def first_outside(self, place: int) -> int:
        """Return the first position at or after this one that is not in the set."""
        at = bisect_right(self._firsts, place) - 1
        return self._ends[at] if at >= 0 and place < self._ends[at] else place
