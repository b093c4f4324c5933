"""A function of whole groups, step by step, gives what it gives over everything."""

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.table import regroup as module
from headwater.operators.table.regroup import SLICE_KEYS, regroup, regroup_whole
from headwater.operators.zset.runs import Run, merge
from tests.operators.zsets import (
    KEYS,
    Row,
    batch,
    changes_of,
    count,
    counted,
    delta,
    hashing,
    identity,
    is_consolidated,
    key_identity,
    ordinal,
    present,
    schema_of,
    tuples,
)

__all__ = ["hashing"]

OUTPUT = [pa.int64(), pa.int64()]


def share_of_the_largest(rows: list[Row]) -> list[Row]:
    """Needs the whole group: how many rows it has, and how many of them have its greatest value."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[key_identity(row[0])].append(ordinal(row[1]))
    return [(len(values), values.count(max(values))) for values in groups.values()]


def evaluate(rows: pa.RecordBatch) -> pa.RecordBatch:
    assert rows.num_rows
    return batch(share_of_the_largest(tuples(rows)), OUTPUT)


@st.composite
def histories(draw: st.DrawFn) -> Any:
    kinds = [draw(st.sampled_from(KEYS)), pa.float64()]
    batches = draw(st.lists(changes_of(kinds), max_size=5))
    return kinds, batches, [draw(st.booleans()) for _ in batches]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories(), st.sampled_from([1, 2, SLICE_KEYS]))
def test_every_step_changes_the_result_as_evaluating_again_would(
    hashing: str, history: Any, slice_keys: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE_KEYS", slice_keys)
        check(*history)


def check(kinds: Any, batches: list[list[tuple[Row, int]]], merges: list[bool]) -> None:
    runs: list[Run] = []
    every: list[tuple[Row, int]] = []

    def whole() -> list[Row]:
        return share_of_the_largest([row for row, weight in present(every) for _ in range(weight)])

    for changes, merged in zip(batches, merges, strict=True):
        before = whole()
        every += changes
        result, run = regroup(runs, [0], delta(changes, kinds), evaluate, schema_of(OUTPUT))
        assert counted(result) == count([*((row, -1) for row in before), *((row, 1) for row in whole())])
        assert is_consolidated(result)
        runs.append(run)
        if merged:
            runs = [merge(runs, [0])]


def test_only_groups_that_are_touched_are_evaluated_each_side_once() -> None:
    kinds = [pa.int64(), pa.int64()]
    seen: list[Any] = []

    def record(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(Counter(identity(row) for row in tuples(rows)))
        return rows

    _, run = regroup(
        [], [0], delta([((k, v), 1) for k in range(3) for v in range(2)], kinds), record, schema_of(kinds)
    )
    seen.clear()
    result, _ = regroup([run], [0], delta([((0, 5), 2), ((1, 0), -1)], kinds), record, schema_of(kinds))
    assert seen == [
        Counter({(0, 0): 1, (0, 1): 1, (1, 0): 1, (1, 1): 1}),
        Counter({(0, 0): 1, (0, 1): 1, (0, 5): 2, (1, 1): 1}),
    ]
    assert counted(result) == Counter({(0, 5): 2, (1, 0): -1})


def test_a_group_that_ends_has_no_result() -> None:
    kinds = [pa.int64(), pa.float64()]
    _, run = regroup([], [0], delta([((1, 0.5), 1)], kinds), evaluate, schema_of(OUTPUT))
    result, _ = regroup([run], [0], delta([((1, 0.5), -1)], kinds), evaluate, schema_of(OUTPUT))
    assert counted(result) == Counter({(1, 1): -1})
    nothing, _ = regroup([run], [0], delta([], kinds), evaluate, schema_of(OUTPUT))
    assert len(nothing) == 0
    assert nothing.rows.schema == schema_of(OUTPUT)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories())
def test_the_group_of_all_rows_has_a_result_without_rows_too(hashing: str, history: Any) -> None:
    kinds, given_batches, given_merges = history
    # no row is ever removed before it is there: all are added, removed at once, and added again
    added = [[(row, abs(weight)) for row, weight in changes] for changes in given_batches]
    batches = [*added, [(row, -weight) for changes in added for row, weight in changes], *added]
    merges = [*given_merges, False, *given_merges]
    runs: list[Run] = []
    every: list[tuple[Row, int]] = []

    def size(rows: pa.RecordBatch) -> pa.RecordBatch:
        return batch([(rows.num_rows,)], OUTPUT[:1])

    shown: list[Row] = []
    for changes, merged in zip(batches, merges, strict=True):
        every += changes
        result, run = regroup_whole(runs, delta(changes, kinds), size, schema_of(OUTPUT[:1]), first=not shown)
        now = [(sum(weight for _, weight in present(every)),)]
        assert counted(result) == count([*((row, -1) for row in shown), *((row, 1) for row in now)])
        assert is_consolidated(result)
        shown = now
        runs.append(run)
        if merged:
            runs = [merge(runs, [])]


def test_the_group_of_all_rows_is_evaluated_without_rows_only_where_it_is_empty() -> None:
    kinds = [pa.int64(), pa.int64()]
    asked: list[int] = []

    def size(rows: pa.RecordBatch) -> pa.RecordBatch:
        asked.append(rows.num_rows)
        return batch([(rows.num_rows,)], OUTPUT[:1])

    runs: list[Run] = []
    steps = [[], [((1, 1), 2)], [((1, 1), -1)], [((1, 1), -1)], [((2, 2), 1)]]
    results = []
    for number, changes in enumerate(steps):
        result, run = regroup_whole(
            runs, delta(changes, kinds), size, schema_of(OUTPUT[:1]), first=not number
        )
        runs.append(run)
        results.append((counted(result), asked.copy()))
        asked.clear()
    assert results == [
        (Counter({(0,): 1}), [0]),
        (Counter({(0,): -1, (2,): 1}), [2, 0]),
        (Counter({(2,): -1, (1,): 1}), [2, 1]),
        (Counter({(1,): -1, (0,): 1}), [1, 0]),
        (Counter({(0,): -1, (1,): 1}), [1, 0]),
    ]
