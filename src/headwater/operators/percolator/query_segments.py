"""Segments: queries as columns of numbers, never changed but merged, and the way from an atom to the queries it can be of.

A query is found by one of its sets of atoms, the one that the fewest documents are expected to have. Which that is
changes with the documents that pass: `derive` chooses anew, over all queries of a segment at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.operators.percolator.query_programs import Programs
from headwater.operators.percolator.terms import PATTERN, RANGE, TERM, Atoms
from headwater.operators.percolator.tokens import spread

Ints = npt.NDArray[np.int64]
NONE = -1
_KINDS: dict[str, Any] = {
    "leaf_parent": np.int16,
    "leaf_boost": np.float64,
    "node_parent": np.int16,
    "node_depth": np.int16,
}
"""The types of columns that are neither places nor numbers of 32 bits."""
ALSO_MAX = 4
"""Of how many atoms another set may be that is looked at before a candidate is evaluated: a word in four fields is one."""


@dataclass(frozen=True)
class QuerySegment:
    """Queries by slot. `x_at` says where the rows of each slot lie in the columns `x_*`, with the end of the last."""

    numbers: npt.NDArray[np.int32]
    """The number of each query in the index."""
    leaf_at: Ints
    leaf_atom: npt.NDArray[np.int32]
    leaf_parent: npt.NDArray[np.int16]
    leaf_weight: npt.NDArray[np.int32]
    leaf_boost: npt.NDArray[np.float64]
    node_at: Ints
    node_parent: npt.NDArray[np.int16]
    node_weight: npt.NDArray[np.int32]
    node_least: npt.NDArray[np.int32]
    node_depth: npt.NDArray[np.int16]
    choice_at: Ints
    """The sets of each query; none if it scans."""
    pick_at: Ints
    """The atoms of each set."""
    pick_atom: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """How much memory its columns take."""
        return sum(getattr(self, name).nbytes for name in self.__dataclass_fields__)

    @staticmethod
    def of(programs: Programs) -> QuerySegment:
        """The segment of new queries."""
        made = {}
        for name in QuerySegment.__dataclass_fields__:
            kind = np.int64 if name.endswith("_at") else _KINDS.get(name, np.int32)
            made[name] = np.array(getattr(programs, name), dtype=kind)
        return QuerySegment(**made)

    def only(self, slots: Ints) -> QuerySegment:
        """The segment of some of the slots."""
        leaf_at, leaves = _rows(self.leaf_at, slots)
        node_at, nodes = _rows(self.node_at, slots)
        choice_at, choices = _rows(self.choice_at, slots)
        pick_at, picks = _rows(self.pick_at, choices)
        rows = {"leaf": leaves, "node": nodes, "pick": picks}
        made: dict[str, Any] = {
            "leaf_at": leaf_at,
            "node_at": node_at,
            "choice_at": choice_at,
            "pick_at": pick_at,
        }
        for name in self.__dataclass_fields__.keys() - made.keys():
            made[name] = getattr(self, name)[rows.get(name.partition("_")[0], slots)]
        return QuerySegment(**made)

    def and_then(self, other: QuerySegment) -> QuerySegment:
        """Both, one after the other."""
        made = []
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            made.append(
                np.append(mine, theirs[1:] + mine[-1]) if name.endswith("_at") else np.append(mine, theirs)
            )
        return QuerySegment(*made)


@dataclass(frozen=True)
class AtomIndex:
    """By which atoms the queries of a segment are found."""

    atoms: Ints
    """The atoms, in order."""
    at: Ints
    """Where the slots of each atom lie."""
    slots: npt.NDArray[np.int32]
    also: npt.NDArray[np.int32]
    """Of each slot other atoms, words or patterns, of which a document must have one, filled up with NONE; all NONE if there are no such."""
    scanning: npt.NDArray[np.int32]
    """The slots that no atom leads to."""
    range_atoms: Ints
    """Those of the atoms that are ranges of more than one value."""
    documents: int
    """How many documents had been seen when it was made."""


def derive(segment: QuerySegment, atoms: Atoms) -> AtomIndex:
    """Choose the set of each query that the fewest documents are expected to have."""
    costs = atoms.costs()
    sizes = np.diff(segment.pick_at)
    sums = np.append(0.0, np.cumsum(costs[segment.pick_atom]))
    cost = sums[segment.pick_at[1:]] - sums[segment.pick_at[:-1]]
    counts = np.diff(segment.choice_at)
    owner = np.repeat(np.arange(len(segment), dtype=np.int64), counts)
    order = np.lexsort((np.arange(len(cost)), cost, owner))
    firsts = segment.choice_at[:-1][counts > 0]
    best = order[firsts]
    at, picks = _rows(segment.pick_at, best)
    found = segment.pick_atom[picks].astype(np.int64)
    slots = np.repeat(owner[best], np.diff(at))
    by_atom = np.lexsort((slots, found))
    found, slots = found[by_atom], slots[by_atom]
    unique, starts = np.unique(found, return_index=True)
    kinds = atoms.kind[unique]
    wide = (kinds == RANGE) & (atoms.low[unique] != atoms.high[unique])
    return AtomIndex(
        unique,
        np.append(starts, len(found)).astype(np.int64),
        slots.astype(np.int32),
        _also(segment, atoms, order, firsts, sizes, owner),
        np.flatnonzero(counts == 0).astype(np.int32),
        unique[wide],
        atoms.documents,
    )


def _also(
    segment: QuerySegment, atoms: Atoms, order: Ints, firsts: Ints, sizes: Ints, owner: Ints
) -> npt.NDArray[np.int32]:
    """The next best set of each slot that is of few words or patterns."""
    kinds = atoms.kind[segment.pick_atom]
    words = np.append(0, np.cumsum((kinds == TERM) | (kinds == PATTERN)))
    fits = (
        (words[segment.pick_at[1:]] - words[segment.pick_at[:-1]] == sizes)
        & (sizes > 0)
        & (sizes <= ALSO_MAX)
    )
    others = np.ones(len(order), dtype=np.bool_)
    others[firsts] = False  # the best one is what the slot is found by
    rest = order[others]
    rest = rest[fits[rest]]
    slots = owner[rest]
    first = np.ones(len(rest), dtype=np.bool_)
    first[1:] = slots[1:] != slots[:-1]
    rest, slots = rest[first], slots[first]
    also = np.full((len(segment), ALSO_MAX), NONE, dtype=np.int32)
    for column in range(ALSO_MAX):
        has = sizes[rest] > column
        also[slots[has], column] = segment.pick_atom[segment.pick_at[rest[has]] + column]
    return also


def _rows(at: Ints, chosen: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Where the rows of the chosen slots will lie, and where they lie now."""
    counts = at[chosen + 1] - at[chosen]
    ends = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends, spread(at[chosen], counts)
