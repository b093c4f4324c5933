"""Measures at every row and at the end of matches are the oracle's: running and final, over variables and sets of them."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import ArithmeticOverflowError, EvaluationError
from headwater.operators.match_recognize import measures as module
from headwater.operators.match_recognize.pattern import Pattern
from headwater.operators.match_recognize.spec import (
    Classify,
    Input,
    MatchNumber,
    Navigate,
    PatternAggregate,
    Skip,
)
from tests.conftest import LONG
from tests.operators.match_recognize.kit import NAMES, TIME, X, asked, concat, patterns, rows
from tests.operators.match_recognize.oracle import Row
from tests.raising import raises

Measure = tuple[tuple[Input, ...], Callable[..., Any], pa.DataType]

some = st.one_of(st.none(), st.sets(st.sampled_from(NAMES), min_size=1).map(frozenset))
sides = st.sampled_from(["first", "last"])
nth, offset = st.integers(0, 2), st.integers(-2, 2)


def _same(*values: Any) -> Any:
    return values[0]


def _both(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else 10 * left + right


def measures() -> st.SearchStrategy[Measure]:
    """Of inputs of all kinds."""
    whole = st.just(pa.int64())
    navigate = st.builds(Navigate, st.just(X), some, sides, nth, offset, st.booleans())
    classify = st.builds(Classify, some, sides, nth, offset, st.booleans())
    total = st.builds(
        PatternAggregate,
        st.sampled_from(["count", "sum", "min", "max"]),
        some,
        st.sampled_from([0, 1]),
        st.booleans(),
    )
    count = st.builds(PatternAggregate, st.just("count"), some, st.none(), st.booleans())
    mean = st.builds(PatternAggregate, st.just("avg"), some, st.just(0), st.booleans())
    listed = st.builds(PatternAggregate, st.just("list"), some, st.sampled_from([0, 1, 2]), st.booleans())
    named = st.builds(PatternAggregate, st.sampled_from(["min", "count"]), some, st.just(2), st.booleans())
    return st.one_of(
        st.tuples(st.tuples(listed, listed), st.just(lambda a, b: f"{a} {b}"), st.just(pa.string())),
        st.tuples(st.tuples(named), st.just(str), st.just(pa.string())),
        st.tuples(st.tuples(navigate), st.just(_same), whole),
        st.tuples(st.tuples(navigate, navigate), st.just(_both), whole),
        st.tuples(st.tuples(classify), st.just(_same), st.just(pa.string())),
        st.tuples(st.tuples(total), st.just(_same), whole),
        st.tuples(st.tuples(count), st.just(_same), whole),
        st.tuples(
            st.tuples(mean),
            st.just(lambda total, count: total / count if count else None),
            st.just(pa.float64()),
        ),
    )


@settings(max_examples=2_000 if LONG else 120, deadline=None)
@given(
    patterns(),
    st.lists(measures(), min_size=1, max_size=4),
    rows(),
    st.sampled_from(["one", "all", "all, with unmatched"]),
    st.sampled_from([Skip("past last row"), Skip("to next row")]),
)
def test_measures_are_those_of_the_oracle(
    pattern: Pattern, chosen: list[Measure], given_rows: list[Row], shown: Any, skip: Skip
) -> None:
    arguments = [lambda x: x, lambda x: x if x % 2 else None]
    labelled = [lambda x, label, number: f"{label}{number}" if x % 2 else None]
    question = asked(pattern, measures=chosen, arguments=arguments, labelled=labelled, rows=shown, skip=skip)
    assert question.matched(given_rows) == question.expected(given_rows)


def test_a_measure_may_look_at_nothing() -> None:
    question = asked(concat("A"), measures=[((), lambda: 7, pa.int64())])
    assert question.matched([(0, 0, 1, 0), (0, 1, 1, 0)]) == [(0, 0, "A", 1, 7), (0, 1, "A", 2, 7)]


def test_of_an_empty_match_there_is_its_number_and_a_count() -> None:
    counted: list[Measure] = [
        ((PatternAggregate("count"),), _same, pa.int64()),
        ((Navigate(TIME),), _same, pa.timestamp("us")),
        ((MatchNumber(),), _same, pa.int64()),
    ]
    question = asked(concat("A*"), measures=counted, rows="all")
    assert question.matched([(0, 5, 0, 0)]) == [(0, 5, None, 1, 0, None, 1)]
    assert asked(concat("A*"), rows="all, omit empty").matched([(0, 5, 0, 0)]) == []


def test_a_sum_that_does_not_fit_names_the_pattern() -> None:
    total: list[Measure] = [((PatternAggregate("sum", None, 0),), _same, pa.int64())]
    question = asked(concat("A+"), measures=total, arguments=[lambda x: x])
    with raises(ArithmeticOverflowError, function="sum", pattern="(pattern)"):
        question.matched([(0, i, 1, 2**62) for i in range(3)])


def test_lists_are_made_some_at_a_time_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Measure] = [((PatternAggregate("list", None, 0),), str, pa.string())]
    given_rows = [(key, i, 1, i) for key in range(3) for i in range(9)]
    question = asked(concat("A+"), measures=joined, arguments=[lambda x: x], rows="all", work_max=50)
    monkeypatch.setattr(module, "LISTED_MAX", 10)
    assert question.matched(given_rows) == question.expected(given_rows)
    with raises(EvaluationError, reason="match-too-long", pattern="(pattern)"):
        question.matched([(7, i, 1, i) for i in range(10)])
