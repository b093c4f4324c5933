"""Event times of columns: which columns are unmodified event times of a topic, or windows of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headwater.plan.relations.relations import Times
from headwater.plan.relations.time_bounds import windowed
from headwater.plan.rewrite.cumulate_window import TIME_WINDOW
from headwater.plan.time.timed_plan import NO_TIME, SESSION, TimedNode
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, find, identity, items, kind


def time_of(context: TimingContext, expression: Jvm, below: TimedNode) -> Times | None:
    """Return the event time properties of a column of a projection, or None."""
    inner = expression.child() if kind(expression) == "Alias" else expression
    if kind(inner) == "AttributeReference":
        return below.times.get(identity(inner))
    if kind(expression) != "Alias":
        return None
    metadata = expression.toAttribute().metadata()
    if metadata.contains(TIME_WINDOW) or metadata.contains(SESSION):
        found = read_time(context, inner, below)
        # a row exactly at the end of a session still joins the session
        more = 1 if metadata.contains(SESSION) else 0
        return None if found is None else replace(found, window=True, slack_us=found.slack_us + more)
    end = find(inner, lambda e: kind(e) == "GetStructField")
    if end is not None and _is_end(inner, end, below):
        return replace(below.times[identity(end.child())], window=False)
    return None


def _is_end(expression: Jvm, field: Jvm, below: TimedNode) -> bool:
    """Whether an expression is the end of a window, or `window_time` of a window."""
    window = field.child()
    if kind(window) != "AttributeReference" or not below.times.get(identity(window), NO_TIME).window:
        return False
    is_last = field.ordinal() == 1
    return is_last and (_same(expression, field) or kind(expression) == "PreciseTimestampConversion")


def read_time(context: TimingContext, expression: Jvm, below: TimedNode) -> Times | None:
    """Return the event time that a window is computed from, if the window reads that unmodified event time only; None
    otherwise."""
    parts = {identity(a) for a in items(expression.references().toSeq())}
    read = {context.made_of.get(each, each) for each in parts}
    found = below.times.get(read.pop()) if len(read) == 1 else None
    time = windowed(expression)
    as_it_is = parts <= context.made_of.keys() if time is None else kind(time) == "AttributeReference"
    return found if found is not None and not found.window and as_it_is else None


def note_made_of(
    context: TimingContext, expression: Jvm, attributes: Iterable[Jvm], below: TimedNode
) -> None:
    """Record that attributes are computed from one unmodified event time, if they are."""
    if read_time(context, expression, below) is not None:
        read = identity(items(expression.references().toSeq())[0])
        context.made_of |= {identity(a): context.made_of.get(read, read) for a in attributes}


def _same(one: Jvm, other: Jvm) -> bool:
    return bool(one.semanticEquals(other))
