"""Aggregate functions: the accumulators that each keeps for a group, and the buffer columns that it outputs.

The output columns of a function are *Spark's aggregation buffer* for it, because Spark itself evaluates the final
expression from them. So the type of a quotient and the rounding and overflow of a result are Spark's.
| kind | arguments | buffer columns |
| --- | --- | --- |
| `count` | any number | int64: rows without a NULL among the arguments |
| `sum` of integers | 1 | int64, NULL without values |
| `sum` of floats | 1 | float64, NULL without values |
| `sum` of decimal(p, s) | 1 | decimal(min(38, p + 10), s), bool: no values |
| `avg` | 1 | float64 or decimal as for `sum`, 0 without values; int64 count |
| `moments` of order 2, 3, 4 | 1 | float64: n, mean, m2, m3, m4 up to the order; 0.0 without values |
| `covar` | 2 | float64: n, mean of x, mean of y, co-moment |
| `corr` | 2 | float64: the columns of `covar`, then m2 of x and of y |
| `min`, `max` | 1 | the value, NULL without values |
| `min_by`, `max_by` | value, ordering | the value |
| `sketch` | 1 | the result itself, of the sketch's type |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headwater.operators.aggregate.accumulators import Accumulator, Compensated, Count, Exact, Lanes, Powers
from headwater.operators.aggregate.sketches import Sketch
from headwater.operators.zset import exact_sums, numpy_columns
from headwater.operators.zset.exact_sums import SCALE, Bools, Floats, Ints, Pair

Kind = Literal["count", "sum", "avg", "moments", "covar", "corr", "min", "max", "min_by", "max_by", "sketch"]
Overflow = Callable[["AggregateFunction", Bools], None]
"""Callback that receives a mask of the groups whose value fits its type, and raises if there is any other group."""

_CANCELLED = 2.0**-60
"""A central moment below this share of the sum it is computed from has few significant digits left in a pair."""
_LEAST = 2.0**-110
"""Lower bound of n * m2 relative to the sum of n squares, for doubles that are not all equal."""


@dataclass(frozen=True)
class AggregateFunction:
    """An aggregate function over columns of the input.

    `filter` is a boolean column; rows where it is false or NULL are ignored. `append_only` promises that no row of the
    input is ever retracted, so that minima and maxima need no ordered state. `order` is that of `moments`, and `sketch`
    defines what a function of kind `sketch` keeps of its argument.
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
            raise ValueError(f"moments of order {self.order} are not supported")
        if (self.sketch is None) != (self.kind != "sketch"):
            raise ValueError("a sketch needs its kind")

    @property
    def extreme(self) -> bool:
        """Whether the function selects a value (min, max, min_by, max_by) instead of adding values up."""
        return self.kind in ("min", "max", "min_by", "max_by")

    @property
    def adds_up(self) -> bool:
        """Whether the function is computed from accumulators."""
        return not self.extreme and self.sketch is None


def accumulators(function: AggregateFunction, schema: pa.Schema) -> tuple[Accumulator, ...]:
    """Return the accumulators that a function keeps for each group; none for extremes and sketches."""
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


def fields(function: AggregateFunction, schema: pa.Schema) -> list[pa.DataType]:
    """Return the types of the function's buffer columns."""
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
    function: AggregateFunction, kind: pa.DataType | None, count: Ints, kept: Lanes, overflow: Overflow
) -> list[pa.Array]:
    """Return the buffer columns of a function computed from accumulators, given its count and its last accumulator.

    `kind` is the type of the function's first argument.
    """
    match function.kind:
        case "count":
            return [pa.array(count)]
        case "sum" | "avg":
            assert kind is not None
            return _finish_sum(function, kind, kept, count, overflow)
        case "moments":
            made = _moments(_powers(function), kept, count.astype(np.float64))
            return [pa.array(lane) for lane in made]
    made = _comoments(_cross(function), kept, count.astype(np.float64))
    return [pa.array(lane) for lane in made]


def _powers(function: AggregateFunction) -> Powers:
    products = tuple(function.args * power for power in range(1, function.order + 1))
    return Powers(function.args, function.filter, products)


def _cross(function: AggregateFunction) -> Powers:
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
    function: AggregateFunction, kind: pa.DataType, kept: Lanes, count: Ints, overflow: Overflow
) -> list[pa.Array]:
    average = function.kind == "avg"
    if pa.types.is_decimal128(kind):
        summed = _sum_type(kind)
        low, high, fits = exact_sums.to_words(kept, summed.precision)
        overflow(function, fits)
        column = numpy_columns.decimals(low, high, summed)
        return [column, pa.array(count if average else count == 0)]
    if pa.types.is_floating(kind):
        [pair] = Compensated(function.args[0], function.filter).values(kept)
        total = _float(kept, pair)
        return (
            [pa.array(total), pa.array(count)]
            if average
            else [numpy_columns.array(total, pa.float64(), count != 0)]
        )
    if average:
        return [pa.array(exact_sums.to_floats(kept)), pa.array(count)]
    whole, fits = exact_sums.to_integers(kept)
    overflow(function, fits)
    return [numpy_columns.array(whole, _sum_type(kind), count != 0)]


def _float(kept: Lanes, pair: Pair) -> Floats:
    """Return the value of a compensated sum; NaN and infinities propagate as in floating-point addition."""
    nans, above, below = kept[:3]
    with np.errstate(over="ignore"):
        total: Floats = (pair[0] + pair[1]) / SCALE + 0.0
    if nans.any() or above.any() or below.any():
        total = np.where(above != 0, np.inf, np.where(below != 0, -np.inf, total))
        total = np.where((nans != 0) | ((above != 0) & (below != 0)), np.nan, total)
    return total


