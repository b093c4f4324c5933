"""Lowers window functions and limits: to top-k where only the first rows matter, else by recomputing whole groups."""

from __future__ import annotations

from headwater.operators import graph as g
from headwater.plan.lowering.linear_steps import counted, keyed, narrowed, ordered, projected_by
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.lowering.sliding_frames import lower_sliding, sliding_frames
from headwater.plan.lowering.udf_aggregates import refuse_users_in_over
from headwater.plan.lowering.version_scans import is_of_records, lower_records
from headwater.plan.relations.relations import Evaluation, Lowered
from headwater.spark.catalyst import Jvm, children_of, find, identity, items, kind, output_of, readable

_RANKS: dict[str, g.RankFunction] = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}


def lower_window(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower OVER: by sliding frames if all functions have one, else by whole groups."""
    if is_of_records(plan):
        return lower_records(context, plan)
    refuse_users_in_over(context, plan)
    if (frames := sliding_frames(plan)) is not None:
        return lower_sliding(context, plan, frames)
    return _by_groups(context, plan)


def _by_groups(context: LoweringContext, plan: Jvm) -> Lowered:
    """Return an operator that recomputes the window for the groups that a change affects."""
    _refuse_unordered(context, plan)
    child = counted(context, context.lower(plan.child()))
    below, key = keyed(context, child, items(plan.partitionSpec()))
    attributes = [*child.attributes, *(e.toAttribute() for e in items(plan.windowExpressions()))]
    node = g.Regroup(
        below.node,
        key,
        readable(plan).splitlines()[0],
        Evaluation(plan, tuple(child.attributes)),
        context.catalyst.arrow_schema(attributes),
    )
    return narrowed(context, Lowered(node, attributes), output_of(plan))


def _refuse_unordered(context: LoweringContext, plan: Jvm) -> None:
    """Reject a row_number() without an order: it comes from a correlated LIMIT, since user-written ones were rejected
    earlier."""
    if plan.orderSpec().size() == 0 and any(
        find(e, lambda e: kind(e) == "RowNumber") is not None for e in items(plan.windowExpressions())
    ):
        context.refuse(
            plan,
            "LIMIT without ORDER BY can return any rows, so the result is not defined",
            hint="add ORDER BY",
            reason="limit-without-order",
        )


def ranked(context: LoweringContext, plan: Jvm) -> Lowered | None:
    """Return top-k for the window below a filter `rank <= k`, if the window only ranks; None otherwise."""
    window = plan.child()
    if kind(window) != "Window" or window.windowExpressions().size() != 1:
        return None
    named = window.windowExpressions().head()
    found = find(named, lambda e: kind(e) == "WindowExpression")
    function = _RANKS.get(kind(found.windowFunction())) if found is not None else None
    limit = _limit_in(plan.condition(), named.toAttribute())
    if function is None or limit is None or window.orderSpec().size() == 0:
        return None  # `_by_groups` reports a rank without an order
    child = context.lower(window.child())
    below, key = keyed(context, child, items(window.partitionSpec()))
    below, order = ordered(context, below, window.orderSpec())
    if below.node is not child.node and len(below.attributes) > len(child.attributes):
        # ties are broken by the remaining columns, which must not include helper columns of the order
        return None
    rank = named.toAttribute()
    attributes = [*below.attributes, rank]
    node = g.Rank(
        below.node, key, order, function, max(limit, 0), 0, True, context.catalyst.arrow_schema(attributes)
    )
    return Lowered(node, attributes)


def _limit_in(condition: Jvm, rank: Jvm) -> int | None:
    """Return the k of `rank <= k`, `rank < k` or `rank = k` among the conjuncts of a condition, or None."""
    if kind(condition) == "And":
        found = [_limit_in(c, rank) for c in children_of(condition)]
        limits = [f for f in found if f is not None]
        return min(limits) if limits else None
    if kind(condition) not in ("LessThanOrEqual", "LessThan", "EqualTo"):
        return None
    left, right = children_of(condition)
    if kind(left) != "AttributeReference" or identity(left) != identity(rank) or kind(right) != "Literal":
        return None
    value = right.value()
    if not isinstance(value, int):
        return None
    return value - 1 if kind(condition) == "LessThan" else value


def lower_limit(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower LIMIT, with adjacent OFFSET and ORDER BY."""
    return _limited(context, plan, _number(context, plan.limitExpr()), plan.child(), 0)


def lower_offset(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower OFFSET; the LIMIT node is below the OFFSET node."""
    return _limited(context, plan, None, plan, 0)


def _limited(context: LoweringContext, plan: Jvm, limit: int | None, below: Jvm, offset: int) -> Lowered:
    projects: list[Jvm] = []
    while kind(below) in ("LocalLimit", "GlobalLimit", "Offset", "Project"):
        match kind(below):
            case "Offset":
                offset += _number(context, below.offsetExpr())
            case "Project":
                projects.append(below)
            case _:
                own = _number(context, below.limitExpr())
                limit = own if limit is None else min(limit, own)
        below = below.child()
    if kind(below) != "Sort" and projects and limit is not None and _alike(projects[-1]):
        child = context.lower(projects[-1])
        node = g.Rank(child.node, (), (), "row_number", limit + offset, offset, False, child.node.schema)
        return projected_by(context, projects[:-1], Lowered(node, child.attributes))
    if kind(below) != "Sort":
        context.refuse(
            plan,
            "LIMIT without ORDER BY can return any rows, so the result is not defined",
            hint="add ORDER BY",
            reason="limit-without-order",
        )
    if limit is None:
        context.refuse(
            plan, "views do not support OFFSET without LIMIT", hint="add LIMIT", reason="offset-without-limit"
        )
    child = context.lower(below.child())
    lowered, order = ordered(context, child, below.order())
    node = g.Rank(
        lowered.node,
        (),
        order,
        "row_number",
        limit + offset,
        offset,
        False,
        context.catalyst.arrow_schema(lowered.attributes),
    )
    return projected_by(
        context, projects, narrowed(context, Lowered(node, lowered.attributes), child.attributes)
    )


def _alike(project: Jvm) -> bool:
    """Whether all rows of a plan are equal, so that LIMIT may take any: EXISTS (SELECT 1 ...)."""
    return all(
        e.foldable() or (kind(e) == "Alias" and e.child().foldable()) for e in items(project.projectList())
    )


def _number(context: LoweringContext, e: Jvm) -> int:
    if not e.foldable():
        context.refuse(e, "LIMIT and OFFSET must be constant numbers in views", reason="limit-not-constant")
    return int(e.eval(None))
