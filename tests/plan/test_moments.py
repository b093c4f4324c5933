"""Variances and covariances of values that are large beside their distances, or near the largest double, in views."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

Row = dict[str, Any]

VIEWS = {
    "spreads": "SELECT g, stddev(x) AS s, var_pop(x) AS v, stddev_pop(y) FILTER (WHERE id > 3) AS f FROM t GROUP BY g",
    "rest": "SELECT g, covar_pop(x, y) AS c, corr(x, y) AS r, skewness(x) AS sk, kurtosis(x) AS ku, regr_slope(y, x) AS sl, "
    "regr_sxx(y, x) AS xx, regr_r2(y, x) AS r2 FROM t GROUP BY g",
    "framed": "SELECT id, stddev(x) OVER (PARTITION BY g) AS s, "
    "var_pop(x) OVER (PARTITION BY g ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS v FROM t",
    "told_apart": "SELECT g, stddev(DISTINCT x) AS s, var_pop(DISTINCT y) FILTER (WHERE id > 3) AS f, regr_sxx(DISTINCT y, x) AS xx "
    "FROM t GROUP BY g",
    "whole": "SELECT var_samp(y) AS v FROM t WHERE g = 0",
}
KINDS: Sequence[Callable[[random.Random], tuple[float, float]]] = (
    # microseconds since 1970, of one hundredth of a second
    lambda chance: (1.7e15 + chance.randrange(9999), 1.7e15 + chance.randrange(9999)),
    # squares of these are no doubles
    lambda chance: (chance.uniform(1, 2) * 1e150, chance.uniform(1, 2) * 1e147),
    lambda chance: (chance.uniform(-1, 1), chance.uniform(5, 6)),
)
AROUND_ZERO = {
    "grouped": "SELECT g, covar_pop(x, y) AS a, covar_samp(y, z) AS b, corr(x, y) AS c, skewness(x) AS d, kurtosis(x) AS e, "
    "regr_slope(y, x) AS f, regr_intercept(y, x) AS h, regr_sxy(y, x) FILTER (WHERE id % 3 > 0) AS i FROM t GROUP BY g",
    "told_apart": "SELECT g, covar_pop(DISTINCT x, y) AS a, skewness(DISTINCT x) AS b FROM t GROUP BY g",
    "cubed": "SELECT g, o, covar_pop(x, y) AS a FROM t GROUP BY CUBE (g, o)",
    "whole": "SELECT covar_pop(x, y) AS a, skewness(x) AS b FROM t WHERE g < 3",
    "over_groups": "SELECT id, covar_pop(x, y) OVER (PARTITION BY g) AS a, skewness(x) OVER (PARTITION BY g ORDER BY o) AS b FROM t",
    "over_ranges": "SELECT id, covar_pop(x, y) OVER (PARTITION BY g ORDER BY o RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS a, "
    "stddev(x) OVER (PARTITION BY g ORDER BY o RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS b FROM t",
}
OUTLIERS = (0.0, -1.0, 1e300, 1.7e308, 1e20)


def by_hand(rows: Sequence[Row], a: str, b: str) -> float:
    """The sum of products of distances from the means."""
    pairs = [(Fraction(r[a]), Fraction(r[b])) for r in rows if r[a] is not None and r[b] is not None]
    n = len(pairs)
    found = sum(x * y for x, y in pairs) - sum(x for x, _ in pairs) * sum(y for _, y in pairs) / n
    try:
        return float(found)
    except OverflowError:
        return math.inf


def test_moments_have_their_digits_through_changes(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(2)
    rows: dict[int, Row] = {}
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (id BIGINT, g BIGINT, x DOUBLE, y DOUBLE, PRIMARY KEY (id))")
        for name, select in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
        for turn in range(3):
            for number in chance.sample(range(30), 20):
                if number in rows and chance.random() < 0.3:
                    del rows[number]
                    ws.topic("t").delete([{"id": number}])
                    continue
                x, y = KINDS[number % 3](chance)
                rows[number] = {"id": number, "g": number % 3, "x": x, "y": chance.choice([y, y, None])}
                ws.topic("t").append([rows[number]])
            odd: list[Row] = [
                {"id": 100 + group, "g": group, "x": chance.choice(OUTLIERS), "y": 1e100}
                for group in range(3)
            ]
            if turn == 1:  # what goes with the next turn leaves nothing of itself
                ws.topic("t").append(odd)
                rows |= {row["id"]: row for row in odd}
            elif turn == 2:
                ws.topic("t").delete([{"id": row["id"]} for row in odd])
                rows = {number: row for number, row in rows.items() if number < 100}
            assert ws.run(tick_rows=chance.choice([7, 100])).stopped == {}
            for row in ws.view("spreads").read().to_pylist():
                own = [r for r in rows.values() if r["g"] == row["g"]]
                squares = by_hand(own, "x", "x")
                assert row["v"] == pytest.approx(squares / len(own), rel=1e-12)
                assert row["s"] == pytest.approx(math.sqrt(squares / (len(own) - 1)), rel=1e-12)
            for row in ws.view("told_apart").read().to_pylist():
                own = list({r["x"]: r for r in rows.values() if r["g"] == row["g"]}.values())
                wanted = math.sqrt(by_hand(own, "x", "x") / (len(own) - 1))
                assert row["s"] == pytest.approx(wanted, rel=1e-12)
            assert [found.message for found in ws.verify().differences] == []
        for row in ws.view("rest").read().to_pylist():
            own = [r for r in rows.values() if r["g"] == row["g"] and r["y"] is not None]
            assert row["c"] == pytest.approx(by_hand(own, "x", "y") / len(own), rel=1e-9)
            assert row["sl"] == pytest.approx(by_hand(own, "x", "y") / by_hand(own, "x", "x"), rel=1e-9)


def test_moments_around_zero_do_not_depend_on_the_order_of_rows(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(4)
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(
            "CREATE TOPIC t (id BIGINT, g BIGINT, o BIGINT, x BIGINT, y BIGINT, z BIGINT, PRIMARY KEY (id)) WITH (partitions = 3)"
        )
        for name, select in AROUND_ZERO.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
        rows: dict[int, Row] = {}
        for _ in range(3):
            for number in chance.sample(range(1500), 700):
                rows[number] = {
                    "id": number,
                    "g": chance.randrange(150),
                    "o": chance.randrange(3),
                    **{column: chance.randrange(-3, 4) for column in "xyz"},
                }
            ws.topic("t").append(list(rows.values()))
            assert ws.run().stopped == {}
        for row in ws.view("grouped").read().to_pylist():
            own = [r for r in rows.values() if r["g"] == row["g"]]
            assert row["a"] == pytest.approx(by_hand(own, "x", "y") / len(own), rel=1e-12, abs=1e-14)
        assert [found.message for found in ws.verify().differences] == []
