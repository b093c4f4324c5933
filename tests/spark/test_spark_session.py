"""A session of the user's, and ours beside it: queries mean the same whatever Spark was started with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headwater.spark.spark_session import own_session

pytestmark = pytest.mark.slow

OTHERS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}
QUERY = """
    SELECT typeof(CAST(1 AS DECIMAL(38, 10)) * CAST(1 AS DECIMAL(38, 10))) AS product, "text" AS text,
           CAST(TIMESTAMP '2026-01-01 00:00:00Z' AS STRING) AS at, try_to_timestamp('2026-1-1', 'yyyy-MM-dd') AS lenient, count(*) AS n
    GROUP BY 1
"""


@pytest.fixture
def strange(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark as if it had been started with settings that change what queries mean."""
    started = spark._jsparkSession.sharedState().conf()
    before = {name: started.get(name, None) for name in OTHERS}
    for name, value in OTHERS.items():
        started.set(name, value)
    yield spark
    for name, kept in before.items():
        started.remove(name) if kept is None else started.set(name, kept)


def test_settings_that_spark_was_started_with_change_no_meaning(
    spark: SparkSession, strange: SparkSession
) -> None:
    assert strange.newSession().conf.get("spark.sql.groupByOrdinal") == "false", "they are in force elsewhere"
    rows = own_session(strange).sql(QUERY).collect()
    assert [tuple(row) for row in rows] == [("decimal(38,6)", "text", "2026-01-01 00:00:00", None, 1)]
