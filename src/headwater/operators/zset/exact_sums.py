"""Sums that support retraction: exact sums of integers and decimals, compensated sums of floats.

Plain vector arithmetic over rows sorted by group; `accumulators` defines how SQL functions use these sums.

*Exact* sums are 32-bit limbs in int64 columns, lowest limb first: every limb but the last is in [0, 2**32), and the
last limb carries the sign. Two limbs hold the sum of any 64-bit values, four limbs the sum of any 128-bit values. An
exact sum does not depend on the order of its terms, and retracting a term restores the previous sum exactly.

*Float* sums are pairs (high, low) of doubles whose exact sum is the value, which gives about 32 decimal digits. To sum
a group, every term is split at a power of two common to the group, so that the upper parts add up without rounding;
this is done twice, and only the remainder is rounded. Terms must be finite: the caller counts NaN and infinities
separately. Terms are scaled by 2**-40, so that no intermediate sum of doubles overflows.

*Long* sums of floats are four doubles, about 64 decimal digits. They are used where many digits cancel: in the sums of
squares from which variances are computed.
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
"""Factor applied to a float before it is summed: stored sums hold scaled values."""

WORDS = 4
"""Number of doubles in a long sum."""
_MASK = (1 << 32) - 1
_SPLITTER = 134217729.0  # 2**27 + 1: Veltkamp's constant, splits the 53 bits of a double into halves


def integer_sums(values: Ints, weights: Ints | None, starts: Ints, limbs: int) -> list[Ints]:
    """Return the exact sum of value times weight over each segment, in limbs; `weights` of None means all weights are 1.

    `starts` are the ascending start indices of the segments, none of which is empty.
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
    """Return the exact sum of value times weight over each segment for 128-bit values, given as lower and upper words."""
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
    """Propagate carries: return an equal value with every limb but the last in [0, 2**32)."""
    done: list[Ints] = []
    up: Ints | None = None
    for lane in lanes[:-1]:
        lane = lane if up is None else lane + up
        done.append(lane & _MASK)
        up = lane >> 32
    return [*done, lanes[-1] if up is None else lanes[-1] + up]


def to_integers(lanes: Sequence[Ints]) -> tuple[Ints, Bools]:
    """Return two-limb values as 64-bit integers, and a mask of the values that fit."""
    low, high = lanes
    fits = (high >= -(1 << 31)) & (high < 1 << 31)
    return (high << 32) | low, fits


def to_words(lanes: Sequence[Ints], digits: int) -> tuple[Words, Ints, Bools]:
    """Return the values as lower and upper 64-bit words, and a mask of the values with at most `digits` decimal digits."""
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
    """Return the values as the nearest doubles, to within one unit in the last place."""
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
    """Return the sum of the absolute weights, or a number too large for the fast paths."""
    peak = max(-int(weights.min()), int(weights.max()))
    return peak * len(weights) if peak >= 1 << 31 else int(np.abs(weights).sum())


def _split(values: Ints, limbs: int) -> list[Ints]:
    return _extended([values & _MASK, values >> 32], limbs)


def _extended(lanes: list[Ints], limbs: int) -> list[Ints]:
    """Extend a value of two limbs, the upper one signed, to the given number of limbs."""
    if limbs == 2:
        return lanes
    sign = lanes[1] >> 63
    return [lanes[0], lanes[1] & _MASK, (lanes[1] >> 32) & _MASK, sign]


def _big_sums(values: list[int], weights: Ints | None, starts: Ints, limbs: int) -> list[Ints]:
    """Compute the sums with Python integers, for weights too large for the vector code; no real input has such weights."""
    terms = np.array(values, dtype=object)
    if weights is not None:
        terms = terms * weights.astype(object)
    sums: list[Any] = np.add.reduceat(terms, starts).tolist()
    lanes = [np.array([(s >> (32 * i)) & _MASK for s in sums], dtype=np.int64) for i in range(limbs - 1)]
    return [*lanes, np.array([s >> (32 * (limbs - 1)) for s in sums], dtype=np.int64)]


def two_sum(a: Floats, b: Floats) -> Pair:
    """Return the rounded sum and its rounding error; together they are exactly a + b."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Floats, b: Floats) -> Pair:
    """Return the rounded product and its rounding error; together exactly a * b, away from overflow and underflow."""
    product = a * b
    wide_a, wide_b = a * _SPLITTER, b * _SPLITTER
    high_a, high_b = wide_a - (wide_a - a), wide_b - (wide_b - b)
    low_a, low_b = a - high_a, b - high_b
    error = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
    return product, error


def pair_add(a: Pair, b: Pair) -> Pair:
    """Return the sum of two pairs."""
    high, error = two_sum(a[0], b[0])
    low, rest = two_sum(a[1], b[1])
    high, error = _quick(high, error + low)
    return _quick(high, error + rest)


def pair_multiply(a: Pair, b: Pair) -> Pair:
    """Return the product of two pairs."""
    product, error = two_product(a[0], b[0])
    return _quick(product, error + (a[0] * b[1] + a[1] * b[0]))


def pair_divide(a: Pair, divisor: Floats) -> Pair:
    """Divide a pair by doubles that are not zero."""
    quotient = a[0] / divisor
    product, error = two_product(quotient, divisor)
    rest = ((a[0] - product) - error) + a[1]
    return _quick(quotient, rest / divisor)


def pair_negate(a: Pair) -> Pair:
    """Return the pair with the opposite sign."""
    return -a[0], -a[1]


def float_sums(terms: Floats, starts: Ints) -> Pair:
    """Return the sum of finite terms over each segment as one pair per segment, with about 32 decimal digits.

    Terms must stay below 2**990, which holds for scaled doubles.
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
    """Return the sum of pairs over each segment."""
    return pair_add(float_sums(terms[0], starts), float_sums(terms[1], starts))


def long_sums(terms: Sequence[Floats], starts: Ints) -> list[Floats]:
    """Return the sum of all columns over each segment in `WORDS` doubles: within 2**-200 of the sum of the absolute terms.

    Terms must be finite and stay below 2**990.
    """
    parts: list[Floats] = []
    for lane in terms:
        parts += _exact_parts(lane, starts)
    return in_words(parts)


def in_words(parts: Sequence[Floats], count: int = WORDS) -> list[Floats]:
    """Reduce a sum of doubles to a sum of `count` doubles, largest first: each holds what the doubles before it leave over.

    Every pass adds neighbours without an error (VecSum of Ogita, Rump and Oishi), so that n passes give n times the
    precision of a double, however many digits cancel.
    """
    words = [*parts, *(np.zeros(len(parts[0])) for _ in range(count - len(parts)))]
    for first in range(min(count, len(words) - 1)):
        for place in range(len(words) - 1, first, -1):
            words[place - 1], words[place] = two_sum(words[place - 1], words[place])
    return words[:count]


def _exact_parts(terms: Floats, starts: Ints) -> list[Floats]:
    """Return the sum over each segment in parts, all of which are exact except the last."""
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
    """Normalize a pair, given that the first double is the larger one."""
    total = high + low
    return total, low - (total - high)
