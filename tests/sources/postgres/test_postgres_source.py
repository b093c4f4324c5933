"""A Postgres source on a real server: snapshot, stream, restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.sources import row_sizes
from headwater.sources.base import Commit, Rows
from headwater.sources.postgres.stream import spill, transactions
from tests.postgres import PostgresServer
from tests.sources.pipelines import Follower, change_at_random, rows_in

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)"


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders"})
    yield follower
    follower.close()


def set_for_database(session: psycopg.Connection[Any], setting: str, value: str) -> None:
    (name,) = session.execute("SELECT current_database()").fetchone() or ()
    session.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'")  # type: ignore[call-overload]


def keep_little_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "MEMORY_BYTES_MAX", 20_000)
    monkeypatch.setattr(transactions, "MEMORY_BYTES_MAX", 20_000)
    monkeypatch.setattr(transactions, "STREAMED_BYTES_MAX", 5_000)
    monkeypatch.setattr(row_sizes, "BYTES_MAX", 20_000)


def test_the_rows_that_are_there_come_first_and_then_every_change(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(ORDERS)
    session.execute("INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b')")
    follower.follow()
    assert follower.ops("orders") == [("snapshot", 1), ("snapshot", 2)]

    session.execute("INSERT INTO orders VALUES (3, 30, 'c')")
    session.execute("UPDATE orders SET n = 21 WHERE id = 2")
    session.execute("DELETE FROM orders WHERE id = 1")
    session.execute("UPDATE orders SET id = 5 WHERE id = 3")
    follower.follow()
    assert follower.ops("orders")[2:] == [
        ("insert", 3),
        ("update", 2),
        ("delete", 1),
        ("delete", 3),
        ("insert", 5),
    ]
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_records_say_where_they_come_from(session: psycopg.Connection[Any], follower: Follower) -> None:
    session.execute(ORDERS)
    follower.follow()
    with session.transaction():
        (xid,) = session.execute("SELECT pg_current_xact_id()::text::int8").fetchone() or ()
        session.execute("INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b')")
    (lsn,) = session.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8").fetchone() or ()
    session.execute("INSERT INTO orders VALUES (3, 3, 'c')")
    follower.follow()
    first, second, third = follower.records["orders"]
    assert first["_transaction"] == second["_transaction"] == xid
    assert first["_source_position"] == second["_source_position"] <= lsn < third["_source_position"]
    assert first["_source_time"] <= third["_source_time"]


def test_a_transaction_is_one_append_and_an_aborted_one_is_none(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(ORDERS)
    session.execute("CREATE TABLE lines (id int PRIMARY KEY, n int)")
    follower.options["tables"] = "orders, lines"
    follower.follow()
    with session.transaction():
        session.execute("INSERT INTO orders VALUES (1, 1, 'a')")
        session.execute("INSERT INTO lines VALUES (1, 1)")
        with session.transaction(force_rollback=True):
            session.execute("INSERT INTO lines VALUES (9, 9)")
    with session.transaction(force_rollback=True):
        session.execute("INSERT INTO lines VALUES (8, 8)")
    events = []
    while not events or not isinstance(events[-1], Commit):
        events.append(follower.step())
    assert sorted(event.topic for event in events if isinstance(event, Rows)) == ["lines", "orders"]
    follower.follow()
    assert follower.ops("lines") == [("insert", 1)]


def test_truncate_is_a_tombstone_for_each_key_and_spares_what_comes_after(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(ORDERS)
    session.execute("INSERT INTO orders SELECT i, i, 'x' FROM generate_series(1, 5) i")
    follower.follow()
    with session.transaction():
        session.execute("INSERT INTO orders VALUES (6, 6, 'gone at once')")
        session.execute("TRUNCATE orders")
        session.execute("INSERT INTO orders VALUES (2, 22, 'new')")
    session.execute("INSERT INTO orders VALUES (7, 7, 'y')")
    follower.follow()
    assert sorted(follower.ops("orders")[5:10]) == [("delete", n) for n in range(1, 6)]
    assert follower.ops("orders")[10:] == [("insert", 2), ("insert", 7)]
    assert follower.contents["orders"] == rows_in(session, "orders")


LARGE = "(SELECT string_agg(md5((i * {0})::text), '') FROM generate_series(1, 500) i)"


def test_large_values_that_an_update_leaves_alone_are_filled_in(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(ORDERS)
    session.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    session.execute(f"INSERT INTO orders VALUES (1, 1, {LARGE.format(1)})")
    follower.follow()
    session.execute("UPDATE orders SET n = 2 WHERE id = 1")  # from the log
    with session.transaction():  # from the same transaction, through changes of the key
        session.execute(f"INSERT INTO orders VALUES (2, 2, {LARGE.format(2)})")
        session.execute("UPDATE orders SET n = 3 WHERE id = 2")
        session.execute("UPDATE orders SET id = 3 WHERE id = 2")
        session.execute("UPDATE orders SET id = 4 WHERE id = 3")
        session.execute("UPDATE orders SET n = 4 WHERE id = 4")
    session.execute("UPDATE orders SET id = 10 WHERE id = 1")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")
    bodies = [row["body"] for row in follower.records["orders"] if row["_op"] != 1]
    assert all(body is not None and len(body) == 16_000 for body in bodies)


def test_large_values_of_rows_that_the_log_does_not_have_are_read_again(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "none"
    session.execute(ORDERS)
    session.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    session.execute(f"INSERT INTO orders VALUES (1, 1, {LARGE.format(1)}), (2, 2, {LARGE.format(2)})")
    follower.follow()
    assert not follower.records.get("orders")
    session.execute("UPDATE orders SET n = n + 1")
    follower.settle()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert follower.ops("orders") == [("snapshot", 1), ("snapshot", 2)]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_reading_may_stop_after_any_event(
    session: psycopg.Connection[Any],
    follower: Follower,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    streamed: bool,
) -> None:
    chance = random.Random(seed)
    if streamed:  # every row at once, before anything is known of its transaction, and hardly any in memory
        set_for_database(session, "debug_logical_replication_streaming", "immediate")
        keep_little_in_memory(monkeypatch)
    session.execute(ORDERS)
    session.execute("SET lock_timeout = '50ms'")
    session.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    for _ in range(5):
        change_at_random(session, chance)
    for _ in range(25):
        for _ in range(chance.randint(0, 4)):
            change_at_random(session, chance)
        for _ in range(chance.randint(0, 6)):
            follower.step()
        if chance.random() < 0.3:
            follower.close()
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")
    positions = [row["_source_position"] for row in follower.records["orders"]]
    assert positions == sorted(positions)
    bodies = {row["body"] for row in follower.records["orders"] if row["_op"] in (0, 2, 3, 4)}
    assert None not in bodies


# --- large transactions ----------------------------------------------------------------------------------------------


def test_large_transactions_are_streamed_and_what_was_undone_in_them_is_left_out(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_little_in_memory(monkeypatch)
    set_for_database(session, "logical_decoding_work_mem", "64kB")
    session.execute(ORDERS)
    session.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    session.execute("INSERT INTO orders SELECT i, i, 'old' FROM generate_series(1, 100) i")
    follower.follow()
    with session.transaction():
        session.execute("INSERT INTO orders SELECT i, 0, 'before' FROM generate_series(10000, 12000) i")
        with session.transaction(force_rollback=True):
            session.execute("TRUNCATE orders")
            session.execute("INSERT INTO orders SELECT i, 0, 'undone' FROM generate_series(20000, 22000) i")
        session.execute(
            f"INSERT INTO orders SELECT i, 1, {LARGE.format(3)} FROM generate_series(30000, 30100) i"
        )
        with session.transaction():
            session.execute("UPDATE orders SET n = n + 1 WHERE id > 30000")
            session.execute("UPDATE orders SET id = id + 100000 WHERE id > 30050")
        session.execute("UPDATE orders SET n = n + 1 WHERE id > 30000")
        session.execute("DELETE FROM orders WHERE id < 50")
    with session.transaction(force_rollback=True):
        session.execute("INSERT INTO orders SELECT i, 0, 'never' FROM generate_series(50000, 52000) i")
    commits = follower.commits
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert follower.commits == commits + 1

    with session.transaction():
        session.execute("UPDATE orders SET n = -1")
        session.execute("TRUNCATE orders")
        session.execute("INSERT INTO orders SELECT i, 5, 'new' FROM generate_series(1, 2000) i")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_transaction_that_postgres_cannot_decode_while_it_is_under_way_is_read_at_its_commit(
    session: psycopg.Connection[Any], follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    set_for_database(session, "logical_decoding_work_mem", "64kB")
    session.execute(ORDERS)
    session.execute("INSERT INTO orders SELECT i, i, 'old' FROM generate_series(1, 100) i")
    follower.follow()
    many = "INSERT INTO orders SELECT i, i, repeat('x', 100) FROM generate_series({0}, {0} + 2000) i"
    with session.transaction():
        session.execute(many.format(10_000))
        with session.transaction(force_rollback=True):
            session.execute("TRUNCATE orders")
            session.execute(many.format(20_000))
        session.execute("ALTER TABLE orders ADD COLUMN more text")
        session.execute(many.format(30_000))
        session.execute("TRUNCATE orders")
        session.execute(many.format(1))
    session.execute("INSERT INTO orders VALUES (9000, 0, 'after')")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert follower.source is not None
    assert "transactions are read at their commit" in follower.source.status.state
    assert "could not open relation" in caplog.text


def test_a_large_transaction_that_is_not_streamed_is_kept_apart_from_small_ones(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "MEMORY_BYTES_MAX", 50_000)
    monkeypatch.setattr(transactions, "MEMORY_BYTES_MAX", 50_000)
    monkeypatch.setattr("headwater.sources.postgres.capture_session.TAKE_MESSAGES", 100)
    session.execute(ORDERS)
    follower.follow()
    for n in range(20):
        session.execute(
            f"INSERT INTO orders SELECT {n} * 1000 + i, 0, 'x' FROM generate_series(1, {1 + 40 * n}) i"
        )
        session.execute(f"UPDATE orders SET n = n + 1 WHERE id % 3 = {n % 3}")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_prepared_transaction_comes_when_it_is_committed(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(ORDERS)
    follower.follow()
    session.execute("BEGIN")
    session.execute("INSERT INTO orders VALUES (1, 1, 'a')")
    session.execute("PREPARE TRANSACTION 'first'")
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    follower.follow()
    assert follower.ops("orders") == [("insert", 2)]
    session.execute("COMMIT PREPARED 'first'")
    follower.follow()
    assert follower.ops("orders") == [("insert", 2), ("insert", 1)]


# --- kinds of tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX by_code"])
def test_every_replica_identity_that_tells_rows_apart_is_followed(
    session: psycopg.Connection[Any], follower: Follower, identity: str
) -> None:
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, code text NOT NULL, n int, body text)")
    session.execute("CREATE UNIQUE INDEX by_code ON orders (code)")
    session.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    session.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}")  # type: ignore[call-overload]
    session.execute(
        f"INSERT INTO orders SELECT i, 'c' || i, i, {LARGE.format(1)} FROM generate_series(1, 9) i"
    )
    follower.follow()
    session.execute("UPDATE orders SET n = n + 1 WHERE id < 4")
    session.execute("UPDATE orders SET id = id + 100 WHERE id = 5")
    session.execute("UPDATE orders SET code = 'other' WHERE id = 6")
    session.execute("DELETE FROM orders WHERE id = 7")
    follower.follow()
    key = ("code",) if "INDEX" in identity else ("id",)
    assert follower.topics["orders"].key == key
    assert follower.contents["orders"] == rows_in(session, "orders", key)


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "NOTHING"])
def test_a_table_without_a_key_is_appended_to_and_stays_writable(
    session: psycopg.Connection[Any], follower: Follower, identity: str
) -> None:
    session.execute("CREATE TABLE orders (n int)")
    session.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}")  # type: ignore[call-overload]
    session.execute("INSERT INTO orders VALUES (1), (1)")
    follower.follow()
    session.execute("INSERT INTO orders VALUES (2), (1)")
    session.execute("UPDATE orders SET n = 7 WHERE n = 2")
    session.execute("DELETE FROM orders WHERE n = 1")
    session.execute("TRUNCATE orders")
    session.execute("INSERT INTO orders VALUES (3)")
    follower.follow()
    assert follower.topics["orders"].key == ()
    assert [row["n"] for row in follower.records["orders"]] == [1, 1, 2, 1, 3]


def test_a_partitioned_table_is_one_topic(session: psycopg.Connection[Any], follower: Follower) -> None:
    session.execute(
        "CREATE TABLE orders (id int, region text, n int, PRIMARY KEY (region, id)) PARTITION BY LIST (region)"
    )
    session.execute("CREATE TABLE orders_eu PARTITION OF orders FOR VALUES IN ('eu')")
    session.execute("CREATE TABLE orders_us PARTITION OF orders FOR VALUES IN ('us')")
    session.execute("INSERT INTO orders VALUES (1, 'eu', 1), (1, 'us', 1)")
    follower.follow()
    session.execute("UPDATE orders SET region = 'us', id = 2 WHERE region = 'eu'")
    session.execute("CREATE TABLE orders_asia PARTITION OF orders FOR VALUES IN ('asia')")
    session.execute("INSERT INTO orders VALUES (1, 'asia', 5)")
    follower.follow()
    assert list(follower.topics) == ["orders"]
    assert follower.contents["orders"] == rows_in(session, "orders", ("region", "id"))
    session.execute("TRUNCATE orders")
    follower.follow()
    assert follower.contents["orders"] == {}


def test_generated_columns_are_captured_where_the_server_sends_them(
    postgres_server: PostgresServer, session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)"
    )
    session.execute("INSERT INTO orders VALUES (1, 1)")
    follower.follow()
    session.execute("INSERT INTO orders VALUES (2, 2)")
    follower.follow()
    sent = [{"id": 1, "n": 1, "twice": 2}, {"id": 2, "n": 2, "twice": 4}]
    if postgres_server.version < 18:
        sent = [{"id": row["id"], "n": row["n"]} for row in sent]
    assert list(follower.contents["orders"].values()) == sent


EXTENSION = """
CREATE SCHEMA ext;
CREATE TYPE ext.citext;
CREATE FUNCTION ext.citextin(cstring) RETURNS ext.citext LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION ext.citextout(ext.citext) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE ext.citext (INPUT = ext.citextin, OUTPUT = ext.citextout, LIKE = text, CATEGORY = 'S');
CREATE TYPE ext.hstore;
CREATE FUNCTION ext.hstore_in(cstring) RETURNS ext.hstore LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION ext.hstore_out(ext.hstore) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE ext.hstore (INPUT = ext.hstore_in, OUTPUT = ext.hstore_out, LIKE = text);
CREATE DOMAIN ext.email AS ext.citext;
CREATE TYPE ext.pair AS (a int, b ext.citext);
"""
"""Types as the extensions of these names make them, with the functions of text instead of their own."""


def test_types_of_extensions_are_texts(session: psycopg.Connection[Any], follower: Follower) -> None:
    session.execute(EXTENSION)
    session.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name ext.citext, tags ext.hstore, email ext.email, many ext.citext[], pair ext.pair)"
    )
    values = (
        """'Straße', '"a"=>"1", "b"=>NULL', 'Me@x', ARRAY['A', NULL, 'b,c']::ext.citext[], ROW(1, 'x y')"""
    )
    session.execute(f"INSERT INTO orders VALUES (1, {values})")  # type: ignore[call-overload]
    follower.follow()
    session.execute(f"INSERT INTO orders VALUES (2, {values})")  # type: ignore[call-overload]
    follower.follow()
    wanted = ("Straße", '"a"=>"1", "b"=>NULL', "Me@x", ["A", None, "b,c"], '(1,"x y")')
    rows = [tuple(row.values())[1:] for row in follower.contents["orders"].values()]
    assert rows == [wanted, wanted]
    kinds = [
        str(follower.topics["orders"].schema.field(name).type) for name in ("name", "tags", "email", "pair")
    ]
    assert kinds == ["string"] * 4


def test_whole_schemas_and_names_that_need_quotes_are_captured(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute('CREATE SCHEMA "My Shop"')
    session.execute('CREATE TABLE "My Shop"."Order Lines" ("The Key" text PRIMARY KEY, "Select" int)')
    session.execute('CREATE TABLE "My Shop".plain (id int PRIMARY KEY)')
    session.execute(ORDERS)
    session.execute("CREATE TABLE lines (id int PRIMARY KEY, n int)")
    follower.options["tables"] = 'public.*, "My Shop"."Order Lines" AS order_lines'
    session.execute("""INSERT INTO "My Shop"."Order Lines" VALUES ('a''\\b' || chr(9) || chr(10), 1)""")
    follower.follow()
    session.execute('UPDATE "My Shop"."Order Lines" SET "Select" = 2')
    follower.follow()
    assert set(follower.topics) == {"orders", "lines", "order_lines"}
    assert follower.contents["order_lines"] == rows_in(session, '"My Shop"."Order Lines"', ("The Key",))


# --- changes of schemas ----------------------------------------------------------------------------------------------


def test_columns_may_be_added_dropped_renamed_and_widened_while_running(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, n int, old text)")
    session.execute("INSERT INTO orders VALUES (1, 1, 'a')")
    follower.follow()
    session.execute("ALTER TABLE orders ADD COLUMN extra text")
    session.execute("INSERT INTO orders VALUES (2, 2, 'b', 'more')")
    with session.transaction():
        session.execute("INSERT INTO orders VALUES (3, 3, 'c', 'more')")
        session.execute("ALTER TABLE orders DROP COLUMN old")
        session.execute("INSERT INTO orders VALUES (4, 4, 'more')")
    session.execute("ALTER TABLE orders RENAME COLUMN extra TO other")
    session.execute("ALTER TABLE orders ALTER COLUMN n TYPE bigint")
    session.execute("INSERT INTO orders VALUES (5, 5000000000, 'x')")
    follower.follow()
    assert follower.topics["orders"].schema.names == ["id", "n", "old", "extra", "other"]
    shown = [
        tuple(row.get(name) for name in ("id", "n", "old", "extra", "other"))
        for row in follower.contents["orders"].values()
    ]
    assert shown == [
        (1, 1, "a", None, None),
        (2, 2, "b", "more", None),
        (3, 3, "c", "more", None),
        (4, 4, None, "more", None),
        (5, 5_000_000_000, None, None, "x"),
    ]


def test_a_change_that_the_topic_cannot_follow_stops_the_table_and_no_other(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(ORDERS)
    session.execute("CREATE TABLE lines (id int PRIMARY KEY, n int)")
    session.execute("INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b')")
    follower.options["tables"] = "orders, lines"
    follower.follow()
    assert follower.source is not None
    session.execute("ALTER TABLE orders ALTER COLUMN n TYPE text")
    session.execute("INSERT INTO orders VALUES (3, 'x', 'c')")
    session.execute("DELETE FROM orders WHERE id = 1")
    session.execute("INSERT INTO lines VALUES (1, 1)")
    follower.follow()
    assert follower.ops("lines") == [("insert", 1)]
    assert len(follower.records["orders"]) == 2
    error = follower.source.stopped["public.orders"]
    assert error.facts["table"] == "public.orders"
    assert error.hint is not None
    assert "RESTART public.orders" in error.hint

    session.execute("DELETE FROM orders WHERE id = 3")
    session.execute("ALTER TABLE orders ALTER COLUMN n TYPE int USING n::int")
    follower.close()
    session.execute("INSERT INTO orders VALUES (4, 4, 'd')")
    follower.settle()
    assert follower.source is not None
    assert not follower.source.stopped
    assert follower.contents["orders"] == rows_in(session, "orders")
