"""Bounds the part of every input that can affect some rows of a view, by equality of plain columns.

A *slice* is a set of columns with a required value for each. If only the rows of a slice are wanted from a node, then often
only a slice of each of its inputs is needed: the group of an aggregate, the key of a join. A node with several readers is
needed within the slices of all of them. Input rows outside the slices never affect the wanted rows, and the output of a
graph over the rows inside the slices is a subset of its output over all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Mask, equal_rows
from headwater.engine.dataflow.facets.demands import Slice
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g

Slices = tuple[Slice, ...]
"""A union of slices; the empty tuple selects no rows."""

EVERYTHING: Slices = ({},)


def within(columns: Sequence[pa.Array], count: int, slices: Slices) -> Mask:
    """Return a mask of the rows, out of `count`, that are in at least one of the slices."""
    found = np.zeros(count, dtype=np.bool_)
    for one in slices:
        mine = [columns[c] for c in one]
        values = [v.take(pa.array(np.zeros(count, dtype=np.int64))) for v in one.values()]
        found |= equal_rows(mine, values, count)
    return found


def either(*several: Slices) -> Slices:
    """Return the union of several slice tuples; EVERYTHING if one of the slices is unrestricted."""
    together = tuple(one for slices in several for one in slices)
    return EVERYTHING if any(not one for one in together) else together


def of_sources(nodes: Sequence[g.Node], wanted: Slices) -> dict[str, Slices]:
    """Return the slices needed of each source, by source columns, if `wanted` is needed of the last node; inputs precede
    their readers."""
    slices: dict[int, Slices] = {id(node): () for node in nodes}
    slices[id(nodes[-1])] = wanted
    found: dict[str, Slices] = {}
    for node in reversed(nodes):
        mine = slices[id(node)]
        if isinstance(node, g.SourceNode):
            width = len(node.columns)
            own = tuple({node.columns[c]: v for c, v in one.items() if c < width} for one in mine)
            found[node.name] = either(found.get(node.name, ()), own)
        for place, child in enumerate(node.inputs):
            below = tuple(kind_of(node).input_slices(node, one)[place] for one in mine)
            slices[id(child)] = either(slices[id(child)], below)
    return found
