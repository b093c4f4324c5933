"""Segments: queries as numeric columns, immutable but mergeable, and the index from an atom to the queries that need it.

A query is indexed by one of its sets of atoms: the set expected in the fewest documents. That set changes as documents
are counted: `derive` chooses again, for all queries of a segment at once.
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
"""Types of the columns that are neither offsets nor 32-bit integers."""
ALSO_MAX = 4
"""Maximum size of a second atom set that is checked before a candidate is evaluated; a word in four fields is such a set."""


@dataclass(frozen=True)
class QuerySegment:
    """Queries by slot. `x_at` has the start of each slot's rows in the columns `x_*`, and the end of the last slot's."""

    numbers: npt.NDArray[np.int32]
    """Number of each query in the index."""
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
    """Offsets of the atom sets of each query; a query that scans has no set."""
    pick_at: Ints
    """Offsets of the atoms of each set."""
    pick_atom: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return sum(getattr(self, name).nbytes for name in self.__dataclass_fields__)

    @staticmethod
    def of(programs: Programs) -> QuerySegment:
        """Build the segment of new queries."""
        made = {}
        for name in QuerySegment.__dataclass_fields__:
            kind = np.int64 if name.endswith("_at") else _KINDS.get(name, np.int32)
            made[name] = np.array(getattr(programs, name), dtype=kind)
        return QuerySegment(**made)

    def only(self, slots: Ints) -> QuerySegment:
        """Return the segment of some of the slots."""
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
        """Append another segment."""
        made = []
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            made.append(
                np.append(mine, theirs[1:] + mine[-1]) if name.endswith("_at") else np.append(mine, theirs)
            )
        return QuerySegment(*made)


@dataclass(frozen=True)
class AtomIndex:
    """Index from atoms to the queries of a segment."""

    atoms: Ints
    """Atoms, ascending."""
    at: Ints
    """Start of the slots of each atom in `slots`, and the end of the last."""
    slots: npt.NDArray[np.int32]
    also: npt.NDArray[np.int32]
    """Second set of atoms (words or patterns) per slot, padded with NONE: a matching document has one of the atoms,
    unless all are NONE."""
    scanning: npt.NDArray[np.int32]
    """Slots that are not reachable by an atom."""
    range_atoms: Ints
    """Atoms that are ranges of more than one value."""
    documents: int
    """Number of documents that had been counted when the index was built."""


def derive(segment: QuerySegment, atoms: Atoms) -> AtomIndex:
    """Choose for each query the atom set expected in the fewest documents, and build the index."""
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
    """Return the next best set of each slot that consists of few words or patterns."""
    kinds = atoms.kind[segment.pick_atom]
    words = np.append(0, np.cumsum((kinds == TERM) | (kinds == PATTERN)))
    fits = (
        (words[segment.pick_at[1:]] - words[segment.pick_at[:-1]] == sizes)
        & (sizes > 0)
        & (sizes <= ALSO_MAX)
    )
    others = np.ones(len(order), dtype=np.bool_)
    others[firsts] = False  # the best set is the one in the index
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
    """Return the new offsets of the rows of the chosen slots, and the current indices of these rows."""
    counts = at[chosen + 1] - at[chosen]
    ends = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends, spread(at[chosen], counts)
