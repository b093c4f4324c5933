"""Deterministic `min_by`, `max_by` and `mode` where several rows have the extreme ordering, or several values are the most
frequent.

Spark picks any of them, which a view must not. `max_by(v, o)` is rewritten to `max_by(v, struct(o, v))`, so that among ties
the greatest v is chosen, with NULL lowest; `min_by` chooses the least. Where o is NULL the struct is NULL too, since such
rows never count. The operators break ties in the same way themselves (`operators.aggregate.min_max`) and need no struct:
`by_parts` returns its parts. With a third argument, the number of values, equal orderings are ordered by the value too.
Among the most frequent values, `mode` chooses the least.
"""

from __future__ import annotations

from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    children_of,
    find,
    is_orderable,
    items,
    kind,
    module,
)

PICKS = frozenset({"MinBy", "MaxBy", "MaxMinByK", "Mode"})
"""Catalyst classes of functions that pick some of the rows with the extreme ordering."""
_FIELDS = ("_headwater_ordering", "_headwater_value")
"""Field names that no struct of a user has."""


def with_ties_decided(catalyst: Catalyst, plan: Jvm, refuse: Refuse) -> Jvm:
    """Return an analysed aggregate or window with ties broken."""
    c, e = catalyst, catalyst.expressions

    def decided(pick: Jvm) -> Jvm | None:
        if kind(pick) not in PICKS or by_parts(pick) is not None:
            return None
        if kind(pick) == "Mode":
            (counted,) = children_of(pick)
            return None if pick.reverseOpt().isDefined() else e.aggregate.Mode(counted, True)
        value, ordering, *number = children_of(pick)
        if value.semanticEquals(ordering):
            return None
        if not is_orderable(c, value):
            refuse(
                pick,
                f"{pick.prettyName()}() can return any of the rows with the same ordering, and maps cannot be ordered",
                hint=f"use the entries: {pick.prettyName()}(sort_array(map_entries(m)), x)",
                reason="depends-on-order",
            )
        names = [module(e, "Literal").apply(name) for name in _FIELDS]
        both = e.CreateNamedStruct(c.seq([names[0], ordering, names[1], value]))
        none = module(e, "Literal").create(None, both.dataType())
        known = e.If(e.IsNull(ordering), none, both)
        return pick.withNewChildren(c.seq([value, known, *number]))

    def each(expressions: Jvm) -> Jvm:
        return c.seq(c.rewritten(expression, decided) for expression in items(expressions))

    if kind(plan) == "Window":
        return plan.copy(
            each(plan.windowExpressions()), plan.partitionSpec(), plan.orderSpec(), plan.child(), plan.hint()
        )
    return plan.copy(plan.groupingExpressions(), each(plan.aggregateExpressions()), plan.child(), plan.hint())


def by_parts(function: Jvm) -> list[Jvm] | None:
    """Return the value and the ordering of a `min_by` or `max_by` that was rewritten; None for any other function."""
    if kind(function) not in ("MinBy", "MaxBy"):
        return None
    value, ordering = children_of(function)
    both = find(ordering, lambda e: kind(e) == "CreateNamedStruct")
    parts = [] if both is None else children_of(both)
    if len(parts) != 4 or str(parts[0].value()) != _FIELDS[0] or not value.semanticEquals(parts[3]):
        return None
    return [value, parts[1]]
