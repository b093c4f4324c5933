"""Metadata columns in windows that assign a row to several windows: `window(_appended_at, '10 minutes', '5 minutes')`.

Spark expands such windows before it resolves metadata columns, and then does not find them. So below a GROUP BY with such a
window they are selected explicitly in the parsed plan, like any other column:

    SELECT ... FROM (SELECT *, _appended_at FROM clicks) GROUP BY window(_appended_at, ...)
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.plan.relations.metadata_columns import hidden_among
from headwater.spark.catalyst import Catalyst, Jvm, children_of, find, items, kind


def with_named_columns(catalyst: Catalyst, plan: Jvm) -> Jvm:
    """Return a parsed plan in which metadata columns are selected explicitly below such windows."""
    analysis = catalyst.jvm.org.apache.spark.sql.catalyst.analysis

    def change(node: Jvm) -> Jvm | None:
        if kind(node) != "Aggregate":
            return None
        expressions = items(node.expressions())
        hidden = {h.name(): h for e in expressions for h in _hidden(e)}
        if not hidden or not any(map(_has_window, expressions)):
            return None
        star = analysis.UnresolvedStar(catalyst.none())
        named = catalyst.plans.Project(catalyst.seq([star, *hidden.values()]), node.child())
        return node.withNewChildren(catalyst.seq([named]))

    return catalyst.rewritten(plan, change)


def _has_window(expression: Jvm) -> bool:
    return find(expression, _is_window) is not None


def _is_window(expression: Jvm) -> bool:
    if kind(expression) != "UnresolvedFunction" or expression.arguments().size() < 3:
        return False
    return str(items(expression.nameParts())[-1]).lower() == "window"


def _hidden(expression: Jvm) -> Iterator[Jvm]:
    if kind(expression) == "UnresolvedAttribute":
        if hidden_among([items(expression.nameParts())[-1].lower()]):
            yield expression
        return
    for child in children_of(expression):
        yield from _hidden(child)
