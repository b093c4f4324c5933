"""Where the rows that a graph gives show the key that they were made by: of a group, of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.queries import graph as g
from headwater.runtime.groups import shown_columns


def group_columns(root: g.Node) -> tuple[int, ...] | None:
    """Where rows of a node show the key of the group that each is the result of; None if they do not."""
    node, origins = _below_maps(root)
    if isinstance(node, g.Regroup) and isinstance(node.evaluate, g.Aggregate):
        node = node.evaluate
    return _places(range(node.keys), origins) if isinstance(node, g.Aggregate | g.SessionAggregate) else None


def partition_columns(root: g.Node) -> tuple[int, ...] | None:
    """Where rows of a node show the key of the partition that each was ranked in, or computed with; None if they do not."""
    node, origins = _below_maps(root)
    if isinstance(node, g.Regroup):
        shown = shown_columns(node)
        origins = [None if c is None else shown.get(c) for c in origins]
    return _places(node.key, origins) if isinstance(node, g.Rank | g.Regroup) else None


def operator_shown(root: g.Node) -> tuple[g.Node, tuple[int, ...]] | None:
    """The one operator whose rows a graph shows, and where they show the key by which it takes its rows together; None if they do not show it."""
    node, origins = _below_maps(root)
    key: Iterable[int] = ()
    match node:
        case g.Aggregate() | g.SessionAggregate():
            own = node.column if isinstance(node, g.SessionAggregate) else None
            key = [i for i in range(node.keys) if i != own]
        case g.Rank() | g.Slide():
            key = node.key
        case g.Join() if node.kind in ("inner", "left", "semi", "anti"):
            key = node.left_key
        case g.Regroup():
            shown = shown_columns(node)
            key, origins = node.key, [None if c is None else shown.get(c) for c in origins]
    places = _places(key, origins)
    return None if places is None else (node, places)


def _below_maps(root: g.Node) -> tuple[g.Node, list[int | None]]:
    """The node whose rows a graph shows in the end, and the column of it that each column shown is, if it is one."""
    node = root
    origins: list[int | None] = list(range(len(root.schema)))
    while isinstance(node, g.Map | g.Close):
        for step in reversed(node.steps) if isinstance(node, g.Map) else ():
            if isinstance(step, g.Project):
                origins = [None if c is None else step.expressions[c].column for c in origins]
            elif isinstance(step, g.Call):
                origins = [None if c == step.place else c for c in origins]
            elif not isinstance(step, g.Filter):
                return root, []
        node = node.input
    return node, origins


def _places(key: Iterable[int], origins: Sequence[int | None]) -> tuple[int, ...] | None:
    """Where each column of a key is shown; None if one is not, or there is none."""
    places = tuple(origins.index(k) if k in origins else -1 for k in key)
    return places if places and min(places) >= 0 else None
