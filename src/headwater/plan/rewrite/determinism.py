"""Rejects or fixes what Spark leaves open in a query, once, before the query is planned or run in batch.

The contents of a view are its SELECT over the rows of the log, independent of their order and partitioning. So functions
that depend on anything else (clocks, random numbers, the order of rows) are rejected. Where a query has an order with ties,
they are broken by the remaining columns of the operator's input, ascending, NULLs first; the result of `collect_set` is
sorted. The engine and `verify` both run the resulting plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from headwater.plan.rewrite.approximate_answers import APPROXIMATE, Answers, answered
from headwater.plan.rewrite.ties import PICKS, with_ties_decided
from headwater.plan.rewrite.unrepeatable import unrepeatable
from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    children_of,
    find,
    identity,
    is_orderable,
    items,
    kind,
    kinds_in,
    module,
    option,
    output_of,
)

_CLOCKS = {
    "CurrentDate": "the current date",
    "CurrentTimestamp": "the current time",
    "CurrentTime": "the current time",
    "LocalTimestamp": "the current time",
    "Now": "the current time",
    "CurrentTimeZone": "the session",
    "CurrentUser": "the session",
    "CurrentDatabase": "the session",
    "CurrentCatalog": "the session",
    "CurrentPath": "the session",
    "InputFileName": "the files that are read",
    "InputFileBlockStart": "the files that are read",
    "InputFileBlockLength": "the files that are read",
    "SparkVersion": "the version of Spark",
}
SOON = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Text literals that Spark evaluates to the time at which a query runs."""
_TIMES = ("date", "timestamp", "timestamp_ntz")
_POINTED = ("binary", "void")
"""Types whose values are stored outside of the array slot, as strings are."""
_OF_WINDOWS = frozenset(
    ["CumeDist", "DenseRank", "Lag", "Lead", "NTile", "NthValue", "PercentRank", "Rank", "RowNumber"]
)
"""Window-only functions whose result for rows that are equal in the window's order is defined here."""
_ANY_VALUE = {"First", "Last", "AnyValue"}
_UNORDERED_LISTS = {"CollectList", "ListAgg"}
_FREQUENT = {"ApproxTopK", "ApproxTopKAccumulate", "ApproxTopKCombine"}
_TRACKED_MAX = 1_000_000
_SETS = frozenset({"CollectSet", "CollectUnion"})
_PEER_SENSITIVE = {"FirstValue", "LastValue", "NthValue", "First", "Last", "CollectList", "AnyValue"}
_ROW_SENSITIVE = {"RowNumber", "Lag", "Lead", "NTile", "NthValue"}


