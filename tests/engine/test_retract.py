"""Deletions that are taken back from the state: views are their SELECTs over the log as it now reads, and are not built anew for it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import headwater as hw
from headwater import Workspace
from headwater.catalog.connectors import DELETION
from headwater.core.settings import LogSettings
from headwater.engine.input import excised_records
from headwater.testing import Crash
from tests.engine.test_deletions_in_views import holding

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
START = datetime(2100, 1, 1, tzinfo=UTC)
LONG = os.environ.get("HEADWATER_LONG") == "1"
SCHEMA = """
CREATE TOPIC sales (id BIGINT, shop STRING, item STRING, n INT, price DECIMAL(9, 2), at TIMESTAMP,
  buyer BIGINT NOT NULL, card STRING PRIVATE BY (buyer)) WITH (partitions = 2, partition_by = 'shop');
CREATE TOPIC items (item STRING, label STRING, owner BIGINT NOT NULL, note STRING PRIVATE BY (owner), PRIMARY KEY (item));
"""
MENDED = {
    "by_shop": "SELECT shop, count(*) AS c, sum(n) AS n, avg(price) AS p FROM sales GROUP BY shop",
    "labelled": "SELECT s.id, s.shop, i.label FROM sales s JOIN items i ON s.item = i.item",
    "by_label": "SELECT label, count(*) AS c FROM labelled GROUP BY label",
    "unknown": "SELECT s.id, s.item, i.note FROM sales s LEFT JOIN items i ON s.item = i.item",
    "dearest": """SELECT shop, id, price FROM (
        SELECT *, row_number() OVER (PARTITION BY shop ORDER BY price DESC, id) AS r FROM sales) WHERE r <= 2""",
    "running": "SELECT shop, id, sum(n) OVER (PARTITION BY shop ORDER BY id) AS s FROM sales",
    "sold": "SELECT DISTINCT item FROM sales",
    "both": "SELECT item, 1 AS k FROM sales WHERE n > 2 UNION ALL SELECT item, 2 FROM items",
    "then": "SELECT s.id, i.label FROM sales s LEFT JOIN items FOR SYSTEM_TIME AS OF s.at i ON s.item = i.item",
    "spans": "SELECT item, label, note, _valid_from, _valid_to, _version FROM items.versions",
    "notes": "SELECT note, count(*) AS c, max(label) AS l, max(_offset) AS o FROM items GROUP BY note",
}
RECOMPUTED = {
    "highest": "SELECT shop, max(price) AS p, min_by(item, id) AS first FROM sales WHERE n > 0 GROUP BY shop",
    "ends": "SELECT min(price) AS low, max(price) AS high, count(*) AS c FROM sales",
    "guessed": "SELECT item, approx_count_distinct(id) AS ids, percentile_approx(n, 0.5) AS n FROM sales GROUP BY item",
    "weighed": "SELECT item, total(n) AS t FROM sales GROUP BY item",
    "hourly": """SELECT shop, window(at, '20 seconds', '10 seconds').start AS w, max(n) AS n
        FROM sales GROUP BY shop, window(at, '20 seconds', '10 seconds')""",
    "visits": """SELECT shop, session_window(at, '5 seconds') AS w, count(*) AS c, max(price) AS p
        FROM sales GROUP BY shop, session_window(at, '5 seconds')""",
    "dear": "SELECT id, item, price FROM sales WHERE price > 3",
    "above": "SELECT item, max(price) AS p FROM (SELECT * FROM dear UNION ALL SELECT id, item, price FROM sales) GROUP BY item",
    "over": "SELECT max(p) AS p, count(*) AS c FROM highest",
    "last": None,
}
"""What these keep does not say what a row takes with it: the groups that rows go from are computed again."""
BUILT_ANEW = {
    "pairs": "SELECT s.item, max(t.id) AS id FROM sales s JOIN sales t ON s.id = t.id AND s.n > 1 GROUP BY s.item",
}
OF_CARDS = {
    "cards": "SELECT shop, count(card) AS c, max(card) AS card FROM sales GROUP BY shop",
    "counted": "SELECT count(card) AS c, count(*) AS n FROM sales WHERE item <> 'item-1-'",
    "paid": "SELECT id, shop, upper(card) AS card FROM sales WHERE card IS NOT NULL AND n > 0",
    "paid_last": "SELECT shop, max(card) AS card, count(*) AS c FROM paid GROUP BY shop",
    "bought": "SELECT s.id, s.card, i.label FROM sales s LEFT JOIN items i ON s.item = i.item WHERE s.card LIKE '%1%'",
    "twice": """SELECT shop, id, card, row_number() OVER (PARTITION BY shop ORDER BY card DESC, id) AS r
        FROM sales QUALIFY r <= 2""",
    "stays": """SELECT shop, session_window(at, '5 seconds').start AS w, max(card) AS card
        FROM sales GROUP BY shop, session_window(at, '5 seconds')""",
    "lists": "SELECT item, sort_array(collect_list(card)) AS cards FROM sales GROUP BY item",
    "marks": "SELECT shop, item, _forgotten AS gone FROM sales WHERE n > 1",
}
"""Views of private values of a stream: what they hold of somebody is found by what is not private."""
BUILT_ANEW_ONCE_FORGOTTEN = {
    "by_card": "SELECT card, count(*) AS c FROM sales GROUP BY card",
}
VIEWS = {**MENDED, **RECOMPUTED, **BUILT_ANEW, **OF_CARDS, **BUILT_ANEW_ONCE_FORGOTTEN}
FEW = ("by_shop", "labelled", "by_label", "highest", "last", "paid")
OF_ITEMS = {"labelled", "by_label", "unknown", "both", "then", "spans", "notes", "bought"}
OF_SALES = set(VIEWS) - {"spans", "notes"}


@pytest.fixture
def open_ws(tmp_path: Path, spark: Any) -> Iterator[Any]:
    opened: list[Workspace] = []

    def again() -> Workspace:
        for ws in opened:
            ws.close()
        opened.append(hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS))
        with_functions(opened[-1])
        return opened[-1]

    yield again
    opened[-1].close()


@pytest.fixture
def ws(open_ws: Any) -> Workspace:
    return with_views(open_ws(), VIEWS)


@pytest.fixture
def few(open_ws: Any) -> Workspace:
    """With a view of every kind alone."""
    return with_views(open_ws(), FEW)


def with_views(ws: Workspace, names: Iterable[str]) -> Workspace:
    ws.sql(SCHEMA)
    with_functions(ws)
    for name in names:
        if (query := VIEWS[name]) is not None:
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    return ws


def with_functions(ws: Workspace) -> None:
    """A user's aggregate without a way to take rows out, and a fold that depends on the order of rows."""
    if "sales" not in ws.log.topics():
        return
    ws.aggregate(
        "total",
        zero=0,
        add=lambda state, n: state + (pc.sum(n).as_py() or 0),
        merge=lambda a, b: a + b,
        result=lambda state: state,
        state="BIGINT",
        returns="BIGINT",
    )
    ws.fold(
        "last",
        topic="sales",
        key="shop",
        zero={"item": None, "n": 0},
        step=lambda state, sale: {"item": sale["item"], "n": state["n"] * 3 % 1_000_003 + sale["n"]},
        returns="item STRING, n BIGINT",
    )


