"""Windows and joins in time, beside Spark's own streaming operators, and what is kept of a year.

How each side works is said in `sides`. What Structured Streaming can express is measured beside it, with the same
watermark: rows that are late are dropped on both sides, and state that no row can meet any more goes. Sessions are shown
when they are closed, because Spark does so alone; windows as they change. Sliding frames, joins with a version of a
table and joins of tables that change are beyond it, and are measured beside computing all anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headwater as hw
from benchmarks import sides
from benchmarks.harness import Bench
from headwater.core.settings import LogSettings
from headwater.spark.spark_session import session
from headwater.testing import inspect_workspace

TITLE = "Windows and joins in time, beside Structured Streaming"

LATENESS = "10 seconds"
EVENT = "id BIGINT, k BIGINT, amount BIGINT, at TIMESTAMP"
WATERMARK = f"WATERMARK FOR at AS at - INTERVAL '{LATENESS}'"
BEGIN_US = 1_767_225_600_000_000
DAY_US = 86_400_000_000
KEYS, ORDERS = 100_000, 5_000_000

NEWEST = "(SELECT max_by(struct(*), at) AS r FROM {0} GROUP BY id)"
"""What a table is in batch, of all its records."""
OF_TABLES = "SELECT o.id, o.amount * p.price AS paid FROM orders o JOIN price p ON o.k = p.id"
OF_NEWEST = (
    "SELECT o.r.id, o.r.amount * p.r.price AS paid "
    f"FROM {NEWEST.format('orders')} o JOIN {NEWEST.format('price')} p ON o.r.k = p.r.id"
)
CLOSED = " EMIT ON WINDOW CLOSE"
DROP = "WITH (late = 'drop')"


@dataclass(frozen=True)
class Case:
    """A query, the streams that it reads, and how fast it shall be in multiples of the other side.

    `mode` is Structured Streaming's; without one it cannot express the query, and the other side is `batch`.
    """

    streams: str
    query: str
    goal: float
    mode: sides.Mode | None = None
    batch: str | None = None
    options: str = DROP
    emit: str = ""


CASES = {
    "tumbling count": Case(
        "events",
        "SELECT window(at, '1 minute') AS w, k % 1000 AS g, count(*) AS n "
        "FROM ev GROUP BY window(at, '1 minute'), k % 1000",
        1.0,
        "update",
    ),
    "hopping count": Case(
        "events",
        "SELECT window(at, '5 minutes', '1 minute') AS w, k % 1000 AS g, count(*) AS n "
        "FROM ev GROUP BY window(at, '5 minutes', '1 minute'), k % 1000",
        1.0,
        "update",
    ),
    "session count": Case(
        "events",
        "SELECT k, session_window(at, '2 minutes') AS w, count(*) AS n "
        "FROM ev GROUP BY k, session_window(at, '2 minutes')",
        2.0,
        "append",
        emit=CLOSED,
    ),
    "sliding count": Case(
        "events",
        "SELECT id, k, at, count(*) OVER (PARTITION BY k ORDER BY at "
        "RANGE BETWEEN INTERVAL '5' MINUTES PRECEDING AND CURRENT ROW) AS n FROM ev",
        1.0,
    ),
    "interval join": Case(
        "pair",
        "SELECT l.id, r.id AS other, l.amount + r.amount AS amount FROM l JOIN r ON l.k = r.k "
        "AND r.at BETWEEN l.at - INTERVAL '1' MINUTE AND l.at + INTERVAL '1' MINUTE",
        2.0,
        "append",
    ),
    "as-of join": Case(
        "versions",
        "SELECT e.id, e.amount * p.price AS paid FROM ev e JOIN price FOR SYSTEM_TIME AS OF e.at AS p ON e.k = p.id",
        2.0,
        batch="SELECT e.id, e.amount * p.price AS paid FROM ev e "
        "JOIN (SELECT *, lead(at) OVER (PARTITION BY id ORDER BY at) AS until FROM price) p "
        "ON e.k = p.id AND e.at >= p.at AND (p.until IS NULL OR e.at < p.until)",
    ),
    "table join": Case("tables", OF_TABLES, 2.0, batch=OF_NEWEST, options=""),
    "table join that nearly all changes": Case("moving tables", OF_TABLES, 1.0, batch=OF_NEWEST, options=""),
}

QUICK = ("session count", "as-of join")
"""One of each other side, where nothing is measured."""

A_YEAR = "a year"
YEAR = {
    "tumbling": "SELECT window(at, '1 hour') AS w, k, count(*) AS n FROM ev GROUP BY window(at, '1 hour'), k",
    "hopping": "SELECT window(at, '6 hours', '1 hour') AS w, sum(amount) AS s FROM ev GROUP BY window(at, '6 hours', '1 hour')",
    "session": "SELECT k, session_window(at, '1 hour') AS w, count(*) AS n FROM ev GROUP BY k, session_window(at, '1 hour')",
    "sliding": "SELECT id, count(*) OVER (PARTITION BY k ORDER BY at "
    "RANGE BETWEEN INTERVAL '6' HOURS PRECEDING AND CURRENT ROW) AS n FROM ev",
    "interval join": "SELECT l.id, r.id AS other FROM ev l LEFT JOIN other r ON l.k = r.k "
    "AND r.at BETWEEN l.at - INTERVAL '10' MINUTES AND l.at + INTERVAL '20' MINUTES",
}


def run(bench: Bench) -> None:
    """Every query beside the other side, then a year at a constant rate."""
    ticks, rows = bench.size(10, 3), bench.size(1_000_000, 2_000)
    spark = session()
    with bench.space() as space:
        known = _inputs(space, ticks, rows)
        sides.warm(spark, space, space / "events")
        if not bench.quick:  # nor is a stream measured that is the first one
            _streaming(spark, space, CASES["tumbling count"], known["events"], "update")
        for name, case in CASES.items():
            if (bench.quick and name not in QUICK) or not bench.wants(name):
                continue
            _case(bench, spark, space, f"{name}, {ticks} ticks of {rows:,} rows", case, known[case.streams])
    if bench.wants(A_YEAR):
        _year(bench)


def _case(bench: Bench, spark: Any, space: Path, group: str, case: Case, inputs: sides.Inputs) -> None:
    costs = sides.Costs()
    theirs, ours = [], []
    for _ in range(bench.size(3, 1)):
        if case.mode is not None:
            theirs.append(_streaming(spark, space, case, inputs, case.mode))
        elif not theirs:  # which takes longer and longer: once will do
            theirs.append(sides.anew(spark, space, inputs, {"result": case.batch or case.query}))
        ours.append(
            sides.headwater(space, inputs, {"result": case.query + case.emit}, costs, options=case.options)
        )
        if ours[0] > 5 * theirs[0]:  # several minutes more would not make it clearer
            break
    base = statistics.median(theirs)
    bench.note(group, "computed anew" if case.mode is None else "Structured Streaming", "records/s", theirs)
    ratio = statistics.median(ours) / base
    bench.note(group, "Headwater", "records/s", ours, goal=case.goal * base, ratio=ratio)
    costs.note(bench, group.partition(",")[0])
    costs.note_memory(bench, group.partition(",")[0])


def _streaming(spark: Any, space: Path, case: Case, inputs: sides.Inputs, mode: sides.Mode) -> float:
    return sides.structured_streaming(spark, space, inputs, case.query, mode, watermark=LATENESS)


def _inputs(space: Path, ticks: int, rows: int) -> Mapping[str, sides.Inputs]:
    """The streams by name, each with `rows` a tick in all, which is as many milliseconds."""
    half, most, few = rows // 2, rows - rows // 10, rows // 10
    _write(space / "events", ticks, rows, rows)
    _write(space / "left", ticks, half, rows, 1)
    _write(space / "right", ticks, half, rows, 2)
    _write(space / "most", ticks, most, rows, 3)
    _write(space / "orders", ticks, most, rows, 4, ids=ORDERS)
    _write(space / "price", ticks, few, rows, 5, ids=KEYS)
    _write(space / "more orders", ticks, rows - few // 10, rows, 4, ids=ORDERS)
    _write(space / "less price", ticks, few // 10, rows, 5, ids=KEYS)
    plain = f"({EVENT}, {WATERMARK}) WITH (partitions = 2)"
    price = f"CREATE TOPIC price (id BIGINT, price BIGINT, at TIMESTAMP, PRIMARY KEY (id), {WATERMARK}) WITH (partitions = 2);"
    tables = f"CREATE TOPIC orders ({EVENT}, PRIMARY KEY (id)) WITH (partitions = 2); {price}"
    return {
        "events": sides.Inputs(f"CREATE TOPIC ev {plain}", {"ev": space / "events"}, rows),
        "pair": sides.Inputs(
            f"CREATE TOPIC l {plain}; CREATE TOPIC r {plain}",
            {"l": space / "left", "r": space / "right"},
            rows,
        ),
        "versions": sides.Inputs(
            f"CREATE TOPIC ev {plain}; {price}", {"ev": space / "most", "price": space / "price"}, rows
        ),
        "tables": sides.Inputs(
            tables, {"orders": space / "more orders", "price": space / "less price"}, rows
        ),
        "moving tables": sides.Inputs(tables, {"orders": space / "orders", "price": space / "price"}, rows),
    }


def _write(folder: Path, ticks: int, rows: int, span_ms: int, seed: int = 0, ids: int | None = None) -> None:
    folder.mkdir()
    for tick in range(ticks):
        table = _events(
            rows, tick * rows, BEGIN_US + tick * span_ms * 1_000, span_ms * 1_000, (seed, tick), ids=ids
        )
        if folder.name.endswith("price"):
            table = table.select(["id", "amount", "at"]).rename_columns(["id", "price", "at"])
        pq.write_table(table, folder / f"{tick:04d}.parquet")


def _events(
    rows: int,
    start: int,
    begin_us: int,
    span_us: int,
    seed: tuple[int, int],
    *,
    ids: int | None = None,
    keys: int = KEYS,
    apart_us: int = 5_000_000,
) -> pa.Table:
    """Events spread evenly over a span, each up to `apart_us` before its place; with `ids` of so many, at random."""
    random = np.random.default_rng(seed)
    at = begin_us + np.arange(rows) * (span_us // rows) - random.integers(0, apart_us, rows)
    number = start + np.arange(rows) if ids is None else random.integers(0, ids, rows)
    return pa.table(
        {
            "id": pa.array(number),
            "k": pa.array(random.integers(0, keys, rows)),
            "amount": pa.array(random.integers(0, 1_000, rows)),
            "at": pa.array(at).cast(pa.timestamp("us", "UTC")),
        }
    )


def _year(bench: Bench) -> None:
    """The most that operators keep in each month, while a topic grows at a constant rate and its windows close.

    What is closed goes when runs are merged, so it rises and falls: with the number of runs, not with the days."""
    days, rows, every = bench.size(365, 4), bench.size(10_000, 200), bench.size(30, 2)
    keys = max(1, rows // 50)
    with bench.space() as space, hw.open(space / "ws", settings=LogSettings(maintenance_every_ms=0)) as ws:
        for topic in ("ev", "other"):
            ws.sql(f"CREATE TOPIC {topic} ({EVENT}, {WATERMARK})")
        views = {name: f"v{number}" for number, name in enumerate(YEAR)}
        for name, query in YEAR.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {views[name]} {DROP} AS {query}{CLOSED}")
        found: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in views}
        for day in range(1, days + 1):
            begin = BEGIN_US + day * DAY_US
            made = [_events(rows, day * rows, begin, DAY_US, (s, day), keys=keys) for s in (6, 7)]
            ws.append(dict(zip(("ev", "other"), made, strict=True)))
            ws.run()
            period = (day - 1) // every
            for name, view in views.items():
                before = found[name].get(period, (0, 0))
                found[name][period] = tuple(map(max, before, _kept(ws, view)))
        for name, sizes in found.items():
            group = f"the most that operators keep, {rows:,} rows a day, {name}"
            for period, (kept, size) in sizes.items():
                days_of = f"days {period * every + 1} to {min((period + 1) * every, days)}"
                bench.note(group, days_of, "rows", [float(kept)])
                bench.note(group, f"{days_of}, on disk", "MB", [size / 2**20])


def _kept(ws: hw.Workspace, view: str) -> tuple[int, int]:
    """Rows and bytes of what the operators of a view keep, which is not what it shows."""
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    place = manifest.views[view].contents.removesuffix("contents")
    kept = [
        ref
        for name, refs in manifest.arrangements.items()
        if name.startswith(place) and not name.endswith(("/contents", "/late"))
        for ref in refs
    ]
    return sum(ref.rows for ref in kept), sum(ref.length for ref in kept)
