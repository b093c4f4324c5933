"""Lowers MATCH_RECOGNIZE to an operator over whole partitions. `plan.match_recognize` compiles the clause."""

from __future__ import annotations

from headwater.operators import graph as g
from headwater.operators.match_recognize.spec import CLOSES
from headwater.plan.lowering.linear_steps import narrowed, projected
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.match_recognize.clause import columns_matched, matched_by
from headwater.plan.relations.relations import Lowered
from headwater.plan.time.late_policy import CLOSE, DOMAIN
from headwater.spark.catalyst import Jvm, output_of


def lower_match(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower the plan node that represents MATCH_RECOGNIZE."""
    found = matched_by(plan, context.catalyst)
    below = narrowed(context, context.lower(plan.child()), columns_matched(plan))
    attributes = output_of(plan)
    text = f"{found.text} with {', '.join(e.text for e in found.expressions)}"
    if found.waits is None:
        schema = context.catalyst.arrow_schema(attributes)
        return Lowered(g.Regroup(below.node, found.spec.partition, text, found, schema), attributes)
    return _waiting(context, below, found, found.waits, text, attributes)


def _waiting(
    context: LoweringContext,
    below: Lowered,
    found: g.RowPattern,
    waits: g.Waits,
    text: str,
    attributes: list[Jvm],
) -> Lowered:
    """Return matches, which are emitted at once, and timed-out matches, which are emitted once the watermark passes their
    time limit."""
    c = context.catalyst
    closes = c.alias(_long_number(context, 0), CLOSES).toAttribute()
    whole = [*attributes, closes]
    node = g.Regroup(below.node, found.spec.partition, text, found, c.arrow_schema(whole))
    is_over = next(a for a, s in zip(attributes, found.spec.shown, strict=True) if s.what == "timed out")
    when = c.expressions.Add(closes, _long_number(context, waits.slack_us)) if waits.slack_us else closes
    at = c.expressions.If(is_over, when, context.null(closes.dataType()))
    columns = [*attributes, c.alias(at, CLOSE), c.alias(context.literal(0), DOMAIN)]
    waiting = projected(context, Lowered(node, whole), columns)
    return Lowered(g.Close(waiting.node, (waits.topics,), c.arrow_schema(attributes)), attributes)


def _long_number(context: LoweringContext, value: int) -> Jvm:
    return context.catalyst.cast(context.literal(value), context.bigint())
