"""Where the rows that a graph gives show the key that they were made by: of a group, of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g


def group_columns(root: g.Node) -> tuple[int, ...] | None:
    """Where rows of a node show the key of the group that each is the result of; None if they do not."""
    node, origins = _below_maps(root)
    return _places(kind_of(node).group_key(node), origins)


def partition_columns(root: g.Node) -> tuple[int, ...] | None:
    """Where rows of a node show the key of the partition that each was ranked in, or computed with; None if they do not."""
    node, origins = _below_operator(root)
    return _places(kind_of(node).partition_key(node), origins)


def operator_shown(root: g.Node) -> tuple[g.Node, tuple[int, ...]] | None:
    """The one operator whose rows a graph shows, and where they show the key by which it takes its rows together; None if they do not show it."""
    node, origins = _below_operator(root)
    keys = kind_of(node).lookup_keys(node)
    places = _places(keys[0] if keys else (), origins)
    return None if places is None else (node, places)


def _below_operator(root: g.Node) -> tuple[g.Node, list[int | None]]:
    """The node whose rows a graph shows in the end, and the column of its first input that each column shown is, if it is one."""
    node, origins = _below_maps(root)
    shown = kind_of(node).shown_columns(node)
    return node, [None if c is None else shown.get(c) for c in origins]


def _below_maps(root: g.Node) -> tuple[g.Node, list[int | None]]:
    """The node whose rows a graph shows in the end, and the column of it that each column shown is, if it is one."""
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
    """Where each column of a key is shown; None if one is not, or there is none."""
    places = tuple(origins.index(k) if k in origins else -1 for k in key)
    return places if places and min(places) >= 0 else None
