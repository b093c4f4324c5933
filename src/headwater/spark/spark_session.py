"""Spark, brought up quietly: one session per process, shared by every workspace in it.

Started at first need and kept until the process ends; started again if its JVM has ended before.
`HEADWATER_SPARK_MASTER=spark://host:7077` and, in general, `HEADWATER_SPARK_<A>_<B>=value` for `spark.a.b`, bring
one's own cluster; a session that is running already, or that was given to `hw.open(..., spark=session)`, is used as
it is, through a session of our own beside it.
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
    _TEXT: "100000",  # plans tell expressions apart by their text
}
"""What the meaning of a query depends on: the same in every session that we evaluate in, whatever the user's own says."""
_MEANING = re.compile(
    r"spark\.sql\.(legacy|ansi|parser|decimalOperations|lateralColumnAlias|datetime)\."
    r"|spark\.sql\.(groupByOrdinal|orderByOrdinal|groupByAliases|pivotMaxValues|storeAssignmentPolicy|session\.collation.*)$"
)
"""Further settings of this kind, which have Spark's defaults with us: views are made anew by who starts with others."""

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
"""Unless the master is on another machine, whose executors must find their way to the driver."""

_IS_HERE = re.compile(r"local(\[|$)|spark://(127\.0\.0\.1|localhost):\d+$")

_lock = threading.Lock()
_started: SparkSession | None = None


@own_errors(unplanned)
def session(given: SparkSession | None = None) -> SparkSession:
    """A session with our semantics: of the one given, of the one that is active, or of one that is started now."""
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
    """Whether the JVM that this process has started for a session was killed, or ran out of memory."""
    jvm = getattr(spark.sparkContext._gateway, "proc", None)
    return jvm is not None and jvm.poll() is not None


def _forget(spark: SparkSession) -> None:
    """Have PySpark start another JVM: it keeps to the one that it has started, also when that has ended."""
    from pyspark import SparkContext

    with contextlib.suppress(Exception):  # that it cannot be stopped any more
        spark.sparkContext._jsc.stop()
    spark.sparkContext._jsc = None
    spark.sparkContext.stop()
    SparkContext._gateway = SparkContext._jvm = None


def ui_address(spark: SparkSession) -> str | None:
    """Where Spark's own pages are, if they are on."""
    return spark.sparkContext.uiWebUrl


def configuration(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What Spark is started with: our defaults, then the environment's."""
    given = {
        "spark." + name[len(ENVIRONMENT_PREFIX) :].lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    here = _HERE if _is_here(given.get("spark.master", _DEFAULTS["spark.master"])) else {}
    return {**_DEFAULTS, **here, **given, **SEMANTICS, "spark.pyspark.driver.python": sys.executable}


def _is_here(master: str) -> bool:
    """Whether everything runs on this machine, and need not listen beyond it."""
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
    # Python workers are started with the interpreter that the environment names when the context is made.
    wanted = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": settings["spark.pyspark.python"]}
    if _is_here(settings["spark.master"]):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    # the JVM has a descriptor of its own of what it says
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
                hint="`headwater doctor` checks Java; HEADWATER_SPARK_* variables are passed on to Spark",
            ) from error
    return SparkSession(context)


def _ours(spark: SparkSession) -> SparkSession:
    """A session beside the user's: the same cluster, its own settings and names."""
    # Spark's Python side logs every refused query with its whole stack; the error itself says what is needed.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    own = beside(spark)
    # texts of plans are cut off as the default session says, whichever a plan is of
    sessions = getattr(spark._jvm.org.apache.spark.sql.classic, "SparkSession$")  # type: ignore[union-attr]
    default = getattr(sessions, "MODULE$").getDefaultSession()
    if default.isDefined():
        default.get().conf().set(_TEXT, SEMANTICS[_TEXT])
    return own


@own_errors(unplanned)
def beside(spark: SparkSession) -> SparkSession:
    """Another session on the same cluster, in which queries mean what they mean to us, whatever Spark was started with."""
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
    """A program that sees to Ctrl-C itself goes on doing so: Spark puts a handler of its own in the place of any other."""
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
