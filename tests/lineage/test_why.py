"""Why a row is there: the records that it comes from suffice, and are no more than it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.settings import LogSettings
from headwater.lineage.why import Why
from headwater.testing import inspect_workspace
from tests.equation.oracle import compare
from tests.raising import raises

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


def ids(why: Why) -> dict[str, list[Any]]:
    """The `id` of every record, by topic."""
    return {topic: sorted(rows.column("id").to_pylist()) for topic, rows in why.records.items()}


def check(why: Why) -> Why:
    """The records, run in batch, give the rows."""
    told = compare(why.recompute(), why.rows)
    assert told is None, f"{told}\n\n{why}"
    return why


SHOP = """
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id)) WITH (partitions = 2);
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount BIGINT, tags ARRAY<STRING>) WITH (partitions = 2);
CREATE TOPIC banned (id BIGINT, customer BIGINT);

CREATE MATERIALIZED VIEW revenue AS
  SELECT c.country, sum(o.amount) AS revenue, count(*) AS orders
  FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country;
CREATE MATERIALIZED VIEW large AS SELECT country, revenue FROM revenue WHERE revenue >= 30;
CREATE MATERIALIZED VIEW countries AS SELECT count(*) AS n, sum(revenue) AS revenue FROM large;
CREATE MATERIALIZED VIEW with_orders AS
  SELECT c.country, c.id AS customer, o.id FROM customers c LEFT JOIN orders o ON o.customer = c.id;
CREATE MATERIALIZED VIEW first_three AS SELECT id, amount FROM orders ORDER BY amount DESC LIMIT 3;
CREATE MATERIALIZED VIEW ranked AS
  SELECT id, customer, amount, rank() OVER (PARTITION BY customer ORDER BY amount DESC) AS place
  FROM orders QUALIFY place <= 2;
CREATE MATERIALIZED VIEW amounts AS SELECT DISTINCT amount FROM orders;
CREATE MATERIALIZED VIEW kinds AS SELECT customer, count(DISTINCT amount) AS kinds FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW everyone AS SELECT id FROM customers UNION ALL SELECT customer AS id FROM orders;
CREATE MATERIALIZED VIEW tagged AS SELECT id, tag FROM orders LATERAL VIEW explode(tags) AS tag;
CREATE MATERIALIZED VIEW active AS SELECT id, country FROM customers WHERE id IN (SELECT customer FROM orders);
CREATE MATERIALIZED VIEW idle AS SELECT id FROM customers WHERE id NOT IN (SELECT customer FROM orders);
CREATE MATERIALIZED VIEW allowed AS
  SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM banned b WHERE b.customer = o.customer);
CREATE MATERIALIZED VIEW above AS SELECT id, amount FROM orders WHERE amount > (SELECT avg(amount) FROM orders);
CREATE MATERIALIZED VIEW busy AS
  SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 1;
CREATE MATERIALIZED VIEW running AS
  SELECT id, sum(amount) OVER (PARTITION BY customer ORDER BY id) AS total FROM orders;
CREATE MATERIALIZED VIEW lists AS SELECT customer % 2 = 0 AS even, sort_array(collect_list(amount)) AS amounts
  FROM orders GROUP BY customer % 2 = 0;
CREATE MATERIALIZED VIEW fixed AS SELECT id, name FROM VALUES (1, 'one'), (2, 'two') AS v(id, name);
CREATE MATERIALIZED VIEW alone AS
  SELECT id FROM orders WHERE customer NOT IN (SELECT customer FROM orders GROUP BY customer HAVING count(*) > 1);
CREATE MATERIALIZED VIEW companions AS
  SELECT id FROM orders WHERE customer NOT IN (SELECT customer FROM orders GROUP BY customer HAVING count(*) = 1);
CREATE TOPIC moves (id BIGINT, source BIGINT, target BIGINT);
CREATE MATERIALIZED VIEW shares AS
  SELECT a.id, b.share FROM moves a
  JOIN (SELECT source, 100 DIV (count(*) - 1) AS share FROM moves GROUP BY source) b ON a.target = b.source;
