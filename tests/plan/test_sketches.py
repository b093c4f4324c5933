"""Sketches in views: what they hold is within the stated bound of the exact answer, and `verify` says so."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.operators.aggregate.frequent_items import FrequentItems
from headwater.verify.sketch_bounds import out_of_bounds
from tests.raising import raises

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


QUANTILES = {
    "each": "SELECT g, percentile_approx(n, 0.5, 20) AS n, percentile_approx(x, array(0.0, 0.1, 0.9, 1.0), 10) AS x, "
    "approx_percentile(d, 0.25) AS d, percentile_approx(at, 0.75, 5) AS at, avg(x) AS mean, approx_count_distinct(n) AS values FROM {} GROUP BY g",
    "untold": "SELECT percentile_approx(n, 0.5, 20) AS n FROM {} GROUP BY g",
    "windows": "SELECT window(at, '10 minutes', '5 minutes').start AS w, percentile_approx(n, 0.9, 7) AS n FROM {} GROUP BY 1",
    "in_sessions": "SELECT session_window(at, '10 seconds') AS w, percentile_approx(n, 0.9, 7) AS n FROM {} GROUP BY 1",
    "rolled": "SELECT g, s, percentile_approx(n, 0.5, 9) FILTER (WHERE x > 0) AS n FROM {} GROUP BY ROLLUP (g, s)",
    "whole": "SELECT percentile_approx(n, 0.5, 11) AS n FROM {} WHERE 100 / (n - 399) < 100",
}
EXACT = {
    "computed": "SELECT g, percentile_approx(n, 0.9, 5) - percentile_approx(n, 0.1, 5) AS spread FROM {} GROUP BY g",
    "chosen": "SELECT g, approx_count_distinct(n) AS m FROM {} GROUP BY g HAVING percentile_approx(n, 0.5, 5) > 100",
    "listed": "SELECT g, percentile_approx(n, 0.5, 5) AS n, collect_set(s) AS s FROM {} GROUP BY g",
    "framed": "SELECT at, n, percentile_approx(n, 0.5, 5) OVER (PARTITION BY g) AS m FROM {}",
}


def test_percentiles_are_within_their_bounds_and_exact_where_they_must_be(
    tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(2)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC facts ({COLUMNS}); CREATE TOPIC rows (id BIGINT, {COLUMNS}, PRIMARY KEY (id))")
        for name, select in (QUANTILES | EXACT).items():
            options = "WITH (on_error = 'divert')" if name == "whole" else ""
            ws.sql(f"CREATE MATERIALIZED VIEW {name} {options} AS {select.format('facts')}")
        ws.sql(f"CREATE MATERIALIZED VIEW of_rows AS {QUANTILES['each'].format('rows')}")
        ws.sql(
            "CREATE MATERIALIZED VIEW above AS SELECT g, n * 2 AS n, size(x) AS many FROM each WHERE n > 0"
        )
        kept = {name for name in QUANTILES if "in a sketch" in explained(ws, name)}
        assert kept == QUANTILES.keys()
        assert all(
            "answered exactly" in explained(ws, name) for name in ("of_rows", "computed", "chosen", "listed")
        )
        assert "n: a value whose rank is off by 1/20 of the values at most" in explained(ws, "each")
        assert "count(distinct n)" in explained(ws, "of_rows").lower()
        for size in (3, 40, 700, 1_200):
            made = some_rows(chance, size)
            ws.append({"facts": made, "rows": [{"id": chance.randrange(50), **row} for row in made]})
            ws.run()
        assert [finding.message for finding in ws.verify().differences] == []


FREQUENT = {
    "each": "SELECT g, approx_top_k(s, 3, 50) AS s, approx_top_k(x) AS x, approx_top_k(n, 2, 4) AS n, approx_top_k(d, 1, 1) AS d, "
    "approx_top_k(at, 2, 9) AS at, approx_top_k(big, 2, 9) AS big, approx_top_k(n > 5) AS b, count(*) AS c, percentile_approx(n, 0.5, 20) AS p "
    "FROM {} GROUP BY g",
    "untold": "SELECT approx_top_k(s, 4, 30) AS s FROM {} GROUP BY g",
    "windows": "SELECT window(at, '10 minutes', '5 minutes').start AS w, approx_top_k(n, 2, 5) AS n FROM {} GROUP BY 1",
    "in_sessions": "SELECT session_window(at, '10 seconds') AS w, approx_top_k(coalesce(n, 0), 2, 5) AS n FROM {} GROUP BY 1",
    "rolled": "SELECT g, n % 3 AS r, approx_top_k(s, 2, 7) FILTER (WHERE x > 0) AS s FROM {} GROUP BY ROLLUP (g, n % 3)",
    "whole": "SELECT approx_top_k(s) AS s FROM {}",
}
REFUSED = {
    "approx_top_k(s) AS s FROM rows": {"reason": "approx-top-k"},
    "approx_top_k(s)[0].item AS s FROM facts": {"reason": "approx-top-k"},
    "approx_top_k(DISTINCT s) AS s FROM facts": {"reason": "approx-top-k"},
    "approx_top_k(s) AS s, collect_set(g) AS g FROM facts": {"reason": "approx-top-k"},
    "at, approx_top_k(s) OVER (PARTITION BY g) AS s FROM facts": {"reason": "approx-top-k"},
    "approx_top_k_accumulate(s) AS s FROM facts": {"reason": "approx-top-k"},
    "approx_top_k(s COLLATE UTF8_LCASE) AS s FROM facts": {"reason": "unsupported-type"},
    "approx_top_k(s, 0) AS s FROM facts": {"reason": "approx-top-k-size"},
    "approx_top_k(s, 3, 2) AS s FROM facts": {"reason": "approx-top-k-size"},
}


def test_frequent_values_are_within_their_bounds_and_refused_where_they_have_none(
    tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(3)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC facts ({COLUMNS}); CREATE TOPIC rows (id BIGINT, {COLUMNS}, PRIMARY KEY (id))")
        for select, facts in REFUSED.items():
            with raises(hw.StatementError, **facts) as refused:
                ws.sql(f"CREATE MATERIALIZED VIEW refused AS SELECT {select}")
            assert "^^^^" in str(refused.value)
        for name, select in FREQUENT.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select.format('facts')}")
        ws.sql("CREATE MATERIALIZED VIEW above AS SELECT g, s[0].item AS s, size(x) AS many FROM each")
        assert {name for name in FREQUENT if "in a sketch" in explained(ws, name)} == FREQUENT.keys()
        assert "n: counts are never too large, and too small by 1/5 of the values" in explained(ws, "each")
        made = []
        for size in (3, 40, 700, 1_200):
            made += (rows := some_rows(chance, size))
            ws.append({"facts": rows})
            ws.run()
        found = ws.query("SELECT * FROM each").to_pylist()
        assert [finding.message for finding in ws.verify().differences] == []
    for row in found:  # few different values are counted exactly, NULL too
        true = Counter(str(r["x"] if r["x"] != 0 else 0.0) for r in made if r["g"] == row["g"])
        assert [pair["count"] for pair in row["x"]] == sorted(true.values(), reverse=True)[:5]
        assert all(true[str(pair["item"])] == pair["count"] for pair in row["x"])


@pytest.mark.parametrize(
    ("shown", "is_found"),
    [
        ([("a", 9), ("b", 5)], False),
        ([("a", 7), ("b", 3)], False),  # 15 values, off by 5 at most if two are tracked
        ([("a", 9), ("c", 4)], True),
        ([("a", 10), ("b", 5)], True),
        ([("a", 6), ("b", 5)], True),
        ([("b", 5), ("a", 9)], True),
        ([("a", 9)], True),
        ([("a", 9), ("d", 5)], True),
        ([("a", 9), ("a", 9)], True),
        ([("a", 9), ("b", 5), ("c", 1)], True),
        (None, True),
    ],
)
def test_frequent_values_outside_of_their_bounds_are_found(
    shown: list[tuple[str, int]] | None, is_found: bool
) -> None:
    sketch = FrequentItems(pa.string(), 2, 4)
    schema = pa.schema([("g", pa.int64()), ("top", sketch.result)])
    every = [(item, 1) for item in "aaaaaaaaabbbbbc"]

    def made(top: object) -> pa.Table:
        return pa.table([[1, 2, 3], [top, [("x", 1)], []]], schema=schema)

    few = made(every)
    if shown == [("a", 7), ("b", 3)]:
        assert out_of_bounds(made(shown), few, few, [1], {1: sketch}) is not None  # all values are tracked
        sketch = FrequentItems(pa.string(), 2, 2)
    told = out_of_bounds(made(shown), few, few, [1], {1: sketch})
    assert (told is not None) == is_found


@pytest.mark.parametrize(
    ("wrong", "is_found"), [(0, False), (4, False), (30, True), (-30, True), (None, True)]
)
def test_a_value_outside_of_its_bounds_is_found(wrong: int | None, is_found: bool) -> None:
    schema = pa.schema(
        [("g", pa.int64()), ("mean", pa.float64()), ("p", pa.int64()), ("all", pa.list_(pa.int64()))]
    )

    def made(shift: int | None, change: int = 0) -> pa.Table:
        values = [None if shift is None else 100 + shift, 200 + change, 200 + change]
        lists = [[v, 1 + change] if v is not None else None for v in values]
        return pa.table([[1, 2, 2], [0.1, 0.2, 0.2 + 1e-15], values, lists], schema=schema)

    told = out_of_bounds(made(wrong), made(0, -5), made(4, 5), [2, 3])
    assert (told is not None) == is_found
    if is_found:
        assert "1 values of p outside of their bounds, such as {'g': 1" in str(told)
    lists = made(0).set_column(3, "all", [[[104, 1], [200, 9], [200, 1]]])
    assert "values of all outside" in str(out_of_bounds(lists.cast(schema), made(0, -5), made(4, 5), [2, 3]))
    assert "rows missing" in str(out_of_bounds(made(0).slice(1), made(0, -5), made(4, 5), [2, 3]))


def explained(ws: hw.Workspace, view: str) -> str:
    told = ws.sql(f"EXPLAIN {view}")
    assert told is not None
    return " ".join(str(row["value"]) for row in told.to_pylist())
