"""Sums that can be taken back: exact ones of integers and decimals, compensated ones of floats.

Plain vector arithmetic over rows sorted by group; what SQL makes of a sum is in `accumulators.py`.

*Exact* sums are limbs of 32 bits in int64 lanes, the lowest first: every lane but the last is in [0, 2**32), the last
carries the sign. Two limbs hold a sum of any 64-bit values, four a sum of any 128-bit values. Because a sum is exact,
it does not depend on the order of its terms, and taking a term back leaves what was there before it.

*Float* sums are pairs (high, low) of doubles whose exact sum is the value, which gives about 32 digits. The sum over a
group is found by splitting every term at a power of two that is common to the group, such that the upper parts add up
without rounding, twice; only what is left after that is rounded. Terms must be finite; NaN and infinities are counted
apart by the caller. Terms are scaled by 2**-40, so that no intermediate sum of doubles overflows.

*Long* sums of floats are four doubles, about 64 digits, for what many digits cancel out of: the sums of squares from which
variances are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Pair = tuple[Floats, Floats]

SCALE = 2.0**-40
"""What a float is multiplied with before it is summed: the lanes of a sum hold the scaled value."""

WORDS = 4
"""How many doubles hold a long sum."""
_MASK = (1 << 32) - 1
_SPLITTER = 134217729.0  # 2**27 + 1: Veltkamp's, halves the 53 bits of a double


def integer_sums(values: Ints, weights: Ints | None, starts: Ints, limbs: int) -> list[Ints]:
    """The exact sum of value times weight over each segment, in limbs; `weights` None means all ones.

    `starts` are the ascending first positions of the segments, none of which is empty.
    """
    total = len(values) if weights is None else _magnitude(weights)
    peak = max(-int(values.min()), int(values.max()))
    if peak * total < 1 << 63:
        return _split(np.add.reduceat(_times(values, weights), starts), limbs)
    if total < 1 << 31:
        lanes = [np.add.reduceat(_times(lane, weights), starts) for lane in (values & _MASK, values >> 32)]
        return carry(_extended(lanes, limbs))
    return _big_sums([int(v) for v in values], weights, starts, limbs)


def wide_sums(low: Words, high: Ints, weights: Ints | None, starts: Ints, limbs: int) -> list[Ints]:
    """The same for 128-bit values, given as their lower and upper words."""
    narrow = low.view(np.int64)
    if np.array_equal(high, narrow >> 63):
        return integer_sums(narrow, weights, starts, limbs)
    if limbs < 4:
        raise ValueError("128-bit values need four limbs")
    total = len(low) if weights is None else _magnitude(weights)
    if total < 1 << 31:
        bits = np.uint64(32)
        parts = (
            (low & np.uint64(_MASK)).view(np.int64),
            (low >> bits).view(np.int64),
            high & _MASK,
            high >> 32,
        )
        return carry([np.add.reduceat(_times(part, weights), starts) for part in parts])
    values = [(int(h) << 64) + int(lo) for h, lo in zip(high, low, strict=True)]
    return _big_sums(values, weights, starts, limbs)


def carry(lanes: Sequence[Ints]) -> list[Ints]:
    """The same value with every lane but the last in [0, 2**32)."""
    done: list[Ints] = []
    up: Ints | None = None
    for lane in lanes[:-1]:
        lane = lane if up is None else lane + up
        done.append(lane & _MASK)
        up = lane >> 32
    return [*done, lanes[-1] if up is None else lanes[-1] + up]


def to_integers(lanes: Sequence[Ints]) -> tuple[Ints, Bools]:
    """The values of two limbs as 64-bit integers, and which of them fit."""
    low, high = lanes
    fits = (high >= -(1 << 31)) & (high < 1 << 31)
    return (high << 32) | low, fits


def to_words(lanes: Sequence[Ints], digits: int) -> tuple[Words, Ints, Bools]:
    """The values as lower and upper words of 128 bits, and which have at most that many decimal digits."""
    first, second = lanes[0], lanes[1]
    low = (first | (second << 32)).view(np.uint64)
    if len(lanes) == 2:
        high = second >> 32
        inside = np.ones(len(low), dtype=bool)
    else:
        high = lanes[2] | (lanes[3] << 32)
        inside = (lanes[3] >= -(1 << 31)) & (lanes[3] < 1 << 31)
    above = _below(high, low, 10**digits)
    beneath = ~_below(high, low, 1 - 10**digits)
    return low, high, inside & above & beneath


def to_floats(lanes: Sequence[Ints]) -> Floats:
    """The nearest doubles, to within a unit in the last place."""
    total: Floats = lanes[-1].astype(np.float64)
    for lane in reversed(lanes[:-1]):
        total = total * 2.0**32 + lane
    return total


def _below(high: Ints, low: Words, bound: int) -> Bools:
    upper, lower = bound >> 64, np.uint64(bound & ((1 << 64) - 1))
    below: Bools = (high < upper) | ((high == upper) & (low < lower))
    return below


def _times(values: Ints, weights: Ints | None) -> Ints:
    return values if weights is None else values * weights


def _magnitude(weights: Ints) -> int:
    """The sum of the absolute weights, or a number that is too large for the fast paths."""
    peak = max(-int(weights.min()), int(weights.max()))
    return peak * len(weights) if peak >= 1 << 31 else int(np.abs(weights).sum())


def _split(values: Ints, limbs: int) -> list[Ints]:
    return _extended([values & _MASK, values >> 32], limbs)


def _extended(lanes: list[Ints], limbs: int) -> list[Ints]:
    """Two lanes, the upper one signed, as the given number of limbs."""
    if limbs == 2:
        return lanes
    sign = lanes[1] >> 63
    return [lanes[0], lanes[1] & _MASK, (lanes[1] >> 32) & _MASK, sign]


def _big_sums(values: list[int], weights: Ints | None, starts: Ints, limbs: int) -> list[Ints]:
    """By Python's integers, for weights that no real input has."""
    terms = np.array(values, dtype=object)
    if weights is not None:
        terms = terms * weights.astype(object)
    sums: list[Any] = np.add.reduceat(terms, starts).tolist()
    lanes = [np.array([(s >> (32 * i)) & _MASK for s in sums], dtype=np.int64) for i in range(limbs - 1)]
    return [*lanes, np.array([s >> (32 * (limbs - 1)) for s in sums], dtype=np.int64)]


