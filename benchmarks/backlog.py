"""A backlog that one tick takes in, beside the same backlog in ticks of a million rows: CPU and memory of the process."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import headwater as hw
from benchmarks import event_rows
from benchmarks.harness import Bench

TITLE = "A backlog: ticks by memory, and ticks of a million rows"

QUERIES = {
    "filter": "SELECT k, d, amount FROM ev WHERE v > 10",
    "group by, 1,000,000 keys": "SELECT d, sum(amount) AS s, count(*) AS n FROM ev GROUP BY d",
    "join with 1,000,000 rows": "SELECT e.k, e.amount, i.name FROM ev e JOIN item i ON e.d = i.id",
}
APPEND_ROWS = 500_000
SIZES = {"by memory": None, "1,000,000 rows": 1_000_000}


def run(bench: Bench) -> None:
    """Every query with both sizes of ticks, each in a process of its own."""
    rows = bench.size(5_000_000, 2_000)
    for name, query in QUERIES.items():
        if not bench.wants(name):
            continue
        figures: dict[str, list[tuple[float, float]]] = {size: [] for size in SIZES}
        for _ in range(bench.size(3, 1)):
            for size, tick_rows in SIZES.items():
                with bench.space() as space:
                    figures[size].append(_in_process(space, query, rows, tick_rows))
        for size, found in figures.items():
            group = f"{name}, a backlog of {rows:,} rows"
            bench.note(group, f"ticks {size}: CPU", "ms", [cpu for cpu, _ in found])
            bench.note(group, f"ticks {size}: peak memory", "MB", [peak for _, peak in found])


def _in_process(space: Path, query: str, rows: int, tick_rows: int | None) -> tuple[float, float]:
    arguments = [str(space / "ws"), query, str(rows), str(tick_rows or 0)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.backlog", *arguments], check=True, capture_output=True, text=True
    )
    cpu_ms, peak_mb = done.stdout.split()
    return float(cpu_ms), float(peak_mb)


def _measure(folder: str, query: str, rows: int, tick_rows: int) -> None:
    """Print the milliseconds of CPU that the backlog took, and the peak of the memory that belongs to no file, in MB."""
    from headwater.engine.tick.tick_budget import MemoryWatch

    with hw.open(folder) as ws:
        ws.sql(
            f"CREATE TOPIC ev ({event_rows.EVENT}) WITH (partitions = 2); CREATE TOPIC item ({event_rows.ITEM})"
        )
        ws.topic("item").append(event_rows.items(min(rows, 1_000_000)))
        ws.sql(f"CREATE MATERIALIZED VIEW result AS {query}")
        ws.run()
        for start in range(0, rows, APPEND_ROWS):
            ws.topic("ev").append(event_rows.events(min(APPEND_ROWS, rows - start), start))
        watch = MemoryWatch()
        watch.start()
        began = resource.getrusage(resource.RUSAGE_SELF)
        ws.run(tick_rows=tick_rows or None)
        ended = resource.getrusage(resource.RUSAGE_SELF)
        watch.stop()
        cpu = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
        print(cpu * 1_000, watch.peak / 1e6)


if __name__ == "__main__":
    _measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
