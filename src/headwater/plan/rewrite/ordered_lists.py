"""Lists in a declared order, `array_agg(x) WITHIN GROUP (ORDER BY y)`: Spark parses them but does not implement them.

They are rewritten in the parsed plan, before names and types are resolved:

    transform(array_sort(array_agg(struct(y, x)), (l, r) -> ...), s -> s.x)

Elements are compared by the keys of the order in turn, each with its direction and NULL placement, and then by the value
itself, so that the list does not depend on the order of rows. As in `array_agg` without an order, NULLs are excluded unless
RESPECT NULLS is given.

`listagg` and `string_agg` are implemented by Spark. They are rewritten to joined lists only next to several DISTINCT
aggregates: the rule of Spark's optimizer that splits these fails on an order WITHIN GROUP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.spark.catalyst import Catalyst, Jvm, Refuse, children_of, find, items, kind, module, option
from headwater.sql.ordered_aggregates import LISTS, SparkQuery, spark_query

_PLANS = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")
_WINDOWS = ("WindowExpression", "UnresolvedWindowExpression")
_VALUE = "value"
_JOINED = ("listagg", "string_agg")


def with_ordered_lists(catalyst: Catalyst, plan: Jvm, text: str, refuse: Refuse) -> Jvm:
    """Return a parsed plan without ordered lists; `text` is the SQL of the query."""
    read = spark_query(text)
    if "within" not in read.text.lower():
        return plan
    sql = catalyst.jvm.org.apache.spark.sql.catalyst
    # the queries of WITH are not part of the tree until they are substituted
    plan = module(sql.analysis, "CTESubstitution").apply(plan)
    lists = _Lists(catalyst, refuse)
    changes = catalyst.jvm.java.util.HashMap()
    expressions = list(expressions_of(plan))
    joined = _JOINED if _separates_distinct(expressions) else ()
    for expression in expressions:
        if kind(expression) in _WINDOWS and (found := find(expression, _is_ordered)) is not None:
            refuse(
                found,
                "a list over a window takes the order of the window",
                hint="leave out the ORDER BY of the list: array_agg(x) OVER (ORDER BY y ROWS ...)",
                reason="list-order-in-window",
            )
        if _is_ordered(expression):
            changes.put(expression, lists.made(expression))
        elif joined and _is_ordered(expression, joined):
            changes.put(expression, lists.joined(expression))
        elif (
            kind(expression) == "UnresolvedAlias"
            and find(expression, lambda e: _is_ordered(e, (*LISTS, *joined))) is not None
        ):
            changes.put(expression, named_as_written(catalyst, expression, text, read))
    if changes.isEmpty():
        return plan
    # a Scala Map is a PartialFunction, which is the type that the transform methods take
    rule = catalyst.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(changes)
    return plan.transformAllExpressionsWithSubqueries(rule)


def expressions_of(plan: Jvm) -> Iterator[Jvm]:
    """Yield every expression of a plan and of its subqueries, children before parents."""
    for child in children_of(plan):
        yield from expressions_of(child)
    for expression in items(plan.expressions()):
        yield from _within(expression)


def _within(expression: Jvm) -> Iterator[Jvm]:
    yield expression
    for child in children_of(expression):
        yield from _within(child)
    if kind(expression) in _PLANS:
        yield from expressions_of(expression.plan())


def _is_ordered(expression: Jvm, functions: Sequence[str] = LISTS) -> bool:
    return (
        kind(expression) == "UnresolvedFunction"
        and expression.orderingWithinGroup().size() > 0
        and items(expression.nameParts())[-1].lower() in functions
    )


def _separates_distinct(expressions: Sequence[Jvm]) -> bool:
    """Whether Spark's optimizer may split DISTINCT aggregates: several of them, or one with a FILTER."""
    distinct = [e for e in expressions if kind(e) == "UnresolvedFunction" and e.isDistinct()]
    return len(distinct) > 1 or any(e.filter().isDefined() for e in distinct)


def named_as_written(catalyst: Catalyst, alias: Jvm, text: str, read: SparkQuery) -> Jvm:
    """Return an unnamed column with an alias that is its original SQL text, not the rewritten expression."""
    origin = alias.child().origin()
    start, stop = option(origin.startIndex()), option(origin.stopIndex())
    if start is None or stop is None:
        return alias
    return catalyst.alias(alias.child(), text[read.original(start) : read.original(stop + 1)])


