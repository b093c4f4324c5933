"""Keys that have nearly everything: an author with a million followers, and a key with a million rows on both sides.

The home timeline is that of docs/home-timeline.md. A post shall cost what its author's followers cost, and no more than
before if the author has few, whoever else is in the workspace. The join in time shall cost what lies near in time.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

import headwater as hw
from benchmarks import sides
from benchmarks.harness import Bench
from headwater.core.settings import LogSettings

TITLE = "Keys that have nearly everything"

BEGIN_US = 1_767_225_600_000_000
HISTORY, SEEN = 5, 50
"""How many posts of an author are kept, and how many a reader sees at once."""
FEW, ONLINE = 10, 1_000
STAR, SMALL, READERS = 1, 2, 10
NETWORK = f"""
    CREATE TOPIC accounts (id BIGINT, name STRING, PRIMARY KEY (id));
    CREATE TOPIC posts (id BIGINT, author BIGINT, text STRING, at TIMESTAMP, PRIMARY KEY (id));
    CREATE TOPIC follows (follower BIGINT, author BIGINT, PRIMARY KEY (follower, author));
    CREATE TOPIC online (account BIGINT, PRIMARY KEY (account));
    CREATE MATERIALIZED VIEW recent AS
      SELECT p.author, p.id, p.at, a.name, p.text FROM posts p JOIN accounts a ON a.id = p.author
      QUALIFY row_number() OVER (PARTITION BY p.author ORDER BY p.at DESC, p.id DESC) <= {HISTORY};
    CREATE MATERIALIZED VIEW timeline AS
      SELECT f.follower, r.at, r.id, r.author, r.name, r.text FROM follows f JOIN recent r ON r.author = f.author
      WHERE f.follower IN (SELECT id FROM accounts)
      QUALIFY row_number() OVER (PARTITION BY f.follower ORDER BY r.at DESC, r.id DESC) <= {SEEN};
    CREATE MATERIALIZED VIEW home AS
      SELECT o.account AS reader, r.at, r.id, r.author, r.name, r.text
      FROM online o JOIN follows f ON f.follower = o.account JOIN recent r ON r.author = f.author
      WHERE o.account IN (SELECT id FROM accounts)
      QUALIFY row_number() OVER (PARTITION BY o.account ORDER BY r.at DESC, r.id DESC) <= {SEEN};
"""
NEAR_S = 49
"""With rows a second apart, each has 99 partners."""
PAIRS = f"""
    CREATE TOPIC l (id BIGINT, k BIGINT, at TIMESTAMP);
    CREATE TOPIC r (id BIGINT, k BIGINT, at TIMESTAMP);
    CREATE MATERIALIZED VIEW pairs AS
      SELECT count(*) AS n, sum(r.id - l.id) AS s FROM l JOIN r ON l.k = r.k
      AND r.at BETWEEN l.at - INTERVAL '{NEAR_S}' SECONDS AND l.at + INTERVAL '{NEAR_S}' SECONDS;
"""


def run(bench: Bench) -> None:
    """Posts by an author with more and more followers, then the join."""
    for followers in (1_000, 2_000) if bench.quick else (10_000, 100_000, 1_000_000):
        _posts(bench, followers)
    _join(bench)


def _posts(bench: Bench, followers: int) -> None:
    with bench.space() as space, _open(space) as ws:
        ws.sql(NETWORK)
        readers = np.arange(READERS, READERS + followers)
        accounts = np.concatenate([[STAR, SMALL], readers])
        names = pa.array([f"account {i}" for i in accounts.tolist()])
        peaks = sides.Peaks()
        ws.append(
            {
                "accounts": pa.table({"id": pa.array(accounts), "name": names}),
                "follows": pa.table(
                    {
                        "follower": pa.array(np.concatenate([readers, readers[:FEW]])),
                        "author": pa.array(np.repeat([STAR, SMALL], [followers, FEW])),
                    }
                ),
                "online": pa.table({"account": pa.array(readers[:ONLINE])}),
            }
        )
        ws.run()
        for number in range(2 * HISTORY):  # so that from now on each post lets go of one
            _post(ws, number)
        figures: dict[int, list[float]] = {STAR: [], SMALL: []}
        rows: dict[int, int] = {}
        for number in range(2 * HISTORY, 2 * HISTORY + bench.size(10, 4)):
            author, seconds, changed = _post(ws, number)
            figures[author].append(seconds * 1_000)
            rows[author] = changed
        group = f"a post, {followers:,} followers of one author"
        bench.note(group, f"of the author with {FEW} followers", "ms", figures[SMALL])
        ratio = statistics.median(figures[STAR]) / statistics.median(figures[SMALL])
        bench.note(group, "of the author with all of them", "ms", figures[STAR], ratio=ratio)
        bench.note(group, f"rows that change, {FEW} followers", "rows", [rows[SMALL]])
        bench.note(group, "rows that change, all followers", "rows", [rows[STAR]])
        for process, peak in peaks.mb().items():
            bench.note(group, f"peak of memory, {process}", "MB", [peak])
        bench.note(group, "one reader's timeline, looked up", "ms", _lookups(ws, bench.size(100, 5)))


def _lookups(ws: hw.Workspace, count: int) -> list[float]:
    times = []
    for reader in range(READERS, READERS + count):
        started = time.perf_counter()
        found = ws.query(f"SELECT at, name, text FROM timeline WHERE follower = {reader}")
        times.append((time.perf_counter() - started) * 1_000)
        assert found.num_rows
    return times


def _post(ws: hw.Workspace, number: int) -> tuple[int, float, int]:
    """The author, the seconds until timelines have it, and the rows by which they change."""
    author = SMALL if number % 2 else STAR
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    ws.topic("posts").append(
        [{"id": number, "author": author, "text": f"what happened at {number}", "at": at}]
    )
    started = time.perf_counter()
    report = ws.run()
    seconds = time.perf_counter() - started
    return author, seconds, ws.view("timeline").changes(since=report.tick - 1).num_rows


def _join(bench: Bench) -> None:
    rows, ticks = bench.size(1_000_000, 3_000), bench.size(50, 3)
    per_tick = rows // ticks
    with bench.space() as space, _open(space) as ws:
        ws.sql(PAIRS)
        peaks = sides.Peaks()
        spent = 0.0
        for first in range(0, rows, per_tick):
            number = np.arange(first, first + per_tick)
            at = pa.array(BEGIN_US + number * 1_000_000).cast(pa.timestamp("us", "UTC"))
            one = pa.table({"id": pa.array(number), "k": pa.array(np.zeros_like(number)), "at": at})
            ws.append({"l": one, "r": one})
            started = time.perf_counter()
            ws.run()
            spent += time.perf_counter() - started
        (found,) = ws.query("SELECT n FROM pairs").to_pylist()
        group = f"one key, {rows:,} rows on each side, {2 * NEAR_S + 1} partners each, {ticks} ticks"
        bench.note(group, "rows of both sides", "records/s", [2 * rows / spent])
        bench.note(group, "pairs", "records/s", [found["n"] / spent])
        for process, peak in peaks.mb().items():
            bench.note(group, f"peak of memory, {process}", "MB", [peak])


def _open(space: Path) -> hw.Workspace:
    return hw.open(space / "ws", settings=LogSettings(maintenance_every_ms=0))
