"""Quantiles from summaries: ranks are off by no more than was asked for, however values come, in ticks and parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.operators.aggregate.quantiles import Quantiles

SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0)


def collected(
    sketch: Quantiles, values: Sequence[object] | np.ndarray, owners: Sequence[int], count: int
) -> list[pa.Array]:
    order = np.argsort(owners, kind="stable")
    column = pa.array(values, sketch.kind).take(pa.array(order))
    return sketch.collect(
        column, np.ones(len(values), dtype=np.int64), np.array(owners, dtype=np.int64)[order], count
    )


def off_by(values: np.ndarray, answer: float, share: float) -> int:
    """How many places a value is away from the one that is asked for."""
    wanted = max(1, int(np.ceil(share * len(values))))
    first, last = int(np.sum(values < answer)) + 1, int(np.sum(values <= answer))
    assert last >= first, "an answer is one of the values"
    return max(0, first - wanted, wanted - last)


SHAPES = ("uniform", "few", "ascending", "descending", "heavy")


def drawn(chance: np.random.Generator, shape: str, size: int) -> np.ndarray:
    match shape:
        case "few":
            return chance.integers(0, 30, size)
        case "heavy":
            return np.where(chance.random(size) < 0.6, 500, chance.integers(0, 1_000, size))
        case "ascending":
            return np.sort(chance.integers(0, 10**9, size))
        case "descending":
            return np.sort(chance.integers(0, 10**9, size))[::-1].copy()
    return chance.integers(0, 10**9, size)


@given(
    st.integers(0, 2**32),
    st.sampled_from(SHAPES),
    st.sampled_from([1, 3, 10, 50]),
    st.lists(st.integers(0, 900), min_size=1, max_size=12),
    st.sampled_from(["ticks", "parts", "trees"]),
)
@settings(max_examples=60, deadline=None)
def test_ranks_are_within_the_bound(seed: int, shape: str, accuracy: int, sizes: list[int], way: str) -> None:
    sketch = Quantiles(pa.int64(), accuracy, SHARES, many=True)
    chance = np.random.default_rng(seed)
    pieces = np.split(drawn(chance, shape, sum(sizes)), np.cumsum(sizes)[:-1])
    states = [collected(sketch, piece, [0] * len(piece), 1) for piece in pieces]
    if way == "ticks":
        state = states[0]
        for other in states[1:]:
            state = merged(sketch, [state, other])
    elif way == "parts":
        state = merged(sketch, states)
    else:
        while len(states) > 1:
            states = [merged(sketch, states[i : i + 2]) for i in range(0, len(states), 2)]
        (state,) = states
    values = np.concatenate(pieces)
    (answers,) = sketch.finish(state).to_pylist()
    if not len(values):
        assert answers is None
        return
    assert answers[0] == values.min()
    assert answers[-1] == values.max()
    for share, answer in zip(SHARES, answers, strict=True):
        assert off_by(values, answer, share) <= len(values) / accuracy, (share, answer)


def merged(sketch: Quantiles, states: Sequence[list[pa.Array]]) -> list[pa.Array]:
    columns = [pa.concat_arrays(parts) for parts in zip(*states, strict=True)]
    return sketch.merge(columns, np.zeros(len(states), dtype=np.int64), 1)


def test_groups_are_summed_up_apart_and_short_ones_exactly() -> None:
    sketch = Quantiles(pa.float64(), 10, (0.5,), many=False)
    values = [1.0, 5.0, 2.0, float("nan"), float("inf"), -0.0]
    state = collected(sketch, values, [0, 0, 0, 2, 2, 3], 5)
    other = collected(sketch, [7.0, 3.0], [0, 1], 5)
    columns = [pa.concat_arrays(both) for both in zip(state, other, strict=True)]
    order = np.arange(10).reshape(2, 5).T.ravel()
    both = sketch.merge([c.take(pa.array(order)) for c in columns], np.repeat(np.arange(5), 2), 5)
    assert sketch.finish(both).to_pylist() == [2.0, 3.0, float("inf"), 0.0, None]


def test_a_value_that_is_there_many_times_takes_two_tuples() -> None:
    sketch = Quantiles(pa.int64(), 100, (0.5,), many=False)
    (values, gaps, slacks) = sketch.collect(
        pa.array([1, 2, 2]), np.array([1, 1_000_000, 5]), np.zeros(3, dtype=np.int64), 1
    )
    assert values.to_pylist() == [[1, 2, 2]]
    assert gaps.to_pylist() == [[1, 1, 1_000_004]]
    assert slacks.to_pylist() == [[]]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_summary_stays_short(shape: str) -> None:
    chance = np.random.default_rng(7)
    sketch = Quantiles(pa.int64(), 50, SHARES, many=True)
    state = collected(sketch, [], [], 1)
    whole = drawn(chance, shape, 60_000)
    longest = 0
    for piece in np.split(whole, 200):
        state = merged(sketch, [state, collected(sketch, piece, [0] * len(piece), 1)])
        longest = max(longest, len(state[0][0]))
    assert longest <= 4 * 50
    (answers,) = sketch.finish(state).to_pylist()
    assert max(off_by(whole, a, s) for a, s in zip(answers, SHARES, strict=True)) <= len(whole) / 50


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [3, -1, 2]),
        (pa.int32(), [3, -(2**31), 2]),
        (pa.float32(), [0.5, -1.0, 0.25]),
        (pa.date32(), [date(2026, 3, 3), date(1960, 1, 1), date(2026, 3, 2)]),
        (pa.timestamp("us", "UTC"), [3, -1, 2]),
        (pa.duration("us"), [3, -1, 2]),
        (pa.decimal128(12, 2), [Decimal("3.00"), Decimal("-1.50"), Decimal("2.25")]),
    ],
)
def test_answers_have_the_type_of_the_values(kind: pa.DataType, values: list[object]) -> None:
    sketch = Quantiles(kind, 100, (0.0, 0.5, 1.0), many=True)
    column = pa.array(values, kind)
    state = sketch.collect(column, np.ones(3, dtype=np.int64), np.zeros(3, dtype=np.int64), 1)
    answers = sketch.finish(state)
    assert answers.type == sketch.result
    assert answers[0].values.equals(column.take(pa.array([1, 2, 0])))


def test_any_order_of_values_is_as_good() -> None:
    values = list(range(1_000))
    random.Random(3).shuffle(values)
    sketch = Quantiles(pa.int64(), 10, (0.5,), many=False)
    (answer,) = sketch.finish(collected(sketch, values, [0] * 1_000, 1)).to_pylist()
    assert abs(answer - 499) <= 100
