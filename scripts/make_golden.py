"""Makes the golden workspace of the present format: `.venv/bin/python scripts/make_golden.py`.

It holds some of everything that the format can express. Run it while a format is being made; once it is released its
golden workspace is never made again, and a new format gets a new folder.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import uuid
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import headwater as hw  # noqa: E402
from headwater.core.clock import ManualClock, from_us  # noqa: E402
from headwater.core.settings import LogSettings  # noqa: E402
from headwater.core.storage import Storage  # noqa: E402
from headwater.log.embedded import EmbeddedLog  # noqa: E402
from headwater.log.embedded.creation import FORMAT  # noqa: E402
from headwater.log.embedded.maintenance import Maintenance  # noqa: E402
from tests.golden.contents import contents  # noqa: E402

HOME = ROOT / "tests" / "golden" / f"format-{FORMAT}"
SETTINGS = LogSettings(maintenance_every_ms=0, staging_bytes_max=1_000)
CREATE = """
CREATE TOPIC everything (
  b BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT NOT NULL, i64 BIGINT, f32 FLOAT, f64 DOUBLE, d DECIMAL(20,4),
  s STRING, x BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,
  list ARRAY<INT>, map MAP<STRING, BIGINT>, pair STRUCT<left: INT, right: ARRAY<STRING>>
);
CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '10 minutes')
  WITH (partitions = 3, partition_by = 'user', max_ahead = '1 day', retention = '400 days');
CREATE TOPIC customers (id BIGINT, name STRING, since TIMESTAMP, PRIMARY KEY (id),
  WATERMARK FOR since AS since - INTERVAL '0 seconds')
  WITH (partitions = 2, cleanup = 'compact', tombstone_retention = '1 hour');
CREATE TOPIC accounts (account STRING NOT NULL, amount DECIMAL(10,2)) WITH (partitions = 2, versioned_by = 'account');
CREATE TOPIC short_lived (n INT)
"""


class Elsewhere(Storage):
    """The disk of a machine that nobody else has: who opens the workspace finds that its writer's machine is gone."""

    def boot_id(self) -> str:
        """The same each time the workspace is made."""
        return "golden-0000-0000"


def row(number: int, clock: ManualClock) -> dict[str, Any]:
    """A row with a value in every column; each fifth has none where that is allowed."""
    if number % 5 == 4:
        return {"i32": number}
    now = from_us(clock.now_us()) + timedelta(microseconds=number)
    return {
        "b": number % 2 == 0,
        "i8": -number,
        "i16": 300 * number,
        "i32": 70_000 * number,
        "i64": (1 << 40) + number,
        "f32": number / 4,
        "f64": [1e300, float("nan"), float("-inf"), -0.0][number % 4],
        "d": Decimal(number) / 16,
        "s": ["", "plain", "naïve ☂", "a\nb"][number % 4],
        "x": bytes(range(number)),
        "day": date(1999, 12, 31) + timedelta(days=number),
        "at": now,
        "local": now.replace(tzinfo=None),
        "list": [None, number] if number else [],
        "map": {"one": 1, "number": number},
        "pair": {"left": number, "right": ["a", None]},
    }


def click(user: int, at: datetime) -> dict[str, Any]:
    """A click."""
    return {"user": user, "url": f"/products/{user}", "at": at}


