"""Replaces the approximate functions of an analysed plan by exact functions, or by the bounds of their answers.

| function | exact form | maximum error of an approximate answer |
| --- | --- | --- |
| `approx_count_distinct(x, rsd)` | `count(DISTINCT x)` | 5 rsd of the exact answer, plus 3 |
| `percentile_approx(x, p, accuracy)` | itself, at the greatest accuracy | 1 / accuracy in p: see below |
| `approx_top_k(x, k, tracked)` | none: rejected if a view cannot keep a sketch | see `operators.aggregate.frequent_items` |

The error of a distinct count is random: its standard error is at most rsd, and five times the standard error is exceeded
once in a million groups. The additional 3 are for small groups, in which two values may share a register. The error of
percentiles is not random: the answer is between the values at p - 1 / accuracy and p + 1 / accuracy. As bounds of
`approx_top_k`, all values are returned, each with a count of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headwater.spark.catalyst import Catalyst, Jvm, children_of, is_orderable, kind, module

Answers = Literal["approximate", "exact", "floor", "ceiling"]
ACCURACY_MAX = 2**31 - 1
ERRORS = 5.0
"""Allowed error of a distinct count, in standard errors."""
_FEW = 3
APPROXIMATE = frozenset({"HyperLogLogPlusPlus", "ApproximatePercentile", "ApproxTopK"})
"""Catalyst classes of the approximate functions."""
_ROUNDING = 1e-9


def answered(catalyst: Catalyst, plan: Jvm, answers: Answers) -> Jvm:
    """Return an analysed aggregate or window with its approximate functions answered as `answers` says.

    In windows the answers are always exact: frames are computed from their rows and not from a sketch.
    """
    c = catalyst
    if kind(plan) == "Window":
        of_frames = [
            c.rewritten(e, lambda e: _percentiles(c, e, "exact")) for e in _all(plan.windowExpressions())
        ]
        return plan.copy(c.seq(of_frames), plan.partitionSpec(), plan.orderSpec(), plan.child(), plan.hint())
    if answers == "approximate":
        return plan

    def change(e: Jvm) -> Jvm | None:
        return _percentiles(c, e, answers) or _counts(c, e, answers) or _items(c, e)

    made = [c.rewritten(e, change) for e in _all(plan.aggregateExpressions())]
    return plan.copy(plan.groupingExpressions(), c.seq(made), plan.child(), plan.hint())


def _all(expressions: Jvm) -> list[Jvm]:
    return [expressions.apply(i) for i in range(expressions.size())]


def _percentiles(c: Catalyst, function: Jvm, answers: Answers) -> Jvm | None:
    if kind(function) != "ApproximatePercentile":
        return None
    value, shares, accuracy = children_of(function)
    literal = module(c.expressions, "Literal")
    exact = literal.apply(ACCURACY_MAX)
    value = ranked(c, value)
    if answers == "exact":
        return function.withNewChildren(c.seq([value, shares, exact]))
    off = 1.0 / accuracy_of(accuracy) * (1 + _ROUNDING)
    moved = [
        literal.apply(max(0.0, share - off) if answers == "floor" else min(1.0, share + off))
        for share in shares_of(shares)
    ]
    many = kind(shares.dataType()) == "ArrayType"
    return function.withNewChildren(
        c.seq([value, c.expressions.CreateArray(c.seq(moved), False) if many else moved[0], exact])
    )


def _counts(c: Catalyst, call: Jvm, answers: Answers) -> Jvm | None:
    if kind(call) != "AggregateExpression" or kind(call.aggregateFunction()) != "HyperLogLogPlusPlus":
        return None
    function, e = call.aggregateFunction(), c.expressions
    value = children_of(function)[0]
    if not is_orderable(c, value):  # values without an order cannot be counted exactly
        return None
    counting = e.aggregate.Count(c.seq([value]))
    new = e.NamedExpression.newExprId()
    exact = call.copy(
        counting, call.mode(), True, call.filter(), call.resultId() if answers == "exact" else new
    )
    if answers == "exact":
        return exact
    literal = module(e, "Literal")
    factor = 1 + (ERRORS if answers == "ceiling" else -ERRORS) * function.relativeSD()
    number = c.cast(exact, literal.apply(1.0).dataType())
    bound = e.Add(
        e.Multiply(number, literal.apply(max(0.0, factor))),
        literal.apply(float(_FEW if answers == "ceiling" else -_FEW)),
    )
    return c.cast(bound, exact.dataType())  # the cast truncates; bounds of whole numbers stay valid


def _items(c: Catalyst, function: Jvm) -> Jvm | None:
    if kind(function) != "ApproxTopK":
        return None
    e, literal = c.expressions, module(c.expressions, "Literal")
    parts = [literal.apply("item"), normalized(c, children_of(function)[0])]
    one = c.cast(literal.apply(1), function.dataType().elementType().apply(1).dataType())
    pair = e.CreateNamedStruct(c.seq([*parts, literal.apply("count"), one]))
    return e.aggregate.CollectList(pair, 0, 0, True)


def normalized(c: Catalyst, value: Jvm) -> Jvm:
    """Normalize floats so that equal values are identical: -0.0 becomes 0.0, and every NaN the same NaN."""
    if value.dataType().typeName() not in ("float", "double"):
        return value
    return c.jvm.org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero(value)


def ranked(c: Catalyst, value: Jvm) -> Jvm:
    """Return the values that percentiles are computed from: NaN becomes NULL, since with NaN Spark's answers depend on row
    order."""
    if value.dataType().typeName() not in ("float", "double"):
        return value
    nothing = module(c.expressions, "Literal").create(None, value.dataType())
    return c.expressions.If(c.expressions.IsNaN(value), nothing, normalized(c, value))


def shares_of(expression: Jvm) -> Sequence[float]:
    """Return the percentages of `percentile_approx`, one or many, which are constants."""
    found = expression.eval(None)
    if isinstance(found, float):
        return [found]
    return [float(share) for share in found.toDoubleArray()]


def accuracy_of(expression: Jvm) -> int:
    """Return the accuracy of `percentile_approx`, which is a constant."""
    return int(expression.eval(None))
