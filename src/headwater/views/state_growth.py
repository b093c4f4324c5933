"""State bounds of views: the topics and tables with which their state grows, and the check of `WITH (state = 'bounded')`.

`kept_states` returns for every operator of a graph what its state grows with; linear operators have no state. The rows of the view
itself are its result and not counted here: a view that is a filtered topic is as long as the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import UsageError
from headwater.engine.collections.collections import Collection, TableCollection
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState, together
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g
from headwater.plan.planner import Plan
from headwater.plan.relations.metadata_columns import changelog_of, versions_of

BOUNDED = "bounded"


def topic_extent(name: str, *, keyed: bool) -> Extent:
    """Return the cardinality of a topic that a view reads."""
    return Extent(tables=frozenset([name])) if keyed else Extent(topics=frozenset([name]))


def rows(node: g.Node, sources: Mapping[str, Extent]) -> Extent:
    """Return the cardinality of a node's output, from those of the topics and views that its graph reads."""
    if isinstance(node, g.SourceNode):
        return sources[node.name]
    return kind_of(node).row_extent(node, [rows(child, sources) for child in node.inputs])


def kept_states(
    root: g.Node, sources: Mapping[str, Extent], expiring: Mapping[int, frozenset[str]] | None = None
) -> Iterator[KeptState]:
    """Yield the state of the operators of a graph, in the order in which changes reach them.

    `expiring` maps the identity of a node to the topics whose watermarks let its state expire.
    """
    for node in g.walk(root):
        passing = (expiring or {}).get(id(node))
        for part in kind_of(node).kept_state(node, [rows(child, sources) for child in node.inputs]):
            extent = part.extent
            if passing is not None:
                extent = Extent(tables=extent.tables, passing=passing)
            yield replace(part, extent=extent)


def bound_text(
    root: g.Node, sources: Mapping[str, Extent], expiring: Mapping[int, frozenset[str]] | None = None
) -> str:
    """Return a description of what bounds the state of a graph, or what it grows with; `expiring` as for `kept_states`."""
    parts = list(kept_states(root, sources, expiring))
    if not parts:
        return "none: each row is processed alone"
    whole = together(part.extent for part in parts)
    if whole.topics:
        most = next(p for p in parts if p.extent.topics)
        return f"grows with {', '.join(sorted(whole.topics))}: it keeps {most.what}"
    if whole.passing:
        what, topics = next(p.what for p in parts if p.extent.passing), " and ".join(sorted(whole.passing))
        more = f", and bounded by {', '.join(sorted(whole.tables))}" if whole.tables else ""
        return f"bounded by time: it keeps {what}, until the watermark of {topics} has passed{more}"
    if not whole.tables:
        return "bounded by the query: one row for each group without keys"
    what = "table" if len(whole.tables) == 1 else "tables"
    return f"bounded by {what} {', '.join(sorted(whole.tables))}"


def extents(
    units: Sequence[Collection], topics: Mapping[str, TopicDefinition], new: Mapping[str, Plan] | None = None
) -> dict[str, Extent]:
    """Return the cardinality of everything that a view may read; `new` are plans that views are about to have."""
    found = {name: topic_extent(name, keyed=bool(topic.key)) for name, topic in topics.items()}
    found |= {
        versions_of(name): topic_extent(name, keyed=False) for name, topic in topics.items() if topic.key
    }
    found |= {  # a changelog has a row for every record, of which the last of each key stays
        changelog_of(name): topic_extent(name, keyed=False) | found[name]
        for name, topic in topics.items()
        if topic.key
    }
    for unit in units:
        if not isinstance(unit, TableCollection):
            plan = (new or {}).get(unit.name, unit.plan)
            found[unit.name] = rows(plan.root, found)
            found |= {derived.name: topic_extent(derived.name, keyed=False) for derived in unit.derived}
    return found


def expiring(plan: Plan) -> dict[int, frozenset[str]]:
    """Return the topics whose watermarks let the state of an operator expire, by the identity of the operator."""
    return {
        node: frozenset(topic for expiry in expiries for topic in expiry.topics)
        for node, expiries in plan.expiries.items()
    }


def refuse_growth(plan: Plan, known: Mapping[str, Extent]) -> None:
    """Raise StatementError, underlining the part, if the query needs state that grows with the records of a topic."""
    for part in kept_states(plan.root, known, expiring(plan)):
        if not part.extent.bounded:
            grows = ", ".join(sorted(part.extent.topics))
            plan.refuse(
                part.node,
                f"the state of this view would grow with {grows}, which state = 'bounded' does not allow: it keeps {part.what}",
                hint=f"{part.instead}; or leave state = 'bounded' out",
                reason="unbounded-state",
                topics=sorted(part.extent.topics),
            )


def refuse_growth_above(
    name: str, plan: Plan, units: Sequence[Collection], topics: Mapping[str, TopicDefinition]
) -> None:
    """Raise UsageError if a view above has `state = 'bounded'` and its state would grow with the new plan of a view."""
    known = extents(units, topics, {name: plan})
    for unit in units:
        if isinstance(unit, TableCollection) or unit.name == name or unit.definition.options.state != BOUNDED:
            continue
        for part in kept_states(unit.plan.root, known, expiring(unit.plan)):
            if not part.extent.bounded:
                grows = ", ".join(sorted(part.extent.topics))
                raise UsageError(
                    f"view {unit.name!r} has state = 'bounded', and its state would grow with {grows} after this change of {name!r}",
                    detail=f"{unit.name} keeps {part.what}",
                    hint=f"replace {unit.name} first, without state = 'bounded'",
                    view=unit.name,
                    reason="unbounded-state",
                    topics=sorted(part.extent.topics),
                )
