"""Sums whose partial sums overflow: a view has the sum of its rows in whatever order they came, and `verify` agrees."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

Row = dict[str, Any]

LONG, WIDE = 2**63 - 1, 10**38 - 1
VIEWS = {
    "sums": "SELECT g, sum(x) AS a, avg(x) AS b, try_avg(x) AS c, try_sum(DISTINCT x) AS d, sum(x) FILTER (WHERE id > -1) AS e, "
    "sum(w) AS f, avg(w) AS h, sum(z) AS i, avg(z) AS j FROM t GROUP BY g",
    "tried": "SELECT g, try_sum(x) AS a, try_sum(w) AS b, try_avg(w) AS c, try_sum(DISTINCT w) AS d, try_sum(z) AS e, "
    "CAST(try_sum(make_dt_interval(100000000) * sign(x)) AS STRING) AS f FROM (SELECT g, x, w, z FROM t WHERE g = 0 OR id % 2 = 0) "
    "GROUP BY g",
    "all_of_them": "SELECT sum(x) AS a, try_sum(w) AS b FROM t",
    "over_groups": "SELECT id, sum(x) OVER (PARTITION BY g) AS a, try_sum(w) OVER (PARTITION BY g) AS b, "
    "avg(z) OVER (PARTITION BY g) AS c FROM t",
    "over_ranges": "SELECT id, sum(x) OVER (PARTITION BY g ORDER BY o RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS a, "
    "sum(w) OVER (PARTITION BY g ORDER BY o RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS b FROM t",
    "tried_ranges": "SELECT id, try_sum(x) OVER (PARTITION BY g ORDER BY o RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS a, "
    "sum(x) OVER (PARTITION BY g ORDER BY o) AS b FROM t",
    "pivoted": "SELECT * FROM (SELECT g, o, x FROM t) PIVOT (sum(x) FOR o IN (0 AS none, 1 AS one))",
    "nested": "SELECT sum(a) AS a, try_sum(b) AS b FROM over_groups",
}


def pair(number: int, chance: random.Random) -> list[Row]:
    """Two rows whose values nearly cancel out: the sums of any pairs fit, and those of other rows often do not."""
    small, group, order = chance.randrange(9), number % 2, chance.randrange(3)
    return [
        {
            "id": 2 * number + half,
            "g": group,
            "o": order,
            "x": sign * (LONG - small * half),
            "w": Decimal(sign * (WIDE - small * half)),
            "z": sign * 1.5e308 if small % 2 else 0.1 * (small + half) * sign,
        }
        for half, sign in enumerate((1, -1))
    ]


def fitting(total: int, most: int) -> int | None:
    return total if -most <= total <= most else None


def test_a_sum_is_that_of_its_rows_though_parts_of_it_overflow(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(11)
    rows: dict[int, Row] = {}
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(
            "CREATE TOPIC t (id BIGINT, g BIGINT, o BIGINT, x BIGINT, w DECIMAL(38, 0), z DOUBLE, PRIMARY KEY (id)) "
            "WITH (partitions = 2)"
        )
        for name, select in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
        for _ in range(3):
            for number in chance.sample(range(6), 4):
                if 2 * number in rows and chance.random() < 0.4:
                    gone = [{"id": 2 * number}, {"id": 2 * number + 1}]
                    ws.topic("t").delete(gone)
                    for key in gone:
                        del rows[key["id"]]
                    continue
                made = pair(number, chance)
                chance.shuffle(made)
                ws.topic("t").append(made)
                rows |= {row["id"]: row for row in made}
            assert ws.run(tick_rows=chance.choice([2, 100])).stopped == {}
            for row in ws.view("sums").read().to_pylist():
                own = [r for r in rows.values() if r["g"] == row["g"]]
                assert (row["a"], row["f"]) == (sum(r["x"] for r in own), sum(int(r["w"]) for r in own))
            for row in ws.view("tried").read().to_pylist():
                own = [r for r in rows.values() if r["g"] == row["g"] and (r["g"] == 0 or r["id"] % 2 == 0)]
                assert row["a"] == fitting(sum(r["x"] for r in own), LONG)
                assert row["b"] == fitting(sum(int(r["w"]) for r in own), WIDE)
        assert [found.message for found in ws.verify().differences] == []


def test_a_frame_of_rows_has_an_order_and_keeps_what_spark_makes_of_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (id BIGINT, x BIGINT)")
        framed = (
            "try_sum(x) OVER (PARTITION BY 1 ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        )
        ws.sql(f"CREATE MATERIALIZED VIEW v AS SELECT id, {framed} AS a FROM t")
        ws.topic("t").append([{"id": n, "x": x} for n, x in enumerate([LONG, 1, -5])])
        ws.run()
        found = sorted((row["id"], row["a"]) for row in ws.view("v").read().to_pylist())
        spark.createDataFrame(ws.query("SELECT * FROM t").to_pylist()).createOrReplaceTempView("exact_sums")
        batch = spark.sql(f"SELECT id, {framed} AS a FROM exact_sums").collect()
        assert found == sorted((row["id"], row["a"]) for row in batch)
        assert ws.verify().ok


def test_a_sum_that_does_not_fit_fits_again_when_rows_go(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (id BIGINT, x BIGINT, PRIMARY KEY (id))")
        ws.sql("CREATE MATERIALIZED VIEW failing AS SELECT sum(x) AS a FROM t")
        ws.sql("CREATE MATERIALIZED VIEW tried AS SELECT try_sum(x) AS a FROM t")
        ws.topic("t").append([{"id": 1, "x": LONG}, {"id": 2, "x": LONG}])
        assert set(ws.run().stopped) == {"failing"}
        assert ws.view("tried").read().to_pylist() == [{"a": None}]
        ws.topic("t").append([{"id": 1, "x": -LONG}])
        ws.run()
        assert ws.view("tried").read().to_pylist() == [{"a": 0}]
