"""Groups that take in more from one to the next: as if each row had been put into every one of its groups."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.aggregate import aggregate as a
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.window import cumulate
from headwater.operators.window.cumulate import CumulateSpec, cumulated
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run
from tests.operators.zsets import Row, delta, hashing, key_identity, schema_of, tuples

__all__ = ["hashing"]

shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

STEP, STEPS = 10, 7
KEYS: dict[pa.DataType, list[Any]] = {
    pa.string(): ["a", "b", None],
    pa.float64(): [0.0, -0.0, math.nan, None],
}
ARGUMENTS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, -(2**62), -1, 0, 1, 2**62],
    pa.decimal128(10, 2): [None, Decimal("0.01"), Decimal("-99999999.99")],
    pa.float64(): [None, 0.5, -3.0, 1e20, math.nan, math.inf],
    pa.string(): [None, "", "a", "b"],
    pa.bool_(): [None, True, False],
}
INT, MONEY, REAL, TEXT, FLAG = range(5)


def functions(width: int, *, only_added: bool) -> tuple[AggregateFunction, ...]:
    """Every kind that can be combined, over arguments behind so many columns."""
    at = [width + i for i in range(len(ARGUMENTS))]
    kinds = [
        AggregateFunction("count"),
        AggregateFunction("count", (at[INT],), at[FLAG]),
        AggregateFunction("avg", (at[INT],)),
        AggregateFunction("sum", (at[MONEY],)),
        AggregateFunction("avg", (at[REAL],), at[FLAG]),
        AggregateFunction("sum", (at[REAL],)),
        AggregateFunction("moments", (at[INT],), order=4),
    ]
    if only_added:
        kinds += [
            AggregateFunction("min", (at[INT],), append_only=True),
            AggregateFunction("max", (at[TEXT],), at[FLAG], append_only=True),
            AggregateFunction("min", (at[REAL],), append_only=True),
            AggregateFunction("max_by", (at[TEXT], at[INT]), append_only=True),
        ]
    return tuple(kinds)


class Sums:
    """The groups of some rows, kept up in both ways."""

    def __init__(self, keys: Sequence[pa.DataType], *, only_added: bool) -> None:
        self.width = len(keys)
        self.kinds = [*keys, pa.int64(), pa.int64(), *ARGUMENTS]
        self.plain = [*keys, pa.int64(), *ARGUMENTS]
        width = self.width
        below = a.AggregateSpec(schema_of(self.kinds), width + 2, functions(width + 2, only_added=only_added))
        self.spec = CumulateSpec(below, STEP)
        self.whole = a.AggregateSpec(
            schema_of(self.plain), width + 1, functions(width + 1, only_added=only_added)
        )
        self.runs: tuple[list[Run], list[Run]] = ([], [])

    def apply(self, rows: list[tuple[Row, int]]) -> None:
        """Both ways give the same change."""
        mine, theirs = self.runs
        brought = cumulated(self.spec, delta(rows, self.kinds))
        assert brought is not None
        columns = [*brought.keys.columns, pa.array(brought.at), *brought.kept]
        step = a.step_combined(self.whole, mine, pa.RecordBatch.from_arrays(columns, schema=self.whole.state))
        wanted = a.step(self.whole, theirs, (), self.spread_out(rows))
        mine.append(step.state)
        theirs.append(wanted.state)
        found, known = self.shown(step.output), self.shown(wanted.output)
        assert found.keys() == known.keys()
        for key, values in found.items():
            assert all(map(is_close, values, known[key])), (key, values, known[key])

    def spread_out(self, rows: list[tuple[Row, int]]) -> Delta:
        """A row for each group."""
        made = []
        for row, weight in rows:
            last, first = row[self.width : self.width + 2]
            made += [
                ((*row[: self.width], at, *row[self.width + 2 :]), weight)
                for at in range(first, last + 1, STEP)
            ]
        return delta(made, self.plain)

    def shown(self, change: Delta) -> dict[Hashable, Row]:
        """What comes and goes, by group."""
        rows = zip(tuples(change.rows), change.weights.tolist(), strict=True)
        return {(key_identity(row[: self.width + 1]), weight): row[self.width + 1 :] for row, weight in rows}


def is_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


@st.composite
def some_rows(draw: st.DrawFn, keys: Sequence[pa.DataType]) -> list[Row]:
    """Rows that begin at some step before one of two last numbers."""
    rows = []
    for _ in range(draw(st.integers(1, 10))):
        last = draw(st.sampled_from([-70, 0, 1000]))
        ends = (last, last - STEP * draw(st.integers(0, STEPS)))
        key = [draw(st.sampled_from(KEYS[kind])) for kind in keys]
        rows.append((*key, *ends, *(draw(st.sampled_from(values)) for values in ARGUMENTS.values())))
    return rows


@shared_fixture
@given(data=st.data(), only_added=st.booleans(), pieces=st.sampled_from([2, 1000]))
def test_what_is_brought_is_as_if_each_row_were_in_all_of_its_groups(
    data: st.DataObject, only_added: bool, pieces: int, hashing: None
) -> None:
    keys = data.draw(st.sampled_from([[], [pa.string()], [pa.float64(), pa.string()]]))
    sums = Sums(keys, only_added=only_added)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cumulate, "PIECE_ROWS", pieces)
        rows = data.draw(some_rows(keys))
        sums.apply([(row, data.draw(st.integers(1, 2))) for row in rows])
        more = [(row, 1) for row in data.draw(some_rows(keys))]
        back = (
            []
            if only_added
            else [(row, -1) for row in data.draw(st.lists(st.sampled_from(rows), unique_by=id))]
        )
        sums.apply(more + back)


@pytest.mark.parametrize(("last", "first"), [(10, 20), (25, 0), (2**63 - 1, -(2**63))])
def test_what_is_no_number_of_steps_apart_is_left_to_others(last: int, first: int) -> None:
    spec = CumulateSpec(a.AggregateSpec(schema_of([pa.int64()] * 2), 2, (AggregateFunction("count"),)), STEP)
    assert cumulated(spec, delta([((last, first), 1), ((20, 10), 1)], [pa.int64()] * 2)) is None


def test_the_cost_follows_the_groups_and_not_the_pairs() -> None:
    count, steps = 100_000, 1_440
    last = np.full(count, steps * STEP)
    first = np.arange(count) % steps * STEP + STEP
    rows = pa.RecordBatch.from_arrays([pa.array(last), pa.array(first)], schema=schema_of([pa.int64()] * 2))
    spec = CumulateSpec(a.AggregateSpec(rows.schema, 2, (AggregateFunction("count"),)), STEP)
    brought = cumulated(spec, Delta.of(rows))
    assert brought is not None
    assert brought.at.tolist() == list(range(STEP, steps * STEP + 1, STEP))
    assert brought.kept[0][-1].as_py() == count
