"""What standing queries mean, by example: which documents meet them, what they score, and what is highlighted."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.core.text_analysis import Analysis
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.lucene_syntax import parse
from headwater.operators.percolator.query_index import QueryIndex
from headwater.operators.percolator.query_nodes import ParsedQuery

SCHEMA = pa.schema(
    [
        ("title", pa.string()),
        ("body", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("country", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
FIELDS = Fields.of(SCHEMA, text=["title", "body", "tags"], analysis=Analysis("english"))
NEWS: list[dict[str, Any]] = [
    {
        "title": "Spark streams, and streams",
        "body": "Change of data, captured. A stream job?",
        "tags": ["wi-fi", "big data"],
        "country": "DE",
        "price": 10.0,
        "at": dt.datetime(2024, 1, 1, 10, 30, tzinfo=dt.UTC),
    },
    {"title": "Flink change data spark streaming", "body": None, "price": 9.5},
]


def answers(text: str, rows: list[dict[str, Any]] = NEWS) -> dict[int, float]:
    index = QueryIndex(FIELDS)
    index.put("q", parse(text, FIELDS))
    found = index.match(pa.Table.from_pylist(rows, schema=SCHEMA))
    return dict(zip(found.column("row").to_pylist(), found.column("score").to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('title:spark AND (stream* OR "change data") AND NOT job', {1: 3.0}),
        ("spark", {0: 1.0, 1: 1.0}),
        ("title:stream", {0: 2.2 * 2 / 3.2, 1: 1.0}),
        ("title:stream^3", {0: 3 * (2.2 * 2 / 3.2), 1: 3.0}),
        ("title:stream^0", {0: 0.0, 1: 0.0}),
        ('"data change"', {}),
        ('"data change"~1', {}),
        ('"data change"~2', {1: 1.0}),
        ('"change data"~1', {0: 1.0, 1: 1.0}),
        ('tags:"fi big"', {}),
        ('tags:"fi big"~1', {0: 1.0}),
        ("tags:wi-fi", {0: 1.0}),
        ("spork~1", {0: 1.0, 1: 1.0}),
        ("sprak~1", {0: 1.0, 1: 1.0}),
        ("skarp~1", {}),
        ("streamin*", {1: 1.0}),
        ("title:streaming", {0: 2.2 * 2 / 3.2, 1: 1.0}),
        ("price:>=10", {0: 1.0}),
        ("price:[9 TO 10}", {1: 1.0}),
        ("at:2024-01-01", {0: 1.0}),
        ("at:>2024-01-01", {}),
        ("country:DE", {0: 1.0}),
        ("country:de", {}),
        ("country:[A TO F]", {0: 1.0}),
        ("body:*", {0: 1.0}),
        ("NOT job", {1: 0.0}),
        ("+spark job", {0: 2.0, 1: 1.0}),
        ("spark -job", {1: 1.0}),
        ("*:*", {0: 1.0, 1: 1.0}),
    ],
)
def test_a_query_meets_and_scores(text: str, rows: dict[int, float]) -> None:
    assert answers(text) == rows


def test_the_deepest_query_means_what_it_says() -> None:
    """Each level is three: clauses beside each other, with OR between, with AND between."""
    text = "spark"
    for level in range(50):
        text = (
            f"(zz{level} -yy xx OR flink AND title:{text})"
            if level % 2
            else f"(zz{level} ww OR spark AND {text})"
        )
    assert answers(text) == {1: 51.0}
    assert answers(text.replace("flink", "kafka")) == {}


def test_highlights_are_the_words_that_were_found() -> None:
    index = QueryIndex(FIELDS)
    text = 'stream* "data captured" tags:data country:D* NOT kafka price:10'
    index.put("q", parse(text, FIELDS))
    (found,) = index.match(pa.Table.from_pylist(NEWS[:1], schema=SCHEMA)).to_pylist()
    row = NEWS[0]
    marked = []
    for mark in found["highlights"]:
        value = row[mark["field"]]
        value = value[mark["item"]] if isinstance(value, list) else value
        marked.append((mark["field"], mark["item"], value[mark["start"] : mark["end"]]))
    assert marked == [
        ("title", 0, "streams"),
        ("title", 0, "streams"),
        ("body", 0, "data"),
        ("body", 0, "captured"),
        ("body", 0, "stream"),
        ("tags", 1, "data"),
        ("country", 0, "DE"),
    ]


def test_highlights_are_characters_of_the_text_whatever_was_folded_or_reduced() -> None:
    fields = Fields.of(SCHEMA, text=["title"], analysis=Analysis("french", accents=False))
    text = "😀 Les GÉNÉRALES, l’Œuvre: idées générales"
    index = QueryIndex(fields)
    for query in ("general", "oeuvre", '"idee general"', "gén*", "generalex~1", '"generales oeuvre"~2'):
        index.put(query, parse(query, fields))
    found = index.match(pa.Table.from_pylist([{"title": text}], schema=SCHEMA)).to_pylist()
    marked = {one["query"]: [text[h["start"] : h["end"]] for h in one["highlights"]] for one in found}
    assert marked == {
        "general": ["GÉNÉRALES", "générales"],
        "oeuvre": ["Œuvre"],
        '"idee general"': ["idées", "générales"],
        "gén*": ["GÉNÉRALES", "générales"],
        "generalex~1": ["GÉNÉRALES", "générales"],
        '"generales oeuvre"~2': ["GÉNÉRALES", "Œuvre"],
    }


def test_a_document_meets_the_queries_of_its_time() -> None:
    index = QueryIndex(FIELDS)
    index.put("a", parse("spark", FIELDS), since=10)
    index.put("a", parse("flink", FIELDS), since=20)
    index.remove("a", until=30)
    rows = pa.Table.from_pylist([NEWS[0], NEWS[1]] * 4, schema=SCHEMA)
    at = np.array([9, 9, 10, 19, 20, 20, 30, 30])
    assert index.match(rows, at).column("row").to_pylist() == [2, 3, 5]
    index.forget(20)
    assert index.match(rows.slice(4), at[4:]).column("row").to_pylist() == [1]
    assert index.match(rows).num_rows == 0


def test_predicates_are_asked_once_a_batch_and_only_of_what_is_left() -> None:
    calls = []

    def holds(asked: Any, rows: pa.Table) -> list[Any]:
        calls.append([(payload, its.tolist()) for payload, its in asked])
        return [np.array([payload == "yes"] * len(its)) for payload, its in asked]

    index = QueryIndex(FIELDS, holds)
    index.put(
        "cheap",
        ParsedQuery.of_predicate("price < 10", "yes", [FIELDS.between("price", None, 10, high_in=False)]),
    )
    index.put("german", ParsedQuery.of_predicate("country = 'DE'", "no", [FIELDS.equals("country", "DE")]))
    index.put("all", ParsedQuery.of_predicate("length(title) > 0", "yes", []))
    found = (
        index.match(pa.Table.from_pylist(NEWS, schema=SCHEMA)).select(["query", "row", "score"]).to_pylist()
    )
    assert [tuple(match.values()) for match in found] == [("all", 0, 1.0), ("all", 1, 1.0), ("cheap", 1, 1.0)]
    assert calls == [[("yes", [1]), ("no", [0]), ("yes", [0, 1])]]
