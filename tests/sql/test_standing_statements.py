"""Statements about standing queries, and the conditions of SQL that can be stored as one."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import HeadwaterError, QueryError, SchemaError, StatementError, UsageError
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.query_index import QueryIndex
from headwater.operators.percolator.query_nodes import ParsedQuery
from headwater.plan.percolator.sql_predicates import check_predicate, holds, necessary
from headwater.plan.percolator.stored_query import StoredQueryReader
from headwater.sql.parser import parse
from headwater.sql.standing_statements import (
    CreateStanding,
    DropStanding,
    ShowStanding,
    StandingDefinition,
    parse_standing,
)
from tests.raising import raises

SCHEMA = pa.schema(
    [
        ("title", pa.string()),
        ("body", pa.string()),
        ("price", pa.float64()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("paid", pa.bool_()),
    ]
)


def created(text: str) -> StandingDefinition:
    (statement,) = parse(text)
    assert isinstance(statement, CreateStanding)
    return statement.standing


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE STANDING QUERY news ON articles",
        "CREATE OR REPLACE STANDING QUERY news ON articles (title, `a body`)",
        "CREATE STANDING QUERY IF NOT EXISTS news ON articles (title) WITH (language = 'english', accents = FALSE)",
        "CREATE STANDING QUERY news ON a WITH (show = 'url, title', backfill = FALSE, allow_scans = TRUE)",
        "CREATE STANDING QUERY news ON a WITH (queries = 'wishes', text = 'title', operator = 'and')",
    ],
)
def test_what_is_asked_for_is_read_back_from_the_query_of_the_view(statement: str) -> None:
    standing = created(statement)
    assert parse_standing(standing.sql) == standing
    assert standing.queries == ("wishes" if "wishes" in statement else "news_queries")


def test_a_select_is_no_view_of_matches() -> None:
    assert parse_standing("SELECT * FROM news") is None


def test_they_are_dropped_and_shown() -> None:
    assert parse("DROP STANDING QUERY IF EXISTS news CASCADE; SHOW STANDING QUERIES") == [
        DropStanding("news", if_exists=True, cascade=True),
        ShowStanding(),
    ]


@pytest.mark.parametrize(
    ("statement", "facts", "marked"),
    [
        ("CREATE STANDING QUERY news articles", {"expected": "ON"}, "articles"),
        ("CREATE STANDING QUERY news ON a WITH (langage = 'x')", {"option": "langage"}, "langage"),
        (
            "CREATE STANDING QUERY news ON a WITH (operator = 'x')",
            {"option": "operator", "value": "x"},
            "WITH",
        ),
        (
            "CREATE STANDING QUERY news ON a WITH (backfill = '7 days')",
            {"option": "backfill", "value": "7 days"},
            "WITH",
        ),
        ("CREATE STANDING QUERY 1news ON a", {"expected": "a name", "found": "1news"}, "1news"),
        ("CREATE STANDING QUERY news ON a b", {"reason": "not-at-end", "found": "b"}, "b"),
    ],
)
def test_a_mistake_is_underlined(statement: str, facts: dict[str, str], marked: str) -> None:
    with raises(StatementError, **facts) as refused:
        parse(statement)
    assert refused.value.facts["column"] == statement.index(marked) + 1


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("price < ", 8, "incomplete"),
        ("price < AND n", 9, "not-a-condition"),
        ("n = 1 AND pric < 3", 11, "unknown-column"),
        ("n IN (SELECT 1)", 7, "subquery"),
        ("1 = 1) OR (1 = 1", 1, "not-a-condition"),
        ("price = 3 GROUP BY n", 11, "not-a-condition"),
        ("soundex(title) = 'S'", 1, "not-supported"),
        ("price", 1, "not-supported"),
    ],
)
def test_a_condition_that_cannot_be_asked_is_underlined(text: str, column: int, reason: str) -> None:
    with raises(StatementError, reason=reason, column=column):
        check_predicate(text, SCHEMA)


def document(choice: random.Random) -> dict[str, Any]:
    words = ("ash", "birch", "Cedar tree", "")
    made = {
        "title": choice.choice(words),
        "body": choice.choice(words),
        "price": choice.choice((0.1, 1.0, 2.5, float("nan"), -0.0)),
        "n": choice.randint(-2, 3),
        "at": dt.datetime(2026, 1, choice.randint(1, 3), tzinfo=dt.UTC),
        "day": dt.date(2026, 1, choice.randint(1, 3)),
        "paid": choice.choice((True, False)),
    }
    return {name: None if choice.random() < 0.1 else value for name, value in made.items()}


def condition(choice: random.Random, depth: int = 2) -> str:
    if depth and choice.random() < 0.6:
        one, other = condition(choice, depth - 1), condition(choice, depth - 1)
        return choice.choice((f"{one} AND {other}", f"({one} OR {other})", f"NOT ({one})"))
    return choice.choice(
        (
            f"price {choice.choice(('<', '<=', '=', '>=', '>'))} {choice.choice(('0.1', '1', '2.5', '-0.0'))}",
            f"{choice.randint(-2, 3)} {choice.choice(('<', '<=', '=', '>=', '>'))} n",
            f"n BETWEEN {choice.randint(-3, 0)} AND {choice.randint(0, 3)}",
            f"n IN ({choice.randint(-2, 3)}, {choice.randint(-2, 3)})",
            f"title = '{choice.choice(('ash', 'Cedar tree', 'Ash', ''))}'",
            "title IN ('ash', 'birch')",
            "title LIKE '%r%'",
            f"at >= TIMESTAMP '2026-01-0{choice.randint(1, 3)} 00:00:00'",
            f"day < DATE '2026-01-0{choice.randint(1, 3)}'",
            "paid = TRUE",
            "body IS NULL",
            "title < body",
            "10 / n > 2",
        )
    )


@given(st.integers(0, 1 << 32))
def test_the_index_leaves_out_no_document_that_meets_a_condition(seed: int) -> None:
    choice = random.Random(seed)
    text = condition(choice)
    documents = pa.Table.from_pylist([document(choice) for _ in range(6)], schema=SCHEMA)
    check_predicate(text, SCHEMA)
    fields = Fields.of(SCHEMA)
    asked = np.concatenate([holds(text, documents.slice(i, 1)) for i in range(documents.num_rows)])
    assert holds(text, documents).tolist() == asked.tolist()
    index = QueryIndex(fields, lambda asked, d: [holds(str(t), d.take(pa.array(rows))) for t, rows in asked])
    index.put("it", ParsedQuery.of_predicate(text, text, necessary(text, fields)))
    assert index.match(documents).column("row").to_pylist() == np.flatnonzero(asked).tolist()


def reader(**options: Any) -> StoredQueryReader:
    return StoredQueryReader(StandingDefinition("articles", "news_queries", **options), SCHEMA, ())


def test_a_query_that_every_document_would_be_held_against_is_refused_unless_it_is_allowed() -> None:
    for text, kind in (("*:*", "lucene"), ("NOT job", "lucene"), ("length(title) > 3", "sql")):
        with raises(StatementError, reason="needs-scan"):
            reader().query(text, kind)
        assert reader().query(text, kind, allow_scans=True).scans
        assert reader(allow_scans=True).query(text, kind).scans


@pytest.mark.parametrize(
    ("record", "kind", "facts"),
    [
        ({"query": "title:("}, QueryError, {"reason": "not-closed"}),
        ({"query": "  "}, UsageError, {"reason": "empty-query"}),
        ({"query": None}, UsageError, {"reason": "empty-query"}),
        ({"query": "ash", "kind": "regex"}, UsageError, {"reason": "unknown-kind", "kind": "regex"}),
        ({"query": "ash", "backfill": "a week"}, UsageError, {"value": "a week"}),
        ({"query": "ash", "backfill": "0 s"}, UsageError, {"backfill": "0 s"}),
    ],
)
def test_a_record_that_cannot_be_understood_is_an_error(
    record: dict[str, Any], kind: type[HeadwaterError], facts: dict[str, Any]
) -> None:
    whole = {"id": "p", "kind": None, "owner": None, "backfill": None, "allow_scans": None} | record
    with raises(kind, **facts):
        reader().stored(whole)


def test_columns_that_are_not_there_are_refused() -> None:
    for options in ({"fields": ("titel",)}, {"text": ("titel",)}, {"show": ("titel",)}):
        with raises(SchemaError, topic="articles", name="titel"):
            reader(**options)
    with raises(UsageError, language="klingon"):
        reader(language="klingon")


def test_what_was_checked_is_not_read_again_when_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StoredQueryReader(created("CREATE STANDING QUERY news ON articles"), SCHEMA, ())
    calls: list[str] = []
    read = reader.query

    def counted(text: str, *rest: Any, **options: Any) -> ParsedQuery:
        calls.append(text)
        return read(text, *rest, **options)

    monkeypatch.setattr(reader, "query", counted)
    asked = {"kind": None, "owner": None, "backfill": None, "allow_scans": None}
    records = [{"id": str(n), "query": f"spark n:{n}", **asked} for n in range(5)]
    for record in records:
        reader.check(record)
    assert [reader.stored(record).query.text for record in records] == calls
    assert len(calls) == 5
    with pytest.raises(StatementError):
        reader.check({"id": "x", "query": "(", **asked})
    monkeypatch.setattr("headwater.plan.percolator.stored_query._REMEMBERED_MAX", 2)
    for record in records:
        reader.check(record)
    assert len(reader._checked) <= 2
