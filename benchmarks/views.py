"""Views kept up to date, beside Spark's own Structured Streaming, and beside all computed anew each time, in one run.

All read the same Parquet files, a file per tick, and end in durable, readable results: Headwater reads the file and
appends it to its log, while its engine makes a tick of what was appended before; Spark makes a micro-batch with RocksDB state and changelog checkpointing, in
update mode where it aggregates, and writes what changed as Parquet. Spark's own results still need to be merged by who
reads them, and its join does not follow changes of the table; neither is held against it here.

A figure is all rows over all time of a run, without the first tick; merges of state that fall due go on beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import headwater as hw
from benchmarks import events
from benchmarks.harness import Bench
from headwater.runtime.session import session
from headwater.settings import LogSettings

Costs = dict[str, list[float]]
"""Milliseconds of each part of a tick, by run."""

TITLE = "Views, beside Structured Streaming"

QUERIES: dict[str, tuple[str, float]] = {
    "filter": ("SELECT id, amount FROM ev WHERE v > 50 AND k % 2 = 0", 1.0),
    "group by, 100 keys": (
        "SELECT k % 100 AS g, count(*) AS n, sum(amount) AS s, avg(v) AS a FROM ev GROUP BY k % 100",
        1.5,
    ),
    "group by, 100,000 keys": (
        "SELECT k, count(*) AS n, sum(amount) AS s, avg(v) AS a FROM ev GROUP BY k",
        1.5,
    ),
    "group by, 5,000,000 keys": ("SELECT big, count(*) AS n, sum(amount) AS s FROM ev GROUP BY big", 1.5),
    "tumbling window": (
        "SELECT window(at, '1 minute') AS w, count(*) AS n, sum(amount) AS s FROM ev GROUP BY window(at, '1 minute')",
        1.5,
    ),
    "join with 1,000,000 rows": ("SELECT e.id, e.amount, i.name FROM ev e JOIN item i ON e.d = i.id", 1.5),
}
TOP_K = (
    "SELECT k, id, amount FROM ev QUALIFY row_number() OVER (PARTITION BY k ORDER BY amount DESC, id) <= 3"
)
CHAIN = (
    "SELECT k, d, amount FROM ev WHERE v > 10",
    "SELECT k, sum(amount) AS s, count(*) AS n FROM c1 GROUP BY k",
    "SELECT k % 1000 AS g, sum(s) AS s, max(n) AS m FROM c2 GROUP BY k % 1000",
    "SELECT g, s, m FROM c3 ORDER BY s DESC LIMIT 10",
)


def run(bench: Bench) -> None:
    """Every query on both sides, then what Spark cannot express."""
    ticks, rows, table = bench.size(10, 3), bench.size(1_000_000, 2_000), bench.size(1_000_000, 1_000)
    with bench.space() as space:
        made = events.files(space / "events", ticks, rows, table)
        pq.write_table(events.items(table), space / "items.parquet")
        spark = session()
        _warm(spark, space)
        for name, (query, goal) in list(QUERIES.items())[: bench.size(len(QUERIES), 2)]:
            group = f"{name}, {ticks} ticks of {rows:,} rows"
            theirs, ours = [], []
            costs: Costs = {}
            for _ in range(bench.size(3, 1)):
                theirs.append(_structured_streaming(spark, space, query, rows))
                ours.append(_headwater(space, {"result": query}, made, rows, costs))
                if ours[0] > 5 * theirs[0]:  # several minutes more would not make it clearer
                    break
            anew = _anew(spark, space, {"result": query}, made, rows)
            bench.note(group, "Structured Streaming", "records/s", theirs)
            bench.note(group, "computed anew", "records/s", [anew], ratio=anew / statistics.median(theirs))
            base = statistics.median(theirs)
            bench.note(
                group, "Headwater", "records/s", ours, goal=goal * base, ratio=statistics.median(ours) / base
            )
            _note_costs(bench, name, costs)
        alone = {
            "top 3 per key, 100,000 keys": {"result": TOP_K},
            "chain of four views": {f"c{i}": q for i, q in enumerate(CHAIN, 1)},
        }
        for name, views in alone.items():
            group = f"{name}, {ticks} ticks of {rows:,} rows"
            anew = _anew(spark, space, views, made, rows)
            costs = {}
            ours = [_headwater(space, views, made, rows, costs) for _ in range(bench.size(3, 1))]
            bench.note(group, "computed anew", "records/s", [anew])
            bench.note(group, "Headwater", "records/s", ours, ratio=statistics.median(ours) / anew)
            _note_costs(bench, name, costs)


def _note_costs(bench: Bench, name: str, costs: Costs) -> None:
    for phase, figures in costs.items():
        bench.note(f"{name}: where the time of a tick goes", phase, "ms", figures)


def _headwater(space: Path, views: dict[str, str], made: list[Path], rows: int, costs: Costs) -> float:
    """Rows a second: files are read and appended while the engine makes its ticks, as long as it takes until all can be
    read. The mean cost of each part of it is added to `costs`."""
    spent: dict[str, float] = {"the file": 0.0, "append to the log": 0.0}
    path = space / "ws"
    with hw.open(path, settings=LogSettings(maintenance_every_ms=0)) as ws:
        ws.sql(f"CREATE TOPIC ev ({events.EVENT}) WITH (partitions = 2); CREATE TOPIC item ({events.ITEM})")
        topic = ws.topic("ev")
        ws.topic("item").append(pq.read_table(space / "items.parquet"))
        for name, query in views.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        receipt = topic.append(pq.read_table(made[0]))
        ws.run()
        runner = ws.start(tick_rows=rows)
        begun = time.perf_counter()
        for file in made[1:]:
            started = time.perf_counter()
            table = pq.read_table(file)
            read = time.perf_counter()
            receipt = topic.append(table)
            spent["the file"] += read - started
            spent["append to the log"] += time.perf_counter() - read
        ws.query(f"SELECT * FROM {name} LIMIT 1", after=receipt, timeout=600)
        seconds = time.perf_counter() - begun
        spent |= runner.stop().phases
    _remove(path)
    for part, cost in spent.items():
        costs.setdefault(part, []).append(1_000 * cost / len(made[1:]))
    return rows * len(made[1:]) / seconds


def _structured_streaming(spark: Any, space: Path, query: str, rows: int) -> float:
    """Rows a second, by Spark's own account of how long its micro-batches took."""
    beside = spark.newSession()
    conf = {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in conf.items():
        beside.conf.set(name, value)
    source = space / "events"
    schema = beside.read.parquet(str(source)).schema
    stream = beside.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    stream.createOrReplaceTempView("ev")
    beside.read.parquet(str(space / "items.parquet")).createOrReplaceTempView("item")
    result, checkpoint = (Path(tempfile.mkdtemp(prefix=n, dir=space)) for n in ("result-", "checkpoint-"))

    def write(frame: Any, number: int) -> None:
        frame.write.mode("append").parquet(str(result))

    writer = beside.sql(query).writeStream.option("checkpointLocation", str(checkpoint))
    mode = "update" if "GROUP BY" in query else "append"
    running = writer.outputMode(mode).foreachBatch(write).trigger(availableNow=True).start()
    running.awaitTermination()
    durations = [p["durationMs"]["triggerExecution"] for p in running.recentProgress if p["numInputRows"]]
    for path in (result, checkpoint):
        _remove(path)
    return float(rows * len(durations[1:]) / (sum(durations[1:]) / 1000))


def _anew(spark: Any, space: Path, views: dict[str, str], made: list[Path], rows: int) -> float:
    """New rows a second if each tick computes everything from all files so far, in batch, and writes the result."""
    beside = spark.newSession()
    beside.conf.set("spark.sql.shuffle.partitions", "2")
    beside.read.parquet(str(space / "items.parquet")).createOrReplaceTempView("item")
    seconds = []
    for number in range(1, len(made) + 1):
        started = time.perf_counter()
        beside.read.parquet(*map(str, made[:number])).createOrReplaceTempView("ev")
        for name, query in views.items():
            result = beside.sql(query)
            result.createOrReplaceTempView(name)
            result.write.mode("overwrite").parquet(str(space / "anew" / name))
        seconds.append(time.perf_counter() - started)
    _remove(space / "anew")
    return rows * len(seconds[1:]) / sum(seconds[1:])


def _warm(spark: Any, space: Path) -> None:
    """Nobody is measured on a cold JVM."""
    frame = spark.read.parquet(str(space / "events"))
    frame.groupBy("k").count().write.mode("overwrite").parquet(str(space / "warm"))
    _remove(space / "warm")


def _remove(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
