"""Which columns of rows depend on private values, as far as they are single rows of topics: what can be known of a record whose key
is destroyed, and which steps on its way need not be asked.

A private value that is gone leaves its row as it was but for the columns that are made of it. What such a row is grouped or joined by
is still known where these columns are others; whether a filter that looks at the value has passed it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from headwater.engine.dataflow.linear import columns_of
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g

Private = Callable[[g.SourceNode], frozenset[int]]
"""The private columns of a source, by their places in its rows."""


def is_linear(node: g.Node) -> bool:
    """Whether a node has single rows of its sources."""
    return all(kind_of(each).is_linear for each in g.walk(node))


def readers(root: g.Node, private: Private) -> list[g.Node] | None:
    """The nodes to which rows with private values come as single rows, and which find what they hold of such a row by what is not private: operators by
    their key, and a view of rows by the columns that it shows. None if there is one that cannot."""
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
    """The columns of a node's rows that are known without private values; none if the rows themselves are not."""
    hidden = veiled(node, private) if is_linear(node) else None
    return () if hidden is None else tuple(i for i in range(len(node.schema)) if i not in hidden)


def veiled(node: g.Node, private: Private) -> frozenset[int] | None:
    """The columns of a node's rows that depend on private values; None if how many rows there are does, filters aside."""
    match node:
        case g.SourceNode():
            return private(node)
        case g.Map():
            return _stepped(node, private)[0]
        case g.Union():
            parts = [veiled(each, private) for each in node.inputs]
            return None if None in parts else frozenset().union(*(part or () for part in parts))
    return frozenset()


def unfiltered(node: g.Map, private: Private) -> g.Map:
    """The same without the filters that look at private values."""
    steps = _stepped(node, private)[1]
    return node if len(steps) == len(node.steps) else replace(node, steps=steps)


def _stepped(node: g.Map, private: Private) -> tuple[frozenset[int] | None, tuple[g.Step, ...]]:
    hidden, kept = veiled(node.input, private), list[g.Step]()
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
                looks = columns_of([step.argument]) & hidden
                hidden = None if looks else frozenset(i for i, c in enumerate(step.keep) if c in hidden)
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
    return is_linear(node) and (hidden := veiled(node, private)) is not None and hidden.isdisjoint(key)


def _leaves(node: g.Node) -> Iterator[g.Node]:
    """What the rows of a node are single rows of."""
    if isinstance(node, g.Map | g.Union):
        for below in node.inputs:
            yield from _leaves(below)
    else:
        yield node
