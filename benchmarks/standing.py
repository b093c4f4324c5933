"""Documents against standing queries: how many a second, as the queries become a thousand times as many.

Documents have a hundred words, of a made-up vocabulary in which words are as unequally common as in a language. Queries
ask as people do, for words that are neither the most common nor unheard of: two or three of them, phrases, prefixes,
fuzzy words, and numbers beside them. tantivy, which has no standing queries, does what its users do instead: it indexes the
documents of a batch, and runs every query, parsed before, over them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import tantivy

from benchmarks.harness import Bench, Case
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.lucene_syntax import Parser
from headwater.operators.percolator.query_index import QueryIndex

TITLE = "Standing queries"

GOAL = 1_000.0
VOCABULARY = 50_000
WORDS, TITLE_WORDS = 100, 8
BATCH = 1_000
COUNTRIES = [f"{a}{b}" for a in "ABCDE" for b in "STUVW"]
SCHEMA = pa.schema(
    [("title", pa.string()), ("body", pa.string()), ("price", pa.float64()), ("country", pa.string())]
)
FIELDS = Fields.of(SCHEMA, text=["title", "body"], default=["body"])


@dataclass(frozen=True)
class Asked:
    """A query: what tantivy's parser reads too, and a prefix or a fuzzy word beside it, if there is one."""

    text: str
    prefix: str = ""
    fuzzy: str = ""

    @property
    def whole(self) -> str:
        """As Headwater reads it."""
        more = f" AND {self.prefix}*" if self.prefix else f" AND {self.fuzzy}~1" if self.fuzzy else ""
        return self.text + more


class Language:
    """Words, how common they are, and texts and queries made of them; the same each time."""

    def __init__(self) -> None:
        random = Random(7)
        sounds = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "il")]
        words: dict[str, None] = {}
        while len(words) < VOCABULARY:
            words["".join(random.choices(sounds, k=random.choice((2, 3, 3, 4))))] = None
        self.words = np.array(list(words))
        shares = 1 / (np.arange(VOCABULARY) + 2.7)
        self.shares = np.cumsum(shares / shares.sum())
        asked = 1 / (np.arange(VOCABULARY) + 200.0) ** 0.8
        asked[:100] = 0  # nobody asks for the, of and and
        self.asked = np.cumsum(asked / asked.sum())

    def documents(self, count: int, seed: int) -> pa.Table:
        """Documents of a hundred words."""
        random = np.random.default_rng(seed)
        drawn = self.words[np.searchsorted(self.shares, random.random((count, WORDS)))]
        return pa.table(
            [
                [" ".join(row[:TITLE_WORDS]) for row in drawn],
                [" ".join(row[TITLE_WORDS:]) for row in drawn],
                random.random(count) * 100,
                random.choice(COUNTRIES, count),
            ],
            schema=SCHEMA,
        )

    def queries(self, count: int, seed: int = 3) -> list[Asked]:
        """Queries of all kinds."""
        random = Random(seed)
        rows = np.searchsorted(self.asked, np.random.default_rng(seed).random((count, 4)))
        return [self._query(random, *row) for row in self.words[rows].tolist()]

    def _query(self, random: Random, a: str, b: str, c: str, d: str) -> Asked:
        kind = random.random()
        if kind < 0.4:
            return Asked(f"{a} AND {b}")
        if kind < 0.55:
            return Asked(f"+{a} +({b} OR {c}) -{d}")  # tantivy takes AND NOT for nothing at all
        if kind < 0.65:
            return Asked(f"title:{a}")
        if kind < 0.75:
            return Asked(f'"{a} {b}"')
        if kind < 0.8:
            return Asked(f'"{a} {b}"~3')
        if kind < 0.87:
            return Asked(a, prefix=b[:4])
        if kind < 0.92:
            return Asked(a, fuzzy=b)
        low = random.randint(0, 89)
        return (
            Asked(f"{a} AND price:[{low} TO {low + 10}]")
            if kind < 0.97
            else Asked(f"{a} AND country:{random.choice(COUNTRIES)}")
        )


