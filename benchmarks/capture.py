"""Capture from Postgres on the same machine: from a commit there to the log here, and the first copy of a table.

The server is a real one, with its own fsync on; the log acknowledges when it has synced. The delay is from the return of
COMMIT in the client to the moment when a reader of the log sees the row.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

import headwater as hw
from benchmarks.harness import Bench
from headwater.testing import inspect_workspace
from tests.postgres import PostgresServer

TITLE = "Capture from Postgres"

COLUMNS = (
    "id bigint PRIMARY KEY, customer bigint, amount numeric(12, 2), note text, at timestamptz, paid boolean"
)
ROWS = (
    "INSERT INTO orders SELECT i, i % 1000, i % 10000 / 100.0, 'order ' || i, "
    "timestamptz '2026-01-01' + i * interval '1 second', i % 2 = 0 FROM generate_series({0}, {1}) i"
)
CHANGES_GOAL, SNAPSHOT_GOAL = 80_000.0, 200_000.0
CLIENTS = 4
DELAY_GOALS_MS = {200: 25.0, 1_000: 50.0}


def run(bench: Bench) -> None:
    """Changes a second, rows of a snapshot a second, and the delay at two rates."""
    server = PostgresServer(settings={"fsync": "on", "full_page_writes": "on", "shared_buffers": "'512MB'"})
    try:
        if bench.wants("changes"):
            _changes(bench, server)
        if bench.wants("snapshot"):
            _snapshot(bench, server)
        for rate, goal in DELAY_GOALS_MS.items():
            if bench.wants("delay"):
                _delay(bench, server, rate, goal)
    finally:
        server.remove()


@contextmanager
def _captured(
    bench: Bench, server: PostgresServer, rows: int
) -> Iterator[tuple[hw.Workspace, psycopg.Connection, Path]]:
    """A table of some rows, and a workspace with a source that has not been read yet."""
    url = server.make_database()
    with bench.space() as space, psycopg.connect(url, autocommit=True) as shop:
        shop.execute(f"CREATE TABLE orders ({COLUMNS})")
        if rows:
            shop.execute(ROWS.format(1, rows))
        with hw.open(space / "ws") as ws:
            ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{url}', tables = 'orders')")
            yield ws, shop, space
    server.drop_database(url)


def _changes(bench: Bench, server: PostgresServer) -> None:
    """Transactions that are there already, read as fast as it goes."""
    transactions, rows = bench.size(1_000, 5), 1_000
    found = []
    for _ in range(bench.size(3, 1)):
        with _captured(bench, server, 0) as (ws, shop, _):
            ws.source("shop").wait(_now(shop))
            for number in range(transactions):
                shop.execute(ROWS.format(number * rows + 1, (number + 1) * rows))
            started = time.perf_counter()
            ws.source("shop").wait(_now(shop), timeout=600)
            found.append(transactions * rows / (time.perf_counter() - started))
            assert ws.topic("orders").partitions()[0].rows == transactions * rows
    bench.note(
        f"row changes, {transactions:,} transactions of {rows:,} rows, six columns",
        "from the server's log to ours",
        "records/s",
        found,
        goal=CHANGES_GOAL,
    )


def _snapshot(bench: Bench, server: PostgresServer) -> None:
    rows = bench.size(2_000_000, 2_000)
    found = []
    for _ in range(bench.size(3, 1)):
        with _captured(bench, server, rows) as (ws, shop, _):
            started = time.perf_counter()
            ws.source("shop").wait(_now(shop), timeout=600)
            found.append(rows / (time.perf_counter() - started))
            assert ws.topic("orders").partitions()[0].rows == rows
    bench.note(
        f"first snapshot, {rows:,} rows", "from the table to the log", "records/s", found, goal=SNAPSHOT_GOAL
    )


def _delay(bench: Bench, server: PostgresServer, rate: int, goal: float) -> None:
    """Transactions of one row at a steady rate, while the source is kept going; the first second does not count."""
    seconds = bench.size(10, 1)
    with _captured(bench, server, 0) as (ws, shop, _):
        outside = inspect_workspace(ws).supervisor
        outside.sources.start()
        try:
            ws.source("shop").wait(_now(shop))
            committed: dict[int, float] = {}
            seen: dict[int, float] = {}
            done = threading.Event()
            reader = threading.Thread(target=_watch, args=(ws, seen, rate * seconds, done))
            reader.start()
            started = time.perf_counter()
            clients = [
                threading.Thread(
                    target=_write,
                    args=(shop.info.dsn, committed, range(c, rate * seconds, CLIENTS), started, rate),
                )
                for c in range(CLIENTS)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            done.wait(60)
            reader.join()
        finally:
            outside.sources.stop()
        lasted = max(committed.values()) - started
        delays = [(seen[n] - at) * 1_000 for n, at in committed.items() if n >= (rate if seconds > 1 else 0)]
        group = f"delay at {rate:,} transactions/s, of one row each"
        bench.note(group, "median, from commit to the log", "ms", [statistics.median(delays)], goal=goal)
        bench.note(group, "95 of 100", "ms", [sorted(delays)[int(len(delays) * 0.95)]])
        bench.note(group, "transactions that the client managed", "records/s", [rate * seconds / lasted])


def _write(url: str, committed: dict[int, float], numbers: range, started: float, rate: int) -> None:
    with psycopg.connect(url, autocommit=True) as shop:
        for number in numbers:
            pause = started + number / rate - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            shop.execute("INSERT INTO orders VALUES (%s, 1, 1, 'x', now(), true)", [number])
            committed[number] = time.perf_counter()


def _watch(ws: hw.Workspace, seen: dict[int, float], count: int, done: threading.Event) -> None:
    for batch in ws.topic("orders").read("earliest", columns=["id"], follow=True, timeout=30):
        now = time.perf_counter()
        for number in batch.column("id").to_pylist():
            seen.setdefault(number, now)
        if len(seen) >= count:
            break
    done.set()


def _now(shop: psycopg.Connection) -> str:
    found = shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert found is not None
    return str(found[0])
