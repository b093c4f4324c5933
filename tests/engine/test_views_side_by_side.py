"""Views that take their steps together are each what they would be alone, also when one of them fails, goes or is new."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.errors import StorageError
from headwater.core.settings import LogSettings
from headwater.engine.merging.run_compaction import Compaction
from headwater.testing import inspect_workspace

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
DECLARED = """
CREATE TOPIC sales (shop BIGINT, item BIGINT, amount BIGINT, weight DOUBLE) WITH (partitions = 2);
CREATE TOPIC stock (item BIGINT, shop BIGINT, amount BIGINT, PRIMARY KEY (item));
CREATE MATERIALIZED VIEW by_shop AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop;
CREATE MATERIALIZED VIEW by_item AS SELECT item, count(*) AS n, sum(amount) AS total FROM sales GROUP BY item;
CREATE MATERIALIZED VIEW large AS
  SELECT shop AS place, count(*) AS orders, sum(amount * 2) AS twice FROM sales WHERE amount > 50 GROUP BY shop;
CREATE MATERIALIZED VIEW stocked AS SELECT shop, count(*) AS n, sum(amount) AS total FROM stock GROUP BY shop;
CREATE MATERIALIZED VIEW sizes AS SELECT n, count(*) AS shops, sum(total) AS total FROM by_shop GROUP BY n;
CREATE MATERIALIZED VIEW weights AS SELECT shop, avg(weight) AS mean FROM sales GROUP BY shop;
"""
LATER = "SELECT shop, count(*) AS n, sum(item) AS total FROM sales GROUP BY shop"


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[Workspace]:
    with hw.open(tmp_path / "shops", spark=spark, settings=SETTINGS) as workspace:
        workspace.sql(DECLARED)
        yield workspace


def sell(ws: Workspace, rng: random.Random) -> None:
    """Some sales, and changes of the stock: rows that come, change and go."""
    rows = [
        {
            "shop": rng.randrange(5),
            "item": rng.randrange(9),
            "amount": rng.randrange(100),
            "weight": rng.random(),
        }
        for _ in range(rng.randint(1, 20))
    ]
    items = rng.sample(range(8), 3)
    ws.append(
        {"sales": rows, "stock": [{"item": i, "shop": i % 3, "amount": rng.randrange(9)} for i in items[1:]]}
    )
    ws.topic("stock").delete([{"item": items[0]}])


def shares(ws: Workspace) -> int:
    """How many runs of the newest tick share a stream."""
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    refs = [ref for name in manifest.arrangements for ref in manifest.arrangements[name]]
    return sum(ref.shared > 0 for ref in refs)


def test_each_view_is_what_it_would_be_alone(ws: Workspace, tmp_path: Path, spark: Any) -> None:
    rng = random.Random(1)
    for _ in range(12):
        sell(ws, rng)
        ws.run()
    assert shares(ws) > 4
    assert ws.verify().ok
    ws.close()
    with hw.open(
        tmp_path / "shops", spark=spark, settings=SETTINGS
    ) as again:  # nothing is in memory any more
        again.sql("DROP VIEW by_item")
        again.sql(
            "CREATE MATERIALIZED VIEW late AS SELECT item, count(*) AS n, sum(amount) AS total FROM sales GROUP BY item"
        )
        for _ in range(9):
            sell(again, rng)
            again.run()
        assert again.verify().ok


def test_merges_that_are_made_as_one_survive_a_crash_and_leave_what_is_kept(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views come and go between merges, and the engine crashes in each tick that has one; every tick that is kept reads as
    it did."""
    rng, honest = random.Random(5), Compaction._stacked
    stacked = 0

    def crashing(self: Compaction, dues: Any, stack: Any) -> Any:
        nonlocal stacked
        honest(self, dues, stack)
        stacked += 1
        raise StorageError("the engine is gone")

    def opened() -> Workspace:
        return hw.open(tmp_path / "shops", spark=spark, settings=SETTINGS, keep_ticks=6)

    seen: dict[tuple[str, int], list[str]] = {}
    ws, names = opened(), {"by_shop", "by_item", "large", "stocked", "sizes", "weights"}
    ws.sql(DECLARED)
    for turn in range(26):
        if turn == 9:
            ws.sql("DROP VIEW large")
            ws.sql(f"CREATE MATERIALIZED VIEW later AS {LATER}")
            names = {*names, "later"} - {"large"}
        if turn == 14:
            ws.sql("DROP VIEW by_item")
            names.remove("by_item")
        sell(ws, rng)
        monkeypatch.setattr(Compaction, "_stacked", crashing)
        try:
            tick = ws.run().tick
        except StorageError:
            ws.close()
            ws = opened()
            monkeypatch.setattr(Compaction, "_stacked", honest)
            tick = ws.run().tick
        seen |= {(name, tick): rows_at(ws, name, tick) for name in names}
        kept = inspect_workspace(ws).ticks()
        for name, then in seen:
            if name in names and then in kept:
                assert rows_at(ws, name, then) == seen[name, then]
    assert stacked >= 3
    assert ws.verify().ok
    ws.close()


def rows_at(ws: Workspace, view: str, tick: int) -> list[str]:
    return sorted(map(repr, ws.view(view).read(as_of=tick).to_pylist()))


def test_one_that_fails_stops_alone_and_is_named(ws: Workspace) -> None:
    sell(ws, random.Random(2))
    ws.run()
    ws.topic("sales").append([{"shop": 1, "item": 1, "amount": 2**62, "weight": 1.0}])
    report = ws.run()
    assert report.stopped.keys() == {"large"}  # the only one that doubles it
    assert "does not fit" in report.stopped["large"] or "overflow" in report.stopped["large"]
    sell(ws, random.Random(3))
    assert ws.run().stopped.keys() == {"large"}
    ws.sql("DROP VIEW large")
    assert ws.verify().ok


def test_a_sum_that_overflows_in_one_is_told_by_that_one(ws: Workspace) -> None:
    sell(ws, random.Random(4))
    ws.run()
    ws.topic("sales").append([{"shop": 3, "item": 7, "amount": 2**62, "weight": 1.0}])
    ws.sql("DROP VIEW large; DROP VIEW sizes")
    ws.run()
    ws.topic("sales").append([{"shop": 4, "item": 7, "amount": 2**62, "weight": 1.0}])  # one item, two shops
    report = ws.run()
    assert report.stopped.keys() == {"by_item"}
    assert report.errors["by_item"].facts["key"] == {"item": 7}
