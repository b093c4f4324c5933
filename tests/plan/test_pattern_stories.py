"""MATCH_RECOGNIZE in stories: what views show when, why, how EXPLAIN tells it, and what is refused, with a hint."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.errors import EvaluationError, StatementError
from headwater.core.settings import LogSettings
from tests.raising import raises

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
TOPICS = """
CREATE TOPIC payments (card BIGINT, amount DECIMAL(10, 2), at TIMESTAMP, tags ARRAY<STRING>,
  WATERMARK FOR at AS at - INTERVAL 1 MINUTE);
CREATE TOPIC steps (parcel BIGINT, step STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 1 MINUTE);
CREATE TOPIC people (id BIGINT, name STRING, PRIMARY KEY (id));
"""
TESTED = """
  PARTITION BY card ORDER BY at
  MEASURES FIRST(small.at) AS since, count(small.*) AS trials, large.amount AS amount
  PATTERN (small{2,} large) WITHIN INTERVAL 10 MINUTES
  DEFINE small AS amount < 5, large AS amount > 100 * avg(small.amount)"""
LOST = """
  PARTITION BY parcel ORDER BY at
  MEASURES sent.at AS sent_at, LAST(any.step) AS last_seen
  PATTERN (sent any* arrived) WITHIN INTERVAL 30 MINUTES EMIT TIMEOUTS
  DEFINE sent AS step = 'sent', any AS step <> 'arrived', arrived AS step = 'arrived'"""


def at(minute: float) -> datetime:
    return datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(minutes=minute)


def pay(card: int, amount: float, minute: float) -> dict[str, Any]:
    return {"card": card, "amount": amount, "at": at(minute), "tags": ["a"]}


def step(parcel: int, name: str, minute: float) -> dict[str, Any]:
    return {"parcel": parcel, "step": name, "at": at(minute)}


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("stories") / "w", settings=SETTINGS, spark=spark) as opened:
        opened.sql(TOPICS)
        yield opened


def rows(ws: hw.Workspace, name: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in ws.view(name).read().to_pylist()), key=repr)


def test_a_late_row_takes_a_match_back_and_a_better_one_takes_its_place(ws: hw.Workspace) -> None:
    ws.sql(f"CREATE MATERIALIZED VIEW tested AS SELECT * FROM payments MATCH_RECOGNIZE ({TESTED})")
    ws.topic("payments").append([pay(7, 1, 0), pay(7, 2, 1), pay(7, 900, 3), pay(8, 1, 0), pay(8, 900, 1)])
    tick = ws.run().tick
    assert [(card, since, n) for card, since, n, _ in rows(ws, "tested")] == [(7, at(0), 2)]
    ws.topic("payments").append([pay(7, 3, 2)])
    ws.run()
    changes = [(c["_weight"], c["trials"]) for c in ws.view("tested").changes(since=tick).to_pylist()]
    assert sorted(changes) == [(-1, 2), (1, 3)]
    why = ws.view("tested").why({"card": 7})
    assert sorted(why.records["payments"].column("at").to_pylist()) == [at(0), at(1), at(2), at(3)]
    told = dict(zip(*ws.sql("EXPLAIN VIEW tested").to_pydict().values(), strict=True))  # type: ignore[union-attr]
    assert "match rows (small{2,} large) by (card) in the order of (at)" in told["graph"]
    assert "every row of its partitions" in told["state"]


def test_what_did_not_happen_is_reported_when_its_time_is_over(ws: hw.Workspace) -> None:
    lost = f"SELECT parcel, sent_at, last_seen FROM steps MATCH_RECOGNIZE ({LOST}) WHERE timed_out"
    ws.sql(f"CREATE MATERIALIZED VIEW lost AS {lost}")
    steps = ws.topic("steps")
    steps.append([step(1, "sent", 0), step(1, "sorted", 5), step(2, "sent", 1), step(2, "arrived", 20)])
    ws.run()
    assert rows(ws, "lost") == []
    steps.append([step(3, "sent", 30.9)])
    ws.run()
    assert rows(ws, "lost") == []
    steps.append([step(4, "sent", 31)])
    ws.run()
    assert rows(ws, "lost") == [(1, at(0), "sorted")]
    # in time for its parcel, though late for others: it is found after all
    steps.append([step(1, "arrived", 29)])
    ws.run()
    assert rows(ws, "lost") == []
    # a query has no watermark: the latest time of its rows stands for it
    asked = ws.query(f"SELECT parcel, timed_out FROM steps MATCH_RECOGNIZE ({LOST})")
    assert sorted(tuple(r.values()) for r in asked.to_pylist()) == [(1, False), (2, False)]
    assert ws.verify().ok


def test_matches_stand_wherever_relations_do(ws: hw.Workspace) -> None:
    people = [{"id": 7, "name": "ada"}, {"id": 8, "name": "bob"}]
    ws.topic("people").append(people)
    match = "MATCH_RECOGNIZE (PARTITION BY card ORDER BY at, _offset MEASURES count(*) AS n PATTERN (A+) DEFINE A AS amount < 5)"
    ws.sql(
        f"""CREATE MATERIALIZED VIEW runs AS
        WITH small AS (SELECT card, at, amount, _offset FROM payments WHERE amount < 3),
             found AS (SELECT * FROM small {match} m)
        SELECT p.name, a.n, b.n AS again FROM found a JOIN found AS b ON a.card = b.card
        JOIN (SELECT * FROM people WHERE id IN (SELECT card FROM payments {match})) p ON p.id = a.card"""
    )
    ws.sql(
        """CREATE MATERIALIZED VIEW nested AS
        SELECT sum(total) AS total FROM (
          SELECT * FROM payments MATCH_RECOGNIZE (PARTITION BY card ORDER BY at MEASURES LAST(at) AS at, count(*) AS n
            PATTERN (A B) DEFINE B AS B.amount > A.amount)
        ) MATCH_RECOGNIZE (ORDER BY at, card MEASURES sum(n) AS total PATTERN (X+))"""
    )
    ws.run()
    assert rows(ws, "runs") == [("ada", 2, 2), ("bob", 1, 1)]
    assert rows(ws, "nested") == [(6,)]
    report = ws.verify()
    assert report.ok, report.differences


def test_a_match_that_skips_to_where_it_began_is_an_error_that_names_the_pattern(ws: hw.Workspace) -> None:
    with raises(EvaluationError, reason="skip-same-match"):
        ws.query(
            "SELECT * FROM payments MATCH_RECOGNIZE (ORDER BY at AFTER MATCH SKIP TO FIRST A PATTERN (A B))"
        )


def match(clause: str) -> str:
    return f"SELECT * FROM payments MATCH_RECOGNIZE ({clause})"


@pytest.mark.parametrize(
    ("query", "part", "facts"),
    [
        (match("ORDER BY at PATTERN (A) DEFINE A AS amoun > 1"), "amoun", {"reason": "unknown-column", "name": "amoun"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS A.amoun > 1"), "A.amoun", {"reason": "unknown-column", "name": "amoun"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS B.amount > 1"), "B.amount", {"reason": "unknown-column", "name": "B"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS amount"), "amount", {"reason": "condition-not-boolean"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS FINAL LAST(amount) > 1"), "LAST(amount)", {"reason": "final-in-define"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS FIRST(PREV(amount)) > 1"), "FIRST(PREV(amount))", {"reason": "nested-navigation"}),
        (match("ORDER BY at PATTERN (A B) DEFINE A AS PREV(A.amount + B.amount) > 1"), "PREV(A.amount + B.amount)", {"reason": "several-variables"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS PREV(1) > 1"), "PREV(1)", {"reason": "no-column"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS PREV(amount, -1) > 1"), "-1", {"reason": "navigation-offset"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS PREV(DISTINCT amount) > 1"), "PREV(DISTINCT amount)", {"reason": "distinct-filter"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS percentile(amount, 0.5) > 1"), "percentile(amount, 0.5)", {"reason": "unsupported-aggregate"}),
        (match("ORDER BY at PATTERN (A B) DEFINE A AS max_by(A.amount, B.at) > 1"), "max_by(A.amount, B.at)", {"reason": "several-variables"}),
        (match("ORDER BY at PATTERN (A B) DEFINE A AS max_by(A.amount, at) > 1"), "max_by(A.amount, at)", {"reason": "several-variables"}),
        (match("ORDER BY at PATTERN (A B) DEFINE A AS sum(A.amount) FILTER (WHERE B.amount > 1) > 1"), "sum(A.amount) FILTER (WHERE B.amount > 1)", {"reason": "several-variables"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS sum(max(amount)) > 1"), "sum(max(amount))", {"reason": "nested-navigation"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS stddev(PREV(amount)) > 1"), "stddev(PREV(amount))", {"reason": "nested-navigation"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS FIRST(stddev(amount)) > 1"), "FIRST(stddev(amount))", {"reason": "nested-navigation"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS sum(A.*) > 1"), "sum(A.*)", {"reason": "whole-row"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS sum(rand()) > 1"), "rand()", {"reason": "not-deterministic"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS amount > (SELECT 1)"), "(SELECT 1)", {"reason": "subquery-in-pattern"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS rank() OVER (ORDER BY at) = 1"), "rank() OVER (ORDER BY at)", {"reason": "window-in-pattern"}),
        (match("ORDER BY at PATTERN (A) DEFINE A AS rand() > 0.5"), "rand()", {"reason": "not-deterministic"}),
        (match("ORDER BY at MEASURES now() AS n PATTERN (A)"), "now()", {"reason": "depends-on-time"}),
        (match("ORDER BY at MEASURES CLASSIFIER(X) AS n PATTERN (A)"), "CLASSIFIER(X)", {"reason": "classifier-argument"}),
        (match("ORDER BY at MEASURES count(X.*) AS n PATTERN (A)"), "count(X.*)", {"reason": "unknown-variable", "variable": "X"}),
        (match("ORDER BY at MEASURES FINAL upper('a') AS n PATTERN (A)"), "upper('a')", {"reason": "running-final"}),
        (match("ORDER BY at MEASURES nothing(A.at) AS n PATTERN (A)"), "nothing(A.at)", {"condition": "UNRESOLVED_ROUTINE"}),
        (match("ORDER BY at MEASURES A.at + AS n PATTERN (A)"), None, {"condition": "PARSE_SYNTAX_ERROR"}),
        (match("PARTITION BY card % 2 ORDER BY at PATTERN (A)"), "card % 2", {"reason": "partition-by-expression"}),
        (match("ORDER BY amount PATTERN (A) WITHIN INTERVAL 1 DAY"), "amount", {"reason": "within-without-time"}),
        (match("ORDER BY at PATTERN (A) WITHIN INTERVAL 1 MONTH"), "INTERVAL 1 MONTH", {"reason": "within-not-constant"}),
        (match("ORDER BY at MEASURES sum(A.tags) AS n PATTERN (A)"), None, {"condition": "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE"}),
        (match("PARTITION BY card ORDER BY at MEASURES 1 AS card PATTERN (A)"), None, {"reason": "duplicate-column", "name": "card"}),
        ("SELECT * FROM payment MATCH_RECOGNIZE (ORDER BY at PATTERN (A))", "payment", {"missing": "payment"}),
    ],
)  # fmt: skip
def test_what_is_refused_is_underlined(
    ws: hw.Workspace, query: str, part: str | None, facts: dict[str, str]
) -> None:
    statement = f"CREATE MATERIALIZED VIEW refused AS\n{query}"
    with raises(StatementError, **facts) as caught:
        ws.sql(statement)
    if part is not None:
        _, line, marks = str(caught.value.detail).splitlines()[:3]
        start = marks.index("^")
        assert line[start : start + marks.count("^")] == part


@pytest.mark.parametrize(
    ("statement", "facts"),
    [
        (f"CREATE MATERIALIZED VIEW refused WITH (late = 'drop') AS {match('ORDER BY amount PATTERN (A)')}", {"reason": "not-in-event-time-order"}),
        (f"CREATE MATERIALIZED VIEW refused AS {match('ORDER BY amount PATTERN (A)')} EMIT ON WINDOW CLOSE", {"reason": "never-final"}),
        ("CREATE MATERIALIZED VIEW refused AS SELECT * FROM (SELECT id, current AS at FROM (SELECT id, TIMESTAMP '2026-01-01' AS current FROM people)) MATCH_RECOGNIZE (ORDER BY at PATTERN (A) WITHIN INTERVAL 1 DAY EMIT TIMEOUTS)", {"reason": "timeouts-not-in-event-time-order"}),
    ],
)  # fmt: skip
def test_policies_of_time_need_rows_in_the_order_of_their_event_time(
    ws: hw.Workspace, statement: str, facts: dict[str, str]
) -> None:
    with raises(StatementError, **facts):
        ws.sql(statement)
