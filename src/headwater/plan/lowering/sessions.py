"""Session windows in a plan: Spark marks the grouping column of an aggregate whose intervals are to be merged into
sessions.

In the plan the column has the interval of each row, computed by a projection below the aggregate that also drops rows whose
time is NULL or whose gap is not positive. No node of the logical plan merges the intervals: Spark adds one to the physical
plan because of the mark.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.operators import graph as g
from headwater.plan.lowering.linear_steps import keyed
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.relations.relations import Lowered
from headwater.spark.catalyst import Jvm, identity, items, kind, output_of

_MARK = "spark.sessionWindow"


def session_in(context: LoweringContext, plan: Jvm, grouping: Sequence[Jvm]) -> int | None:
    """Return the index of the aggregate's key that is a session window, or None."""
    places = [i for i, e in enumerate(grouping) if e.toAttribute().metadata().contains(_MARK)]
    if not places:
        return None
    found = grouping[places[0]]
    if len(places) > 1:
        context.refuse(
            plan,
            "a GROUP BY can have only one session window",
            hint="write one view for each session window",
            reason="several-session-windows",
        )
    if kind(found) != "AttributeReference" or not _always_there(plan.child(), found):
        context.refuse(
            plan,
            "this session window can be NULL, which belongs to no session",
            hint="compute it before an outer join, and include it in all GROUPING SETS",
            reason="session-window-null",
        )
    return places[0]


def with_sessions(context: LoweringContext, child: Lowered, grouping: Sequence[Jvm], place: int) -> Lowered:
    """Return the rows with the interval of each row replaced by that of its session."""
    others = [e for i, e in enumerate(grouping) if i != place]
    below, key = keyed(context, child, [e.child() if kind(e) == "Alias" else e for e in others])
    number = identity(grouping[place])
    column = next(i for i, a in enumerate(below.attributes) if identity(a) == number)
    return Lowered(g.Sessions(below.node, key, column, below.node.schema), below.attributes)


def unmarked(
    context: LoweringContext, plan: Jvm, grouping: Sequence[Jvm], place: int
) -> tuple[Jvm, list[Jvm]]:
    """Return an aggregate over rows that already have their sessions, without the mark that would merge them again, and its
    keys."""
    c = context.catalyst
    none = c.jvm.org.apache.spark.sql.types.Metadata.empty()
    keys = [e.withMetadata(none) if i == place else e for i, e in enumerate(grouping)]
    bare = [e.child() if kind(e) == "Alias" else e for e in keys]
    return plan.copy(c.seq(bare), plan.aggregateExpressions(), plan.child(), c.none()), keys


def _always_there(plan: Jvm, attribute: Jvm) -> bool:
    """Whether a column of a plan is never NULL. Spark declares every column of GROUPING SETS nullable."""
    if not attribute.nullable():
        return True
    number = identity(attribute)
    match kind(plan):
        case "Filter":
            return _always_there(plan.child(), attribute)
        case "Project":
            made = [e for e in items(plan.projectList()) if identity(e) == number]
        case "Expand":
            place = [identity(a) for a in output_of(plan)].index(number)
            made = [items(projection)[place] for projection in items(plan.projections())]
        case _:
            return False
    inner = [e.child() if kind(e) == "Alias" else e for e in made]
    return all(kind(e) == "AttributeReference" and _always_there(plan.child(), e) for e in inner)
