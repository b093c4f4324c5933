"""Makes the golden workspace of the present format of state: `.venv/bin/python scripts/make_golden_state.py`.

It has views of every kind of state, ticks that are kept and ticks that are not, and a base in place of records that
retention has removed. Run it while a format is being made; once it is released its golden workspace is never made again,
and a new format gets a new folder. How views are planned is a part of it: `fingerprint` of a view's plan names its state.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from make_golden import Elsewhere, finish  # noqa: E402

import headwater as hw  # noqa: E402
from headwater.core.clock import ManualClock, from_us  # noqa: E402
from headwater.core.settings import LogSettings  # noqa: E402
from headwater.engine.tick import tick_engine  # noqa: E402
from headwater.log.embedded import EmbeddedLog  # noqa: E402
from headwater.log.embedded.maintenance import Maintenance  # noqa: E402
from headwater.state.manifest import FORMAT  # noqa: E402
from tests.golden.contents import VIEWS, view_rows  # noqa: E402
from tests.shared_spark import make_session  # noqa: E402

HOME = ROOT / "tests" / "golden" / f"state-{FORMAT}"
SETTINGS = LogSettings(maintenance_every_ms=0)
TICKS_KEPT = 2
CREATE = """
CREATE TOPIC orders (customer BIGINT, amount DECIMAL(10,2), weight DOUBLE, note STRING)
  WITH (partitions = 2, retention = '1 hour');
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id)) WITH (cleanup = 'compact');
CREATE TOPIC prices (item BIGINT, price BIGINT, PRIMARY KEY (item)) WITH (retention = '1 hour');
CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '10 minutes');
CREATE MATERIALIZED VIEW spent AS
  SELECT customer, sum(amount) AS total, max(amount) AS most, avg(weight) AS weight, count(note) AS notes
  FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW by_country AS
  SELECT c.country, sum(o.amount) AS total, count(*) AS n
  FROM orders o LEFT JOIN customers c ON o.customer = c.id GROUP BY c.country;
CREATE MATERIALIZED VIEW best AS SELECT customer, total FROM spent ORDER BY total DESC, customer LIMIT 2;
CREATE MATERIALIZED VIEW listed AS SELECT min(price) AS low, max(price) AS high, count(*) AS n FROM prices;
CREATE MATERIALIZED VIEW urls AS SELECT DISTINCT url FROM clicks;
CREATE MATERIALIZED VIEW per_minute AS
  SELECT window(at, '1 minute') AS w, count(*) AS n, count(DISTINCT user) AS users
  FROM clicks GROUP BY window(at, '1 minute');
CREATE MATERIALIZED VIEW steps AS
  SELECT user, at, lag(url) OVER (PARTITION BY user ORDER BY at, url) AS before, url FROM clicks;
CREATE MATERIALIZED VIEW noted WITH (on_error = 'divert') AS SELECT customer, CAST(note AS INT) AS note FROM orders;
"""


def append(ws: hw.Workspace, clock: ManualClock, step: int) -> None:
    """What comes before a tick: rows that are new, and rows that replace and delete."""
    now = from_us(clock.now_us())
    orders = [
        {
            "customer": (step + i) % 4,
            "amount": Decimal(100 * step + 25 * i) / 100,
            "weight": [0.5, -2.5e10, None][i],
            "note": [None, str(step), f"about {step}"][i],
        }
        for i in range(3)
    ]
    customers = [{"id": step % 3, "country": ["de", "fr", None][step % 3]}]
    clicks = [
        {"user": i % 2, "url": f"/{(step * i) % 5}", "at": now + timedelta(seconds=40 * i)} for i in range(3)
    ]
    ws.append({"orders": orders, "customers": customers, "clicks": clicks})
    ws.topic("prices").append([{"item": step % 3, "price": 10 * step}, {"item": 7, "price": 70 - step}])
    if step % 3 == 2:
        ws.topic("customers").delete([{"id": 0}])
        ws.topic("prices").delete([{"item": 1}])


def make(ws: hw.Workspace, clock: ManualClock) -> dict[str, dict[str, list[str]]]:
    """Ticks, then a base, then ticks after it; gives the contents at each tick from the base on."""
    ws.sql(CREATE)
    for step in range(3):
        append(ws, clock, step)
        ws.run()
        clock.advance("10 minutes")
    clock.advance("2 hours")
    if not ws.maintain().rows_removed:
        sys.exit("retention has removed nothing")
    served = {}
    for step in range(3, 6):
        append(ws, clock, step)
        tick = ws.run().tick
        served[str(tick)] = {name: view_rows(ws, name) for name in VIEWS}
        clock.advance("10 minutes")
    return served


@contextmanager
def alike() -> Iterator[None]:
    """Names and numbers are the same each time the workspace is made."""
    attempts = itertools.count(1)
    Maintenance._next_number = lambda self: f"{self._journal.state.seq}s{next(attempts)}"  # type: ignore[method-assign]
    with (
        mock.patch("uuid.uuid4", side_effect=(uuid.UUID(int=n << 80) for n in itertools.count(1))),
        mock.patch("platform.node", return_value="golden"),
        mock.patch("os.getpid", return_value=1),
    ):
        yield


def main() -> None:
    """Make it anew."""
    shutil.rmtree(HOME, ignore_errors=True)
    folder = HOME / "workspace"
    folder.mkdir(parents=True)
    spark, clock = make_session(), ManualClock()
    with alike(), mock.patch.object(tick_engine, "COLLECT_EVERY_TICKS", 1):
        log = EmbeddedLog.open(folder, settings=SETTINGS, clock=clock, storage=Elsewhere(folder))
        with hw.Workspace(log, clock, folder, spark, TICKS_KEPT) as ws:
            served = make(ws, clock)
            if not (verified := ws.verify()).ok:
                sys.exit(f"the workspace just made fails its verification: {verified.differences}")
    spark.stop()
    finish(HOME, {"made_at_us": clock.now_us(), "ticks": served})


if __name__ == "__main__":
    main()
