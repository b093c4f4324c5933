"""Which columns of a view are proven to be a key: what a sink may replace and delete rows by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from headwater.testing import inspect_workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount BIGINT, PRIMARY KEY (id));
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
CREATE TOPIC lines (shop BIGINT, number BIGINT, item STRING, PRIMARY KEY (shop, number));
CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');
CREATE MATERIALIZED VIEW per_country AS
  SELECT c.country, count(*) AS n FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country;
"""
KEYS = {
    "SELECT * FROM orders": [("id",)],
    "SELECT amount, id AS order_id FROM orders WHERE amount > 3": [("order_id",)],
    "SELECT amount FROM orders": [],
    "SELECT id + 1 AS id FROM orders": [],
    "SELECT shop, number, upper(item) AS item FROM lines": [("shop", "number")],
    "SELECT shop, item FROM lines": [],
    "SELECT customer, sum(amount) AS s FROM orders GROUP BY customer": [("customer",)],
    "SELECT sum(amount) AS s FROM orders GROUP BY customer": [],
    "SELECT count(*) AS n FROM orders": [()],
    "SELECT DISTINCT url, user FROM clicks": [("url", "user")],
    "SELECT user, url FROM clicks UNION SELECT id AS user, country AS url FROM customers": [("user", "url")],
    "SELECT * FROM clicks": [],
    "SELECT user FROM clicks UNION ALL SELECT id FROM orders": [],
    "SELECT o.id, c.country FROM orders o JOIN customers c ON o.customer = c.id": [("id",)],
    "SELECT o.id, c.country FROM orders o LEFT JOIN customers c ON o.customer = c.id": [("id",)],
    "SELECT o.id, c.id AS c FROM orders o JOIN customers c ON o.amount = c.id + 1": [("id", "c")],
    "SELECT o.id, c.id AS c FROM orders o FULL JOIN customers c ON o.customer = c.id": [],
    "SELECT o.id FROM orders o LEFT SEMI JOIN customers c ON o.customer = c.id": [("id",)],
    "SELECT o.id, x.url FROM orders o JOIN clicks x ON o.customer = x.user": [],
    "SELECT id, customer FROM orders QUALIFY row_number() OVER (PARTITION BY customer ORDER BY amount, id) = 1": [
        ("customer",),
        ("id",),
    ],
    "SELECT id, customer FROM orders QUALIFY row_number() OVER (PARTITION BY customer ORDER BY amount, id) <= 2": [
        ("id",)
    ],
    "SELECT user, url FROM clicks QUALIFY rank() OVER (PARTITION BY user ORDER BY at) = 1": [],
    "SELECT country, n FROM per_country WHERE n > 1": [("country",)],
    "SELECT explode(array(1, 2)) AS e, id FROM orders": [],
    "SELECT window(at, '1 minute') AS w, user, count(*) AS n FROM clicks GROUP BY window(at, '1 minute'), user": [
        ("w", "user")
    ],
    "SELECT id, count(*) OVER (PARTITION BY customer) AS n FROM orders": [],
}


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(Path(tmp_path_factory.mktemp("keys")) / "ws", durability="os", spark=spark) as workspace:
        workspace.sql(TOPICS)
        yield workspace


@pytest.mark.parametrize("query", KEYS)
def test_a_key_is_what_follows_from_the_view_itself(ws: hw.Workspace, query: str) -> None:
    ws.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {query}")
    found = inspect_workspace(ws).views.reports.keys("v")
    assert sorted(map(sorted, found)) == sorted(map(sorted, KEYS[query]))