def _moments(powers: Powers, kept: Lanes, n: Floats) -> list[Floats]:
    """Return n, the mean and the central moments m2, m3, m4, up to the order for which there are sums of powers."""
    words = powers.values(kept)
    divisor = np.maximum(n, 1.0)
    mean = exact_sums.pair_divide(_pair(words[0]), divisor)
    spread, huge = _about_means(powers, kept, n, (0, 0, 1))
    shown = _unscaled(powers.scaled(kept)[0], powers.scale, divisor, mean[0], huge)
    found = [spread]
    for order in range(3, len(words) + 1):
        moment = _central([_pair(power) for power in words[:order]], mean, n)
        found.append(np.where(spread == 0, 0.0, moment))
    beyond = kept[0] != 0
    return [n, *(np.where(beyond, np.nan, lane) for lane in (shown + 0.0, *found))]


def _central(powers: list[Pair], mean: Pair, n: Floats) -> Floats:
    """Return the sum of (x - mean) ** k, k being the number of powers, by the binomial theorem in Horner's form."""
    order = len(powers)
    minus = exact_sums.pair_negate(mean)
    zero = np.zeros(len(n))
    total: Pair = (n, zero)
    binomial = 1
    for step, power in enumerate(powers, start=1):
        binomial = binomial * (order - step + 1) // step
        term = exact_sums.pair_multiply(power, (zero + binomial, zero))
        total = exact_sums.pair_add(exact_sums.pair_multiply(total, minus), term)
    return total[0]


def _comoments(powers: Powers, kept: Lanes, n: Floats) -> list[Floats]:
    """Return n, the means, the co-moment and, if there are sums of squares, m2 of both arguments."""
    words = powers.values(kept)
    divisor = np.maximum(n, 1.0)
    wanted = [(0, 1, 2)] if len(words) == 3 else [(0, 1, 2), (0, 0, 3), (1, 1, 4)]
    found = []
    huge = np.zeros(len(n), dtype=np.bool_)
    for which in wanted:
        moment, huge = _about_means(powers, kept, n, which)
        found.append(moment)
    scaled = powers.scaled(kept)
    means = [
        _unscaled(scaled[i], powers.scale, divisor, exact_sums.pair_divide(_pair(words[i]), divisor)[0], huge)
        + 0.0
        for i in (0, 1)
    ]
    beyond = kept[0] != 0
    return [n, *(np.where(beyond, np.nan, lane) for lane in (*means, *found))]


def _about_means(powers: Powers, kept: Lanes, n: Floats, which: tuple[int, int, int]) -> tuple[Floats, Bools]:
    """Return the sum of (x - mean) * (y - mean), given the indices of the sums of x, y and x * y, and a mask of groups
    with huge rows.

    Where the values lie close together and far from 0, too many digits cancel for sums of pairs: the moment is then
    computed from all digits of the long sums.
    """
    divisor = np.maximum(n, 1.0)
    x, y, cross = (powers.values(kept)[place] for place in which)
    shift = exact_sums.pair_divide(exact_sums.pair_multiply(_pair(x), _pair(y)), divisor)
    moment = exact_sums.pair_add(_pair(cross), exact_sums.pair_negate(shift))[0]
    several = n > 1
    huge = (kept[1] != 0) & several
    near = several & ~huge & (np.abs(moment) <= np.maximum(np.abs(cross[0]), np.abs(shift[0])) * _CANCELLED)
    found: Floats = np.where(several, moment, 0.0)
    if near.any():
        found[near] = _difference(
            _at(x, near), _at(y, near), _at(cross, near), n[near], same=which[0] == which[1]
        )
    if huge.any():
        x, y, cross = (_at(powers.scaled(kept)[place], huge) for place in which)
        with np.errstate(over="ignore"):
            moment = _difference(x, y, cross, n[huge], same=which[0] == which[1])
            found[huge] = moment / powers.scale / powers.scale
    return found, kept[1] != 0


def _difference(x: list[Floats], y: list[Floats], cross: list[Floats], n: Floats, *, same: bool) -> Floats:
    """Return (n * cross - x * y) / n, in long sums.

    If x and y are the `same`, a result below the square of the least distance of two doubles is residue of retracted
    rows: the values are all equal, and the result is 0.
    """
    parts = [part for word in cross for part in exact_sums.two_product(word, n)]
    for i, a in enumerate(x):
        for b in y[: len(y) - i]:
            parts += [-part for part in exact_sums.two_product(a, b)]
    parts.sort(key=lambda part: -float(np.abs(part).max()))
    high, low = exact_sums.in_words(parts, 2 * exact_sums.WORDS)[:2]
    moment = (high + low) / n
    return np.where(moment <= cross[0] * _LEAST / n, 0.0, moment) if same else moment


def _unscaled(words: list[Floats], scale: float, divisor: Floats, mean: Floats, huge: Bools) -> Floats:
    """Return the mean, computed from the scaled sums in groups with huge rows."""
    if not huge.any():
        return mean
    return np.where(huge, exact_sums.pair_divide(_pair(words), divisor)[0] / scale, mean)


def _at(words: list[Floats], chosen: Bools) -> list[Floats]:
    return [word[chosen] for word in words]


def _pair(words: list[Floats]) -> Pair:
    return words[0], words[1]
