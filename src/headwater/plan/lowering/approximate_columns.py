"""Finds the columns of a view that are unmodified answers of sketches, and rejects other uses of answers that only have
bounds.

A sketch is repeatable if its state is independent of how its values were cut into parts: its answer is deterministic, and
any expression may use it. For other sketches only bounds are known, and no bounds are known for values computed from their
answers: a view that computes with such an answer must aggregate exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.operators import graph as g
from headwater.plan.relations.relations import Bound
from headwater.spark.catalyst import identity, items

Sketched = Mapping[int, tuple[g.Node, Mapping[int, g.MergeableFunction]]]
"""By the node ID of an aggregate: the aggregate, and its columns that are answers of sketches."""
Found = dict[int, g.MergeableFunction]


class _Computed(Exception):
    """Raised if a graph computes with an answer of which only bounds are known."""


def shown_as_they_are(root: g.Node, sketched: Sketched) -> Found | None:
    """Return the columns of a graph that are answers of sketches; None if it computes with an answer that only has bounds."""
    try:
        return _sketched_columns(root, sketched) if sketched else {}
    except _Computed:
        return None


def _sketched_columns(node: g.Node, sketched: Sketched) -> Found:
    below = [_sketched_columns(child, sketched) for child in node.inputs]
    if isinstance(node, g.Map):
        found = below[0]
        for step in node.steps:
            found = _stepped(step, found)
        return found
    if isinstance(node, g.Union):
        return {column: function for found in below for column, function in found.items()}
    if isinstance(node, g.Close):
        return below[0]
    for found in below:
        _used(found)
    return dict(sketched[id(node)][1]) if id(node) in sketched else {}


def _stepped(step: g.Step, found: Found) -> Found:
    if not found:
        return found
    if isinstance(step, g.Filter):
        _used({c: found[c] for c in _read(step.condition) if c in found})
        return {c: f for c, f in found.items() if f.sketch.repeatable or c not in _read(step.condition)}
    if isinstance(step, g.Project):
        made: Found = {}
        for place, e in enumerate(step.expressions):
            if e.column is not None and e.column in found:
                made[place] = found[e.column]
            elif e.column is None:
                _used({c: found[c] for c in _read(e) if c in found})
        return made
    _used(found)
    return {}


def _used(found: Found) -> None:
    if any(not function.sketch.repeatable for function in found.values()):
        raise _Computed


def _read(expression: g.Expression) -> set[int]:
    """Return the input columns that an expression reads."""
    if expression.column is not None:
        return {expression.column}
    if not isinstance(expression.handle, Bound):
        return set(expression.handle)
    read = {identity(a) for a in items(expression.handle.expression.references().toSeq())}
    return {i for i, a in enumerate(expression.handle.attributes) if identity(a) in read}
