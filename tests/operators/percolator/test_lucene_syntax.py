"""Lucene's syntax: what every form means, and what is refused, with where the mistake is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import QueryError
from headwater.core.text_analysis import Analysis
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.lucene_syntax import Parser, parse
from headwater.operators.percolator.query_nodes import (
    HIGHEST,
    LOWEST,
    Clauses,
    Everything,
    Fuzzy,
    KeywordRange,
    Node,
    ParsedQuery,
    Pattern,
    Phrase,
    Present,
    RangeQuery,
    Term,
)
from tests.raising import raises

SCHEMA = pa.schema(
    [
        ("title", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ok", pa.bool_()),
        ("country", pa.string()),
    ]
)
FIELDS = Fields.of(SCHEMA, text=["title"])
A, B, C = Term("title", "a"), Term("title", "b"), Term("title", "c")
HOUR_US = 3_600_000_000
NEW_YEAR_US = 1_704_067_200_000_000


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("a", A),
        ("Title", Term("title", "title")),
        ("title:a", A),
        ("a b", Clauses(should=(A, B))),
        ("a OR b", Clauses(should=(A, B))),
        ("a || b", Clauses(should=(A, B))),
        ("a AND b", Clauses(must=(A, B))),
        ("a && b", Clauses(must=(A, B))),
        ("a AND b OR c", Clauses(should=(Clauses(must=(A, B)), C))),
        ("a OR b AND c", Clauses(should=(A, Clauses(must=(B, C))))),
        ("a AND (b OR c)", Clauses(must=(A, Clauses(should=(B, C))))),
        ("a AND NOT b", Clauses(must=(A,), must_not=(B,))),
        ("a AND !b", Clauses(must=(A,), must_not=(B,))),
        ("a AND -b", Clauses(must=(A,), must_not=(B,))),
        ("a -b", Clauses(should=(A,), must_not=(B,))),
        ("a NOT b", Clauses(should=(A,), must_not=(B,))),
        ("+a b -c", Clauses(must=(A,), should=(B,), must_not=(C,))),
        ("NOT a", Clauses(must_not=(A,))),
        ("a OR NOT b", Clauses(should=(A, Clauses(must_not=(B,))))),
        ("((a))", A),
        ("title:(a b)", Clauses(should=(A, B))),
        ("country:(DE OR FR)", Clauses(should=(Term("country", "DE"), Term("country", "FR")))),
        ("a^2", Term("title", "a", 2.0)),
        ("(a b^3)^2", Clauses(should=(Term("title", "a", 2.0), Term("title", "b", 6.0)))),
        ('"a b"', Phrase("title", ("a", "b"), (0, 1))),
        ('"a b"~3', Phrase("title", ("a", "b"), (0, 1), 3)),
        ('"a b"~3^2', Phrase("title", ("a", "b"), (0, 1), 3, 2.0)),
        ('"a"', A),
        ('"a ' + "x" * 40 + ' b"', Phrase("title", ("a", "b"), (0, 2))),
        ("wi-fi", Phrase("title", ("wi", "fi"), (0, 1))),
        ("it's", Phrase("title", ("it", "s"), (0, 1))),
        ("AB*", Pattern("title", "ab*")),
        ("s?r*m", Pattern("title", "s?r*m")),
        ("*m", Pattern("title", "*m")),
        ("title:*", Present("title")),
        ("country:a\\*b*", Pattern("country", "a\\*b*")),
        ("country:a\\*", Term("country", "a*")),
        ('country:"a b"', Term("country", "a b")),
        ("country:a\\ b", Term("country", "a b")),
        ("Spork~", Fuzzy("title", "spork", 2)),
        ("spork~1", Fuzzy("title", "spork", 1)),
        ("*:*", Everything()),
        ("*:*^2", Everything(2.0)),
        ("\\AND", Term("title", "and")),
        ('"AND"', Term("title", "and")),
        ("a NOT TO", Clauses(should=(A,), must_not=(Term("title", "to"),))),
        ("a and b", Clauses(should=(A, Term("title", "and"), B))),
        ("a\u3000AND\tb\n", Clauses(must=(A, B))),
        ("a&&b", Phrase("title", ("a", "b"), (0, 1))),
        ("(a AND b)c", Clauses(should=(Clauses(must=(A, B)), C))),
        ("-(a b) c", Clauses(should=(C,), must_not=(Clauses(should=(A, B)),))),
        ("NOT (a AND b)^2", Clauses(must_not=(Clauses((Term("title", "a", 2.0), Term("title", "b", 2.0))),))),
        ("title:(+a -b)", Clauses(must=(A,), must_not=(B,))),
        ("country:(title:a DE)", Clauses(should=(A, Term("country", "DE")))),
        ('"a\\" b"', Phrase("title", ("a", "b"), (0, 1))),
        ('country:"a\\"b"', Term("country", 'a"b')),
        ("\\(1\\+1\\)\\:2", Phrase("title", ("1", "1", "2"), (0, 1, 2))),
        ("日本語", Term("title", "日本語")),
        ("ÉTÉ", Term("title", "été")),
        ("n:5", RangeQuery("n", 5, 5)),
        ("n:-5", RangeQuery("n", -5, -5)),
        ("n:[1 TO 5]", RangeQuery("n", 1, 5)),
        ("n:{1 TO 5}", RangeQuery("n", 2, 4)),
        ("n:[1.5 TO 4.5]", RangeQuery("n", 2, 4)),
        ("n:{1.5 TO 4.5}", RangeQuery("n", 2, 4)),
        ("n:[* TO 5}", RangeQuery("n", LOWEST, 4)),
        ("n:>=3", RangeQuery("n", 3, HIGHEST)),
        ("n:>3", RangeQuery("n", 4, HIGHEST)),
        ("n:<3", RangeQuery("n", LOWEST, 2)),
        ("n:<=-3", RangeQuery("n", LOWEST, -3)),
        ("n:=3", RangeQuery("n", 3, 3)),
        ("n:2.5", RangeQuery("n", HIGHEST, LOWEST)),
        ("n:>1e30", RangeQuery("n", HIGHEST, LOWEST)),
        ("n:<1e30", RangeQuery("n")),
        ("n:(1 OR >=7)", Clauses(should=(RangeQuery("n", 1, 1), RangeQuery("n", 7, HIGHEST)))),
        ("n:*", Present("n")),
        ("price:12.5", RangeQuery("price", 1250, 1250)),
        ("price:{12.499 TO 13]", RangeQuery("price", 1250, 1300)),
        ("ok:true", RangeQuery("ok", 1, 1)),
        ("day:2024-01-01", RangeQuery("day", 19723, 19723)),
        ("day:2024-01", RangeQuery("day", 19723, 19753)),
        ("day:[2024-01-01 TO 2024-01-03}", RangeQuery("day", 19723, 19724)),
        ("at:2024-01-01", RangeQuery("at", NEW_YEAR_US, NEW_YEAR_US + 24 * HOUR_US - 1)),
        ("at:>2024-01-01", RangeQuery("at", NEW_YEAR_US + 24 * HOUR_US, HIGHEST)),
        ("at:<=2024-01-01T00:00:00.5Z", RangeQuery("at", LOWEST, NEW_YEAR_US + 599_999)),
        ("at:[2024-01-01T02:00:00+02:00 TO *]", RangeQuery("at", NEW_YEAR_US, HIGHEST)),
        ('at:["2024-01-01 01:00" TO *]', RangeQuery("at", NEW_YEAR_US + HOUR_US, HIGHEST)),
        ("country:[A TO F}", KeywordRange("country", "A", "F", high_in=False)),
        ("country:>=B", KeywordRange("country", "B", None, high_in=False)),
    ],
)
def test_what_is_written_is_what_is_asked(text: str, node: Node) -> None:
    assert parse(text, FIELDS) == ParsedQuery(text, node)


@pytest.mark.parametrize(
    ("text", "part", "facts"),
    [
        ("", "", {"reason": "empty-query"}),
        ("  ", "  ", {"reason": "empty-query"}),
        ("titel:x", "titel", {"reason": "unknown-field", "field": "titel"}),
        ('a "abc', '"', {"reason": "not-closed"}),
        ("a (b c", "(", {"reason": "not-closed"}),
        ("ab)", ")", {"reason": "not-opened"}),
        ("a AND", "AND", {"reason": "operand-missing"}),
        ("a AND )", "AND", {"reason": "operand-missing"}),
        ("OR b", "OR", {"reason": "operand-missing"}),
        ("a && && b", "&&", {"reason": "operand-missing"}),
        ("a OR +b", "+", {"reason": "required-in-or"}),
        ("a -", "-", {"reason": "operand-missing"}),
        ("a NOT", "NOT", {"reason": "operand-missing"}),
        ("(a NOT)", "NOT", {"reason": "operand-missing"}),
        ("a -\tb", "-", {"reason": "operand-missing"}),
        ("+-a", "+", {"reason": "operand-missing"}),
        ("a AND OR b", "OR", {"reason": "operand-missing"}),
        ("x" * 40, "x" * 40, {"reason": "no-word"}),
        ("a \ud83d", "\ud83d", {"reason": "surrogate"}),
        ("title::a", ":", {"reason": "unexpected-character"}),
        ("a^2^3", "^2^3", {"reason": "boost"}),
        ("n:[1 to 2]", "to", {"reason": "range-without-to"}),
        ("n:1,000", "1,000", {"reason": "field-value", "field": "n"}),
        ("at:[NOW-7DAYS TO NOW]", "NOW-7DAYS", {"reason": "field-value", "field": "at"}),
        ("title:/x/ a", "/x/", {"reason": "regular-expression"}),
        ("NOT NOT a", "NOT", {"reason": "operand-missing"}),
        ("a ()", "()", {"reason": "empty-parentheses"}),
        ("title:", "title:", {"reason": "value-missing"}),
        (":a", ":", {"reason": "unexpected-character"}),
        ("a ~", "~", {"reason": "unexpected-character"}),
        ("spark~3", "~3", {"reason": "number"}),
        ("spark~0.8", "~0.8", {"reason": "number"}),
        ("spar*~1", "spar*~", {"reason": "fuzzy-pattern"}),
        ('"a b"~x', "~x", {"reason": "number"}),
        ("a^x", "^x", {"reason": "boost"}),
        ("a^-1", "^-1", {"reason": "boost"}),
        ("a^nan", "^nan", {"reason": "boost"}),
        ("/re+/", "/re+/", {"reason": "regular-expression"}),
        ("wi-f*", "wi-f*", {"reason": "not-a-word"}),
        ("...", "...", {"reason": "no-word"}),
        ('"..."', '"..."', {"reason": "no-word"}),
        ("a \\", "\\", {"reason": "escape"}),
        ("ti*:a", "ti*", {"reason": "field-pattern"}),
        ("*:a", "*", {"reason": "field-pattern"}),
        ("n:abc", "abc", {"reason": "field-value", "field": "n"}),
        ("n:nan", "nan", {"reason": "field-value", "field": "n"}),
        ("n:1*", "1*", {"reason": "pattern-on-number", "field": "n"}),
        ("n:[1 TO x]", "x", {"reason": "field-value", "field": "n"}),
        ("n:[1 2]", "2", {"reason": "range-without-to"}),
        ("n:[1 TO", "[", {"reason": "not-closed"}),
        ("n:[1 TO 2 3]", "[", {"reason": "not-closed"}),
        ("n:[TO 2]", "2", {"reason": "range-without-to"}),
        ("n:[5 TO 1]", "[5 TO 1]", {"reason": "empty-range"}),
        ("n:>", ">", {"reason": "value-missing"}),
        ("title:[a TO b]", "[a TO b]", {"reason": "range-on-text", "field": "title"}),
        ("ok:maybe", "maybe", {"reason": "field-value", "field": "ok"}),
        ("at:2024-13-01", "2024-13-01", {"reason": "field-value", "field": "at"}),
        ("at:yesterday", "yesterday", {"reason": "field-value", "field": "at"}),
        ("day:2024-01-01T10:00", "2024-01-01T10:00", {"reason": "field-value", "field": "day"}),
    ],
)
def test_a_mistake_is_refused_where_it_is(text: str, part: str, facts: dict[str, str]) -> None:
    with raises(QueryError, **facts) as refused:
        parse(text, FIELDS)
    assert text[refused.value.facts["start"] : refused.value.facts["end"]] == part


def test_a_mistake_is_underlined() -> None:
    with pytest.raises(QueryError) as refused:
        parse("a AND\ntitel:spark", FIELDS)
    assert str(refused.value) == (
        "there is no field 'titel'\n"
        "  detail: line 2, column 1\n    titel:spark\n    ^^^^^\n"
        "  hint: did you mean title?"
    )


def test_words_without_a_field_are_looked_for_in_all_that_are_searched() -> None:
    fields = Fields.of(SCHEMA, text=["title", "country"])
    assert parse("a", fields).node == Clauses(should=(A, Term("country", "a")))


def test_and_can_be_what_is_meant_between_clauses() -> None:
    assert parse("a b -c", FIELDS, "and").node == Clauses(must=(A, B), must_not=(C,))


def test_terms_are_stems_and_patterns_are_not() -> None:
    fields = Fields.of(SCHEMA, text=["title"], analysis=Analysis("english", accents=False))
    assert parse("Cafés", fields).node == Term("title", "cafe")
    assert parse("Streaming*", fields).node == Pattern("title", "streaming*")
    assert parse("Café~1", fields).node == Fuzzy("title", "cafe", 1)


@pytest.mark.parametrize(
    ("text", "scans"),
    [
        ("a", False),
        ("a b", False),
        ("a AND NOT b", False),
        ("*:*", True),
        ("title:*", True),
        ("NOT a", True),
        ("a OR NOT b", True),
        ("a OR *:*", True),
        ("a AND *:*", False),
        ("+*:* a", True),
        ("*b*", False),
        ("country:???", True),
        ("n:[* TO *]", True),
        ("n:>5", False),
        ("a AND (b OR NOT c)", False),
        ("NOT (a AND b)", True),
    ],
)
def test_a_query_that_nothing_selects_is_known(text: str, scans: bool) -> None:
    assert parse(text, FIELDS).scans is scans


def test_queries_are_bounded() -> None:
    parse("(" * 50 + "a" + ")" * 50, FIELDS)
    with raises(QueryError, reason="nested-too-deeply"):
        parse("(" * 51 + "a" + ")" * 51, FIELDS)
    parse(" ".join(["a"] * 1024), FIELDS)
    with raises(QueryError, reason="too-many-terms"):
        parse(" ".join(["a"] * 1025), FIELDS)


def test_a_parser_that_is_kept_reads_as_a_new_one() -> None:
    """Words are remembered by what they ask, and by the fields that they are asked of."""
    parser = Parser(Fields.of(SCHEMA, text=["title", "country"]))
    for text in ("a b", "title:a", "country:a b", "(a b)^2", "a^2 a", "a b", "title:(a b) a"):
        assert parser.parse(text) == parse(text, parser.fields)


@given(st.text(alphabet='ab n:*?~^()[]{}"\\\\+-!&|/<>=TO AND OR NOT 12', max_size=24))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        parse(text, FIELDS)
    except QueryError as refused:
        start, end = refused.facts["start"], refused.facts["end"]
        assert 0 <= start <= end <= max(len(text), 1)
