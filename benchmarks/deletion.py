"""Deletion: ten records excised of a million, and somebody forgotten, each with the run after it, beside views built anew.

What is excised is taken back from the state of views, and so is who is forgotten of a table; a view that groups a
stream by a private column is built anew, so that the run after a forgetting there costs what its first run cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headwater as hw
from benchmarks.harness import Bench
from headwater.core.settings import LogSettings

TITLE = "Deletion"
SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)

_ORDERS = """
CREATE TOPIC orders (id BIGINT, who BIGINT, k BIGINT, amount BIGINT) WITH (partitions = 2);
CREATE TOPIC people (id BIGINT, email STRING PRIVATE BY (id), country STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW by_group AS SELECT k, count(*) AS n, sum(amount) AS s FROM orders GROUP BY k;
CREATE MATERIALIZED VIEW joined AS SELECT o.id, o.amount, p.email FROM orders o JOIN people p ON o.who = p.id;
CREATE MATERIALIZED VIEW best AS
  SELECT k, id, amount FROM orders QUALIFY row_number() OVER (PARTITION BY k ORDER BY amount DESC, id) <= 3;
"""
_VIEWS = ("by_group", "joined", "best")
_CLICKS = """
CREATE TOPIC clicks (who BIGINT NOT NULL, ip STRING PRIVATE BY (who), url STRING) WITH (partitions = 2);
CREATE MATERIALIZED VIEW by_ip AS SELECT ip, count(*) AS n FROM clicks GROUP BY ip;
CREATE MATERIALIZED VIEW by_url AS SELECT url, count(*) AS n FROM clicks GROUP BY url;
"""


def run(bench: Bench) -> None:
    """A stream with a table beside it, then a stream that is private itself."""
    rows, people = bench.size(1_000_000, 2_000), bench.size(20_000, 100)
    with bench.space() as space:
        _taken_back(bench, space, rows, people)
    rows, people = bench.size(200_000, 1_000), bench.size(20_000, 100)
    with bench.space() as space:
        _made_anew(bench, space, rows, people)


def _taken_back(bench: Bench, space: Path, rows: int, people: int) -> None:
    group = f"{rows:,} records, {people:,} rows of a table, {len(_VIEWS)} views"
    with hw.open(space / "orders", settings=SETTINGS) as ws:
        ws.sql(_ORDERS)
        ids = pa.array(np.arange(people))
        emails = pc.binary_join_element_wise(ids.cast(pa.string()), "example.com", "@")
        ws.topic("people").append(
            pa.table({"id": ids, "email": emails, "country": pa.repeat("CH", people).cast(pa.string())})
        )
        random = np.random.default_rng(5)
        orders = {
            "id": np.arange(rows),
            "who": random.integers(0, people, rows),
            "k": random.integers(0, max(1, rows // 10), rows),
            "amount": random.integers(1, 1_000, rows),
        }
        ws.topic("orders").append(pa.table(orders))
        figures: dict[str, list[float]] = {"first run": [_ms(ws.run)]}
        names = ("excise of 10 records", "run after it", "forget somebody of the table", "run after that")
        figures |= {name: [] for name in (*names, "all views built anew")}
        for n in range(bench.runs):
            gone = ", ".join(str(order) for order in random.choice(rows, 10, replace=False))
            figures[names[0]].append(_ms(lambda gone=gone: ws.excise("orders", f"id IN ({gone})")))  # type: ignore[misc]
            figures[names[1]].append(_ms(ws.run))
            figures[names[2]].append(_ms(lambda n=n: ws.forget(n)))  # type: ignore[misc]
            figures[names[3]].append(_ms(ws.run))
            figures["all views built anew"].append(_ms(lambda: _rebuilt(ws)))
        for name, taken in figures.items():
            bench.note(group, name, "ms", taken)


def _rebuilt(ws: hw.Workspace) -> None:
    for view in _VIEWS:
        ws.view(view).rebuild(verify=False)
    ws.run()
    for view in _VIEWS:
        ws.view(view).drop_old()


def _made_anew(bench: Bench, space: Path, rows: int, people: int) -> None:
    group = f"{rows:,} records with a private address each, of {people:,} subjects, 2 views"
    with hw.open(space / "clicks", settings=SETTINGS) as ws:
        ws.sql(_CLICKS)
        who = np.arange(rows) % people
        addresses = pc.binary_join_element_wise(pa.scalar("10.0"), pa.array(who).cast(pa.string()), ".")
        pages = pa.array([f"/page-{n}" for n in range(100)]).take(pa.array(np.arange(rows) % 100))
        clicks = pa.table({"who": who, "ip": addresses, "url": pages})
        figures: dict[str, list[float]] = {"append": [_ms(lambda: ws.topic("clicks").append(clicks))]}
        figures["first run"] = [_ms(ws.run)]
        figures |= {"forget somebody": [], "run after it": []}
        for n in range(bench.runs):
            figures["forget somebody"].append(_ms(lambda n=n: ws.forget(n)))  # type: ignore[misc]
            figures["run after it"].append(_ms(ws.run))
        for name, taken in figures.items():
            bench.note(group, name, "ms", taken)


def _ms(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1e3
