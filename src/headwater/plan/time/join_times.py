"""Joins in event time: bounds on the times of both sides define which rows are late for a match, and when no match can
come."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from headwater.plan.relations.relations import Times
from headwater.plan.relations.time_bounds import TimeRange
from headwater.plan.rewrite.relation_names import relation_of
from headwater.plan.time.final_rows import closed, domain_number
from headwater.plan.time.late_rows import admitted, refuse_timeless
from headwater.plan.time.on_time_versions import note_as_of
from headwater.plan.time.time_expressions import micros, number, plus
from headwater.plan.time.timed_plan import NO_TIME, TimedNode, narrowed, pairs
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import (
    Jvm,
    children_of,
    conjuncts,
    identity,
    items,
    kind,
    module,
    option,
    output_of,
)


def time_join(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to a join."""
    left, right = context.visit(plan.left()), context.visit(plan.right())
    condition = option(plan.condition())
    bounds = None
    if condition is not None:
        bounds = context.bounds.of(condition, _moments(left), _moments(right))
    is_timed = bounds is not None and (bounds.is_closed or right.is_version)
    if not is_timed and (left.stream is not None or right.stream is not None):
        refuse_timeless(context, plan)
    if bounds is None:
        return _unbounded_join(context, plan, left, right)
    if left.stream is not None and right.stream is not None:
        assert bounds.least is not None
        assert bounds.most is not None
        of_left, of_right = {right.stream.name}, {left.stream.name}
        more = 0
        if kind(plan.joinType()) != "Inner":
            # a matched row must not appear to find its first match later: both sides are kept equally long
            of_left = of_right = {left.stream.name, right.stream.name}
            more = max(0, bounds.most, -bounds.least)
        context.expire("Join", bounds.left, sorted(of_left), bounds.most + 1 + more)
        context.expire("Join", bounds.right, sorted(of_right), 1 - bounds.least + more)
    left = admitted(context, left, bounds.left) if left.stream is not None else left
    right = admitted(context, right, bounds.right) if right.stream is not None else right
    joins_versions = note_as_of(context, plan, left, right, bounds)
    seen = _bounded_join(context, plan, left, right, bounds)
    return replace(seen, is_left_out=joins_versions and left.is_left_out)


def filtered_join(context: TimingContext, plan: Jvm) -> Jvm:
    """Turn a filter over an inner join into a join condition: `FROM a, b WHERE ...` is `a JOIN b ON ...`."""
    return _with_condition(context, plan.child(), list(conjuncts(plan.condition()))) or plan


def _with_condition(context: TimingContext, join: Jvm, conditions: list[Jvm]) -> Jvm | None:
    """Return an inner join with additional conditions, pushed down as far as their columns allow; None for any other node."""
    c = context.catalyst
    if kind(join) != "Join" or kind(join.joinType()) not in ("Inner", "Cross"):
        return None
    if (own := option(join.condition())) is not None:
        conditions = [*conjuncts(own), *conditions]
    left = join.left()
    known = {identity(a) for a in output_of(left)}
    below = [e for e in conditions if {identity(a) for a in items(e.references().toSeq())} <= known]
    if below and (made := _with_condition(context, left, below)) is not None:
        left, conditions = made, [e for e in conditions if e not in below]
    some = module(c.jvm.scala, "Some")
    condition = some.apply(reduce(c.expressions.And, conditions)) if conditions else c.none()
    inner = module(c.jvm.org.apache.spark.sql.catalyst.plans, "Inner")
    return join.copy(left, join.right(), inner, condition, join.hint())


def _unbounded_join(context: TimingContext, plan: Jvm, left: TimedNode, right: TimedNode) -> TimedNode:
    """Apply the policy to a join without time bounds.

    Next to a table, whose changes are revisions at any time, the times of the other side are preserved; of two streams,
    only equal windows are.
    """
    c = context.catalyst
    made = plan.withNewChildren(c.seq(narrowed(c, p, s) for p, s in pairs(plan, (left, right))))
    if left.times and right.times and left.is_table == right.is_table:
        known = _equal_windows(context, plan, left, right)
    elif any(not s.times and _is_of_stream(context, p) for p, s in pairs(plan, (left, right))):
        known = {}  # no table, but rows of a topic may change the result at any time: it is never final
    else:
        sides = [s for s in (left, right) if s.times]
        kept = [s for s in sides if not s.is_table] or sides
        known = {i: times for side in kept for i, times in side.times.items()}
    there = _always_there(plan, left, right)
    return TimedNode(made, {i: times for i, times in known.items() if i in there})


