"""From a table in Postgres to its followers: the application writes to its own database, and everything else follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

import headwater as hw
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REVENUE = """
CREATE MATERIALIZED VIEW revenue AS
  SELECT c.country, sum(o.amount) AS revenue, count(*) AS orders
  FROM orders o JOIN customers c ON o.customer_id = c.id GROUP BY c.country
"""


@pytest.fixture
def shop(postgres_url: str) -> Iterator[psycopg.Connection]:
    connection = psycopg.connect(postgres_url, autocommit=True)
    connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY, country text NOT NULL)")
    connection.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, amount numeric(12, 2))"
    )
    connection.execute("INSERT INTO customers VALUES (1, 'de'), (2, 'fr'), (3, 'de')")
    connection.execute("INSERT INTO orders SELECT i, i % 3 + 1, i FROM generate_series(1, 30) i")
    with connection:
        yield connection


def wanted(shop: psycopg.Connection) -> dict[str, tuple[str, str]]:
    rows = shop.execute(
        "SELECT country, sum(amount), count(*) FROM orders o JOIN customers c ON o.customer_id = c.id GROUP BY country"
    )
    return {country: (str(total), str(count)) for country, total, count in rows}


def test_what_is_written_to_postgres_is_in_views_and_followers(
    shop: psycopg.Connection,
    postgres_url: str,
    redis_url: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_URL", postgres_url)
    cache = redis.Redis.from_url(redis_url, decode_responses=True)

    def cached() -> dict[str, tuple[str, str]]:
        found = {}
        for key in cache.scan_iter("revenue_cache:*"):
            if cache.type(key) == "hash":
                row = cache.hgetall(key)
                found[row["country"]] = (row["revenue"], row["orders"])
        return found

    def followed() -> dict[str, tuple[str, str]]:
        rows = shop.execute("SELECT country, revenue, orders FROM report")
        return {country: (str(total), str(count)) for country, total, count in rows}

    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            "CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders, public.customers')"
        )
        ws.sql(REVENUE)
        ws.sql(
            f"CREATE SINK revenue_cache FROM revenue INTO REDIS WITH (url = '{redis_url}', key = 'country')"
        )
        ws.sql("CREATE SINK report FROM revenue INTO POSTGRES WITH (url = env('SHOP_URL'), key = 'country')")
        ws.run()
        assert cached() == followed() == wanted(shop)
        with shop.transaction():
            shop.execute("UPDATE orders SET amount = amount + 0.5 WHERE id < 10")
            shop.execute("DELETE FROM orders WHERE id > 25")
            shop.execute("INSERT INTO customers VALUES (4, 'it')")
            shop.execute("INSERT INTO orders VALUES (100, 4, 12.34)")
            shop.execute("DELETE FROM customers WHERE id = 2")
        ws.run()
        assert cached() == followed() == wanted(shop)
        assert ws.verify().ok
        with ws.start():
            for number in range(5):
                shop.execute("INSERT INTO orders VALUES (%s, 1, 1)", [1_000 + number])
                (lsn,) = shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                got = ws.query("SELECT orders FROM revenue WHERE country = 'de'", after=lsn).to_pylist()
                assert str(got[0]["orders"]) == wanted(shop)["de"][1]
                for name in ("revenue_cache", "report"):
                    ws.sink(name).wait(after=lsn)
                assert cached() == followed() == wanted(shop)
        sources = ws.sql("SHOW SOURCES").to_pylist()
        assert [(row["source"], row["topics"]) for row in sources] == [("shop", "customers, orders")]
        assert "env('SHOP_URL')" in sources[0]["options"]
        cache.close()
        assert {row["sink"] for row in ws.sql("SHOW SINKS").to_pylist()} == {"revenue_cache", "report"}


def test_drift_in_a_follower_is_found_and_repaired(
    shop: psycopg.Connection, postgres_url: str, redis_url: str, tmp_path: Path, spark: SparkSession
) -> None:
    cache = redis.Redis.from_url(redis_url, decode_responses=True)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'orders, customers')"
        )
        ws.sql(REVENUE)
        ws.sql(f"CREATE SINK cache FROM revenue INTO REDIS WITH (url = '{redis_url}', key = 'country')")
        ws.sql(
            f"CREATE SINK report FROM revenue INTO POSTGRES WITH (url = '{postgres_url}', key = 'country')"
        )
        ws.run()
        first = ws.verify()
        assert first.ok
        assert [(s.sink, s.ok, s.rows) for s in first.sinks] == [("cache", True, 2), ("report", True, 2)]
        shop.execute("UPDATE report SET revenue = 0 WHERE country = 'de'")
        shop.execute("INSERT INTO report VALUES ('xx', 1, 1)")
        for key in cache.scan_iter("cache:*"):
            if cache.type(key) == "hash" and cache.hget(key, "country") == "fr":
                cache.delete(key)
        found = ws.verify()
        assert not found.ok
        cached, report = found.sinks
        assert "1 rows missing" in str(cached.detail)
        assert "1 rows too many" in str(report.detail)
        assert "1 rows differ" in str(report.detail)
        assert [d.file for d in found.differences] == ["sink cache", "sink report"]
        repaired = ws.verify(repair=True)
        assert repaired.ok
        assert [s.repaired for s in repaired.sinks] == [True, True]
        assert ws.verify().ok
        cache.close()


def test_rows_that_the_target_refuses_are_told_of_and_taken_once_they_fit(
    shop: psycopg.Connection, postgres_url: str, tmp_path: Path, spark: SparkSession
) -> None:
    shop.execute("CREATE TABLE totals (customer bigint PRIMARY KEY, total numeric CHECK (total < 150))")
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'orders')")
        ws.sql(
            "CREATE MATERIALIZED VIEW totals AS "
            "SELECT customer_id AS customer, sum(amount) AS total FROM orders GROUP BY customer_id"
        )
        options = f"url = '{postgres_url}', table = 'totals', key = 'customer', on_error = 'divert'"
        ws.sql(f"CREATE SINK few FROM totals INTO POSTGRES WITH ({options})")
        ws.run()
        there = "SELECT customer FROM totals ORDER BY customer"
        assert [c for (c,) in shop.execute(there)] == [2]
        told = [row for batch in ws.topic("few_errors").read("earliest") for row in batch.to_pylist()]
        assert len(told) == 2
        assert all("violates check constraint" in row["reason"] for row in told)
        checked = ws.verify()
        assert checked.ok
        assert [(s.rows, s.withheld) for s in checked.sinks] == [(1, 2)]
        ws.run()
        assert ws.topic("few_errors").partitions()[0].rows == 2, "they are told of once"
        shop.execute("ALTER TABLE totals DROP CONSTRAINT totals_total_check")
        assert ws.sink("few").retry() == 2
        assert [c for (c,) in shop.execute(there)] == [1, 2, 3]
        assert ws.verify().sinks[0].withheld == 0


def test_a_view_that_is_followed_is_not_dropped_unless_its_followers_go_with_it(
    shop: psycopg.Connection, postgres_url: str, tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (k BIGINT, v BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW a AS SELECT k, sum(v) AS v FROM t GROUP BY k")
        ws.sql("CREATE MATERIALIZED VIEW b AS SELECT k, v FROM a WHERE v > 1")
        made = f"SINK followed FROM b INTO POSTGRES WITH (url = '{postgres_url}')"
        ws.sql(f"CREATE {made}")
        with raises(hw.SinkExistsError, sink="followed", difference=[]):
            ws.sql(f"CREATE {made}")
        ws.sql(f"CREATE {made.replace('SINK', 'SINK IF NOT EXISTS')}")
        with raises(hw.SinkExistsError, sink="followed") as other:
            ws.sql(f"CREATE {made.replace(')', ', key = ' + repr('k') + ')')}")
        assert other.value.difference
        with raises(hw.UsageError, view="b", sinks=["followed"]):
            ws.sql("DROP VIEW b")
        assert ws.sink("followed").definition.key == ("k",)
        ws.sql("DROP VIEW a CASCADE")
        assert ws.sql("SHOW SINKS").num_rows == ws.sql("SHOW VIEWS").num_rows == 0
        with raises(hw.SinkNotFoundError, sink="followed"):
            ws.sink("followed")
        with raises(hw.SourceNotFoundError, source="shop"):
            ws.sql("DROP SOURCE shop")


def test_a_key_that_is_not_unique_is_refused(postgres_url: str, tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (k BIGINT, v BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW a AS SELECT k, v FROM t WHERE v > 1")
        ws.sql("CREATE MATERIALIZED VIEW c AS SELECT k, v, count(*) AS n FROM t GROUP BY k, v")
        with raises(hw.StatementError, view="a", sink="s", key=("k",)):
            ws.sql(f"CREATE SINK s FROM a INTO POSTGRES WITH (url = '{postgres_url}', key = 'k')")
        with pytest.raises(hw.StatementError) as refused:
            ws.sql(f"CREATE SINK s FROM c INTO POSTGRES WITH (url = '{postgres_url}', key = 'k')")
        assert "k, v" in str(refused.value.hint)
        assert ws.sql("SHOW SINKS").num_rows == 0
