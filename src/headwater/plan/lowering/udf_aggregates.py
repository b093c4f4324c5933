"""Lowers aggregate nodes that contain user-defined aggregates."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.operators import graph as g
from headwater.plan.lowering.aggregate_functions import (
    AggregateParts,
    arguments_of,
    buffers_of,
    grouping_of,
    is_mergeable,
    is_users,
    result_of,
    with_arguments,
    with_results,
)
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.lowering.sessions import session_in, with_sessions
from headwater.plan.lowering.udf_calls import declared
from headwater.plan.relations.relations import Lowered
from headwater.spark.catalyst import Jvm, find, items, kind, readable
from headwater.udf.udf_aggregates import UserAggregate
from headwater.udf.udf_definitions import FunctionDefinition


def refuse_users_in_over(context: LoweringContext, plan: Jvm) -> None:
    """Reject a window with user-defined aggregates."""
    if _are_declared(context) and any(
        find(e, lambda e: kind(e) == "PythonUDAF") is not None for e in items(plan.windowExpressions())
    ):
        context.refuse(
            plan,
            "user-defined aggregates have no incremental form in OVER",
            hint="use GROUP BY in one view, and join with it in another",
            reason="not-incremental",
        )


def with_users_aggregates(context: LoweringContext, plan: Jvm) -> Lowered | None:
    """Lower an aggregate node with user-defined aggregates; None if it has none."""
    grouping = grouping_of(context, plan) if _are_declared(context) else None
    if grouping is None or not any(map(is_users, grouping.aggregates)):
        return None
    users = [a for a in grouping.aggregates if is_users(a)]
    plain = [a for a in grouping.aggregates if not is_users(a)]
    if not all(is_mergeable(context, a) and not a.isDistinct() for a in plain):
        context.refuse(
            plan,
            "user-defined aggregates cannot be combined with DISTINCT, lists or sketches in one GROUP BY",
            hint="compute them in two views, and join the views",
            reason="udf-aggregate-combination",
        )
    child = context.lower(grouping.below)
    session = session_in(context, plan, grouping.keys)
    if session is not None:
        child = with_sessions(context, child, grouping.keys, session)
    return _finished(context, child, grouping, plain, users)


def _finished(
    context: LoweringContext,
    child: Lowered,
    grouping: AggregateParts,
    plain: Sequence[Jvm],
    users: Sequence[Jvm],
) -> Lowered:
    """Return the operator and the results above it."""
    below, functions = with_arguments(context, child, grouping.keys, [*plain, *users])
    definitions = [declared(context, a.aggregateFunction()) for a in users]
    # groups are recomputed if rows may be retracted and a function cannot remove values
    again = not child.node.append_only and not all(d.removes for d in definitions)
    keys = [e.toAttribute() for e in grouping.keys]
    # the original names contain IDs of this process
    values = [a.resultAttribute().withName("value") for a in users]
    attributes = [*keys, *(buffer for a in plain for buffer in buffers_of(a)), *values]
    schema = context.catalyst.arrow_schema(attributes)
    customs = tuple(
        _custom(context, a, definition, function)
        for a, definition, function in zip(users, definitions, functions[len(plain) :], strict=True)
    )
    own = tuple(
        g.MergeableFunction(f.kind, f.text, f.args, f.filter, ordered=f.ordered and not again)
        for f in functions[: len(plain)]
    )
    node: g.Node = g.AggregateNode(below.node, len(keys), own, schema, customs=customs)
    if again:
        text = ", ".join([*(f.text for f in own), *(f"{x.text} [{x.signature}]" for x in customs)])
        node = g.Regroup(below.node, tuple(range(len(keys))), text, node, schema, whole=not keys)
    finals = [*keys, *(result_of(context, a) for a in plain), *values]
    return with_results(context, Lowered(node, attributes), finals, grouping.results)


def _custom(
    context: LoweringContext, a: Jvm, definition: FunctionDefinition, function: g.MergeableFunction
) -> g.CustomFunction:
    """Return a user-defined aggregate over the argument columns of a function."""
    assert context.functions is not None
    texts = tuple(readable(e) for e in arguments_of(context, a))
    text = f"{definition.name}({', '.join(texts)})"
    handle = UserAggregate(context.functions, definition, function.args, texts)
    return g.CustomFunction(definition.name, definition.signature, text, function.args, handle)


def _are_declared(context: LoweringContext) -> bool:
    """Whether user-defined aggregates are declared; otherwise plans are not searched for them."""
    return any(d.kind == "aggregate" for d in context.declared.values())
