"""Counts of the most frequent values: never too large, and too small by no more than was stated, in ticks and parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.operators.aggregate.frequent_items import FrequentItems

Values = Sequence[object] | np.ndarray
SHAPES = ("uniform", "skewed", "few", "once", "ascending")


def drawn(chance: np.random.Generator, shape: str, size: int) -> np.ndarray:
    match shape:
        case "skewed":
            return np.minimum(chance.zipf(1.5, size), 10_000)
        case "few":
            return chance.integers(0, 4, size)
        case "once":
            return chance.permutation(size)
        case "ascending":
            return np.sort(chance.integers(0, 50, size))
    return chance.integers(0, 60, size)


def collected(
    sketch: FrequentItems, values: Values, owners: Sequence[int] | np.ndarray, count: int
) -> list[pa.Array]:
    order = np.argsort(owners, kind="stable")
    column = pa.array(values, sketch.kind).take(pa.array(order))
    wrapped = pa.StructArray.from_arrays([column], names=["item"])
    ones = np.ones(len(order), dtype=np.int64)
    return sketch.collect(wrapped, ones, np.asarray(owners, dtype=np.int64)[order], count)


def merged(states: Sequence[list[pa.Array]], sketch: FrequentItems, count: int) -> list[pa.Array]:
    order = np.arange(len(states) * count).reshape(len(states), count).T.ravel()
    columns = [pa.concat_arrays(parts).take(pa.array(order)) for parts in zip(*states, strict=True)]
    return sketch.merge(columns, np.repeat(np.arange(count), len(states)), count)


@given(
    st.integers(0, 2**32),
    st.sampled_from(SHAPES),
    st.sampled_from([1, 2, 7, 40]),
    st.lists(st.integers(0, 300), min_size=1, max_size=8),
    st.sampled_from(["ticks", "parts", "trees"]),
)
@settings(max_examples=80, deadline=None)
def test_counts_are_within_the_bound(seed: int, shape: str, tracked: int, sizes: list[int], way: str) -> None:
    chance = np.random.default_rng(seed)
    sketch = FrequentItems(pa.int64(), min(3, tracked), tracked)
    groups = 3
    pieces = [(drawn(chance, shape, size), chance.integers(0, groups, size)) for size in sizes]
    states = [collected(sketch, values, owners, groups) for values, owners in pieces]
    if way == "ticks":
        state = states[0]
        for other in states[1:]:
            state = merged([state, other], sketch, groups)
    elif way == "parts":
        state = merged(states, sketch, groups)
    else:
        while len(states) > 1:
            states = [merged(states[i : i + 2], sketch, groups) for i in range(0, len(states), 2)]
        (state,) = states
    items, counts, errors = (column.to_pylist() for column in state)
    answers = sketch.finish(state).to_pylist()
    for group in range(groups):
        true = Counter(int(v) for values, owners in pieces for v in values[owners == group])
        if not true:
            assert (items[group], answers[group]) == (None, [])
            continue
        n, kept, error = true.total(), dict(zip(items[group], counts[group], strict=True)), errors[group]
        assert len(kept) == len(items[group]) <= tracked
        assert all(true[v] - error <= kept.get(v, 0) <= true[v] for v in true.keys() | kept.keys())
        assert error * (tracked + 1) <= n - sum(counts[group])
        assert {v for v, c in true.items() if c > n / (tracked + 1)} <= kept.keys()
        if len(true) <= tracked:
            assert (kept, error) == (true, 0)
        told = [(pair["item"], pair["count"]) for pair in answers[group]]
        assert told == sorted(kept.items(), key=lambda pair: (-pair[1], pair[0]))[: sketch.wanted]


def test_groups_are_counted_apart_and_null_is_a_value() -> None:
    sketch = FrequentItems(pa.string(), 2, 3)
    one = collected(sketch, ["b", None, "a", None, "é"], [0, 0, 0, 0, 2], 4)
    other = collected(sketch, ["a", "a", "", "é"], [0, 0, 1, 2], 4)
    told = sketch.finish(merged([one, other], sketch, 4)).to_pylist()
    assert [[(pair["item"], pair["count"]) for pair in answer] for answer in told] == [
        [("a", 3), (None, 2)],
        [("", 1)],
        [("é", 2)],
        [],
    ]


def test_weights_are_as_good_as_rows() -> None:
    sketch = FrequentItems(pa.int64(), 1, 1)
    state = sketch.collect(pa.array([5, 6, 5]), np.array([3, 4, 2]), np.zeros(3, dtype=np.int64), 1)
    assert [column.to_pylist() for column in state] == [[[5]], [[1]], [4]]


@pytest.mark.parametrize(
    ("kind", "often", "seldom"),
    [
        (pa.bool_(), True, False),
        (pa.int8(), -1, 3),
        (pa.float32(), 0.5, float("inf")),
        (pa.float64(), float("nan"), 1.0),
        (pa.string(), "b", "a"),
        (pa.date32(), date(2026, 3, 3), date(1960, 1, 1)),
        (pa.timestamp("us", "UTC"), 3, -1),
        (pa.decimal128(38, 2), Decimal("-1.50"), Decimal("3.00")),
    ],
)
def test_answers_have_the_type_of_the_values(kind: pa.DataType, often: object, seldom: object) -> None:
    sketch = FrequentItems(kind, 5, 10)
    states = [collected(sketch, [often, seldom, often, None], [0] * 4, 1) for _ in range(2)]
    answer = sketch.finish(merged(states, sketch, 1))
    assert answer.type == sketch.result
    pairs = answer.flatten()
    assert pairs.field("count").to_pylist() == [4, 2, 2]
    assert repr(pairs.field("item").to_pylist()) == repr(pa.array([often, seldom, None], kind).to_pylist())


def test_no_more_values_can_be_asked_for_than_are_tracked() -> None:
    with pytest.raises(ValueError):
        FrequentItems(pa.int64(), 3, 2)


def test_what_was_there_is_counted_exactly() -> None:
    sketch = FrequentItems(pa.int64(), 1, 2)
    every = pa.array(
        [[(i % 3, 1) for i in range(30)], [(7, 1)] * 4, []],
        pa.list_(pa.struct([("item", pa.int64()), ("count", pa.int64())])),
    )
    told, errors = sketch.exactly(every)
    assert [[(p["item"], p["count"]) for p in group] for group in told.to_pylist()] == [
        [(0, 10), (1, 10), (2, 10)],
        [(7, 4)],
        [],
    ]
    assert errors.tolist() == [10, 0, 0]
