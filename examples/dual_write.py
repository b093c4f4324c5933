"""Why writing to a database and a cache goes wrong, and what to do instead.

A shop keeps its prices in Postgres, and a copy of them in Redis. Three ways to keep the copy, and two faults for each of them:

- naive: the application writes to Postgres, then to Redis;
- capture: it writes to Postgres, and Headwater keeps Redis in step with the table;
- outbox: it writes to Postgres, with an event in the same transaction, and Headwater keeps Redis in step with the events.

The first fault is a race: two clients set the price of the lamp at the same time, and what the one does comes between the two
writes of the other. The second is a crash: the application that sets the price of the chair is killed between its two writes.

Run it against servers of your own. Postgres must have `wal_level = logical` (`headwater doctor URL` says what is missing):

    python examples/dual_write.py --postgres postgresql://localhost/shop --redis redis://localhost

It makes a schema and keys called `dual_write`, and removes them at the end. It ends with status 0 only if the naive way went wrong,
as it must, and the other two right.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import psycopg
import redis
from rich.console import Console
from rich.table import Table

import headwater as hw

WAYS = {
    "naive": "The naive way: the application writes to Postgres, then to Redis",
    "capture": "Captured: the application writes to Postgres, and Redis follows",
    "outbox": "Outbox: the application writes to Postgres, and an event in the same transaction",
}
LAMPS = {"naive": 1, "capture": 2, "outbox": 3}
CHAIRS = {"naive": 11, "capture": 12, "outbox": 13}
SCHEMA = "dual_write"
TABLES = f"""
    DROP SCHEMA IF EXISTS {SCHEMA} CASCADE;
    CREATE SCHEMA {SCHEMA};
    CREATE TABLE {SCHEMA}.products (id bigint PRIMARY KEY, name text NOT NULL, price numeric(10, 2) NOT NULL);
    CREATE TABLE {SCHEMA}.outbox (
      id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb NOT NULL
    );
    INSERT INTO {SCHEMA}.products SELECT i, 'lamp', 10 FROM generate_series(1, 3) i;
    INSERT INTO {SCHEMA}.products SELECT i, 'chair', 10 FROM generate_series(11, 13) i;
"""
# All that replaces the second write. `prices` follows the table, `offers` what the application says of it.
PIPELINE = f"""
    CREATE SOURCE shop FROM POSTGRES WITH (
      url = env('POSTGRES_URL'), tables = '{SCHEMA}.products', outbox = '{SCHEMA}.outbox'
    );
    CREATE TOPIC price_changes (id BIGINT, price DECIMAL(10, 2), PRIMARY KEY (id));

    CREATE MATERIALIZED VIEW prices AS SELECT id, price FROM products;
    CREATE MATERIALIZED VIEW offers AS SELECT id, price FROM price_changes;

    CREATE SINK price_cache FROM prices INTO REDIS
      WITH (url = env('REDIS_URL'), key = 'id', prefix = '{SCHEMA}:capture:');
    CREATE SINK offer_cache FROM offers INTO REDIS
      WITH (url = env('REDIS_URL'), key = 'id', prefix = '{SCHEMA}:outbox:')
