"""Documents matched with stored queries, held against a few lines of Python that look at a made-up log alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.clock import parse_span_us
from headwater.core.errors import UsageError
from headwater.core.types import TIMESTAMP
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.lucene_syntax import parse
from headwater.operators.percolator.percolate import Percolator, PercolatorSpec, all_matches
from headwater.operators.percolator.query_history import RECORDS, Stored
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.runs import Run

WORDS = ("ash", "birch", "cedar")
DOCUMENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("at", TIMESTAMP),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_appended_at", TIMESTAMP),
    ]
)
FIELDS = Fields.of(pa.schema([("text", pa.string())]))


@dataclass
class Log:
    """Commits in one order, each with queries and documents; several may have the same time."""

    keyed: bool
    records: list[dict[str, Any]] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)
    commits: int = 0
    time: int = 1_000_000

    def spec(self, *, backfill: bool = True) -> PercolatorSpec:
        return PercolatorSpec(
            DOCUMENTS,
            FIELDS,
            3,
            4,
            5,
            2,
            (0,) if self.keyed else (),
            (1,),
            stored,
            none,
            self.preceding,
            backfill,
        )

    def preceding(self, partitions: Ints, offsets: Ints, records: Ints) -> Ints:
        assert len(records)
        commits = [self.records[offset]["commit"] for offset in records.tolist()]
        assert len({self.records[offset]["_appended_at"] for offset in records.tolist()}) == 1
        mine = [self.documents[offset]["commit"] for offset in offsets.tolist()]
        return np.searchsorted(commits, mine, "right")


def stored(record: dict[str, Any]) -> Stored:
    if record["query"] == "(":
        raise UsageError("it is bad")
    span = None if record["backfill"] is None else parse_span_us(record["backfill"])
    return Stored(record["id"], parse(record["query"], FIELDS), record["owner"], span)


def none(asked: Any, documents: pa.Table) -> list[Any]:
    raise AssertionError("no query has a predicate")


def written(choice: random.Random, *, keyed: bool, commits: int) -> Log:
    log = Log(keyed)
    for _ in range(commits):
        log.time += choice.choice((0, 0, 1, 5))
        log.commits += 1
        about = {"commit": log.commits, "_appended_at": log.time}
        for _ in range(choice.choice((0, 0, 1, 2))):
            query = choice.choice([None, "(", *WORDS, "ash OR birch", "ash AND cedar"])
            record: dict[str, Any] = {
                "id": choice.choice("pqr"),
                "query": query,
                "kind": None,
                "owner": choice.choice("AB"),
            }
            record |= {"backfill": choice.choice((None, None, "3 us", "8 us", "1 day")), "allow_scans": None}
            record |= {"_op": "delete" if query is None else "upsert", "_offset": len(log.records)}
            log.records.append(record | about)
        for _ in range(choice.choice((0, 1, 2))):
            offset = len(log.documents)
            text = " ".join(choice.sample(WORDS, choice.randint(0, 2)))
            document = {"id": choice.randrange(4) if keyed else offset, "text": text, "_offset": offset}
            document |= {"at": log.time - choice.choice((0, 0, 4)), "_partition": 0}
            document |= {"gone": keyed and choice.random() < 0.2}
            log.documents.append(document | about)
    return log


def meets(text: str, query: str) -> bool:
    words = set(text.split())
    if " AND " in query:
        return words >= set(query.split(" AND "))
    return bool(words & set(query.split(" OR ")))


def expected(log: Log, upto: int, *, backfill: bool = True) -> Counter[tuple[str, Any, int, str]]:
    """What documents meet at a commit: said once more, without vectors, indexes or ticks."""
    rows: Counter[tuple[str, Any, int, str]] = Counter()
    standing = {d["id"]: d for d in log.documents if d["commit"] <= upto}
    for document in standing.values():
        if document["gone"]:
            continue
        for query in "pqr":
            versions = [
                r for r in log.records if r["id"] == query and r["query"] != "(" and r["commit"] <= upto
            ]
            before = [r for r in versions if r["commit"] <= document["commit"]]
            after = [r for r in versions if r["commit"] > document["commit"]]
            asked = before[-1:]
            for record in after if backfill else ():
                if record["backfill"] is not None and record["query"] is not None:
                    span = parse_span_us(record["backfill"])
                    if document["at"] >= record["_appended_at"] - span:
                        asked.append(record)
            for record in asked:
                if record["query"] is not None and meets(document["text"], record["query"]):
                    known = document["id"] if log.keyed else f"0:{document['_offset']}"
                    rows[query, known, record["_offset"], record["owner"]] += 1
                    break
    return rows


def batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{n: row[n] for n in schema.names} for row in rows], schema=schema)


def change(log: Log, low: int, high: int) -> tuple[Delta, Delta]:
    """What happens after one commit and up to another: records of queries, and a table's change or new rows."""
    records = [r for r in log.records if low < r["commit"] <= high and r["query"] != "("]
    then = {d["id"]: d for d in log.documents if d["commit"] <= low}
    now = {d["id"]: d for d in log.documents if d["commit"] <= high}
    old = [d for i, d in then.items() if not d["gone"] and now[i] is not d]
    new = [d for i, d in now.items() if not d["gone"] and then.get(i) is not d]
    weights = np.array([-1] * len(old) + [1] * len(new), np.int64)
    return Delta.of(batch(records, RECORDS)), Delta(batch([*old, *new], DOCUMENTS), weights)


