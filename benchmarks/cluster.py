"""Large ticks on a Spark cluster of two workers of one core, beside the same ticks in the driver: CPU by process.

The cluster is Spark's standalone one, on the loopback of this machine. The CPU of the driver is that of the engine's process and of
its JVM; the CPU of the executors is that of their JVMs and Python workers. The first tick of each is not counted: it starts
workers and compiles code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks import event_rows
from benchmarks.harness import Bench
from tests.engine.cluster import Cluster

TITLE = "Large ticks on a Spark cluster"

QUERIES = {
    "group by, 1,000,000 keys": "SELECT d, sum(amount) AS s, count(*) AS n FROM ev GROUP BY d",
    "join with 1,000,000 rows": "SELECT e.k, e.amount, i.name FROM ev e JOIN item i ON e.d = i.id",
    "top 3 per key, 100,000 keys": "SELECT k, id, amount FROM ev "
    "QUALIFY row_number() OVER (PARTITION BY k ORDER BY amount DESC, id) <= 3",
}
APPEND_ROWS = 500_000
TICKS = 3
PARTS = {"driver": "driver", "jvm": "driver's JVM", "executors": "executors"}


def run(bench: Bench) -> None:
    """Every query in the driver and on the cluster."""
    rows, table = bench.size(5_000_000, 2_000), bench.size(1_000_000, 1_000)
    for name, query in QUERIES.items():
        if not bench.wants(name):
            continue
        group = f"{name}, ticks of {rows:,} rows"
        for where in ("driver", "cluster"):
            with bench.space() as space:
                ticks = _measured(space, query, rows, table, where)
            for part, title in PARTS.items():
                if where == "cluster" or part == "driver":
                    figures = [tick[part] * 1_000 for tick in ticks[1:]]
                    bench.note(group, f"{where}: CPU of the {title.removeprefix('the ')}", "ms", figures)
            total = [sum(tick[part] for part in PARTS) * 1_000 for tick in ticks[1:]]
            bench.note(group, f"{where}: CPU in all", "ms", total)
            bench.note(group, f"{where}: time", "ms", [tick["seconds"] * 1_000 for tick in ticks[1:]])


def _measured(space: Path, query: str, rows: int, table: int, where: str) -> list[dict[str, float]]:
    """Run ticks in a process of their own, and return what each took, in seconds."""
    environ = {**os.environ, "HEADWATER_PLACEMENT": "driver"}
    cluster = None
    if where == "cluster":
        cluster = Cluster(space / "cluster")
        environ |= {
            "HEADWATER_PLACEMENT": "auto",
            "HEADWATER_PLACED_ROWS_MIN": "1000",
            "HEADWATER_SPARK_MASTER": cluster.url,
            "HEADWATER_SPARK_EXECUTOR_MEMORY": "800m",
        }
    try:
        arguments = [str(space / "ws"), query, str(rows), str(table)]
        command = [sys.executable, "-m", "benchmarks.cluster", *arguments]
        done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    finally:
        if cluster is not None:
            cluster.end()
    return [json.loads(line) for line in done.stdout.splitlines()]


def _ticks(folder: str, query: str, rows: int, table: int) -> None:
    """Print the CPU of the parts, and the duration, of each tick."""
    with hw.open(folder) as ws:
        ws.sql(
            f"CREATE TOPIC ev ({event_rows.EVENT}) WITH (partitions = 2); CREATE TOPIC item ({event_rows.ITEM})"
        )
        ws.topic("item").append(event_rows.items(table))
        ws.sql(f"CREATE MATERIALIZED VIEW result AS {query}")
        ws.run()
        for tick in range(TICKS):
            for start in range(0, rows, APPEND_ROWS):
                count = min(APPEND_ROWS, rows - start)
                ws.topic("ev").append(event_rows.events(count, tick * rows + start, items=table))
            before, began = _cpu(), time.perf_counter()
            ws.run(tick_rows=rows)
            after, seconds = _cpu(), time.perf_counter() - began
            found: dict[str, Any] = {part: after[part] - before[part] for part in before}
            print(json.dumps({**found, "seconds": seconds}), flush=True)


def _cpu() -> dict[str, float]:
    """The seconds of CPU that this process, its JVM and the executors of this machine have used so far."""
    hertz = os.sysconf("SC_CLK_TCK")
    used = {"driver": time.process_time(), "jvm": 0.0, "executors": 0.0}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        own, ended = (int(fields[11]) + int(fields[12])) / hertz, (int(fields[13]) + int(fields[14])) / hertz
        if b"CoarseGrainedExecutorBackend" in command:
            used["executors"] += own
        elif b"headwater.engine.dataflow.python_worker" in command:
            used["executors"] += own + ended
        elif int(fields[1]) == os.getpid() and b"java" in command:
            used["jvm"] += own
    return used


if __name__ == "__main__":
    _ticks(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
