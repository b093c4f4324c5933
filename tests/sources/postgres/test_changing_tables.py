"""Tables that change under a snapshot: emptied, rewritten, dropped, divided anew. In the end the topic is the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.catalog.definitions import define_topic
from headwater.sources.base import Evolve
from headwater.sources.postgres.first_copy import FirstCopy
from headwater.sources.postgres.snapshot.snapshot_rows import Chunks
from tests.sources.pipelines import Follower, drop_slot, rows_in

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)"
FILLED = "INSERT INTO orders SELECT i, i, 'row ' || i FROM generate_series(1, 40) i"

CHANGES = {
    "emptied": "TRUNCATE orders",
    "emptied and filled": "BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (1, 7, 'new'), (99, 9, 'new'); COMMIT",
    "rewritten": "ALTER TABLE orders ALTER n TYPE bigint",
    "given a column": "ALTER TABLE orders ADD more int DEFAULT 5; UPDATE orders SET n = 0 WHERE id = 3",
    "given a random column": "ALTER TABLE orders ADD more float8 DEFAULT random()",
    "without a column": "ALTER TABLE orders DROP body",
    "made anew": f"DROP TABLE orders; {ORDERS}; INSERT INTO orders VALUES (5, 5, 'new')",
    "vacuumed": "VACUUM FULL orders",
}


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute(ORDERS)
        session.execute(FILLED)
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders", "chunk_rows": 15})
    yield follower
    follower.close()


def run(session: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";"):
        session.execute(statement)  # type: ignore[call-overload]


def same(follower: Follower, session: psycopg.Connection[Any], table: str = "orders") -> bool:
    """Whether a topic has what its table has, in the columns that the table has now."""
    stored = rows_in(session, table)
    names = list(next(iter(stored.values()), {}))
    found = {
        key: {name: row[name] for name in names if name in row}
        for key, row in follower.contents[table].items()
    }
    return found == stored


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_may_change_between_the_slot_and_the_first_snapshot(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    once = [CHANGES[change]]
    copy_all = FirstCopy.copy_all

    def changed(self: FirstCopy, *arguments: Any) -> Iterator[Any]:
        if once:
            run(session, once.pop())
        yield from copy_all(self, *arguments)

    monkeypatch.setattr(FirstCopy, "copy_all", changed)
    follower.follow()
    follower.follow()
    assert same(follower, session)
    session.execute("UPDATE orders SET n = n + 1")
    follower.follow()
    assert same(follower, session)


def test_the_first_snapshot_holds_up_nobody_who_reads_or_writes_and_whoever_empties_or_rewrites(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    while not isinstance(follower.step(), Evolve):
        pass
    session.execute("SET lock_timeout = '50ms'")
    for statement in ("TRUNCATE orders", "ALTER TABLE orders ALTER n TYPE bigint", "DROP TABLE orders"):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.execute(statement)
    session.execute("UPDATE orders SET n = 0 WHERE id = 1")
    assert session.execute("SELECT n FROM orders WHERE id = 1").fetchone() == (0,)
    follower.follow()
    session.execute("TRUNCATE orders")
    follower.follow()
    assert follower.contents["orders"] == {}
    assert [op for op, _ in follower.ops("orders")].count("snapshot") == 40


def test_the_first_snapshot_waits_for_whoever_has_a_table_to_himself(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.sources.postgres.snapshot.table_locks.LOCK_WAIT_MS", 20)
    copy_all, waits = FirstCopy.copy_all, []

    def held(self: FirstCopy, *arguments: Any) -> Iterator[Any]:
        if waits:
            yield from copy_all(self, *arguments)
            return
        with psycopg.connect(follower.url) as other:
            other.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
            events = copy_all(self, *arguments)
            waits.extend(next(events) for _ in range(5))
            other.execute("TRUNCATE orders")
        yield from events

    monkeypatch.setattr(FirstCopy, "copy_all", held)
    while not follower.commits:
        follower.step()
    follower.follow()
    assert len(waits) == 5
    assert follower.contents["orders"] == {}


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "made anew"])
def test_a_table_may_change_while_a_chunk_is_selected(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    follower.options["snapshot"] = "incremental"
    select, number = Chunks._select, [0]

    def changed(self: Chunks, *arguments: Any) -> Any:
        number[0] += 1
        if number[0] == 2:
            run(session, CHANGES[change])
        return select(self, *arguments)

    monkeypatch.setattr(Chunks, "_select", changed)
    follower.settle()
    if change == "without a column":
        session.execute("INSERT INTO orders VALUES (41, 41)")
    if (
        "column" in change
    ):  # what a column is when it is added is not in the stream; rows copied before have NULL
        session.execute("UPDATE orders SET n = n + 1")
    follower.follow()
    assert same(follower, session)


def test_rows_of_tables_that_inherit_are_not_those_of_the_table(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE TABLE special (extra int) INHERITS (orders)")
    session.execute("INSERT INTO special VALUES (100, 1, 'x', 1)")
    follower.follow()
    session.execute("INSERT INTO special VALUES (101, 1, 'x', 1)")
    follower.follow()
    assert len(follower.contents["orders"]) == 40
    follower.close()
    follower.options["snapshot"] = "incremental"
    assert follower.source is None
    follower.open().snapshot("orders")
    follower.settle(ordered=True)
    assert len(follower.contents["orders"]) == 40


# --- more than there was ---------------------------------------------------------------------------------------------


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 0.05)


@pytest.mark.usefixtures("looks_often")
def test_a_table_that_is_made_in_a_captured_schema_is_taken_in_while_running(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["tables"] = "public.*"
    follower.follow()
    source = follower.source
    other_topic = define_topic("taken", pa.schema([("id", pa.int64())]))
    follower.declare(other_topic)
    session.execute("CREATE TABLE taken (id bigint PRIMARY KEY)")
    session.execute("INSERT INTO taken VALUES (1)")
    with psycopg.connect(follower.url) as other:  # writes before the table is published, and commits later
        session.execute("CREATE TABLE lines (id int PRIMARY KEY, n int)")
        session.execute("INSERT INTO lines SELECT i, i FROM generate_series(1, 40) i")
        session.execute("CREATE TABLE notes (said text)")
        session.execute("INSERT INTO notes VALUES ('first')")
        session.execute('CREATE TABLE "no topic" (id int PRIMARY KEY)')
        other.execute("INSERT INTO lines VALUES (41, 41)")
        other.execute("INSERT INTO notes VALUES ('second')")
        while "notes" not in follower.topics:
            follower.step()
        for _ in range(10):
            follower.step()
        other.commit()
    session.execute("UPDATE lines SET n = 0 WHERE id = 1")
    session.execute("INSERT INTO notes VALUES ('third')")
    follower.settle()
    assert follower.source is source
    assert follower.contents["lines"] == rows_in(session, "lines")
    assert sorted(row["said"] for row in follower.records["notes"]) == ["first", "second", "third"]
    assert source is not None
    assert sorted(source.stopped) == ["public.no topic", "public.taken"]
    assert follower.topics["taken"] == other_topic
    assert follower.records["taken"] == []
    assert "AS no_topic" in str(source.stopped["public.no topic"].hint)
    session.execute("UPDATE orders SET n = 0 WHERE id = 1")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")


@pytest.mark.usefixtures("looks_often")
def test_partitions_that_come_with_rows_are_copied(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    session.execute("CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (100)")
    session.execute("INSERT INTO parts SELECT i, i FROM generate_series(1, 20) i")
    follower.options["tables"] = "parts"
    follower.follow()
    for number, running in ((1, True), (2, False)):
        if not running:
            follower.close()
        session.execute(f"CREATE TABLE parts_{number} (n int, id int PRIMARY KEY)")
        session.execute(f"INSERT INTO parts_{number} SELECT i, i + {number}00 FROM generate_series(1, 20) i")
        bounds = f"FROM ({number}00) TO ({number + 1}00)"
        session.execute(f"ALTER TABLE parts ATTACH PARTITION parts_{number} FOR VALUES {bounds}")  # type: ignore[call-overload]
        session.execute(f"INSERT INTO parts VALUES ({number}50, 0)")
        session.execute(f"UPDATE parts SET n = -1 WHERE id = {number}01")
        while len(follower.contents["parts"]) < 20 + 21 * number:
            follower.step()
    follower.settle()
    assert follower.contents["parts"] == rows_in(session, "parts")
    assert len([1 for op, _ in follower.ops("parts") if op == "snapshot"]) <= 20 + 2 * 21


@pytest.mark.usefixtures("looks_often")
def test_a_table_that_is_made_anew_is_taken_up_on_request(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    run(session, CHANGES["made anew"])
    assert follower.source is not None
    while not follower.source.stopped:
        follower.step()
    follower.stream()
    follower.source.retry("orders")
    follower.settle(ordered=True)
    session.execute("INSERT INTO orders VALUES (6, 6, 'newer')")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")


@pytest.mark.parametrize("snapshot", ["initial", "incremental"])
def test_what_a_table_without_a_key_lacks_after_its_slot_was_lost_is_told(
    session: psycopg.Connection[Any], follower: Follower, snapshot: str
) -> None:
    session.execute("CREATE TABLE notes (said text)")
    session.execute("INSERT INTO notes VALUES ('first')")
    follower.options |= {"tables": "orders, notes", "snapshot": snapshot}
    follower.settle()
    follower.close()
    drop_slot(session)
    session.execute("INSERT INTO notes VALUES ('lost')")
    session.execute("DELETE FROM orders WHERE id = 1")
    follower.position, follower.sequence = None, -1  # as after ALTER SOURCE ... RESTART
    follower.settle()
    session.execute("INSERT INTO notes VALUES ('third')")
    follower.follow()
    assert follower.contents["orders"] == rows_in(session, "orders")
    assert [row["said"] for row in follower.records["notes"]] == ["first", "third"]
    follower.close()
    follower.stream()
    assert follower.source is not None
    said = follower.source.status.missing["public.notes"]
    assert "DROP TOPIC notes and ALTER SOURCE shop RESTART" in said
    assert said in follower.source.status.state
    follower.source.retry("notes")
    while (follower.position or {}).get("missing"):
        follower.step()
    assert not follower.source.status.missing
