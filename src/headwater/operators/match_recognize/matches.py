"""The matches found in sorted rows: the rows of each match, and the variable to which each row is mapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headwater.core.hashing import Indices
from headwater.operators.match_recognize.automaton import Automaton
from headwater.operators.match_recognize.spec import MatchSpec, Variables
from headwater.operators.zset.exact_sums import Bools


@dataclass(frozen=True, eq=False)
class FoundMatches:
    """Matches, concatenated, with the variables to which their rows are mapped.

    `numbers` counts the matches of a partition from 1. A match that timed out is included up to the row it had reached.
    """

    partitions: Indices
    starts: Indices
    lengths: Indices
    numbers: Indices
    timed_out: Bools
    labels: npt.NDArray[np.int64]
    """Variable of each row of the matches, by number."""
    shown: Bools
    """Mask of the rows of the matches that are not excluded from the output."""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def offsets(self) -> Indices:
        """Index at which the rows of each match begin."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def owners(self) -> Indices:
        """Match index of each row."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def rows(self) -> Indices:
        """Indices of the rows of the matches among the sorted rows."""
        places: Indices = np.arange(len(self.labels)) - self.offsets[self.owners] + self.starts[self.owners]
        return places


@dataclass(frozen=True, eq=False)
class Selection:
    """The rows of matches that are mapped to some variables: their indices, and the number of them before each row."""

    places: Indices
    before: Indices

    @staticmethod
    def of(spec: MatchSpec, found: FoundMatches, variables: Variables) -> Selection:
        """Select the rows that are mapped to one of the variables."""
        if variables is None:
            return Selection(np.arange(len(found.labels)), np.arange(len(found.labels) + 1))
        wanted = np.array([name in variables for name in spec.variables], dtype=np.bool_)
        mapped = wanted[found.labels]
        before = np.zeros(len(mapped) + 1, dtype=np.int64)
        np.cumsum(mapped, out=before[1:])
        return Selection(np.flatnonzero(mapped), before)


class MatchCollector:
    """Collects matches, partition by partition."""

    def __init__(self, automaton: Automaton) -> None:
        self._labels = np.array((*automaton.labels, 0), dtype=np.int64)
        self._shown = ~np.array((*automaton.excluded, False), dtype=np.bool_)
        self._heads: list[tuple[int, int, int, int, bool]] = []
        self._paths: list[Sequence[int]] = []
        self.seen: list[int] = []

    def add(
        self,
        partition: int,
        start: int,
        path: Sequence[int],
        number: int,
        seen: int,
        *,
        timed_out: bool = False,
    ) -> None:
        """Add a match, given the pattern positions of its rows; `seen` is the boundary up to which rows were examined."""
        self._heads.append((partition, start, len(path), number, timed_out))
        self._paths.append(path)
        self.seen.append(seen)

    def found(self) -> FoundMatches:
        """Return all matches, by partition and in the order in which they begin."""
        heads = np.array(self._heads, dtype=np.int64).reshape(-1, 5)
        paths = np.array([place for path in self._paths for place in path], dtype=np.int64)
        return FoundMatches(
            heads[:, 0],
            heads[:, 1],
            heads[:, 2],
            heads[:, 3],
            heads[:, 4] != 0,
            self._labels[paths],
            self._shown[paths],
        )

    @property
    def starts(self) -> Indices:
        """Start row of each match."""
        return np.array([head[1] for head in self._heads], dtype=np.int64)