"""
CUSTOMERS = [(1, "ch"), (2, "de"), (3, "ch"), (4, "at")]
MOVES = [(1, 1, 2), (2, 1, 1), (3, 2, 1), (4, 2, 2), (5, 2, 1), (6, 3, 3), (7, 3, 3)]
ORDERS = [(1, 1, 10), (2, 2, 20), (3, 3, 5), (4, 2, 20), (5, 1, 30), (6, 9, 1)]


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Orders of customers; customer 2 moved from `fr` to `de`, customer 5 is gone, customer 9 was never there."""
    with hw.open(tmp_path_factory.mktemp("why") / "shop", spark=spark, settings=SETTINGS) as ws:
        ws.sql(SHOP)
        ws.topic("customers").append([{"id": 2, "country": "fr"}, {"id": 5, "country": "it"}])
        ws.topic("orders").append(
            [{"id": n, "customer": c, "amount": a, "tags": ["x", f"t{n}"]} for n, c, a in ORDERS[:3]]
        )
        ws.run()
        ws.topic("customers").append([{"id": n, "country": c} for n, c in CUSTOMERS])
        ws.topic("customers").delete([{"id": 5}])
        ws.topic("orders").append(
            [{"id": n, "customer": c, "amount": a, "tags": ["x", f"t{n}"]} for n, c, a in ORDERS[3:]]
        )
        ws.topic("banned").append([{"id": 1, "customer": 3}, {"id": 2, "customer": 7}])
        ws.topic("moves").append([{"id": n, "source": a, "target": b} for n, a, b in MOVES])
        report = ws.run()
        assert not report.stopped
        yield ws


@pytest.mark.parametrize(
    ("view", "key", "records"),
    [
        ("revenue", "ch", {"customers": [1, 3], "orders": [1, 3, 5]}),
        ("revenue", "de", {"customers": [2], "orders": [2, 4]}),
        ("large", {"country": "de"}, {"customers": [2], "orders": [2, 4]}),
        ("countries", {}, {"customers": [1, 2, 3], "orders": [1, 2, 3, 4, 5]}),
        ("with_orders", {"id": 1}, {"customers": [1], "orders": [1]}),
        ("with_orders", {"customer": 4}, {"customers": [4]}),
        ("first_three", {"id": 5}, {"orders": [5]}),
        ("first_three", {"id": 4}, {"orders": [2, 4, 5]}),
        ("ranked", {"id": 1}, {"orders": [1, 5]}),
        ("ranked", {"id": 4}, {"orders": [4]}),
        ("amounts", 20, {"orders": [2, 4]}),
        ("kinds", 2, {"orders": [2, 4]}),
        ("everyone", 2, {"customers": [2], "orders": [2, 4]}),
        ("tagged", {"tag": "t3"}, {"orders": [3]}),
        ("active", {"id": 2}, {"customers": [2], "orders": [2, 4]}),
        ("idle", 4, {"customers": [4]}),
        ("allowed", 4, {"orders": [4]}),
        ("above", {"id": 5}, {"orders": [1, 2, 3, 4, 5, 6]}),
        ("busy", 2, {"orders": [2, 4]}),
        ("running", {"id": 2}, {"orders": [2, 4]}),
        ("lists", {"even": True}, {"orders": [2, 4]}),
        ("fixed", {"id": 2}, {}),
        ("alone", {"id": 3}, {"orders": [3]}),
        ("companions", {"id": 4}, {"orders": [2, 4]}),
        ("shares", {"id": 1}, {"moves": [1, 2, 3, 4, 5]}),
    ],
)
def test_the_records_that_a_row_comes_from_give_it_again(
    shop: Workspace, view: str, key: Any, records: Mapping[str, list[int]]
) -> None:
    why = check(shop.view(view).why(key))
    assert why.complete
    assert ids(why) == records


def test_the_path_has_the_rows_of_every_view_in_between(shop: Workspace) -> None:
    why = shop.view("countries").why({})
    assert list(why.path) == ["revenue", "large"]
    assert sorted(why.path["revenue"].column("country").to_pylist()) == ["ch", "de"]
    assert sorted(why.path["large"].column("revenue").to_pylist()) == [40, 45]
    assert shop.view("revenue").why("ch").path == {}


