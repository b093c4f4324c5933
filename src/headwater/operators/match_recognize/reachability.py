"""The possible outcomes of each pattern position at each row, computed backwards from the last row of a partition.

Each position has two numbers at each row, both boundaries between rows:

- `ends`: the earliest end of a match that continues from there; NOWHERE if there is none. A match that must end before
  some row exists exactly if this earliest one does.
- `examined`: the boundary up to which rows determine that no match exists; OPEN if future rows could change it, because
  the partition ended before the pattern did.

The numbers are computed for all partitions at once, row by row from the ends, in arrays with one column for each
partition. A few long partitions, for which vectorization does not pay, are processed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headwater.core.hashing import Indices
from headwater.operators.match_recognize.automaton import ACCEPT, Automaton, Options
from headwater.operators.match_recognize.partitions import Masks

Boundaries = npt.NDArray[np.int32]

NOWHERE = 2**31 - 1
OPEN = 2**31 - 1

_LANES_MIN = 24
"""Minimum number of partitions for vectorized processing."""


@dataclass(frozen=True, eq=False)
class Reach:
    """Boundaries by position and *cell*: one cell for each row of a partition, indexed by its distance from the end."""

    ends: Boundaries
    examined: Boundaries | None
    lanes: Indices
    """Column of each partition."""
    offsets: Indices
    """Start of the cells of rows, by their distance from the last row of their partition."""

    def cells(self, partitions: Indices, from_end: Indices) -> Indices:
        """Return the cells of rows, given their partitions and the number of rows after them."""
        found: Indices = self.offsets[from_end] + self.lanes[partitions]
        return found


def reach(
    automaton: Automaton, masks: Masks, starts: Indices, ends: Indices, *, examined: bool = False
) -> Reach:
    """Compute the outcomes of every position at every row. Boundaries are counted as rows are."""
    sizes = ends - starts
    order = np.argsort(-sizes, kind="stable")
    lanes = np.empty(len(order), dtype=np.int64)
    lanes[order] = np.arange(len(order))
    found = _Filling(automaton, masks, ends[order], sizes[order], examined)
    found.fill()
    return Reach(found.ends, found.examined, lanes, found.offsets)


class _Filling:
    """Fills the cells of all partitions, ordered from the longest to the shortest."""

    def __init__(
        self, automaton: Automaton, masks: Masks, lane_ends: Indices, lane_sizes: Indices, examined: bool
    ) -> None:
        self._automaton = automaton
        self._masks = masks
        self._lane_ends = lane_ends
        self._lane_sizes = lane_sizes
        # Number of partitions that have a row at each distance from their end.
        deepest = int(lane_sizes.max(initial=0))
        self._active = len(lane_sizes) - np.searchsorted(lane_sizes[::-1], np.arange(deepest), side="right")
        self.offsets = np.cumsum(self._active) - self._active
        cells = int(self._active.sum())
        self.ends = np.full((len(automaton), cells), NOWHERE, dtype=np.int32)
        self.examined = np.zeros((len(automaton), cells), dtype=np.int32) if examined else None

    def fill(self) -> None:
        if not len(self._automaton):
            return
        for depth, count in enumerate(self._active.tolist()):
            if count < _LANES_MIN:
                for lane in range(count):
                    self._lane(lane, depth)
                return
            self._level(depth, count)

    def _level(self, depth: int, count: int) -> None:
        """Process the rows at one distance from the last row of their partition, one of each partition."""
        automaton = self._automaton
        here = slice(self.offsets[depth], self.offsets[depth] + count)
        rows = self._lane_ends[:count] - 1 - depth
        masks = self._masks[rows]
        after = (rows + 1).astype(np.int32)
        below = self.offsets[depth - 1] if depth else 0
        next_cells = slice(below, below + count)
        holds = {
            label: (masks >> masks.dtype.type(label)) & masks.dtype.type(1) != 0
            for label in set(automaton.labels)
        }
        best: dict[Options, Boundaries] = {}
        far: dict[Options, Boundaries] = {}
        for place, label in enumerate(automaton.labels):
            options = automaton.follow[place][depth == 0]
            if options not in best:
                best[options] = self._best(options, after, next_cells, depth)
            np.copyto(self.ends[place, here], best[options], where=holds[label])
            if self.examined is not None:
                # Options as if another row followed, at the end of the partition too.
                open_options = automaton.follow[place][False]
                if open_options not in far:
                    far[open_options] = self._far(open_options, after, next_cells, depth)
                self.examined[place, here] = np.where(holds[label], far[open_options], after)

    def _best(self, options: Options, after: Boundaries, cells: slice, depth: int) -> Boundaries:
        if options and options[-1] == ACCEPT:
            return after
        found: Boundaries | None = None
        if depth:
            for option in options:
                ends = self.ends[option, cells]
                found = ends if found is None else np.minimum(found, ends)
        return np.full(len(after), NOWHERE, dtype=np.int32) if found is None else found

    def _far(self, options: Options, after: Boundaries, cells: slice, depth: int) -> Boundaries:
        places = [option for option in options if option != ACCEPT]
        if not places:
            return after
        assert self.examined is not None
        if not depth:
            return np.full(len(after), OPEN, dtype=np.int32)
        found: Boundaries = self.examined[places[0], cells]
        for place in places[1:]:
            found = np.maximum(found, self.examined[place, cells])
        return found

    def _lane(self, lane: int, depth: int) -> None:
        """Process the remaining rows of one partition, from a distance on."""
        size, end = int(self._lane_sizes[lane]), int(self._lane_ends[lane])
        automaton = self._automaton
        places = range(len(automaton))
        ends = [NOWHERE] * len(automaton)
        examined = [0] * len(automaton)
        if depth:
            before = int(self.offsets[depth - 1]) + lane
            ends = self.ends[:, before].tolist()
            examined = self.examined[:, before].tolist() if self.examined is not None else examined
        masks = self._masks[end - size : end - depth][::-1].tolist()
        all_ends, all_examined = [], []
        after = end - depth + 1
        for away, mask in enumerate(masks, depth):
            after -= 1
            now_ends, now_examined = [NOWHERE] * len(automaton), [after] * len(automaton)
            for place in places:
                if not mask >> automaton.labels[place] & 1:
                    continue
                options = automaton.follow[place][away == 0]
                if options and options[-1] == ACCEPT:
                    now_ends[place] = after
                elif away and options:
                    now_ends[place] = min([ends[option] for option in options])
                if self.examined is not None:
                    following = [option for option in automaton.follow[place][False] if option != ACCEPT]
                    if following:
                        now_examined[place] = (
                            max([examined[option] for option in following]) if away else OPEN
                        )
            ends, examined = now_ends, now_examined
            all_ends.append(ends)
            all_examined.append(examined)
        cells = self.offsets[depth:size] + lane
        self.ends[:, cells] = np.array(all_ends, dtype=np.int32).T
        if self.examined is not None:
            self.examined[:, cells] = np.array(all_examined, dtype=np.int32).T