class Determinism:
    """Checks analysed plans and makes them deterministic."""

    def __init__(self, catalyst: Catalyst, refuse: Refuse, answers: Answers = "approximate") -> None:
        self._catalyst = catalyst
        self._refuse = refuse
        self._answers = answers

    def pinned(self, plan: Jvm) -> Jvm:
        """Return the plan with every open choice fixed; reject queries that depend on more than their rows."""
        return self._plan(plan, None)

    def _plan(self, plan: Jvm, wanted: set[int] | None) -> Jvm:
        """`wanted` is the set of attributes that nodes above read, except to sort them; None if unknown."""
        children = children_of(plan)
        changed = [self._plan(c, self._wanted_below(plan, wanted)) for c in children]
        if any(a is not b for a, b in zip(children, changed, strict=True)):
            plan = plan.withNewChildren(self._catalyst.seq(changed))
        name = kind(plan)
        if name in ("WithCTE", "CTERelationDef", "View", "SubqueryAlias", "LogicalRDD", "CTERelationRef"):
            return plan
        if name == "Sample":
            self._refuse(
                plan,
                "TABLESAMPLE is not deterministic",
                hint="filter by a hash of a key",
                reason="not-deterministic",
            )
        plan = self._subqueries(plan)
        expressions = items(plan.expressions())
        for expression in expressions:
            unread = wanted is not None and kind(expression) == "Alias" and identity(expression) not in wanted
            self._check(expression, inside_sort=unread)
        if name == "Aggregate":
            self._check_maps(plan)
        met = kinds_in(expressions) if name in ("Aggregate", "Window") else set()
        if met & PICKS:
            plan = with_ties_decided(self._catalyst, plan, self._refuse)
        if met & APPROXIMATE:
            plan = answered(self._catalyst, plan, self._answers)
        if name == "Window":
            return self._window(self._sorted_window_sets(plan) if met & _SETS else plan)
        if name == "Sort":
            return plan.copy(
                self._total(plan.order(), plan.child()), True, plan.child(), self._catalyst.none()
            )
        if name == "GlobalLimit":
            return self._limit_next_to_sort(plan)
        if met & {*_SETS, "ListAgg", "ArraySort"}:
            return self._ordered_aggregates(plan)
        return plan

    def _wanted_below(self, plan: Jvm, wanted: set[int] | None) -> set[int] | None:
        """Return the attributes that a node uses other than to sort them: in HAVING sort_array(array_agg(x)) ..., the list
        is created in one node and sorted in the node above."""
        if kind(plan) == "Project":
            return set().union(*(_unsorted(e) for e in items(plan.projectList())), set())
        if kind(plan) == "Filter" and wanted is not None:
            return wanted | _unsorted(plan.condition())
        return None

    def _subqueries(self, plan: Jvm) -> Jvm:
        """Fix the plans inside IN, EXISTS and scalar subqueries too."""
        if not any(find(e, _is_subquery) is not None for e in items(plan.expressions())):
            return plan
        return self._expressions_rewritten(
            plan, lambda e: e.withNewPlan(self._plan(e.plan(), None)) if _is_subquery(e) else None
        )

    def _expressions_rewritten(self, plan: Jvm, change: Callable[[Jvm], Jvm | None]) -> Jvm:
        c = self._catalyst
        if kind(plan) not in ("Filter", "Project", "Aggregate", "LateralJoin"):
            self._refuse(
                plan,
                f"views do not support a subquery in {kind(plan).lower()}",
                hint="use the subquery in WHERE, or join with it",
                reason="unsupported-subquery",
            )

        def each(expressions: Jvm) -> Jvm:
            return c.seq(c.rewritten(e, change) for e in items(expressions))

        if kind(plan) == "Filter":
            return plan.copy(c.rewritten(plan.condition(), change), plan.child())
        if kind(plan) == "Project":
            return plan.copy(each(plan.projectList()), plan.child())
        if kind(plan) == "LateralJoin":
            condition = option(plan.condition())
            if condition is not None and find(condition, _is_subquery) is not None:
                self._refuse(
                    plan,
                    "views do not support a subquery in the condition of a lateral join",
                    reason="unsupported-subquery",
                )
            return plan.copy(
                plan.left(), c.rewritten(plan.right(), change), plan.joinType(), plan.condition()
            )
        return plan.copy(
            each(plan.groupingExpressions()), each(plan.aggregateExpressions()), plan.child(), c.none()
        )

    def _check(self, expression: Jvm, inside_sort: bool) -> None:
        """Reject expressions that do not depend on the row alone, except aggregate functions that are fixed later."""
        name = kind(expression)
        if name in _CLOCKS:
            self._refuse(
                expression,
                f"{_called(expression)} depends on {_CLOCKS[name]}, so the view would change without new records",
                hint="use a column, such as the time column of the topic",
                reason="depends-on-time" if _CLOCKS[name].startswith("the current") else "depends-on-session",
            )
        self._check_clocks_in_text(expression)
        if name == "AesEncrypt":
            self._check_encrypted(expression)
        if name == "WindowExpression":
            self._check_known(expression)
        if name in _ANY_VALUE and not inside_sort:
            self._refuse(
                expression,
                f"{_called(expression)} takes the value of any row, and rows of a view have no order",
                hint="use min, max, min_by(value, time) or max_by(value, time)",
                reason="depends-on-order",
            )
        ordered = name == "ListAgg" and expression.orderExpressions().size() > 0
        if name in _UNORDERED_LISTS and not inside_sort and not ordered:
            self._refuse(
                expression,
                f"{_called(expression)} lists values in the order of the rows, and rows of a view have no order",
                hint="give an order: array_agg(x ORDER BY y), listagg(x) WITHIN GROUP (ORDER BY y), or sort_array(array_agg(x))",
                reason="depends-on-order",
            )
        if (known := unrepeatable(name)) is not None:
            self._refuse(
                expression,
                f"{_called(expression)} {known.reason}",
                hint=known.hint,
                reason="not-deterministic",
            )
        if name == "AggregateExpression" and expression.isDistinct():
            self._check_distinct(expression)
        if name in _FREQUENT:
            self._check_frequent(expression, self._answers == "exact")
        if name == "WindowExpression" and kind(_function(expression.windowFunction())) in _FREQUENT:
            self._check_frequent(_function(expression.windowFunction()), True)
        aggregate = name in (
            *_SETS,
            "CollectList",
            "ListAgg",
            "AggregateExpression",
            "WindowExpression",
        )
        children = children_of(expression)
        if not aggregate and not expression.deterministic() and all(c.deterministic() for c in children):
            self._refuse(
                expression,
                f"{_called(expression)} is not deterministic",
                hint="compute the value before the append, and store it in a column",
                reason="not-deterministic",
            )
        # `_window` checks how a window function depends on the order of rows
        sorts = name in ("SortArray", "ArraySort", "WindowExpression")
        for child in children:
            self._check(
                child, inside_sort=sorts or (inside_sort and name in ("AggregateExpression", "Alias"))
            )

    def _check_maps(self, plan: Jvm) -> None:
        """Reject maps as grouping keys: Spark normalizes them with generated code that reads 0 where a number is NULL."""
        for key in items(plan.groupingExpressions()):
            if _loses_nulls(json.loads(key.dataType().json())):
                self._refuse(
                    key,
                    "Spark reads NULL as 0 in maps of numbers or times in GROUP BY",
                    hint="group by the entries: GROUP BY sort_array(map_entries(m))",
                    reason="group-by-map",
                )

    def _check_distinct(self, expression: Jvm) -> None:
        for argument in children_of(expression.aggregateFunction()):
            if not self._orderable(argument):
                self._refuse(
                    argument,
                    "maps cannot be compared, so DISTINCT does not support them",
                    hint="use the entries: sort_array(map_entries(m))",
                    reason="distinct-map",
                )

    def _check_clocks_in_text(self, expression: Jvm) -> None:
        """Reject `CAST('now' AS TIMESTAMP)`, which is `now()`."""
        if kind(expression) not in ("Cast", "ParseToDate", "ParseToTimestamp"):
            return
        source = children_of(expression)[0]
        if expression.dataType().typeName() not in _TIMES or source.dataType().typeName() != "string":
            return
        if source.foldable() and (text := self._value(source)) is not None and SOON.match(str(text)):
            self._refuse(
                expression,
                f"'{text}' as a time depends on the current time, so the view would change without new records",
                hint="use a column, such as the time column of the topic",
                reason="depends-on-time",
            )

    def _check_encrypted(self, expression: Jvm) -> None:
        """Reject encryption without an initialization vector: it uses a random one, although Spark declares the result
        deterministic."""
        _, _, mode, _, vector, _ = children_of(expression)
        plain = mode.foldable() and str(self._value(mode)).upper() == "ECB"
        if not plain and not (vector.foldable() and self._value(vector)):
            self._refuse(
                expression,
                f"{_called(expression)} without a constant initialization vector is not deterministic",
                hint="give a constant initialization vector as the fifth argument; or encrypt before the append",
                reason="not-deterministic",
            )

    def _value(self, constant: Jvm) -> Any:
        """Return the value of a constant expression; None also if its evaluation fails."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return constant.eval(None)
        except (Py4JError, PySparkException):  # it would fail wherever it is evaluated
            return None

    def _check_known(self, expression: Jvm) -> None:
        function = expression.windowFunction()
        if kind(function) not in (*_OF_WINDOWS, *_ANY_VALUE, "AggregateExpression"):
            self._refuse(
                expression,
                f"{_called(function)} is not deterministic for rows that are equal in the order of its window",
                hint="docs/sql.md lists the supported window functions, such as lag()",
                reason="depends-on-order",
            )

    def _check_frequent(self, expression: Jvm, exactly: bool) -> None:
        """Reject computations with frequent values: only bounds are known for them, so a view can only show them as they
        are."""
        if exactly or kind(expression) != "ApproxTopK":
            self._refuse(
                expression,
                f"{_called(expression)} is only supported over append-only rows, shown as it is",
                hint="use approx_top_k() over a topic without a key, and compute nothing with its result; or count by value in a view, and take the first: row_number() OVER (PARTITION BY ... ORDER BY n DESC, value) <= k",
                reason="approx-top-k",
            )
        wanted, tracked = (e.eval(None) for e in children_of(expression)[1:])
        if wanted is None or tracked is None or not 1 <= wanted <= tracked <= _TRACKED_MAX:
            self._refuse(
                expression,
                f"{_called(expression)} takes k from 1, and tracks from k to {_TRACKED_MAX} values",
                reason="approx-top-k-size",
            )

    def _window(self, plan: Jvm) -> Jvm:
        """Give functions that depend on single rows a total order; leave functions that treat ties alike unchanged."""
        c = self._catalyst
        by_rows, by_peers = [], []
        for named in items(plan.windowExpressions()):
            window: Jvm = _window_expression(named)
            function = kind(_function(window.windowFunction()))
            frame = window.windowSpec().frameSpecification()
            rows = kind(frame) == "SpecifiedWindowFrame" and kind(frame.frameType()) == "RowFrame"
            ranks = function in ("Rank", "DenseRank", "PercentRank", "CumeDist")
            if plan.orderSpec().size() == 0:
                if function in _ROW_SENSITIVE | _PEER_SENSITIVE:
                    self._refuse(
                        named,
                        "this window function needs an order",
                        hint="add ORDER BY to the OVER clause",
                        reason="window-without-order",
                    )
                by_peers.append(named)
            elif ranks or (not rows and function not in _PEER_SENSITIVE | _ROW_SENSITIVE):
                by_peers.append(named)
            elif not rows and function in _PEER_SENSITIVE:
                self._refuse(
                    named,
                    "this function takes one of several rows that are equal in the order of the window",
                    hint="add ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, or use min or max",
                    reason="depends-on-order",
                )
            else:
                by_rows.append(named)
        if not by_rows:
            return plan
        order = self._total(plan.orderSpec(), plan.child())
        retold = []
        for named in by_rows:
            window = _window_expression(named)
            spec = window.windowSpec()
            fixed = window.copy(
                window.windowFunction(), spec.copy(spec.partitionSpec(), order, spec.frameSpecification())
            )

            def ordered(e: Jvm, fixed: Jvm = fixed) -> Jvm | None:
                return fixed if kind(e) == "WindowExpression" else None

            retold.append(c.alias(c.rewritten(named.child(), ordered), named.name(), like=named))
        result = plan.copy(c.seq(retold), plan.partitionSpec(), order, plan.child(), c.none())
        if by_peers:
            output = [
                *items(plan.child().output()),
                *(n.toAttribute() for n in items(plan.windowExpressions())),
            ]
            peers = plan.copy(c.seq(by_peers), plan.partitionSpec(), plan.orderSpec(), result, c.none())
            result = c.plans.Project(c.seq(output), peers)
        return result

    def _total(self, order: Jvm, child: Jvm) -> Jvm:
        """Return an order followed by the remaining columns of the input."""
        c = self._catalyst
        given = items(order)
        named = {identity(o.child()) for o in given if kind(o.child()) == "AttributeReference"}
        rest = [
            self._ascending(a) for a in output_of(child) if identity(a) not in named and self._orderable(a)
        ]
        return c.seq([*given, *rest])

    def _limit_next_to_sort(self, plan: Jvm) -> Jvm:
        """Move LIMIT below a projection, next to the sort.

        Spark turns a correlated LIMIT into a rank by the order of the sort directly below it, and ignores a sort below a
        projection.
        """
        c = self._catalyst
        local = plan.child()
        if kind(local) != "LocalLimit" or kind(local.child()) != "Project":
            return plan
        project = local.child()
        if kind(project.child()) != "Sort":
            return plan
        limited = plan.withNewChildren(c.seq([local.withNewChildren(c.seq([project.child()]))]))
        return project.withNewChildren(c.seq([limited]))

    def _ordered_aggregates(self, plan: Jvm) -> Jvm:
        c = self._catalyst

        def ordered(e: Jvm) -> Jvm | None:
            if kind(e) == "ArraySort":
                return self._presorted(e)
            return self._total_list(e) if kind(e) == "ListAgg" else self._sorted_set(e)

        outputs = [c.rewritten(e, ordered) for e in items(plan.aggregateExpressions())]
        return plan.copy(plan.groupingExpressions(), c.seq(outputs), plan.child(), c.none())

    def _sorted_window_sets(self, plan: Jvm) -> Jvm:
        """Sort `collect_set(...) OVER (...)` too."""
        c = self._catalyst

        def sorted_set(e: Jvm) -> Jvm | None:
            if kind(e) != "WindowExpression" or self._sorted_set(e.windowFunction()) is None:
                return None
            return c.expressions.SortArray(e)

        functions = [c.rewritten(e, sorted_set) for e in items(plan.windowExpressions())]
        return plan.copy(c.seq(functions), plan.partitionSpec(), plan.orderSpec(), plan.child(), c.none())

    def _total_list(self, e: Jvm) -> Jvm:
        """Return a list aggregate whose order has ties broken by the listed value."""
        order, value = items(e.orderExpressions()), e.child()
        if any(o.child().canonicalized().equals(value.canonicalized()) for o in order):
            return e
        total = self._catalyst.seq([*order, self._ascending(value)])
        return e.copy(value, e.delimiter(), total, e.mutableAggBufferOffset(), e.inputAggBufferOffset())

    def _presorted(self, e: Jvm) -> Jvm | None:
        """Sort a list by its values before a user-defined comparison sorts it: the comparison may consider different values
        equal, and the sort is stable."""
        listed, comparison = children_of(e)
        if kind(listed) != "AggregateExpression" or kind(listed.aggregateFunction()) != "CollectList":
            return None
        if not self._orderable(listed.aggregateFunction()):
            self._refuse(
                e,
                "maps cannot be ordered, so a list of maps has no defined order",
                hint="list the entries: sort_array(map_entries(m))",
                reason="depends-on-order",
            )
        return e.withNewChildren(
            self._catalyst.seq([self._catalyst.expressions.SortArray(listed), comparison])
        )

    def _ascending(self, e: Jvm) -> Jvm:
        expressions = self._catalyst.expressions
        ascending, nulls_first = module(expressions, "Ascending"), module(expressions, "NullsFirst")
        return expressions.SortOrder(e, ascending, nulls_first, self._catalyst.seq([]))

    def _sorted_set(self, e: Jvm) -> Jvm | None:
        if kind(e) != "AggregateExpression" or kind(e.aggregateFunction()) not in _SETS:
            return None
        if not self._orderable(e.aggregateFunction().child()):
            self._refuse(
                e,
                "maps cannot be ordered, so a set of maps has no defined order",
                hint="collect the entries: sort_array(map_entries(m))",
                reason="depends-on-order",
            )
        return self._catalyst.expressions.SortArray(e)

    def _orderable(self, expression: Jvm) -> bool:
        return is_orderable(self._catalyst, expression)


def _unsorted(expression: Jvm) -> set[int]:
    """Return the attributes that an expression reads, except those inside a sort function."""
    if kind(expression) == "AttributeReference":
        return {identity(expression)}
    if kind(expression) in ("SortArray", "ArraySort"):
        return set()
    return set().union(*(_unsorted(c) for c in children_of(expression)), set())


def _loses_nulls(data_type: Any) -> bool:
    """Whether a type, in its JSON form, contains maps with nullable values of fixed width."""
    match data_type:
        case {"type": "map", "valueType": str(value), "valueContainsNull": True} if value not in _POINTED:
            return not value.startswith(("decimal", "string", "char", "varchar"))
        case {"type": "map", "keyType": key, "valueType": value}:
            return _loses_nulls(key) or _loses_nulls(value)
        case {"type": "array", "elementType": element}:
            return _loses_nulls(element)
        case {"type": "struct", "fields": fields}:
            return any(_loses_nulls(field["type"]) for field in fields)
    return False


def _is_subquery(expression: Jvm) -> bool:
    return kind(expression) in ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")


def _window_expression(named: Jvm) -> Jvm:
    return find(named, lambda e: kind(e) == "WindowExpression")


def _function(expression: Jvm) -> Jvm:
    return expression.aggregateFunction() if kind(expression) == "AggregateExpression" else expression


def _called(expression: Jvm) -> str:
    return str(expression.prettyName()) + "()"
