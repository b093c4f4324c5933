"""The merge policy of runs: geometric, so that there are few runs and each row is rewritten few times. Pure functions.

Small runs: a run is merged with its older neighbours as long as the merged rows are at least half as many as those of
the next run. So the sizes of the remaining runs more than halve from run to run, and merging at least multiplies the
size of a row's run by 1.5, except for rows of the newest run: a row is rewritten O(log n) times.

Tiny runs: the cost of merging them hardly depends on their rows, so they are left until there are a few, which are then
merged at once.

Large runs are expensive to rewrite, so they wait for others of their size: runs are in one size class if they are
within a factor of `fan` of each other. `fan` neighbours of a class are merged into one of the next class, together with
the smaller runs between them; if that makes `fan` of the next class, these are merged in the same step. Probes then
read up to `fan` runs per class, and a row is rewritten at most once per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOW_ROWS_MAX = 200_000
"""Merges of fewer rows take milliseconds and are done within the tick; larger ones are done in the background."""


TINY_ROWS_MAX = 2_048
"""Merges of fewer rows all take about the same time."""

FEW = 8
"""Number of tiny runs that triggers a merge: probing a run that does not contain the key takes some microseconds."""

FAN = 4
"""Number of large runs of one size class that triggers a merge."""


@dataclass(frozen=True)
class Merge:
    """A merge of runs [start, stop) into one; `now` if within the tick."""

    start: int
    stop: int
    rows: int
    now: bool

    @property
    def slice(self) -> slice:
        """The runs to merge, as a slice of the given runs."""
        return slice(self.start, self.stop)


def to_merge(
    sizes: Sequence[int], now_rows_max: int = NOW_ROWS_MAX, fan: int = FAN, few: int = FEW
) -> list[Merge]:
    """Return the merges due for the runs of one arrangement, given their rows, oldest first; merges do not overlap.

    The caller leaves out runs that a background merge is working on, together with all older ones.
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
            waiting += 1  # the result of merging smaller runs completes the class: all are merged in one step
        if waiting >= fan:
            first = start
    if first < small:
        return [Merge(first, small, sum(sizes[first:small]), now=False), *found]
    return found


def _settled(sizes: Sequence[int], small: int, now_rows_max: int, few: int) -> list[Merge]:
    """Return the merges of small runs; tiny runs count only once there are a few, and then as one run."""
    tiny = end = len(sizes)
    while tiny > small and sizes[tiny - 1] < TINY_ROWS_MAX:
        tiny -= 1
    if few == 1 or tiny == end:
        return _halving(sizes[small:], small, now_rows_max)
    if end - tiny < few:
        return []
    found = _halving([*sizes[small:tiny], sum(sizes[tiny:])], small, now_rows_max)
    # Runs settled before stay settled: the only possible merge includes the tiny runs.
    start = found[-1].start if found else tiny
    rows = sum(sizes[start:])
    return [Merge(start, end, rows, rows < now_rows_max)]


def _halving(sizes: Sequence[int], offset: int, now_rows_max: int) -> list[Merge]:
    groups: list[tuple[int, int]] = []  # start and rows of each
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
