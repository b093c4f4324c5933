"""OVER in event time: frames along an event time define which rows are late, and when a frame is complete."""

from __future__ import annotations

from dataclasses import replace

from headwater.plan.time.final_rows import closed, closes
from headwater.plan.time.late_rows import admitted, refuse_timeless
from headwater.plan.time.time_expressions import micros, plus
from headwater.plan.time.timed_plan import NO_TIME, TimedNode
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, identity, items, kind


def time_window(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to OVER; rows of a topic can be late for a frame along their event time."""
    c = context.catalyst
    below = context.visit(plan.child())
    partition = [a for a in items(plan.partitionSpec()) if kind(a) == "AttributeReference"]
    windows = [a for a in partition if below.times.get(identity(a), NO_TIME).window]
    order = _frame_time(context, plan, below)
    if below.stream is not None:
        attribute, following = order if order is not None else refuse_timeless(context, plan)
        if (reach := _reach(context, plan, following)) is not None:
            context.expire("Window", attribute, {below.stream.name}, reach + 1)
        below = admitted(context, below, attribute)
    elif order is not None:
        _expire_further(context, order[0], _reach(context, plan, order[1]))
    made = plan.withNewChildren(c.seq([below.plan]))
    # a later row can change earlier rows through its frame: other times do not say when rows are final
    times = {identity(w): below.times[identity(w)] for w in windows}
    if windows and (below.is_closing or order is None):
        seen = TimedNode(made, times)
        at_end = closes(context, windows[0], times[identity(windows[0])])
        return closed(context, seen, at_end) if context.policy.emits else seen
    if order is None:
        return TimedNode(made, times)
    attribute, following = order
    known = below.times[identity(attribute)]
    times[identity(attribute)] = replace(known, slack_us=known.slack_us + following)
    seen = TimedNode(made, times)
    if context.policy.emits:
        at = plus(c, micros(c, attribute), known.slack_us + following + 1)
        seen = closed(context, seen, (at, known.domain))
    return seen


def _frame_time(context: TimingContext, plan: Jvm, below: TimedNode) -> tuple[Jvm, int] | None:
    """Return the event time along which frames are ordered, and how far they look ahead; None if a frame covers all rows."""
    order = items(plan.orderSpec())
    if not order or kind(order[0].child()) != "AttributeReference":
        return None
    attribute = order[0].child()
    known = below.times.get(identity(attribute))
    if known is None or known.window or kind(order[0].direction()) != "Ascending":
        return None
    ahead = [context.bounds.ahead(e) for e in items(plan.windowExpressions())]
    if any(a is None for a in ahead):
        return None
    return attribute, max([0, *(a for a in ahead if a is not None)])


def _reach(context: TimingContext, plan: Jvm, following: int) -> int | None:
    """Return how far the frames of a window reach in total, back and ahead; None if by rows or unbounded."""
    behind = [context.bounds.behind(e) for e in items(plan.windowExpressions())]
    known = [b for b in behind if b is not None]
    return max([0, *known]) + following if len(known) == len(behind) else None


def _expire_further(context: TimingContext, attribute: Jvm, reach: int | None) -> None:
    """Add the reach of a frame over rows that already have frames: a change affects rows within both reaches together."""
    for place in context.places("Window", attribute):
        known = context.expiring.pop(place, None)
        if known is not None and reach is not None:
            context.expiring[place] = replace(known, slack_us=known.slack_us + reach)
