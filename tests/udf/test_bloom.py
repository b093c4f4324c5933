"""Bloom filters: what was added is always found, and of all else a stated share at most."""

from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import headwater as hw
from headwater import BloomFilter
from tests.raising import raises


def made(filters: BloomFilter, *parts: pa.Array) -> bytes:
    state = filters.aggregate["zero"]
    for part in parts:
        state = filters.merge(filters.add(filters.aggregate["zero"], part), state)
    return state


@given(
    st.lists(st.lists(st.one_of(st.none(), st.text(max_size=9)), max_size=30), max_size=5),
    st.integers(1, 200),
    st.floats(0.0001, 0.9),
)
@settings(max_examples=60, deadline=None)
def test_what_was_added_is_found(ticks: list[list[str | None]], items: int, rate: float) -> None:
    filters = BloomFilter("STRING", items, rate)
    parts = [pa.array(tick, pa.string()) for tick in ticks]
    state = made(filters, *parts)
    assert state == made(filters, pa.concat_arrays([*parts, *parts])) if parts else state == made(filters)
    for part in parts:
        told = filters.may_have(pa.array([state] * len(part), pa.binary()), part)
        assert told.to_pylist() == [None if value is None else True for value in part.to_pylist()]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(-50, 50))), max_size=60),
    st.lists(st.lists(st.integers(-50, 50), max_size=4), min_size=7, max_size=7),
    st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_all_groups_at_once_are_each_by_itself(
    rows: list[tuple[int, int | None]], before: list[list[int]], items: int
) -> None:
    filters = BloomFilter("BIGINT", items, 0.05)
    states = [made(filters, pa.array(values, pa.int64())) for values in before]
    column = pa.array([b"", *states], pa.binary()).slice(1)
    rows.sort(key=lambda row: row[0])
    owners = np.array([owner for owner, _ in rows], dtype=np.int64)
    found = filters.add_by_group(column, owners, pa.array([value for _, value in rows], pa.int64()))
    assert found.type == column.type
    assert found.to_pylist() == [
        filters.add(state, pa.array([v for owner, v in rows if owner == number], pa.int64()))
        for number, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("items", "rate"), [(10, 0.1), (100, 0.01), (1_000, 0.05), (5_000, 0.001), (20_000, 0.01)]
)
def test_no_more_of_what_was_not_added_is_found_than_was_stated(items: int, rate: float) -> None:
    filters = BloomFilter("BIGINT", items, rate)
    found = []
    for seed in range(30 if items < 1_000 else 2):
        start = seed * 10**9
        state = made(filters, pa.array(np.arange(start, start + items)))
        held = pa.array([state] * 1_000)
        for others in np.arange(start + items, start + items + 20_000).reshape(-1, 1_000):
            told = filters.may_have(held, pa.array(others))
            found.append(np.mean(told.to_numpy(zero_copy_only=False)))
    assert 0 < np.mean(found) <= rate


@pytest.mark.parametrize(
    ("of", "added", "asked"),
    [
        ("BIGINT", pa.array([7], pa.int64()), pa.array([7], pa.int32())),
        ("DOUBLE", pa.array([0.0]), pa.array([-0.0])),
        ("DECIMAL(10, 2)", pa.array([Decimal("1.50")]), pa.array([Decimal("1.5")])),
        ("STRING", pa.array(["é"]), pa.array(["é"], pa.large_string())),
    ],
)
def test_equal_values_are_found_whatever_their_width(of: str, added: pa.Array, asked: pa.Array) -> None:
    filters = BloomFilter(of, 10, 1e-6)
    state = made(filters, added)
    sliced = pa.array([b"", state, None])
    assert filters.may_have(sliced.slice(1), pa.concat_arrays([asked, asked])).to_pylist() == [True, None]


def test_a_filter_is_as_large_as_it_must_be_and_travels() -> None:
    filters = BloomFilter("bigint", 1_000, 0.01)
    assert filters.of == "BIGINT"
    assert 1_200 <= filters.bits // 8 <= 1_330
    assert pickle.loads(pickle.dumps(filters)) == filters
    with pytest.raises(ValueError, match=str(filters.bits)):
        filters.may_have(pa.array([b"1"]), pa.array([1]))


@pytest.mark.parametrize(("items", "rate"), [(0, 0.1), (10, 0.0), (10, 1.0), (10**9, 0.01)])
def test_impossible_filters_are_refused(items: int, rate: float) -> None:
    with raises(hw.UsageError, items=items, rate=rate):
        BloomFilter("BIGINT", items, rate)


@pytest.mark.slow
def test_filters_of_groups_in_views(tmp_path: Path, spark: SparkSession) -> None:
    filters = BloomFilter("BIGINT", 100, 0.01)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.aggregate("seen", **filters.aggregate)
        ws.function("may_have", **filters.predicate)
        ws.sql("""
            CREATE TOPIC visits (page STRING, visitor BIGINT);
            CREATE TOPIC carts (id BIGINT, visitor BIGINT, PRIMARY KEY (id));
            CREATE TOPIC asked (page STRING, visitor INT);
            CREATE MATERIALIZED VIEW seen_by_page AS SELECT page, seen(visitor) AS visitors, count(*) AS n FROM visits GROUP BY page;
            CREATE MATERIALIZED VIEW in_carts AS SELECT seen(visitor) AS visitors FROM carts;
            CREATE MATERIALIZED VIEW known AS SELECT a.page, a.visitor, may_have(s.visitors, a.visitor) AS maybe
            FROM asked a LEFT JOIN seen_by_page s ON s.page = a.page
        """)
        ws.topic("asked").append([{"page": p, "visitor": v} for p in ("a", "b", "c") for v in (1, 51, 5_000)])
        for tick in range(3):
            rows = [{"page": "ab"[v % 2], "visitor": v} for v in range(tick * 20, tick * 20 + 20)]
            ws.append(
                {"visits": rows, "carts": [{"id": r["visitor"] % 30, "visitor": r["visitor"]} for r in rows]}
            )
            ws.run()
        told = {(r["page"], r["visitor"]): r["maybe"] for r in ws.query("SELECT * FROM known").to_pylist()}
        (cart,) = ws.query("SELECT visitors FROM in_carts").to_pylist()
        assert ws.verify().differences == ()
    assert told[("b", 1)]
    assert told[("b", 51)]
    assert told[("c", 1)] is None
    assert not told[("a", 5_000)]
    assert cart["visitors"] == made(filters, pa.array(range(30, 60)))  # what was replaced is out of it
