"""Matches on symbols are those of the oracle: which rows, which variables, which match comes next."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import EvaluationError
from headwater.operators.match_recognize import reachability, reference
from headwater.operators.match_recognize.pattern import (
    Alternate,
    Concat,
    Empty,
    Pattern,
    Quantified,
    Variable,
)
from headwater.operators.match_recognize.spec import Navigate, Skip
from tests.conftest import LONG
from tests.operators.match_recognize.kit import NAMES, TIME, X, asked, concat, patterns, rows
from tests.operators.match_recognize.oracle import Row, SkipError
from tests.raising import raises

A, B, C = (Variable(name) for name in NAMES)

SKIPS = [
    Skip("past last row"),
    Skip("to next row"),
    Skip("to first", frozenset("B")),
    Skip("to last", frozenset("AB")),
]


@settings(max_examples=2_000 if LONG else 120, deadline=None)
@given(
    patterns(),
    rows(),
    st.sampled_from(["one", "all", "all, omit empty", "all, with unmatched"]),
    st.sampled_from(SKIPS),
    st.sampled_from([None, 1, 4]),
    st.booleans(),
)
def test_matches_are_those_of_the_oracle(
    pattern: Pattern, given_rows: list[Row], shown: Any, skip: Skip, within: int | None, lanes: bool
) -> None:
    question = asked(pattern, rows=shown, skip=skip, within=within)
    with pytest.MonkeyPatch.context() as patch:
        if lanes:  # or else so few partitions are gone through one by one, and all at a time
            patch.setattr(reachability, "_LANES_MIN", 2)
        else:
            patch.setattr(reference, "CELLS_MAX", 200)
        try:
            expected = question.expected(given_rows)
        except SkipError:
            with pytest.raises(EvaluationError) as refused:
                question.matched(given_rows)
            assert refused.value.facts["reason"] in ("skip-no-row", "skip-same-match")
            return
        assert question.matched(given_rows) == expected


def line(*bits: str) -> list[Row]:
    """A partition whose rows fulfil the conditions of these variables."""
    return [(0, i, sum(1 << NAMES.index(name) for name in each), 0) for i, each in enumerate(bits)]


@pytest.mark.parametrize(
    ("pattern", "labels"),
    [
        (concat("A+ B"), "AAB"),
        (concat("A+? B"), "AAB"),
        (concat("A*? B*?"), ""),
        (Alternate((concat("A"), concat("A A B"))), "A"),
        (Alternate((concat("A A B"), concat("A"))), "AAB"),
        (Quantified(Alternate((Empty(), A)), 0, None), ""),
        (Quantified(Alternate((A, Empty())), 0, None), "AA"),
        (Quantified(Quantified(A, 0, 1, greedy=False), 0, 1), ""),
        (Concat((Quantified(A, 1, 3), Quantified(A, 1, 1), B)), "AAB"),
    ],
)
def test_preference_is_that_of_the_pattern_as_it_is_written(pattern: Pattern, labels: str) -> None:
    found = asked(pattern, rows="all", skip=Skip("past last row")).matched(line("A", "A", "B"))
    first = sorted((row for row in found if row[3] == 1), key=lambda row: row[1])
    assert "".join(row[2] or "" for row in first) == labels


def test_conditions_look_so_many_rows_back_and_ahead() -> None:
    rises = [((Navigate(X), Navigate(X, offset=-1), Navigate(X, offset=1)), _between)]
    question = asked(concat("A+"), conditions={"A": rises})
    given_rows = [(0, i, 0, x) for i, x in enumerate([1, 2, 3, 2, 5, 6, 7])]
    assert question.matched(given_rows) == question.expected(given_rows)
    assert [row[1] for row in question.matched(given_rows)] == [1, 4]


def _between(x: int, before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and before < x < after


def test_a_pattern_that_is_too_long_is_refused_by_its_name() -> None:
    with raises(EvaluationError, reason="pattern-too-long", pattern="(pattern)"):
        asked(Quantified(Quantified(A, 100, 100), 100, 100)).matched(line("A"))


def test_a_pattern_of_too_many_variables_is_refused_by_its_name() -> None:
    names = [f"V{i}" for i in range(65)]
    question = asked(Concat(tuple(map(Variable, names))), conditions=dict.fromkeys(names, ()))
    with raises(EvaluationError, reason="too-many-variables", pattern="(pattern)"):
        question.matched(line("A"))


def test_a_pattern_that_is_too_long_for_a_partition_is_refused_by_its_name() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CELLS_MAX", 100)
        with raises(EvaluationError, reason="too-much-memory", pattern="(pattern)"):
            asked(Quantified(A, 100, 100)).matched(line(*["A"] * 9))


def test_what_would_be_exponential_is_not() -> None:
    nested: Pattern = A
    for _ in range(8):
        nested = Quantified(nested, 1, None)
    assert asked(Concat((nested, C))).matched(line(*["A"] * 3_000, "B")) == []


def test_times_that_are_null_belong_to_no_match() -> None:
    question = asked(concat("A+"), within=2)
    given_rows: list[Any] = [(0, None, 1, 0), (0, 1, 1, 0), (0, 2, 1, 0), (0, 3, 1, 0)]
    assert [row[TIME] for row in question.matched(given_rows)] == [1, 3]
    assert pa.types.is_timestamp(question.spec.output.field(TIME).type)
