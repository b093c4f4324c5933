"""OVER with frames that slide along a time or a number: what Spark says, from the rows near a change alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "id BIGINT, k STRING, at TIMESTAMP, x DOUBLE, n BIGINT, i INT, m DECIMAL(12, 2), d DATE, s STRING"
HOUR = "PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW"

NEAR = {
    "plain": f"SELECT id, k, at, sum(x) OVER ({HOUR}) AS total, count(*) OVER ({HOUR}) AS c FROM {{}}",
    "several": """
        SELECT id, avg(x) OVER w AS mean, min(m) OVER w AS least, max(s) OVER v AS most, sum(m) OVER v AS money,
          avg(m) OVER w AS spent, count(n) FILTER (WHERE x > 0) OVER v AS positive, avg(n) OVER v AS average,
          sum(n + 1) OVER (PARTITION BY k ORDER BY i RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS by_number
        FROM {}
        WINDOW w AS (PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL '30' MINUTE PRECEDING AND INTERVAL '10' MINUTE FOLLOWING),
          v AS (PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL '20' MINUTE PRECEDING AND INTERVAL '5' MINUTE PRECEDING)""",
    "days": "SELECT id, max(x) OVER (ORDER BY d RANGE BETWEEN INTERVAL '1' DAY PRECEDING AND CURRENT ROW) AS y FROM {}",
    "numbers": """
        SELECT id, i, min(n) OVER (PARTITION BY upper(k) ORDER BY i + 1 RANGE BETWEEN 3 PRECEDING AND CURRENT ROW) AS y,
          max(d) OVER (PARTITION BY upper(k) ORDER BY i + 1 NULLS LAST RANGE BETWEEN CURRENT ROW AND 2 FOLLOWING) AS z FROM {}""",
    "sparks": f"""
        SELECT id, stddev(x) OVER ({HOUR}) AS s, sum(n) OVER ({HOUR}) AS t, collect_set(i) OVER ({HOUR}) AS c FROM {{}}""",
    "above": f"""
        SELECT k, count(*) AS busy FROM (SELECT k, count(*) OVER ({HOUR}) AS c FROM {{}}) WHERE c > 1 GROUP BY k""",
}
FAR = {
    "unbounded": "SELECT id, sum(n) OVER (PARTITION BY k ORDER BY at RANGE UNBOUNDED PRECEDING) AS y FROM {}",
    "descending": "SELECT id, sum(n) OVER (PARTITION BY k ORDER BY i DESC RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS y FROM {}",
    "months": """
        SELECT id, count(*) OVER (PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL '1' MONTH PRECEDING AND CURRENT ROW) AS y
        FROM {}""",
    "ranked": "SELECT id, dense_rank() OVER (PARTITION BY k ORDER BY at) AS y FROM {}",
}


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    """A workspace with a table and a topic, and the views above them."""
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC t ({COLUMNS}, PRIMARY KEY (id)); CREATE TOPIC log ({COLUMNS})")
        for name, select in NEAR.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select.format('t')}")
        ws.sql(f"CREATE MATERIALIZED VIEW appended AS {NEAR['several'].format('log')}")
    return tmp_path / "w"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A workspace with the table alone."""
    with hw.open(tmp_path_factory.mktemp("bare") / "w", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC t ({COLUMNS}, PRIMARY KEY (id))")
        yield ws


def row(chance: random.Random, number: int) -> dict[str, Any]:
    minutes = chance.choice([None, *range(0, 200, 7)])
    return {
        "id": number,
        "k": chance.choice(["a", "A", "b", None]),
        "at": None if minutes is None else START + timedelta(minutes=minutes),
        "x": chance.choice([None, 0.1, 0.2, 0.3, -7.5, 1e9, -0.0]),
        "n": chance.choice([None, -3, 5, 2**40]),
        "i": chance.choice([None, *range(8)]),
        "m": chance.choice([None, Decimal("0.01"), Decimal("-12.34"), Decimal("9999999999.99")]),
        "d": chance.choice([None, *(date(2026, 2, n) for n in (27, 28)), date(2026, 3, 1), date(2026, 3, 4)]),
        "s": chance.choice([None, "", "x", "é"]),
    }


@pytest.mark.long
def test_frames_are_what_spark_says_through_updates_deletions_and_restarts(
    folder: Path, spark: SparkSession
) -> None:
    chance = random.Random(11)
    known: set[int] = set()
    for _ in range(2):
        with hw.open(folder, durability="os", spark=spark) as ws:
            for _ in range(2):
                changed = chance.sample(range(40), 15)
                gone = [n for n in changed if n in known and chance.random() < 0.3]
                come = [n for n in changed if n not in gone]
                if gone:
                    ws.topic("t").delete([{"id": n} for n in gone])
                ws.topic("t").append([row(chance, n) for n in come])
                ws.topic("log").append([row(chance, n) for n in come])
                known = (known - set(gone)) | set(come)
                assert ws.run(tick_rows=chance.choice([12, 100])).stopped == {}
            verified = ws.verify()
            assert verified.differences == ()
            assert {row["id"] for row in ws.query("SELECT id FROM plain").to_pylist()} == known


@pytest.mark.parametrize("name", [*NEAR, *FAR])
def test_only_frames_that_slide_ahead_by_fixed_lengths_are_found_near_changes(
    name: str, bare: hw.Workspace
) -> None:
    select = {**NEAR, **FAR}[name]
    bare.sql(f"CREATE MATERIALIZED VIEW {name} AS {select.format('t')}")
    explained = bare.sql(f"EXPLAIN {name}")
    assert explained is not None
    graph = next(r["value"] for r in explained.to_pylist() if r["property"] == "graph")
    assert ("recompute near changes" in graph) == (name in NEAR)
    assert ("recompute whole groups" in graph) == (name in FAR)


def test_a_change_says_which_rows_it_altered(bare: hw.Workspace) -> None:
    bare.sql(f"""
        CREATE TOPIC c (id BIGINT, k STRING, at TIMESTAMP, x DOUBLE);
        CREATE MATERIALIZED VIEW sums AS SELECT id, sum(x) OVER ({HOUR}) AS y FROM c""")
    rows = [{"id": n, "k": "a", "at": START + timedelta(minutes=20 * n), "x": 1.0} for n in range(12)]
    bare.topic("c").append(rows)
    first = bare.run().tick
    bare.topic("c").append([{"id": 99, "k": "a", "at": START + timedelta(minutes=50), "x": 0.5}])
    bare.run()
    changes = bare.view("sums").changes(since=first).to_pylist()
    assert sorted((c["id"], c["y"], c["_weight"]) for c in changes) == [
        *((n, y, w) for n in (3, 4, 5) for y, w in ((4.0, -1), (4.5, 1))),
        (99, 3.5, 1),
    ]


def test_why_gives_the_rows_of_the_frame(bare: hw.Workspace) -> None:
    bare.sql(f"""
        CREATE TOPIC w (id BIGINT, k STRING, at TIMESTAMP, x DOUBLE);
        CREATE MATERIALIZED VIEW framed AS SELECT id, sum(x) OVER ({HOUR}) AS y FROM w""")
    rows = [{"id": n, "k": "ab"[n % 2], "at": START + timedelta(minutes=20 * n), "x": 1.0} for n in range(12)]
    bare.topic("w").append(rows)
    bare.run()
    found = bare.view("framed").why({"id": 6})
    assert sorted(r["id"] for r in found.records["w"].to_pylist()) == [4, 6]
