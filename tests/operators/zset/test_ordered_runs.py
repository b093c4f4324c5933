"""The first rows of a group are those that a full sort would put first, whatever the runs."""

from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.zset import ordered_runs
from headwater.operators.zset.delta import Delta, take_rows
from headwater.operators.zset.ordered_runs import (
    ColumnOrder,
    Counting,
    Limit,
    arrange_ordered,
    first_rows,
    merge_ordered,
)
from headwater.operators.zset.runs import Probes, Run, contents, is_sorted, key_hashes
from tests.operators.zsets import (
    KEYS,
    KINDS,
    Row,
    batch,
    changes_of,
    compare_declared,
    count,
    counted,
    delta,
    hashing,
    identity,
    in_order,
    is_consolidated,
    key_identity,
    orders,
    present,
    rows_of,
    schema_of,
    tuples,
    values,
)

__all__ = ["hashing"]

ASCENDING = ColumnOrder(1, descending=False, nulls_first=True)


@st.composite
def histories(draw: st.DrawFn) -> Any:
    kinds = [draw(st.sampled_from(KEYS)), draw(st.sampled_from(KINDS)), draw(st.sampled_from(KINDS))]
    batches = draw(st.lists(changes_of(kinds, max_size=15), max_size=4))
    probes = draw(st.lists(rows_of(kinds[:1]), max_size=4))
    return kinds, batches, probes, [draw(st.booleans()) for _ in batches], draw(orders(3))


def expected_first(
    rows: list[tuple[Row, int]],
    order: list[ColumnOrder],
    kinds: Any,
    limit: int,
    from_end: bool,
    counting: Counting,
) -> list[tuple[Row, int]]:
    weights = {identity(row): weight for row, weight in rows}
    sorted_rows = in_order([row for row, _ in rows], order, kinds)
    if from_end:
        sorted_rows.reverse()
    chosen: list[tuple[Row, int]] = []
    seen = distinct = 0
    last: Row | None = None
    for row in sorted_rows:
        fresh = last is None or compare_declared(last, row, order) != 0
        distinct += fresh
        if counting == "values" and distinct > limit:
            break
        if counting != "values" and seen >= limit and (fresh or counting == "rows"):
            break
        weight = weights[identity(row)]
        chosen.append((row, min(weight, limit - seen) if counting == "rows" else weight))
        seen += weight
        last = row
    return chosen


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    histories(), st.integers(0, 4), st.booleans(), st.sampled_from(["rows", "ties", "values"]), st.booleans()
)
def test_the_first_rows_are_those_of_a_full_sort(
    hashing: str, history: Any, limit: int, from_end: bool, counting: Counting, spare: bool
) -> None:
    kinds, batches, probes, merges, order = history
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered_runs, "_SPARE_ROWS", 3 if spare else 0)
        patch.setattr(ordered_runs, "_INSERT_RATIO", 1 if spare else 8)
        patch.setattr(ordered_runs, "SLICE_ROWS", ordered_runs.SLICE_ROWS if spare else 2)
        runs: list[Run] = []
        for changes, merge in zip(batches, merges, strict=True):
            runs.append(arrange_ordered(delta(changes, kinds), [0], order))
            if merge:
                runs = [merge_ordered(runs, [0], order)]
            check_sorted(runs[-1], order, kinds)
        every = [change for changes in batches for change in changes]
        assert counted(contents(runs, schema_of(kinds))) == count(every)
        keys = batch(probes, kinds[:1])
        matches = first_rows(
            runs, order, Probes([0], keys, key_hashes(keys, [0])), Limit(limit, counting), from_end=from_end,
            schema=schema_of(kinds),
        )  # fmt: skip
    found = list(zip(matches.probe.tolist(), tuples(matches.rows), matches.weights.tolist(), strict=True))
    rows = present(every)
    expected = [
        (i, row, weight)
        for i, probe in enumerate(probes)
        for row, weight in expected_first(
            [(row, weight) for row, weight in rows if key_identity(row[0]) == key_identity(probe[0])],
            order, kinds, limit, from_end, counting,
        )
    ]  # fmt: skip
    assert identity(found) == identity(expected)


def check_sorted(run: Run, order: list[ColumnOrder], kinds: Any) -> None:
    assert is_consolidated(run)
    assert is_sorted(run.hashes)
    rows = zip(run.hashes.tolist(), tuples(run.rows), strict=True)
    for _, group in groupby(rows, key=lambda pair: pair[0]):
        stored = [row for _, row in group]
        assert identity(stored) == identity(in_order(stored, order, kinds))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_values_of_every_type_sort_as_spark_sorts_them(kind: pa.DataType, descending: bool) -> None:
    kinds = [pa.int64(), kind]
    order = [ColumnOrder(1, descending, nulls_first=True)]

    @settings(max_examples=30)
    @given(st.lists(values(kind), max_size=12))
    def check(column: list[Any]) -> None:
        run = arrange_ordered(delta([((0, value), 1) for value in column], kinds), [0], order)
        check_sorted(run, order, kinds)

    check()


