"""The one Spark session that all tests of a worker share: starting it takes seconds, so it is started once and kept."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def make_session() -> SparkSession:
    """The session; the same one again where there is one already."""
    from pyspark.sql import SparkSession

    os.environ.update(
        JAVA_HOME=str(find_java().home), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"
    )
    place = Path(tempfile.gettempdir()) / f"headwater-tests-spark-{os.getpid()}"
    place.mkdir(exist_ok=True)
    # Spark's own log of what tests provoke is of no use: the errors reach the tests.
    quiet = place / "log4j2.properties"
    quiet.write_text("rootLogger.level = off\n", encoding="utf-8")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Thousands of plans that run once each: the second compiler and the parallel collector cost more than they give.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile=file:{quiet}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    }
    builder = SparkSession.builder.master("local[2,4]").appName("headwater-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
