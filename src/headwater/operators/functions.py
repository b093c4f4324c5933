"""Aggregate functions: what each keeps for a group, and the buffer columns that it gives.

The output of a function are the columns of *Spark's aggregation buffer* for it, because Spark itself evaluates the final
expression from them; so the type of a quotient, rounding and overflow of a result are Spark's.

| kind | arguments | buffer columns |
| --- | --- | --- |
| `count` | any number | int64: rows without a NULL among the arguments |
| `sum` of integers | 1 | int64, NULL without values |
| `sum` of floats | 1 | float64, NULL without values |
| `sum` of decimal(p, s) | 1 | decimal(min(38, p + 10), s), bool: no values |
| `avg` | 1 | float64 or decimal as for `sum`, 0 without values; int64 count |
| `moments` of order 2, 3, 4 | 1 | float64: n, mean, m2, m3, m4 up to the order; 0.0 without values |
| `covar` | 2 | float64: n, mean of x, mean of y, co-moment |
| `corr` | 2 | float64: the same, then m2 of x and of y |
| `min`, `max` | 1 | the value, NULL without values |
| `min_by`, `max_by` | value, ordering | the value |
| `sketch` | 1 | the answer itself, of the sketch's type |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headwater.operators import lanes, sums
from headwater.operators.accumulators import Accumulator, Compensated, Count, Exact, Lanes, Powers
from headwater.operators.sketches import Sketch
from headwater.operators.sums import SCALE, Bools, Floats, Ints, Pair

Kind = Literal["count", "sum", "avg", "moments", "covar", "corr", "min", "max", "min_by", "max_by", "sketch"]
Overflow = Callable[["Function", Bools], None]
"""Called with the groups whose value fits; raises if there are others."""

_NOTHING = 2.0**-96
"""Beside the sum it is found from, a central moment this small is rounding: the values are all equal."""


@dataclass(frozen=True)
class Function:
    """An aggregate function over columns of the input.

    `filter` is a boolean column; rows where it is false or NULL do not take part. `append_only` promises that no row of
    the input is ever taken back, which spares minima and maxima their ordered state. `order` is that of `moments`, and
    `sketch` what a function of that kind keeps of its argument.
    """

    kind: Kind
    args: tuple[int, ...] = ()
    filter: int | None = None
    append_only: bool = False
    order: int = 2
    sketch: Sketch | None = None

    def __post_init__(self) -> None:
        wanted = {"count": len(self.args), "covar": 2, "corr": 2, "min_by": 2, "max_by": 2}.get(self.kind, 1)
        if len(self.args) != wanted:
            raise ValueError(f"{self.kind} takes {wanted} arguments, not {len(self.args)}")
        if self.order not in (2, 3, 4):
            raise ValueError(f"there are no moments of order {self.order} here")
        if (self.sketch is None) != (self.kind != "sketch"):
            raise ValueError("a sketch has its kind")

    @property
    def extreme(self) -> bool:
        """Whether it picks a value, instead of adding values up."""
        return self.kind in ("min", "max", "min_by", "max_by")

    @property
    def adds_up(self) -> bool:
        """Whether it is made of accumulators."""
        return not self.extreme and self.sketch is None


def accumulators(function: Function, schema: pa.Schema) -> tuple[Accumulator, ...]:
    """What a function that adds up keeps for each group."""
    args, condition = function.args, function.filter
    count = Count(args, condition)
    match function.kind:
        case "count":
            return (count,)
        case "sum" | "avg":
            return (count, _sum(args[0], condition, schema.field(args[0]).type))
        case "moments":
            return (count, _powers(function))
        case "covar" | "corr":
            return (count, _cross(function))
    return ()


def fields(function: Function, schema: pa.Schema) -> list[pa.DataType]:
    """The types of its buffer columns."""
    number = pa.float64()
    match function.kind:
        case "count":
            return [pa.int64()]
        case "sum" | "avg":
            kind = schema.field(function.args[0]).type
            summed = _sum_type(kind)
            if function.kind == "avg":
                return [summed if pa.types.is_decimal(kind) else number, pa.int64()]
            return [summed, pa.bool_()] if pa.types.is_decimal(kind) else [summed]
        case "moments":
            return [number] * (function.order + 1)
        case "covar":
            return [number] * 4
        case "corr":
            return [number] * 6
    if function.sketch is not None:
        return [function.sketch.result]
    return [schema.field(function.args[0]).type]


def finish(
    function: Function, kind: pa.DataType | None, count: Ints, kept: Lanes, overflow: Overflow
) -> list[pa.Array]:
    """The buffer columns of a function that adds up, from the first and the last of its accumulators; `kind` is the type
    of its first argument."""
    match function.kind:
        case "count":
            return [pa.array(count)]
        case "sum" | "avg":
            assert kind is not None
            return _finish_sum(function, kind, kept, count, overflow)
        case "moments":
            powers = _powers(function)
            made = _moments(kept[0] != 0, powers.values(kept), count.astype(np.float64))
            return [pa.array(lane) for lane in made]
    cross = _cross(function)
    made = _comoments(kept[0] != 0, cross.values(kept), count.astype(np.float64))
    return [pa.array(lane) for lane in made]


def _powers(function: Function) -> Powers:
    products = tuple(function.args * power for power in range(1, function.order + 1))
    return Powers(function.args, function.filter, products)


def _cross(function: Function) -> Powers:
    x, y = function.args
    products: tuple[tuple[int, ...], ...] = ((x,), (y,), (x, y))
    if function.kind == "corr":
        products = (*products, (x, x), (y, y))
    return Powers(function.args, function.filter, products)


def _sum(arg: int, condition: int | None, kind: pa.DataType) -> Exact | Compensated:
    if pa.types.is_floating(kind):
        return Compensated(arg, condition)
    if pa.types.is_decimal128(kind):
        return Exact(arg, condition, 2 if kind.precision <= 18 else 4, decimal=True)
    if pa.types.is_signed_integer(kind) or pa.types.is_duration(kind):
        return Exact(arg, condition, 2, decimal=False)
    raise TypeError(f"values of type {kind} cannot be summed")


def _sum_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal128(kind):
        return pa.decimal128(min(38, kind.precision + 10), kind.scale)
    if pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_duration(kind) else pa.int64()


def _finish_sum(
    function: Function, kind: pa.DataType, kept: Lanes, count: Ints, overflow: Overflow
) -> list[pa.Array]:
    average = function.kind == "avg"
    if pa.types.is_decimal128(kind):
        summed = _sum_type(kind)
        low, high, fits = sums.to_words(kept, summed.precision)
        overflow(function, fits)
        column = lanes.decimals(low, high, summed)
        return [column, pa.array(count if average else count == 0)]
    if pa.types.is_floating(kind):
        [pair] = Compensated(function.args[0], function.filter).values(kept)
        total = _float(kept, pair)
        return (
            [pa.array(total), pa.array(count)] if average else [lanes.array(total, pa.float64(), count != 0)]
        )
    if average:
        return [pa.array(sums.to_floats(kept)), pa.array(count)]
    whole, fits = sums.to_integers(kept)
    overflow(function, fits)
    return [lanes.array(whole, _sum_type(kind), count != 0)]


def _float(kept: Lanes, pair: Pair) -> Floats:
    """The value of a compensated sum; NaN and infinities win as they do in addition."""
    nans, above, below = kept[:3]
    with np.errstate(over="ignore"):
        total: Floats = (pair[0] + pair[1]) / SCALE + 0.0
    if nans.any() or above.any() or below.any():
        total = np.where(above != 0, np.inf, np.where(below != 0, -np.inf, total))
        total = np.where((nans != 0) | ((above != 0) & (below != 0)), np.nan, total)
    return total


def _moments(beyond: Bools, powers: list[Pair], n: Floats) -> list[Floats]:
    """n, mean and the central moments m2, m3, m4 as far as there are sums of powers."""
    divisor = np.maximum(n, 1.0)
    mean = sums.pair_divide(powers[0], divisor)
    flat = np.zeros(len(n), dtype=np.bool_)
    found = []
    for order in range(2, len(powers) + 1):
        moment = _central(powers[:order], mean, n)
        if order == 2:
            flat = moment <= powers[1][0] * _NOTHING
        found.append(np.where(flat, 0.0, moment))
    return [n, *(np.where(beyond, np.nan, lane) for lane in (mean[0] + 0.0, *found))]


def _central(powers: list[Pair], mean: Pair, n: Floats) -> Floats:
    """The sum of (x - mean) ** k, k being the number of powers, by the binomial theorem in Horner's form."""
    order = len(powers)
    minus = sums.pair_negate(mean)
    zero = np.zeros(len(n))
    total: Pair = (n, zero)
    binomial = 1
    for step, power in enumerate(powers, start=1):
        binomial = binomial * (order - step + 1) // step
        term = sums.pair_multiply(power, (zero + binomial, zero))
        total = sums.pair_add(sums.pair_multiply(total, minus), term)
    return total[0]


def _comoments(beyond: Bools, products: list[Pair], n: Floats) -> list[Floats]:
    """n, the means, the co-moment and, if there are squares, m2 of both."""
    x, y, cross = products[:3]
    divisor = np.maximum(n, 1.0)

    def about_mean(product: Pair, a: Pair, b: Pair) -> Floats:
        shift = sums.pair_divide(sums.pair_multiply(a, b), divisor)
        moment = sums.pair_add(product, sums.pair_negate(shift))[0]
        return np.where(np.abs(moment) <= np.abs(product[0]) * _NOTHING, 0.0, moment)

    found = [about_mean(cross, x, y)]
    if len(products) > 3:
        found += [about_mean(products[3], x, x), about_mean(products[4], y, y)]
    means = [sums.pair_divide(side, divisor)[0] + 0.0 for side in (x, y)]
    return [n, *(np.where(beyond, np.nan, lane) for lane in (*means, *found))]
