"""Who writes to Postgres and reads the position after the commit never misses the write: not in a view, not in a follower."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

import headwater as hw
from tests.connectors.capture_worker import worker
from tests.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = """
CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders');
CREATE MATERIALIZED VIEW baskets AS
  SELECT customer, count(*) AS orders, max(id) AS latest, sum(amount) AS amount FROM orders GROUP BY customer;
CREATE SINK cache FROM baskets INTO REDIS WITH (url = env('CACHE_URL'), key = 'customer')
"""
REPORT = "CREATE SINK report FROM baskets INTO POSTGRES WITH (url = env('REPORT_URL'), key = 'customer')"
PROMPT_S = 10.0
"""Far longer than anything takes here, and far shorter than what Postgres does by itself now and then."""


class Client:
    """A customer who orders, and looks for the order at once. Nobody else writes rows of this customer."""

    def __init__(self, ws: hw.Workspace, session: psycopg.Connection[Any], cache: str, report: str) -> None:
        self.ws = ws
        self.session = session
        self.lsn = ""
        self.written: dict[int, int] = {}
        self._cache = cache
        self._report = report

    def write(self, number: int) -> None:
        """An order, or a change of the last one; `lsn` is read after the commit."""
        self.written[number] = number * 3
        self.session.execute("INSERT INTO orders VALUES (%s, %s, %s)", [number, self.customer, number * 3])
        self.read_lsn()

    def read_lsn(self) -> None:
        (self.lsn,) = self.session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)

    @property
    def customer(self) -> int:
        return min(self.written)

    @property
    def wanted(self) -> dict[str, str]:
        """What the view has of this customer, as text."""
        amounts = self.written.values()
        facts = (self.customer, len(amounts), max(self.written), sum(amounts))
        return dict(zip(("customer", "orders", "latest", "amount"), map(str, facts), strict=True))

    def look(self) -> None:
        """In the view."""
        query = f"SELECT * FROM baskets WHERE customer = {self.customer}"
        (row,) = self.ws.query(query, after=self.lsn, timeout=PROMPT_S).to_pylist()
        assert {name: str(value) for name, value in row.items()} == self.wanted

    def look_in_cache(self) -> None:
        self.ws.sink("cache").wait(after=self.lsn, timeout=PROMPT_S)
        with redis.Redis.from_url(self._cache, decode_responses=True) as cache:
            assert cache.hgetall(f"cache:{self.customer}") == self.wanted

    def look_in_report(self) -> None:
        self.ws.sink("report").wait(after=self.lsn, timeout=PROMPT_S)
        with psycopg.connect(self._report) as session:
            found = session.execute("SELECT * FROM report WHERE customer = %s", [self.customer]).fetchone()
            assert found is not None
            assert list(map(str, found)) == list(self.wanted.values())

    def look_everywhere(self, number: int) -> None:
        """In the view and in both followers; which is first changes from time to time."""
        looks = [self.look, self.look_in_cache, self.look_in_report]
        for step in range(3):
            looks[(number + step) % 3]()


@pytest.fixture
def environment(
    postgres_server: PostgresServer, postgres_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """A shop, a cache, and a database for reports."""
    report = postgres_server.make_database()
    urls = {"SHOP_URL": postgres_url, "CACHE_URL": redis_url, "REPORT_URL": report}
    for name, url in urls.items():
        monkeypatch.setenv(name, url)
    with psycopg.connect(postgres_url) as session:
        session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount bigint)")
        session.execute("CREATE TABLE visits (id bigint PRIMARY KEY, pages bigint)")
        session.execute("INSERT INTO visits VALUES (1, 0)")
    yield urls
    postgres_server.drop_database(report)


@pytest.fixture
def shop(environment: dict[str, str]) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(environment["SHOP_URL"], autocommit=True)) as session:
        yield session


@pytest.fixture
def ws(environment: dict[str, str], tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A workspace whose sources and sinks are declared, and its engine."""
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as made:
        made.sql(DECLARED)
        yield made