"""
SINKS = {"capture": "price_cache", "outbox": "offer_cache"}
Write = Callable[[int, int], None]
"""A step of an application: product, price."""
console = Console(width=80, highlight=False)


# --- the application: three ways to set a price ---------------------------------------------------------------------


class Client:
    """One client of the shop, with connections of its own. Each way is two steps, so that something can come between them."""

    def __init__(self) -> None:
        self._postgres = psycopg.connect(os.environ["POSTGRES_URL"])
        self._redis = redis.Redis.from_url(os.environ["REDIS_URL"])

    def close(self) -> None:
        """Leave both servers."""
        self._postgres.close()
        self._redis.close()

    @property
    def pid(self) -> int:
        """Its number in Postgres."""
        return self._postgres.info.backend_pid

    # two writes, and with capture only the first of them

    def write_row(self, product: int, price: int) -> None:
        """To the database."""
        self._update(product, price)
        self._postgres.commit()

    def write_cache(self, product: int, price: int) -> None:
        """To the copy."""
        self._redis.hset(f"{SCHEMA}:naive:{product}", "price", price)

    # with an outbox two writes, and one transaction

    def write_row_and_stay(self, product: int, price: int) -> None:
        """Change the row, without a commit."""
        self._update(product, price)

    def write_event(self, product: int, price: int) -> None:
        """Say so, and commit both. The row of the outbox may be deleted at once: its insertion is what counts."""
        event = json.dumps({"id": product, "price": price})
        columns, values = "(aggregatetype, aggregateid, type, payload)", "('price_changes', %s, 'set', %s)"
        self._postgres.execute(
            f"INSERT INTO {SCHEMA}.outbox {columns} VALUES {values}", [str(product), event]
        )
        self._postgres.execute(f"DELETE FROM {SCHEMA}.outbox")
        self._postgres.commit()

    def _update(self, product: int, price: int) -> None:
        self._postgres.execute(f"UPDATE {SCHEMA}.products SET price = %s WHERE id = %s", [price, product])


# --- the first fault: two clients at once -----------------------------------------------------------------------------


def race(way: str) -> None:
    """Ann wants 11, Bob wants 12; Bob comes between Ann's two steps. The order is forced, so it goes wrong every time."""
    lamp = LAMPS[way]
    ann, bob = Client(), Client()
    try:
        if way == "naive":
            step("Ann writes 11 to Postgres", ann.write_row, lamp, 11)
            step("Bob writes 12 to Postgres", bob.write_row, lamp, 12)
            step("Bob writes 12 to Redis", bob.write_cache, lamp, 12)
            step("Ann writes 11 to Redis", ann.write_cache, lamp, 11)
        elif way == "capture":
            step("Ann writes 11 to Postgres", ann.write_row, lamp, 11)
            step("Bob writes 12 to Postgres", bob.write_row, lamp, 12)
        else:
            step("Ann begins, and writes 11 to the table", ann.write_row_and_stay, lamp, 11)
            with waiting(bob, ann, bob.write_row_and_stay, lamp, 12):
                say("Bob begins, wants to write 12, and has to wait for Ann")
                step("Ann writes her event, and commits", ann.write_event, lamp, 11)
            step("Bob writes 12, his event, and commits", bob.write_event, lamp, 12)
    finally:
        ann.close()
        bob.close()


@contextmanager
def waiting(client: Client, holder: Client, write: Write, product: int, price: int) -> Iterator[None]:
    """Have a client write in a thread; begins when Postgres makes it wait for the other one, ends when it is through."""
    blocked = "SELECT %s = ANY(pg_blocking_pids(%s))"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(os.environ["POSTGRES_URL"]) as session:
        through = pool.submit(write, product, price)
        while session.execute(blocked, [holder.pid, client.pid]).fetchone() != (True,):
            if through.done():
                raise RuntimeError("it did not have to wait")
        yield
        through.result()


# --- the second fault: killed between two steps ---------------------------------------------------------------------


def crash(way: str) -> None:
    """A process of its own that is to set the price of the chair to 15, and is killed on the way."""
    said = {
        "naive": "an application writes 15 to Postgres, and is killed before it writes to Redis",
        "capture": "an application writes 15 to Postgres, and is killed at once",
        "outbox": "an application writes 15 to the table, and is killed before its event",
    }
    done = subprocess.run([sys.executable, __file__, "--die", way], check=False)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the application ended with status {done.returncode}")
    say(said[way])


def die(way: str) -> None:
    """The process that is killed: as the kernel does it when memory runs out, with no time for anything."""
    client = Client()
    if way == "outbox":
        client.write_row_and_stay(CHAIRS[way], 15)
    else:
        client.write_row(CHAIRS[way], 15)
    os.kill(os.getpid(), signal.SIGKILL)


# --- what is there in the end -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A price in both places."""

    way: str
    fault: str
    postgres: Decimal
    redis: Decimal

    @property
    def ok(self) -> bool:
        """Whether the copy is one."""
        return self.postgres == self.redis


class Shop:
    """Somebody who looks at both places."""

    def __init__(self) -> None:
        self.postgres = psycopg.connect(os.environ["POSTGRES_URL"], autocommit=True)
        self.redis = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)

    def prepare(self, way: str) -> None:
        """The copies that are there before anything happens. Those of capture need nobody."""
        client = Client()
        for product in (LAMPS[way], CHAIRS[way]):
            if way == "naive":
                client.write_cache(product, 10)
            elif way == "outbox":
                client.write_event(product, 10)
        client.close()

    def position(self) -> str:
        """Where Postgres is in its log: all that is committed by now is before it."""
        found = self.postgres.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert found is not None
        return str(found[0])

    def look(self, way: str) -> list[Outcome]:
        """The price of the lamp, after the race, and of the chair, after the crash."""
        faults = {LAMPS[way]: "two clients at once", CHAIRS[way]: "killed in between"}
        return [Outcome(way, fault, *self._prices(way, product)) for product, fault in faults.items()]

    def _prices(self, way: str, product: int) -> tuple[Decimal, Decimal]:
        query = f"SELECT price FROM {SCHEMA}.products WHERE id = %s"
        row = self.postgres.execute(query, [product]).fetchone()
        assert row is not None
        return row[0], Decimal(str(self.redis.hget(f"{SCHEMA}:{way}:{product}", "price")))

    def remove(self) -> None:
        """Leave nothing behind."""
        self.postgres.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        for key in self.redis.scan_iter(f"{SCHEMA}:*"):
            self.redis.delete(key)
        self.postgres.close()
        self.redis.close()


