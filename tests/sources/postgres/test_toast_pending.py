"""Large values that are not sent, of rows that were not copied yet: what the log has of a row was there, each version of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.catalog.conform import DELETE, OPS
from headwater.sources import row_sizes
from headwater.sources.postgres.rows import toast_pending
from headwater.sources.postgres.snapshot import snapshot_rows as snapshots
from tests.sources.pipelines import Follower, drop_slot, rows_in

LARGE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 80))"
ORDERS = f"""
CREATE TABLE orders (id int PRIMARY KEY, n int, body text, more text);
ALTER TABLE orders ALTER body SET STORAGE EXTERNAL;
ALTER TABLE orders ALTER more SET STORAGE EXTERNAL;
CREATE TABLE versions (xid bigint, id int, n int, body text, more text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO versions VALUES (pg_current_xact_id()::text::bigint % 4294967296, NEW.id, NEW.n, md5(NEW.body), md5(NEW.more));
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION audit();
INSERT INTO orders SELECT i, i, {LARGE}, {LARGE} FROM generate_series(1, 40) i;
"""


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute(ORDERS)
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders", "snapshot": "incremental"})
    yield follower
    follower.close()


def check_versions(session: psycopg.Connection[Any], follower: Follower) -> None:
    """Every row that was logged is a version that was committed: by its own transaction, or, if it was copied, by any."""
    rows = session.execute("SELECT xid, id, n, body, more FROM versions").fetchall()
    by_transaction, ever = set(rows), {row[1:] for row in rows}
    (hashes,) = (
        session.execute(
            "SELECT json_object_agg(body, md5(body)) FROM unnest(%s::text[]) AS t (body)",
            [list({r[c] for r in follower.records["orders"] for c in ("body", "more") if r[c] is not None})],
        ).fetchone()
        or ()
    )
    hashes = hashes or {}
    for row in follower.records["orders"]:
        if row["_op"] == DELETE:
            continue
        version = (row["id"], row["n"], hashes.get(row["body"]), hashes.get(row["more"]))
        if OPS[row["_op"]] == "snapshot":
            assert version in ever, row["id"]
        else:
            assert (row["_transaction"], *version) in by_transaction, (OPS[row["_op"]], row["id"])


@pytest.mark.parametrize("snapshot", ["incremental", "none", "anew"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_every_version_in_the_log_is_one_that_was_in_the_table(
    session: psycopg.Connection[Any],
    follower: Follower,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    snapshot: str,
) -> None:
    chance = random.Random(f"{snapshot} {seed}")
    monkeypatch.setattr(toast_pending, "KEYS_MAX", chance.choice([3, 1_000]))
    monkeypatch.setattr(
        "headwater.sources.postgres.snapshot.wanted_snapshots.KEYS_MAX", toast_pending.KEYS_MAX
    )
    monkeypatch.setattr(toast_pending, "PENDING_ROWS_MAX", chance.choice([5, 20_000]))
    monkeypatch.setattr(row_sizes, "BYTES_MAX", chance.choice([6_000, row_sizes.BYTES_MAX]))
    monkeypatch.setattr(snapshots, "CHUNK_BYTES_MAX", chance.choice([20_000, snapshots.CHUNK_BYTES_MAX]))
    monkeypatch.setattr("headwater.sources.postgres.server.connection.BLOCK_BYTES", 10_000)
    session.execute("SET lock_timeout = '50ms'")
    follower.options |= {"chunk_rows": chance.choice([1, 5, 13, 1000]), "snapshot": "incremental"}
    if snapshot == "none":
        follower.options["snapshot"] = "none"
    if snapshot == "anew":  # the log has rows that are no longer right, until they are copied again
        follower.settle()
        follower.close()
        session.execute(f"UPDATE orders SET body = {LARGE}, n = -n")
        session.execute("DELETE FROM orders WHERE id % 3 = 0")
        drop_slot(session)
        follower.position = None
    follower.step()
    for _ in range(40):
        for _ in range(chance.randint(0, 3)):
            change_large(session, chance)
        for _ in range(chance.randint(0, 4)):
            follower.step()
        if chance.random() < 0.1:
            follower.close()
    if snapshot == "none":
        follower.open().snapshot("orders")
        follower.settle(ordered=True)
    follower.settle()
    assert follower.contents["orders"] == rows_in(session, "orders")
    check_versions(session, follower)


def change_large(session: psycopg.Connection[Any], chance: random.Random) -> None:
    """Changes of all kinds, most of which leave a large value alone."""
    key = chance.randint(1, 40)
    with session.transaction(force_rollback=chance.random() < 0.1):
        for _ in range(chance.randint(1, 3)):
            statement = chance.choice(
                [
                    f"UPDATE orders SET n = n + 1 WHERE id = {key}",
                    f"UPDATE orders SET n = n + 1 WHERE id % 5 = {key % 5}",
                    f"UPDATE orders SET body = {LARGE} WHERE id = {key}",
                    f"UPDATE orders SET more = {LARGE}, n = n + 1 WHERE id = {key}",
                    f"UPDATE orders SET body = NULL WHERE id = {key}",
                    f"UPDATE orders SET body = {LARGE}, more = {LARGE} WHERE id = {key}",
                    f"DELETE FROM orders WHERE id = {key}",
                    f"INSERT INTO orders VALUES ({key}, 0, {LARGE}, {LARGE}) ON CONFLICT (id) DO UPDATE SET n = orders.n + 1",
                    f"UPDATE orders SET id = id + 100 WHERE id = {key} AND NOT EXISTS (SELECT FROM orders WHERE id = {key + 100})",
                    f"UPDATE orders SET id = id - 100, n = n + 1 WHERE id = {key + 100} AND NOT EXISTS (SELECT FROM orders WHERE id = {key})",
                ]
            )
            session.execute(statement)  # type: ignore[call-overload]
            key = chance.choice([key, chance.randint(1, 40)])
    if chance.random() < 0.03:
        with suppress(psycopg.errors.LockNotAvailable):
            session.execute("TRUNCATE orders")


def test_a_row_that_is_changed_all_the_time_comes_too(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "none"
    follower.stream()
    ended = threading.Event()

    def change() -> None:
        with psycopg.connect(follower.url, autocommit=True) as other:
            while not ended.is_set():
                other.execute("UPDATE orders SET n = n + 1 WHERE id = 7")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(2_000):
            follower.step()
            if (7,) in follower.contents["orders"]:
                break
        assert (7,) in follower.contents["orders"]
    finally:
        ended.set()
        thread.join()
    follower.settle()
    stored = rows_in(session, "orders")
    assert follower.contents["orders"] == {(7,): stored[(7,)]}
    check_versions(session, follower)


def test_what_is_lacking_is_had_after_a_restart_too(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "none"
    follower.stream()
    session.execute("UPDATE orders SET n = n + 1 WHERE id IN (3, 5)")
    while not (follower.position or {}).get("lacking"):
        follower.step()
    assert follower.position is not None
    assert follower.position["lacking"] == {"public.orders": [["3"], ["5"]]}
    follower.close()
    session.execute("DELETE FROM orders WHERE id = 5")
    source = follower.open()
    assert source.busy, "nothing was read yet"
    follower.stream()
    follower.settle()
    assert not source.busy
    assert follower.contents["orders"] == {(3,): rows_in(session, "orders")[(3,)]}
    assert not (follower.position or {}).get("lacking")


def test_a_transaction_whose_first_rows_all_lack_a_value_goes_on(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "none"
    follower.stream()
    with session.transaction():
        session.execute("UPDATE orders SET n = 100 WHERE id = 1")
        session.execute("ALTER TABLE orders ADD COLUMN note text")  # what comes now has another shape
        session.execute("UPDATE orders SET n = 200 WHERE id = 1")
        session.execute("UPDATE orders SET n = 300 WHERE id = 2")
    follower.settle()
    wanted = {key: row for key, row in rows_in(session, "orders").items() if key in ((1,), (2,))}
    assert follower.contents["orders"] == wanted
    check_versions(session, follower)


@pytest.mark.parametrize("is_in_log", [False, True])
@pytest.mark.parametrize("key", [1, 200])
def test_a_row_that_lacks_a_value_behind_a_delete_of_its_key_is_not_filled_from_before_the_delete(
    session: psycopg.Connection[Any], follower: Follower, key: int, is_in_log: bool
) -> None:
    follower.options["snapshot"] = "none"
    follower.stream()
    if is_in_log:
        session.execute(f"UPDATE orders SET body = {LARGE}, more = {LARGE} WHERE id = 1")  # type: ignore[call-overload]
        follower.follow()
    with session.transaction():
        session.execute("DELETE FROM orders WHERE id = 1")
        session.execute("UPDATE orders SET id = 1 WHERE id = 2")  # it lacks its values, and is left out
        session.execute("ALTER TABLE orders ADD COLUMN note text")  # what comes now has another shape
        session.execute(f"UPDATE orders SET n = 100, id = {key} WHERE id = 1")  # type: ignore[call-overload]
    follower.settle()
    assert follower.contents["orders"] == {(key,): rows_in(session, "orders")[(key,)]}
    check_versions(session, follower)


def test_one_row_that_is_changed_very_often_is_one_that_lacks_a_value(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "none"
    follower.stream()
    changes = toast_pending.KEYS_MAX + 1
    session.execute(
        f"DO $$ BEGIN FOR i IN 1..{changes} LOOP UPDATE orders SET n = i WHERE id = 7; END LOOP; END $$"  # type: ignore[call-overload]
    )
    follower.settle()
    assert follower.contents["orders"] == {(7,): rows_in(session, "orders")[(7,)]}
