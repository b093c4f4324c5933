"""Row patterns in event time: late rows are dropped, and matches are final once no row can change them.

The matching kernel computes when that is (`closes`): once the watermark has passed all rows that were inspected to decide
on a match and on those before it; where more rows could still extend the match, once WITHIN is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.core.clock import to_us
from headwater.log.topic import END_OF_TIME
from headwater.operators import graph as g
from headwater.operators.match_recognize.match_operator import retained_us
from headwater.operators.match_recognize.spec import CLOSES, Classify, MatchSpec, Navigate
from headwater.plan.match_recognize.clause import NODE, columns_matched, matched_by, renumbered
from headwater.plan.relations.relations import Times
from headwater.plan.time.final_rows import closed
from headwater.plan.time.late_rows import admitted
from headwater.plan.time.time_expressions import long, plus
from headwater.plan.time.timed_plan import TimedNode, narrowed
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, identity, items, kind, output_of

_ENDED = to_us(END_OF_TIME)


def time_match(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to MATCH_RECOGNIZE."""
    c = context.catalyst
    below = context.visit(plan.child())
    found = matched_by(plan, c)
    spec = found.spec
    attribute = None if spec.time is None else columns_matched(plan)[spec.time]
    known = None if attribute is None else below.times.get(identity(attribute))
    if known is None or known.window:
        return _untimed_match(context, plan, below, spec)
    if below.stream is not None:
        if (span := retained_us(spec)) is not None:
            for known_as in (attribute, *_renamed(plan.child(), attribute)):
                context.expire(NODE, known_as, [below.stream.name], span + 1)
        below = admitted(context, below, attribute)
    child = narrowed(c, plan.child(), below)
    times = _times(spec, known, output_of(plan))
    if context.policy.emits:
        closing = replace(found, spec=replace(spec, closing=True))
        closes = c.alias(long(c, 0), CLOSES).toAttribute()
        made = renumbered(c, plan, closing, [*output_of(plan), closes], child)
        # a match that waits for a missing row is final when no more rows can come
        last = c.expressions.Least(c.seq([closes, long(c, _ENDED - known.slack_us)]))
        return closed(context, TimedNode(made, times), (plus(c, last, known.slack_us), known.domain))
    if spec.timeouts:
        waits = g.Waits(tuple(sorted(known.domain)), known.slack_us)
        waiting = replace(found, spec=replace(spec, closing=True), waits=waits)
        return TimedNode(renumbered(c, plan, waiting, output_of(plan), child), times)
    return TimedNode(plan.withNewChildren(c.seq([child])), times)


def _untimed_match(context: TimingContext, plan: Jvm, below: TimedNode, spec: MatchSpec) -> TimedNode:
    c = context.catalyst
    hint = "write ORDER BY with the topic's WATERMARK column first, ascending"
    if below.stream is not None:
        reason = "applies to late rows, and this pattern is not ordered by event time"
        context.refuse(
            plan,
            f"{context.policy.option} {reason}",
            hint=f"{hint}; or leave the option out",
            reason="not-in-event-time-order",
        )
    if spec.timeouts:
        reason = "times out by watermarks, and this pattern is not ordered by event time"
        context.refuse(plan, f"EMIT TIMEOUTS {reason}", hint=hint, reason="timeouts-not-in-event-time-order")
    return TimedNode(plan.withNewChildren(c.seq([narrowed(c, plan.child(), below)])))


def _renamed(plan: Jvm, attribute: Jvm) -> list[Jvm]:
    """Return the column that an attribute of a projection renames, in a list; the optimizer removes such renames."""
    given = items(plan.projectList()) if kind(plan) == "Project" else []
    own = [e for e in given if identity(e) == identity(attribute) and kind(e) == "Alias"]
    return [e.child() for e in own if kind(e.child()) == "AttributeReference"]


def _times(spec: MatchSpec, known: Times, output: Sequence[Jvm]) -> dict[int, Times]:
    """Return the output columns that have event times of matched rows; a match is decided at most WITHIN after each of its
    rows."""
    if spec.within is None or any(_looks_ahead(spec, number) for number in range(len(spec.expressions))):
        return {}
    later = replace(known, slack_us=known.slack_us + spec.within)
    return {
        identity(attribute): later
        for attribute, shown in zip(output, spec.shown, strict=True)
        if _is_time(spec, shown.what, shown.number)
    }


def _looks_ahead(spec: MatchSpec, number: int) -> bool:
    inputs = spec.expressions[number].inputs
    return any(isinstance(each, Navigate | Classify) and each.offset > 0 for each in inputs)


def _is_time(spec: MatchSpec, what: str, number: int) -> bool:
    if what == "column":
        return number == spec.time and spec.rows != "one"
    if what != "measure":
        return False
    measure = spec.expressions[spec.measures[number]]
    is_plain = len(measure.inputs) == 1 and measure.type == spec.schema.field(spec.time or 0).type
    first = measure.inputs[0] if is_plain else None
    return isinstance(first, Navigate) and first.column == spec.time and first.offset == 0