class _Lists:
    """Rewrites ordered lists. Every node that it creates has the SQL position of the original call."""

    def __init__(self, catalyst: Catalyst, refuse: Refuse) -> None:
        self._c = catalyst
        self._refuse = refuse
        self._analysis = catalyst.jvm.org.apache.spark.sql.catalyst.analysis
        self._origin = module(catalyst.jvm.org.apache.spark.sql.catalyst.trees, "CurrentOrigin")
        self._pair = catalyst.jvm.scala.Tuple2
        self._some = module(catalyst.jvm.scala, "Some")

    def joined(self, call: Jvm) -> Jvm:
        """Return the result of `listagg`: the values of a list joined with a separator, NULL if there are none."""
        arguments = items(call.arguments())
        if len(arguments) not in (1, 2):
            return call  # Spark reports the error
        texts = self._ordered(call, "array_agg", arguments[0])
        self._origin.set(call.origin())
        try:
            separator = arguments[1] if len(arguments) == 2 else self._literal("")
            made = self._c.call("array_join", [texts, separator])
            has_values = self._c.expressions.GreaterThan(self._c.call("size", [texts]), self._literal(0))
            return self._case([(has_values, made)], self._literal(None))
        finally:
            self._origin.reset()

    def made(self, call: Jvm) -> Jvm:
        """Return an ordered list in rewritten form."""
        arguments = items(call.arguments())
        if len(arguments) != 1:
            self._refuse(
                call,
                f"array_agg takes one value, not {len(arguments)}",
                hint="use struct(a, b)",
                reason="list-arguments",
            )
        return self._ordered(call, None, arguments[0])

    def _ordered(self, call: Jvm, function: str | None, value: Jvm) -> Jvm:
        order = items(call.orderingWithinGroup())
        if call.isDistinct() and any(not o.child().canonicalized().equals(value) for o in order):
            self._refuse(
                call,
                "a list of DISTINCT values can be ordered only by the values",
                hint="order by the listed value: array_agg(DISTINCT x ORDER BY x)",
                reason="distinct-list-order",
            )
        self._origin.set(call.origin())
        try:
            return self._list(call, function, value, order)
        finally:
            self._origin.reset()

    def _list(self, call: Jvm, function: str | None, value: Jvm, order: Sequence[Jvm]) -> Jvm:
        keys = [f"key{i}" for i in range(len(order))]
        fields = zip([*keys, _VALUE], [*(o.child() for o in order), value], strict=True)
        element = self._c.call("named_struct", [e for name, e in fields for e in (self._literal(name), e)])
        found = self._c.seq([element])
        listed = call.copy(
            call.nameParts() if function is None else self._c.seq([function]),
            found,
            call.isDistinct(),
            call.filter(),
            call.ignoreNulls(),
            self._c.seq([]),
            False,
        )
        if all(_ascends(o) and _nulls_first(o) for o in order):
            ordered = self._c.call("sort_array", [listed])  # structs compare in this order
        else:
            ordered = self._c.call("array_sort", [listed, self._comparison(keys, order)])
        if option(call.ignoreNulls()) is not False:
            filled = self._c.expressions.IsNotNull(self._c.variable("s", _VALUE))
            ordered = self._c.call("filter", [ordered, self._c.lambda_of(filled, "s")])
        return self._c.call("transform", [ordered, self._c.lambda_of(self._c.variable("s", _VALUE), "s")])

    def _comparison(self, keys: Sequence[str], order: Sequence[Jvm]) -> Jvm:
        """Return the comparison (l, r) -> -1, 0 or 1: by the first key that differs, and by the value if all keys are
        equal."""
        e = self._c.expressions
        directions = [(k, _ascends(o), _nulls_first(o)) for k, o in zip(keys, order, strict=True)]
        branches = []
        for key, ascending, nulls_first in (*directions, (_VALUE, True, True)):
            left, right = self._c.variable("l", key), self._c.variable("r", key)
            less, null = (-1 if ascending else 1), (-1 if nulls_first else 1)
            cases = [
                (e.IsNull(left), null),
                (e.IsNull(right), -null),
                (e.LessThan(left, right), less),
            ]
            which = self._case([(when, self._literal(n)) for when, n in cases], self._literal(-less))
            branches.append((e.Not(e.EqualNullSafe(left, right)), which))
        return self._c.lambda_of(self._case(branches, self._literal(0)), "l", "r")

    def _case(self, branches: Sequence[tuple[Jvm, Jvm]], otherwise: Jvm) -> Jvm:
        pairs = self._c.seq(self._pair(when, then) for when, then in branches)
        return self._c.expressions.CaseWhen(pairs, self._some.apply(otherwise))

    def _literal(self, value: str | int | None) -> Jvm:
        return module(self._c.expressions, "Literal").apply(value)


def _ascends(order: Jvm) -> bool:
    return kind(order.direction()) == "Ascending"


def _nulls_first(order: Jvm) -> bool:
    return kind(order.nullOrdering()) == "NullsFirst"
