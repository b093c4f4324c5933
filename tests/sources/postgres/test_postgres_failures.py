"""What can happen to a Postgres source: each ends in recovery, or in an error that says what to do."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.core.errors import (
    DiskFullError,
    PublicationError,
    SlotError,
    SourceRefusedError,
    SourceUnreachableError,
    WalBudgetError,
)
from headwater.sources.base import Quiet
from headwater.sources.postgres import capture_session as sessions
from headwater.sources.postgres import postgres_source as sources
from headwater.sources.postgres.server import slot_monitor
from headwater.sources.postgres.server.connection import Connection, hidden, lsn_of
from headwater.sources.postgres.stream.receiver import Receiver
from tests.postgres import PostgresServer
from tests.raising import raises
from tests.sources.pipelines import Follower, drop_slot, rows_in

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)"


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute(ORDERS)
        session.execute("INSERT INTO orders VALUES (1, 1, 'a')")
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders"})
    yield follower
    follower.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restarted_server_is_waited_for(
    postgres_server: PostgresServer, session: psycopg.Connection[Any], follower: Follower, how: signal.Signals
) -> None:
    follower.follow()
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    session.close()
    postgres_server.stop(how)
    for _ in range(4):
        follower.step()
    assert follower.source is not None
    assert follower.source.status.state.startswith("waiting to connect again")
    postgres_server.start()
    with psycopg.connect(follower.url, autocommit=True) as again:
        again.execute("INSERT INTO orders VALUES (3, 3, 'c')")
        follower.follow()
        assert follower.contents["orders"] == rows_in(again, "orders")
    assert [key for _, key in follower.ops("orders")] == [1, 2, 3]


def test_a_connection_that_is_cut_is_made_again(session: psycopg.Connection[Any], follower: Follower) -> None:
    follower.follow()
    for n in range(2, 6):
        session.execute("INSERT INTO orders VALUES (%s, 0, '')", [n])
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headwater shop'"
        )
        follower.follow()
    assert [key for _, key in follower.ops("orders")] == [1, 2, 3, 4, 5]


def test_a_cut_during_the_first_snapshot_leaves_nothing_behind(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.sources.postgres.server.connection.BLOCK_BYTES", 10_000)
    session.execute("INSERT INTO orders SELECT i, i, repeat('x', 1000) FROM generate_series(2, 5000) i")
    follower.open()
    while not follower.pending:
        follower.step()
    session.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headwater shop'"
    )
    with pytest.raises(SourceUnreachableError):
        follower.forever()
    follower.close()
    session.execute("DELETE FROM orders WHERE id = 1")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert len(follower.records["orders"]) == 4_999


def test_a_source_that_is_stopped_during_its_first_snapshot_leaves_no_slot(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.open()
    while not follower.pending:
        follower.step()
    assert session.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone() == (1,)
    follower.close()
    assert session.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone() == (0,)


def test_a_wrong_password_is_an_error_that_does_not_tell_it(
    postgres_server: PostgresServer, follower: Follower
) -> None:
    follower.url = postgres_server.tcp_url(password="not-the-one")
    with raises(SourceRefusedError, source="shop") as caught:
        follower.step()
    assert "password authentication failed" in str(caught.value.detail)
    assert "not-the-one" not in str(caught.value)
    assert caught.value.hint is not None


def test_a_server_that_is_not_there_is_waited_for(follower: Follower) -> None:
    follower.url = "postgresql://me:secret@127.0.0.1:1/nothing"
    for _ in range(3):
        assert isinstance(follower.step(), Quiet)
    assert follower.source is not None
    assert "cannot reach nothing on 127.0.0.1:1" in follower.source.status.state
    with pytest.raises(SourceUnreachableError) as caught:
        follower.source.end()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:top%20secret@host/db", "postgresql://me:***@host/db"),
        ("host=h password='top secret' user=me", "host=h password=*** user=me"),
        ("host=h PASSWORD = topsecret", "host=h PASSWORD = ***"),
    ],
)
def test_what_is_secret_is_hidden(text: str, shown: str) -> None:
    assert hidden(text) == shown


def test_a_url_that_cannot_be_read_is_refused_without_telling_its_password(follower: Follower) -> None:
    follower.url = "postgresql://me:secret@host/x?nonsense=1"
    with raises(SourceRefusedError, source="shop", option="url") as caught:
        follower.step()
    assert "secret" not in str(caught.value)


def test_a_dropped_slot_is_an_error_and_a_restart_begins_anew(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    follower.follow()
    follower.close()
    drop_slot(session)
    session.execute("DELETE FROM orders WHERE id = 1")
    session.execute("INSERT INTO orders VALUES (3, 3, 'c')")
    with raises(SlotError, source="shop", slot="headwater_shop", reason="gone") as caught:
        follower.step()
    assert "ALTER SOURCE shop RESTART" in str(caught.value.hint)
    follower.close()
    follower.position = None
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_slot_that_is_dropped_while_it_is_read_from_is_an_error(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.stream()
    drop_slot(session)
    with raises(SlotError, reason="gone"):
        follower.forever()


def test_an_invalidated_slot_is_an_error(
    postgres_server: PostgresServer, session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    follower.close()
    session.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    session.execute("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            session.execute(
                "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)), pg_switch_wal()"
            )
            session.execute("CHECKPOINT")
        with raises(SlotError, slot="headwater_shop", reason="lost") as caught:
            follower.step()
        assert "pg_drop_replication_slot('headwater_shop')" in str(caught.value.hint)
    finally:
        session.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        session.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("on_gap", ["stop", "snapshot"])
def test_a_transaction_that_postgres_never_decodes_is_a_gap(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch, on_gap: str
) -> None:
    follower.options["on_gap"] = on_gap
    follower.follow()
    # Which transactions these are differs from release to release of Postgres, so its answer stands in for one.
    take, failures = Receiver.take, [1, 2]

    def fail(self: Receiver, at_most: int, wait_s: float) -> Any:
        if failures:
            failures.pop()
            raise SourceRefusedError("unexpected duplicate for tablespace 0", sqlstate="XX000")
        return take(self, at_most, wait_s)

    monkeypatch.setattr(Receiver, "take", fail)
    session.execute("INSERT INTO orders VALUES (77, 7, 'new')")
    if on_gap == "stop":
        with raises(SlotError, source="shop", reason="undecodable") as caught:
            follower.follow()
        assert "ALTER SOURCE shop RESTART" in str(caught.value.hint)
        follower.restart()
    follower.follow()
    assert not failures
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_slot_that_another_reads_from_is_an_error_that_names_it(
    session: psycopg.Connection[Any], follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "IN_USE_S", 0.0)
    follower.stream()
    other = Follower(follower.url, tmp_path, follower.options)
    other.position, other.sequence, other.topics = follower.position, follower.sequence, follower.topics
    (pid,) = (
        session.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
        or ()
    )
    with raises(SlotError, reason="in use", pid=pid):
        other.step()
    other.close()


def test_another_server_is_not_taken_for_the_one_before(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    follower.close()
    assert follower.position is not None
    follower.position = {**follower.position, "system": "1"}
    with raises(SlotError, reason="other server"):
        follower.step()


def test_a_dropped_publication_is_an_error(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "EVERY_S", 0.0)
    follower.follow()
    session.execute("DROP PUBLICATION headwater_shop")
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    with pytest.raises((PublicationError, SourceRefusedError)) as caught:
        follower.follow()
    assert "publication" in caught.value.message


def test_a_table_that_leaves_the_publication_stops_alone(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "EVERY_S", 0.0)
    session.execute("CREATE TABLE lines (id int PRIMARY KEY, n int)")
    follower.options["tables"] = "orders, lines"
    follower.follow()
    assert follower.source is not None
    session.execute("ALTER PUBLICATION headwater_shop DROP TABLE orders")
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    session.execute("INSERT INTO lines VALUES (1, 1)")
    follower.follow()
    follower.stream()
    assert follower.ops("lines") == [("insert", 1)]
    error = follower.source.stopped["public.orders"]
    assert 'ADD TABLE "public"."orders"' in str(error.hint)
    session.execute("ALTER PUBLICATION headwater_shop ADD TABLE orders")
    follower.source.retry("orders")
    follower.settle(ordered=True)
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_table_that_is_dropped_stops_alone(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "EVERY_S", 0.0)
    session.execute("CREATE TABLE lines (id int PRIMARY KEY, n int)")
    follower.options["tables"] = "orders, lines"
    follower.stream()
    session.execute("DROP TABLE orders")
    session.execute("INSERT INTO lines VALUES (1, 1)")
    follower.follow()
    follower.stream()
    assert follower.source is not None
    assert list(follower.source.stopped) == ["public.orders"]
    follower.close()
    session.execute("INSERT INTO lines VALUES (2, 2)")
    follower.follow()
    assert list(follower.source.stopped) == ["public.orders"]
    assert follower.ops("lines") == [("insert", 1), ("insert", 2)]


def test_a_full_disk_is_an_error_that_says_so(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    follower.stream()
    session.execute("INSERT INTO orders SELECT i, i, repeat('x', 500) FROM generate_series(2, 20000) i")
    with monkeypatch.context() as patched:
        patched.setattr("headwater.sources.postgres.stream.spill.MEMORY_BYTES_MAX", 100_000)
        patched.setattr("headwater.sources.postgres.stream.transactions.MEMORY_BYTES_MAX", 100_000)
        patched.setattr("headwater.sources.postgres.stream.spill.tempfile.TemporaryFile", full)
        with raises(DiskFullError):
            follower.forever()
    follower.close()
    follower.follow()
    assert len(follower.contents["orders"]) == 20_000


def test_a_publication_that_lacks_something_is_adopted_or_refused(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE PUBLICATION mine WITH (publish = 'insert')")
    follower.options["publication"] = "mine"
    with raises(PublicationError, operations=("update", "delete", "truncate")) as caught:
        follower.step()
    session.execute(str(caught.value.hint))  # type: ignore[call-overload]
    follower.close()
    follower.follow()  # the table was added
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_slot_that_is_there_is_adopted(session: psycopg.Connection[Any], follower: Follower) -> None:
    session.execute("CREATE PUBLICATION mine FOR TABLE orders")
    session.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    follower.options |= {"slot": "mine", "publication": "mine"}
    follower.settle()
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_slot_that_standbys_keep_is_made_on_request_and_known_as_such(
    postgres_server: PostgresServer,
    session: psycopg.Connection[Any],
    follower: Follower,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "EVERY_S", 0.0)
    follower.options["failover"] = "true"
    follower.stream()
    assert follower.source is not None
    health = follower.source.status.health
    assert health is not None
    assert health.failover == (postgres_server.version >= 17)


def test_what_was_made_on_the_server_is_removed_with_the_source(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.stream()
    assert follower.source is not None
    follower.source.drop()
    left = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()), (SELECT count(*) FROM pg_publication)"
    assert session.execute(left).fetchone() == (0, 0)


def test_the_slot_is_confirmed_as_far_as_the_log_has_it_and_no_further(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    session.execute("INSERT INTO orders VALUES (2, 2, 'b')")
    assert follower.source is not None
    follower.source.durable = lambda sequence, position: None  # type: ignore[method-assign]
    follower.follow()
    follower.close()
    follower.position, follower.sequence = None, -1

    (confirmed,) = (
        session.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
        or ()
    )
    inserted = next(row["_source_position"] for row in follower.records["orders"] if row["id"] == 2)
    assert lsn_of(confirmed) < inserted


def test_an_idle_database_does_not_hold_back_the_log_of_others(
    postgres_server: PostgresServer, session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()

    def confirmed() -> int:
        query = (
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
        )
        (found,) = session.execute(query).fetchone() or ()
        return lsn_of(found)

    with psycopg.connect(postgres_server.url(), autocommit=True) as elsewhere:
        elsewhere.execute("CREATE TABLE IF NOT EXISTS busy (x text)")
        elsewhere.execute("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
        (text,) = elsewhere.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ()
        elsewhere.execute("DROP TABLE busy")
    for _ in range(100):
        if confirmed() >= lsn_of(text):
            break
        follower.step()
    assert confirmed() >= lsn_of(text)


@pytest.mark.parametrize("choice", ["warn", "stop", "drop_slot"])
def test_a_slot_that_costs_too_much_is_told_of_or_ends(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    monkeypatch.setattr(sessions, "EVERY_S", 0.0)
    follower.options |= {"max_wal": "1 KB", "over_wal": choice}
    follower.open()
    with psycopg.connect(follower.url, autocommit=True) as other:
        if choice == "warn":
            follower.follow()
            other.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))")
            follower.follow()
            assert follower.source is not None
            health = follower.source.status.health
            assert health is not None
            assert health.over_budget
            assert health.retained_bytes > 1024
            return
        follower.stream()
        other.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))")
        with raises(WalBudgetError, slot="headwater_shop") as caught:
            follower.forever()
        slots = other.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
        assert slots == (0 if choice == "drop_slot" else 1,)
        assert caught.value.dropped == (choice == "drop_slot")


def test_the_server_hears_from_a_reader_that_is_busy(
    postgres_server: PostgresServer, session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("ALTER ROLE postgres SET wal_sender_timeout = '1s'")
    try:
        follower.stream()
        (pid,) = (
            session.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
            ).fetchone()
            or ()
        )
        session.execute("INSERT INTO orders SELECT i, i, repeat('x', 2000) FROM generate_series(2, 5000) i")
        session.execute("SELECT pg_sleep(2.2)")  # nobody reads meanwhile
        follower.follow()
        again = session.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
        assert again == (pid,)
    finally:
        session.execute("ALTER ROLE postgres RESET wal_sender_timeout")


def test_settings_of_sessions_are_ours(postgres_url: str) -> None:
    connection = Connection(postgres_url + "&options=-c%20datestyle%3Dgerman", "shop")
    try:
        assert connection.value("SHOW datestyle") == "ISO, YMD"
        assert connection.value("SHOW timezone") == "UTC"
        assert slot_monitor.EVERY_S > 0
    finally:
        connection.close()
