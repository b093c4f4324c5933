"""DISTINCT aggregates of sessions: distinct values are counted over whole sessions.

Spark splits aggregates that are DISTINCT over several columns, or over some rows, into two nested aggregates, the lower one
grouped by these columns too. It merges sessions in both, so that the lower one forms sessions of the rows of a single
value, and a value that occurs in two of these within one session is counted twice. In an aggregate by sessions,
`count(DISTINCT x)` is therefore rewritten as the size of `collect_set(x)`, which is not split, and other DISTINCT functions
are rejected.
"""

from __future__ import annotations

from headwater.plan.rewrite.cumulate_window import rewritten_plan
from headwater.plan.time.session_values import SESSION_COLUMN, session_of
from headwater.spark.catalyst import Catalyst, Jvm, Refuse, children_of, find_all, items, kind, option


def with_distincts_of_sessions(catalyst: Catalyst, plan: Jvm, refuse: Refuse) -> Jvm:
    """Return an analysed plan in which Spark splits no DISTINCT aggregates of sessions; the plan itself if it splits none."""
    # one JVM call, where a check of each node takes hundreds
    if SESSION_COLUMN not in plan.toString():
        return plan
    return rewritten_plan(catalyst, plan, lambda node: _together(catalyst, node, refuse))


def _together(catalyst: Catalyst, node: Jvm, refuse: Refuse) -> Jvm:
    if session_of(node) is None or not _is_taken_apart(node):
        return node

    def counted(e: Jvm) -> Jvm | None:
        is_count = _is_distinct(e) and kind(e.aggregateFunction()) == "Count"
        return _size_of_set(catalyst, e) if is_count else None

    shown = [catalyst.rewritten(e, counted) for e in items(node.aggregateExpressions())]
    made = node.copy(node.groupingExpressions(), catalyst.seq(shown), node.child(), node.hint())
    if _is_taken_apart(made):
        refuse(
            _distincts(made)[0],
            "views support several DISTINCT aggregates of a session, or one with FILTER, only as count(DISTINCT ...)",
            hint="group by the session and the value in another view first, or use collect_set(x)",
            reason="session-distinct",
        )
    return made


def _is_distinct(e: Jvm) -> bool:
    return kind(e) == "AggregateExpression" and bool(e.isDistinct())


def _distincts(node: Jvm) -> list[Jvm]:
    return [found for e in items(node.aggregateExpressions()) for found in find_all(e, _is_distinct)]


def _is_taken_apart(node: Jvm) -> bool:
    """Whether Spark's optimizer splits an aggregate: for DISTINCT over different columns, or over some rows."""
    distincts = _distincts(node)
    columns = {
        tuple(sorted(str(v.canonicalized()) for v in children_of(e.aggregateFunction()))) for e in distincts
    }
    return len(columns) > 1 or any(e.filter().isDefined() for e in distincts)


def _size_of_set(catalyst: Catalyst, count: Jvm) -> Jvm:
    parts = {f"_v{i}": v for i, v in enumerate(children_of(count.aggregateFunction()))}
    value = "_v0"
    if len(parts) > 1:
        there = " AND ".join(f"{name} IS NOT NULL" for name in parts)
        value = f"CASE WHEN {there} THEN struct({', '.join(parts)}) END"
    condition = option(count.filter())
    where = "" if condition is None else " FILTER (WHERE _f)"
    written = f"CAST(size(array_distinct(collect_set({value}){where})) AS BIGINT)"
    return catalyst.written(written, parts if condition is None else {**parts, "_f": condition})
