"""Conditions that look at the rows matched so far: the same matches as the oracle's, at a bounded cost."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import EvaluationError
from headwater.operators.match_recognize.automaton import compile_pattern
from headwater.operators.match_recognize.pattern import Alternate, Concat, Pattern, Quantified, Variable
from headwater.operators.match_recognize.reference import match_rows
from headwater.operators.match_recognize.spec import (
    Classify,
    Input,
    MatchNumber,
    Navigate,
    PatternAggregate,
    Skip,
)
from tests.conftest import LONG
from tests.operators.match_recognize.kit import BITS, NAMES, Asked, X, asked, batch, concat, patterns, rows
from tests.operators.match_recognize.oracle import Row
from tests.raising import raises

Condition = tuple[tuple[Input, ...], Callable[..., Any]]

some = st.one_of(st.none(), st.sets(st.sampled_from(NAMES), min_size=1, max_size=2).map(frozenset))
sides = st.sampled_from(["first", "last"])
navigations = st.builds(
    Navigate, st.just(X), some, sides, st.integers(0, 1), st.sampled_from([-1, 0, 0, 0, 1])
)
aggregates = st.one_of(
    st.builds(PatternAggregate, st.just("count"), some),
    st.builds(PatternAggregate, st.sampled_from(["count", "sum", "min", "max"]), some, st.just(0)),
)


def _is_less(*values: int | None) -> bool | None:
    left, right = values[:2]
    return None if left is None or right is None else left < right


def _is_at_least_2(*values: int | None) -> bool | None:
    return None if values[0] is None else values[0] >= 2


def _is_b(*values: Any) -> bool:
    return values[0] == "B"


def _is_odd(*values: Any) -> bool:
    return bool(values[0] % 2)


def _ends_alike(values: list[Any]) -> bool:
    return len(values) < 3 or values[-1] == values[-3]


def conditions() -> st.SearchStrategy[Condition]:
    """Of inputs of all kinds."""
    listed = st.builds(PatternAggregate, st.just("list"), some, st.sampled_from([0, 1]))
    return st.one_of(
        st.tuples(st.tuples(listed), st.just(_ends_alike)),
        st.tuples(st.tuples(navigations, navigations), st.just(_is_less)),
        st.tuples(st.tuples(st.just(Navigate(X)), navigations), st.just(_is_less)),
        st.tuples(st.tuples(aggregates), st.just(_is_at_least_2)),
        st.tuples(st.tuples(st.builds(Classify, some, sides, st.integers(0, 1))), st.just(_is_b)),
        st.tuples(st.tuples(st.just(MatchNumber())), st.just(_is_odd)),
        st.tuples(st.tuples(st.just(Navigate(BITS))), st.just(_is_odd)),
    )


some_conditions = st.dictionaries(st.sampled_from(NAMES), st.lists(conditions(), max_size=2))


@settings(max_examples=3_000 if LONG else 150, deadline=None)
@given(
    patterns(),
    some_conditions,
    rows(size=14),
    st.sampled_from(["one", "all, with unmatched"]),
    st.sampled_from([Skip("past last row"), Skip("to next row")]),
    st.sampled_from([None, 4]),
)
def test_matches_are_those_of_the_oracle(
    pattern: Pattern,
    own: dict[str, list[Condition]],
    given_rows: list[Row],
    shown: Any,
    skip: Skip,
    within: int | None,
) -> None:
    question = asked(
        pattern,
        conditions=own,
        arguments=[lambda x: x],
        labelled=[lambda x, label, number: f"{label}{(x + number) % 2}"],
        rows=shown,
        skip=skip,
        within=within,
        timeouts=within is not None and not compile_pattern(pattern, "").has_end,
    )
    assert question.matched(given_rows) == question.expected(given_rows)


def _counting(question: Asked) -> tuple[Callable[..., pa.Array], list[int]]:
    calls: list[int] = []

    def evaluate(expression: int, inputs: pa.RecordBatch, count: int) -> pa.Array:
        calls.append(count)
        return question.evaluate(expression, inputs, count)

    return evaluate, calls


def rising(pattern: Pattern, last: Input) -> Asked:
    """B is greater than some row before it."""
    more: Sequence[Condition] = [((last, Navigate(X)), _is_less)]
    return asked(pattern, conditions={"A": [], "B": more})


@pytest.mark.parametrize(
    "last",
    [Navigate(X, frozenset("A")), Navigate(X, None, "last", 1), PatternAggregate("min", frozenset("B"), 0)],
    ids=["a fixed row", "the row before", "an aggregate"],
)
def test_a_loop_asks_in_bulk(last: Input) -> None:
    condition: Sequence[Condition] = [((last, Navigate(X)), lambda a, b: a is None or a <= b)]
    question = asked(concat("A B+"), conditions={"A": [], "B": condition}, arguments=[lambda x: x])
    evaluate, calls = _counting(question)
    given_rows = [(0, i, 0, i) for i in range(3_000)]
    (row,) = match_rows(question.spec, batch(given_rows), evaluate).to_pylist()
    assert row["m0"] == "B"
    assert len(calls) < 40


def test_partitions_are_asked_for_at_once() -> None:
    question = rising(concat("A B C"), Navigate(X, frozenset("A")))
    evaluate, calls = _counting(question)
    given_rows = [(key, i, 7, i) for key in range(500) for i in range(6)]
    assert match_rows(question.spec, batch(given_rows), evaluate).num_rows == 1_000
    assert len(calls) < 20


def test_what_is_asked_if_the_answer_is_no_is_asked_at_once() -> None:
    choice = Quantified(Alternate((Variable("A"), Variable("B"))), 1, None)
    total = (PatternAggregate("sum", frozenset("A"), 0),)
    question = asked(
        Concat((choice, Variable("C"))),
        conditions={"A": [], "B": [], "C": [(total, lambda t: t == 55)]},
        arguments=[lambda x: x],
    )
    evaluate, calls = _counting(question)
    given_rows = [(7, i, 0, i) for i in range(12)]
    made = match_rows(question.spec, batch(given_rows), evaluate)
    assert made.num_rows == 1
    assert len(calls) < 25, "of some hundred paths that were tried"


def test_a_long_partition_may_take_more_steps_than_a_short_one() -> None:
    question = rising(concat("A B"), Navigate(X, frozenset("A")))
    limited = asked(
        concat("A B"),
        conditions={"A": [], "B": [((Navigate(X, frozenset("A")), Navigate(X)), _is_less)]},
        work_max=0,
    )
    given_rows = [(0, i, 0, i) for i in range(1_000)]
    assert limited.matched(given_rows) == question.matched(given_rows)


def test_a_pattern_that_needs_too_many_steps_is_refused_by_its_name() -> None:
    choice = Quantified(Alternate((Variable("A"), Variable("B"))), 0, None)
    total = (PatternAggregate("sum", frozenset("A"), 0),)
    question = asked(
        Concat((choice, Variable("C"))),
        conditions={
            "A": [(total, lambda t: t < 99)],
            "B": [],
            "C": [(total, lambda t: t is not None and t > 99)],
        },
        arguments=[lambda x: x],
        work_max=2_000,
    )
    with raises(EvaluationError, reason="too-many-steps", pattern="(pattern)", key={"key": 7}):
        question.matched([(7, i, 0, i) for i in range(30)])
