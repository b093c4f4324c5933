"""`min_by`, `max_by` and `mode` where several rows have the least or greatest ordering, or several values are there most often:
Spark takes any of them, a view must not.

`max_by(v, o)` is written as `max_by(v, struct(o, v))`, so that of these rows it is the one with the greatest v, NULL below all
others, and for `min_by` the least. Where o is NULL so is the struct, for such rows never count. The operators do the
same by themselves (`operators.extremes`), and so need no struct: `by_parts` gives back what it was made of. With a third
argument, how many values, equal orderings go by the value too. Of the values that are there most often `mode` takes the least.
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
"""The kinds of functions that take some rows of those that come first."""
_FIELDS = ("_headwater_ordering", "_headwater_value")
"""Which nobody else's struct has."""


def with_ties_decided(catalyst: Catalyst, plan: Jvm, refuse: Refuse) -> Jvm:
    """An analysed aggregate or window with its choices made."""
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
                f"{pick.prettyName()}() takes any of the rows with the same ordering, and maps have no order to choose by",
                hint=f"take its entries: {pick.prettyName()}(sort_array(map_entries(m)), x)",
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
    """The value and the ordering of a `min_by` or `max_by` whose choice is made; None for any other function."""
    if kind(function) not in ("MinBy", "MaxBy"):
        return None
    value, ordering = children_of(function)
    both = find(ordering, lambda e: kind(e) == "CreateNamedStruct")
    parts = [] if both is None else children_of(both)
    if len(parts) != 4 or str(parts[0].value()) != _FIELDS[0] or not value.semanticEquals(parts[3]):
        return None
    return [value, parts[1]]