# --- the story --------------------------------------------------------------------------------------------------------


def tell(folder: Path) -> bool:
    """Everything, in order; whether it ended as it should."""
    shop = Shop()
    shop.postgres.execute(TABLES)
    try:
        chapter(WAYS["naive"])
        go_wrong(shop, "naive")
        show(shop.look("naive"))
        say("Nothing corrects this: no system knows that a write is missing.")
        with hw.open(folder) as ws:
            try:
                ws.sql(PIPELINE)
                with ws.start():
                    for way, sink in SINKS.items():
                        chapter(WAYS[way])
                        go_wrong(shop, way)
                        ws.sink(sink).wait(after=shop.position(), timeout=120)
                        show(shop.look(way))
                clean = check(ws)
            finally:
                ws.sql("DROP SOURCE IF EXISTS shop")  # and with it what it made in Postgres
        chapter("In the end")
        outcomes = [outcome for way in WAYS for outcome in shop.look(way)]
        show(outcomes)
    finally:
        shop.remove()
    return clean and all(outcome.ok == (outcome.way != "naive") for outcome in outcomes)


def go_wrong(shop: Shop, way: str) -> None:
    """Both faults."""
    shop.prepare(way)
    race(way)
    crash(way)


def check(ws: hw.Workspace) -> bool:
    """Hold each view against its SELECT, and each copy in Redis against its view."""
    ws.run()
    found = ws.verify()
    chapter("Verified")
    for view in found.views:
        say(f"view {view.view} is what its SELECT gives: {'yes' if view.ok else 'no'}")
    for sink in found.sinks:
        say(f"sink {sink.sink} is what its view has, {sink.rows} rows: {'yes' if sink.ok else 'no'}")
    say("verify: clean" if found.ok else f"verify: {len(found.differences)} findings")
    return found.ok


# --- what a person sees -----------------------------------------------------------------------------------------------


def chapter(title: str) -> None:
    """A heading."""
    console.print(f"\n[bold]{title}[/bold]")


def say(text: str) -> None:
    """A line."""
    console.print(f"  {text}", soft_wrap=True)


def step(text: str, do: Write, product: int, price: int) -> None:
    """Do something, and say so when it is done: the next step begins after it."""
    do(product, price)
    say(text)


def show(outcomes: list[Outcome]) -> None:
    """A table of prices in both places."""
    table = Table(box=None, header_style="dim", pad_edge=True)
    for heading in ("way", "fault", "Postgres", "Redis", ""):
        table.add_column(heading, justify="right" if heading in ("Postgres", "Redis") else "left")
    for outcome in outcomes:
        verdict = "[green]same[/green]" if outcome.ok else "[red]DIFFERS[/red]"
        prices = f"{outcome.postgres:.2f}", f"{outcome.redis:.2f}"
        table.add_row(outcome.way, outcome.fault, *prices, verdict)
    console.print(table)


def main() -> int:
    """Tell the story; 0 if it ends as it should."""
    parser = argparse.ArgumentParser(description="Show how writing twice goes wrong, and what to do instead.")
    parser.add_argument("--postgres", metavar="URL", default=os.environ.get("POSTGRES_URL"))
    parser.add_argument("--redis", metavar="URL", default=os.environ.get("REDIS_URL"))
    parser.add_argument(
        "--folder", type=Path, help="where to put the workspace (default: a temporary folder)"
    )
    parser.add_argument("--die", choices=["naive", "capture", "outbox"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.die:
        die(given.die)
    if not given.postgres or not given.redis:
        parser.error("give --postgres and --redis, or set POSTGRES_URL and REDIS_URL")
    os.environ |= {"POSTGRES_URL": given.postgres, "REDIS_URL": given.redis}
    with tempfile.TemporaryDirectory() as temporary:
        try:
            ok = tell(given.folder or Path(temporary) / "workspace")
        except hw.HeadwaterError as error:  # which says what to do
            sys.exit(str(error))
    say("[green]as it should be[/green]" if ok else "[red]something is wrong[/red]")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
