"""One Spark for all tests of the runtime that need one."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.runtime.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A local session with two cores, in which a task may fail three times."""
    from pyspark.sql import SparkSession

    place = tmp_path_factory.mktemp("spark")
    before = dict(os.environ)
    os.environ.update(
        JAVA_HOME=str(find_java().home), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"
    )
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{_quiet(place)}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINTS)
        .getOrCreate()
    )
    yield session
    session.stop()
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]


_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def _quiet(place: Path) -> Path:
    """Spark's own log of what tests provoke is of no use: the errors reach the tests."""
    file = place / "log4j2.properties"
    file.write_text("rootLogger.level = off\n", encoding="utf-8")
    return file
