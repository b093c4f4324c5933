"""Sums: exact ones are exact whatever the terms, float ones are as good as exact."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.operators.zset import exact_sums as s

INT64 = st.integers(-(2**63), 2**63 - 1)
INT128 = st.integers(-(2**127), 2**127 - 1)
WEIGHTS = st.integers(-3, 3) | st.integers(-(2**40), 2**40) | st.sampled_from([-(2**63), 2**63 - 1])
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def value(lanes: Sequence[s.Ints], place: int) -> int:
    return sum(int(lane[place]) << (32 * i) for i, lane in enumerate(lanes))


def segments(starts: Sequence[int], end: int) -> list[slice]:
    return [slice(a, b) for a, b in pairwise([*starts, end])]


@st.composite
def weighted(draw: st.DrawFn, terms: st.SearchStrategy[int]) -> tuple[list[int], list[int] | None, list[int]]:
    values = draw(st.lists(terms, min_size=1, max_size=20))
    size = len(values)
    weights = draw(st.none() | st.lists(WEIGHTS, min_size=size, max_size=size))
    starts = {0, *draw(st.lists(st.integers(0, size - 1)))}
    return values, weights, sorted(starts)


def is_normal(lanes: Sequence[s.Ints]) -> bool:
    return all(((lane >= 0) & (lane < 2**32)).all() for lane in lanes[:-1])


@given(weighted(INT64), st.sampled_from([2, 4]))
def test_sums_of_integers_are_exact(case: tuple[list[int], list[int] | None, list[int]], limbs: int) -> None:
    values, weights, starts = case
    if weights is not None and limbs == 2:
        weights = [w % 2**31 for w in weights]  # two limbs have 95 bits
    lanes = s.integer_sums(
        np.array(values), None if weights is None else np.array(weights), np.array(starts), limbs
    )
    assert is_normal(lanes)
    factors = weights or [1] * len(values)
    for i, part in enumerate(segments(starts, len(values))):
        assert value(lanes, i) == sum(v * w for v, w in zip(values[part], factors[part], strict=True))


@given(weighted(INT128))
def test_sums_of_128_bit_values_are_exact(case: tuple[list[int], list[int] | None, list[int]]) -> None:
    values, weights, starts = case
    if weights is not None:
        weights = [w % 2**31 for w in weights]
    low = np.array([v & (2**64 - 1) for v in values], dtype=np.uint64)
    high = np.array([v >> 64 for v in values], dtype=np.int64)
    factors = None if weights is None else np.array(weights)
    lanes = s.wide_sums(low, high, factors, np.array(starts), 4)
    assert is_normal(lanes)
    for i, part in enumerate(segments(starts, len(values))):
        terms = zip(values[part], (weights or [1] * len(values))[part], strict=True)
        assert value(lanes, i) == sum(v * w for v, w in terms)


def test_wide_values_need_four_limbs() -> None:
    with pytest.raises(ValueError):
        s.wide_sums(np.array([0], dtype=np.uint64), np.array([5]), None, np.array([0]), 2)


@given(st.lists(st.integers(-(2**94), 2**94), min_size=1))
@example([2**63 - 1, 2**63, -(2**63), -(2**63) - 1])
def test_what_does_not_fit_64_bits_is_reported(values: list[int]) -> None:
    lanes = [np.array([v & (2**32 - 1) for v in values]), np.array([v >> 32 for v in values])]
    whole, fits = s.to_integers(lanes)
    for i, v in enumerate(values):
        assert bool(fits[i]) == (-(2**63) <= v < 2**63)
        assert not fits[i] or whole[i] == v
    np.testing.assert_allclose(s.to_floats(lanes), [float(v) for v in values], rtol=1e-15)


@given(st.lists(st.integers(-(2**150), 2**150), min_size=1), st.integers(1, 38))
@example([10**38, 10**38 - 1, -(10**38), 1 - 10**38, 2**127, -(2**128)], 38)
@example([10**12, 10**12 - 1, -(10**12), 1 - 10**12, 0, -1], 12)
def test_what_has_too_many_digits_is_reported(values: list[int], digits: int) -> None:
    lanes = [np.array([(v >> (32 * i)) & (2**32 - 1) for v in values]) for i in range(3)]
    lanes.append(np.array([v >> 96 for v in values]))
    low, high, fits = s.to_words(lanes, digits)
    for i, v in enumerate(values):
        assert bool(fits[i]) == (abs(v) < 10**digits)
        assert not fits[i] or (int(high[i]) << 64) + int(low[i]) == v


@given(st.lists(FINITE, min_size=1, max_size=40), st.data())
def test_sums_of_floats_have_thirty_digits(values: list[float], data: st.DataObject) -> None:
    starts = sorted({0, *data.draw(st.lists(st.integers(0, len(values) - 1)))})
    scaled = np.array(values) * s.SCALE
    high, low = s.float_sums(scaled, np.array(starts))
    for i, part in enumerate(segments(starts, len(values))):
        exact = sum((Fraction(float(x)) for x in scaled[part]), Fraction(0))
        size = sum((abs(Fraction(float(x))) for x in scaled[part]), Fraction(0))
        error = abs(Fraction(float(high[i])) + Fraction(float(low[i])) - exact)
        assert error <= size * Fraction(1, 2**98) + Fraction(1, 2**1070)


def test_many_terms_of_very_different_size_add_up() -> None:
    random = np.random.default_rng(3)
    values = random.normal(size=10_000) * 10.0 ** random.integers(-12, 12, 10_000)
    values = np.concatenate((values, -values[:-1]))
    random.shuffle(values)
    high, low = s.float_sums(values, np.array([0]))
    exact = sum(map(Fraction, values.tolist()), Fraction(0))
    assert abs(Fraction(high[0]) + Fraction(low[0]) - exact) < Fraction(1, 10**15)


MODERATE = st.floats(-1e60, 1e60).filter(lambda x: x == 0 or abs(x) > 1e-60)


@given(MODERATE, MODERATE, MODERATE, MODERATE)
def test_arithmetic_of_pairs_keeps_thirty_digits(a: float, b: float, c: float, d: float) -> None:
    left, right = (
        s.two_sum(np.array([a]), np.array([b * 1e-20])),
        s.two_sum(np.array([c]), np.array([d * 1e-20])),
    )
    x, y = exactly(left), exactly(right)
    tiny = Fraction(1, 2**98)
    assert x == Fraction(a) + Fraction(b * 1e-20)
    assert abs(exactly(s.pair_add(left, right)) - (x + y)) <= (abs(x) + abs(y)) * tiny
    assert abs(exactly(s.pair_multiply(left, right)) - x * y) <= abs(x * y) * tiny + Fraction(1, 10**250)
    assert exactly(s.two_product(np.array([a]), np.array([c]))) == Fraction(a) * Fraction(c)
    if c:
        quotient = exactly(s.pair_divide(left, np.array([c])))
        assert abs(quotient - x / Fraction(c)) <= abs(x / Fraction(c)) * tiny + Fraction(1, 10**250)
    assert exactly(s.pair_negate(left)) == -x


def exactly(pair: s.Pair) -> Fraction:
    return Fraction(float(pair[0][0])) + Fraction(float(pair[1][0]))
