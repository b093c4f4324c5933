"""Warnings about ORDER BY without LIMIT: a view is a set of rows, so the order has no effect."""

from __future__ import annotations

from headwater.spark.catalyst import Jvm, children_of, items, kind

NO_EFFECT = "ORDER BY without LIMIT has no effect: the rows of a view have no order; write ORDER BY in queries of the view"
_LIMITS = ("GlobalLimit", "LocalLimit", "Offset")
_SAME_ORDER = ("Project", "SubqueryAlias", "Filter", "Sort")
"""Nodes that preserve the order of their input."""


def unread_orders(plan: Jvm) -> tuple[str, ...]:
    """Return the warnings about sorts in an analysed plan whose order no LIMIT uses."""
    # The text contains every Sort, including those in subqueries. Most plans have none, and checking each node costs a JVM
    # call.
    return (NO_EFFECT,) if "Sort [" in plan.toString() and _has_unread(plan, is_read=False) else ()


def _has_unread(plan: Jvm, *, is_read: bool) -> bool:
    """Whether a plan contains a sort whose order is unused; with `is_read`, the order of the plan's own rows is used."""
    name = kind(plan)
    if name == "Sort" and not is_read:
        return True
    below = name in _LIMITS or (is_read and name in _SAME_ORDER)
    if any(_has_unread(child, is_read=below) for child in children_of(plan)):
        return True
    return any(_has_unread(subquery, is_read=False) for subquery in items(plan.subqueries()))
