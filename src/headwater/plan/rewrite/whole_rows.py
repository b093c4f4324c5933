"""Whole rows as one value: `array_agg(posts.*)` is read as `array_agg(struct(posts.*))`.

Spark replaces `posts.*` by the columns of the relation wherever it stands, also among the arguments of a function that takes
one value, and refuses the call for the number of its arguments. Only a query that Spark refuses is read this way: a call that
Spark understands keeps the meaning that it has there.
"""

from __future__ import annotations

from headwater.plan.rewrite.ordered_lists import expressions_of, named_as_written
from headwater.spark.catalyst import Catalyst, Jvm, find, items, kind, module
from headwater.sql.ordered_aggregates import LISTS, spelled

_OF_ROWS = frozenset((*LISTS, "collect_set", "max_by", "min_by", "to_json"))
"""Functions whose first argument may be a whole row."""
_STARS = ("UnresolvedStar", "UnresolvedStarExceptOrReplace", "UnresolvedStarExcept")


def with_whole_rows(catalyst: Catalyst, plan: Jvm, text: str) -> Jvm | None:
    """A parsed plan in which every row that stands in place of a value is a struct; None if there is no such row.

    A column that is such a call and has no name is named after the function, `array_agg`, as in Postgres.
    """
    if "*" not in text:
        return None
    sql = catalyst.jvm.org.apache.spark.sql.catalyst
    # the queries of WITH are no part of the tree before they are put in their places
    plan = module(sql.analysis, "CTESubstitution").apply(plan)
    origin = module(sql.trees, "CurrentOrigin")
    changes = catalyst.jvm.java.util.HashMap()
    for expression in expressions_of(plan):
        if _is_of_row(expression):
            origin.set(expression.origin())
            try:
                star, *others = items(expression.arguments())
                row = catalyst.call("struct", [star])
                changes.put(
                    expression, expression.withNewChildren(catalyst.seq(_children(expression, row, others)))
                )
            finally:
                origin.reset()
        elif kind(expression) == "UnresolvedAlias" and find(expression, _is_of_row) is not None:
            changes.put(expression, _named(catalyst, expression, text))
    if changes.isEmpty():
        return None
    # a map of Scala is a partial function, which is what its trees are transformed by
    rule = catalyst.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(changes)
    return plan.transformAllExpressionsWithSubqueries(rule)


def _is_of_row(expression: Jvm) -> bool:
    return (
        kind(expression) == "UnresolvedFunction"
        and items(expression.nameParts())[-1].lower() in _OF_ROWS
        and expression.arguments().size() > 0
        and kind(expression.arguments().head()) in _STARS
    )


def _children(call: Jvm, row: Jvm, others: list[Jvm]) -> list[Jvm]:
    """The children of a call, its filter and its order among them, with a struct as the first."""
    return [row, *others, *items(call.children())[1 + len(others) :]]


def _named(catalyst: Catalyst, alias: Jvm, text: str) -> Jvm:
    child = alias.child()
    if _is_of_row(child):
        return catalyst.alias(child, items(child.nameParts())[-1].lower())
    return named_as_written(catalyst, alias, text, spelled(text))
