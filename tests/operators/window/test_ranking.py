"""Top-k, step by step, is what ranking everything anew would give."""

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.window.ranking import Function, RankSpec, step
from headwater.operators.zset import ordered_runs
from headwater.operators.zset.collation import sort_rows
from headwater.operators.zset.ordered_runs import ColumnOrder, merge_ordered
from headwater.operators.zset.runs import Run
from tests.operators.zsets import (
    KEYS,
    Row,
    changes_of,
    compare_declared,
    count,
    counted,
    delta,
    hashing,
    in_order,
    is_consolidated,
    key_identity,
    orders,
    present,
)
from tests.operators.zsets import KINDS as ALL

__all__ = ["hashing"]


def ranked(spec: RankSpec, changes: list[tuple[Row, int]], kinds: Any) -> list[tuple[Row, int]]:
    """All rows that stay, by the definition of each function."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row, weight in present(changes):
        groups[key_identity([row[i] for i in spec.key])] += [row] * weight
    result = []
    for group in groups.values():
        dense = rank = 0
        last = None
        for number, row in enumerate(in_order(group, spec.order, kinds), 1):
            if last is None or compare_declared(last, row, spec.order) != 0:
                rank, dense = number, dense + 1
            last = row
            value = {"row_number": number, "rank": rank, "dense_rank": dense}[spec.function]
            if spec.offset < value <= spec.limit:
                result.append(((*row, value if spec.exact else 1) if spec.numbered else row, 1))
    return result


@st.composite
def histories(draw: st.DrawFn) -> Any:
    kinds = [draw(st.sampled_from(KEYS)), draw(st.sampled_from(ALL)), pa.int8()]
    spec = RankSpec(
        key=draw(st.sampled_from([(), (0,), (0, 2)])),
        order=draw(orders(3)),
        function=draw(st.sampled_from(["row_number", "rank", "dense_rank"])),
        limit=draw(st.integers(0, 4)),
        offset=draw(st.integers(0, 2)),
        numbered=draw(st.booleans()),
        exact=draw(st.booleans()),
    )
    batches = draw(st.lists(changes_of(kinds), max_size=5))
    return kinds, spec, batches, [draw(st.booleans()) for _ in batches]


SLICES = st.sampled_from([1, 5, ordered_runs.SLICE_ROWS])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories(), SLICES)
def test_every_step_changes_the_result_as_ranking_again_would(
    hashing: str, history: Any, slice_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered_runs, "SLICE_ROWS", slice_rows)
        check(*history)


def check(kinds: Any, spec: RankSpec, batches: list[list[tuple[Row, int]]], merges: list[bool]) -> None:
    runs: list[Run] = []
    every: list[tuple[Row, int]] = []
    for changes, merge in zip(batches, merges, strict=True):
        before = ranked(spec, every, kinds)
        every += changes
        after = ranked(spec, every, kinds)
        result, run = step(spec, runs, delta(changes, kinds))
        assert counted(result) == count([*((row, -weight) for row, weight in before), *after])
        assert is_consolidated(result)
        assert result.rows.schema.types == [*kinds, *([pa.int32()] if spec.numbered else [])]
        runs.append(run)
        if merge:
            runs = [merge_ordered(runs, spec.key, spec.order)]


KINDS = [pa.string(), pa.int64()]
HIGHEST = [ColumnOrder(1, descending=True, nulls_first=False)]


def top(function: Function, **options: Any) -> RankSpec:
    return RankSpec((0,), HIGHEST, function, **options)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("row_number", {("a", 9, 1): 1, ("a", 9, 2): 1, ("a", 7, 3): 1}),
        ("rank", {("a", 9, 1): 2, ("a", 7, 3): 2}),
        ("dense_rank", {("a", 9, 1): 2, ("a", 7, 2): 2, ("a", 5, 3): 1}),
    ],
)
def test_the_functions_treat_ties_each_in_its_way(function: Function, expected: dict[Any, int]) -> None:
    changes = [(("a", 9), 2), (("a", 7), 2), (("a", 5), 1), (("a", 3), 1)]
    result, _ = step(top(function, limit=3), [], delta(changes, KINDS))
    assert counted(result) == Counter(expected)


def test_a_row_beyond_the_limit_changes_nothing_and_one_that_leaves_lets_it_in() -> None:
    spec = top("row_number", limit=1)
    _, first = step(spec, [], delta([(("a", 9), 1)], KINDS))
    nothing, second = step(spec, [first], delta([(("a", 3), 1)], KINDS))
    assert len(nothing) == 0
    result, _ = step(spec, [first, second], delta([(("a", 9), -1)], KINDS))
    assert counted(result) == Counter({("a", 9, 1): -1, ("a", 3, 1): 1})


def test_a_change_of_rank_alone_is_seen_only_where_ranks_are() -> None:
    for numbered, expected in ((True, 3), (False, 1)):
        spec = top("row_number", limit=5, numbered=numbered)
        _, run = step(spec, [], delta([(("a", 3), 1)], KINDS))
        result, _ = step(spec, [run], delta([(("a", 9), 1)], KINDS))
        assert len(result) == expected


def test_ranks_that_nobody_reads_are_one_and_do_not_change() -> None:
    spec = top("row_number", limit=2, exact=False)
    first, run = step(spec, [], delta([(("a", 3), 1), (("a", 2), 1)], KINDS))
    assert counted(first) == Counter({("a", 3, 1): 1, ("a", 2, 1): 1})
    result, _ = step(spec, [run], delta([(("a", 9), 1)], KINDS))
    assert counted(result) == Counter({("a", 9, 1): 1, ("a", 2, 1): -1})


def test_many_groups_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = top("row_number", limit=3, numbered=False)
    groups = [str(n) for n in range(200)]
    _, run = step(spec, [], delta([((name, n), 1) for name in groups for n in range(10)], KINDS))
    sorted_at_once: list[int] = []

    def counting_sort(rows: pa.RecordBatch, *given: Any) -> Any:
        sorted_at_once.append(rows.num_rows)
        return sort_rows(rows, *given)

    monkeypatch.setattr(ordered_runs, "SLICE_ROWS", 100)
    monkeypatch.setattr(ordered_runs, "sort_rows", counting_sort)
    result, _ = step(spec, [run], delta([((name, 11), 1) for name in groups], KINDS))
    assert counted(result) == Counter({(name, v): w for name in groups for v, w in ((11, 1), (7, -1))})
    arranged, *slices = sorted_at_once
    assert arranged == len(groups)
    assert sum(slices) == len(groups) * 7  # of each the row that comes, three that may go, and three to spare
    assert max(slices) <= 100 + 7


def test_limit_and_offset_of_a_whole_table() -> None:
    spec = RankSpec((), HIGHEST, "row_number", limit=3, offset=1, numbered=False)
    result, run = step(spec, [], delta([((name, n), 1) for n, name in enumerate("abcdef")], KINDS))
    assert counted(result) == Counter({("e", 4): 1, ("d", 3): 1})
    result, _ = step(spec, [run], delta([(("f", 5), -1)], KINDS))
    assert counted(result) == Counter({("e", 4): -1, ("c", 2): 1})


def test_a_delta_that_says_nothing_changes_nothing() -> None:
    result, run = step(top("rank", limit=2), [], delta([(("a", 1), 1), (("a", 1), -1)], KINDS))
    assert len(result) == len(run) == 0
