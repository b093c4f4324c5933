"""Ranges of ordered runs hold the rows that a look at all rows finds in them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.zset import ranges
from headwater.operators.zset.delta import Delta, take_rows
from headwater.operators.zset.ordered_runs import ColumnOrder, arrange_ordered, merge_ordered
from headwater.operators.zset.ranges import between, first_from, last_upto
from headwater.operators.zset.runs import Matches, Probes, Run, key_hashes
from tests.operators.zsets import (
    KEYS,
    Row,
    batch,
    delta,
    hashing,
    identity,
    in_order,
    key_identity,
    present,
    rows_of,
    schema_of,
    tuples,
)

__all__ = ["hashing"]

VALUES = st.integers(-4, 6)
EXTREMES = st.sampled_from([-(2**63), 2**63 - 1])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP = pa.timestamp("us", "UTC")


@st.composite
def histories(draw: st.DrawFn) -> Any:
    """Types of a key and two more columns, changes batch by batch, where to merge, and how the values are ordered."""
    key = draw(st.lists(st.sampled_from(KEYS), max_size=1))
    keys = rows_of(key)
    if key:
        keys = st.sampled_from(draw(st.lists(rows_of(key), min_size=1, max_size=3)))
    value = st.none() | VALUES | EXTREMES
    row = st.builds(lambda k, v, more: (*k, v, more), keys, value, st.integers(0, 2))
    batches = draw(st.lists(st.lists(st.tuples(row, st.integers(-2, 3)), max_size=15), max_size=4))
    probes = draw(st.lists(st.tuples(keys, VALUES | EXTREMES, VALUES | EXTREMES), max_size=5))
    order = ColumnOrder(len(key), descending=False, nulls_first=draw(st.booleans()))
    return [*key, pa.int64(), pa.int8()], batches, probes, [draw(st.booleans()) for _ in batches], order


def runs_of(batches: Any, merges: list[bool], kinds: Any, key: list[int], order: ColumnOrder) -> list[Run]:
    runs: list[Run] = []
    for changes, merge in zip(batches, merges, strict=True):
        runs.append(arrange_ordered(delta(changes, kinds), key, [order]))
        if merge:
            runs = [merge_ordered(runs, key, [order])]
    return runs


def nearest(rows: list[tuple[Row, int]], column: int, best: Callable[..., Any]) -> list[tuple[Row, int]]:
    if not rows:
        return []
    value = best(row[column] for row, _ in rows)
    return [(row, weight) for row, weight in rows if row[column] == value]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories(), st.sampled_from([0, 64]))
def test_rows_in_a_range_are_those_that_a_look_at_all_rows_finds(
    hashing: str, history: Any, shared: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_SHARED", shared)
        check_ranges(*history)


def check_ranges(kinds: Any, batches: Any, probes: Any, merges: list[bool], order: ColumnOrder) -> None:
    width = len(kinds) - 2
    key, schema = list(range(width)), schema_of(kinds)
    runs = runs_of(batches, merges, kinds, key, order)
    keys = batch([probe[0] for probe in probes], kinds[:width])
    hashes = key_hashes(keys, key) if width else key_hashes(batch([(0,)] * len(probes), [pa.int8()]), [])
    low, high = (np.array([probe[i] for probe in probes], dtype=np.int64) for i in (1, 2))

    every = present([change for changes in batches for change in changes])
    weights = {identity(row): weight for row, weight in every}
    sorted_rows = in_order([row for row, _ in every], [order], kinds)

    def rows(probe: Any, lowest: int, highest: int) -> list[tuple[Row, int]]:
        return [
            (row, weights[identity(row)])
            for row in sorted_rows
            if key_identity(row[:width]) == key_identity(probe[0])
            and row[width] is not None
            and lowest <= row[width] <= highest
        ]

    def check(matches: Matches, expected: list[list[tuple[Row, int]]]) -> None:
        found = zip(matches.probe.tolist(), tuples(matches.rows), matches.weights.tolist(), strict=True)
        flat = [(i, row, weight) for i, some in enumerate(expected) for row, weight in some]
        assert identity(list(found)) == identity(flat)
        assert matches.rows.schema == schema

    least, greatest = -(2**63), 2**63 - 1
    arguments = (runs, width, Probes(key, keys, hashes))
    check(between(*arguments, low, high, schema=schema), [rows(probe, *probe[1:]) for probe in probes])
    check(
        last_upto(*arguments, high, schema=schema),
        [nearest(rows(probe, least, probe[2]), width, max) for probe in probes],
    )
    check(
        first_from(*arguments, low, schema=schema),
        [nearest(rows(probe, probe[1], greatest), width, min) for probe in probes],
    )


def one_key(numbers: Any) -> Delta:
    columns = [pa.array(np.zeros(len(numbers), dtype=np.int64)), pa.array(numbers)]
    return Delta.of(pa.RecordBatch.from_arrays(columns, names=["k", "v"]))


ASCENDING = ColumnOrder(1, descending=False, nulls_first=True)
KEY = pa.RecordBatch.from_arrays([pa.array([0])], names=["k"])


def one_probe(find: Callable[..., Matches], runs: list[Run], *at: int) -> list[Any]:
    bounds = [np.array([value]) for value in at]
    matches = find(
        runs, 1, Probes([0], KEY, key_hashes(KEY, [0])), *bounds, schema=schema_of([pa.int64()] * 2)
    )
    return matches.rows.column(1).to_pylist()


def test_the_nearest_value_is_found_behind_many_that_were_retracted(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.arange(100_000)
    runs = [
        arrange_ordered(one_key(numbers), [0], [ASCENDING]),
        arrange_ordered(one_key(numbers[40_000:50_000]).negated(), [0], [ASCENDING]),
    ]
    reads: list[int] = []

    def counting_take(rows: pa.RecordBatch, indices: Any) -> pa.RecordBatch:
        reads.append(len(indices))
        return take_rows(rows, indices)

    monkeypatch.setattr(ranges, "take_rows", counting_take)
    assert one_probe(last_upto, runs, 49_990) == [39_999]
    assert one_probe(first_from, runs, 40_010) == [50_000]
    assert sum(reads) < 300_000
    assert len(reads) < 300


def test_a_large_key_is_not_read_for_a_small_range(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        arrange_ordered(one_key(np.arange(50_000) * 10), [0], [ASCENDING]),
        arrange_ordered(one_key(np.array([1, 2, 25_005, 70_000, 80_000])), [0], [ASCENDING]),
    ]
    taken: list[int] = []

    def counting_take(rows: pa.RecordBatch, indices: Any) -> pa.RecordBatch:
        taken.append(len(indices))
        return take_rows(rows, indices)

    monkeypatch.setattr(ranges, "take_rows", counting_take)
    assert one_probe(between, runs, 24_990, 25_010) == [24_990, 25_000, 25_005, 25_010]
    assert one_probe(last_upto, runs, 25_009) == [25_005]
    assert one_probe(last_upto, runs, 24_999) == [24_990]
    assert one_probe(first_from, runs, 25_006) == [25_010]
    assert sum(taken) < 50


def test_times_are_compared_as_microseconds() -> None:
    kinds = [pa.int64(), TIMESTAMP]
    times = [EPOCH + timedelta(microseconds=n) for n in (-3, 5, 8)]
    run = arrange_ordered(delta([((0, at), 1) for at in [*times, None]], kinds), [0], [ASCENDING])
    assert one_probe(between, [run], -3, 7) == times[:2]
    assert one_probe(last_upto, [run], 4) == times[:1]
    assert one_probe(first_from, [run], 9) == []


def test_without_runs_nothing_is_found() -> None:
    schema = schema_of([pa.int64(), pa.string()])
    at = np.array([1])
    for matches in (
        between([], 1, Probes([0], KEY, key_hashes(KEY, [0])), at, at, schema=schema),
        last_upto([], 1, Probes([0], KEY, key_hashes(KEY, [0])), at, schema=schema),
    ):
        assert len(matches.probe) == 0
        assert matches.rows.schema == schema


def test_text_has_no_ranges() -> None:
    run = arrange_ordered(delta([((0, "a"), 1)], [pa.int64(), pa.string()]), [0], [ASCENDING])
    with pytest.raises(TypeError):
        one_probe(last_upto, [run], 4)
