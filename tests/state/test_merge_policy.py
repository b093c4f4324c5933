"""Runs stay few and rows are rewritten few times, whatever sizes come."""

import itertools
import math

from hypothesis import example, given
from hypothesis import strategies as st

from headwater.state.merge_policy import FAN, FEW, NOW_ROWS_MAX, TINY_ROWS_MAX, Merge, to_merge


def merges(*sizes: int, few: int = 1) -> list[Merge]:
    return to_merge(sizes, few=few)


def apply(sizes: list[int], few: int = 1) -> tuple[list[int], int]:
    """The sizes after the merges, and the rows that were rewritten."""
    found = merges(*sizes, few=few)
    for merge in reversed(found):
        sizes[merge.slice] = [merge.rows]
    return sizes, sum(merge.rows for merge in found)


def test_a_run_joins_older_neighbours_that_it_is_at_least_half_of() -> None:
    assert merges() == merges(7) == merges(100, 49) == []
    assert merges(100, 50) == [Merge(0, 2, 150, True)]
    assert merges(1000, 100, 30, 15) == [Merge(2, 4, 45, True)]
    assert merges(180, 100, 80, 60) == [Merge(0, 4, 420, True)]


def test_several_merges_may_be_called_for_at_once() -> None:
    assert merges(400, 300, 10, 8) == [Merge(0, 2, 700, True), Merge(2, 4, 18, True)]


def test_tiny_runs_are_let_stand_until_there_are_a_few_of_them() -> None:
    tiny, base = TINY_ROWS_MAX - 1, 10 * FEW * TINY_ROWS_MAX
    assert merges(*[tiny] * (FEW - 1), few=FEW) == merges(base, *[tiny] * (FEW - 1), few=FEW) == []
    assert merges(base, *[tiny] * FEW, few=FEW) == [Merge(1, FEW + 1, FEW * tiny, True)]
    assert merges(tiny, tiny, TINY_ROWS_MAX, few=FEW) == [Merge(0, 3, 3 * TINY_ROWS_MAX - 2, True)]
    assert merges(base, base, few=FEW) == merges(base, base)


@given(st.lists(st.integers(0, 2 * TINY_ROWS_MAX), min_size=1, max_size=200))
@example([1] * 1_000)
@example([100] * 1_000)
def test_with_tiny_runs_let_stand_there_are_few_runs_and_few_merges(sizes: list[int]) -> None:
    runs: list[int] = []
    done = work = total = 0
    for size in sizes:
        found = merges(*runs, size, few=FEW)
        runs, rewritten = apply([*runs, size], few=FEW)
        done += len(found)
        work += max(0, rewritten - FEW * TINY_ROWS_MAX)
        total += size
        assert sum(runs) == total
        settled = [rows for rows in runs if rows >= TINY_ROWS_MAX]
        assert len(runs) - len(settled) < FEW
        assert len(settled) <= 2 * math.log2(max(total / TINY_ROWS_MAX, 1)) + 4
    assert done <= len(sizes) / (FEW - 1) + sum(size >= TINY_ROWS_MAX for size in sizes)
    assert work <= total * (math.log(max(total, 1), 1.5) + 2)


def test_large_runs_wait_for_company_and_are_merged_in_the_background() -> None:
    large = NOW_ROWS_MAX
    assert merges(large, large, large, 10, 8) == [Merge(3, 5, 18, True)]
    assert merges(large, large, large, large, 10, 8) == [Merge(0, 4, 4 * large, False), Merge(4, 6, 18, True)]


def test_a_larger_class_is_left_alone_until_there_are_enough_of_it() -> None:
    large, larger = NOW_ROWS_MAX, FAN * NOW_ROWS_MAX
    assert merges(larger, large, large, large) == []
    assert merges(larger, *[large] * FAN) == [Merge(1, 1 + FAN, FAN * large, False)]
    assert merges(*[larger] * (FAN - 2), *[large] * FAN) == [Merge(FAN - 2, 2 * FAN - 2, FAN * large, False)]


def test_a_merge_that_completes_a_larger_class_takes_it_along() -> None:
    large, larger, largest = (FAN**n * NOW_ROWS_MAX for n in range(3))
    together = (FAN - 1) * larger + FAN * large
    assert merges(*[larger] * (FAN - 1), *[large] * FAN) == [Merge(0, 2 * FAN - 1, together, False)]
    most = [*[largest] * (FAN - 1), *[larger] * (FAN - 1), *[large] * FAN]
    assert merges(*most) == [Merge(0, len(most), sum(most), False)]
    # A tick after that has nothing left to do, however small it is.
    assert merges(sum(most), 1) == []
    assert merges(*[larger] * FAN) == [Merge(0, FAN, FAN * larger, False)]


@given(st.lists(st.integers(NOW_ROWS_MAX, 3 * NOW_ROWS_MAX), min_size=1, max_size=120))
def test_large_rows_are_rewritten_once_per_class(sizes: list[int]) -> None:
    runs: list[int] = []
    work = total = 0
    for size in sizes:
        runs, rewritten = apply([*runs, size])
        work += rewritten
        total += size
    classes = math.log(total / NOW_ROWS_MAX, FAN) + 1
    assert work <= total * classes
    assert len(runs) <= FAN * classes


def test_empty_runs_go_with_the_next_merge() -> None:
    assert merges(0, 0) == [Merge(0, 2, 0, True)]
    assert merges(10, 0) == []
    assert merges(10, 0, 1) == [Merge(1, 3, 1, True)]


@given(st.lists(st.integers(1, 900), min_size=1, max_size=200))
@example([1] * 1_000)
@example([2**n for n in range(16)])
@example([2**n for n in reversed(range(16))])
def test_runs_stay_few_and_the_work_is_n_log_n(sizes: list[int]) -> None:
    runs: list[int] = []
    work = total = 0
    for size in sizes:
        runs, rewritten = apply([*runs, size])
        work += rewritten
        total += size
        assert sum(runs) == total
        assert len(runs) <= 2 * math.log2(total / min(sizes)) + 4
        assert all(older > 2 * newer for older, newer in itertools.pairwise(runs))
        assert merges(*runs) == []
    assert work <= total * (math.log(total, 1.5) + 2)


@given(st.lists(st.integers(0, 1_000_000), max_size=40))
def test_merges_are_in_order_and_do_not_overlap(sizes: list[int]) -> None:
    found = merges(*sizes)
    ends = [0, *(place for merge in found for place in (merge.start, merge.stop)), len(sizes)]
    assert ends == sorted(ends)
    assert all(merge.stop - merge.start > 1 for merge in found)
    assert [merge.rows for merge in found] == [sum(sizes[merge.slice]) for merge in found]
