"""Expressions that look alike where Spark prints them: it cuts lists after 25 parts and quotes no strings. Views that have
many columns, or texts with commas in them, mean what they say nevertheless."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

MANY = 27


def columns(function: str) -> str:
    """More columns than Spark prints, before those that matter."""
    return ", ".join(f"{function.format(f'x + {i}')} AS c{i}" for i in range(MANY))


def longest(last: str) -> str:
    """An expression that differs from others of its kind in its last argument."""
    return f"coalesce({', '.join(f'nullif(x + {i}, x + {i})' for i in range(MANY))}, {last})"


VIEWS = {
    "texts": "SELECT g, max(concat('a, b', k)) AS one, max(concat('a', 'b', k)) AS other FROM {} GROUP BY g",
    "chosen": "SELECT g, count(*) FILTER (WHERE concat(k, 'a, b') = 'za, b') AS one, "
    "count(*) FILTER (WHERE concat(k, 'a', 'b') = 'za, b') AS other FROM {} GROUP BY g",
    "different": "SELECT g, count(DISTINCT concat('a, b', k)) AS one, count(DISTINCT concat('a', 'b', k), x) AS other "
    "FROM {} GROUP BY g",
    "long": f"SELECT g, sum({longest('1')}) AS one, sum({longest('2')}) AS two, count(DISTINCT {longest('x')}) AS three "
    "FROM {} GROUP BY g",
    "picked": f"SELECT g, {columns('max({})')}, max_by(k, x) AS newest FROM {{}} GROUP BY g",
    "sets": f"SELECT g, {columns('max({})')}, collect_set(k) AS ks FROM {{}} GROUP BY g",
    "windows": f"SELECT id, {columns('max({}) OVER (PARTITION BY g)')}, collect_set(k) OVER (PARTITION BY g) AS ks, "
    "min_by(k, x) OVER (PARTITION BY g) AS oldest FROM {}",
    "listed": f"SELECT g, {columns('max({})')}, array_sort(array_agg(k), (a, b) -> 0) AS ks, "
    "listagg(k) WITHIN GROUP (ORDER BY x) AS l FROM {} GROUP BY g",
    "sketched": f"SELECT g, {columns('max({})')}, approx_count_distinct(k) AS n FROM {{}} GROUP BY g",
    "several": "SELECT g, max_by(k, x, 2) AS ks, mode(k) AS often, mode(k, true) AS least FROM {} GROUP BY g",
    "tried": "SELECT g, try_sum(x + 9223372036854775800) AS total FROM {} GROUP BY g",
}


@pytest.mark.long
def test_what_looks_alike_is_distinguished(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(1)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        given = "id BIGINT, k STRING, x BIGINT, g BIGINT"
        ws.sql(f"CREATE TOPIC facts ({given}); CREATE TOPIC rows ({given}, PRIMARY KEY (id))")
        for number, (name, select) in enumerate(VIEWS.items()):
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select.format(('facts', 'rows')[number % 2])}")
        for _ in range(3):
            made = [
                {
                    "id": chance.randrange(8),
                    "k": chance.choice(["z", "y", "x", "w", None]),
                    "x": chance.choice([None, 0, 1]),
                    "g": chance.randrange(2),
                }
                for _ in range(9)
            ]
            ws.append({"facts": made, "rows": made})
            assert ws.run().stopped == {}
            assert [d.message for d in ws.verify().differences] == []
        texts = ws.query("SELECT * FROM texts").to_pylist()
        assert all(row["one"].startswith("a, b") and row["other"].startswith("ab") for row in texts)
        assert all(row["other"] == 0 for row in ws.query("SELECT * FROM chosen").to_pylist())
        assert all(row["two"] == 2 * row["one"] for row in ws.query("SELECT * FROM long").to_pylist())
        assert all(sorted(row["ks"]) == row["ks"] for row in ws.query("SELECT ks FROM sets").to_pylist())
        assert all(row["often"] == row["least"] for row in ws.query("SELECT * FROM several").to_pylist())
