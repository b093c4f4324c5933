"""Dependence of columns on private values, where rows are still single rows of topics.

When the key of a record is destroyed, only the columns computed from its private values are lost. The keys by which
such a row is grouped or joined are still known if they do not depend on these columns; whether a filter over a private
value has passed the row is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from headwater.engine.dataflow.linear import columns_of
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g

Private = Callable[[g.SourceNode], frozenset[int]]
"""Function that returns the private columns of a source, as column indices."""


def is_linear(node: g.Node) -> bool:
    """Whether the rows of a node are single rows of its sources."""
    return all(kind_of(each).is_linear for each in g.walk(node))


def readers(root: g.Node, private: Private) -> list[g.Node] | None:
    """Return the nodes that read single rows with private values, if each can find its state of such a row without them.

    An operator finds it by its lookup key, and a view of single rows by its output columns. Returns None if a node
    cannot find its state that way.
    """
    found: dict[int, g.Node] = {}
    for node in g.walk(root):
        kind = kind_of(node)
        for place, below in enumerate(() if kind.is_linear else node.inputs):
            if not any(isinstance(leaf, g.SourceNode) and private(leaf) for leaf in _leaves(below)):
                continue
            keys = kind.lookup_keys(node)
            if keys is None or not _is_found_by(below, keys[place], private):
                return None
            if not keys[place] and not kind.recomputes_without_key:
                return None
            found[id(node)] = node
    if any(isinstance(leaf, g.SourceNode) and private(leaf) for leaf in _leaves(root)):
        shown = shown_by(root, private)
        if not shown:
            return None
        found[id(root)] = root
    return list(found.values())


def shown_by(node: g.Node, private: Private) -> tuple[int, ...]:
    """Return the columns of a linear node's rows that do not depend on private values; empty if the number of rows does."""
    hidden = columns_from_private(node, private) if is_linear(node) else None
    return () if hidden is None else tuple(i for i in range(len(node.schema)) if i not in hidden)


def columns_from_private(node: g.Node, private: Private) -> frozenset[int] | None:
    """Return the columns of a node's rows that depend on private values; None if, filters aside, the number of rows does."""
    match node:
        case g.SourceNode():
            return private(node)
        case g.Map():
            return _stepped(node, private)[0]
        case g.Union():
            parts = [columns_from_private(each, private) for each in node.inputs]
            return None if None in parts else frozenset().union(*(part or () for part in parts))
    return frozenset()


def unfiltered(node: g.Map, private: Private) -> g.Map:
    """Return the Map without the filters that read private values."""
    steps = _stepped(node, private)[1]
    return node if len(steps) == len(node.steps) else replace(node, steps=steps)


def _stepped(node: g.Map, private: Private) -> tuple[frozenset[int] | None, tuple[g.Step, ...]]:
    hidden, kept = columns_from_private(node.input, private), list[g.Step]()
    for step in node.steps:
        if hidden is None:
            return None, node.steps
        match step:
            case g.Filter(condition):
                if columns_of([condition]) & hidden:
                    continue
            case g.Project(expressions):
                hidden = _of_these([expressions], hidden)
            case g.Expand(projections):
                hidden = _of_these(projections, hidden)
            case g.UdfCall():
                hidden |= {step.place} if columns_of(step.args) & hidden else set()
            case g.Generate():
                is_read = columns_of([step.argument]) & hidden
                hidden = None if is_read else frozenset(i for i, c in enumerate(step.keep) if c in hidden)
            case g.Replicate():
                hidden = None
        kept.append(step)
    return hidden, tuple(kept)


def _of_these(
    projections: tuple[tuple[g.Expression, ...], ...] | list[tuple[g.Expression, ...]], hidden: frozenset[int]
) -> frozenset[int]:
    return frozenset(
        i for each in projections for i, expression in enumerate(each) if columns_of([expression]) & hidden
    )


def _is_found_by(node: g.Node, key: tuple[int, ...], private: Private) -> bool:
    return (
        is_linear(node)
        and (hidden := columns_from_private(node, private)) is not None
        and hidden.isdisjoint(key)
    )


def _leaves(node: g.Node) -> Iterator[g.Node]:
    """Yield the nodes whose rows reach a node through Maps and Unions only."""
    if isinstance(node, g.Map | g.Union):
        for below in node.inputs:
            yield from _leaves(below)
    else:
        yield node
