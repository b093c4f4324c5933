"""Rows brought together by key: the ways that are quick for some keys give what sorting all rows gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from headwater.operators.zset import grouping
from headwater.operators.zset.grouping import MANY_ROWS, KeyGroups, group

ROWS = MANY_ROWS + 77
MOMENT = pa.timestamp("us", "UTC")
Random = np.random.Generator


def _windows(random: Random) -> pa.Array:
    """Of rows that come nearly in order, so that a window is met more than once."""
    at = np.arange(ROWS) * 10 + np.repeat(random.integers(0, 3_000, ROWS // 50 + 1), 50)[:ROWS]
    start = at - at % 1_000
    ends = [pa.array(start).view(MOMENT), pa.array(start + 1_000).view(MOMENT)]
    return pa.StructArray.from_arrays(ends, names=["start", "end"])


def _with_nulls(column: pa.Array) -> pa.Array:
    return pa.array([None if i % 100 == 3 else value for i, value in enumerate(column.to_pylist())])


KEYS: dict[str, Callable[[Random], list[pa.Array]]] = {
    "windows": lambda r: [_windows(r)],
    "windows and a flag": lambda r: [_windows(r), pa.array(np.arange(ROWS) // 4_000 % 2 == 1)],
    "windows and a number": lambda r: [_windows(r), pa.array(r.integers(0, 9, ROWS))],
    "one value": lambda r: [pa.array(np.zeros(ROWS, dtype=np.int32))],
    "days in order": lambda r: [pa.array((np.arange(ROWS) // 100).astype(np.int32)).view(pa.date32())],
    "days in order, some missing": lambda r: [
        _with_nulls(pa.array((np.arange(ROWS) // 100).astype(np.int32)).view(pa.date32()))
    ],
    "few numbers": lambda r: [pa.array(r.integers(-50, 50, ROWS))],
    "few numbers, some missing": lambda r: [_with_nulls(pa.array(r.integers(0, 50, ROWS)))],
    "few decimals": lambda r: [pa.array(r.integers(0, 50, ROWS)).cast(pa.decimal128(30, 2))],
    "few texts": lambda r: [pa.array(["", "a", "aa", "ü"]).take(pa.array(r.integers(0, 4, ROWS)))],
    "many numbers": lambda r: [pa.array(r.integers(0, ROWS, ROWS))],
    "floats with both zeros": lambda r: [pa.array(r.choice([0.0, -0.0, np.nan, 1.5], ROWS))],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_groups_are_those_of_all_rows_sorted(keys: Callable[[Random], list[pa.Array]], seed: int) -> None:
    rows = _batch(keys(np.random.default_rng(seed)))
    _assert_same(group(rows, ROWS, range(rows.num_columns)), grouping._sorted(rows, ROWS))


def test_values_that_share_a_hash_are_groups_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "key_hashes", lambda rows, key: np.full(rows.num_rows, 7, dtype=np.uint64))
    random = np.random.default_rng(0)
    for column in (pa.array(random.integers(0, 20, ROWS)), pa.array(np.arange(ROWS) // 300 % 20)):
        found = group(_batch([column]), ROWS, range(1))
        assert found.order is not None
        values = column.take(pa.array(found.order)).to_numpy()
        assert sorted(found.keys.column(0).to_pylist()) == list(range(20))
        for start, size, value in zip(found.starts, found.sizes, found.keys.column(0), strict=True):
            assert (values[start : start + size] == value.as_py()).all()


def test_a_slice_is_grouped_by_its_own_rows() -> None:
    rows = _batch([_windows(np.random.default_rng(0))])
    part, alone = (
        rows.slice(5, MANY_ROWS),
        pa.RecordBatch.from_arrays(
            [pa.concat_arrays([rows.column(0).slice(5, MANY_ROWS)])], schema=rows.schema
        ),
    )
    _assert_same(group(part, MANY_ROWS, range(1)), group(alone, MANY_ROWS, range(1)))


def _batch(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])


def _assert_same(found: KeyGroups, expected: KeyGroups) -> None:
    assert found.order is not None
    assert expected.order is not None
    assert found.order.tolist() == expected.order.tolist()
    assert found.starts.tolist() == expected.starts.tolist()
    assert found.sizes.tolist() == expected.sizes.tolist()
    assert found.hashes.tolist() == expected.hashes.tolist()
    # compared as values: NaN is NaN, and a zero has no sign
    assert repr(found.keys.to_pylist()) == repr(expected.keys.to_pylist())
