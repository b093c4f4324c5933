"""The cart of the examples: its contents and the report of what was considered come from one log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import headwater as hw
from examples.events.cart import VIEWS, Add, Remove, cart, shop
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_contents_and_report_come_from_one_log(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark) as ws:
        shop(ws)
        ws.sql(VIEWS)
        ws.run()
        rows = ws.query("SELECT * FROM contents").to_pylist()
        for name in ("ada's", "bob's"):
            mine = {row["item"]: row["quantity"] for row in rows if row["cart"] == name}
            assert mine == ws.store(cart).load(name).state.items
        report = ws.query("SELECT * FROM considered ORDER BY item").to_pylist()
        assert report == [{"item": "lamp", "carts": 2}]  # the book came back


def test_what_cannot_be_is_refused(ws: hw.Workspace) -> None:
    shop(ws)
    carts = ws.store(cart)
    for name, command, facts in (
        ("ada's", Add("pen"), {"paid": True}),
        ("bob's", Remove("lamp"), {"item": "lamp", "quantity": None}),
        ("bob's", Add("lamp", 0), {"item": "lamp", "quantity": 0}),
    ):
        with raises(hw.CommandRefusedError, **facts):
            carts.execute(name, command)
