"""The sums that variances are found from keep their digits, whatever comes and goes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.operators.aggregate import aggregate as a
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run

SPEC = a.AggregateSpec(
    pa.schema([("x", pa.float64()), ("y", pa.float64())]),
    0,
    (AggregateFunction("moments", (0,)), AggregateFunction("corr", (0, 1))),
)
NEAR = st.integers(-9, 9).map(lambda n: 1.7e18 + 256.0 * n)
MICROS = st.integers(-9, 9).map(lambda n: 1.7e15 + n)
LARGE = st.floats(-1.7e308, 1.7e308)
SMALL = st.floats(-1, 1).filter(lambda x: x == 0 or abs(x) > 1e-100)
VALUES = st.sampled_from([NEAR, MICROS, LARGE, SMALL, st.sampled_from([0.1, 1e145, 3e144, 1e300])])


class Held:
    """The state of one group and what is shown of it."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.shown: tuple[float, ...] = ()

    def apply(self, rows: list[tuple[float, float]], weight: int) -> None:
        columns = [pa.array([row[i] for row in rows], pa.float64()) for i in (0, 1)]
        batch = pa.RecordBatch.from_arrays(columns, schema=SPEC.schema)
        step = a.step(SPEC, self.runs, (), Delta(batch, np.full(len(rows), weight, dtype=np.int64)))
        self.runs.append(step.state)
        for row, change in zip(step.output.rows.to_pylist(), step.output.weights, strict=True):
            if change > 0:
                self.shown = tuple(row.values())


def squares(rows: list[tuple[float, float]], i: int, j: int) -> float:
    pairs = [(Fraction(row[i]), Fraction(row[j])) for row in rows]
    found = sum(x * y for x, y in pairs) - sum(x for x, _ in pairs) * sum(y for _, y in pairs) / len(pairs)
    try:
        return float(found)
    except OverflowError:
        return math.inf if found > 0 else -math.inf


@given(
    VALUES.flatmap(lambda values: st.lists(st.tuples(values, values), min_size=1, max_size=12)),
    st.lists(st.tuples(st.sampled_from([0.0, 9e9, 1e20, 1.7e308, -5e200]), SMALL), max_size=3),
    st.integers(1, 3),
)
@example([(1.7e15, 1.7e15), (1.7e15 + 1, 1.7e15 + 3)], [(0.0, 0.0)], 1)
@example([(3e144, 1.0), (4e144, 1.0)], [], 1)
def test_they_are_as_good_as_exact_after_others_were_there(
    kept: list[tuple[float, float]], gone: list[tuple[float, float]], weight: int
) -> None:
    held = Held()
    if any(abs(value) >= 2.0**64 for row in kept for value in row):  # these have sums with what is as large
        gone = [row for row in gone if abs(row[0]) < 2.0**64]
    if gone:
        held.apply(gone, weight)
    for row in kept:
        held.apply([row], 1)
    if gone:
        held.apply(gone, -weight)
    n, _, m2, _, _, _, cross, xx, yy = held.shown
    assert n == len(kept)
    wanted = [squares(kept, 0, 0), squares(kept, 0, 1), squares(kept, 0, 0), squares(kept, 1, 1)]
    scale = math.sqrt(wanted[2]) * math.sqrt(wanted[3])  # a co-moment cancels out of what these are
    assert m2 == pytest.approx(wanted[0], rel=1e-12, abs=1e-300)
    if all(abs(value) < 3e144 for row in kept for value in row):
        assert xx == pytest.approx(wanted[2], rel=1e-12, abs=1e-300)
        assert yy == pytest.approx(wanted[3], rel=1e-12, abs=1e-300)
        assert cross == pytest.approx(wanted[1], rel=1e-12, abs=max(scale * 1e-12, 1e-300))


def test_what_is_not_finite_is_nan_until_it_goes() -> None:
    held = Held()
    held.apply([(1.0, 1.0), (3.0, 2.0)], 1)
    held.apply([(math.inf, 1.0), (math.nan, 1.0)], 1)
    assert math.isnan(held.shown[2])
    held.apply([(math.nan, 1.0), (math.inf, 1.0)], -1)
    assert held.shown[2] == 2.0
