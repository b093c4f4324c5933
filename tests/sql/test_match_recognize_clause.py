"""MATCH_RECOGNIZE as it is written: patterns, parts in their order, the place in a query, and refusals that point."""

from __future__ import annotations

import pytest

from headwater.core.errors import StatementError
from headwater.operators.match_recognize.pattern import (
    Alternate,
    Concat,
    Empty,
    End,
    Exclude,
    Pattern,
    Permute,
    Quantified,
    Start,
    Variable,
)
from headwater.sql.match_recognize_clause import MatchClause, read_match
from headwater.sql.match_recognize_places import match_places
from headwater.sql.ordered_aggregates import spark_query
from headwater.sql.statements import QueryText
from tests.raising import raises

A, B, C = Variable("A"), Variable("B"), Variable("C")


def read(text: str) -> MatchClause:
    """The only clause of a query."""
    (place,) = match_places(text)
    return read_match(QueryText(text), place)


def of_pattern(pattern: str, more: str = "") -> MatchClause:
    return read(f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY at PATTERN ({pattern}) {more})")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("A", A),
        ("A B c", Concat((A, B, C))),
        ("A | B C", Alternate((A, Concat((B, C))))),
        ("(A | B) C", Concat((Alternate((A, B)), C))),
        ("A* B+ C?", Concat((Quantified(A, 0, None), Quantified(B, 1, None), Quantified(C, 0, 1)))),
        (
            "A*? B+? C??",
            Concat(
                (Quantified(A, 0, None, False), Quantified(B, 1, None, False), Quantified(C, 0, 1, False))
            ),
        ),
        ("A{3}", Quantified(A, 3, 3)),
        ("A{2,}", Quantified(A, 2, None)),
        ("A{,3}?", Quantified(A, 0, 3, False)),
        ("A{2,3}", Quantified(A, 2, 3)),
        ("(A B)+", Quantified(Concat((A, B)), 1, None)),
        ("^ A $", Concat((Start(), A, End()))),
        ("()", Empty()),
        ("A | ()", Alternate((A, Empty()))),
        ("A {- B+ -} C", Concat((A, Exclude(Quantified(B, 1, None)), C))),
        ("PERMUTE(A, B C)", Permute((A, Concat((B, C))))),
        ("permute (A)", A),
        ("A||B", None),
        ("A -- no B\n C", Concat((A, C))),
        ("A /* no B */ C", Concat((A, C))),
        ("`a b`", Variable("a b")),
    ],
)
def test_a_pattern_is_a_tree(text: str, tree: Pattern | None) -> None:
    if tree is None:
        with pytest.raises(StatementError):
            of_pattern(text)
    else:
        assert of_pattern(text).pattern.tree == tree


def test_every_part_of_a_clause() -> None:
    text = """SELECT m.* FROM events e MATCH_RECOGNIZE (
        PARTITION BY k, j ORDER BY at DESC, abs(id) NULLS LAST, z
        MEASURES FINAL last(A.x) AS y, count(B.*) + 1 AS n
        ALL ROWS PER MATCH WITH UNMATCHED ROWS
        AFTER MATCH SKIP TO FIRST u
        INITIAL PATTERN (A b+) WITHIN INTERVAL '10' MINUTES EMIT TIMEOUTS
        SUBSET U = (A, B), v = (B)
        DEFINE B AS B.x > PREV(B.x), A AS x IN (1, 2)) AS m WHERE y > 1"""
    clause = read(text)

    def written(part: object) -> str:
        return text[part.start : part.end]  # type: ignore[attr-defined]

    assert [written(part) for part in clause.partition] == ["k", "j"]
    assert [(written(o.expression), o.descending, o.nulls_first) for o in clause.order] == [
        ("at", True, False),
        ("abs(id)", False, False),
        ("z", False, True),
    ]
    assert [(name, written(part)) for name, part in clause.measures] == [
        ("y", "FINAL last(A.x)"),
        ("n", "count(B.*) + 1"),
    ]
    assert (clause.rows, clause.skip, clause.skip_to) == ("all, with unmatched", "to first", "u")
    assert clause.within is not None
    assert written(clause.within) == "INTERVAL '10' MINUTES"
    assert clause.timeouts
    assert clause.subsets == {"u": ("a", "b"), "v": ("b",)}
    assert {name: written(part) for name, part in clause.conditions.items()} == {
        "b": "B.x > PREV(B.x)",
        "a": "x IN (1, 2)",
    }
    assert clause.variables("U") == {"A", "B"}
    assert [(p.is_final, text[p.call : p.call + 4]) for p in clause.prefixes] == [(True, "last")]


