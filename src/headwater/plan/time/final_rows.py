"""Final rows in a plan: two columns say which watermarks must have reached which time before a row is emitted."""

from __future__ import annotations

from dataclasses import replace

from headwater.plan.relations.relations import Times
from headwater.plan.time.late_policy import CLOSE, DOMAIN
from headwater.plan.time.time_expressions import field, micros, number, plus
from headwater.plan.time.timed_plan import TimedNode
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, output_of

Closes = tuple[Jvm, frozenset[str] | Jvm]
"""The time, and the topics whose watermarks must have reached it, or an expression for their domain number."""


def closes(context: TimingContext, key: Jvm, times: Times) -> tuple[Jvm, frozenset[str]]:
    """Return when the group of a key is final."""
    c = context.catalyst
    if times.window:
        return plus(c, micros(c, field(c, key, 1)), times.slack_us), times.domain
    return plus(c, micros(c, key), times.slack_us + 1), times.domain


def closing_columns(context: TimingContext, closes: Closes) -> tuple[Jvm, Jvm]:
    """Return the columns CLOSE and DOMAIN."""
    c = context.catalyst
    at, domain = closes
    which = number(c, domain_number(context, domain)) if isinstance(domain, frozenset) else domain
    return c.alias(at, CLOSE), c.alias(which, DOMAIN)


def closed(context: TimingContext, seen: TimedNode, closes: Closes) -> TimedNode:
    """Return the rows with two more columns that say when they are final."""
    c = context.catalyst
    carried = closing_columns(context, closes)
    made = c.plans.Project(c.seq([*output_of(seen.plan), *carried]), seen.plan)
    return replace(seen, plan=made, carried=tuple(e.toAttribute() for e in carried), is_closing=True)


def domain_number(context: TimingContext, topics: frozenset[str]) -> int:
    """Return the number that DOMAIN uses for a set of topics."""
    if topics not in context.domains:
        context.domains.append(topics)
    return context.domains.index(topics)
