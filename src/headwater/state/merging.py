"""When runs are merged: geometrically, so that there are few and each row is rewritten few times. Pure.

A run is merged with its older neighbours as long as what is merged so far has at least half the rows of the next. So
what stays apart more than halves from run to run: n rows in at most log2(n) + 1 runs. And a row that is merged finds
itself in a run at least half as large again, but for those of the newest run: a row is rewritten O(log n) times.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.state.refs import RunRef

NOW_ROWS_MAX = 200_000
"""Merges of fewer rows take milliseconds, and are done within the tick; larger ones are left to the background."""


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


def to_merge(refs: Sequence[RunRef], now_rows_max: int = NOW_ROWS_MAX) -> list[Merge]:
    """The merges that runs of one arrangement and one range of hashes, oldest first, call for; they do not overlap.

    Runs that a background merge is at work on are left out by the caller, together with all that are older.
    """
    groups: list[tuple[int, int]] = []  # where each begins, and its rows
    for place, ref in enumerate(refs):
        start, rows = place, ref.rows
        while groups and 2 * rows >= groups[-1][1]:
            start, more = groups.pop()
            rows += more
        groups.append((start, rows))
    groups.append((len(refs), 0))
    return [
        Merge(start, stop, rows, rows < now_rows_max)
        for (start, rows), (stop, _) in itertools.pairwise(groups)
        if stop - start > 1
    ]
