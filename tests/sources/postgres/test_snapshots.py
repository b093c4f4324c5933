"""Snapshots beside the stream: in chunks by key, with live changes winning, across restarts."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.core.errors import UsageError
from headwater.sources.base import Commit
from headwater.sources.postgres.snapshot.snapshot_rows import SnapshotRequest, Visible, _meant
from tests.postgres import PostgresServer
from tests.raising import raises
from tests.sources.pipelines import Follower, change_at_random, rows_in

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)"
FILLED = "INSERT INTO orders SELECT i, i, 'row ' || i FROM generate_series(1, 100) i"


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute(ORDERS)
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(
        postgres_url, tmp_path, {"tables": "orders", "snapshot": "incremental", "chunk_rows": 7}
    )
    yield follower
    follower.close()


def test_a_table_is_copied_in_chunks_beside_the_stream(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(FILLED)
    follower.settle()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert follower.ops("orders") == [("snapshot", n) for n in range(1, 101)]
    assert follower.commits >= 15


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_live_changes_win_over_rows_of_chunks_wherever_reading_stops(
    session: psycopg.Connection[Any], follower: Follower, seed: int
) -> None:
    chance = random.Random(seed)
    session.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    session.execute("INSERT INTO orders SELECT i, i, repeat('x', 3000) FROM generate_series(1, 40) i")
    session.execute("SET lock_timeout = '50ms'")
    follower.options["chunk_rows"] = chance.choice([1, 3, 10, 1000])
    for _ in range(30):
        change_at_random(session, chance)
        for _ in range(chance.randint(0, 4)):
            follower.step()
        if chance.random() < 0.15:
            follower.close()
    follower.settle()
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_table_that_is_added_later_is_copied_while_the_others_go_on(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "initial"
    session.execute(FILLED)
    follower.follow()
    session.execute("CREATE TABLE lines (id text PRIMARY KEY, n int)")
    session.execute("INSERT INTO lines SELECT 'it''s \\' || i, i FROM generate_series(1, 30) i")
    follower.close()
    follower.options["tables"] = "orders, lines"
    session.execute("UPDATE orders SET n = 0 WHERE id = 1")
    follower.settle(ordered=True)
    session.execute("UPDATE lines SET n = 0 WHERE n = 1")
    follower.follow()
    assert follower.contents["lines"] == rows_in(session, "lines")
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert follower.ops("orders")[100:] == [("update", 1)]


def test_a_table_without_a_key_that_is_added_later_has_each_row_once(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    session.execute("CREATE TABLE lines (n int)")
    session.execute("INSERT INTO lines SELECT i FROM generate_series(1, 30) i")
    follower.close()
    follower.options["tables"] = "orders, lines"
    follower.open()
    n = 31
    for _ in range(60):
        session.execute("INSERT INTO lines VALUES (%s)", [n])
        n += 1
        follower.step()
    follower.settle()
    assert sorted(row["n"] for row in follower.records["lines"]) == list(range(1, n))


def test_chosen_rows_are_copied_again_on_request(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "initial"
    session.execute(FILLED)
    follower.follow()
    assert follower.source is not None
    follower.source.snapshot("orders", where="id % 10 = 0 OR body = 'row 3'")
    follower.settle(ordered=True)
    assert follower.ops("orders")[100:] == [("snapshot", n) for n in (3, *range(10, 101, 10))]
    with raises(UsageError, source="shop", table="public.other"):
        follower.source.snapshot("other")


def test_a_snapshot_is_paused_and_goes_on_where_it_was_also_in_another_process(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(FILLED)
    while not isinstance(follower.step(), Commit) or not follower.records["orders"]:
        pass
    assert follower.source is not None
    follower.source.pause()
    follower.stream()
    follower.stream()
    assert follower.position is not None
    assert follower.position["paused"]
    done = len(follower.records["orders"])
    assert 0 < done < 100
    follower.close()
    follower.stream()
    follower.stream()
    assert len(follower.records["orders"]) == done
    assert follower.source.status.snapshots == [
        {"table": "public.orders", "after": (str(done),), "rows": done}
    ]
    session.execute("INSERT INTO orders VALUES (101, 0, 'live')")
    follower.source.resume()
    follower.settle()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert [key for op, key in follower.ops("orders") if op == "snapshot"][:100] == list(range(1, 101))


def test_keys_of_several_columns_and_of_any_text_are_gone_through_in_order(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE TABLE lines (a text, b timestamptz, c numeric, n int, PRIMARY KEY (b, a, c))")
    session.execute(
        "INSERT INTO lines SELECT chr(9 + i % 3) || '\\' || i, '2024-01-01'::timestamptz + i % 5 * interval '1.5 s', i / 3.0, i "
        "FROM generate_series(1, 50) i"
    )
    follower.options["tables"] = "lines"
    follower.settle()
    assert sorted(row["n"] for row in follower.records["lines"]) == list(range(1, 51))


def test_rows_that_the_publication_leaves_out_are_left_out_of_snapshots(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute(FILLED)
    session.execute("CREATE PUBLICATION mine FOR TABLE orders (id, n) WHERE (id > 90)")
    follower.options["publication"] = "mine"
    follower.settle()
    session.execute("INSERT INTO orders VALUES (101, 0, ''), (0, 0, '')")
    follower.follow()
    assert sorted(key for _, key in follower.ops("orders")) == list(range(91, 102))
    assert follower.topics["orders"].schema.names == ["id", "n"]


def test_a_row_that_was_in_the_stream_before_it_could_be_seen_is_not_taken_back(
    postgres_server: PostgresServer, session: psycopg.Connection[Any], follower: Follower
) -> None:
    """A commit that waits for a standby is in the server's log, and so in the stream, but not visible to others yet."""
    session.execute("INSERT INTO orders VALUES (1, 1, 'old')")
    follower.settle()
    session.execute("SET synchronous_commit = local")
    session.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    session.execute("SELECT pg_reload_conf()")
    try:
        with psycopg.connect(follower.url, autocommit=True) as waiting:
            while waiting.execute("SHOW synchronous_standby_names").fetchone() != ("nobody",):
                pass
            session.execute("CHECKPOINT")  # by whom others are told of the setting
            commit = threading.Thread(target=waiting.execute, args=["UPDATE orders SET n = 2 WHERE id = 1"])
            commit.start()
            while follower.contents["orders"][(1,)]["n"] != 2:
                follower.step()
            assert rows_in(session, "orders")[(1,)]["n"] == 1
            assert follower.source is not None
            follower.source.snapshot("orders")
            for _ in range(20):
                follower.step()
            assert follower.contents["orders"][(1,)]["n"] == 2
            session.execute("ALTER SYSTEM RESET synchronous_standby_names")
            session.execute("SELECT pg_reload_conf()")
            commit.join()
    finally:
        session.execute("ALTER SYSTEM RESET synchronous_standby_names")
        session.execute("SELECT pg_reload_conf()")
    follower.settle()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert [row["n"] for row in follower.records["orders"]] == [1, 2, 2]


def test_what_a_snapshot_sees_is_known_for_each_transaction() -> None:
    visible = Visible.parse("5:9:6,8")
    assert [xid for xid in range(1, 12) if visible.sees(xid)] == [1, 2, 3, 4, 5, 7]
    around = Visible.parse(f"{2**32 + 1}:{2**32 + 5}:{2**32 + 3}")
    assert [xid for xid in (2**32 - 5, 1, 2, 3, 4, 5, 6) if around.sees(xid)] == [2**32 - 5, 1, 2, 4]


@pytest.mark.parametrize(
    ("copied", "meant"),
    [(rb"a\\b", b"a\\b"), (rb"\t\\t\\\t", b"\t\\t\\\t"), (rb"\\", b"\\"), (rb"\\\\x", rb"\\x")],
)
def test_values_of_copy_are_read_as_they_are_meant(copied: bytes, meant: bytes) -> None:
    assert _meant(copied) == meant


def test_requests_are_plain_json() -> None:
    request = SnapshotRequest("public.orders", "n > 1", ("5", "x"), 12, replace=True)
    assert SnapshotRequest.from_json(request.to_json()) == request
    assert SnapshotRequest("public.orders").to_json() == {"table": "public.orders"}
