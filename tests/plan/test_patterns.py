"""MATCH_RECOGNIZE in queries and views gives what the oracle of row patterns gives, whatever comes, and in what order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.errors import EvaluationError
from headwater.core.settings import LogSettings
from headwater.operators.match_recognize.pattern import Pattern, variables
from headwater.operators.match_recognize.spec import Skip
from tests.conftest import LONG
from tests.equation.random_patterns import (
    COLUMNS,
    MEASURES,
    SECOND,
    Asked,
    Question,
    U,
    conditions,
    plain,
    question,
    random_question,
    record,
)
from tests.operators.match_recognize.kit import concat, patterns
from tests.operators.match_recognize.oracle import Row, SkipError

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
BIT = {name: conditions(name)[0] for name in "ABC"}
RISES = {name: conditions(name)[4] for name in "ABC"}


def measured(*sql: str) -> list[Asked]:
    return [m for wanted in sql for m in MEASURES if m.sql == wanted]


def random_rows(pick: random.Random, count: int, keys: int = 3, spread: int = 12) -> list[Row]:
    return [
        (pick.randrange(keys), pick.randrange(spread) * SECOND, pick.randrange(8), pick.randrange(4))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def events(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[tuple[hw.Workspace, list[Row]]]:
    rows = random_rows(random.Random(7), 60)
    with hw.open(tmp_path_factory.mktemp("events") / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(f"CREATE TOPIC events ({COLUMNS})")
        ws.topic("events").append([record(row) for row in rows])
        yield ws, rows


SKIPS = [Skip(), Skip("to next row"), Skip("to first", frozenset("B")), Skip("to last", U)]
SHOWN = ["one", "all", "all, omit empty", "all, with unmatched"]


@pytest.mark.timeout(1800 if LONG else 300)
@settings(
    max_examples=500 if LONG else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    patterns(),
    st.sampled_from(SHOWN),
    st.sampled_from(SKIPS),
    st.sampled_from([None, 2, 5]),
    st.randoms(use_true_random=False),
)
def test_queries_give_what_the_oracle_gives(
    events: tuple[hw.Workspace, list[Row]],
    pattern: Pattern,
    shown: Any,
    skip: Skip,
    within: int | None,
    pick: random.Random,
) -> None:
    ws, rows = events
    if skip.variables is not None and not skip.variables <= set(variables(pattern)):
        skip = Skip()
    asked = random_question(pick, pattern, rows=shown, skip=skip, within=within)
    if asked is None or ("{-" in asked.clause and shown == "all, with unmatched"):
        return
    try:
        expected = asked.expected(rows)
    except SkipError:
        with pytest.raises(EvaluationError) as refused:
            ws.query(asked.sql())
        assert refused.value.facts["reason"] in ("skip-no-row", "skip-same-match")
        return
    assert plain(ws.query(asked.sql())) == expected, asked.sql()


VIEWS: dict[str, Question] = {
    "falls": question(
        concat("A B+ C"),
        BIT,
        measured(
            "FIRST(A.x)",
            "count(*)",
            "FINAL count(A.*)",
            "MATCH_NUMBER()",
            "sum(A.x)",
            "avg(U.x)",
            "count(DISTINCT A.x)",
            "round(stddev_pop(x), 9)",
        ),
        within=6,
    ),
    "labelled": question(
        concat("A* B? C"),
        {**BIT, "C": RISES["C"]},
        measured("CLASSIFIER()", "LAST(x, 1)", "FINAL max(x)", "array_join(array_agg(CLASSIFIER()), '')"),
        rows="all, with unmatched",
    ),
    "overlapping": question(
        concat("A B+? C*"),
        {"A": BIT["A"], "B": conditions("B")[7], "C": conditions("C")[9]},
        measured("PREV(x)", "NEXT(x, 2)", "LAST(CLASSIFIER(), 1)"),
        rows="all",
        skip=Skip("to next row"),
    ),
    "growing": question(
        concat("A+ B"),
        {"A": conditions("A")[-1], "B": RISES["B"]},
        measured("count(*)", "B.x", "sum(A.x)", "PREV(FIRST(A.x, 1), 2)"),
        skip=Skip("to last", frozenset("B")),
    ),
}


def ddl(name: str, topic: str) -> str:
    relation = "(SELECT key, time, bits, x FROM states) AS s" if topic == "states" else topic
    return f"CREATE MATERIALIZED VIEW {name}_{topic} AS {VIEWS[name].sql(relation)}"


class Feed:
    """Random records of a topic that grows and of a table that changes."""

    def __init__(self, seed: int) -> None:
        self._pick = random.Random(seed)
        self.events: list[Row] = []
        self.states: dict[int, Row] = {}

    def tick(self, ws: hw.Workspace) -> None:
        pick = self._pick
        fresh = random_rows(pick, pick.randint(0, 8))
        ws.topic("events").append([record(row) for row in fresh])
        self.events += fresh
        changed = {pick.randrange(25): row for row in random_rows(pick, pick.randint(1, 8))}
        gone = pick.sample(sorted(self.states), min(len(self.states), pick.randint(0, 3)))
        ws.topic("states").append([{"id": i, **record(row)} for i, row in changed.items()])
        self.states |= changed
        ws.topic("states").delete([{"id": i} for i in gone])
        for i in gone:
            del self.states[i]
        ws.run(tick_rows=pick.choice([None, 5]))


def check(ws: hw.Workspace, feed: Feed) -> None:
    for name, asked in VIEWS.items():
        for topic, rows in (("events", feed.events), ("states", feed.states.values())):
            assert plain(ws.view(f"{name}_{topic}").read()) == asked.expected(rows), f"{name} of {topic}"


def test_views_give_what_the_oracle_gives_tick_by_tick(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(seed=3)
    ticks = 12 if LONG else 4
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(f"CREATE TOPIC events ({COLUMNS}) WITH (partitions = 2)")
        ws.sql(f"CREATE TOPIC states (id BIGINT, {COLUMNS}, PRIMARY KEY (id))")
        feed.tick(ws)
        for name in VIEWS:
            ws.sql(ddl(name, "events"))
            ws.sql(ddl(name, "states"))
        for _ in range(ticks):
            feed.tick(ws)
            check(ws, feed)
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        feed.tick(ws)
        check(ws, feed)
        report = ws.verify()
        assert report.ok, report.differences
