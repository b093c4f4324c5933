"""`min_by` and `max_by` where several rows have the least or the greatest ordering: a view and batch take the same one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

COLUMNS = "id BIGINT, k STRING, x DOUBLE, g BIGINT, s STRUCT<a: BIGINT, b: STRING>"
VIEWS = {
    "picked": "SELECT g, max_by(k, x) AS b, min_by(k, x) AS c, max_by(k, x) FILTER (WHERE id > 2) AS d FROM {} GROUP BY g",
    "framed": "SELECT id, max_by(k, x) OVER (PARTITION BY g) AS b, min_by(k, x) OVER (PARTITION BY g ORDER BY x) AS c FROM {}",
    "structs": "SELECT g, max_by(s, x) AS b, min_by(x, s) AS c FROM {} GROUP BY g",
    "by_struct": "SELECT g, max_by(k, struct(x, k)) AS b, max_by(x, x) AS c FROM {} GROUP BY g",
    "whole": "SELECT max_by(k, x) AS b, count(DISTINCT k) AS n, min_by(1, x) AS one FROM {}",
}


def test_of_equal_ones_a_view_takes_what_batch_takes(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(1)
    structs = [None, {"a": 1, "b": None}, {"a": 1, "b": "z"}]
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC facts ({COLUMNS}); CREATE TOPIC rows ({COLUMNS}, PRIMARY KEY (id))")
        for name, select in VIEWS.items():
            for topic in ("facts", "rows"):
                ws.sql(f"CREATE MATERIALIZED VIEW {name}_of_{topic} AS {select.format(topic)}")
        for _ in range(4):
            made = [
                {
                    "id": chance.randrange(10),
                    "k": chance.choice(["a", "b", None]),
                    "x": chance.choice([None, 0.0, 1.0]),
                    "g": chance.randrange(2),
                    "s": chance.choice(structs),
                }
                for _ in range(8)
            ]
            ws.append({"facts": made, "rows": made})
            ws.run()
            assert ws.verify().differences == ()


def test_max_by_takes_the_greatest_of_equal_ones_and_min_by_the_least(
    tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (k STRING, x BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW v AS SELECT max_by(k, x) AS last, min_by(k, x) AS first FROM t")
        ws.topic("t").append([{"k": k, "x": 1} for k in ("b", None, "c", "a")])
        ws.run()
        assert ws.query("SELECT * FROM v").to_pylist() == [{"last": "c", "first": None}]
        told = " ".join(str(row["value"]) for row in ws.sql("EXPLAIN v").to_pylist())
        assert "max_by(k, x), of equal ones the greatest" in told