def first_half(ws: hw.Workspace, clock: ManualClock) -> None:
    """What is sealed and compacted, and then folded into the checkpoint."""
    ws.sql(CREATE)
    begin = from_us(clock.now_us())
    ws.topic("everything").append([row(number, clock) for number in range(12)])
    clicks, customers, accounts = ws.topic("clicks"), ws.topic("customers"), ws.topic("accounts")
    for sequence in range(4):
        clock.advance("1 minute")
        moment = begin + timedelta(minutes=3 * sequence)
        clicks.append([click(u, moment) for u in range(6)], producer="loader", sequence=sequence, epoch=1)
    clicks.append([click(1, begin + timedelta(days=30))])  # too far ahead to raise the watermark
    clicks.punctuate(begin + timedelta(minutes=20))
    for version in range(3):
        clock.advance("1 hour")
        since = from_us(clock.now_us())
        customers.append([{"id": n, "name": f"customer {n} v{version}", "since": since} for n in range(8)])
        customers.delete([{"id": version}])
    accounts.append([{"account": name, "amount": Decimal("10.50")} for name in "abcab"])
    accounts.append([{"account": "a", "amount": Decimal(-3)}], expect={"a": 2})
    ws.append({"clicks": [click(9, begin)], "accounts": [{"account": "c", "amount": Decimal(1)}]})
    ws.topic("short_lived").append([{"n": 1}])
    ws.sql("DROP TOPIC short_lived")
    clicks.cursor("mailer", hold=True).commit({0: 1, 1: 0, 2: 3})
    clock.advance("2 hours")
    ws.maintain()


def second_half(ws: hw.Workspace, clock: ManualClock) -> None:
    """What stays in active segments and in the newest journal."""
    ws.sql("ALTER TOPIC everything ADD COLUMN added STRING")
    ws.sql("ALTER TOPIC everything ALTER COLUMN i32 TYPE BIGINT")
    ws.sql("ALTER TOPIC everything ALTER COLUMN i32 DROP NOT NULL")
    ws.topic("everything").append([{**row(n, clock), "added": f"value {n}"} for n in range(12, 16)])
    clock.advance("1 hour")
    now, clicks = from_us(clock.now_us()), ws.topic("clicks")
    clicks.append([click(u, now) for u in range(6, 12)], producer="loader", sequence=10, epoch=2)
    with ws.transaction() as staged:  # grows beyond staging_bytes_max
        for step in range(10):
            staged.append("clicks", [click(u, now + timedelta(seconds=step)) for u in range(20, 40)])
    clicks.punctuate(now)
    ws.topic("customers").append([{"id": 3, "name": "customer 3, moved", "since": now}])
    cursor = clicks.cursor("copier")
    batch = next(iter(cursor.read(batch_rows=5)))
    ws.append({"customers": [{"id": 100 + batch.num_rows, "name": "copied", "since": now}]}, commit=cursor)
    member = clicks.group("billing", member="member-1", timeout="1 minute")
    next(iter(member.read(follow=False, batch_rows=4)))
    member.commit()


def finish(home: Path, found: Mapping[str, Any]) -> None:
    """Leave what must be found in a golden workspace, and no locks."""
    for lock in (home / "workspace").glob("*.lock"):
        lock.unlink()
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (home / "expected.json").write_text(text + "\n", encoding="utf-8")
    files = [path for path in home.rglob("*") if path.is_file()]
    print(f"{home.relative_to(ROOT)}: {len(files)} files, {sum(f.stat().st_size for f in files):,} bytes")


def main() -> None:
    """Make it anew."""
    shutil.rmtree(HOME, ignore_errors=True)
    folder = HOME / "workspace"
    folder.mkdir(parents=True)
    clock, attempts = ManualClock(), itertools.count(1)
    Maintenance._next_number = lambda self: f"{self._journal.state.seq}s{next(attempts)}"  # type: ignore[method-assign]
    with mock.patch("uuid.uuid4", return_value=uuid.UUID(int=1)):
        log = EmbeddedLog.open(folder, settings=SETTINGS, clock=clock, storage=Elsewhere(folder))
    with hw.Workspace(log, clock, folder) as ws:
        first_half(ws, clock)
        with log.core.exclusive():
            log.core.checkpoint()
        second_half(ws, clock)
        found = {"made_at_us": clock.now_us(), **contents(ws)}
        if not (verified := ws.verify()).ok:
            sys.exit(f"the workspace just made fails its verification: {verified.differences}")
    finish(HOME, found)


if __name__ == "__main__":
    main()
