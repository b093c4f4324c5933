"""Which columns of a view are a key: no two of its rows agree on them, whatever the data. Proven from the graph alone.

A key is a set of columns, by position; the empty set says that there is one row at most. What is not found here may be a key
all the same: only what follows from the operators counts.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.queries import graph as g

Keys = frozenset[frozenset[int]]
"""Keys, none of which holds another."""
NONE: Keys = frozenset()


def unique_keys(node: g.Node, of_source: Callable[[g.Source], Keys]) -> Keys:
    """The keys of what a node gives; `of_source` tells those of a topic or view, by the columns that are read of it."""
    below = [unique_keys(child, of_source) for child in node.inputs]
    match node:
        case g.Source():
            return of_source(node)
        case g.Map():
            keys = below[0]
            for step in node.steps:
                keys = _after(step, keys)
            return keys
        case g.Aggregate() | g.SessionAggregate():
            return _least({frozenset(range(node.keys))})
        case g.Fold():
            return _least({frozenset(range(len(node.key)))})
        case g.Meet():
            return _least({frozenset(range(2))})  # the query, and the document
        case g.Join():
            return _joined(node, below[0], below[1])
        case g.Rank():
            first = node.limit - node.offset == 1 and node.function == "row_number"
            return _least({*below[0], *({frozenset(node.key)} if first else ())})
        case g.Slide():
            return below[0]
        case g.Sessions():
            return frozenset(key for key in below[0] if node.column not in key)
        case g.Close():
            return frozenset(key for key in below[0] if all(c < len(node.schema) for c in key))
        case g.Regroup():
            return _least({frozenset()}) if node.whole else NONE
        case _:
            return NONE


def _after(step: g.Step, keys: Keys) -> Keys:
    match step:
        case g.Filter() | g.Call():
            return keys
        case g.Project():
            places: dict[int, int] = {}
            for place, expression in enumerate(step.expressions):
                if expression.column is not None:
                    places.setdefault(expression.column, place)
            return _moved(keys, places)
        case _:
            return NONE


def _joined(join: g.Join, left: Keys, right: Keys) -> Keys:
    if join.kind in ("semi", "anti", "existence"):
        return left
    if join.kind == "full":
        return NONE
    width = len(join.left.schema)
    moved = {frozenset(column + width for column in key) for key in right}
    found: set[frozenset[int]] = {one | other for one in left for other in moved}
    # a row that meets one row of the other side at most is there once
    if join.kind in ("inner", "left") and (join.at_most_one or _holds(join.right_key, right)):
        found |= left
    if join.kind in ("inner", "right") and _holds(join.left_key, left):
        found |= moved
    return _least(found)


def _holds(columns: tuple[int, ...], keys: Keys) -> bool:
    return any(key <= set(columns) for key in keys)


def _moved(keys: Keys, places: dict[int, int]) -> Keys:
    return _least({frozenset(places[c] for c in key) for key in keys if all(c in places for c in key)})


def _least(keys: set[frozenset[int]]) -> Keys:
    return frozenset(key for key in keys if not any(other < key for other in keys))
