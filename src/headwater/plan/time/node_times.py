"""Projections, aggregates and unions in event time: where rows get windows, and which event times remain available above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.plan.rewrite.cumulate_window import TIME_WINDOW
from headwater.plan.time.column_times import note_made_of, read_time, time_of
from headwater.plan.time.final_rows import closes, closing_columns
from headwater.plan.time.join_times import filtered_join, time_join
from headwater.plan.time.late_rows import admitted, refuse_timeless
from headwater.plan.time.relation_times import relation_in, time_relation
from headwater.plan.time.timed_plan import SESSION, TimedNode, narrowed, pairs, with_carried
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, children_of, find, identity, items, kind, output_of


def time_same_rows(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to a node that passes on all or some of its input rows unchanged."""
    seen = context.visit(plan.child())
    return replace(seen, plan=plan.withNewChildren(context.catalyst.seq([seen.plan])))


def time_filter(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to a filter; a filter over a join is merged into the join condition."""
    if _has_subquery(plan.condition()):
        return time_other(context, plan)
    if kind(plan.child()) == "Join":
        plan = filtered_join(context, plan)
    return time_same_rows(context, plan) if kind(plan) == "Filter" else time_join(context, plan)


def time_project(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to a projection, which may read a relation or compute windows."""
    if (relation := relation_in(context, plan)) is not None:
        return time_relation(context, plan, relation)
    c = context.catalyst
    below = context.visit(plan.child())
    given = items(plan.projectList())
    times = {}
    for expression in given:
        found = time_of(context, expression, below)
        if found is not None:
            times[identity(expression)] = found
        else:
            note_made_of(context, expression, [expression], below)
    if any(_has_subquery(e) for e in given):
        return time_other(context, plan, [below])
    made = c.plans.Project(c.seq(with_carried(given, below)), below.plan)
    for attribute in below.carried:
        if identity(attribute) in below.times:
            times[identity(attribute)] = below.times[identity(attribute)]
    return replace(below, plan=made, times=times)


def time_expand(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to an expansion of rows, as used by sliding windows and GROUPING SETS."""
    c = context.catalyst
    below = context.visit(plan.child())
    output, projections = output_of(plan), [items(p) for p in items(plan.projections())]
    times = {}
    for place, attribute in enumerate(output):
        columns = [p[place] for p in projections]
        if all(kind(e) == "AttributeReference" for e in columns):
            if identity(columns[0]) in below.times and len({identity(e) for e in columns}) == 1:
                times[identity(attribute)] = below.times[identity(columns[0])]
        elif attribute.metadata().contains(TIME_WINDOW):
            found = read_time(context, columns[0], below)
            if found is not None:
                times[identity(attribute)] = replace(found, window=True)
    missing = [a for a in below.carried if identity(a) not in {identity(o) for o in output}]
    made = c.plans.Expand(
        c.seq(c.seq([*p, *missing]) for p in projections),
        c.seq([*output, *missing]),
        below.plan,
    )
    return replace(below, plan=made, times=times)


def time_generate(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to a generator, which may produce cumulative windows."""
    c = context.catalyst
    below = context.visit(plan.child())
    made = plan.withNewChildren(c.seq([below.plan]))
    times = dict(below.times)
    note_made_of(context, plan.generator(), items(plan.generatorOutput()), below)
    for attribute in items(plan.generatorOutput()):
        if attribute.metadata().contains(TIME_WINDOW):
            found = read_time(context, plan.generator(), below)
            if found is not None:
                times[identity(attribute)] = replace(found, window=True)
    return replace(below, plan=made, times=times)


def time_aggregate(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to GROUP BY, where rows of a topic enter their windows."""
    c = context.catalyst
    below = context.visit(plan.child())
    keys = [e for e in items(plan.groupingExpressions()) if kind(e) == "AttributeReference"]
    windows = [k for k in keys if identity(k) in below.times and below.times[identity(k)].window]
    moments = [k for k in keys if identity(k) in below.times and not below.times[identity(k)].window]
    if below.stream is not None:
        if not windows:
            refuse_timeless(context, plan)
        is_session = windows[0].metadata().contains(SESSION)
        context.expire("Aggregate", windows[0], {below.stream.name}, 1 if is_session else 0)
        below = admitted(context, below, windows[0])
        # rows are admitted by the first window only: rows of other windows and times may still come
        windows, moments = windows[:1], moments if is_session else []
    given = items(plan.aggregateExpressions())
    by_key = replace(below, times={identity(k): below.times[identity(k)] for k in (*windows, *moments)})
    times = {}
    for expression in given:
        found = time_of(context, expression, by_key)
        if found is not None:
            times[identity(expression)] = found
    carried: tuple[Jvm, ...] = ()
    if context.policy.emits and (windows or moments):
        key = (windows or moments)[0]
        carried = closing_columns(context, closes(context, key, below.times[identity(key)]))
        given = [*given, *carried]
    made = plan.copy(plan.groupingExpressions(), c.seq(given), below.plan, plan.hint())
    return TimedNode(made, times, None, tuple(e.toAttribute() for e in carried), bool(carried))


def time_distinct(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to DISTINCT, which is a GROUP BY over all columns."""
    c = context.catalyst
    below = context.visit(plan.child())
    shown = output_of(plan)
    windows = [a for a in shown if identity(a) in below.times and below.times[identity(a)].window]
    if below.stream is not None:
        if not windows:
            refuse_timeless(context, plan)
        slack = below.times[identity(windows[0])].slack_us
        context.expire("Aggregate", windows[0], {below.stream.name}, slack)
        below = admitted(context, below, windows[0])
        below = replace(below, times={identity(windows[0]): below.times[identity(windows[0])]})
    times = {identity(a): below.times[identity(a)] for a in shown if identity(a) in below.times}
    closing: tuple[Jvm, ...] = ()
    if context.policy.emits and windows:
        closing = closing_columns(context, closes(context, windows[0], times[identity(windows[0])]))
    narrow = c.plans.Project(c.seq([*shown, *closing]), below.plan)
    carried = tuple(e.toAttribute() for e in closing)
    return TimedNode(plan.withNewChildren(c.seq([narrow])), times, None, carried, bool(closing))


def time_union(context: TimingContext, plan: Jvm) -> TimedNode:
    """Apply the policy to UNION ALL; a column has event times where it has them in every input."""
    c = context.catalyst
    children = [context.visit(child) for child in children_of(plan)]
    if any(child.stream is not None for child in children):
        refuse_timeless(context, plan)
    made = plan.withNewChildren(c.seq(narrowed(c, p, s) for p, s in pairs(plan, children)))
    outputs = [[identity(a) for a in output_of(child)] for child in children_of(plan)]
    times = {}
    for place, attribute in enumerate(output_of(plan)):
        known = [seen.times.get(ids[place]) for seen, ids in zip(children, outputs, strict=True)]
        if all(k is not None and k.window == known[0].window for k in known):  # type: ignore[union-attr]
            some = [k for k in known if k is not None]
            domain = frozenset().union(*(k.domain for k in some))
            times[identity(attribute)] = replace(
                some[0], domain=domain, slack_us=max(k.slack_us for k in some)
            )
    return TimedNode(made, times)


def time_other(context: TimingContext, plan: Jvm, seen: Sequence[TimedNode] | None = None) -> TimedNode:
    """Handle a node through which event times are lost."""
    children = [context.visit(child) for child in children_of(plan)] if seen is None else seen
    if any(_has_subquery(e) for e in items(plan.expressions())) and context.policy.leaves_out:
        refuse_timeless(context, plan)
    if any(child.stream is not None for child in children):
        refuse_timeless(context, plan)
    if not children:
        return TimedNode(plan)
    c = context.catalyst
    return TimedNode(plan.withNewChildren(c.seq(narrowed(c, p, s) for p, s in pairs(plan, children))))


def _has_subquery(expression: Jvm) -> bool:
    return (
        find(expression, lambda e: kind(e) in ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"))
        is not None
    )
