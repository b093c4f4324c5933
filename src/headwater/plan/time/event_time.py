"""Event time in a plan: where rows of a topic enter windows, which of them are late there, and when a row is final.

Late rows are dropped by a filter on a metadata column, the watermark at the arrival of a row, directly above the node where
the row gets its window or enters a session, a time frame or a join with time bounds. The rows that the filter drops form a
separate small plan. Rows of a view that emits only final rows get two more columns: the time that watermarks must have
reached, and which watermarks. The engine and batch runs evaluate both from the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.plan.relations.relations import Relation
from headwater.plan.time.final_rows import closed, closes
from headwater.plan.time.frame_times import time_window
from headwater.plan.time.join_times import time_join
from headwater.plan.time.late_policy import Policy
from headwater.plan.time.late_rows import refuse_never_late, refuse_timeless
from headwater.plan.time.node_times import (
    time_aggregate,
    time_distinct,
    time_expand,
    time_filter,
    time_generate,
    time_other,
    time_project,
    time_same_rows,
    time_union,
)
from headwater.plan.time.on_time_versions import settle_versions
from headwater.plan.time.pattern_times import time_match
from headwater.plan.time.timed_plan import ARRIVAL, TimedPlan, has_windows_by_arrival
from headwater.plan.time.timing_context import Changelog, NodeTiming, TimingContext
from headwater.spark.catalyst import Catalyst, Jvm, Refuse, identity, kind, output_of

_TIMED_BY: dict[str, NodeTiming] = {
    "SubqueryAlias": time_same_rows,
    "View": time_same_rows,
    "Sort": time_same_rows,
    "Filter": time_filter,
    "Project": time_project,
    "Expand": time_expand,
    "Generate": time_generate,
    "Aggregate": time_aggregate,
    "Distinct": time_distinct,
    "Window": time_window,
    "Join": time_join,
    "Union": time_union,
    "FlatMapGroupsInArrow": time_match,
}
"""The function per simple class name of a Spark plan node; other nodes have no event times."""


def timing_of(
    catalyst: Catalyst,
    relations: Mapping[str, Relation],
    refuse: Refuse,
    policy: Policy,
    changelog: Changelog | None = None,
) -> TimingContext:
    """Return the context for applying a policy to one plan.

    `relations` are the relations that the plan may read, inserted into it by `RelationNames`; `changelog` is needed by
    policies that drop late rows.
    """
    return TimingContext(catalyst, relations, refuse, policy, changelog, _timed_by)


def _timed_by(name: str) -> NodeTiming:
    return _TIMED_BY.get(name, time_other)


def with_policy(context: TimingContext, plan: Jvm) -> TimedPlan:
    """Return the plan with the policy applied; queries that cannot satisfy the policy are rejected."""
    c = context.catalyst
    if kind(plan) == "WithCTE":
        inline = c.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)
        plan = inline.apply(plan)
    seen = context.visit(plan)
    is_late = any(context.relations[part.topic].is_stream for part in context.late)
    if seen.stream is not None or (context.policy.leaves_out and not is_late):
        refuse_never_late(context, plan)
        refuse_timeless(context, plan)
    settle_versions(context, plan)
    shown = output_of(plan)
    columns = shown
    if context.policy.emits:
        windows = [a for a in shown if identity(a) in seen.times and seen.times[identity(a)].window]
        if not seen.is_closing and windows:
            seen = closed(context, seen, closes(context, windows[0], seen.times[identity(windows[0])]))
        if not seen.is_closing:
            _refuse_open_by_arrival(context, plan)
            context.refuse(
                plan,
                "EMIT ON WINDOW CLOSE needs rows that become final, and no row of this query does",
                hint="group by a window of the topic's WATERMARK column, or join with bounds on that column; or leave EMIT ON WINDOW CLOSE out",
                reason="never-final",
            )
        columns = [*shown, *seen.carried]
    done = seen.plan
    if [identity(a) for a in output_of(done)] != [identity(a) for a in columns]:
        done = c.plans.Project(c.seq(columns), done)
    times = {i: seen.times[identity(a)] for i, a in enumerate(shown) if identity(a) in seen.times}
    return TimedPlan(done, tuple(context.late), tuple(context.domains), times, context.expiring)


def _refuse_open_by_arrival(context: TimingContext, plan: Jvm) -> None:
    if has_windows_by_arrival(plan):
        context.refuse(
            plan,
            f"EMIT ON WINDOW CLOSE needs windows of event time: no watermark closes windows by {ARRIVAL}",
            hint="leave it out: only the newest window by arrival can still change; or use the topic's WATERMARK column",
            reason="windows-by-arrival",
        )
