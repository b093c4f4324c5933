"""The checksum of a set of rows: in any order, kept up to date from changes, and the same for ever."""

import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.sinks.base.checksums import Tally, tally, tally_all

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("x", pa.float64()), ("d", pa.decimal128(10, 2))]
)

ROWS = st.tuples(
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.sampled_from(["", "a", "ab"])),
    st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf])),
    st.one_of(st.none(), st.sampled_from([Decimal("0.00"), Decimal("1.50")])),
)


def batch(rows: list[Any]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def same(one: Any, other: Any) -> bool:
    """Whether two rows are the same: NaN is NaN, and -0.0 is not 0.0."""
    return repr(one) == repr(other)


@given(st.lists(ROWS, max_size=20), st.randoms(use_true_random=False), st.integers(1, 5))
def test_neither_order_nor_division_matters(rows: list[Any], dice: random.Random, step: int) -> None:
    shuffled = dice.sample(rows, len(rows))
    parts = [batch(shuffled[i : i + step]) for i in range(0, len(rows), step)]
    assert tally_all(parts) == tally(batch(rows))
    assert tally(batch(rows)).rows == len(rows)


@given(st.lists(ROWS, max_size=12), st.lists(ROWS, max_size=12))
def test_what_comes_is_added_and_what_goes_is_taken_away(before: list[Any], after: list[Any]) -> None:
    change = tally(batch(before + after), np.array([-1] * len(before) + [1] * len(after), dtype=np.int64))
    assert tally(batch(before)) + change == tally(batch(after))
    assert tally(batch(after)) - change == tally(batch(before))


@given(ROWS, ROWS)
def test_rows_that_differ_have_other_checksums(one: Any, other: Any) -> None:
    assert (tally(batch([one])) == tally(batch([other]))) == same(one, other)


def test_a_weight_counts_as_often() -> None:
    row = (1, "a", 1.5, None)
    weighted = tally(batch([row, (2, None, None, None)]), np.array([3, 1], dtype=np.int64))
    assert weighted == tally(batch([row, row, row, (2, None, None, None)]))
    with_column = batch([row]).append_column("_weight", pa.array([3]))
    assert tally_all([with_column], "_weight") == tally(batch([row] * 3))


def test_two_rows_do_not_cancel_each_other() -> None:
    twice = batch([(1, "a", None, None)] * 2)
    assert tally(twice).checksum != 0
    assert tally(twice) != tally(batch([(2, "b", None, None)] * 2))


def test_it_is_the_same_for_ever() -> None:
    rows = batch(
        [(1, "a", 1.5, Decimal("2.50")), (None, "ü", -0.0, None), (-7, "", math.nan, Decimal("0.01"))]
    )
    assert tally(rows) == Tally(15997587237955617976, 3)