def _bounded_join(
    context: TimingContext, plan: Jvm, left: TimedNode, right: TimedNode, bounds: TimeRange
) -> TimedNode:
    c, join = context.catalyst, kind(plan.joinType())
    l_time, r_time = left.times[identity(bounds.left)], right.times[identity(bounds.right)]
    domain, there = l_time.domain | r_time.domain, _always_there(plan, left, right)
    times: dict[int, Times] = {}
    if bounds.most is not None:
        slack = max(l_time.slack_us, bounds.most + r_time.slack_us)
        times[identity(bounds.left)] = Times(domain, slack)
    if bounds.least is not None and not right.is_version:
        slack = max(r_time.slack_us, l_time.slack_us - bounds.least)
        times[identity(bounds.right)] = Times(domain, slack)
    known, times = times, {i: t for i, t in times.items() if i in there}
    left, right = (replace(s, plan=narrowed(c, p, s)) for p, s in pairs(plan, (left, right)))
    if not context.policy.emits or bounds.most is None:
        made = plan.withNewChildren(c.seq([left.plan, right.plan]))
        return TimedNode(made, times)
    there_left, there_right = _there(context, left), _there(context, right)
    made = plan.withNewChildren(c.seq([there_left[0], there_right[0]]))
    # a row that is never retracted waits only for the other side's watermarks; other rows can change until they are final
    # themselves
    stay = left.stays and right.stays
    seen = TimedNode(made, times, stays=stay and join in ("Inner", "LeftSemi"))
    l_waits, r_waits = (r_time.domain if left.stays else domain, l_time.domain if stay else domain)
    more = bounds.most + r_time.slack_us if left.stays else known[identity(bounds.left)].slack_us
    at_left = plus(c, micros(c, bounds.left), more + 1)
    if right.is_version or join == "LeftAnti" or (join == "LeftSemi" and not stay):
        return closed(context, seen, (at_left, l_waits))
    both = module(c.expressions, "Literal").create(None, at_left.dataType())
    if not stay:
        l_waits = domain
        own = ((bounds.left, l_time), (bounds.right, r_time))
        both = c.expressions.Greatest(c.seq(plus(c, micros(c, at), time.slack_us + 1) for at, time in own))
    if join in ("Inner", "LeftSemi"):
        return closed(context, seen, (both, l_waits))
    has_left, has_right = c.expressions.IsNotNull(there_left[1]), c.expressions.IsNotNull(there_right[1])
    matched = c.expressions.And(has_left, has_right)
    if join == "LeftOuter":
        return closed(context, seen, (c.expressions.If(matched, both, at_left), l_waits))
    if bounds.least is None:
        return seen
    more = l_time.slack_us - bounds.least if stay else known[identity(bounds.right)].slack_us
    at_right = plus(c, micros(c, bounds.right), more + 1)
    if join == "RightOuter":
        return closed(context, seen, (c.expressions.If(matched, both, at_right), r_waits))
    if join != "FullOuter":
        return seen
    at = c.expressions.If(matched, both, c.expressions.If(has_left, at_left, at_right))
    numbers = [number(c, domain_number(context, d)) for d in (l_waits, r_waits)]
    return closed(context, seen, (at, c.expressions.If(has_left, *numbers)))


def _there(context: TimingContext, seen: TimedNode) -> tuple[Jvm, Jvm]:
    """Return one side of an outer join with an additional column that is NULL where the side has no row."""
    c = context.catalyst
    there = c.alias(module(c.expressions, "Literal").apply(True), "_there")
    made = c.plans.Project(c.seq([*output_of(seen.plan), there]), seen.plan)
    return made, there.toAttribute()


def _equal_windows(context: TimingContext, plan: Jvm, left: TimedNode, right: TimedNode) -> dict[int, Times]:
    """Return the windows of both sides of a join that are equal in every joined row."""
    condition = option(plan.condition())
    found: dict[int, Times] = {}
    for one, other in [] if condition is None else context.bounds.equal(condition):
        for l_id, r_id in ((one, other), (other, one)):
            mine, theirs = left.times.get(l_id, NO_TIME), right.times.get(r_id, NO_TIME)
            if mine.window and theirs.window:
                slack = max(mine.slack_us, theirs.slack_us)
                found[l_id] = found[r_id] = Times(mine.domain | theirs.domain, slack, window=True)
    return found


def _is_of_stream(context: TimingContext, plan: Jvm) -> bool:
    """Whether a plan reads an append-only topic with event times."""
    name = relation_of(plan) if kind(plan) == "Project" else None
    if name is not None:
        return context.relations[name].is_stream
    return any(_is_of_stream(context, child) for child in children_of(plan))


def _always_there(plan: Jvm, left: TimedNode, right: TimedNode) -> set[int]:
    """Return the attributes with times that are NULL in no row of a join."""
    join = kind(plan.joinType())
    there = set() if join in ("RightOuter", "FullOuter") else set(left.times)
    return there if join in ("LeftOuter", "FullOuter") else there | set(right.times)


def _moments(seen: TimedNode) -> set[int]:
    return {i for i, times in seen.times.items() if not times.window}
