"""Vectorized evaluation of candidates, pairs of a query and a document: matches, scores and highlighted words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headwater.operators.percolator.documents import DocumentBatch
from headwater.operators.percolator.query_segments import NONE, AtomIndex, QuerySegment
from headwater.operators.percolator.tokens import spread

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
CANDIDATES_MAX = 1 << 20
"""Maximum number of candidates evaluated at a time, to bound memory."""


@dataclass(frozen=True)
class _Tree:
    """The leaves and nodes of all candidates, concatenated; sums of nodes are computed from the deepest level up."""

    pair: Ints
    """Candidate index of each leaf."""
    leaf: Ints
    under: Ints
    """Parent node of each leaf."""
    met: Bools
    root: Ints
    holds: Bools
    """Whether each node is satisfied."""
    parent: Ints
    levels: list[Ints]
    """Node indices by depth, without the roots."""


def candidates(segment: QuerySegment, anchors: AtomIndex, batch: DocumentBatch) -> list[tuple[Ints, Ints]]:
    """Return slots and documents that may match, in parts of bounded size; a pair may occur twice."""
    anchor, row = _anchored(anchors, batch)
    count = anchors.at[anchor + 1] - anchors.at[anchor]
    parts = []
    for first, last in _parts(count):
        slot = anchors.slots[spread(anchors.at[anchor[first:last]], count[first:last])].astype(np.int64)
        rows = np.repeat(row[first:last], count[first:last])
        also = anchors.also[slot]
        may = also[:, 0] == NONE
        for column in range(also.shape[1]):
            may |= batch.has[batch.line[also[:, column]], rows]
        parts.append((slot[may], rows[may]))
    if len(anchors.scanning):
        every = np.arange(batch.size, dtype=np.int64)
        step = max(1, CANDIDATES_MAX // max(batch.size, 1))
        for begin in range(0, len(anchors.scanning), step):
            slots = anchors.scanning[begin : begin + step].astype(np.int64)
            parts.append((np.repeat(slots, len(every)), np.tile(every, len(slots))))
    return parts


def _anchored(anchors: AtomIndex, batch: DocumentBatch) -> tuple[Ints, Ints]:
    """Return the anchors of documents: the index of each in `anchors`, and the document."""
    place, known = _places(anchors, batch.active)
    count = np.diff(batch.active_at)[known]
    pairs = spread(batch.active_at[:-1][known], count)
    found, rows = [np.repeat(place[known], count)], [batch.pair_row[pairs]]
    atoms = batch.atoms
    for field, points in enumerate(atoms.points):
        if points:
            there = np.flatnonzero(batch.there[field])
            distinct, back = np.unique(batch.values[field, there], return_inverse=True)
            atom = np.array([points.get(value, -1) for value in distinct.tolist()], dtype=np.int64)
            place, known = _places(anchors, atom)
            held = known[back]
            found.append(place[back[held]])
            rows.append(there[held])
    if len(anchors.range_atoms):
        fields = atoms.field[anchors.range_atoms]
        for field in np.unique(fields).tolist():
            its = anchors.range_atoms[fields == field]
            there = np.flatnonzero(batch.there[field])
            there = there[np.argsort(batch.values[field, there], kind="stable")]
            values = batch.values[field, there]
            first = np.searchsorted(values, atoms.low[its], side="left")
            count = np.maximum(np.searchsorted(values, atoms.high[its], side="right") - first, 0)
            found.append(np.repeat(np.searchsorted(anchors.atoms, its), count))
            rows.append(there[spread(first, count)])
    return np.concatenate(found), np.concatenate(rows)


def _places(anchors: AtomIndex, atoms: Ints) -> tuple[Ints, Bools]:
    if not len(anchors.atoms):
        return np.zeros(len(atoms), dtype=np.int64), np.zeros(len(atoms), dtype=np.bool_)
    place = np.minimum(np.searchsorted(anchors.atoms, atoms), len(anchors.atoms) - 1)
    return place, anchors.atoms[place] == atoms


def _parts(count: Ints) -> list[tuple[int, int]]:
    """Split the anchors into ranges that each expand to about `CANDIDATES_MAX` candidates."""
    if not len(count):
        return []
    ends = np.cumsum(count)
    cuts = np.searchsorted(ends, np.arange(CANDIDATES_MAX, int(ends[-1]), CANDIDATES_MAX), side="right")
    edges = np.unique(np.concatenate(([0], cuts, [len(count)]))).tolist()
    return list(pairwise(edges))


def met(segment: QuerySegment, slot: Ints, row: Ints, batch: DocumentBatch) -> Bools:
    """Return a mask of the candidates that match, disregarding their predicate."""
    if not len(slot):
        return np.zeros(0, dtype=np.bool_)
    tree = _tree(segment, slot, row, batch)
    return tree.holds[tree.root]


def scored(
    segment: QuerySegment, slot: Ints, row: Ints, batch: DocumentBatch
) -> tuple[npt.NDArray[np.float64], Ints, Ints, Ints]:
    """Return the scores of matches, and the words to highlight: the match, the word and the field of each."""
    tree = _tree(segment, slot, row, batch)
    alive = tree.holds
    for level in tree.levels:
        alive[level] &= alive[tree.parent[level]]
    boost = segment.leaf_boost[tree.leaf]
    gives = np.flatnonzero(tree.met & alive[tree.under] & (boost != 0))
    atom, pair = segment.leaf_atom[tree.leaf[gives]].astype(np.int64), tree.pair[gives]
    times = batch.times(atom, row[pair])
    given = boost[gives] * (2.2 * times / (times + 1.2))
    score = np.bincount(pair, weights=given, minlength=len(slot)).astype(np.float64, copy=False)
    owner, token = batch.marks(atom, row[pair])
    return score, pair[owner], token, batch.atoms.field[atom[owner]].astype(np.int64)


def _tree(segment: QuerySegment, slot: Ints, row: Ints, batch: DocumentBatch) -> _Tree:
    count = segment.leaf_at[slot + 1] - segment.leaf_at[slot]
    leaf = spread(segment.leaf_at[slot], count)
    pair = np.repeat(np.arange(len(slot), dtype=np.int64), count)
    is_met = batch.met(segment.leaf_atom[leaf], row[pair])
    nodes = segment.node_at[slot + 1] - segment.node_at[slot]
    node = spread(segment.node_at[slot], nodes)
    root = np.cumsum(nodes) - nodes
    under = root[pair] + segment.leaf_parent[leaf]
    sums = np.bincount(under, weights=segment.leaf_weight[leaf] * is_met, minlength=len(node)).astype(
        np.float64
    )
    parent: Ints = np.repeat(root, nodes) + segment.node_parent[node].astype(np.int64)
    depth, least, weight = segment.node_depth[node], segment.node_least[node], segment.node_weight[node]
    levels = [np.flatnonzero(depth == level) for level in range(1, int(depth.max(initial=0)) + 1)]
    for level in reversed(levels):
        held = sums[level] >= least[level]
        sums += np.bincount(parent[level], weights=weight[level] * held, minlength=len(node))
    return _Tree(pair, leaf, under, is_met, root, sums >= least, parent, levels)