def test_a_record_has_its_place_in_the_log_before_its_columns(shop: Workspace) -> None:
    why = shop.view("revenue").why("de")
    customers, orders = why.records["customers"], why.records["orders"]
    assert customers.column_names == ["_partition", "_offset", "_appended_at", "_op", "id", "country"]
    assert orders.column_names[:4] == ["_partition", "_offset", "_appended_at", "id"]
    for topic, table in why.records.items():
        places = list(zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True))
        assert places == sorted(places)
        for row in table.to_pylist():
            (batch,) = shop.log.read(topic, row["_partition"], row["_offset"], row["_offset"] + 1, ["id"])
            assert batch.column("id").to_pylist() == [row["id"]]


def test_it_prints_as_a_page(shop: Workspace) -> None:
    said = str(shop.view("large").why({"country": "de"}))
    assert said.startswith(
        "large at tick 2, last changed by tick 2\n  country  revenue\n  de            40\n"
    )
    assert "\n\nthrough 1 row of revenue\n" in said
    assert "\n\nfrom 2 records of orders\n" in said
    assert max(map(len, said.splitlines())) <= 120
    fixed = shop.view("fixed").why({"id": 1})
    assert (len(fixed.records), len(fixed.remarks)) == (0, 1)


def test_a_key_names_columns_or_goes_by_those_that_the_view_is_arranged_by(shop: Workspace) -> None:
    assert shop.view("revenue").why({"COUNTRY": "ch"}).rows == shop.view("revenue").why(("ch",)).rows
    several = check(shop.view("with_orders").why({"country": "ch"}))
    assert several.rows.num_rows == 3
    with raises(hw.UsageError, view="with_orders", expected=3, actual=1):
        shop.view("with_orders").why(1)
    with raises(hw.UsageError, view="revenue", column="land"):
        shop.view("revenue").why({"land": "ch"})
    with raises(hw.UsageError, view="revenue", column="revenue", value="much"):
        shop.view("revenue").why({"revenue": "much"})


def test_a_row_that_is_not_there_is_an_error_with_its_facts(shop: Workspace) -> None:
    with raises(hw.RowNotFoundError, view="revenue", key={"country": "fr"}, tick=2):
        shop.view("revenue").why("fr")
    then = check(shop.view("revenue").why("fr", as_of=1))
    assert ids(then) == {"customers": [2], "orders": [2]}


@pytest.fixture
def ws(spark: Any, tmp_path: Path) -> Iterator[Workspace]:
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as workspace:
        yield workspace


def test_the_tick_that_last_changed_the_rows_of_a_key_is_reported(ws: Workspace, spark: Any) -> None:
    ws.sql("""
        CREATE TOPIC t (k BIGINT, n BIGINT);
        CREATE MATERIALIZED VIEW v AS SELECT k, sum(n) AS n FROM t GROUP BY k;
        CREATE MATERIALIZED VIEW w AS SELECT k, n FROM v WHERE n < 100;
    """)
    for k, n in [(1, 1), (2, 1), (2, 1), (3, 0), (1, 0)]:
        ws.topic("t").append([{"k": k, "n": n}])
        ws.run()
    assert [ws.view("v").why(k).changed_tick for k in (1, 2, 3)] == [1, 3, 4]
    assert ws.view("v").why(2, as_of=2).changed_tick == 2
    assert ws.view("w").why({"k": 2}).changed_tick == 3
    assert (
        ws.view("v").why(1).records["t"].num_rows == 2
    )  # a record that changes nothing is one of those that count
    inspect_workspace(ws).collect(2, ())
    why = ws.view("v").why(2)
    assert (why.changed_tick, why.kept_from) == (None, 4)
    assert "tick 4" in why.changed
    with hw.open(ws.path, spark=spark, settings=SETTINGS) as again:
        assert again.view("v").why(3).changed_tick == 4
        check(again.view("w").why({"k": 2}))


