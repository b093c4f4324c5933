"""Patterns whose results others have published, Trino above all: what they say is matched, is matched here.

Rows 1, 2, 3 ... have a value each; a pattern is given as it is written, with what its variables ask of a row and the one before
it. The same from SQL on, and what looks at more of a match, is in `tests/plan/test_pattern_examples.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from headwater.operators.match_recognize.reference import match_rows
from headwater.operators.match_recognize.spec import (
    Classify,
    MatchNumber,
    MatchSpec,
    Navigate,
    PatternExpression,
    Shown,
)
from headwater.operators.zset.collation import ColumnOrder
from headwater.sql.match_recognize_pattern import read_pattern

Rows = list[tuple[Any, ...]]
Condition = Callable[[int, int | None], bool | None]

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
DOWN = (90, 80, 70, 70)
VALLEYS = (90, 80, 70, 80, 90, 50, 40, 60)


def falls(value: int, before: int | None) -> bool:
    return before is not None and value < before


def rises(value: int, before: int | None) -> bool:
    return before is not None and value > before


def stays(value: int, before: int | None) -> bool:
    return value == before


def no_more(value: int, before: int | None) -> bool:
    return before is not None and value <= before


def matched(values: tuple[int, ...], pattern: str, conditions: dict[str, Condition]) -> Rows:
    """The row, the number of its match, its value and its variable, of all rows of matches."""

    def fail(start: int, end: int, reason: str, hint: str | None) -> NoReturn:
        raise AssertionError(reason)

    tree = read_pattern(pattern, 0, len(pattern), fail)
    known = {name: each for name, each in conditions.items() if name.lower() in tree.variables}
    functions: list[Callable[..., Any]] = [*known.values(), *([lambda x: x] * 3)]
    looks = (Navigate(1), Navigate(1, offset=-1))
    own = [PatternExpression(looks, pa.bool_()) for _ in known]
    count = len(known)
    spec = MatchSpec(
        SCHEMA,
        (),
        (ColumnOrder(0, descending=False, nulls_first=True),),
        tree.tree,
        pattern,
        (
            *own,
            PatternExpression((MatchNumber(),), pa.int64()),
            PatternExpression((Navigate(1),), pa.int64()),
            PatternExpression((Classify(),), pa.string()),
        ),
        {name: (number,) for number, name in enumerate(known)},
        (count, count + 1, count + 2),
        (Shown("id", "column", 0), *(Shown(name, "measure", i) for i, name in enumerate("nvl"))),
        rows="all",
    )

    def evaluate(expression: int, inputs: pa.RecordBatch, size: int) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in inputs.columns), strict=True)
        made = [functions[expression](*row) for row in rows]
        return pa.array(made, spec.expressions[expression].type)

    given = pa.RecordBatch.from_arrays([pa.array(range(1, len(values) + 1)), pa.array(values)], schema=SCHEMA)
    return sorted(tuple(row.values()) for row in match_rows(spec, given, evaluate).to_pylist())


def empties(*rows: int) -> Rows:
    return [(row, number, None, None) for number, row in enumerate(rows, 1)]


def one_each(*matches: str, values: tuple[int, ...] = DOWN, first: int = 1) -> Rows:
    """Rows of matches that follow one another, by their labels; an empty one, written as '', takes a row."""
    found: Rows = []
    row = first
    for number, labels in enumerate(matches, 1):
        for label in labels or " ":
            found.append((row, number, None, None) if label == " " else (row, number, values[row - 1], label))
            row += 1
    return found


def b(low: int, *sizes: int) -> Rows:
    """Matches of B alone, of so many rows each, from a row on; 0 is an empty one."""
    return one_each(*("B" * size for size in sizes), first=low)


@pytest.mark.parametrize(
    ("pattern", "conditions", "expected"),
    [
        ("() | A", {}, empties(1, 2, 3, 4)),
        ("^A", {}, [(1, 1, 90, "A")]),
        ("A^", {}, []),
        ("^A^", {}, []),
        ("A$", {}, [(4, 1, 70, "A")]),
        ("$A", {}, []),
        ("$A$", {}, []),
        ("A B C", {"B": falls, "C": stays}, one_each("ABC", first=2)),
        ("((A) (B (C)))", {"B": falls, "C": stays}, one_each("ABC", first=2)),
        ("B | C | A", {"B": falls, "C": no_more}, one_each("A", "B", "B", "C")),
        ("PERMUTE(B, C)", {"B": falls, "C": falls}, one_each("BC", first=2)),
        # a quantifier that repeats nothing ends
        ("()* | B", {}, empties(1, 2, 3, 4)),
        ("()+ | B", {}, empties(1, 2, 3, 4)),
        ("(){5,} | B", {}, empties(1, 2, 3, 4)),
        ("B | ()*", {"B": falls}, one_each("", "B", "B", "")),
        ("(B ()*)*", {"B": falls}, one_each("", "BB", "")),
        ("(B ()*)*?", {"B": falls}, empties(1, 2, 3, 4)),
        ("^* | B", {}, empties(1, 2, 3, 4)),
        ("^+ | B", {"B": falls}, one_each("", "B", "B")),
        ("^* A B", {"B": falls}, one_each("AB")),
        ("$* | B", {}, empties(1, 2, 3, 4)),
        ("$+ | B", {"B": falls}, one_each("B", "B", first=2)),
        ("B A $+", {"B": falls}, one_each("BA", first=3)),
    ],
)  # fmt: skip
def test_parts_of_patterns(pattern: str, conditions: dict[str, Condition], expected: Rows) -> None:
    assert matched(DOWN, pattern, conditions) == expected


@pytest.mark.parametrize(
    ("quantifier", "expected"),
    [
        ("*", b(1, 0, 3)),
        ("*?", empties(1, 2, 3, 4)),
        ("+", b(2, 3)),
        ("+?", b(2, 1, 1, 1)),
        ("?", b(1, 0, 1, 1, 1)),
        ("??", empties(1, 2, 3, 4)),
        ("{,}", b(1, 0, 3)),
        ("{,}?", empties(1, 2, 3, 4)),
        ("{1,}", b(2, 3)),
        ("{1,}?", b(2, 1, 1, 1)),
        ("{2,}", b(2, 3)),
        ("{2,}?", b(2, 2)),
        ("{5,}", []),
        ("{5,}?", []),
        ("{,1}", b(1, 0, 1, 1, 1)),
        ("{,1}?", empties(1, 2, 3, 4)),
        ("{,2}", b(1, 0, 2, 1)),
        ("{,2}?", empties(1, 2, 3, 4)),
        ("{,5}", b(1, 0, 3)),
        ("{1,1}", b(2, 1, 1, 1)),
        ("{1,5}", b(2, 3)),
        ("{1,5}?", b(2, 1, 1, 1)),
        ("{5,7}", []),
        ("{1}", b(2, 1, 1, 1)),
        ("{2}", b(2, 2)),
        ("{2}?", b(2, 2)),
        ("{5}", []),
    ],
)
def test_quantifiers(quantifier: str, expected: Rows) -> None:
    assert matched(DOWN, f"B{quantifier}", {"B": no_more}) == expected


WHOLE = one_each("ABBCC", "ABC", values=VALLEYS)


@pytest.mark.parametrize(
    ("pattern", "hidden"),
    [
        ("A B+ C+", ""),
        ("A {- B+ -} C+", "B"),
        ("{- A -} {- B+ -} C+", "AB"),
        ("A {- {- B+ -} C+ -}", "BC"),
        ("{- A B+ C+ -}", "ABC"),
        ("A B+ {- ()* -} C+", ""),
        ("A {- B -}+ {- C -}+", "BC"),
        ("A {- B -}* {- C -}*", "BC"),
        ("A {- B -}{1,2} {- C -}{1,2}", "BC"),
    ],
)
def test_rows_that_are_matched_and_not_shown(pattern: str, hidden: str) -> None:
    expected = [row for row in WHOLE if row[3] not in hidden]
    assert matched(VALLEYS, pattern, {"B": falls, "C": rises}) == expected
