"""Followers on the same machine: the first fill, a tick's changes, and proving that they are equal to their view.

By hand is what one would write instead: upserts by psycopg's `executemany` in one transaction, HSET through a pipeline of redis-py. It
keeps no position and can prove nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import redis

import headwater as hw
from benchmarks.harness import Bench
from headwater.testing import inspect_workspace
from tests.postgres import PostgresServer
from tests.redis import RedisServer

TITLE = "Followers"

VERIFY_GOAL_MS = 10_000.0
"""A million rows, by the checksums that are kept: seconds, not minutes."""
_VERSIONS = itertools.count(2)
"""Every change is another one: what was there already would change nothing."""
COUNTRIES = np.array(["at", "ch", "de", "fr", "it"])
_INSERT = (
    "INSERT INTO by_hand VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
    "name = EXCLUDED.name, country = EXCLUDED.country, amount = EXCLUDED.amount"
)


@dataclass(frozen=True)
class Servers:
    """What followers live in."""

    postgres: str
    redis: str


def run(bench: Bench) -> None:
    """Each kind: filled with a million rows, given ticks of ten thousand changes, and verified."""
    postgres = PostgresServer(settings={"fsync": "on", "full_page_writes": "on", "shared_buffers": "'512MB'"})
    cache = RedisServer()
    try:
        servers = Servers(postgres.make_database(), cache.url())
        with _workspace(bench) as ws:
            for kind, options in _kinds(servers).items():
                if bench.wants(kind):
                    _follow(bench, ws, kind, options, _by_hand(kind, servers))
    finally:
        cache.remove()
        postgres.remove()


def _kinds(servers: Servers) -> dict[str, str]:
    return {
        "POSTGRES": f"url = '{servers.postgres}', table = 'items'",
        "REDIS": f"url = '{servers.redis}'",
        "SEARCH": "text = 'name'",
        "LAKE": "table = 'shop.items'",
        "PARQUET": "",
    }


@contextmanager
def _workspace(bench: Bench) -> Iterator[hw.Workspace]:
    """A view of as many rows as its keyed topic has."""
    with bench.space() as space, hw.open(Path(space) / "ws") as ws:
        ws.sql(
            "CREATE TOPIC items (id BIGINT, name STRING, country STRING, amount BIGINT, PRIMARY KEY (id));"
            "CREATE MATERIALIZED VIEW priced AS SELECT id, name, country, amount FROM items WHERE amount >= 0"
        )
        total, step = bench.size(1_000_000, 2_000), 250_000
        for first in range(0, total, step):
            ws.topic("items").append(_items(np.arange(first, min(first + step, total)), 1))
        ws.run()
        yield ws


def _follow(
    bench: Bench, ws: hw.Workspace, kind: str, options: str, by_hand: Callable[[pa.Table], None] | None
) -> None:
    total, changed = bench.size(1_000_000, 2_000), bench.size(10_000, 100)
    name = f"items_{kind.lower()}"
    comma = ", " if options else ""
    ws.sql(f"CREATE SINK {name} FROM priced INTO {kind} WITH ({options}{comma}key = 'id')")
    started = time.perf_counter()
    ws.sink(name).wait(timeout=1_800)
    seconds = time.perf_counter() - started
    group = f"{kind}: {total:,} rows of four columns"
    bench.note(group, "first fill", "records/s", [total / seconds])
    ticks, hands = [], []
    for turn in range(bench.size(5, 2)):
        ids = np.random.default_rng(turn).choice(total, changed, replace=False)
        rows = _items(ids, next(_VERSIONS))
        ws.topic("items").append(rows)
        inspect_workspace(ws).views.run()
        assert ws.sink(name).lag.rows == 2 * changed, "an old and a new row each"
        started = time.perf_counter()
        ws.sink(name).wait(timeout=600)
        ticks.append((time.perf_counter() - started) * 1e3)
        if by_hand is not None:
            started = time.perf_counter()
            by_hand(rows)
            hands.append((time.perf_counter() - started) * 1e3)
    bench.note(group, f"a tick of {changed:,} changes", "ms", ticks)
    if hands:
        ratio = float(np.median(hands) / np.median(ticks))
        bench.note(group, "the same upserts by hand, without a position", "ms", hands, ratio=ratio)
    outside = inspect_workspace(ws).sinks
    for cheap, what in ((True, "verified by checksums"), (False, "verified row by row")):
        times = []
        for _ in range(bench.size(3, 1)):
            started = time.perf_counter()
            (check,) = outside.verify(cheap=cheap)
            times.append((time.perf_counter() - started) * 1e3)
            assert check.ok, check
        bench.note(group, what, "ms", times, goal=VERIFY_GOAL_MS if cheap else None)
    ws.sql(f"DROP SINK {name}")


def _items(ids: np.ndarray, version: int) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "name": [f"item {number} of version {version}" for number in ids.tolist()],
            "country": COUNTRIES[ids % len(COUNTRIES)],
            "amount": ids * 10 + version,
        }
    )


def _by_hand(kind: str, servers: Servers) -> Callable[[pa.Table], None] | None:
    if kind == "POSTGRES":
        connection = psycopg.connect(servers.postgres)
        connection.execute(
            "CREATE TABLE by_hand (id bigint PRIMARY KEY, name text, country text, amount bigint)"
        )
        connection.commit()

        def upsert(rows: pa.Table) -> None:
            values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            with connection.cursor() as cursor:
                cursor.executemany(_INSERT, values)
            connection.commit()

        return upsert
    if kind == "REDIS":
        client = redis.Redis.from_url(servers.redis)

        def put(rows: pa.Table) -> None:
            pipeline = client.pipeline()
            for row in rows.to_pylist():
                pipeline.hset(f"by_hand:{row['id']}", mapping=row)
            pipeline.execute()

        return put
    return None