def test_what_is_not_said_is_the_standards() -> None:
    clause = of_pattern("A")
    assert (clause.rows, clause.skip, clause.within, clause.timeouts) == ("one", "past last row", None, False)
    assert (clause.partition, clause.measures, clause.conditions) == ((), (), {})
    assert of_pattern("A", "SUBSET u = (A)").subsets == {"u": ("a",)}


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        ("ONE ROW PER MATCH", "one"),
        ("ALL ROWS PER MATCH", "all"),
        ("ALL ROWS PER MATCH SHOW EMPTY MATCHES", "all"),
        ("ALL ROWS PER MATCH OMIT EMPTY MATCHES", "all, omit empty"),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS", "all, with unmatched"),
    ],
)
def test_rows_per_match(said: str, rows: str) -> None:
    assert read(f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY at {said} PATTERN (A))").rows == rows


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("PAST LAST ROW", ("past last row", None)),
        ("TO NEXT ROW", ("to next row", None)),
        ("TO FIRST a", ("to first", "a")),
        ("TO LAST A", ("to last", "a")),
        ("TO A", ("to last", "a")),
    ],
)
def test_where_matching_goes_on(said: str, kind: tuple[str, str | None]) -> None:
    clause = read(f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY at AFTER MATCH SKIP {said} PATTERN (A B))")
    assert (clause.skip, clause.skip_to) == kind


@pytest.mark.parametrize(
    ("before", "relation"),
    [
        ("FROM t", "t"),
        ("FROM a, t", "t"),
        ("FROM a JOIN t AS x", "t AS x"),
        ("FROM (SELECT 1, f(2) FROM b) s", "(SELECT 1, f(2) FROM b) s"),
        ("FROM (SELECT * FROM b)", "(SELECT * FROM b)"),
        ("FROM explode(array(1, 2)) AS e(x)", "explode(array(1, 2)) AS e(x)"),
        ("FROM t FOR SYSTEM_TIME AS OF '2026-01-01'", "t FOR SYSTEM_TIME AS OF '2026-01-01'"),
    ],
)
def test_the_relation_is_what_stands_before(before: str, relation: str) -> None:
    text = f"SELECT * {before} MATCH_RECOGNIZE (ORDER BY at PATTERN (A)) m"
    (place,) = match_places(text)
    assert text[place.relation : place.start].strip() == relation


def test_spark_reads_a_query_of_the_relation_instead_and_points_to_places_of_what_was_written() -> None:
    text = (
        "SELECT * FROM (SELECT * FROM s MATCH_RECOGNIZE (ORDER BY b PATTERN (A))) t MATCH_RECOGNIZE (\n"
        "  ORDER BY a MEASURES array_agg(x ORDER BY y) AS l PATTERN (B)) AS m WHERE z = 1"
    )
    made = spark_query(text)
    assert " ".join(made.text.split()) == (
        "SELECT * FROM (SELECT /*+ HEADWATER_MATCH(1) */ * FROM (SELECT * FROM (SELECT /*+ HEADWATER_MATCH(0) */ * "
        "FROM s )) t ) AS m WHERE z = 1"
    )
    assert made.original(made.text.index("z = 1")) == text.index("z = 1")
    assert made.now(text.index("z = 1")) == made.text.index("z = 1")


