"""When a row of the output is final: what is shown at a time depends on rows before it, and on nothing else."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.operators.match_recognize.pattern import Pattern
from headwater.operators.match_recognize.spec import NEVER, Navigate, RowsPerMatch, Skip
from tests.conftest import LONG
from tests.operators.match_recognize.kit import (
    NAMES,
    TIME,
    Asked,
    X,
    asked,
    concat,
    ordered,
    patterns,
    rows,
)
from tests.operators.match_recognize.oracle import Row

NEXT = [((Navigate(X), Navigate(X, offset=1)), lambda x, after: after is not None and x < after)]
RISES = [((Navigate(X), Navigate(X, frozenset("A"))), lambda x, first: first is not None and x > first)]


def shown(question: Asked, given_rows: list[Row], watermark: int) -> list[Row]:
    """The rows that are final at a watermark."""
    return ordered(row for row in question.matched(given_rows) if row[-1] <= watermark)


@settings(max_examples=2_000 if LONG else 150, deadline=None)
@given(
    patterns(),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([NEXT, RISES])),
    rows(keys=2),
    rows(keys=2, spread=8),
    rows(keys=2, spread=8),
    st.integers(0, 14),
    st.sampled_from(["one", "all, with unmatched"]),
    st.sampled_from([Skip("past last row"), Skip("to next row")]),
    st.sampled_from([None, 3]),
    st.booleans(),
)
def test_no_row_from_a_watermark_on_changes_what_is_shown_at_it(
    pattern: Pattern,
    conditions: Any,
    known: list[Row],
    one: list[Row],
    other: list[Row],
    watermark: int,
    per_match: RowsPerMatch,
    skip: Skip,
    within: int | None,
    looks_ahead: bool,
) -> None:
    measures: Any = [((Navigate(X, offset=1),), lambda x: x, X_TYPE)] if looks_ahead else []
    question = asked(
        pattern,
        conditions=conditions,
        measures=measures,
        rows=per_match,
        skip=skip,
        within=within,
        closing=True,
        timeouts=within is not None,
    )
    before = [row for row in known if row[TIME] < watermark]
    first, second = (
        shown(question, before + [_later(row, watermark) for row in future], watermark)
        for future in (one, other)
    )
    assert first == second == shown(question, before, watermark)


def _later(row: Row, by: int) -> Row:
    return (row[0], row[TIME] + by, *row[2:])


X_TYPE = asked(concat("A")).spec.schema.field(X).type


def closes(pattern: str, *bits: int, **options: Any) -> list[int]:
    """When the matches are final of a partition with a row every ten microseconds."""
    question = asked(concat(pattern), closing=True, **options)
    found = question.matched([(0, 10 * i, each, 0) for i, each in enumerate(bits)])
    return [row[-1] for row in sorted(found, key=lambda row: row[TIME])]


def test_a_match_is_final_once_its_last_row_is_known() -> None:
    assert closes("A B", 1, 2) == [11]


def test_a_greedy_match_is_final_once_the_row_after_it_is_known() -> None:
    assert closes("A+", 1, 1) == [NEVER]
    assert closes("A+", 1, 1, 2) == [21]


def test_a_reluctant_match_does_not_wait() -> None:
    assert closes("A+?", 1, 1, 2) == [1, 11]


def test_a_match_waits_for_one_that_might_begin_before_it() -> None:
    assert closes("A B* C", 1, 2, 2, 4) == [31]
    # the first A may still become a match, but only for so long
    assert closes("C+ A B", 4, 1, 2, within=100) == [21]
    assert closes("A B* C", 1, 2, 1 | 4, within=100) == [21]
    assert closes("A+ C", 1, 1, 4, 1, within=15) == [21]


def test_a_greedy_match_is_final_once_its_time_is_over() -> None:
    assert closes("A+", 1, 1, within=100) == [100]


def test_what_did_not_happen_is_reported_when_its_time_is_over() -> None:
    question = asked(concat("A B* C"), closing=True, timeouts=True, within=25)
    given_rows = [(0, 0, 1, 0), (0, 10, 2, 0), (0, 20, 2, 0), (0, 30, 0, 0), (0, 40, 1, 0), (0, 50, 4, 0)]
    # key, time, classifier, number, timed out, closes
    assert question.matched(given_rows) == [(0, 0, "B", 1, True, 25), (0, 40, "C", 1, False, 51)]


def test_a_match_that_another_row_breaks_is_no_timeout() -> None:
    question = asked(concat("A B C"), closing=True, timeouts=True, within=25)
    assert question.matched([(0, 0, 1, 0), (0, 10, 1, 0), (0, 20, 0, 0)]) == []