def shown(rows: Delta) -> Counter[tuple[str, Any, int, str]]:
    found: Counter[tuple[str, Any, int, str]] = Counter()
    for row, weight in zip(rows.rows.to_pylist(), rows.weights.tolist(), strict=True):
        found[row["query_id"], row["document_id"], row["query_version"], row["owner"]] += weight
    return Counter({row: count for row, count in found.items() if count})


class Kept:
    """State as a tick leaves it."""

    def __init__(self, spec: PercolatorSpec) -> None:
        self.spec = spec
        self.matcher = Percolator(spec)
        self.queries: list[Run] = []
        self.documents: list[Run] = []
        self.rows = Delta.empty(spec.output)

    def step(self, queries: Delta, documents: Delta, *, commits: bool = True) -> None:
        change, more, kept = self.matcher.step(self.queries, self.documents, queries, documents)
        if commits:
            self.queries += [more] if len(more) else []
            self.documents += [kept] if len(kept) else []
            self.rows = consolidate(concat([self.rows, change], self.spec.output))

    def restart(self) -> None:
        self.matcher = Percolator(self.spec)


@pytest.mark.parametrize("keyed", [False, True])
@given(st.integers(0, 1 << 32))
def test_at_every_tick_documents_have_met_the_queries_that_were_valid_where_they_stand(
    keyed: bool, seed: int
) -> None:
    choice = random.Random(seed)
    log = written(choice, keyed=keyed, commits=choice.randint(1, 12))
    backfill = choice.random() < 0.8
    kept, at = Kept(log.spec(backfill=backfill)), 0
    while at < log.commits:
        tick = choice.randint(at + 1, log.commits)
        if choice.random() < 0.3:  # a tick that came to nothing, of another size
            kept.step(*change(log, at, choice.randint(at + 1, log.commits)), commits=False)
        if choice.random() < 0.3:
            kept.restart()
        kept.step(*change(log, at, tick))
        at = tick
        assert shown(kept.rows) == expected(log, at, backfill=backfill)
    queries, documents = change(log, 0, log.commits)
    whole = all_matches(log.spec(backfill=backfill), queries.rows, documents.rows)
    assert shown(Delta.of(whole)) == shown(kept.rows)


def test_a_look_at_a_few_records_leaves_the_history_as_it_is() -> None:
    log = written(random.Random(5), keyed=True, commits=40)
    kept = Kept(log.spec())
    kept.step(*change(log, 0, 30))
    few = Delta.of(batch([r for r in log.records if r["query"] == "ash"][1:2], RECORDS))
    kept.matcher.step([], [], few, change(log, 0, 30)[1])
    kept.step(*change(log, 30, 40))
    assert shown(kept.rows) == expected(log, 40)


def test_a_document_that_goes_takes_back_just_what_it_met() -> None:
    log = Log(keyed=True)
    record = {"id": "p", "query": "ash", "kind": None, "owner": "A", "backfill": None, "allow_scans": None}
    log.records = [record | {"_offset": 0, "_op": "upsert", "_appended_at": 1, "commit": 1}]
    document = {"id": 1, "text": "ash ash", "at": 2, "_partition": 0, "_offset": 0, "_appended_at": 2}
    log.documents = [document | {"commit": 2, "gone": False}]
    kept = Kept(log.spec())
    kept.step(*change(log, 0, 2))
    (row,) = kept.rows.rows.to_pylist()
    assert (row["query_id"], row["document_id"], row["text"]) == ("p", 1, "ash ash")
    assert [(h["start"], h["end"]) for h in row["highlights"]] == [(0, 3), (4, 7)]
    log.records.append(
        record | {"query": "birch", "_offset": 1, "_op": "upsert", "_appended_at": 3, "commit": 3}
    )
    log.documents.append(document | {"_offset": 1, "_appended_at": 4, "commit": 4, "gone": True})
    kept.step(*change(log, 2, 4))
    assert not len(kept.rows)
