"""The sides that standing queries are measured on: Headwater, Spark's own Structured Streaming, and all computed anew.

All read the same Parquet files, a file of each stream per tick, and end in durable, readable results. Headwater reads
the files and appends them to its log, while its engine makes a tick of what was appended before; Spark makes a
micro-batch with RocksDB state and changelog checkpointing, and writes what changed as Parquet. A figure is all rows over
all time of a run, without the first tick; merges of state that fall due go on beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

import headwater as hw
from benchmarks.harness import Bench
from headwater.core.settings import LogSettings

Mode = Literal["append", "update"]

_STREAMING = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class Inputs:
    """What is read: `topics` declares it, `streams` has a folder of Parquet files for each topic that grows, one per
    tick and named in their order, `tables` a file for each topic that is filled before. `rows` is what a tick has."""

    topics: str
    streams: Mapping[str, Path]
    rows: int
    tables: Mapping[str, Path] = field(default_factory=dict)

    def ticks(self) -> list[dict[str, Path]]:
        """The files of each tick, by topic."""
        files = {name: sorted(folder.glob("*.parquet")) for name, folder in self.streams.items()}
        return [dict(zip(files, tick, strict=True)) for tick in zip(*files.values(), strict=True)]


@dataclass
class Costs:
    """What runs of Headwater took beside time: milliseconds of each part of a tick, and the peaks of memory in MB."""

    parts: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, list[float]] = field(default_factory=dict)

    def note(self, bench: Bench, name: str) -> None:
        """Show where the time of a tick went."""
        for part, figures in self.parts.items():
            bench.note(f"{name}: where the time of a tick goes", part, "ms", figures)

    def note_memory(self, bench: Bench, name: str) -> None:
        """Show how large the processes became."""
        for process, figures in self.memory.items():
            bench.note(f"{name}: peak of memory", process, "MB", figures)


def headwater(
    space: Path,
    inputs: Inputs,
    views: Mapping[str, str],
    costs: Costs,
    *,
    options: str = "",
) -> float:
    """Rows a second: files are read and appended while the engine makes its ticks, as long as it takes until all can be
    read. The mean cost of each part of it is added to `costs`. `options` are those of the views, as `WITH (...)`."""
    spent: dict[str, float] = {"the file": 0.0, "append to the log": 0.0}
    path = space / "ws"
    first, *others = inputs.ticks()
    with hw.open(path, settings=LogSettings(maintenance_every_ms=0)) as ws:
        ws.sql(inputs.topics)
        for topic, file in inputs.tables.items():
            ws.topic(topic).append(pq.read_table(file))
        for name, query in views.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} {options} AS {query}")
        peaks = Peaks(_jvm())
        ws.append({topic: pq.read_table(file) for topic, file in first.items()})
        ws.run()
        runner = ws.start(tick_rows=inputs.rows)
        begun = time.perf_counter()
        for files in others:
            started = time.perf_counter()
            tables = {topic: pq.read_table(file) for topic, file in files.items()}
            read = time.perf_counter()
            receipt = ws.append(tables)
            spent["the file"] += read - started
            spent["append to the log"] += time.perf_counter() - read
        ws.query(f"SELECT * FROM {name} LIMIT 1", after=receipt, timeout=600)
        seconds = time.perf_counter() - begun
        spent |= runner.stop().phases
        for process, peak in peaks.mb().items():
            costs.memory.setdefault(process, []).append(peak)
    remove(path)
    for part, cost in spent.items():
        costs.parts.setdefault(part, []).append(1_000 * cost / len(others))
    return inputs.rows * len(others) / seconds


def structured_streaming(
    spark: Any,
    space: Path,
    inputs: Inputs,
    query: str,
    mode: Mode,
    *,
    watermark: str | None = None,
) -> float:
    """Rows a second, by Spark's own account of how long its micro-batches took. `watermark` is how late the column `at`
    of each stream may be."""
    beside = spark.newSession()
    for name, value in _STREAMING.items():
        beside.conf.set(name, value)
    for name, folder in inputs.streams.items():
        schema = beside.read.parquet(str(folder)).schema
        stream = beside.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
        if watermark is not None:
            stream = stream.withWatermark("at", watermark)
        stream.createOrReplaceTempView(name)
    for name, file in inputs.tables.items():
        beside.read.parquet(str(file)).createOrReplaceTempView(name)
    result, checkpoint = (Path(tempfile.mkdtemp(prefix=n, dir=space)) for n in ("result-", "checkpoint-"))

    def write(frame: Any, number: int) -> None:
        frame.write.mode("append").parquet(str(result))

    writer = beside.sql(query).writeStream.option("checkpointLocation", str(checkpoint))
    running = writer.outputMode(mode).foreachBatch(write).trigger(availableNow=True).start()
    running.awaitTermination()
    durations = [p["durationMs"]["triggerExecution"] for p in running.recentProgress if p["numInputRows"]]
    for path in (result, checkpoint):
        remove(path)
    return float(inputs.rows * len(durations[1:]) / (sum(durations[1:]) / 1000))


def anew(spark: Any, space: Path, inputs: Inputs, views: Mapping[str, str]) -> float:
    """New rows a second if each tick computes everything from all files so far, in batch, and writes the result."""
    beside = spark.newSession()
    beside.conf.set("spark.sql.shuffle.partitions", "2")
    for name, file in inputs.tables.items():
        beside.read.parquet(str(file)).createOrReplaceTempView(name)
    seconds = []
    ticks = inputs.ticks()
    for number in range(1, len(ticks) + 1):
        started = time.perf_counter()
        for name in inputs.streams:
            files = [str(tick[name]) for tick in ticks[:number]]
            beside.read.parquet(*files).createOrReplaceTempView(name)
        for name, query in views.items():
            result = beside.sql(query)
            result.createOrReplaceTempView(name)
            result.write.mode("overwrite").parquet(str(space / "anew" / name))
        seconds.append(time.perf_counter() - started)
    remove(space / "anew")
    return inputs.rows * len(seconds[1:]) / sum(seconds[1:])


def warm(spark: Any, space: Path, folder: Path) -> None:
    """Nobody is measured on a cold JVM."""
    frame = spark.read.parquet(str(folder))
    frame.groupBy("k").count().write.mode("overwrite").parquet(str(space / "warm"))
    remove(space / "warm")


class Peaks:
    """The most memory that this process, and the JVM beside it, had in use since now; empty where the system does not
    tell. Files that are mapped count while their pages are in use, of which the system may take any back."""

    def __init__(self, jvm: int | None = None) -> None:
        _give_back()
        self._processes = {"Python": "self"} | ({} if jvm is None else {"JVM": str(jvm)})
        for process in self._processes.values():
            try:
                Path(f"/proc/{process}/clear_refs").write_text("5")
            except OSError:
                continue  # then it is the peak since the process began

    def mb(self) -> dict[str, float]:
        """The peaks by process."""
        found: dict[str, float] = {}
        for name, process in self._processes.items():
            try:
                told = re.search(
                    r"^VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE
                )
            except OSError:
                continue
            if told is not None:
                found[name] = int(told[1]) / 1024
        return found


def remove(path: Path) -> None:
    """Remove a folder, whatever is in it."""
    shutil.rmtree(path, ignore_errors=True)


def _give_back() -> None:
    """Hand back what was freed, so that a peak is not that of what ran before."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _jvm() -> int | None:
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    jvm = active._jvm if active is not None else None
    return None if jvm is None else int(jvm.java.lang.ProcessHandle.current().pid())
