"""The index answers as the plain meaning of every query does, whatever is put, replaced, removed and forgotten in between."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Hashable, Sequence
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.text_analysis import Analysis, Lexicon
from headwater.operators.percolator import evaluation, query_reference, term_patterns
from headwater.operators.percolator.fields import Fields, range_of
from headwater.operators.percolator.lucene_syntax import parse
from headwater.operators.percolator.query_index import MATCHES, Asked, QueryIndex
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
    Term,
)

EXAMPLES = 500 if os.environ.get("HEADWATER_LONG") else 25

SCHEMA = pa.schema(
    [
        ("title", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("country", pa.string()),
        ("labels", pa.list_(pa.string())),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ok", pa.bool_()),
    ]
)
FIELDS = Fields.of(SCHEMA, text=["title", "tags"], analysis=Analysis("english", accents=False))
TEXTS, KEYWORDS, ORDERED = ("title", "tags"), ("country", "labels"), ("n", "x", "price", "day", "at", "ok")

WORDS = [
    "spark",
    "sparks",
    "Spork",
    "stream",
    "streaming",
    "data",
    "Datas",
    "café",
    "cafe",
    "a",
    "ab",
    "abc",
    "नमस्ते",
    "x" * 45,
]
TERMS = ["spark", "stream", "data", "cafe", "a", "ab", "abc", "spork", "नमस"]
CODES = ["DE", "de", "DEU", "FR", "", "a b", "spark"]
PATTERNS = ["s*", "spa*", "*k", "s?ark", "*tre*", "*a*", "?", "a*c", "??", "d*a", "*ream?", "st*m*g"]
PLACES = [*range(-3, 4), LOWEST, HIGHEST, 19_723, 19_725, 1_704_067_200_000_000, 4_609_434_218_613_702_656]
FLOATS = [-1.5, -0.0, 0.0, 1.5, float("nan"), float("inf")]


def maybe(random: Random, value: Any) -> Any:
    return None if random.random() < 0.15 else value


def text(random: Random) -> str:
    return "".join(
        random.choice(WORDS) + random.choice([" ", "-", ", ", "…"]) for _ in range(random.randint(0, 9))
    )


def document(random: Random) -> dict[str, Any]:
    values = {
        "title": text(random),
        "tags": [maybe(random, text(random)) for _ in range(random.randint(0, 3))],
        "country": random.choice(CODES),
        "labels": [maybe(random, random.choice(CODES)) for _ in range(random.randint(0, 3))],
        "n": random.randint(-3, 3),
        "x": random.choice(FLOATS),
        "price": Decimal(random.randint(-3, 3)).scaleb(-2),
        "day": dt.date(2024, 1, random.randint(1, 5)),
        "at": dt.datetime(2024, 1, random.randint(1, 3), tzinfo=dt.UTC),
        "ok": random.random() < 0.5,
    }
    return {name: maybe(random, value) for name, value in values.items()}


def leaf(random: Random) -> Node:
    boost = random.choice([1.0, 1.0, 2.0, 0.3, 0.0])
    texts, strings = random.choice(TEXTS), random.choice(TEXTS + KEYWORDS)
    match random.randint(0, 9):
        case 0 | 1:
            return Term(texts, random.choice(TERMS), boost)
        case 2:
            return Term(random.choice(KEYWORDS), random.choice(CODES), boost)
        case 3 | 4:
            terms = tuple(random.choice(TERMS[:6]) for _ in range(random.randint(2, 3)))
            places = random.choice([(0, 1, 2), (0, 1, 2), (0, 2, 3), (0, 1, 3)])[: len(terms)]
            return Phrase(texts, terms, places, random.randint(0, 4), boost)
        case 5:
            return Pattern(strings, random.choice(PATTERNS), boost)
        case 6:
            return Fuzzy(strings, random.choice(TERMS), random.randint(0, 2), boost)
        case 7:
            low, high = (maybe(random, random.choice(CODES)) for _ in range(2))
            return KeywordRange(
                random.choice(KEYWORDS), low, high, random.random() < 0.5, random.random() < 0.5, boost
            )
        case 8:
            return range_of(random.choice(ORDERED), *sorted(random.choice(PLACES) for _ in range(2)))
        case _:
            names = TEXTS + KEYWORDS + ORDERED
            others: tuple[Node, ...] = (
                Present(random.choice(names), boost),
                Everything(boost),
                range_of("n", 1, 1),
            )
            return others[random.randint(0, 2)]


def tree(random: Random, depth: int) -> Node:
    if depth == 0 or random.random() < 0.3:
        return leaf(random)
    parts = [tuple(tree(random, depth - 1) for _ in range(random.choice(counts))) for counts in COUNTS]
    return Clauses(*parts)


COUNTS = ([0, 1, 1, 2], [0, 0, 1, 2, 3], [0, 0, 0, 1])


def query(random: Random) -> ParsedQuery:
    if random.random() < 0.15:
        return ParsedQuery.of_predicate(
            "", random.randint(0, 3), [leaf(random) for _ in range(random.randint(0, 1))]
        )
    return ParsedQuery("", tree(random, 3))


def holds(payload: Hashable, row: dict[str, Any]) -> bool:
    return bool(row["n"] is not None and row["n"] % 4 == payload)


def _holds_row(row: dict[str, Any], payload: Hashable) -> bool:
    return holds(payload, row)


def all_hold(asked: Asked, rows: pa.Table) -> Sequence[Any]:
    plain_rows = rows.to_pylist()
    return [np.array([holds(payload, plain_rows[row]) for row in its]) for payload, its in asked]


class Scanned:
    """Every version of every query, held against every document."""

    def __init__(self) -> None:
        self.versions: list[tuple[str, int, int, ParsedQuery]] = []

    def end(self, query_id: str, until: int) -> None:
        self.versions = [
            (one, since, until if one == query_id and ends == HIGHEST else ends, query)
            for one, since, ends, query in self.versions
        ]

    def match(self, rows: pa.Table, at: Sequence[int]) -> list[dict[str, Any]]:
        found = []
        shown = rows.to_pylist()
        for row, document in enumerate(query_reference.documents_of(FIELDS, rows)):
            for query_id, since, until, query in sorted(self.versions, key=lambda version: version[0]):
                if since <= at[row] < until:
                    match = query_reference.match(query, document, partial(_holds_row, shown[row]))
                    if match is not None:
                        marks = [
                            {
                                "field": FIELDS.columns[h.field].name,
                                "item": h.item,
                                "start": h.start,
                                "end": h.end,
                            }
                            for h in match.highlights
                        ]
                        found.append(
                            {"query": query_id, "row": row, "score": match.score, "highlights": marks}
                        )
        return found


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32 - 1))
def test_the_index_answers_as_a_scan_of_all_queries(seed: int) -> None:
    random = Random(seed)
    index, oracle = QueryIndex(FIELDS, all_hold), Scanned()
    now, kept = 10, 0
    for _ in range(40):
        now += random.choice([0, 0, 1])
        query_id, what = random.choice("abcdefghijklmnop"), random.random()
        if what < 0.7:
            asked = query(random)
            index.put(query_id, asked, now)
            oracle.end(query_id, now)
            oracle.versions.append((query_id, now, HIGHEST, asked))
        elif what < 0.8:
            index.remove(query_id, now)
            oracle.end(query_id, now)
        elif what < 0.85:
            kept = max(kept, now - random.randint(0, 3))
            index.forget(kept)
        else:
            rows = pa.Table.from_pylist(
                [document(random) for _ in range(random.randint(0, 9))], schema=SCHEMA
            )
            at = [random.randint(max(kept, 9), now + 1) for _ in range(rows.num_rows)]
            if random.random() < 0.7:
                answer = index.match(rows, np.array(at, dtype=np.int64))
            else:
                answer, at = index.match(rows), [HIGHEST - 1] * len(at)
            assert answer.schema == MATCHES
            assert answer.to_pylist() == oracle.match(rows, at)


def test_small_parts_answer_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are looked at in parts, fuzzy words sorted in, batches cut: all at once, and with bounds of almost nothing."""
    written = [
        "spark",
        "stream* OR title:spark",
        '"data stream"~2',
        "sperk~1",
        "n:[1 TO 5]",
        "*:*",
        "NOT spark",
        "n:3",
    ]
    written += [f"title:w{i} OR title:spark" for i in range(20)] + [f"wo{i}d~{i % 3}" for i in range(20)]
    rows = [{"title": f"spark w{i} data stream word{i}", "n": i % 7} for i in range(50)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)

    def answered() -> list[Any]:
        index = QueryIndex(FIELDS)
        for number, one in enumerate(written):
            index.put(f"{number:02}", parse(one, FIELDS))
            if number % 5 == 0:
                index.match(table.slice(0, 1))
        return list(index.match(table).to_pylist())

    whole = answered()
    monkeypatch.setattr(evaluation, "CANDIDATES_MAX", 7)
    monkeypatch.setattr(term_patterns, "RECENT_MAX", 3)
    monkeypatch.setattr("headwater.operators.percolator.query_index.Lexicon", partial(Lexicon, most=5))
    monkeypatch.setattr("headwater.operators.percolator.query_index.BATCH_ROWS", 7)
    monkeypatch.setattr("headwater.operators.percolator.query_index.WAITING_MAX", 3)
    assert answered() == whole
    assert len(whole) > 500