def one_group(numbers: Any) -> Delta:
    return Delta.of(
        pa.RecordBatch.from_arrays(
            [pa.array(np.zeros(len(numbers), dtype=np.int64)), pa.array(numbers)], names=["k", "v"]
        )
    )


def test_a_minimum_is_found_behind_many_that_were_retracted() -> None:
    numbers = np.arange(10_000)
    all_of_them = arrange_ordered(one_group(numbers), [0], [ASCENDING])
    most = arrange_ordered(one_group(numbers[:9_000]).negated(), [0], [ASCENDING])
    keys = pa.RecordBatch.from_arrays([pa.array([0])], names=["k"])
    probes = Probes([0], keys, key_hashes(keys, [0]))
    runs = [all_of_them, most]
    assert first_rows(runs, [ASCENDING], probes, Limit(1)).rows.column(1).to_pylist() == [9_000]
    last = first_rows(runs, [ASCENDING], probes, Limit(2), from_end=True)
    assert last.rows.column(1).to_pylist() == [9_999, 9_998]
    merged = merge_ordered(runs, [0], [ASCENDING])
    assert merged.rows.column(1).to_pylist() == list(range(9_000, 10_000))


def test_a_large_group_is_not_read_for_its_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    run = arrange_ordered(one_group(np.arange(50_000)), [0], [ASCENDING])
    change = arrange_ordered(one_group(np.array([-5, 70_000])), [0], [ASCENDING])
    taken: list[int] = []

    def counting_take(rows: pa.RecordBatch, indices: Any) -> pa.RecordBatch:
        taken.append(len(indices))
        return take_rows(rows, indices)

    monkeypatch.setattr(ordered_runs, "take_rows", counting_take)
    keys = pa.RecordBatch.from_arrays([pa.array([0])], names=["k"])
    first = first_rows([run, change], [ASCENDING], Probes([0], keys, key_hashes(keys, [0])), Limit(3))
    assert first.rows.column(1).to_pylist() == [-5, 0, 1]
    assert sum(taken) < 50


@pytest.mark.parametrize("ties", [1, 1_000])
def test_a_few_rows_are_merged_into_a_long_run(ties: int) -> None:
    rng = np.random.default_rng(7)
    numbers = rng.integers(0, 1_000_000 // ties, 20_000)
    long = arrange_ordered(one_group(numbers), [0], [ASCENDING])
    short = arrange_ordered(one_group(rng.integers(0, 1_000_000 // ties, 300)), [0], [ASCENDING])
    back = arrange_ordered(one_group(numbers[:200]).negated(), [0], [ASCENDING])
    merged = merge_ordered([long, short, back], [0], [ASCENDING])
    assert counted(merged) == count(
        (row, weight)
        for run in (long, short, back)
        for row, weight in zip(tuples(run.rows), run.weights.tolist(), strict=True)
    )
    column = merged.rows.column(1).to_numpy()
    assert (column[1:] > column[:-1]).all()


def test_without_runs_there_are_no_first_rows() -> None:
    keys = batch([(1,)], [pa.int64()])
    schema = schema_of([pa.int64(), pa.string()])
    matches = first_rows([], [ASCENDING], Probes([0], keys, key_hashes(keys, [0])), Limit(3), schema=schema)
    assert len(matches.probe) == 0
    assert matches.rows.schema == schema


@pytest.mark.parametrize("spread_bits", [3, 40, 64])
def test_many_groups_of_many_rows_are_sorted(spread_bits: int) -> None:
    rng = np.random.default_rng(spread_bits)
    groups = rng.integers(0, 500, 20_000)
    numbers = rng.integers(0, 2**spread_bits, 20_000, dtype=np.uint64).view(np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array(groups), pa.array(numbers)], names=["k", "v"])
    half = [Delta.of(rows.slice(0, 12_000)), Delta.of(rows.slice(12_000))]
    run = merge_ordered([arrange_ordered(part, [0], [ASCENDING]) for part in half], [0], [ASCENDING])
    expected = np.lexsort((numbers, key_hashes(rows, [0])))
    places = np.repeat(np.arange(len(run)), run.weights)
    assert run.rows.column(0).to_numpy()[places].tolist() == groups[expected].tolist()
    assert run.rows.column(1).to_numpy()[places].tolist() == numbers[expected].tolist()