def fill(ws: Workspace, chance: random.Random, since: int, rows: int) -> None:
    """Sales, and items that come, change and go."""
    sales = [
        {
            "id": n,
            "shop": f"shop-{chance.randrange(4)}-",
            "item": f"item-{chance.randrange(6)}-",
            "n": chance.randrange(5),
            "price": Decimal(chance.randrange(80)) / 2,
            "at": START + timedelta(seconds=chance.randrange(60)),
            "buyer": chance.randrange(3),
            "card": None if chance.random() < 0.1 else f"card-{n}-secret",
        }
        for n in range(since, since + rows)
    ]
    items = [
        {
            "item": f"item-{chance.randrange(6)}-",
            "label": f"label-{chance.randrange(3)}-",
            "owner": chance.randrange(3),
            "note": f"note-{n}-secret",
        }
        for n in range(since, since + rows // 2)
    ]
    ws.append({"sales": sales, "items": items})
    if chance.random() < 0.4:
        ws.topic("items").delete([{"item": f"item-{chance.randrange(6)}-"}])


def assert_whole(ws: Workspace) -> None:
    found = ws.verify()
    assert found.ok, found.differences


def mended(ws: Workspace, name: str) -> tuple[set[str], set[str]]:
    """The views that a deletion was taken back from, and those that were built anew for it."""
    said = ws.log.entries(DELETION)[name].document
    return set(said["mended"]), set(said["views"]) - set(said["mended"])


def test_what_was_deleted_is_taken_back_and_nothing_else_is_read(
    ws: Workspace, open_ws: Any, tmp_path: Path
) -> None:
    chance = random.Random(7)
    fill(ws, chance, 0, 40)
    ws.run()
    ws.topic("items").append([{"item": "item-1-", "label": "label-1-", "owner": 9, "note": "gone-secret"}])
    ws.topic("sales").append(
        [
            {"id": 99, "shop": "wrong-shop-", "item": "item-1-", "n": 3, "price": Decimal(1), "buyer": 1},
            {"id": 98, "shop": "shop-1-", "item": "item-1-", "n": 3, "buyer": 9, "card": "zz-1-gone-secret"},
        ]
    )
    ws.run()
    assert holding(tmp_path / "ws", "wrong-shop-") != []
    assert ws.excise("sales", "shop = 'wrong-shop-' OR id IN (3, 4, 5)").records == 4
    fill(ws, chance, 100, 5)  # the same tick takes in what is new
    tick = ws.run().tick
    assert mended(ws, "excise-1") == (OF_SALES - set(BUILT_ANEW), set(BUILT_ANEW))
    assert_whole(ws)
    assert holding(tmp_path / "ws", "wrong-shop-") == []
    assert ws.view("by_shop").changes(since=tick).num_rows == 0
    with pytest.raises(hw.TickNotKeptError):
        ws.view("by_shop").changes(since=tick - 1)

    # a table has the row before it again, or none
    ws.topic("items").append([{"item": "item-1-", "label": "wrong-label-", "owner": 1, "note": "n"}])
    ws.topic("items").append([{"item": "only-", "label": "wrong-label-", "owner": 1, "note": "n"}])
    ws.run()
    ws.excise("items", "label = 'wrong-label-'")
    ws.run()
    assert mended(ws, "excise-2") == (OF_ITEMS, set())
    assert_whole(ws)
    assert holding(tmp_path / "ws", "wrong-label-") == []

    # the row that goes is the one that the state has: the key is gone, and what was replaced since is nowhere either
    ws.topic("items").append(
        [{"item": "item-1-", "label": "label-2-", "owner": 9, "note": "gone-secret too"}]
    )
    ws.run()
    assert holding(tmp_path / "ws", "gone-secret") != []
    ws.forget(9)
    ws = open_ws()
    ws.run()
    of_subject = OF_ITEMS | set(OF_CARDS) | {"last", "dearest"}  # these two read every column
    assert mended(ws, "forget-1") == (of_subject, set(BUILT_ANEW_ONCE_FORGOTTEN))
    assert holding(tmp_path / "ws", "gone-secret") == []
    assert_whole(ws)
    places = {p.name: p.detail for p in ws.deletions()[0].places if p.kind == "view"}
    assert places["by_shop"].startswith("retracted, and its state rewritten")
    assert places["pairs"].startswith("rebuilt from the log")
    assert ws.deletions()[0].done


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in range(1, 12))])
def test_views_are_their_selects_after_any_deletions(
    ws: Workspace, open_ws: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also where a process dies between a tick and what follows it, and where a tick meets records as they are removed."""
    chance = random.Random(seed)
    at = 0
    for step in range(26 if LONG else 12):
        act = chance.choice(
            ["append", "append", "tick", "excise", "excise", "forget", "crash", "open", "race"]
        )
        if act == "append":
            fill(ws, chance, at, chance.randint(2, 12))
            at += 12
        elif act == "tick":
            ws.run(tick_rows=chance.choice([None, 5]))
            if LONG or step % 8 == 0:
                assert_whole(ws)
        elif act == "excise":
            which = chance.choice(
                [
                    ("sales", f"id % 5 = {chance.randrange(5)} AND n = {chance.randrange(5)}"),
                    ("items", f"owner = {chance.randrange(3)} AND label = 'label-{chance.randrange(3)}-'"),
                    ("items", "_op = 'delete'"),
                ]
            )
            with suppress(hw.UsageError):
                ws.excise(*which)
        elif act == "forget":
            with suppress(hw.UsageError):
                ws.forget(chance.randrange(3))
        elif act == "crash":
            with monkeypatch.context() as patch, suppress(Crash):
                patch.setattr(
                    f"headwater.engine.deletion.rebuild_after_delete.{chance.choice(['without', '_say'])}",
                    die,
                )
                ws.run()
            ws = open_ws()
        elif act == "race":
            fill(ws, chance, at, 6)
            at += 6
            with monkeypatch.context() as patch:
                excise_once_read(ws, patch, f"id % 3 = {chance.randrange(3)}", late=chance.random() < 0.5)
                ws.run()
        else:
            ws = open_ws()
    fill(ws, chance, at, 8)
    ws.run()
    assert_whole(ws)
    ws.excise("sales", f"_offset % 4 = {chance.randrange(4)}")
    ws.run()
    assert_whole(ws)
    assert all(deletion.done for deletion in ws.deletions())
    assert not list((Path(ws.path or "") / excised_records.FOLDER).glob("*"))


def excise_once_read(ws: Workspace, patch: pytest.MonkeyPatch, where: str, *, late: bool) -> None:
    """Have records removed in the middle of the next tick: before its inputs are read, or after."""
    from headwater.engine.tick.tick_run import TickRun

    run = TickRun.run
    done: list[int] = []

    def excise() -> None:
        if not done:
            done.append(1)
            with suppress(hw.UsageError):
                ws.excise("sales", where)

    def raced(self: TickRun) -> None:
        if not late:
            excise()
        run(self)
        if late:
            excise()

    patch.setattr(TickRun, "run", raced)


def die(*_: object) -> None:
    raise Crash


def test_too_many_records_or_other_columns_have_views_built_anew(
    few: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ws = few
    chance = random.Random(3)
    fill(ws, chance, 0, 30)
    ws.run()
    with monkeypatch.context() as patch:
        patch.setattr(excised_records, "ROWS_MAX", 2)
        ws.excise("sales", "id < 4")
    assert not (tmp_path / "ws" / excised_records.FOLDER).exists()
    ws.run()
    assert mended(ws, "excise-1") == (set(), set(FEW))
    assert_whole(ws)
    ws.excise("sales", "id < 8")
    ws.sql("ALTER TOPIC sales ADD COLUMN more STRING")
    ws.run()
    assert mended(ws, "excise-2")[0] == set()
    assert_whole(ws)


def test_records_that_wait_to_be_taken_back_are_as_private_as_they_were(
    few: Workspace, open_ws: Any, tmp_path: Path
) -> None:
    ws = few
    fill(ws, random.Random(5), 0, 10)
    ws.topic("items").append([{"item": "x", "label": "y", "owner": 5, "note": "very-secret"}])
    ws.excise("items", "item = 'x'")
    (file,) = (tmp_path / "ws" / excised_records.FOLDER).iterdir()
    assert b"very-secret" not in file.read_bytes()
    ws.run()
    assert not file.exists()
    assert_whole(ws)


def test_an_excision_reaches_what_sinks_have_copied(few: Workspace, open_ws: Any, tmp_path: Path) -> None:
    ws = few
    for name in reversed(FEW):
        if name not in ("by_shop", "by_label", "labelled"):
            ws.sql(f"DROP VIEW {name}")
    ws.sql(
        "CREATE SINK shops FROM by_shop INTO TOPIC WITH (topic = 'shops_now', key = 'shop');"
        "CREATE SINK story FROM by_shop INTO TOPIC WITH (topic = 'shops_told', mode = 'changelog')"
    )
    sale = {"id": 1, "shop": "right-shop-", "item": "item-1-", "n": 1, "price": Decimal(1), "buyer": 1}
    ws.topic("sales").append([sale, {**sale, "id": 2, "shop": "wrong-shop-"}])
    ws.run()
    ws.sql(
        "CREATE MATERIALIZED VIEW copied AS SELECT n, count(*) AS c, max(shop) AS shop FROM shops_now GROUP BY n;"
        "CREATE MATERIALIZED VIEW told AS SELECT shop, sum(_weight) AS w FROM shops_told GROUP BY shop;"
        "CREATE SINK again FROM copied INTO TOPIC WITH (topic = 'again', key = 'n')"
    )
    ws.topic("sales").append([{**sale, "id": 3}, {**sale, "id": 4, "shop": "wrong-shop-"}])
    ws.run()
    ws.run()  # what sinks write is read a tick later
    assert ws.query("SELECT * FROM copied").to_pylist() == [{"n": 2, "c": 2, "shop": "wrong-shop-"}]
    done = ws.excise("sales", "shop = 'wrong-shop-'", by="anna", reason="a test")
    details = {p.name: p.detail for p in done.places if p.kind == "sink" and p.status == "scheduled"}
    assert details["shops"].endswith("the records that it had copied are excised then")
    for _ in range(3):
        ws.run()
    assert ws.query("SELECT * FROM copied").to_pylist() == [{"n": 2, "c": 1, "shop": "right-shop-"}]
    assert ws.query("SELECT * FROM told").to_pylist() == [{"shop": "right-shop-", "w": 1}]
    assert ws.query("SELECT * FROM again").to_pylist() == [{"n": 2, "c": 1, "shop": "right-shop-"}]
    assert holding(tmp_path / "ws", "wrong-shop-") == []
    assert all(deletion.done for deletion in ws.deletions())
    assert_whole(ws)
    audit = ws.query("SELECT topic, condition, who FROM _excised ORDER BY number").to_pylist()
    assert audit[0]["topic"] == "sales"
    assert {row["topic"] for row in audit[1:]} == {"shops_now", "shops_told", "again"}
    assert audit[1]["condition"].startswith("copied by sink ")
    assert {row["who"] for row in audit} == {"anna"}