def test_what_is_removed_leaves_nothing() -> None:
    index = QueryIndex(FIELDS)
    table = pa.Table.from_pylist([{"title": "spark", "n": 1}], schema=SCHEMA)
    for number in range(40):
        index.put(
            str(number), parse(f'w{number} OR "a{number} b" OR p{number}* OR f{number}~1 OR spark', FIELDS)
        )
    assert index.match(table).num_rows == len(index) == 40
    for number in range(40):
        assert index.remove(str(number))
    assert not index.remove("0")
    assert index.match(table).num_rows == len(index) == 0
    atoms = index._atoms
    assert (any(atoms.terms), any(atoms.by_pattern), atoms.phrases) == (False, False, {})
    index.put("again", parse("spork~1", FIELDS))
    assert index.match(table).column("query").to_pylist() == ["again"]


def test_queries_that_cannot_match_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3,000 queries of all kinds a document is held against those that it has the rarest part of."""
    evaluated: list[int] = []

    def met(segment: Any, slot: Any, row: Any, batch: Any) -> Any:
        evaluated.append(len(slot))
        return evaluation.met(segment, slot, row, batch)

    index = QueryIndex(FIELDS)
    forms = [
        "common AND w{}",
        '"common w{}"',
        "w{}*",
        "w{}x~1 AND common",
        "n:{} AND common",
        "price:[{0}.5 TO {0}.7]",
    ]
    for number in range(3_000):
        index.put(str(number), parse(forms[number % len(forms)].format(number), FIELDS))
    rows = [
        {"title": "common words", "n": 4, "price": Decimal("5.6")},
        {"title": "common w7 w1200 rare"},
    ] * 50
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    index.match(table)
    monkeypatch.setattr("headwater.operators.percolator.query_index.met", met)
    matches = index.match(table)
    assert set(matches.column("query").to_pylist()) == {"4", "5", "7", "1200"}
    assert sum(evaluated) <= 3 * matches.num_rows


def test_a_query_that_never_holds_is_no_candidate() -> None:
    index = QueryIndex(FIELDS)
    index.put("never", parse("n:2.5 AND spark", FIELDS))
    index.put("point", parse("n:2", FIELDS))
    table = pa.Table.from_pylist([{"title": "spark", "n": 2}], schema=SCHEMA)
    assert index.match(table).column("query").to_pylist() == ["point"]
