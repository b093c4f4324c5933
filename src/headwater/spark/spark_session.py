"""The Spark session: one per process, shared by all workspaces of the process.

Spark is started on first use and runs until the process ends; it is restarted if its JVM ended before that.
`HEADWATER_SPARK_MASTER=spark://host:7077` selects an existing cluster, and in general `HEADWATER_SPARK_<A>_<B>=value` sets
`spark.a.b`. A session that is already running, or that was passed to `hw.open(..., spark=session)`, is used unchanged:
Headwater creates its own session on the same cluster.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from headwater.core.errors import HeadwaterError
from headwater.core.malloc import keep_freed_memory
from headwater.spark.java import find_java
from headwater.spark.spark_errors import own_errors, unplanned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENVIRONMENT_PREFIX = "HEADWATER_SPARK_"
_TEXT = "spark.sql.debug.maxToStringFields"
SEMANTICS: Mapping[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    "spark.sql.crossJoin.enabled": "true",
    _TEXT: "100000",  # expressions are compared by their text
}
"""Settings that the meaning of a query depends on; every session that evaluates queries uses these, whatever the user's
session sets."""
_MEANING = re.compile(
    r"spark\.sql\.(legacy|ansi|parser|decimalOperations|lateralColumnAlias|datetime)\."
    r"|spark\.sql\.(groupByOrdinal|orderByOrdinal|groupByAliases|pivotMaxValues|storeAssignmentPolicy|session\.collation.*)$"
)
"""Further settings that affect the meaning of queries. Headwater's sessions use Spark's defaults for these: if they
differed between processes, views would be rebuilt by each process that starts with other values."""

_DEFAULTS: Mapping[str, str] = {
    "spark.master": f"local[{os.cpu_count() or 2},4]",  # the second number: a task may fail three times
    "spark.app.name": "headwater",
    "spark.driver.memory": "2g",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.port.maxRetries": "100",
    "spark.python.daemon.module": "headwater.engine.dataflow.python_worker",
    "spark.pyspark.python": sys.executable,
}
_HERE: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
"""Settings for a master on this machine; not used otherwise, since executors elsewhere must be able to reach the driver."""

_IS_HERE = re.compile(r"local(\[|$)|spark://(127\.0\.0\.1|localhost):\d+$")

_lock = threading.Lock()
_started: SparkSession | None = None


@own_errors(unplanned)
def session(given: SparkSession | None = None) -> SparkSession:
    """Return a session with Headwater's settings: derived from `given`, else from the active session, else from a session
    started now."""
    global _started
    from pyspark.sql import SparkSession

    keep_freed_memory()
    with _lock:
        if given is not None:
            return _ours(given)
        if _started is not None and _has_ended(_started):
            _forget(_started)
        if _started is None or _started._jsc is None or _started._sc._jsc is None:
            _started = _ours(SparkSession.getActiveSession() or _start())
        return _started


def _has_ended(spark: SparkSession) -> bool:
    """Whether the JVM that this process started for a session has exited: it was killed or ran out of memory."""
    jvm = getattr(spark.sparkContext._gateway, "proc", None)
    return jvm is not None and jvm.poll() is not None


def _forget(spark: SparkSession) -> None:
    """Reset PySpark so that it starts another JVM: PySpark keeps using the JVM that it started, even after the JVM has
    exited."""
    from pyspark import SparkContext

    with contextlib.suppress(Exception):  # the JVM may be unable to stop
        spark.sparkContext._jsc.stop()
    spark.sparkContext._jsc = None
    spark.sparkContext.stop()
    SparkContext._gateway = SparkContext._jvm = None


def ui_address(spark: SparkSession) -> str | None:
    """Return the address of the Spark UI, or None if the UI is disabled."""
    return spark.sparkContext.uiWebUrl


def configuration(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the configuration that Spark is started with: Headwater's defaults, overridden by the environment."""
    given = {
        "spark." + name[len(ENVIRONMENT_PREFIX) :].lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    here = _HERE if _is_here(given.get("spark.master", _DEFAULTS["spark.master"])) else {}
    return {**_DEFAULTS, **here, **given, **SEMANTICS, "spark.pyspark.driver.python": sys.executable}


def _is_here(master: str) -> bool:
    """Whether the master runs on this machine; Spark then need not listen on other network interfaces."""
    return _IS_HERE.match(master) is not None


def _start() -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    java = find_java()
    settings = configuration()
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    quiet = resources.files("headwater.spark").joinpath("log4j2.properties")
    conf.setIfMissing("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{quiet}")
    # Python workers use the interpreter that the environment names when the context is created.
    wanted = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": settings["spark.pyspark.python"]}
    if _is_here(settings["spark.master"]):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    # the JVM inherits its own descriptor for stderr
    with tempfile.TemporaryFile() as said, _environment(wanted), _interrupts_kept():
        try:
            gateway = launch_gateway(conf, {"stderr": said})  # type: ignore[no-untyped-call]
            context = SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            said.seek(0)
            lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
            raise HeadwaterError(
                f"Spark did not start: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}",
                detail="\n    ".join(lines[-5:]) or None,
                hint="`headwater doctor` checks Java; HEADWATER_SPARK_* variables set options of Spark",
            ) from error
    return SparkSession(context)


def _ours(spark: SparkSession) -> SparkSession:
    """Return a session on the user's cluster with Headwater's own settings and temporary views."""
    # Spark's Python side logs every rejected query with its full stack trace; the Headwater error is enough.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    own = own_session(spark)
    # Spark truncates the text of every plan by the setting of the default session, whichever session the plan belongs to
    sessions = getattr(spark._jvm.org.apache.spark.sql.classic, "SparkSession$")  # type: ignore[union-attr]
    default = getattr(sessions, "MODULE$").getDefaultSession()
    if default.isDefined():
        default.get().conf().set(_TEXT, SEMANTICS[_TEXT])
    return own


@own_errors(unplanned)
def own_session(spark: SparkSession) -> SparkSession:
    """Return a new session on the same cluster with Headwater's query semantics, whatever settings Spark was started with."""
    own = spark.newSession()
    started = spark._jsparkSession.sharedState().conf().getAll()
    for name in (setting._1() for setting in started):
        if _MEANING.match(name):
            own.conf.unset(name)
    for name, value in SEMANTICS.items():
        own.conf.set(name, value)
    return own


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Restore the program's own handler of Ctrl-C after the block: Spark replaces any SIGINT handler when it starts."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        own = before not in (signal.default_int_handler, signal.SIG_DFL, None)
        if own and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before: dict[str, Any] = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
