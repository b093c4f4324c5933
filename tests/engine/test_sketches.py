"""Sketches in views: what they hold is within the stated bound of the exact answer, and `verify` says so."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
COLUMNS = (
    "at TIMESTAMP, g BIGINT, s STRING, x DOUBLE, n BIGINT, d DECIMAL(12, 2), b BINARY, big DECIMAL(38, 2)"
)
DISTINCT = {
    "each": "SELECT g, approx_count_distinct(s) AS s, approx_count_distinct(x, 0.2) AS x, approx_count_distinct(n, 0.01) AS n, "
    "approx_count_distinct(big) AS big, approx_count_distinct(b) AS b, approx_count_distinct(struct(s, x)) AS both, count(*) AS c "
    "FROM {} GROUP BY g",
    "chosen": "SELECT g, approx_count_distinct(s) FILTER (WHERE x > 0) AS s, "
    "count(DISTINCT s) AS exact, max(n) AS m FROM {} GROUP BY g",
    "rolled": "SELECT g, n % 3 AS r, approx_count_distinct(s) AS s FROM {} GROUP BY ROLLUP (g, n % 3)",
    "windows": "SELECT window(at, '10 minutes', '5 minutes').start AS w, approx_count_distinct(s) AS s FROM {} GROUP BY 1",
    "in_sessions": "SELECT session_window(at, '1 minute') AS w, approx_count_distinct(n) AS n FROM {} GROUP BY 1",
    "of_different": "SELECT g, approx_count_distinct(DISTINCT n) AS n FROM {} GROUP BY g",
    "whole": "SELECT approx_count_distinct(s) AS s FROM {}",
    "used": "SELECT g, approx_count_distinct(n) * 100 / count(*) AS share FROM {} GROUP BY g HAVING approx_count_distinct(n) > 2",
}


def some_rows(chance: random.Random, count: int) -> list[dict[str, object]]:
    def one_of(*values: object) -> object:
        return chance.choice(values)

    return [
        {
            "at": NOON + timedelta(seconds=chance.randrange(3_600)),
            "g": chance.randrange(3),
            "s": one_of(None, "", "é", f"word {chance.randrange(500)}"),
            "x": one_of(None, 0.0, -0.0, float("nan"), float(chance.randrange(100))),
            "n": one_of(None, chance.randrange(400), chance.randrange(2**62)),
            "d": one_of(None, Decimal("1.50"), Decimal(f"{chance.randrange(100)}.25")),
            "b": one_of(None, b"", bytes([chance.randrange(256)])),
            "big": one_of(None, Decimal("1.50"), Decimal(f"{chance.randrange(10**30)}.25")),
        }
        for _ in range(count)
    ]


def test_approximate_counts_are_sparks_to_the_digit(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(1)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC facts ({COLUMNS}); CREATE TOPIC rows (id BIGINT, {COLUMNS}, PRIMARY KEY (id))")
        for name, select in DISTINCT.items():
            for topic in ("facts", "rows") if name in ("each", "whole") else ("facts",):
                ws.sql(f"CREATE MATERIALIZED VIEW {name}_of_{topic} AS {select.format(topic)}")
        told = {name: explained(ws, f"{name}_of_facts") for name in DISTINCT}
        assert [name for name, text in told.items() if "whole groups" in text] == []
        for size in (3, 40, 1_500):
            made = some_rows(chance, size)
            ws.append({"facts": made, "rows": [{"id": chance.randrange(50), **row} for row in made]})
            ws.run()
        assert ws.verify().differences == ()


def explained(ws: hw.Workspace, view: str) -> str:
    told = ws.sql(f"EXPLAIN {view}")
    assert told is not None
    return " ".join(str(row["value"]) for row in told.to_pylist())
