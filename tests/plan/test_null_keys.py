"""Rows that a join excludes for a NULL key: an expression that would fail on them is not evaluated, by views nor by `verify`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

VIEWS = {
    "left_side": "SELECT a.id, a.n, r.v FROM (SELECT id, k, CAST(s AS INT) AS n FROM l) a JOIN r ON a.k = r.id",
    "right_side": "SELECT r.id, a.n FROM r JOIN (SELECT k, 10 DIV CAST(s AS INT) AS n FROM l) a ON a.k = r.id",
    "outer_side": "SELECT r.id, a.n FROM r LEFT JOIN (SELECT k, CAST(s AS INT) AS n FROM l) a ON a.k = r.id",
    "semi": "SELECT a.id, a.n FROM (SELECT id, k, CAST(s AS INT) AS n FROM l) a WHERE a.k IN (SELECT id FROM r)",
    "totals": "SELECT r.v, sum(a.n) AS total FROM (SELECT k, CAST(s AS INT) AS n FROM l) a JOIN r ON a.k = r.id GROUP BY r.v",
    "above": "SELECT t.id, t.n FROM (SELECT k AS id, CAST(s AS INT) AS n FROM l) t JOIN left_side b ON b.id = t.id",
}


def test_a_view_over_joins_holds_where_expressions_fail_on_rows_without_a_key(
    tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(5)
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC l (id BIGINT, k BIGINT, s STRING, PRIMARY KEY (id));
            CREATE TOPIC r (id BIGINT, v BIGINT, PRIMARY KEY (id));
        """)
        for name, select in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
        for _ in range(3):
            left = []
            for number in chance.sample(range(8), 5):
                key = chance.choice([1, 2, 3, None])
                text = chance.choice(["x", "", "0"]) if key is None else chance.choice(["5", "7"])
                kind = chance.choice(["upsert", "upsert", "delete"])
                left.append({"id": number, "k": key, "s": text, "_op": kind})
            ws.topic("l").append([*left, {"id": 9, "k": None, "s": "x"}])
            ws.topic("r").append([{"id": chance.randrange(1, 4), "v": chance.randrange(2)}])
            assert ws.run(tick_rows=chance.choice([2, 100])).stopped == {}
            assert [found.message for found in ws.verify().differences] == []
        asked = ws.query(
            "SELECT a.n FROM (SELECT k, CAST(s AS INT) AS n FROM l) a JOIN r ON a.k = r.id WHERE r.v >= 0"
        )
        assert asked.num_rows == ws.view("left_side").read().num_rows
