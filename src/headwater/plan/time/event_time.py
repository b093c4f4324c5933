"""Time in a plan: where a topic's rows get their windows, which of them are late there, and when a row is final.

Late rows are left out by a filter on a hidden column, the watermark that a row met, right above the place where it gets its
window or enters a session, a frame in time or a join with bounds on time. What that filter takes out is a small plan of
its own. Rows of a view that shows only what is final get two columns more: the time that the watermarks must have
reached, and which watermarks those are. Both are read by the engine and by batch alike, from the same plan.
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
"""By the name of Spark's class; any other node knows nothing of time."""


def timing_of(
    catalyst: Catalyst,
    relations: Mapping[str, Relation],
    refuse: Refuse,
    policy: Policy,
    changelog: Changelog | None = None,
) -> TimingContext:
    """The context in which a policy is put into one plan.

    `relations` are those that the plan may read, put into it by `RelationNames`; `changelog` is for policies that leave rows
    out.
    """
    return TimingContext(catalyst, relations, refuse, policy, changelog, _timed_by)


def _timed_by(name: str) -> NodeTiming:
    return _TIMED_BY.get(name, time_other)


def with_policy(context: TimingContext, plan: Jvm) -> TimedPlan:
    """The plan with the policy in it; refuses what it cannot be kept for."""
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
                "EMIT ON WINDOW CLOSE needs rows that become final, and rows of this query never do",
                hint="group by a window of the topic's WATERMARK column, or join within bounds on it; "
                "or leave EMIT ON WINDOW CLOSE out",
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
            f"EMIT ON WINDOW CLOSE needs rows that become final, and nothing closes windows by {ARRIVAL}: "
            "watermarks are of event times",
            hint="leave it out: of windows by arrival only the newest can still grow; or use the topic's WATERMARK "
            "column",
        )
