"""Sums whose result does not depend on the order of rows, for plans that Spark runs over rows.

Spark adds row by row and task by task, and fails, or returns NULL in `try_sum`, if a partial sum overflows: -1, the largest
BIGINT and 1 have a sum in one order and none in another. In a view a sum depends on its rows only, and fails only if the
result itself overflows. The operators add exactly (`operators.zset.exact_sums`); this module expresses the same with
Spark's functions for what Spark computes itself: whole groups (`operators.table.regroup`), and batch runs, which `verify`
compares with.

A sum of BIGINT is composed of the sums of the upper and the lower 32 bits, which cannot overflow; a sum of decimals of more
than 28 digits, of the sums of the upper and the lower 20 digits. Doubles below 2**40 are added as integer multiples of
2**-62, so that nothing is lost where they cancel out; a sum of finite doubles that is infinite is repeated at a smaller
scale. Intervals are summed as microseconds or months. Sums and averages that cannot overflow are unchanged, and so are
those over frames of ROWS, which have an order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headwater.plan.rewrite.cumulate_window import rewritten_plan
from headwater.plan.rewrite.exact_moments import Centred
from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    children_of,
    identity,
    items,
    kind,
    kinds_in,
    module,
    option,
)

_SUMS = frozenset({"Sum", "Average"})
_DIGITS = 20
"""Number of lower digits of a wide decimal that are added separately."""
_WIDE = 28
"""Largest precision for which sums of decimals fit into the precision of the result."""
_REACH, _STEP, _SMALL = 2.0**40, 2.0**62, 2.0**-64
Over = Callable[[Jvm], Jvm]
"""Wraps a call of an aggregate function in the form in which it is used, such as a window expression."""


def with_exact_aggregates(catalyst: Catalyst, plan: Jvm) -> Jvm:
    """Return a plan with every sum, average and moment exact, including subqueries; the plan must be analysed again."""
    return rewritten_plan(catalyst, plan, lambda node: _exact_node(catalyst, node))


def _exact_node(catalyst: Catalyst, node: Jvm) -> Jvm:
    if kind(node) not in ("Aggregate", "Window"):
        return node
    return exact_form(catalyst, node)(node.child())


def exact_form(catalyst: Catalyst, node: Jvm) -> Callable[[Jvm], Jvm]:
    """Return a function that places a node, with exact sums, averages and moments, over a child."""
    centred = Centred(catalyst, node)
    return partial(centred.over, node=exactly(catalyst, centred.node))


def exactly(catalyst: Catalyst, node: Jvm) -> Jvm:
    """Return a plan node with its sums and averages exact."""
    if kind(node) not in ("Aggregate", "Window") or not kinds_in(items(node.expressions())) & _SUMS:
        return node
    c = catalyst

    def in_groups(e: Jvm) -> Jvm | None:
        return _exact(c, e, lambda call: call) if kind(e) == "AggregateExpression" else None

    def in_windows(e: Jvm) -> Jvm | None:
        if (
            kind(e) != "WindowExpression"
            or kind(e.windowFunction()) != "AggregateExpression"
            or _is_ordered(e)
        ):
            return None
        spec = e.windowSpec()
        return _exact(c, e.windowFunction(), lambda call: c.expressions.WindowExpression(call, spec))

    if kind(node) == "Aggregate":
        shown = [c.rewritten(e, in_groups) for e in items(node.aggregateExpressions())]
        return node.copy(node.groupingExpressions(), c.seq(shown), node.child(), node.hint())
    shown = [c.rewritten(e, in_windows) for e in items(node.windowExpressions())]
    return node.copy(c.seq(shown), node.partitionSpec(), node.orderSpec(), node.child(), node.hint())


def _is_ordered(window: Jvm) -> bool:
    """Whether the rows of a frame have a total order: `determinism` has completed the order of ROWS frames."""
    spec = window.windowSpec()
    frame = spec.frameSpecification()
    rows = kind(frame) == "SpecifiedWindowFrame" and kind(frame.frameType()) == "RowFrame"
    return rows and spec.orderSpec().size() > 0


def _exact(c: Catalyst, a: Jvm, over: Over) -> Jvm | None:
    """Return the replacement of a sum or an average; None if it can stay unchanged, or for any other function."""
    function = a.aggregateFunction()
    if kind(function) not in _SUMS:
        return None
    total = _total(c, a, over)
    if total is None or kind(function) == "Sum":
        return total
    buffers = [identity(b) for b in items(function.aggBufferAttributes())]
    calls = _Calls(c, a, over, children_of(function)[0])
    # count(DISTINCT ...) next to a set would make Spark split the aggregate, which forms different sessions
    count = calls.made("{}", "CAST(size(_n0) AS BIGINT) | collect_set(_x)" if calls.distinct else "count(_x)")

    def filled(e: Jvm) -> Jvm | None:
        if kind(e) != "AttributeReference" or identity(e) not in buffers:
            return None
        return (total, count)[buffers.index(identity(e))]

    return c.rewritten(function.evaluateExpression(), filled)


def _total(c: Catalyst, a: Jvm, over: Over) -> Jvm | None:
    function = a.aggregateFunction()
    is_average = kind(function) == "Average"
    mode = function.evalMode() if is_average else function.evalContext().evalMode()
    cast = "TRY_CAST" if mode.toString() == "TRY" else "CAST"
    value = children_of(function)[0]
    data_type = value.dataType()
    name = str(data_type.simpleString())
    calls = _Calls(c, a, over, value)
    if name == "double":
        return _doubles(calls)
    if name == "bigint":
        return _whole(calls, "CAST" if is_average else cast, "DOUBLE" if is_average else "BIGINT")
    if name.startswith("interval "):
        e, types = c.expressions, c.jvm.org.apache.spark.sql.types
        is_months = kind(data_type) == "YearMonthIntervalType"
        number = module(types, "IntegerType" if is_months else "LongType")
        calls = _Calls(c, a, over, e.PreciseTimestampConversion(value, data_type, number))
        total = (
            calls.made(f"{cast}({{}} AS INT)", "sum({0}CAST(_x AS BIGINT))")
            if is_months
            else _whole(calls, cast, "BIGINT")
        )
        return e.PreciseTimestampConversion(total, number, data_type)
    if name.startswith("decimal") and data_type.precision() > _WIDE:
        return _wide(c, calls, data_type.scale(), cast)
    return None


class _Calls:
    """Builds expressions over calls of aggregate functions; `_x` stands for their argument."""

    def __init__(self, c: Catalyst, a: Jvm, over: Over, value: Jvm) -> None:
        self._c = c
        self._over = over
        self._value = value
        self._filter = option(a.filter())
        self.distinct = "DISTINCT " if a.isDistinct() else ""

    def made(self, text: str, *calls: str) -> Jvm:
        """Return an expression with calls inserted for `{}`, or `{0}` and so on; `{0}` in a call becomes DISTINCT if the
        original call has it."""
        parts = {"_x": self._value}
        if self._filter is not None:
            parts["_f"] = self._filter
        where = "" if self._filter is None else " FILTER (WHERE _f)"
        found = {}
        for number, call in enumerate(calls):
            functions = call.format(self.distinct).split(" | ")
            nested = {
                f"_n{i}": self._over(self._c.written(each + where, parts))
                for i, each in enumerate(functions[1:])
            }
            found[f"_p{number}"] = (
                self._c.written(functions[0], nested)
                if nested
                else self._over(self._c.written(functions[0] + where, parts))
            )
        return self._c.written(text.format(*found), found)

    def added(self, value: str, data_type: str) -> str:
        """Return the call that sums a value computed from `_x`, over all rows or, with DISTINCT, over the different values
        of `_x`."""
        if not self.distinct:
            return f"sum({value})"
        each = value.replace("_x", "_v")
        total = f"aggregate(_n0, CAST(0 AS {data_type}), (_s, _v) -> CAST(_s + ({each}) AS {data_type}))"
        return f"CASE WHEN size(_n0) > 0 THEN {total} END | collect_set(_x)"


def _whole(calls: _Calls, cast: str, data_type: str) -> Jvm:
    """Return the sum of a BIGINT from its upper and lower 32 bits, as another type."""
    if calls.distinct:
        added = calls.added("CAST(_x AS DECIMAL(20, 0))", "DECIMAL(38, 0)")
        return calls.made(f"{cast}({{}} AS {data_type})", added)
    return calls.made(
        f"{cast}(CAST({{0}} AS DECIMAL(20, 0)) * 4294967296 + {{1}} AS {data_type})",
        "sum(shiftright(_x, 32))",
        "sum(_x & 4294967295L)",
    )


def _wide(c: Catalyst, calls: _Calls, scale: int, cast: str) -> Jvm:
    """Return the sum of a decimal from its upper and lower digits, combined where both have the same sign: no step
    overflows unless the sum does."""
    if scale <= _DIGITS:
        unit = f"CAST('1{'0' * (_DIGITS - scale)}' AS DECIMAL({_DIGITS + 1 - scale}, 0))"
    else:
        places = scale - _DIGITS
        unit = f"CAST('0.{'0' * (places - 1)}1' AS DECIMAL({places}, {places}))"
    result = f"DECIMAL(38, {scale})"
    high, low = f"({{0}} + CAST({{1}} DIV {unit} AS DECIMAL(20, 0)))", f"({{1}} % {unit})"
    borrowed = f"CASE WHEN {high} > 0 AND {low} < 0 THEN 1 WHEN {high} < 0 AND {low} > 0 THEN -1 ELSE 0 END"
    upper = calls.added(f"CAST(_x DIV {unit} AS DECIMAL(19, 0))", "DECIMAL(29, 0)")
    lower = calls.added(f"_x % {unit}", f"DECIMAL({max(31, scale)}, {scale})")
    terms = [
        f"CAST({cast}({high} - {borrowed} AS DECIMAL(18, 0)) * {unit} AS {result})",
        f"CAST({low} AS {result})",
        f"CAST(CAST({borrowed} AS DECIMAL(1, 0)) * {unit} AS {result})",
    ]
    whole, rest, lent = (calls.made(term, upper, lower) for term in terms)
    kind_of = c.jvm.org.apache.spark.sql.types.DecimalType(38, scale)
    plus = c.expressions.DecimalAddNoOverflowCheck  # this form of addition keeps the scale
    return plus(whole, plus(rest, lent, kind_of), kind_of)


def _doubles(calls: _Calls) -> Jvm:
    """Return the sum of doubles: values within reach are added exactly except for parts below 2**-62; the others
    separately."""
    near, far = (f"CASE WHEN abs(_x) {other} {_REACH!r}D THEN 0D ELSE _x END" for other in (">=", "<"))
    whole = f"CAST({near} AS BIGINT)"  # truncates towards zero: the rest is a double
    part = f"({near} - {whole}) * {_STEP!r}D"
    cell = f"CAST({part} AS BIGINT)"
    exact = (
        f"CAST({{0}} AS DECIMAL(19, 0)) * CAST('{int(_STEP)}' AS DECIMAL(19, 0)) "
        "+ (CAST({1} AS DECIMAL(20, 0)) * 4294967296 + CAST({2} AS DECIMAL(20, 0)))"
    )
    large = f"CASE WHEN {{4}} - {{4}} = 0D THEN {{4}} ELSE {{5}} * {1 / _SMALL!r}D END"
    return calls.made(
        f"((CAST({exact} AS DOUBLE) + {{3}}) / {_STEP!r}D + {large})",
        calls.added(whole, "BIGINT"),
        calls.added(f"shiftright({cell}, 32)", "BIGINT"),
        calls.added(f"{cell} & 4294967295L", "BIGINT"),
        calls.added(f"{part} - {cell}", "DOUBLE"),
        calls.added(far, "DOUBLE"),
        calls.added(f"({far}) * {_SMALL!r}D", "DOUBLE"),
    )
