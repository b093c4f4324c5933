"""A small workspace with one of everything that the commands list: names and values of ordinary length, and some long ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import headwater as hw
from headwater.web import tokens

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

STATEMENTS = """
CREATE TOPIC orders (id BIGINT, customer_id BIGINT, country STRING, amount STRING) WITH (partitions = 2, retention = '30 days');
CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');
CREATE TOPIC customers (
  id BIGINT, email STRING PRIVATE BY (id), country STRING, PRIMARY KEY (id)
) WITH (cleanup = 'compact', partitions = 4);
CREATE TOPIC emails (id BIGINT, recipient STRING, body STRING);
CREATE TOPIC articles (id BIGINT, title STRING, body STRING);
CREATE SOURCE catalogue FROM FILES WITH (
  path = '{folder}/drop', topic = 'products', format = 'csv', columns = 'sku STRING, title STRING, price DOUBLE', key = 'sku'
);
CREATE MATERIALIZED VIEW priced_orders WITH (on_error = 'divert') AS
  SELECT id, customer_id, country, CAST(amount AS DECIMAL(10, 2)) AS amount FROM orders;
CREATE MATERIALIZED VIEW revenue_by_country AS
  SELECT country, sum(amount) AS revenue, count(*) AS orders FROM priced_orders GROUP BY country;
CREATE MATERIALIZED VIEW clicks_per_minute WITH (late = 'divert') AS
  SELECT window(at, '1 minute') AS w, url, count(*) AS n FROM clicks
  GROUP BY window(at, '1 minute'), url EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW clicks_per_hour WITH (late = 'drop') AS
  SELECT window(at, '1 hour') AS w, count(*) AS n FROM clicks GROUP BY window(at, '1 hour');
CREATE MATERIALIZED VIEW urls_as_numbers AS SELECT CAST(url AS INT) AS number FROM clicks;
CREATE MATERIALIZED VIEW product_prices AS SELECT sku, title, price FROM products;
CREATE MATERIALIZED VIEW emails_of_customers AS SELECT id, email, country FROM customers;
CREATE STANDING QUERY news ON articles (title, body) WITH (show = 'title');
CREATE SINK revenue_files FROM revenue_by_country INTO PARQUET WITH (path = '{folder}/out/revenue', key = 'country');
CREATE SINK revenue_topic FROM revenue_by_country INTO TOPIC WITH (topic = 'revenue_copied', key = 'country');
CREATE SINK product_search FROM product_prices INTO SEARCH WITH (key = 'sku', text = 'title');
CREATE ALERT high_revenue ON revenue_by_country WHEN revenue > 10 NOTIFY TOPIC WITH (topic = 'alarms');
"""


def build(folder: Path, spark: SparkSession | None = None, *, token: bool = True) -> Path:
    """Make the workspace below `folder`, and return its path. Without a `token` its server asks for none."""
    drop = folder / "drop"
    drop.mkdir(parents=True)
    (drop / "products.csv").write_text("sku,title,price\nk-1,Kettle,19.5\nl-1,Lamp with a shade,44\n")
    place = folder / "shop"
    with hw.open(place, spark=spark, keys=folder / "keys") as ws:
        ws.sql(STATEMENTS.format(folder=folder))
        _append(ws)
        ws.run()
        _append_late(ws)
        ws.run()
        _use(ws)
        if token:
            tokens.create(ws.log, "dashboard", ["read"])
        ws.run()
    return place


def _append(ws: hw.Workspace) -> None:
    ws.topic("orders").append(
        [
            {"id": n, "customer_id": n % 3, "country": "ch" if n % 2 else "de", "amount": f"{n}.50"}
            for n in range(40)
        ]
    )
    ws.topic("clicks").append([_click(n, "/product/7?campaign=spring", n) for n in range(20)])
    ws.topic("customers").append(
        [{"id": n, "email": f"customer{n}@shop.example", "country": "ch"} for n in range(5)]
    )
    ws.topic("emails").append(
        [{"id": n, "recipient": f"customer{n}@shop.example", "body": "Hello"} for n in range(6)]
    )


def _append_late(ws: hw.Workspace) -> None:
    ws.topic("clicks").append([_click(1, "/late", -5), _click(2, "/late", 2)])
    ws.topic("orders").append(
        [
            {"id": 100 + n, "customer_id": 1, "country": "fr", "amount": text}
            for n, text in enumerate(("twelve", "5,50"))
        ]
    )


def _click(user: int, url: str, minute: float) -> dict[str, object]:
    return {"user": user, "url": url, "at": NOON + timedelta(minutes=minute)}


def _use(ws: hw.Workspace) -> None:
    """Readers, queues, tokens, deletions and stored queries."""
    ws.topic("orders").cursor("nightly-export", hold=True)
    queue = ws.queue("mails_to_send", "emails", deliveries=1)
    messages = queue.receive(3)
    queue.settle([messages[0].token], "nack", error="the mail server refused the recipient")
    queue.settle([messages[1].token], "ack")
    news = ws.standing("news")
    news.add("spark", "title:spark AND body:streaming", owner="ann")
    ws.topic("articles").append([{"id": 1, "title": "Spark today", "body": "streaming joins"}])
    ws.forget("3", by="ann", reason="asked by mail")
    ws.excise("clicks", "user = 3", by="ann", reason="test traffic")
