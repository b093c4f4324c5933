"""Late rows in a plan: rows of topics that are filtered out where they enter a window, and are kept in a separate plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from headwater.plan.relations.metadata_columns import table_topic
from headwater.plan.relations.relations import Relation
from headwater.plan.rewrite.cumulate_window import ending_after
from headwater.plan.time.late_policy import POSITION, WATERMARK
from headwater.plan.time.time_expressions import coalesced, field, long, micros, no_time, number, plus
from headwater.plan.time.timed_plan import (
    ARRIVAL,
    SESSION,
    LatePlan,
    Stream,
    TimedNode,
    has_windows_by_arrival,
)
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, identity, module


def admitted(context: TimingContext, seen: TimedNode, by: Jvm) -> TimedNode:
    """Return the rows of a topic that are not late for a window, or at a time; add a plan of the others to the context."""
    c, stream = context.catalyst, seen.stream
    assert stream is not None
    known = seen.times[identity(by)]
    watermark = micros(c, stream.hidden[WATERMARK])
    allowed = context.policy.options.correct_for_us or 0
    start, end = no_time(c), no_time(c)
    time = by
    late = None
    if by.metadata().contains(SESSION):
        time = field(c, by, 0)
    elif known.window:
        start, end = field(c, by, 0), field(c, by, 1)
        late = c.expressions.LessThanOrEqual(plus(c, micros(c, end), allowed), watermark)
        time = _stream_time(context, seen)
    if late is None:
        late = c.expressions.LessThan(plus(c, micros(c, time), allowed), watermark)
    late = coalesced(c, _not_replayed(context, late, stream))
    behind = c.expressions.LessThan(micros(c, time), watermark)
    columns = [
        *stream.columns,
        *(stream.hidden[name] for name in (*POSITION, WATERMARK)),
        c.alias(start, "_window_start"),
        c.alias(end, "_window_end"),
        c.alias(time, "_time"),
        c.alias(late, "_late"),
    ]
    plan = c.plans.Project(c.seq(columns), c.plans.Filter(behind, seen.plan))
    context.late.append(LatePlan(stream.name, plan))
    on_time = ending_after(c, seen.plan, by, _limit(context, stream)) if known.window else None
    if on_time is None:
        on_time = c.plans.Filter(c.expressions.Not(late), seen.plan)
    return replace(seen, plan=on_time, stream=None, carried=(), is_left_out=True)


def _not_replayed(context: TimingContext, late: Jvm, stream: Stream) -> Jvm:
    """Exclude replayed rows from the late rows."""
    c = context.catalyst
    for given in _given_back(context, stream):
        late = c.expressions.And(late, c.expressions.Not(given))
    return late


def _limit(context: TimingContext, stream: Stream) -> Jvm:
    """Return the end, in microseconds, up to which windows are late for a row; NULL for replayed rows."""
    c = context.catalyst
    allowed = context.policy.options.correct_for_us or 0
    limit = plus(c, micros(c, stream.hidden[WATERMARK]), -allowed)
    none = module(c.expressions, "Literal").create(None, limit.dataType())
    for given in _given_back(context, stream):
        limit = c.expressions.If(given, none, limit)
    return limit


def _given_back(context: TimingContext, stream: Stream) -> Iterator[Jvm]:
    """Yield, per partition, the condition that a row was replayed."""
    c = context.catalyst
    e = c.expressions
    for partition, end in sorted(context.policy.replayed.get(stream.name, {}).items()):
        own = e.EqualTo(stream.hidden["_partition"], number(c, partition))
        yield e.And(own, e.LessThan(stream.hidden["_offset"], long(c, end)))


def _stream_time(context: TimingContext, seen: TimedNode) -> Jvm:
    assert seen.stream is not None
    relation = context.relations[seen.stream.name]
    return next(a for a in seen.stream.columns if a.name() in relation.times)


def refuse_never_late(context: TimingContext, plan: Jvm) -> None:
    """Reject a policy on a query that reads no topic whose rows can be late: the policy would have no effect."""
    read = [context.relations[name] for name in dict.fromkeys(context.mentions)]
    if any(relation.is_stream for relation in read):
        return
    reasons = [_why_never_late(relation) for relation in read] or ["the query reads no topic"]
    views = [relation.name for relation in read if _is_view(relation)]
    hint = "leave the option out"
    if views:
        hint += f" here; declare it in {views[0]}, or in a view below that reads a topic"
    elif any(relation.append_only for relation in read):
        hint += ", or use a topic with a WATERMARK"
    context.refuse(
        plan,
        f"{context.policy.option} applies to late rows of topics, and {', and '.join(reasons)}",
        hint=hint,
        reason="never-late",
        relation=read[0].name if read else None,
    )


def refuse_timeless(context: TimingContext, plan: Jvm) -> NoReturn:
    """Reject a query in which rows of a topic have no window by which they could be late."""
    if has_windows_by_arrival(plan):
        context.refuse(
            plan,
            f"{context.policy.option} applies to late rows, and no row is late by {ARRIVAL}, which is the time of its append",
            hint="use the topic's WATERMARK column, or leave the option out",
            reason="windows-by-arrival",
        )
    context.refuse(
        plan,
        f"{context.policy.option} applies to rows that are late for a window, and this query has no window of a topic's event time",
        hint="group by window(), session_window() or cumulate_window() of the topic's WATERMARK column, use OVER (... ORDER BY at RANGE ...) or join with bounds on that column, over the topic itself; or leave the option out",
        reason="no-event-time-window",
    )


def _is_view(relation: Relation) -> bool:
    return relation.versions is None and not relation.is_versions


def _why_never_late(relation: Relation) -> str:
    """Return the reason why rows of a relation are never late."""
    if _is_view(relation):
        return f"{relation.name} is a view: lateness is decided in the view that reads the topic"
    if relation.append_only:
        return f"topic {relation.name} has no WATERMARK, so none of its rows is late"
    name = table_topic(relation.name) if relation.is_versions else relation.name
    return f"{name} is a keyed topic: a newer row replaces the older one of its key"
