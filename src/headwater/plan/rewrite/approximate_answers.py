"""What approximate functions of an analysed plan are answered by: themselves, the exact answer, or the bounds of it.

| function | exactly | how far off an answer may be |
| --- | --- | --- |
| `approx_count_distinct(x, rsd)` | `count(DISTINCT x)` | 5 rsd of the exact answer, and 3 |
| `percentile_approx(x, p, accuracy)` | the same of the greatest accuracy | the value at p is one between those at p - 1 / accuracy and p + 1 / accuracy |
| `approx_top_k(x, k, tracked)` | none: views that cannot keep a sketch are refused | see `operators/frequent_items.py`; as bounds all values stand, each with a count of 1 |

The error of a distinct count is a matter of chance: its standard error is at most rsd, and five times that is met once in
a million groups. The three are for small groups, of which two values may share a register. That of percentiles is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headwater.spark.catalyst import Catalyst, Jvm, children_of, is_orderable, kind, module

Answers = Literal["approximate", "exact", "floor", "ceiling"]
ACCURACY_MAX = 2**31 - 1
ERRORS = 5.0
"""How many standard errors a distinct count may be off."""
_FEW = 3
APPROXIMATE = frozenset({"HyperLogLogPlusPlus", "ApproximatePercentile", "ApproxTopK"})
"""The kinds of approximate functions."""
_ROUNDING = 1e-9


def answered(catalyst: Catalyst, plan: Jvm, answers: Answers) -> Jvm:
    """An analysed aggregate or window with its approximate functions answered so.

    In windows they always are exact: frames are computed from their rows, and not from a sketch.
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
    if not is_orderable(c, value):  # so its values cannot be told apart by an order
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
    return c.cast(bound, exact.dataType())  # which cuts off, as whole numbers are not further off for


def _items(c: Catalyst, function: Jvm) -> Jvm | None:
    if kind(function) != "ApproxTopK":
        return None
    e, literal = c.expressions, module(c.expressions, "Literal")
    parts = [literal.apply("item"), normalized(c, children_of(function)[0])]
    one = c.cast(literal.apply(1), function.dataType().elementType().apply(1).dataType())
    pair = e.CreateNamedStruct(c.seq([*parts, literal.apply("count"), one]))
    return e.aggregate.CollectList(pair, 0, 0, True)


def normalized(c: Catalyst, value: Jvm) -> Jvm:
    """Floats of which equal ones are the same: 0.0 and not -0.0, and one NaN."""
    if value.dataType().typeName() not in ("float", "double"):
        return value
    return c.jvm.org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero(value)


def ranked(c: Catalyst, value: Jvm) -> Jvm:
    """The values of which percentiles are: not NaN, with which Spark's own answers depend on the order of rows."""
    if value.dataType().typeName() not in ("float", "double"):
        return value
    nothing = module(c.expressions, "Literal").create(None, value.dataType())
    return c.expressions.If(c.expressions.IsNaN(value), nothing, normalized(c, value))


def shares_of(expression: Jvm) -> Sequence[float]:
    """The percentages of `percentile_approx`, one or many, which are constants."""
    found = expression.eval(None)
    if isinstance(found, float):
        return [found]
    return [float(share) for share in found.toDoubleArray()]


def accuracy_of(expression: Jvm) -> int:
    """The accuracy of `percentile_approx`, which is a constant."""
    return int(expression.eval(None))
