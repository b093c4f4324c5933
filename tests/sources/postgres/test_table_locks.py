"""Locks of other transactions, which Postgres may hold for as long as somebody likes: a source waits for them visibly, and for no longer than they last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.sources.base import Quiet
from tests.sources.pipelines import Follower, rows_in


@pytest.fixture
def session(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    monkeypatch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 0.0)
    monkeypatch.setattr("headwater.sources.postgres.capture_session.QUIET_S", 0.02)
    monkeypatch.setattr("headwater.sources.postgres.postgres_source.QUIET_S", 0.02)
    monkeypatch.setattr("headwater.sources.postgres.postgres_source.BACKOFF_S", (0.05,))
    monkeypatch.setattr("headwater.sources.postgres.server.connection.LOCK_WAIT_MS", 50)
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)")
        session.execute("CREATE TABLE customers (id int PRIMARY KEY, n int)")
        session.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 5) i")
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders, customers"})
    yield follower
    follower.close()


def until_state(follower: Follower, text: str) -> None:
    """Read until the state says so."""
    assert follower.source is not None
    for _ in range(2_000):
        if text in follower.source.status.state:
            return
        assert isinstance(follower.step(), Quiet)
    pytest.fail(f"the state is {follower.source.status.state!r}")


def test_the_stream_goes_on_while_another_transaction_has_a_table_to_itself(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    with session.transaction():
        session.execute("TRUNCATE orders")
        session.execute("PREPARE TRANSACTION 'locking'")
    session.execute("INSERT INTO customers VALUES (1, 1)")
    follower.follow()
    assert follower.contents["customers"] == rows_in(session, "customers")
    until_state(follower, "not comparing tables, because another transaction holds a lock")
    session.execute("COMMIT PREPARED 'locking'")
    follower.follow()
    assert follower.contents["orders"] == {}
    follower.stream()
    assert follower.source is not None
    assert follower.source.status.state == "streaming"


def test_a_source_that_begins_waits_for_a_lock_and_says_so(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    follower.close()
    with session.transaction():
        session.execute("TRUNCATE orders")
        session.execute("PREPARE TRANSACTION 'locking'")
    follower.open()
    until_state(follower, "waits for a lock that another transaction")
    session.execute("ROLLBACK PREPARED 'locking'")
    session.execute("INSERT INTO orders VALUES (6, 6)")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_slot_that_a_killed_process_had_begun_to_create_is_waited_for(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.sources.postgres.postgres_source.IN_USE_S", 0.0)
    with session.transaction():
        session.execute("INSERT INTO orders VALUES (7, 7)")
        session.execute("PREPARE TRANSACTION 'under way'")
    follower.open()
    until_state(follower, "waiting for running transactions to end")
    while not session.execute(
        "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone():
        assert isinstance(follower.step(), Quiet)  # the server has not begun with CREATE_REPLICATION_SLOT
    follower.close()  # the server goes on with it
    follower.open()
    until_state(follower, "is being created by process")
    session.execute("COMMIT PREPARED 'under way'")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")
