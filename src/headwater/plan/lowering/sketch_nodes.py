"""Approximate aggregate functions of a plan, as sketches that the kernels keep."""

from __future__ import annotations

import math

from headwater.operators.aggregate.distinct_count import DistinctCount
from headwater.operators.aggregate.frequent_items import FrequentItems
from headwater.operators.aggregate.quantiles import Quantiles, summed_up
from headwater.operators.aggregate.sketches import Sketch
from headwater.plan.rewrite.approximate_answers import (
    ACCURACY_MAX,
    APPROXIMATE,
    accuracy_of,
    normalized,
    ranked,
    shares_of,
)
from headwater.spark.catalyst import Catalyst, Jvm, children_of, is_orderable, kind, module

SKETCHED = APPROXIMATE
"""Functions for which groups keep a sketch, if their input is append-only."""
_PRECISIONS = range(4, 25)
_SEED = 42


def sketch_of(catalyst: Catalyst, function: Jvm) -> Sketch | None:
    """Return the sketch that a group keeps for an approximate function; None if the function has no sketch form."""
    if kind(function) == "ApproximatePercentile":
        value, shares, accuracy = children_of(function)
        values, wanted = catalyst.arrow_type(value.dataType()), accuracy_of(accuracy)
        if wanted == ACCURACY_MAX or not summed_up(values):
            return None
        return Quantiles(values, wanted, tuple(shares_of(shares)), kind(shares.dataType()) == "ArrayType")
    if kind(function) == "ApproxTopK":
        value, wanted, tracked = children_of(function)
        if "collate" in value.dataType().sql().lower():  # any of several equal values could be shown
            return None
        return FrequentItems(
            catalyst.arrow_type(value.dataType()), int(wanted.eval(None)), int(tracked.eval(None))
        )
    precision = math.ceil(2.0 * math.log2(1.106 / function.relativeSD()))
    if precision not in _PRECISIONS or not is_orderable(catalyst, children_of(function)[0]):
        return None
    return DistinctCount(precision, *_corrections(catalyst, precision))


def sketched_argument(catalyst: Catalyst, function: Jvm) -> Jvm:
    """Return the expression that a sketch takes as input. Distinct counts take Spark's hash of the value; frequent values
    take the value, in a struct where it may be NULL, since NULL counts as a value."""
    e, value = catalyst.expressions, children_of(function)[0]
    if kind(function) == "ApproximatePercentile":
        return ranked(catalyst, value)
    if kind(function) == "ApproxTopK":
        item = normalized(catalyst, value)
        named = [module(e, "Literal").apply("item"), item]
        return e.CreateNamedStruct(catalyst.seq(named)) if value.nullable() else item
    hashed = e.XxHash64(catalyst.seq([normalized(catalyst, value)]), _SEED)
    nothing = module(e, "Literal").create(None, hashed.dataType())
    return e.If(e.IsNull(value), nothing, hashed)


def _corrections(catalyst: Catalyst, precision: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return Spark's threshold, raw estimates and biases; Spark has none above a precision of 18."""
    if precision > 18:
        return 0.0, (), ()
    if precision not in _CORRECTIONS:
        helper = module(catalyst.jvm.org.apache.spark.sql.catalyst.util, "HyperLogLogPlusPlusHelper")
        arrays = catalyst.jvm.java.util.Arrays
        place = precision - 4
        rows = helper.THRESHOLDS(), helper.RAW_ESTIMATE_DATA()[place], helper.BIAS_DATA()[place]
        tables = [tuple(map(float, arrays.toString(row).strip("[]").split(", "))) for row in rows]
        _CORRECTIONS[precision] = tables[0][place], tables[1], tables[2]
    return _CORRECTIONS[precision]


_CORRECTIONS: dict[int, tuple[float, tuple[float, ...], tuple[float, ...]]] = {}