@pytest.mark.parametrize(
    ("clause", "part", "facts"),
    [
        ("PATTERN (A)", "PATTERN", {"reason": "not-ordered"}),
        ("PARTITION BY k PATTERN (A)", "PATTERN", {"reason": "not-ordered"}),
        ("ORDER BY at DEFINE A AS x", "DEFINE", {"expected": "PATTERN", "found": "DEFINE"}),
        ("ORDER BY at SEEK PATTERN (A)", "SEEK", {"reason": "seek"}),
        ("ORDER BY at PATTERN (A) DEFINE B AS x", "B", {"reason": "unknown-variable", "variable": "B"}),
        ("ORDER BY at PATTERN (A) DEFINE A AS x, A AS y", "A", {"reason": "defined-twice", "variable": "A"}),
        ("ORDER BY at PATTERN (A) SUBSET u = (B)", "B", {"reason": "unknown-variable", "variable": "B"}),
        ("ORDER BY at PATTERN (A) SUBSET A = (A)", "A", {"reason": "subset-exists"}),
        ("ORDER BY at PATTERN (A) SUBSET u = (A) DEFINE u AS x", "u", {"reason": "subset-defined"}),
        (
            "ORDER BY at AFTER MATCH SKIP TO LAST B PATTERN (A)",
            "B",
            {"reason": "unknown-variable", "variable": "B"},
        ),
        ("ORDER BY at AFTER MATCH SKIP PATTERN (A)", "PATTERN", {"expected": "TO"}),
        ("ORDER BY at MEASURES x PATTERN (A)", "x", {"reason": "measure-without-name"}),
        ("ORDER BY at MEASURES x AS a, y AS A PATTERN (A)", "A", {"reason": "measure-twice", "measure": "A"}),
        ("ORDER BY at PATTERN (A{3,2})", "{3,2}", {"reason": "quantifier-empty"}),
        ("ORDER BY at PATTERN (A{0})", "{0}", {"reason": "quantifier-empty"}),
        ("ORDER BY at PATTERN (A{1001})", "{1001}", {"reason": "repeats-max"}),
        ("ORDER BY at PATTERN (A{})", "}", {"reason": "quantifier-without-number"}),
        ("ORDER BY at PATTERN (A B++)", "+", {"reason": "two-quantifiers"}),
        ("ORDER BY at PATTERN (* A)", "*", {"reason": "quantifier-without-variable"}),
        ("ORDER BY at PATTERN (A | )", ")", {"reason": "variable-missing"}),
        ("ORDER BY at PATTERN (A & B)", "&", {"reason": "unexpected-sign"}),
        ("ORDER BY at PATTERN ({- A)", "{-", {"reason": "not-closed"}),
        ("ORDER BY at PATTERN (PERMUTE(A, B, C, D, E, F, G))", "PERMUTE", {"reason": "permute-parts-max"}),
        ("ORDER BY at PATTERN (A) EMIT TIMEOUTS", "EMIT", {"reason": "timeouts-without-within"}),
        (
            "ORDER BY at ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (A {- B -})",
            "{- B -}",
            {"reason": "unmatched-with-exclusion"},
        ),
        ("ORDER BY at PATTERN (A) MEASURES y AS z", "MEASURES", {"reason": "clause-order"}),
        ("ORDER BY at PATTERN (A) WITHIN DEFINE A AS x", "DEFINE", {"expected": "an expression"}),
        ("ORDER BY PATTERN (A)", "PATTERN", {"expected": "an expression"}),
    ],
)
def test_refusals_underline_what_is_wrong(clause: str, part: str, facts: dict[str, str]) -> None:
    statement = f"CREATE MATERIALIZED VIEW v AS\nSELECT * FROM t MATCH_RECOGNIZE ({clause})"
    query = QueryText(statement.split("\n")[1], statement.index("SELECT"), statement)
    with raises(StatementError, **facts) as caught:
        read_match(query, *match_places(query.text))
    _, line, marks = str(caught.value.detail).splitlines()[:3]
    start = marks.index("^")
    assert line[start : start + marks.count("^")] == part
    assert str(caught.value.detail).startswith("line 2")
