"""Small ticks: how long a view takes to follow a small change, with many views, and with more and more state."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import headwater as hw
from benchmarks import event_rows
from benchmarks.harness import Bench
from headwater.core.settings import LogSettings

TITLE = "Small ticks over large state"
TICK_GOAL_MS = 500.0
LOOKUP_GOAL_MS = 5.0

VIEWS = (
    "SELECT k, count(*) AS n, sum(amount) AS s FROM ev GROUP BY k",
    "SELECT note, avg(v) AS a FROM ev GROUP BY note",
    "SELECT id, amount FROM ev WHERE v > 99.9",
    "SELECT window(at, '1 minute') AS w, count(*) AS n FROM ev GROUP BY window(at, '1 minute')",
    "SELECT i.price, sum(e.amount) AS s FROM ev e JOIN item i ON e.d = i.id GROUP BY i.price",
    "SELECT k, max(amount) AS m, min(v) AS l FROM ev GROUP BY k",
    "SELECT id, amount, v FROM ev ORDER BY v DESC LIMIT 100",
    "SELECT count(*) AS n, sum(amount) AS s FROM ev",
    "SELECT k, id, amount FROM ev QUALIFY row_number() OVER (PARTITION BY k ORDER BY amount DESC, id) <= 2",
    "SELECT d, count(*) AS n FROM ev WHERE amount > 500 GROUP BY d",
)
GROWING = {
    "aggregate": "SELECT k, count(*) AS n, sum(price) AS s FROM (SELECT id AS k, price FROM item) GROUP BY k",
    "join": "SELECT e.id, i.name FROM ev e JOIN item i ON e.d = i.id",
    "global top-k": "SELECT id, price FROM item ORDER BY price DESC, id LIMIT 10",
    "max under retraction": "SELECT price % 10 AS g, max(id) AS m FROM item GROUP BY price % 10",
}


def run(bench: Bench) -> None:
    """Latency of a tick of 100 rows; its growth with views and with state; backfill; reading by key and whole."""
    _many_views(bench)
    _growing_state(bench)


def _many_views(bench: Bench) -> None:
    rows = bench.size(10_000_000, 5_000)
    with bench.space() as space:
        ws = hw.open(space / "ws", settings=LogSettings(maintenance_every_ms=0))
        ws.sql(
            f"CREATE TOPIC ev ({event_rows.EVENT}) WITH (partitions = 2); CREATE TOPIC item ({event_rows.ITEM})"
        )
        ws.topic("item").append(event_rows.items(bench.size(1_000_000, 1_000)))
        ws.run()
        chunk = min(rows, 1_000_000)
        for start in range(0, rows, chunk):
            ws.topic("ev").append(event_rows.events(chunk, start))
        ws.sql(f"CREATE MATERIALIZED VIEW v0 AS {VIEWS[0]}")
        started = time.perf_counter()
        ws.run()
        bench.note(
            "backfill of a new view",
            f"group by, {rows:,} rows",
            "records/s",
            [rows / (time.perf_counter() - started)],
        )
        one = _ticks(bench, ws, rows)
        for number, query in enumerate(VIEWS[1:], 1):
            ws.sql(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
        ws.run()
        ten = _ticks(bench, ws, rows)
        group = f"a tick of 100 rows, {rows:,} rows before it"
        bench.note(group, "1 view", "ms", one)
        bench.note(group, "10 views", "ms", ten, goal=TICK_GOAL_MS, ratio=_ratio(ten, one))
        for number in range(29):
            ws.sql(
                f"CREATE MATERIALIZED VIEW w{number} AS {VIEWS[0].replace('sum(amount)', f'sum(amount + {number})')}"
            )
        ws.run()
        for number in range(1, 10):
            ws.sql(f"DROP VIEW v{number}")
        ws.run()
        thirty = _ticks(bench, ws, rows)
        bench.note(
            group,
            "30 views of one depth",
            "ms",
            thirty,
            goal=3 * statistics.median(one),
            ratio=_ratio(thirty, one),
        )
        _reading(bench, ws)
        ws.close()


def _ticks(bench: Bench, ws: hw.Workspace, start: int) -> list[float]:
    figures = []
    for number in range(bench.size(40, 4)):
        ws.topic("ev").append(event_rows.events(100, start + number * 100))
        started = time.perf_counter()
        ws.run()
        figures.append((time.perf_counter() - started) * 1_000)
    return figures[2:]


def _ratio(figures: list[float], base: list[float]) -> float:
    return statistics.median(figures) / statistics.median(base)


def _reading(bench: Bench, ws: hw.Workspace) -> None:
    by_key, whole = [], []
    for number in range(bench.size(50, 3)):
        started = time.perf_counter()
        ws.query(f"SELECT * FROM v0 WHERE k = {number * 37}")
        by_key.append((time.perf_counter() - started) * 1_000)
    for _ in range(bench.size(5, 2)):
        started = time.perf_counter()
        ws.query("SELECT * FROM v0")
        whole.append((time.perf_counter() - started) * 1_000)
    bench.note("ws.query of a view of 100,000 rows", "by key", "ms", by_key, goal=LOOKUP_GOAL_MS)
    bench.note("ws.query of a view of 100,000 rows", "all of it", "ms", whole)


def _growing_state(bench: Bench) -> None:
    """A change of 1,000 rows in a table of more and more: updates, so that the old values are retracted."""
    sizes = (2_000, 4_000) if bench.quick else (100_000, 1_000_000, 10_000_000, 50_000_000)
    for name, query in GROWING.items():
        base: list[float] = []
        for size in sizes:
            figures = _one_size(bench, query, size)
            base = base or figures
            group = f"a change of 1,000 rows, {name}"
            bench.note(
                group,
                f"{size:,} rows of state",
                "ms",
                figures,
                goal=2 * statistics.median(base),
                ratio=_ratio(figures, base),
            )


def _one_size(bench: Bench, query: str, size: int) -> list[float]:
    random = np.random.default_rng(7)
    figures = []
    with bench.space() as space:
        path = Path(space) / "ws"
        with hw.open(path, settings=LogSettings(maintenance_every_ms=0, durability="os")) as ws:
            ws.sql(
                f"CREATE TOPIC ev ({event_rows.EVENT}); CREATE TOPIC item (id BIGINT, name STRING, price BIGINT, PRIMARY KEY (id))"
            )
            ws.sql(f"CREATE MATERIALIZED VIEW result AS {query}")
            for start in range(0, size, 1_000_000):
                count = min(1_000_000, size - start)
                ws.topic("item").append(_items(np.arange(start, start + count)))
                ws.run()
            for _ in range(bench.size(20, 3)):
                changed = random.choice(size, min(1_000, size // 2), replace=False)
                ws.append(
                    {
                        "item": _items(changed, shift=int(random.integers(1, 900))),
                        "ev": event_rows.events(1_000, items=size),
                    }
                )
                started = time.perf_counter()
                ws.run()
                figures.append((time.perf_counter() - started) * 1_000)
        shutil.rmtree(path, ignore_errors=True)
    return figures[2:] if len(figures) > 3 else figures


def _items(ids: np.ndarray, shift: int = 0) -> pa.Table:  # type: ignore[type-arg]
    names = pa.array(["one", "two", "three", "four"]).take(pa.array(ids % 4))
    return pa.table({"id": pa.array(ids), "name": names, "price": pa.array((ids + shift) % 99_991)})