def two_sum(a: Floats, b: Floats) -> Pair:
    """The rounded sum and its error: together exactly a + b."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Floats, b: Floats) -> Pair:
    """The rounded product and its error: together exactly a * b, away from overflow and underflow."""
    product = a * b
    wide_a, wide_b = a * _SPLITTER, b * _SPLITTER
    high_a, high_b = wide_a - (wide_a - a), wide_b - (wide_b - b)
    low_a, low_b = a - high_a, b - high_b
    error = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
    return product, error


def pair_add(a: Pair, b: Pair) -> Pair:
    """The sum of two pairs."""
    high, error = two_sum(a[0], b[0])
    low, rest = two_sum(a[1], b[1])
    high, error = _quick(high, error + low)
    return _quick(high, error + rest)


def pair_multiply(a: Pair, b: Pair) -> Pair:
    """The product of two pairs."""
    product, error = two_product(a[0], b[0])
    return _quick(product, error + (a[0] * b[1] + a[1] * b[0]))


def pair_divide(a: Pair, divisor: Floats) -> Pair:
    """A pair divided by doubles that are not zero."""
    quotient = a[0] / divisor
    product, error = two_product(quotient, divisor)
    rest = ((a[0] - product) - error) + a[1]
    return _quick(quotient, rest / divisor)


def pair_negate(a: Pair) -> Pair:
    """The pair with the other sign."""
    return -a[0], -a[1]


def float_sums(terms: Floats, starts: Ints) -> Pair:
    """The sum of finite terms over each segment, as good as exact: a pair per segment.

    Terms must stay below 2**990, which scaled doubles do.
    """
    sizes = np.diff(starts, append=len(terms))
    if len(starts) == len(terms):
        return terms + 0.0, np.zeros(len(terms))
    bits = int(sizes.max() + 2).bit_length()
    exponents = np.frexp(np.maximum.reduceat(np.abs(terms), starts))[1] + bits
    cut = np.repeat(np.ldexp(1.0, exponents), sizes)
    upper = (terms + cut) - cut
    first = np.add.reduceat(upper, starts)
    rest = terms - upper
    cut *= 2.0 ** (bits - 53)
    upper = (rest + cut) - cut
    second = np.add.reduceat(upper, starts)
    rest -= upper
    return pair_add(two_sum(first, second), (np.add.reduceat(rest, starts), np.zeros(len(starts))))


def pair_sums(terms: Pair, starts: Ints) -> Pair:
    """The sum of pairs over each segment."""
    return pair_add(float_sums(terms[0], starts), float_sums(terms[1], starts))


def long_sums(terms: Sequence[Floats], starts: Ints) -> list[Floats]:
    """The sum of all lanes over each segment, in `WORDS` doubles: within 2**-200 of the sum of the absolute terms.

    Terms must be finite and stay below 2**990.
    """
    parts: list[Floats] = []
    for lane in terms:
        parts += _exact_parts(lane, starts)
    return in_words(parts)


def in_words(parts: Sequence[Floats], count: int = WORDS) -> list[Floats]:
    """The sum of doubles as the sum of fewer, the largest first: each is what the ones before it leave.

    Every pass adds neighbours without an error (VecSum of Ogita, Rump and Oishi), so that so many passes give so many times
    the precision of a double, however much cancels out.
    """
    words = [*parts, *(np.zeros(len(parts[0])) for _ in range(count - len(parts)))]
    for first in range(min(count, len(words) - 1)):
        for place in range(len(words) - 1, first, -1):
            words[place - 1], words[place] = two_sum(words[place - 1], words[place])
    return words[:count]


def _exact_parts(terms: Floats, starts: Ints) -> list[Floats]:
    """The sum over each segment in parts: all but the last are exact."""
    if len(starts) == len(terms):
        return [terms + 0.0]
    sizes = np.diff(starts, append=len(terms))
    bits = int(sizes.max() + 2).bit_length()
    exponents = np.frexp(np.maximum.reduceat(np.abs(terms), starts))[1] + bits
    cut = np.repeat(np.ldexp(1.0, exponents), sizes)
    parts: list[Floats] = []
    rest = terms
    while len(parts) < WORDS and rest.any():
        upper = (rest + cut) - cut
        parts.append(np.add.reduceat(upper, starts))
        rest = rest - upper
        cut = cut * 2.0 ** (bits - 53)
    return [*parts, np.add.reduceat(rest, starts)]


def _quick(high: Floats, low: Floats) -> Pair:
    """A pair in its normal form, given that the first is the larger."""
    total = high + low
    return total, low - (total - high)