def run(bench: Bench) -> None:
    """A table of sizes, then tantivy beside it."""
    language = Language()
    batches = [language.documents(bench.size(BATCH, 20), seed) for seed in range(4)]
    for count in (1_000, 10_000, 100_000, 1_000_000):
        asked = language.queries(bench.size(count, count // 1_000))
        before = _resident_mb()
        index = QueryIndex(FIELDS)
        started = time.perf_counter()
        _put(index, asked)
        put = len(asked) / (time.perf_counter() - started)
        for batch in batches:  # what is rare is learnt
            found = index.match(batch).num_rows / batch.num_rows
        group = f"{count:,} queries, {found:,.1f} matches a document"
        goal = GOAL if count == 100_000 else None
        bench.compare(
            group, [Case("documents of 100 words", partial(_matched, index, batches), goal=goal)], runs=3
        )
        bench.note(group, "queries put", "records/s", [put])
        bench.note(group, "memory", "MB", [_resident_mb() - before])
        del index
    _beside(bench, language, batches[0])


def _beside(bench: Bench, language: Language, batch: pa.Table) -> None:
    asked = language.queries(bench.size(100_000, 20))
    index = QueryIndex(FIELDS)
    _put(index, asked)
    schema, queries = _tantivy_queries(asked)
    assert index.match(batch).num_rows == sum(_tantivy_run(schema, queries, batch)), "both find the same"
    for size in (batch.num_rows, bench.size(100, 5), bench.size(10, 2)):
        some = batch.slice(0, size)
        cases = [
            Case("Headwater", partial(_matched, index, [some])),
            Case(
                "tantivy, every query over an index of the batch",
                partial(_tantivy_matched, schema, queries, some),
            ),
        ]
        bench.compare(f"{len(asked):,} queries, {size:,} documents at a time", cases, runs=3)


def _put(index: QueryIndex, asked: list[Asked]) -> float:
    parser = Parser(FIELDS)
    for number, query in enumerate(asked):
        index.put(str(number), parser.parse(query.whole))
    index.match(SCHEMA.empty_table())
    return len(asked)


def _matched(index: QueryIndex, batches: list[pa.Table], _: None) -> float:
    for batch in batches:
        index.match(batch)
    return float(sum(batch.num_rows for batch in batches))


def _tantivy_queries(asked: list[Asked]) -> tuple[tantivy.Schema, list[Any]]:
    builder = tantivy.SchemaBuilder()
    for name in ("title", "body"):
        builder.add_text_field(name)
    builder.add_float_field("price", indexed=True, fast=True)
    builder.add_text_field("country", tokenizer_name="raw")
    schema = builder.build()
    index = tantivy.Index(schema)
    made = []
    for query in asked:
        parsed = index.parse_query(query.text, ["body"])
        more = None
        if query.prefix:
            more = tantivy.Query.regex_query(schema, "body", query.prefix + ".*")
        elif query.fuzzy:
            more = tantivy.Query.fuzzy_term_query(schema, "body", query.fuzzy, distance=1)
        if more is not None:
            parsed = tantivy.Query.boolean_query([(tantivy.Occur.Must, parsed), (tantivy.Occur.Must, more)])
        made.append(parsed)
    return schema, made


def _tantivy_matched(schema: tantivy.Schema, queries: list[Any], batch: pa.Table, _: None) -> float:
    _tantivy_run(schema, queries, batch)
    return float(batch.num_rows)


def _tantivy_run(schema: tantivy.Schema, queries: list[Any], batch: pa.Table) -> list[int]:
    """How many documents of a batch each query finds."""
    index = tantivy.Index(schema)
    writer = index.writer(50_000_000, 1)
    for row in batch.to_pylist():
        writer.add_document(tantivy.Document(**row))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    return [len(searcher.search(query, batch.num_rows, count=False).hits) for query in queries]


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
