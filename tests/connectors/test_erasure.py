"""Every kind of follower of a view that something was forgotten from: what it holds afterwards, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

import headwater as hw
from tests.engine.test_deletions_in_views import holding
from tests.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_no_follower_holds_what_was_forgotten(
    tmp_path: Path, spark: SparkSession, postgres_server: PostgresServer, postgres_url: str, redis_url: str
) -> None:
    from pyiceberg.catalog import load_catalog

    given: list[dict[str, Any]] = []
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            """
            CREATE TOPIC clicks (user BIGINT NOT NULL, ip STRING PRIVATE BY (user));
            CREATE MATERIALIZED VIEW latest AS SELECT user, max(ip) AS ip FROM clicks GROUP BY user;
            CREATE MATERIALIZED VIEW every AS SELECT user, ip FROM clicks;
            """
        )
        ws.sink_function("take", lambda change, key: given.extend(change.to_pylist()))
        ws.topic("clicks").append([{"user": n % 3, "ip": f"ip-{n % 3}-secret"} for n in range(6)])
        ws.run()
        lake = f"warehouse = '{tmp_path / 'lake'}'"
        ws.sql(
            f"CREATE SINK pg FROM latest INTO POSTGRES WITH (url = '{postgres_url}', table = 'latest', key = 'user');"
            f"CREATE SINK cache FROM latest INTO REDIS WITH (url = '{redis_url}', key = 'user');"
            f"CREATE SINK table_now FROM latest INTO LAKE WITH ({lake}, table = 'shop.now', key = 'user');"
            f"CREATE SINK table_all FROM every INTO LAKE WITH ({lake}, table = 'shop.every', mode = 'append');"
            "CREATE SINK called FROM latest INTO PYTHON WITH (function = 'take', key = 'user')"
        )
        ws.run()
        assert "ip-1-secret" in everything(tmp_path, postgres_url, redis_url, load_catalog)
        ws.forget(1)
        ws.run()
        held = everything(tmp_path, postgres_url, redis_url, load_catalog)
        assert "ip-1-secret" not in held
        assert "ip-2-secret" in held
        assert {"user": 1, "ip": None} in [{"user": row["user"], "ip": row["ip"]} for row in given]
        (told,) = ws.deletions()
        assert {p.name for p in told.places if p.kind == "sink" and p.status == "done"} == {
            "pg",
            "cache",
            "table_now",
            "table_all",
            "called",
        }
        beyond = {p.name: p.detail for p in told.places if p.status == "out of reach"}
        assert "backups" in beyond["pg"]
        assert "delivered" in beyond["called"]
        assert ws.verify().ok

        left = {p.name: p.detail for p in told.places if p.status == "scheduled"}
        assert not told.done
        assert set(left) == {"pg", "table_now", "table_all"}
        assert all(p.kind == "past" for p in told.places if p.status == "scheduled")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(left["pg"].partition("`")[2].rstrip("`"))
        for name in ("table_now", "table_all"):
            if "headwater rebuild" in left[name]:
                ws.sink(name).rebuild()
                ws.sink(name).drop_old()
            ws.sql(f"ALTER SINK {name} SET (snapshots = 1)")
        ws.topic("clicks").append([{"user": 9, "ip": "ip-9"}])
        ws.run()
        (told,) = ws.deletions()
        assert told.done, [p for p in told.places if p.status == "scheduled"]
        assert {p.name for p in told.places if p.kind == "past"} == set(left)
        assert holding(tmp_path / "ws", "ip-1-secret") == []
        assert holding(tmp_path / "lake", "ip-1-secret") == [], "what is expired is removed"

        server = postgres_server
        server.stop()
        try:
            (told,) = ws.deletions()
            (pg,) = [p for p in told.places if (p.kind, p.name) == ("past", "pg")]
            assert (pg.status, pg.at) == ("scheduled", None)
            assert "could not be queried" in pg.detail
        finally:
            server.start()


def everything(tmp_path: Path, postgres_url: str, redis_url: str, load_catalog: Any) -> str:
    """What can be read in each of them."""
    found: list[Any] = []
    with psycopg.connect(postgres_url) as connection:
        found += connection.execute("SELECT * FROM latest").fetchall()
    with redis.Redis.from_url(redis_url) as client:
        kinds = {key: client.type(key) for key in client.keys("*")}
        found += [client.hgetall(key) for key, kind in kinds.items() if kind == b"hash"]
        found += [client.get(key) for key, kind in kinds.items() if kind == b"string"]
    catalog = load_catalog("headwater", type="sql", uri=f"sqlite:///{tmp_path / 'lake'}/catalog.db")
    for name in catalog.list_tables("shop"):
        found += catalog.load_table(name).scan().to_arrow().to_pylist()
    return str(found)
