"""What is said of views: by EXPLAIN, by verify, and of ticks that are not there."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.plan.planner import Planner
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
ORDERS = "CREATE TOPIC orders (id BIGINT, amount STRING) WITH (retention = '1 hour')"


@pytest.fixture
def shop(tmp_path: Path, spark: "SparkSession", clock: ManualClock) -> Iterator[hw.Workspace]:
    """A workspace with a topic of texts."""
    with hw.open(tmp_path / "shop", spark=spark, settings=SETTINGS, clock=clock) as ws:
        ws.sql(ORDERS)
        yield ws


def explained(ws: hw.Workspace, view: str) -> dict[str, str]:
    table = ws.sql(f"EXPLAIN {view}")
    assert table is not None
    return {row["property"]: row["value"] for row in table.to_pylist()}


def test_explain_tells_what_becomes_of_rows_that_fail_and_which_hidden_columns_are_read(
    shop: hw.Workspace,
) -> None:
    shop.sql("""
        CREATE MATERIALIZED VIEW strict AS SELECT CAST(amount AS INT) AS amount FROM orders;
        CREATE MATERIALIZED VIEW lenient WITH (on_error = 'divert') AS
          SELECT CAST(amount AS INT) AS amount, _offset AS place FROM orders
    """)
    assert explained(shop, "strict")["errors"] == "a row that fails stops the view"
    assert "metadata columns" not in explained(shop, "strict")
    told = explained(shop, "lenient")
    assert told["errors"] == "a row that fails is left out, and recorded in lenient.errors"
    assert told["metadata columns"] == "_offset of orders"


def test_explain_tells_of_the_base_that_a_view_rests_on(shop: hw.Workspace, clock: ManualClock) -> None:
    shop.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders")
    shop.topic("orders").append([{"id": 1}])
    shop.run()
    assert "base" not in explained(shop, "n")
    clock.advance("2 hours")
    assert shop.maintain().rows_removed == 1
    assert explained(shop, "n")["base"].startswith("tick 1: earlier records were removed")
    (check,) = shop.verify().views
    assert (check.view, check.ok, check.on_base) == ("n", True, True)


def test_explain_of_a_view_that_cannot_be_planned_says_why(
    shop: hw.Workspace, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders")

    def refuse(*_: object) -> NoReturn:
        raise hw.UsageError("it cannot be")

    monkeypatch.setattr(Planner, "plan", refuse)
    with hw.open(tmp_path / "shop", spark=spark, settings=SETTINGS) as other:
        told = explained(other, "n")
    assert (told["reason"], told["status"]) == ("it cannot be", "backfilling")
    assert "graph" not in told


def test_a_view_that_is_stopped_does_not_hold_what_it_should(shop: hw.Workspace) -> None:
    shop.sql("""
        CREATE MATERIALIZED VIEW amounts AS SELECT CAST(amount AS INT) AS amount FROM orders;
        CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders;
        CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS total FROM amounts
    """)
    before = shop.verify()
    assert before.ok
    assert [(v.view, v.ok, v.status) for v in before.views] == [
        (name, None, "backfilling") for name in ("amounts", "n", "total")
    ]
    shop.topic("orders").append([{"id": 1, "amount": "7"}])
    shop.run()
    assert all(v.ok for v in shop.verify().views)
    shop.topic("orders").append([{"id": 2, "amount": "seven"}])
    assert list(shop.run().stopped) == ["amounts", "total"]
    found = shop.verify()
    assert not found.ok
    assert [(v.view, v.ok, v.status) for v in found.views] == [
        ("amounts", False, "stopped"),
        ("n", True, "live"),
        ("total", False, "stopped"),
    ]
    assert [f.file for f in found.differences] == ["view amounts", "view total"]
    assert found.differences[0].message.startswith("view 'amounts' is stopped: ")
    assert found.differences[1].message == "view 'total' is stopped: it reads amounts, which is stopped"
    assert shop.verify("orders").ok
    with shop.start() as runner:
        pass
    assert list(runner.stop().stopped) == ["amounts", "total"]


def test_a_tick_that_is_not_there_yet_is_refused_alike_by_all_who_are_asked_for_it(
    shop: hw.Workspace,
) -> None:
    shop.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders")
    shop.run()
    n = shop.view("n")
    assert n.changes(since=1).num_rows == 0
    for ask in (
        lambda: n.changes(since=999),
        lambda: n.changes(since=999, follow=True),
        lambda: shop.subscribe("SELECT * FROM n", since=999),
        lambda: n.read(as_of=999),
    ):
        with raises(hw.TickNotKeptError, tick=999, last_available=1):
            ask()
    with raises(hw.UsageError, argument="as_of", value=0):
        shop.query("SELECT * FROM n", as_of=0)
    with pytest.raises(hw.ViewNotFoundError) as caught:
        shop.view("orders")
    assert caught.value.hint == "orders is a topic: ws.topic('orders')"
