"""When runs are merged: geometrically, so that there are few and each row is rewritten few times. Pure.

Small runs: a run is merged with its older neighbours as long as what is merged so far has at least half the rows of
the next. So what stays apart more than halves from run to run, and a row that is merged finds itself in a run at least
half as large again, but for those of the newest run: a row is rewritten O(log n) times.

Tiny runs: what a merge of them costs hardly depends on their rows, and so they are let stand until there are a few, which
then become one.

Large runs cost real time to rewrite, so they wait for company: runs are of one size class if they are within a factor of
`fan` of each other, and `fan` neighbours of a class become one of the next, with what is smaller beside them; if that makes
`fan` of the next, these become one with them at once. Probes then meet up to `fan` runs per class, and a row is rewritten at most
once per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOW_ROWS_MAX = 200_000
"""Merges of fewer rows take milliseconds, and are done within the tick; larger ones are left to the background."""


TINY_ROWS_MAX = 2_048
"""Merges of fewer rows take about the same time, however many they are."""

FEW = 8
"""How many tiny runs call for a merge: a probe of one that does not have the key takes some microseconds."""

FAN = 4
"""How many large runs of a size are let stand before they are merged."""


@dataclass(frozen=True)
class Merge:
    """Runs [start, stop) are to become one; `now` if within the tick."""

    start: int
    stop: int
    rows: int
    now: bool

    @property
    def slice(self) -> slice:
        """The runs, as a slice of those that were given."""
        return slice(self.start, self.stop)


def to_merge(
    sizes: Sequence[int], now_rows_max: int = NOW_ROWS_MAX, fan: int = FAN, few: int = FEW
) -> list[Merge]:
    """The merges that runs of one arrangement call for, by their rows, oldest first; they do not overlap.

    Runs that a background merge is at work on are left out by the caller, together with all that are older.
    """
    small = len(sizes)
    while small and sizes[small - 1] < now_rows_max:
        small -= 1
    found = _settled(sizes, small, now_rows_max, few)
    classes = [_size_class(rows, now_rows_max, fan) for rows in sizes[:small]]
    start = first = small
    for size in range(max(classes, default=-1) + 1):
        while start and classes[start - 1] <= size:
            start -= 1
        waiting = classes[start:first].count(size)
        if first < small and _size_class(sum(sizes[first:small]), now_rows_max, fan) == size:
            waiting += (
                1  # what comes of smaller ones makes them enough: then all become one, without a step between
            )
        if waiting >= fan:
            first = start
    if first < small:
        return [Merge(first, small, sum(sizes[first:small]), now=False), *found]
    return found


def _settled(sizes: Sequence[int], small: int, now_rows_max: int, few: int) -> list[Merge]:
    """The merges of small runs: of tiny ones once there are a few, which then are one."""
    tiny = end = len(sizes)
    while tiny > small and sizes[tiny - 1] < TINY_ROWS_MAX:
        tiny -= 1
    if few == 1 or tiny == end:
        return _halving(sizes[small:], small, now_rows_max)
    if end - tiny < few:
        return []
    found = _halving([*sizes[small:tiny], sum(sizes[tiny:])], small, now_rows_max)
    # what was settled before stays so: the only merge there can be has the tiny runs in it
    start = found[-1].start if found else tiny
    rows = sum(sizes[start:])
    return [Merge(start, end, rows, rows < now_rows_max)]


def _halving(sizes: Sequence[int], offset: int, now_rows_max: int) -> list[Merge]:
    groups: list[tuple[int, int]] = []  # where each begins, and its rows
    for place, size in enumerate(sizes):
        start, rows = place, size
        while groups and 2 * rows >= groups[-1][1]:
            start, more = groups.pop()
            rows += more
        groups.append((start, rows))
    if not groups:
        return []
    stops = [start for start, _ in groups[1:]] + [len(sizes)]
    return [
        Merge(offset + start, offset + stop, rows, rows < now_rows_max)
        for (start, rows), stop in zip(groups, stops, strict=True)
        if stop - start > 1
    ]


def _size_class(rows: int, least: int, fan: int) -> int:
    found = 0
    while rows >= least * fan:
        rows //= fan
        found += 1
    return found
