"""Z-sets: equal rows are brought together, whatever they are made of."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate, row_hashes
from tests.operators.zsets import (
    KINDS,
    batch,
    changes_of,
    count,
    counted,
    delta,
    identity,
    is_consolidated,
    schema_of,
    values,
)


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=4).flatmap(
        lambda k: st.tuples(st.just(k), changes_of(k))
    )
)
def test_consolidation_adds_the_weights_of_equal_rows(case: Any) -> None:
    kinds, changes = case
    result = consolidate(delta(changes, kinds))
    assert counted(result) == count(changes)
    assert is_consolidated(result)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_hash_alike_if_and_only_if_they_are_the_same(kind: pa.DataType) -> None:
    @given(values(kind), values(kind), values(kind))
    def check(one: Any, two: Any, other: Any) -> None:
        high, low = row_hashes(batch([(other, one), (other, two)], [kind, kind]))
        assert (high[0] == high[1]) == (identity(one) == identity(two))
        assert (low[0] == low[1]) == (identity(one) == identity(two))

    check()


def test_a_value_that_looks_like_the_null_of_keys_is_not_null() -> None:
    value = 0x9E3779B97F4A7C15 - 2**64
    high, low = row_hashes(pa.RecordBatch.from_arrays([pa.array([value, None])], names=["v"]))
    assert high[0] != high[1]
    assert low[0] != low[1]


def test_a_struct_of_nulls_is_not_null() -> None:
    kind = pa.struct([("a", pa.int64())])
    high, _ = row_hashes(batch([(None,), ({"a": None},), ({"a": 0},)], [kind]))
    assert len(set(high.tolist())) == 3


def test_what_lies_under_a_null_does_not_matter() -> None:
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), pa.array([1, 2, 3, 4]), mask=pa.array([True, True])
    )
    structs = pa.StructArray.from_arrays([pa.array([1, 2])], names=["a"], mask=pa.array([True, True]))
    numbers = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\0"), pa.array([1, 2]).buffers()[1]])
    high, _ = row_hashes(pa.RecordBatch.from_arrays([lists, structs, numbers], names=["l", "s", "n"]))
    assert high[0] == high[1]


def test_long_values_and_long_lists_are_distinguished() -> None:
    texts = pa.array(["x" * 600 + "a", "x" * 600 + "b", "x" * 600 + "a"])
    lists = pa.array([[1] * 5_000, [1] * 5_000, [1] * 5_000])
    high, low = row_hashes(pa.RecordBatch.from_arrays([texts, lists], names=["t", "l"]))
    assert high[0] == high[2] != high[1]
    assert low[0] == low[2] != low[1]


def test_many_rows_hash_as_few_do() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([str(i) for i in range(70_000)])], names=["t"])
    high, low = row_hashes(rows)
    few_high, few_low = row_hashes(rows.slice(69_990))
    assert high[69_990:].tolist() == few_high.tolist()
    assert low[69_990:].tolist() == few_low.tolist()


def test_rows_stay_in_the_order_in_which_they_appear() -> None:
    changes = [((n,), 1) for n in (5, 3, 5, 9, 3, 1)]
    result = consolidate(delta(changes, [pa.int64()]))
    assert result.rows.column(0).to_pylist() == [5, 3, 9, 1]
    assert result.weights.tolist() == [2, 2, 1, 1]


def test_a_delta_without_columns_has_but_one_row() -> None:
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    assert consolidate(Delta(nothing, np.array([1, 2]))).weights.tolist() == [3]
    assert consolidate(Delta(nothing, np.array([1, -1]))).weights.tolist() == []
    assert consolidate(Delta(nothing, np.array([], dtype=np.int64))).weights.tolist() == []


def test_one_change_that_is_none_is_dropped() -> None:
    assert len(consolidate(delta([((1,), 0)], [pa.int64()]))) == 0


@given(st.lists(changes_of([pa.int64(), pa.float64()], max_size=4), max_size=4))
def test_deltas_are_laid_end_to_end_under_the_names_asked_for(parts: list[Any]) -> None:
    kinds = [pa.int64(), pa.float64()]
    schema = pa.schema([("x", pa.int64()), ("y", pa.float64())])
    whole = concat([delta(part, kinds) for part in parts], schema)
    assert counted(whole) == count(change for part in parts for change in part)
    assert whole.rows.schema == schema


def test_what_is_negated_takes_the_change_back() -> None:
    change = delta([((1,), 2), ((2,), -1)], [pa.int64()])
    assert len(consolidate(concat([change, change.negated()], schema_of([pa.int64()])))) == 0


def test_changes_can_be_picked() -> None:
    change = delta([((n,), n) for n in range(4)], [pa.int64()])
    assert counted(change.take(np.array([3, 1]))) == Counter({(3,): 3, (1,): 1})
    assert counted(change.filter(np.array([False, True, False, True]))) == Counter({(3,): 3, (1,): 1})
    assert change.filter(np.ones(4, dtype=np.bool_)) is change
    assert len(Delta.of(change.rows)) == 4
    assert change.with_rows(change.rows).weights is change.weights


def test_rows_and_weights_must_be_as_many() -> None:
    with pytest.raises(ValueError):
        Delta(batch([(1,), (2,)], [pa.int64()]), np.ones(1, dtype=np.int64))


def test_nans_are_one_value_and_zeros_are_two() -> None:
    quiet, other = np.array([0x7FF8000000000000, 0xFFF8000000000123], dtype=np.uint64).view(np.float64)
    changes = [((v,), 1) for v in (quiet, other, 0.0, -0.0)]
    result = consolidate(delta(changes, [pa.float64()]))
    assert result.weights.tolist() == [2, 1, 1]
    assert math.isnan(result.rows.column(0)[0].as_py())


def test_small_batches_are_laid_end_to_end_whatever_their_columns_are() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(["a", None])], names=["n", "s"])
    other = pa.RecordBatch.from_arrays(rows.columns, names=["x", "y"])
    wanted = {"n": [2, 1, 2], "s": [None, "a", None]}
    assert concat_rows([rows.slice(1), rows], rows.schema).to_pydict() == wanted
    assert concat_rows([rows.slice(1), other], rows.schema).to_pydict() == wanted
    assert concat_rows([other.slice(1), other], rows.schema).to_pydict() == wanted
    assert concat_rows([rows.select([]), rows.select([])], pa.schema([])).num_columns == 0


@pytest.mark.long
def test_more_text_than_a_column_can_have_is_refused_and_not_cut_off() -> None:
    half = np.zeros((1 << 30) + 8, np.uint8)  # pages that nobody touches take no memory
    offsets = pa.py_buffer(np.array([0, 1 << 30], np.int32))
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(half)])
    rows = pa.RecordBatch.from_arrays([text], names=["body"])
    with pytest.raises(pa.ArrowInvalid):
        concat_rows([rows, rows], rows.schema)
