"""ORDER BY without LIMIT: a view is a set of rows, so that such an order is neither kept nor shown."""

from __future__ import annotations

from headwater.spark.catalyst import Jvm, children_of, items, kind

NO_EFFECT = "ORDER BY without LIMIT has no effect: the rows of a view have no order; write ORDER BY in queries of the view"
_LIMITS = ("GlobalLimit", "LocalLimit", "Offset")
_SAME_ORDER = ("Project", "SubqueryAlias", "Filter", "Sort")
"""Nodes that pass rows on in the order in which they get them."""


def unread_orders(plan: Jvm) -> tuple[str, ...]:
    """The warnings about the orders in an analysed plan that no LIMIT reads."""
    # the text has every Sort, those in subqueries too: most plans have none, and to ask each node takes a call of the JVM
    return (NO_EFFECT,) if "Sort [" in plan.toString() and _has_unread(plan, is_read=False) else ()


def _has_unread(plan: Jvm, *, is_read: bool) -> bool:
    """Whether a plan has an order that nothing reads; `is_read`: the order of its own rows is."""
    name = kind(plan)
    if name == "Sort" and not is_read:
        return True
    below = name in _LIMITS or (is_read and name in _SAME_ORDER)
    if any(_has_unread(child, is_read=below) for child in children_of(plan)):
        return True
    return any(_has_unread(subquery, is_read=False) for subquery in items(plan.subqueries()))
