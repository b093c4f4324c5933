"""Which output columns of a graph show the key by which its rows were computed: of a group, or of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g


def group_columns(root: g.Node) -> tuple[int, ...] | None:
    """Return the output columns that show the key of each row's group; None if the output does not show the whole key."""
    node, origins = _below_maps(root)
    return _places(kind_of(node).group_key(node), origins)


def partition_columns(root: g.Node) -> tuple[int, ...] | None:
    """Return the output columns that show the key of the partition in which each row was ranked or computed; None if
    the output does not show the whole key."""
    node, origins = _below_operator(root)
    return _places(kind_of(node).partition_key(node), origins)


def operator_shown(root: g.Node) -> tuple[g.Node, tuple[int, ...]] | None:
    """Return the operator whose rows a graph shows, and the output columns that show its lookup key; None if the output
    does not show the whole key."""
    node, origins = _below_operator(root)
    keys = kind_of(node).lookup_keys(node)
    places = _places(keys[0] if keys else (), origins)
    return None if places is None else (node, places)


def _below_operator(root: g.Node) -> tuple[g.Node, list[int | None]]:
    """Return the node whose rows a graph shows, and for each output column the column of the node's first input that it
    is, or None."""
    node, origins = _below_maps(root)
    shown = kind_of(node).shown_columns(node)
    return node, [None if c is None else shown.get(c) for c in origins]


def _below_maps(root: g.Node) -> tuple[g.Node, list[int | None]]:
    """Return the node below the final Maps and Closes of a graph, and for each output column the column of that node that it
    is, or None."""
    node = root
    origins: list[int | None] = list(range(len(root.schema)))
    while isinstance(node, g.Map | g.Close):
        for step in reversed(node.steps) if isinstance(node, g.Map) else ():
            if isinstance(step, g.Project):
                origins = [None if c is None else step.expressions[c].column for c in origins]
            elif isinstance(step, g.UdfCall):
                origins = [None if c == step.place else c for c in origins]
            elif not isinstance(step, g.Filter):
                return root, []
        node = node.input
    return node, origins


def _places(key: Iterable[int], origins: Sequence[int | None]) -> tuple[int, ...] | None:
    """Return the output column of each key column; None if one is not shown, or the key is empty."""
    places = tuple(origins.index(k) if k in origins else -1 for k in key)
    return places if places and min(places) >= 0 else None
