"""Every view of a workspace shows one cut, at every moment: money that is moved is never seen to come or go.

Transfers are atomic appends to two topics. Whoever looks, whenever, sees debits and credits that add up to nothing, and
views that are exactly what they are declared to be of each other.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.errors import TickNotKeptError, ViewUnavailableError
from headwater.core.settings import LogSettings
from headwater.engine.tick import backfill_parts
from headwater.testing import inspect_workspace

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
APPENDS = 40

DECLARED = """
CREATE TOPIC debits (account BIGINT, amount BIGINT) WITH (partitions = 3, partition_by = 'account');
CREATE TOPIC credits (account BIGINT, amount BIGINT) WITH (partitions = 2);
CREATE MATERIALIZED VIEW debited AS SELECT account, sum(amount) AS amount, count(*) AS n FROM debits GROUP BY account;
CREATE MATERIALIZED VIEW credited AS SELECT account, sum(amount) AS amount, count(*) AS n FROM credits GROUP BY account;
CREATE MATERIALIZED VIEW balances AS
  SELECT coalesce(d.account, c.account) AS account, coalesce(c.amount, 0) - coalesce(d.amount, 0) AS balance
  FROM debited d FULL JOIN credited c ON d.account = c.account;
CREATE MATERIALIZED VIEW total AS
  SELECT coalesce(sum(balance), 0) AS total, count(*) AS accounts FROM balances;
CREATE MATERIALIZED VIEW sides AS
  SELECT side, count(*) AS n FROM
    (SELECT 'debits' AS side FROM debits UNION ALL SELECT 'credits' AS side FROM credits) GROUP BY side;
"""


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[Workspace]:
    with hw.open(tmp_path / "bank", spark=spark, settings=SETTINGS) as workspace:
        workspace.sql(DECLARED)
        workspace.run()
        yield workspace


def transfer(ws: Workspace, rng: random.Random) -> int:
    """Move money between accounts, several times in one append; how many times."""
    debits, credited = [], []
    for _ in range(rng.randint(1, 4)):
        amount = rng.randint(1, 1000)
        debits.append({"account": rng.randrange(12), "amount": amount})
        credited.append({"account": rng.randrange(12), "amount": amount})
    ws.append({"debits": debits, "credits": credited})
    return len(debits)


class Background(threading.Thread):
    """Work beside the test; `finish` raises what ended it."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised where it is seen
            self._error = error

    def finish(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


class Observer:
    """Looks at a workspace through handles of its own, without Spark, as another process would."""

    def __init__(self, path: Path | None) -> None:
        assert path is not None
        self._ws = hw.open(path, settings=SETTINGS)
        self.done = threading.Event()
        self.ticks: set[int] = set()

    def watch(self) -> None:
        with self._ws:
            while not self.done.is_set():
                self.look()
            self.look()

    def look(self) -> None:
        (row,) = self._ws.query("SELECT * FROM total").to_pylist()
        assert row["total"] == 0
        latest = inspect_workspace(self._ws).manifest()
        assert latest is not None
        try:
            self._agree(latest.tick)
        except TickNotKeptError:
            return  # a hundred ticks were made meanwhile
        self.ticks.add(latest.tick)

    def _agree(self, tick: int) -> None:
        def rows(query: str) -> list[dict[str, Any]]:
            return self._ws.query(query, as_of=tick).to_pylist()

        debited = {r["account"]: r for r in rows("SELECT * FROM debited")}
        credited = {r["account"]: r for r in rows("SELECT * FROM credited")}
        balances = {r["account"]: r["balance"] for r in rows("SELECT * FROM balances")}
        moved = {
            account: credited.get(account, {"amount": 0})["amount"]
            - debited.get(account, {"amount": 0})["amount"]
            for account in debited.keys() | credited.keys()
        }
        assert balances == moved, f"tick {tick}"
        assert rows("SELECT * FROM total") == [{"total": 0, "accounts": len(balances)}], f"tick {tick}"
        times = {r["side"]: r["n"] for r in rows("SELECT * FROM sides")}
        assert times.get("debits", 0) == sum(r["n"] for r in debited.values()), f"tick {tick}"
        assert times.get("credits", 0) == sum(r["n"] for r in credited.values()), f"tick {tick}"
        assert times.get("debits", 0) == times.get("credits", 0), f"tick {tick}"
        # the topics themselves, asked at a tick, are cut where the views are
        (raw,) = rows("SELECT count(*) AS n, sum(amount) AS amount FROM debits")
        assert raw["n"] == times.get("debits", 0), f"tick {tick}"


def observed(ws: Workspace, work: Callable[[], None]) -> Observer:
    """Do some work under observation."""
    observer = Observer(ws.path)
    watching = Background(observer.watch)
    watching.start()
    try:
        work()
    finally:
        observer.done.set()
        watching.finish()
    return observer


def test_a_running_engine_never_shows_half_a_transfer(ws: Workspace) -> None:
    rng = random.Random(1)
    moved = 0

    def work() -> None:
        nonlocal moved
        with ws.start():
            for _ in range(APPENDS):
                moved += transfer(ws, rng)
            ws.run()  # waits for the engine

    observer = observed(ws, work)
    assert len(observer.ticks) > 1, "nothing was seen on the way"
    assert {r["n"] for r in ws.query("SELECT n FROM sides").to_pylist()} == {moved}


def test_bounded_ticks_never_show_half_a_transfer(ws: Workspace) -> None:
    rng = random.Random(2)
    moved = 0

    def write() -> None:
        nonlocal moved
        for _ in range(APPENDS):
            moved += transfer(ws, rng)

    def work() -> None:
        writing = Background(write)
        writing.start()
        while writing.is_alive():
            ws.run(tick_rows=7)
        writing.finish()
        ws.run(tick_rows=7)

    observer = observed(ws, work)
    assert len(observer.ticks) > 1, "nothing was seen on the way"
    assert {r["n"] for r in ws.query("SELECT n FROM sides").to_pylist()} == {moved}
    store = inspect_workspace(ws).store
    taken = [store.cut_of(tick).positions for tick in store.ticks()]
    rows = [sum(end for parts in cut.values() for end in parts.values()) for cut in taken]
    assert max(b - a for a, b in itertools.pairwise(rows)) <= 8, "a tick of seven rows, or of one append"


def test_a_view_that_joins_on_the_way_agrees_from_its_first_tick(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 20)
    rng = random.Random(3)
    for _ in range(20):
        transfer(ws, rng)
    ws.run()
    ws.sql(
        """
        CREATE MATERIALIZED VIEW again AS SELECT account, sum(amount) AS balance FROM (
          SELECT account, amount FROM credits UNION ALL SELECT account, -amount AS amount FROM debits) GROUP BY account;
        CREATE MATERIALIZED VIEW drift AS SELECT count(*) AS n FROM balances b
          JOIN again a ON a.account = b.account WHERE a.balance != b.balance;
        """
    )
    waited = seen = 0
    while seen < 5:
        transfer(ws, rng)
        inspect_workspace(ws).views.listener.enough = True  # a tick at a time
        ws.run()
        try:
            joined = ws.query("SELECT * FROM drift").to_pylist()
        except ViewUnavailableError:
            waited += 1
            continue
        seen += 1
        assert joined == [{"n": 0}]
        assert ws.query("SELECT * FROM again ORDER BY account") == ws.query(
            "SELECT * FROM balances ORDER BY account"
        )
    assert waited > 1, "it was there at once"
