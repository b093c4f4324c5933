"""A Spark job that checks what executors need to run stages: Python, packages, the workspace's folder, clock and memory.

The tasks import only the standard library and pyarrow, and travel by value, so that they report an executor without Headwater,
or with another version of it, instead of failing there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.core.clock import SystemClock
from headwater.core.errors import SparkJobError
from headwater.core.settings import format_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("headwater", "pyarrow", "numpy", "orjson", "xxhash")
"""Packages whose versions executors and driver compare."""
TASKS_PER_CORE = 4
TASK_S = 0.05
"""Duration of a task, in seconds, so that every core gets some."""
CLOCK_MAX_S = 1.0
MEMORY_MIN = 2 << 30
MARKER = "headwater.json"
"""The file that a workspace's folder has, which executors compare with the driver's."""


@dataclass(frozen=True)
class ExecutorFacts:
    """The report of one Python process of an executor."""

    host: str
    process: int
    python: str
    packages: dict[str, str | None]
    workspace: str | None
    """Digest of the workspace's marker file; None if the file cannot be read."""
    error: str | None
    """Why the workspace's folder cannot be read or written; None if it can."""
    written: str | None
    """Name of the file that the executor has written to the folder."""
    at_s: float
    memory_bytes: int


@dataclass(frozen=True)
class ExecutorFault:
    """What is wrong on an executor, and what to do."""

    executor: str
    sentence: str
    hint: str


@dataclass(frozen=True)
class ClusterReport:
    """The executors that the job has reached, and their faults."""

    master: str
    executors: Sequence[ExecutorFacts]
    differences: Sequence[ExecutorFault]


def check_cluster(spark: SparkSession, root: str) -> ClusterReport:
    """Run a job on all executors, and compare what they report with this process. SparkJobError if the job fails, for
    example because executors have no Headwater to start Python workers with."""
    from py4j.protocol import Py4JError
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException

    probe = f".doctor-{uuid.uuid4().hex[:8]}"
    tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    module = sys.modules[__name__]
    clock = SystemClock()
    began = clock.now_us() / 1e6
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        numbers = spark.range(0, tasks, 1, tasks)
        rows = numbers.mapInArrow(_reporting(root, probe, TASK_S), "facts string").collect()
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        last = next(
            (line for line in reversed(lines) if "Error" in line and not line.startswith("at ")), lines[0]
        )
        raise SparkJobError(
            "executors could not run a Python task",
            detail=last,
            hint="install the same version of headwater in the Python that HEADWATER_SPARK_PYSPARK_PYTHON names, on every machine",
        ) from error
    finally:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    ended = clock.now_us() / 1e6
    by_process: dict[tuple[str, int], ExecutorFacts] = {}
    for row in rows:
        facts = ExecutorFacts(**json.loads(row.facts))
        by_process.setdefault((facts.host, facts.process), facts)
    here = ExecutorFacts(**_facts(root, None))
    seen = _written(root, probe)
    differences = [
        difference
        for facts in by_process.values()
        for difference in _differences(facts, here, seen, (began, ended))
    ]
    return ClusterReport(spark.sparkContext.master or "local", list(by_process.values()), differences)


def _reporting(
    root: str, probe: str, seconds: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [json.dumps(_facts(root, probe)) for _ in range(batch.num_rows)]
            time.sleep(seconds)
            yield pa.RecordBatch.from_arrays([pa.array(found)], names=["facts"])

    return run


def _facts(root: str, probe: str | None) -> dict[str, Any]:
    """Return the facts of this process; with `probe`, after writing a file to the workspace's folder."""
    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    digest = error = written = None
    process = (
        os.getppid() if probe is not None else os.getpid()
    )  # workers are forked from one daemon of an executor
    try:
        digest = hashlib.sha256(Path(root, MARKER).read_bytes()).hexdigest()
        if probe is not None:
            written = f"{probe}-{socket.gethostname()}-{process}-{uuid.uuid4().hex[:8]}"
            Path(root, written).write_bytes(b"")
    except OSError as problem:
        error = f"{type(problem).__name__}: {problem}"
    return {
        "host": socket.gethostname(),
        "process": process,
        "python": platform.python_version(),
        "packages": packages,
        "workspace": digest,
        "error": error,
        "written": written,
        "at_s": time.clock_gettime(time.CLOCK_REALTIME),  # an executor may have no Headwater, and so no Clock
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _written(root: str, probe: str) -> set[str]:
    """Return the names of the files that executors have written, as this process sees them, and remove them."""
    names = set()
    for path in Path(root).glob(f"{probe}-*"):
        names.add(path.name)
        path.unlink(missing_ok=True)
    return names


def _differences(
    facts: ExecutorFacts, here: ExecutorFacts, seen: set[str], span: tuple[float, float]
) -> Iterator[ExecutorFault]:
    """Yield what keeps an executor from running stages. `seen`: the files of executors that this process sees; `span`: the
    time before and after the job, by this process's clock."""
    executor = f"{facts.host} (process {facts.process})"
    if facts.python.split(".")[:2] != here.python.split(".")[:2]:
        yield ExecutorFault(
            executor,
            f"has Python {facts.python}, and the engine has {here.python}",
            "HEADWATER_SPARK_PYSPARK_PYTHON names the Python of executors",
        )
    for name, version in facts.packages.items():
        mine = here.packages[name]
        if version != mine:
            yield ExecutorFault(
                executor,
                f"has {name} {version or 'not installed'}, and the engine has {mine}",
                f"install {name} {mine} there",
            )
    if facts.error is not None or facts.workspace != here.workspace:
        yield ExecutorFault(
            executor,
            f"does not have the workspace's folder: {facts.error or 'the folder of that path is another one'}",
            "mount the same file system under the same path on every machine",
        )
    elif facts.written not in seen:
        yield ExecutorFault(
            executor,
            "wrote a file to the workspace's folder that the engine does not see",
            "mount the same file system under the same path, and disable caching of folder listings",
        )
    skew = max(span[0] - facts.at_s, facts.at_s - span[1], 0.0)
    if skew > CLOCK_MAX_S:
        yield ExecutorFault(
            executor, f"has a clock that differs by {skew:.1f} s", "synchronise the clocks, with NTP"
        )
    if facts.memory_bytes < MEMORY_MIN:
        yield ExecutorFault(
            executor,
            f"has {format_bytes(facts.memory_bytes >> 20 << 20)} of memory",
            f"machines of executors need {format_bytes(MEMORY_MIN)} or more",
        )
