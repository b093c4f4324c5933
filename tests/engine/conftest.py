"""One Spark session per test worker, and the batch oracle on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.engine.oracle import Oracle


def make_session() -> SparkSession:
    """The session that all engine tests of a worker share; starting it takes seconds."""
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("headwater-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        # Thousands of plans that run once each: the second compiler and the parallel collector cost more than they give.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The worker's Spark session, stopped at the end."""
    session = make_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def oracle(spark: SparkSession) -> Oracle:
    """The batch oracle on the worker's session."""
    return Oracle(spark)
