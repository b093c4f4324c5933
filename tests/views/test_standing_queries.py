"""Standing queries: a view of what documents meet, the same however the log is cut into ticks, and whatever dies."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock, parse_span_us
from headwater.core.errors import QueryError, SchemaError, StatementError, UsageError, ViewNotFoundError
from headwater.engine.tick import backfill_parts
from headwater.testing import inspect_workspace
from tests.engine.workers import SETTINGS, worker
from tests.raising import raises

pytestmark = pytest.mark.slow

SEEDS = range(400) if os.environ.get("HEADWATER_LONG") else range(4)
TOPICS = {
    "keyed": "CREATE TOPIC articles (id BIGINT, text STRING, at TIMESTAMP, PRIMARY KEY (id)) WITH (partitions = 2)",
    "timed": "CREATE TOPIC articles (id BIGINT, text STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 hour') "
    "WITH (partitions = 2)",
    "plain": "CREATE TOPIC articles (id BIGINT, text STRING, at TIMESTAMP)",
}
WORDS = ("ash", "birch", "cedar")
QUERIES = ("ash", "birch", "ash OR cedar", "birch AND cedar", "ash AND NOT birch")
Matches = Counter[tuple[Any, ...]]


@pytest.fixture
def ws(tmp_path: Path, spark: Any, clock: ManualClock) -> Iterator[Workspace]:
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock) as workspace:
        yield workspace


def meets(text: str | None, query: str) -> bool:
    words, bare = set((text or "").split()), query.split(" AND NOT ")
    if len(bare) == 2:
        return bare[0] in words and bare[1] not in words
    return words >= set(query.split(" AND ")) if " AND " in query else bool(words & set(query.split(" OR ")))


def records(ws: Workspace, topic: str) -> list[dict[str, Any]]:
    columns = [*ws.log.topic(topic).schema.names, "_partition", "_offset", "_appended_at", "_sequence"]
    columns += ["_op"] if ws.log.topic(topic).key else []
    rows = [row for batch in ws.topic(topic).read("earliest", columns=columns) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["_sequence"], row["_partition"], row["_offset"]))


def expected(ws: Workspace) -> Matches:
    """What documents meet, by the records of the log alone."""
    found: Matches = Counter()
    stored = [r for r in records(ws, "news_queries") if r["query"] != "("]
    topic = ws.log.topic("articles")
    documents = records(ws, "articles")
    if topic.key:
        documents = [d for d in {d["id"]: d for d in documents}.values() if d["_op"] != "delete"]
    for document in documents:
        for query in {r["id"] for r in stored}:
            mine = [r for r in stored if r["id"] == query]
            asked = [r for r in mine if r["_sequence"] <= document["_sequence"]][-1:]
            for record in mine:
                if record["_sequence"] > document["_sequence"] and record["backfill"]:
                    age = document["at"] if topic.time else document["_appended_at"]
                    span = timedelta(microseconds=parse_span_us(record["backfill"]))
                    asked += [record] if age >= record["_appended_at"] - span else []
            for record in asked:
                if record["_op"] != "delete" and meets(document["text"], record["query"]):
                    place = f"{document['_partition']}:{document['_offset']}"
                    known = document["id"] if topic.key else place
                    found[query, known, record["owner"], record["_offset"], document["text"]] += 1
                    break
    return found


def shown(ws: Workspace, view: str = "news") -> Matches:
    columns = ("query_id", "document_id", "owner", "query_version", "text")
    return Counter(tuple(row[c] for c in columns) for row in ws.view(view).read().to_pylist())


def act(ws: Workspace, choice: random.Random, clock: ManualClock) -> None:
    """Something happens: a query comes or goes, documents do, or both in one commit."""
    news, keyed = ws.standing("news"), bool(ws.log.topic("articles").key)
    clock.advance(choice.choice(("0 s", "0 s", "1 s", "60 s")))
    now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    options = {"owner": choice.choice("AB"), "backfill": choice.choice((None, None, "30 s", "1 day"))}
    record = news.record(choice.choice("pqr"), choice.choice(QUERIES), **options)  # type: ignore[arg-type]
    document = {"id": choice.randrange(5), "text": " ".join(choice.sample(WORDS, choice.randint(0, 3)))}
    document |= {"at": now - timedelta(seconds=choice.choice((0, 20, 4000)))}
    match choice.randrange(7):
        case 0:
            ws.topic("news_queries").append([record])
        case 1:
            news.remove(choice.choice("pqr"))
        case 2:
            ws.topic("news_queries").append([record | {"query": "(", "kind": None}])
        case 3:
            ws.append({"articles": [document], "news_queries": [record]})
        case 4 if keyed:
            ws.topic("articles").delete([{"id": choice.randrange(5)}])
        case _:
            ws.topic("articles").append(
                [document, document | {"id": choice.randrange(5), "text": "ash cedar"}]
            )


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize("seed", SEEDS)
def test_at_every_tick_the_view_is_what_the_log_says(
    kind: str, seed: int, tmp_path: Path, spark: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = random.Random(f"{kind} {seed}")
    ws = hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock)
    ws.sql(TOPICS[kind])
    ws.sql("CREATE STANDING QUERY news ON articles (text) WITH (show = 'text')")
    for _ in range(choice.randint(4, 7)):
        for _ in range(choice.randint(1, 4)):
            act(ws, choice, clock)
        if choice.random() < 0.3:  # its state is lost, or its process
            ws.close()
            if choice.random() < 0.5:
                shutil.rmtree(tmp_path / "ws" / "state", ignore_errors=True)
            ws = hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock)
        if choice.random() < 0.2:
            monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", choice.randint(1, 4))
            ws.view("news").rebuild()
        report = ws.run(tick_rows=choice.choice((None, 1, 3)))
        assert report.stopped == {}
        assert shown(ws) == expected(ws)
    bad = [r for r in records(ws, "news_queries") if r["query"] == "("]
    told = ws.query("SELECT _offset, _error FROM news.errors").to_pylist()
    assert sorted(r["_offset"] for r in told) == [r["_offset"] for r in bad]
    assert ws.view("news").ledger()["failed"] == len(bad)
    assert ws.verify().ok
    ws.close()


@pytest.mark.parametrize("kind", ["plain", "keyed"])
def test_a_process_that_is_killed_while_it_stores_matches_and_asks_back_leaves_what_the_log_says(
    kind: str, tmp_path: Path, spark: Any
) -> None:
    choice, folder = random.Random(kind), tmp_path / "ws"
    with hw.open(folder, spark=spark, settings=SETTINGS) as ws:
        ws.sql(TOPICS[kind])
        ws.sql("CREATE STANDING QUERY news ON articles (text) WITH (show = 'text')")
    for _ in range(30 if os.environ.get("HEADWATER_LONG") else 1):
        with worker("standing", folder) as killed:
            killed.line(f"turn {choice.randint(1, 4)}")
            time.sleep(choice.random() * 0.1)  # anywhere in a turn
            killed.kill()
        with hw.open(folder, spark=spark, settings=SETTINGS) as ws:
            assert ws.run().stopped == {}
            assert shown(ws) == expected(ws)
            assert ws.verify().ok


def test_a_document_meets_the_queries_that_were_stored_when_it_came_or_with_it(ws: Workspace) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE STANDING QUERY news ON articles")
    news, articles = ws.standing("news"), ws.topic("articles")
    articles.append([{"text": "ash"}])
    news.add("trees", "ash", owner="ann")
    articles.append([{"text": "ash and birch"}])
    ws.append({"articles": [{"text": "cedar"}], "news_queries": [news.record("late", "cedar")]})
    news.add("trees", "birch")
    articles.append([{"text": "ash"}, {"text": "a birch"}])
    news.remove("trees")
    articles.append([{"text": "birch"}])
    ws.run()
    rows = ws.query("SELECT query_id, document_id, query_version, owner FROM news ORDER BY 2").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("trees", "0:1", 0, "ann"),
        ("late", "0:2", 1, None),
        ("trees", "0:4", 2, None),
    ]
    assert news.list().column("id").to_pylist() == ["late"]
    assert news.history("trees").column("removed").to_pylist() == [False, False, True]


def test_a_new_query_is_asked_of_the_past_days(ws: Workspace, clock: ManualClock) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE STANDING QUERY news ON articles")
    for text in ("ash of old", "ash of last week", "ash of today"):
        ws.topic("articles").append([{"text": text}])
        clock.advance("4 days")
    ws.run()
    ws.standing("news").add("trees", "ash", backfill="9 days")
    ws.standing("news").add("new", "ash")
    ws.run()
    assert shown_ids(ws) == [("trees", "0:1"), ("trees", "0:2")]
    ws.standing("news").add("trees", "ash OR birch", backfill=timedelta(days=30))
    ws.run()
    assert shown_ids(ws) == [("trees", "0:0"), ("trees", "0:1"), ("trees", "0:2")]  # each is told of once
    assert ws.verify().ok


def shown_ids(ws: Workspace) -> list[tuple[str, Any]]:
    rows = ws.view("news").read().to_pylist()
    return sorted((row["query_id"], row["document_id"]) for row in rows)


def test_its_matches_are_rows_like_any_others(ws: Workspace) -> None:
    ws.sql(TOPICS["keyed"])
    ws.sql(
        """
        CREATE STANDING QUERY news ON articles (text) WITH (language = 'english', show = 'text');
        CREATE MATERIALIZED VIEW hits AS SELECT owner, count(*) AS n FROM news GROUP BY owner;
        """
    )
    assert inspect_workspace(ws).views.reports.keys("news") == [("query_id", "document_id")]
    news = ws.standing("news")
    news.add("running", "running AND NOT jobs", owner="ann")
    ws.topic("articles").append([{"id": 1, "text": "Runs well"}, {"id": 2, "text": "Run a job"}])
    first = ws.run().tick
    (row,) = ws.view("news").read().to_pylist()
    assert row["highlights"] == [{"field": "text", "item": 0, "start": 0, "end": 4}]
    assert ws.query("SELECT * FROM hits").to_pylist() == [{"owner": "ann", "n": 1}]
    ws.topic("articles").append([{"id": 1, "text": "walks"}, {"id": 2, "text": "run"}])
    ws.run()
    assert shown_ids(ws) == [("running", 2)]
    assert ws.view("news").read(as_of=first).column("document_id").to_pylist() == [1]
    changes = ws.view("news").changes(since=first).to_pylist()
    assert sorted((row["document_id"], row["_weight"]) for row in changes) == [(1, -1), (2, 1)]
    why = ws.view("news").why(("running", 2))
    assert why.records["articles"].column("text").to_pylist() == ["run"]
    assert why.records["news_queries.changelog"].column("id").to_pylist() == ["running"]
    assert why.recompute().to_pylist() == ws.view("news").read().to_pylist()
    explained = {r["property"]: r["value"] for r in ws.sql("EXPLAIN news").to_pylist()}  # type: ignore[union-attr]
    assert "match documents with the queries stored at their place in the log" in explained["graph"]
    assert explained["statement"].startswith("CREATE STANDING QUERY news ON articles (text)")


def test_a_condition_of_sql_is_a_stored_query_too(ws: Workspace) -> None:
    ws.sql("CREATE TOPIC offers (id BIGINT, name STRING, price DECIMAL(10,2), PRIMARY KEY (id))")
    ws.sql("CREATE STANDING QUERY cheap ON offers")
    cheap = ws.standing("cheap")
    cheap.add("shoes", "price < 50 AND name LIKE '%shoe%'", kind="sql")
    cheap.add("ratio", "price > 1 AND 100 / (id - 2) > 10", kind="sql")
    ws.topic("offers").append(
        [
            {"id": 1, "name": "red shoes", "price": Decimal("49.99")},
            {"id": 2, "name": "blue shoes", "price": Decimal("50.00")},
            {"id": 3, "name": "hat", "price": Decimal("10.00")},
        ]
    )
    assert ws.run().stopped == {}
    rows = ws.query("SELECT query_id, document_id, score FROM cheap ORDER BY 1, 2").to_pylist()
    assert [(r["query_id"], r["document_id"]) for r in rows] == [("ratio", 3), ("shoes", 1)]
    assert ws.verify().ok


def test_a_bad_query_is_refused_with_its_place_and_a_stored_one_is_reported(ws: Workspace) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE STANDING QUERY news ON articles")
    news = ws.standing("news")
    with raises(QueryError, reason="unknown-field", field="titel", start=8, end=13) as refused:
        news.add("x", "ash AND titel:birch")
    assert "        ^^^^^" in str(refused.value)
    with raises(StatementError, reason="needs-scan"):
        news.add("x", "*:*")
    news.add("all", "*:*", allow_scans=True)
    assert news.list().num_rows == 1
    ws.topic("news_queries").append([{"id": "a", "query": "*:*"}, {"id": "b", "query": "ash AND ("}])
    ws.topic("articles").append([{"text": "ash"}])
    assert ws.run().stopped == {}
    assert shown_ids(ws) == [("all", "0:0")]
    told = ws.query("SELECT _topic, _offset, _error FROM news.errors ORDER BY _offset").to_pylist()
    assert [(row["_topic"], row["_offset"]) for row in told] == [("news_queries", 1), ("news_queries", 2)]
    assert told[0]["_error"].startswith("no term or range of this query can be indexed")


def test_many_queries_are_stored_in_one_commit_or_none_is(ws: Workspace) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE STANDING QUERY news ON articles")
    news = ws.standing("news")
    many = [{"id": f"q{n}", "query": f"w{n} OR ash", "owner": "ann"} for n in range(500)]
    with raises(QueryError, reason="unknown-field", field="titel", id="bad", start=4):
        news.add_all([*many, {"id": "bad", "query": "ash titel:x"}])
    wrongs: tuple[tuple[Any, dict[str, Any]], ...] = (
        ({"id": "x"}, {"reason": "missing-key"}),
        ({"id": "x", "query": "ash", "onwer": "ann"}, {"reason": "unknown-key"}),
        ("ash", {"reason": "not-a-mapping"}),
        ({"id": 7, "query": "ash"}, {"id": 7, "value": 7}),
    )
    for wrong, facts in wrongs:
        with raises(UsageError, **facts):
            news.add_all([wrong])
    assert news.list().num_rows == 0
    news.add_all(many)
    news.add_all(
        pa.Table.from_pylist([{"id": "t", "query": "ash", "kind": None}, {"id": "q0", "query": "w0"}])
    )
    ws.topic("articles").append([{"text": "ash w0"}])
    ws.run()
    assert len(shown_ids(ws)) == 501
    added = {row["id"]: row["added_at"] for row in news.list().to_pylist()}
    assert (added["q1"], added["t"]) == (added["q499"], added["q0"])


def test_what_cannot_be_matched_is_refused_and_leaves_nothing_behind(ws: Workspace) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE MATERIALIZED VIEW short AS SELECT text FROM articles WHERE length(text) < 9")
    refusals: tuple[tuple[str, type[hw.HeadwaterError], dict[str, Any]], ...] = (
        ("news ON short", hw.TopicNotFoundError, {"topic": "short"}),
        ("news ON nothing", hw.TopicNotFoundError, {"topic": "nothing"}),
        ("news ON articles (titel)", SchemaError, {"topic": "articles", "name": "titel"}),
        ("news ON articles WITH (language = 'klingon')", UsageError, {"language": "klingon"}),
        (
            "news ON articles WITH (queries = 'articles')",
            SchemaError,
            {"reason": "not-a-query-topic", "topic": "articles"},
        ),
        (
            "news ON articles WITH (backfill = FALSE, show = 'text, text')",
            SchemaError,
            {"reason": "duplicate-column", "name": "text"},
        ),
    )
    for statement, kind, facts in refusals:
        with raises(kind, **facts):
            ws.sql(f"CREATE STANDING QUERY {statement}")
    assert sorted(t.name for t in ws.topics()) == ["articles"]
    with raises(ViewNotFoundError, view="news"):
        ws.standing("news")
    with raises(UsageError, reason="not-a-standing-query", view="short"):
        ws.standing("short")


def test_it_is_dropped_with_its_queries_and_not_as_a_view(ws: Workspace) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE STANDING QUERY news ON articles WITH (backfill = FALSE)")
    ws.sql("CREATE STANDING QUERY IF NOT EXISTS news ON articles")
    with raises(UsageError, reason="no-backfill"):
        ws.standing("news").add("a", "ash", backfill="1 day")
    ws.standing("news").add("a", "ash")
    shown = ws.sql("SHOW STANDING QUERIES")
    assert shown is not None
    assert [(r["standing_query"], r["documents"], r["stored"]) for r in shown.to_pylist()] == [
        ("news", "articles", 1)
    ]
    with raises(UsageError, view="news"):
        ws.sql("DROP VIEW news")
    with raises(UsageError, reason="read-by", readers=["news"]):
        ws.sql("DROP TOPIC news_queries")
    ws.sql("CREATE OR REPLACE STANDING QUERY news ON articles")
    ws.standing("news").add("b", "ash", backfill="1 day")
    ws.run()
    ws.sql("DROP STANDING QUERY news; DROP STANDING QUERY IF EXISTS news")
    assert sorted(t.name for t in ws.topics()) == ["articles"]


def test_a_topic_that_is_dropped_with_its_views_takes_the_stored_queries_along(ws: Workspace) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE TOPIC others (text STRING)")
    ws.sql(
        "CREATE STANDING QUERY news ON articles; CREATE STANDING QUERY olds ON articles WITH (queries = 'shared')"
    )
    ws.sql("CREATE STANDING QUERY else ON others WITH (queries = 'shared')")
    ws.standing("news").add("a", "ash")
    ws.standing("else").add("a", "ash")
    with raises(UsageError, reason="read-by"):
        ws.sql("DROP TOPIC articles")
    ws.sql("DROP TOPIC articles CASCADE")
    assert sorted(t.name for t in ws.topics()) == ["others", "shared"]  # what another one asks stays
    assert ws.standing("else").list().num_rows == 1
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE STANDING QUERY news ON articles")
    assert ws.standing("news").list().num_rows == 0


def test_what_was_removed_from_the_log_is_still_matched(ws: Workspace, clock: ManualClock) -> None:
    ws.sql("CREATE TOPIC articles (id BIGINT, text STRING) WITH (retention = '1 day')")
    ws.sql("CREATE STANDING QUERY news ON articles WITH (show = 'text')")
    ws.standing("news").add("trees", "ash")
    ws.topic("articles").append([{"text": "ash"}, {"text": "birch"}])
    ws.run()
    clock.advance("2 days")
    assert ws.maintain().rows_removed == 2
    ws.topic("articles").append([{"text": "cedar"}])
    ws.run()
    ws.standing("news").add("late", "birch", backfill="9 days")
    ws.run()
    assert shown_ids(ws) == [("late", "0:1"), ("trees", "0:0")]
    assert ws.verify().ok


def test_what_is_excised_of_documents_or_queries_is_gone_from_the_matches(ws: Workspace) -> None:
    ws.sql(TOPICS["plain"])
    ws.sql("CREATE STANDING QUERY news ON articles")
    for query in "pqr":
        ws.standing("news").add(query, "ash")
        ws.topic("articles").append([{"id": ord(query), "text": "ash"}])
    ws.run()
    assert len(shown_ids(ws)) == 6
    ws.excise("news_queries", "id = 'q'")
    ws.run()
    assert shown_ids(ws) == [("p", "0:0"), ("p", "0:1"), ("p", "0:2"), ("r", "0:2")]
    ws.excise("articles", "id = 112")
    ws.standing("news").add("s", "ash", backfill="1 day")
    ws.run()
    assert shown_ids(ws) == [("p", "0:1"), ("p", "0:2"), ("r", "0:2"), ("s", "0:1"), ("s", "0:2")]
    assert ws.verify().ok
