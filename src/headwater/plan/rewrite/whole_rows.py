"""Whole rows as values: `array_agg(posts.*)` is read as `array_agg(struct(posts.*))`.

Spark replaces `posts.*` by the columns of the relation everywhere, including the arguments of a function that takes one
value, and then rejects the call because of its number of arguments. Only queries that Spark rejects are rewritten: a call
that Spark accepts keeps its meaning.
"""

from __future__ import annotations

from headwater.plan.rewrite.ordered_lists import expressions_of, named_as_written
from headwater.spark.catalyst import Catalyst, Jvm, find, items, kind, module
from headwater.sql.ordered_aggregates import LISTS, spark_query

_OF_ROWS = frozenset((*LISTS, "collect_set", "max_by", "min_by", "to_json"))
"""Functions whose first argument may be a whole row."""
_STARS = ("UnresolvedStar", "UnresolvedStarExceptOrReplace", "UnresolvedStarExcept")


def with_whole_rows(catalyst: Catalyst, plan: Jvm, text: str) -> Jvm | None:
    """Return a parsed plan in which every whole row used as a value is a struct; None if there is no such row.

    An unnamed column that is such a call is named after the function, `array_agg`, as in Postgres.
    """
    if "*" not in text:
        return None
    sql = catalyst.jvm.org.apache.spark.sql.catalyst
    # the queries of WITH are not part of the tree until they are substituted
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
    # a Scala Map is a PartialFunction, which is the type that the transform methods take
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
    """Return the children of a call, including its filter and order, with a struct as the first."""
    return [row, *others, *items(call.children())[1 + len(others) :]]


def _named(catalyst: Catalyst, alias: Jvm, text: str) -> Jvm:
    child = alias.child()
    if _is_of_row(child):
        return catalyst.alias(child, items(child.nameParts())[-1].lower())
    return named_as_written(catalyst, alias, text, spark_query(text))
