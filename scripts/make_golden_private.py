"""Makes the golden workspace with private columns, and its keys: `.venv/bin/python scripts/make_golden_private.py`.

It has values of every type that can be private, in sealed and in active segments, keys that were wrapped by a second master, a subject that was
forgotten and came back, records that were excised, and a forgetting that the views have yet to follow. Run it while a
format of keys or of private values is being made; once it is released it is never made again, and a new format gets a new folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from make_golden import Elsewhere, finish  # noqa: E402
from make_golden_state import alike  # noqa: E402

import headwater as hw  # noqa: E402
from headwater.core.clock import ManualClock, from_us  # noqa: E402
from headwater.core.settings import LogSettings  # noqa: E402
from headwater.log.embedded import EmbeddedLog  # noqa: E402
from tests.golden.contents import PRIVATE_VIEWS, contents, view_rows  # noqa: E402
from tests.shared_spark import make_session  # noqa: E402

HOME = ROOT / "tests" / "golden" / "private-1"
SETTINGS = LogSettings(maintenance_every_ms=0)
CREATE = """
CREATE TOPIC people (id STRING, email STRING PRIVATE BY (id), country STRING, PRIMARY KEY (id)) WITH (cleanup = 'compact');
CREATE TOPIC visits (
  user BIGINT NOT NULL, b BOOLEAN PRIVATE BY (user), i INT PRIVATE BY (user), n BIGINT PRIVATE BY (user),
  f DOUBLE PRIVATE BY (user), d DECIMAL(12,3) PRIVATE BY (user), s STRING PRIVATE BY (user), x BINARY PRIVATE BY (user),
  day DATE PRIVATE BY (user), at TIMESTAMP PRIVATE BY (user), url STRING
) WITH (partitions = 2, partition_by = 'user');
CREATE MATERIALIZED VIEW by_text AS SELECT s, count(*) AS c, sum(n) AS n FROM visits GROUP BY s;
CREATE MATERIALIZED VIEW mails AS SELECT v.url, p.email FROM visits v JOIN people p ON CAST(v.user AS STRING) = p.id;
CREATE MATERIALIZED VIEW urls AS SELECT url, count(*) AS c FROM visits GROUP BY url
"""


def visit(number: int, clock: ManualClock) -> dict[str, Any]:
    """A visit of one of four; each seventh has no private value."""
    plain = {"user": number % 4, "url": f"/{number}"}
    if number % 7 == 6:
        return plain
    now = from_us(clock.now_us())
    return {
        **plain,
        "b": number % 2 == 0,
        "i": -number,
        "n": (1 << 40) + number,
        "f": [1e300, 0.1, -0.0][number % 3],
        "d": Decimal(number) / 8,
        "s": ["", "naïve ☂ private", f"private {number}"][number % 3],
        "x": bytes(range(number)),
        "day": date(1999, 12, 31) + timedelta(days=number),
        "at": now + timedelta(microseconds=number),
    }


def append(ws: hw.Workspace, clock: ManualClock, numbers: range) -> None:
    """Visits of these numbers, and the people whose they are."""
    people = [
        {"id": str(n % 4), "email": f"private-{n}@example.com", "country": ["de", "fr"][n % 2]}
        for n in numbers
    ]
    ws.append({"people": people, "visits": [visit(n, clock) for n in numbers]})
    clock.advance("10 minutes")


def make(ws: hw.Workspace, clock: ManualClock) -> None:
    """Deletions that are followed to their end, and one that is not."""
    ws.sql(CREATE)
    append(ws, clock, range(12))
    ws.run()
    ws.maintain()
    ws.forget(1, by="anna", reason="asked for it")
    ws.excise("visits", "url = '/2'", by="bert", reason="a test")
    ws.run()
    ws.rotate_keys()
    append(ws, clock, range(12, 18))
    ws.topic("people").delete([{"id": "0"}])
    ws.run()
    ws.forget("2", by="anna", reason="asked as well")


def main() -> None:
    """Make it anew."""
    shutil.rmtree(HOME, ignore_errors=True)
    folder = HOME / "workspace"
    folder.mkdir(parents=True)
    spark, clock = make_session(), ManualClock()
    with alike():
        log = EmbeddedLog.open(folder, settings=SETTINGS, clock=clock, storage=Elsewhere(folder))
        with hw.Workspace(log, clock, folder, spark) as ws:
            make(ws, clock)
            found = {"made_at_us": clock.now_us(), **contents(ws)}
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(HOME, place, dirs_exist_ok=True)
        with hw.open(Path(place) / "workspace", spark=spark, settings=SETTINGS, clock=clock) as ws:
            ws.run()
            found["views"] = {name: view_rows(ws, name) for name in PRIVATE_VIEWS}
            if not (verified := ws.verify()).ok:
                sys.exit(f"the workspace just made fails its verification: {verified.differences}")
    spark.stop()
    finish(HOME, found)


if __name__ == "__main__":
    main()
