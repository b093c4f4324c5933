"""Lowers aggregate nodes: by mergeable functions where all functions are mergeable, else by recomputing whole groups."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.operators import graph as g
from headwater.plan.lowering.aggregate_functions import (
    AggregateParts,
    are_combinable,
    buffers_of,
    grouping_of,
    is_mergeable,
    result_of,
    with_arguments,
    with_results,
)
from headwater.plan.lowering.distinct_aggregates import with_distinct
from headwater.plan.lowering.linear_steps import counted, keyed, projected, with_scalars
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.lowering.sessions import session_in, unmarked, with_sessions
from headwater.plan.lowering.sketch_nodes import SKETCHED
from headwater.plan.lowering.udf_aggregates import with_users_aggregates
from headwater.plan.relations.relations import Evaluation, Lowered
from headwater.spark.catalyst import Jvm, items, kind, kinds_in, output_of, readable


def lower_aggregate(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower GROUP BY."""
    if (lowered := with_users_aggregates(context, plan)) is not None:
        return lowered
    plan = _without_pivots(context, plan)
    grouping = grouping_of(context, plan)
    if grouping is None:
        context.refuse(plan, "this aggregate has no incremental form", reason="not-incremental")
    child = context.lower(grouping.below)
    session = session_in(context, plan, grouping.keys)
    if session is not None and child.node.append_only and are_combinable(context, grouping.aggregates):
        below, functions = with_arguments(context, child, grouping.keys, grouping.aggregates)
        return _finished(context, below, grouping, functions, session)
    if session is not None:
        child = with_sessions(context, child, grouping.keys, session)
        plan, keys = unmarked(context, plan, grouping.keys, session)
        grouping = grouping._replace(keys=keys)
    if not all(is_mergeable(context, a, child) for a in grouping.aggregates):
        context.lacks_sketches |= any(kind(a.aggregateFunction()) in SKETCHED for a in grouping.aggregates)
        if any(context.has_scalar(e) for e in items(plan.expressions())):
            return _regrouped_with_scalars(context, plan, child, grouping)
        return _regrouped(context, plan, child, grouping.keys)
    plain = [a for a in grouping.aggregates if not a.isDistinct()]
    distinct = [a for a in grouping.aggregates if a.isDistinct()]
    if distinct:
        below, functions = with_distinct(context, child, grouping.keys, plain, distinct)
    else:
        below, functions = with_arguments(context, child, grouping.keys, plain)
    return _finished(context, below, grouping._replace(aggregates=[*plain, *distinct]), functions)


def _without_pivots(context: LoweringContext, plan: Jvm) -> Jvm:
    """Replace the function of PIVOT that turns pre-aggregated values, one per value of a column, into columns.

    Each output column takes its value from a single row, so that max() returns it.
    """
    c, e = context.catalyst, context.catalyst.expressions

    def change(found: Jvm) -> Jvm | None:
        if kind(found) != "AggregateExpression" or kind(found.aggregateFunction()) != "PivotFirst":
            return None
        pivot = found.aggregateFunction()
        column, value = pivot.pivotColumn(), pivot.valueColumn()
        sql = c.jvm.org.apache.spark.sql
        listed = sql.catalyst.util.GenericArrayData(pivot.pivotColumnValues())
        # as one literal: converted one by one, the values would lose their types
        values = e.Literal(listed, sql.types.ArrayType(column.dataType(), True))
        chosen = [
            e.If(
                e.EqualNullSafe(column, e.GetArrayItem(values, context.literal(i), False)),
                value,
                context.null(value.dataType()),
            )
            for i in range(pivot.pivotColumnValues().size())
        ]
        return e.CreateArray(c.seq(e.aggregate.Max(one).toAggregateExpression() for one in chosen), False)

    if "PivotFirst" not in kinds_in(items(plan.aggregateExpressions())):
        return plan
    outputs = [c.rewritten(o, change) for o in items(plan.aggregateExpressions())]
    return plan.copy(plan.groupingExpressions(), c.seq(outputs), plan.child(), c.none())


def _finished(
    context: LoweringContext,
    below: Lowered,
    grouping: AggregateParts,
    functions: Sequence[g.MergeableFunction],
    session: int | None = None,
) -> Lowered:
    """Return the aggregate operator and the results above it; `functions` correspond to the aggregates by position.

    `session` is the index of the key that is a session window, if its rows still have their own intervals.
    """
    keys = [e.toAttribute() for e in grouping.keys]
    buffers: list[Jvm] = []
    finals: list[Jvm] = []
    sketched: dict[int, g.MergeableFunction] = {}
    for function, a in zip(functions, grouping.aggregates, strict=True):
        if kind(a.aggregateFunction()) in SKETCHED:  # the kernel computes the answer itself
            sketched[len(keys) + len(buffers)] = function
            answer = a.resultAttribute().withName("answer")  # the original name contains IDs of this process
            buffers.append(answer)
            finals.append(answer)
        else:
            buffers += buffers_of(a)
            finals.append(result_of(context, a))
    attributes = [*keys, *buffers]
    schema = context.catalyst.arrow_schema(attributes)
    node: g.Node = g.AggregateNode(below.node, len(keys), tuple(functions), schema)
    if session is not None:
        node = g.SessionAggregate(below.node, len(keys), session, tuple(functions), schema)
    if sketched:
        context.sketched[id(node)] = node, sketched
    return with_results(context, Lowered(node, attributes), [*keys, *finals], grouping.results)


def _regrouped(context: LoweringContext, plan: Jvm, child: Lowered, grouping: Sequence[Jvm]) -> Lowered:
    """Return an operator for any other aggregate: Spark recomputes it for the groups that a change affects."""
    child = counted(context, child)
    below, key = keyed(context, child, [e.child() if kind(e) == "Alias" else e for e in grouping])
    attributes = output_of(plan)
    node = g.Regroup(
        below.node,
        key,
        readable(plan).splitlines()[0],
        Evaluation(plan, tuple(child.attributes)),
        context.catalyst.arrow_schema(attributes),
        whole=not key,
    )
    return Lowered(node, attributes)


def _regrouped_with_scalars(
    context: LoweringContext, plan: Jvm, child: Lowered, grouping: AggregateParts
) -> Lowered:
    """Recompute groups of an aggregate with scalar subqueries: those inside functions become input columns, those around
    functions are evaluated above the operator."""
    c = context.catalyst
    child, changed = with_scalars(context, child, [*grouping.keys, *grouping.aggregates])
    keys, functions = changed[: len(grouping.keys)], changed[len(grouping.keys) :]
    bare = [e.child() if kind(e) == "Alias" else e for e in keys]
    shown = [*keys, *(c.alias(a, "result", like=a.resultAttribute()) for a in functions)]
    inner = plan.copy(c.seq(bare), c.seq(shown), plan.child(), c.none())
    return projected(context, _regrouped(context, inner, child, keys), grouping.results)
