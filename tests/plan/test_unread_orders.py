"""An ORDER BY that no LIMIT reads has no effect in a view, and whoever writes one is told so."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

TOLD = "ORDER BY without LIMIT has no effect"
UNREAD = [
    "SELECT k, x FROM t ORDER BY x",
    "SELECT k FROM t ORDER BY x DESC",
    "SELECT k, sum(x) AS s FROM t GROUP BY k ORDER BY s",
    "SELECT k, count(*) AS n FROM (SELECT k FROM t ORDER BY x) GROUP BY k",
    "WITH a AS (SELECT k, x FROM t ORDER BY x) SELECT k FROM a",
    "SELECT k FROM t WHERE x IN (SELECT x FROM t ORDER BY k)",
    "FROM t |> ORDER BY x |> SELECT k",
]
READ = [
    "SELECT k, x FROM t ORDER BY x LIMIT 3",
    "SELECT k FROM t ORDER BY x DESC LIMIT 3 OFFSET 1",
    "SELECT k, count(*) AS n FROM (SELECT k FROM t ORDER BY x LIMIT 3) GROUP BY k",
    "SELECT k, array_agg(x ORDER BY x) AS l, row_number() OVER (ORDER BY k) AS n FROM t GROUP BY k",
    "SELECT k FROM t WHERE x = (SELECT x FROM t ORDER BY k LIMIT 1)",
]


def test_an_order_that_no_limit_reads_is_warned_of(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "w", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (k BIGINT, x BIGINT)")
        for query in (*UNREAD, *READ):
            facts = {row["property"]: row["value"] for row in ws.sql(f"EXPLAIN {query}").to_pylist()}
            assert (TOLD in facts.get("warning", "")) == (query in UNREAD), query
        with pytest.warns(UserWarning, match="view v: ") as given:
            ws.sql(f"CREATE MATERIALIZED VIEW v AS {UNREAD[0]}")
        assert [warning.filename for warning in given] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ws.sql(f"CREATE MATERIALIZED VIEW first AS {READ[0]}")
            with pytest.raises(UserWarning):
                ws.sql(f"CREATE MATERIALIZED VIEW refused AS {UNREAD[0]}")
        assert [view["view"] for view in ws.sql("SHOW VIEWS").to_pylist()] == ["first", "v"]
        facts = {row["property"]: row["value"] for row in ws.sql("EXPLAIN v").to_pylist()}
        assert facts["warning"].startswith(TOLD)