@pytest.mark.slow
def test_clients_find_every_write_of_theirs_at_once_and_everywhere(
    ws: hw.Workspace, environment: dict[str, str]
) -> None:
    """Two beside the engine, one with a workspace of its own, one in another process."""
    assert ws.path is not None
    ws.sql(REPORT)
    failed: list[BaseException] = []

    def order(mine: hw.Workspace, first: int) -> None:
        try:
            with closing(psycopg.connect(environment["SHOP_URL"], autocommit=True)) as session:
                client = Client(mine, session, environment["CACHE_URL"], environment["REPORT_URL"])
                for number in range(first, first + 12):
                    client.write(number)
                    client.look_everywhere(number)
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            failed.append(error)

    with ws.start(), hw.open(ws.path, durability="os") as other:
        clients = [
            threading.Thread(target=order, args=[mine, first])
            for mine, first in ((ws, 1_000), (ws, 2_000), (other, 3_000))
        ]
        for client in clients:
            client.start()
        with worker("client", str(ws.path), environment["SHOP_URL"], "4000", "12") as process:
            said = process.wait().splitlines()
        for client in clients:
            client.join()
    assert failed == []
    assert said == [f"saw {number}" for number in range(4_000, 4_012)]
    assert ws.verify().ok


def test_on_an_idle_database_too_nobody_waits_for_the_next_write(
    ws: hw.Workspace, shop: psycopg.Connection[Any], environment: dict[str, str]
) -> None:
    """Neither does Postgres write anything by itself, nor is everything in its log something that is captured."""
    assert ws.path is not None
    with ws.start(), hw.open(ws.path, durability="os") as other:
        for number, mine in enumerate((ws, other, ws, other)):
            client = Client(mine, shop, environment["CACHE_URL"], "")
            client.write(10 * number)
            client.look()
            client.look_in_cache()
            begin = time.monotonic()
            client.read_lsn()  # nothing was written since
            client.look()
            client.look_in_cache()
            shop.execute("UPDATE visits SET pages = pages + 1")  # a table that is not captured
            client.read_lsn()
            client.look()
            client.look_in_cache()
            with shop.transaction(force_rollback=True):
                shop.execute("INSERT INTO orders VALUES (99, 99, 99)")
            client.read_lsn()
            client.look()
            assert time.monotonic() - begin < PROMPT_S


def test_what_is_in_the_log_of_postgres_and_not_yet_on_its_disk_keeps_nobody_waiting(
    ws: hw.Workspace, shop: psycopg.Connection[Any], environment: dict[str, str]
) -> None:
    """A commit that did not wait for the disk; and a position behind records that no commit is waiting for."""
    client = Client(ws, shop, environment["CACHE_URL"], "")
    with ws.start():
        shop.execute("SET synchronous_commit = off")
        client.write(10)
        client.look()
        shop.execute("SET synchronous_commit = on")
        begin = time.monotonic()
        with shop.transaction(force_rollback=True):
            shop.execute("UPDATE visits SET pages = pages + 1")
            client.read_lsn()
            client.look()
            client.look_in_cache()
        assert time.monotonic() - begin < PROMPT_S


def test_events_of_an_outbox_are_found_as_well(
    ws: hw.Workspace, shop: psycopg.Connection[Any], environment: dict[str, str]
) -> None:
    """They are on a topic that the user declared."""
    shop.execute("CREATE TABLE outbox (id serial, aggregatetype text, aggregateid text, payload jsonb)")
    ws.sql(
        "CREATE OR REPLACE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'orders', outbox = 'outbox');"
        "CREATE TOPIC paid (id BIGINT, amount BIGINT, PRIMARY KEY (id));"
        "CREATE MATERIALIZED VIEW payments AS SELECT id, amount FROM paid;"
        "CREATE SINK payment FROM payments INTO REDIS WITH (url = env('CACHE_URL'), key = 'id')"
    )
    client = Client(ws, shop, environment["CACHE_URL"], "")
    ws.run()  # events count from the first run on: nobody can tell what was inserted and deleted before
    with ws.start(), redis.Redis.from_url(environment["CACHE_URL"], decode_responses=True) as cache:
        for number in range(10):
            with shop.transaction():
                event = f'{{"id": {number}, "amount": {number * 2}}}'
                columns = "(aggregatetype, aggregateid, payload)"
                shop.execute(f"INSERT INTO outbox {columns} VALUES ('paid', %s, %s)", [str(number), event])
                shop.execute("DELETE FROM outbox")
            client.read_lsn()
            if number % 2:
                query = f"SELECT amount FROM payments WHERE id = {number}"
                assert ws.query(query, after=client.lsn).to_pylist() == [{"amount": number * 2}]
            else:
                ws.sink("payment").wait(after=client.lsn)
                assert cache.hget(f"payment:{number}", "amount") == str(number * 2)