def test_records_that_were_removed_are_said_to_be(ws: Workspace) -> None:
    ws.sql("""
        CREATE TOPIC t (k BIGINT, n BIGINT, PRIMARY KEY (k)) WITH (cleanup = 'compact');
        CREATE MATERIALIZED VIEW v AS SELECT n, count(*) AS c FROM t GROUP BY n;
    """)
    ws.topic("t").append([{"k": 1, "n": 1}, {"k": 2, "n": 1}, {"k": 3, "n": 2}])
    ws.run()
    ws.topic("t").append([{"k": 1, "n": 3}, {"k": 3, "n": 3}])
    ws.run()
    assert ws.view("v").why(1, as_of=1).complete
    ws.maintain()
    assert check(ws.view("v").why(3)).complete
    why = ws.view("v").why(1, as_of=1)
    assert (why.complete, why.records["t"].column("k").to_pylist()) == (False, [2])
    assert len(why.remarks) == 1
    with raises(hw.GapError, view="v", tick=1):
        ws.view("v").why(2, as_of=1)


def test_a_view_that_is_no_part_of_the_tick_raises_what_reading_it_raises(ws: Workspace) -> None:
    ws.sql("CREATE TOPIC t (n BIGINT); CREATE MATERIALIZED VIEW v AS SELECT 10 DIV n AS n FROM t")
    with raises(hw.ViewUnavailableError, view="v", status="backfilling", tick=None):
        ws.view("v").why(1)
    ws.topic("t").append([{"n": 10}])
    ws.run()
    ws.topic("t").append([{"n": 0}])
    ws.run()
    with raises(hw.ViewUnavailableError, view="v", status="stopped"):
        ws.view("v").why(1)
    assert ids_of_n(check(ws.view("v").why(1, as_of=1))) == [10]


def ids_of_n(why: Why) -> list[int]:
    """The `n` of every record of `t`."""
    found: list[int] = why.records["t"].column("n").to_pylist()
    return found


def test_a_record_that_one_view_diverts_may_be_one_that_another_comes_from(ws: Workspace) -> None:
    ws.sql("""
        CREATE TOPIC t (k BIGINT, n BIGINT);
        CREATE MATERIALIZED VIEW shares WITH (on_error = 'divert') AS SELECT k, sum(10 DIV n) AS s FROM t GROUP BY k;
        CREATE MATERIALIZED VIEW both AS SELECT c.k, c.n, s.s
          FROM (SELECT k, count(*) AS n FROM t GROUP BY k) c JOIN shares s ON s.k = c.k;
    """)
    ws.topic("t").append([{"k": 1, "n": 5}, {"k": 1, "n": 0}, {"k": 2, "n": 1}])
    ws.run()
    assert ids_of_n(check(ws.view("shares").why(1))) == [5]
    why = check(ws.view("both").why({"k": 1}))
    assert (why.rows.to_pylist(), sorted(ids_of_n(why))) == ([{"k": 1, "n": 2, "s": 2}], [0, 5])


def test_records_after_the_tick_play_no_part(ws: Workspace) -> None:
    ws.sql(
        "CREATE TOPIC t (n BIGINT); CREATE TOPIC u (n BIGINT); CREATE MATERIALIZED VIEW v AS SELECT n FROM t"
    )
    ws.topic("t").append([{"n": 1}])
    ws.run()
    ws.sql(
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) AS c FROM u"
    )  # joins in a tick whose cut knows t alone
    ws.topic("u").append([{"n": 1}, {"n": 2}])
    ws.run()
    ws.topic("u").append([{"n": 3}])
    assert check(ws.view("w").why({})).records["u"].column("n").to_pylist() == [1, 2]


def test_hidden_columns_are_columns_of_the_record_that_is_current(ws: Workspace) -> None:
    ws.sql("""
        CREATE TOPIC t (k BIGINT, n BIGINT, PRIMARY KEY (k));
        CREATE TOPIC u (n BIGINT);
        CREATE MATERIALIZED VIEW v AS SELECT t.k, t._offset AS place, u._offset AS other FROM t JOIN u ON t.n = u.n;
    """)
    ws.topic("t").append([{"k": 1, "n": 1}, {"k": 2, "n": 1}, {"k": 1, "n": 2}])
    ws.topic("u").append([{"n": 2}, {"n": 2}, {"n": 1}])
    ws.run()
    why = check(ws.view("v").why({"k": 1, "other": 1}))
    assert why.rows.to_pylist() == [{"k": 1, "place": 2, "other": 1}]
    assert {name: table["_offset"].to_pylist() for name, table in why.records.items()} == {"t": [2], "u": [1]}
