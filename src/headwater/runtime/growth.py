"""Whether the views of a workspace keep what they were asked to keep at most: `WITH (state = 'bounded')`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.catalog import TopicDefinition
from headwater.errors import UsageError
from headwater.queries.bounds import Extent, kept, rows, topic_extent
from headwater.runtime.hidden import changelog_of, versions_of
from headwater.runtime.planning.planner import Plan
from headwater.runtime.units import TableUnit, Unit

BOUNDED = "bounded"


def extents(
    units: Sequence[Unit], topics: Mapping[str, TopicDefinition], new: Mapping[str, Plan] | None = None
) -> dict[str, Extent]:
    """How many rows everything that a view may read can have; `new` are plans that views are about to have."""
    found = {name: topic_extent(name, keyed=bool(topic.key)) for name, topic in topics.items()}
    found |= {
        versions_of(name): topic_extent(name, keyed=False) for name, topic in topics.items() if topic.key
    }
    found |= {  # it has a row for every record, of which the last of each key stays
        changelog_of(name): topic_extent(name, keyed=False) | found[name]
        for name, topic in topics.items()
        if topic.key
    }
    for unit in units:
        if not isinstance(unit, TableUnit):
            plan = (new or {}).get(unit.name, unit.plan)
            found[unit.name] = rows(plan.root, found)
            found |= {derived.name: topic_extent(derived.name, keyed=False) for derived in unit.derived}
    return found


def expiring(plan: Plan) -> dict[int, frozenset[str]]:
    """By the identity of an operator: the topics whose watermarks let it forget."""
    return {
        node: frozenset(topic for expiry in expiries for topic in expiry.topics)
        for node, expiries in plan.expiries.items()
    }


def refuse_growth(plan: Plan, known: Mapping[str, Extent]) -> None:
    """StatementError, underlining it, if something in the query has to be kept for as long as there are records."""
    for part in kept(plan.root, known, expiring(plan)):
        if not part.extent.bounded:
            grows = ", ".join(sorted(part.extent.topics))
            plan.refuse(
                part.node,
                f"the state of this view would grow with {grows}, and state = 'bounded' forbids it: "
                f"it keeps {part.what}",
                hint=f"{part.instead}; or leave state = 'bounded' out",
            )


def refuse_growth_above(
    name: str, plan: Plan, units: Sequence[Unit], topics: Mapping[str, TopicDefinition]
) -> None:
    """UsageError if the plan that a view is about to have lets the state of a view above it grow that must not."""
    known = extents(units, topics, {name: plan})
    for unit in units:
        if isinstance(unit, TableUnit) or unit.name == name or unit.definition.options.state != BOUNDED:
            continue
        for part in kept(unit.plan.root, known, expiring(unit.plan)):
            if not part.extent.bounded:
                grows = ", ".join(sorted(part.extent.topics))
                raise UsageError(
                    f"view {unit.name!r} has state = 'bounded', and with this {name!r} it would grow with {grows}",
                    detail=f"{unit.name} keeps {part.what}",
                    hint=f"replace {unit.name} first, without state = 'bounded'",
                    view=unit.name,
                )
