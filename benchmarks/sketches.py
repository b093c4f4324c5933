"""Sketches beside what they stand for: approximate functions in views, the exact ones, and Structured Streaming's own.

How each side works is said in `sides`. Spark is in update mode. What a view keeps is that of all its operators after the
last tick, as EXPLAIN tells it.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pyarrow.parquet as pq

import headwater as hw
from benchmarks import event_rows, sides
from benchmarks.harness import Bench
from headwater.core.settings import parse_bytes
from headwater.spark.spark_session import session

TITLE = "Sketches, beside exact answers and Structured Streaming"

_RANKED = (
    "SELECT g, item, n FROM (SELECT {g} AS g, id % 997 AS item, count(*) AS n FROM ev GROUP BY {g}, id % 997) "
    "QUALIFY row_number() OVER (PARTITION BY g ORDER BY n DESC, item) <= 5"
)
_FUNCTIONS = {
    "distinct counts": (
        "SELECT {g} AS g, approx_count_distinct(id) AS n FROM ev GROUP BY {g}",
        "SELECT {g} AS g, count(DISTINCT id) AS n FROM ev GROUP BY {g}",
    ),
    "percentiles, accuracy 100": (
        "SELECT {g} AS g, percentile_approx(v, array(0.5, 0.99), 100) AS p FROM ev GROUP BY {g}",
        "SELECT {g} AS g, percentile(v, array(0.5, 0.99)) AS p FROM ev GROUP BY {g}",
    ),
    "frequent values, 5 of 100 tracked": (
        "SELECT {g} AS g, approx_top_k(id % 997, 5, 100) AS top FROM ev GROUP BY {g}",
        _RANKED,
    ),
}
_GROUPS = {"100 groups": "(k % 100)", "100,000 groups": "k"}
CASES = {
    f"{function}, {groups}": tuple(query.format(g=g) for query in queries)
    for groups, g in _GROUPS.items()
    for function, queries in _FUNCTIONS.items()
}
"""By name a SELECT with a sketch, and the one that it stands for."""


def run(bench: Bench) -> None:
    """Every function on all sides."""
    ticks, rows = bench.size(5, 3), bench.size(200_000, 2_000)
    with bench.space() as space:
        event_rows.files(space / "events", ticks, rows, rows)
        topics = f"CREATE TOPIC ev ({event_rows.EVENT}) WITH (partitions = 2)"
        inputs = sides.Inputs(topics, {"ev": space / "events"}, rows)
        spark = session()
        sides.warm(spark, space, space / "events")
        for name, (sketched, exact) in list(CASES.items())[: bench.size(len(CASES), 3)]:
            if not bench.wants(name):
                continue
            group = f"{name}, {ticks} ticks of {rows:,} rows"
            costs = sides.Costs()
            figures: dict[str, list[float]] = {"Structured Streaming": [], "a sketch": [], "exact": []}
            for _ in range(bench.size(2, 1)):
                figures["Structured Streaming"].append(
                    sides.structured_streaming(spark, space, inputs, sketched, "update")
                )
                figures["a sketch"].append(sides.headwater(space, inputs, {"result": sketched}, costs))
                figures["exact"].append(sides.headwater(space, inputs, {"result": exact}, costs))
            base = statistics.median(figures["Structured Streaming"])
            for side, own in figures.items():
                bench.note(group, side, "records/s", own, ratio=statistics.median(own) / base)
            for side, query in (("a sketch", sketched), ("exact", exact)):
                bench.note(f"{group}: what is kept", side, "MB", [_kept(space, inputs, query)])


def _kept(space: Path, inputs: sides.Inputs, query: str) -> float:
    """MB of state after all ticks."""
    with hw.open(space / "ws") as ws:
        ws.sql(f"{inputs.topics}; CREATE MATERIALIZED VIEW result AS {query}")
        for files in inputs.ticks():
            ws.append({topic: pq.read_table(file) for topic, file in files.items()})
            ws.run()
        told = ws.sql("EXPLAIN result")
        assert told is not None
        graph = dict(zip(*told.to_pydict().values(), strict=True))["graph"]
    sides.remove(space / "ws")
    return sum(parse_bytes(size) for size in re.findall(r"runs, (.+?) bytes", graph)) / 1e6
