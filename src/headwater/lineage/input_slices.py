"""Which part of every input can have to do with some rows of a view, as far as plain columns tell.

A *slice* is what some columns are equal to. If the rows of a node that are of interest are those of a slice, then often
its inputs are of interest only within a slice too: the group of an aggregate, the key of a join. A node that has several
readers is of interest within the slices of all of them. What is left out by slices never plays a part for the rows asked
for, and what a graph gives over what is left in is a part of what it gives over everything.
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
"""What is in one of several; none: nothing."""

EVERYTHING: Slices = ({},)


def within(columns: Sequence[pa.Array], count: int, slices: Slices) -> Mask:
    """Which of `count` rows are in one of the slices."""
    found = np.zeros(count, dtype=np.bool_)
    for one in slices:
        mine = [columns[c] for c in one]
        values = [v.take(pa.array(np.zeros(count, dtype=np.int64))) for v in one.values()]
        found |= equal_rows(mine, values, count)
    return found


def either(*several: Slices) -> Slices:
    """What is in any of several; everything if one of them is."""
    together = tuple(one for slices in several for one in slices)
    return EVERYTHING if any(not one for one in together) else together


def of_sources(nodes: Sequence[g.Node], wanted: Slices) -> dict[str, Slices]:
    """What is of interest of each source, by its columns, if `wanted` is of the last of the nodes; inputs come first."""
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
