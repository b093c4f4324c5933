"""Which part of every input can have to do with some rows of a view, as far as plain columns tell.

A *slice* is what some columns are equal to. If the rows of a node that are of interest are those of a slice, then often
its inputs are of interest only within a slice too: the group of an aggregate, the key of a join. A node that has several
readers is of interest within the slices of all of them. What is left out by slices never plays a part for the rows asked
for, and what a graph gives over what is left in is a part of what it gives over everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.hashing import Mask, equal_rows
from headwater.operators.standing.meeting import MeetSpec
from headwater.queries import graph as g
from headwater.runtime.groups import shown_columns

Slice = Mapping[int, pa.Array]
"""column -> its value, an array of length 1; no column: everything."""
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
        if isinstance(node, g.Source):
            width = len(node.columns)
            own = tuple({node.columns[c]: v for c, v in one.items() if c < width} for one in mine)
            found[node.name] = either(found.get(node.name, ()), own)
        for place, child in enumerate(node.inputs):
            below = tuple(_below(node, one)[place] for one in mine)
            slices[id(child)] = either(slices[id(child)], below)
    return found


def _below(node: g.Node, one: Slice) -> Sequence[Slice]:
    """The slice of each input on which the rows of a slice depend."""
    match node:
        case g.Map():
            return [_through(node, one)]
        case g.Union() | g.Close():
            return [one] * len(node.inputs)
        case g.Aggregate():
            return [{c: v for c, v in one.items() if c < node.keys}]
        case g.Join():
            return _sides(node, one)
        case g.Rank():
            return [{c: v for c, v in one.items() if c in node.key}]
        case g.Regroup():
            shown = shown_columns(node)
            return [{shown[c]: v for c, v in one.items() if shown.get(c) in node.key}]
        case g.Slide() | g.Sessions() | g.Versions():
            return [{c: v for c, v in one.items() if c in node.key}]
        case g.SessionAggregate():
            return [{c: v for c, v in one.items() if c < node.keys and c != node.column}]
        case g.Meet():
            spec: MeetSpec = node.handle
            query = {c: v for c, v in one.items() if c == 0}
            known = {1: spec.id[0]} if len(spec.id) == 1 else {}
            first = len(spec.output) - len(spec.shown)
            known |= {first + place: column for place, column in enumerate(spec.shown)}
            return [query, {known[c]: v for c, v in one.items() if c in known}]
        case g.Fold():
            return [{node.key[c]: v for c, v in one.items() if c < len(node.key)}]
        case _:
            return [{}] * len(node.inputs)


def _through(node: g.Map, one: Slice) -> Slice:
    for step in reversed(node.steps):
        match step:
            case g.Project(expressions):
                origins = [e.column for e in expressions]
            case g.Expand(projections):
                each = [[e.column for e in p] for p in projections]
                origins = [c[0] if len(set(c)) == 1 else None for c in zip(*each, strict=True)]
            case g.Generate(keep=keep):
                origins = list(keep)
            case g.Replicate(keep=kept):
                origins = [e.column for e in kept]
            case g.Call(place=place):
                origins = list(range(place))
            case _:
                continue
        one = {o: v for c, v in one.items() if c < len(origins) and (o := origins[c]) is not None}
    return one


def _sides(node: g.Join, one: Slice) -> tuple[Slice, Slice]:
    """Of a side that can be padded with NULLs only the key tells which of its rows are meant, and from the other side."""
    width = len(node.left.schema)
    left = {c: v for c, v in one.items() if c < width and node.kind not in ("right", "full")}
    right = {c - width: v for c, v in one.items() if c >= width and node.kind in ("inner", "right")}
    for mine, theirs in zip(node.left_key, node.right_key, strict=True):
        if node.left.schema.field(mine).type != node.right.schema.field(theirs).type:
            continue
        if mine in left:
            right.setdefault(theirs, left[mine])
        elif theirs in right:
            left[mine] = right[theirs]
    return left, right
