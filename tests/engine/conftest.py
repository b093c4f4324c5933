"""The batch oracle on the worker's Spark session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.engine.oracle import Oracle


@pytest.fixture(scope="session")
def oracle(spark: SparkSession) -> Oracle:
    """The batch oracle, in a session of its own."""
    return Oracle(spark)
