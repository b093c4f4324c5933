"""Changes of a table that the stream does not tell of, and that the topic follows all the same: what columns and partitions are made of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.sources.base import Evolve
from headwater.sources.postgres.server.publications import Captured
from headwater.sources.postgres.snapshot import snapshot_rows
from headwater.sources.postgres.snapshot.incremental_snapshot import IncrementalSnapshots
from tests.sources.pipelines import Follower, rows_in

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)"
PARTS = (
    "CREATE TABLE parts (id int PRIMARY KEY, n int, note text) PARTITION BY RANGE (id)",
    *(f"CREATE TABLE parts_{i} PARTITION OF parts FOR VALUES FROM ({i}00) TO ({i + 1}00)" for i in range(3)),
    "INSERT INTO parts SELECT i * 20, i FROM generate_series(0, 14) i",
)
COLUMNS = {
    "added with a default": "ALTER TABLE orders ADD more int DEFAULT 5",
    "added with a default, and the table vacuumed": "ALTER TABLE orders ADD more int DEFAULT 5; VACUUM FULL orders",
    "added with a random default": "ALTER TABLE orders ADD more float8 DEFAULT random()",
    "renamed": "ALTER TABLE orders RENAME body TO text",
    "dropped and added again": "ALTER TABLE orders DROP n; ALTER TABLE orders ADD n int",
    "renamed and widened": "ALTER TABLE orders RENAME n TO m; ALTER TABLE orders ALTER m TYPE bigint",
}

UNSEEN = {
    "renamed": "RENAME more TO other",
    "dropped and added": "DROP more; ALTER TABLE orders ADD more int",
    "renamed, and another added": "RENAME more TO other; ALTER TABLE orders ADD more int",
    "its name swapped with another": "RENAME more TO x; ALTER TABLE orders RENAME most TO more; ALTER TABLE orders RENAME x TO most",
}
"""What becomes of columns that were added, and have values in the stream, before anybody has seen them."""


REFUSED = {
    "renamed, and of no replica identity": (
        "RENAME n TO m; ALTER TABLE orders REPLICA IDENTITY NOTHING",
        "follow",
        {"reason": "not-supported"},
    ),
    "of another type": ("ALTER n TYPE text", "follow", {"reason": "not-supported", "column": "n"}),
    "renamed": ("RENAME n TO m", "refuse", {"reason": "schema-changes-refused"}),
}
"""Changes that the topic cannot follow, or may not: with the contract of the topic, and the facts of the error."""


@pytest.fixture
def session(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    monkeypatch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 0.0)
    monkeypatch.setattr("headwater.sources.postgres.capture_session.QUIET_S", 0.02)
    with psycopg.connect(postgres_url, autocommit=True) as session:
        for statement in (ORDERS, *PARTS):
            session.execute(statement)  # type: ignore[call-overload]
        session.execute("INSERT INTO orders SELECT i, i, 'row ' || i FROM generate_series(1, 10) i")
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders, parts", "chunk_rows": 4})
    yield follower
    follower.close()


def becomes_equal(follower: Follower, session: psycopg.Connection[Any], table: str) -> bool:
    """Whether the topic becomes its table, in the columns that the table has; read for a bounded number of rounds."""
    for _ in range(60):
        follower.follow()
        stored = rows_in(session, table)
        names = list(next(iter(stored.values()), {}))
        found = follower.contents[table].items()
        if {key: {name: row.get(name) for name in names} for key, row in found} == stored:
            return True
    return False


@pytest.mark.parametrize("runs", [True, False])
def test_values_that_a_changed_column_has_in_old_rows_are_copied(
    session: psycopg.Connection[Any], follower: Follower, runs: bool
) -> None:
    for change, statements in COLUMNS.items():
        session.execute("DROP TABLE orders")
        session.execute(ORDERS)
        session.execute("INSERT INTO orders SELECT i, i, 'row ' || i FROM generate_series(1, 10) i")
        follower.close()
        follower.restart()
        follower.topics.clear()
        follower.contents.clear()
        follower.records.clear()
        follower.follow()
        if not runs:
            follower.close()
        for statement in statements.split("; "):
            session.execute(statement)  # type: ignore[call-overload]
        session.execute("UPDATE orders SET id = id + 100 WHERE id = 3")
        assert becomes_equal(follower, session, "orders"), change
        assert follower.source is not None
        assert not follower.source.stopped, change


@pytest.mark.parametrize("change", UNSEEN)
def test_values_of_added_columns_are_those_of_the_column_and_not_of_its_name(
    session: psycopg.Connection[Any], follower: Follower, change: str
) -> None:
    follower.follow()
    follower.close()
    session.execute("ALTER TABLE orders ADD more int, ADD most int")
    session.execute("UPDATE orders SET more = 7, most = 8 WHERE id = 3")
    session.execute("INSERT INTO orders VALUES (30, 30, 'new', 5, 6)")
    for statement in f"ALTER TABLE orders {UNSEEN[change]}".split("; "):
        session.execute(statement)  # type: ignore[call-overload]
    assert becomes_equal(follower, session, "orders")
    assert follower.source is not None
    assert not follower.source.stopped


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("change", REFUSED)
def test_a_table_that_its_topic_refuses_stops_though_no_row_of_it_comes(
    session: psycopg.Connection[Any], follower: Follower, change: str, runs: bool
) -> None:
    statements, contract, facts = REFUSED[change]
    follower.follow()
    follower.declare(replace(follower.topics["orders"], schema_changes=contract))
    if not runs:
        follower.close()
    session.execute("UPDATE orders SET n = 30 WHERE id = 3")
    for statement in f"ALTER TABLE orders {statements}".split("; "):
        session.execute(statement)  # type: ignore[call-overload]
    for _ in range(60):
        follower.follow()
    assert follower.source is not None
    assert follower.source.stopped["public.orders"].facts.items() >= facts.items()
    if contract == "refuse":
        assert follower.contents["orders"][3,]["n"] == 30, "the table stops at the change"
    follower.close()
    follower.follow()
    assert list(follower.source.stopped) == ["public.orders"], "after a restart, too"


def test_a_table_that_its_topic_has_refused_for_a_moment_is_copied(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.follow()
    refuse = IncrementalSnapshots.refuse

    def refuse_once(self: IncrementalSnapshots, table: Captured) -> None:
        refuse(self, table)
        session.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")

    monkeypatch.setattr(IncrementalSnapshots, "refuse", refuse_once)
    with session.transaction():
        session.execute("ALTER TABLE orders RENAME n TO m")
        session.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    assert becomes_equal(follower, session, "orders")
    assert follower.source is not None
    assert not follower.source.stopped


def test_a_wider_type_is_followed_though_the_process_dies_when_it_has_widened_the_topic(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    session.execute("ALTER TABLE orders ALTER n TYPE bigint USING n * 10000000000")
    session.execute("UPDATE orders SET body = 'new' WHERE id = 1")
    while not isinstance(follower.step(), Evolve):
        pass
    follower.close()
    assert follower.topics["orders"].schema.field("n").type == pa.int64()
    assert becomes_equal(follower, session, "orders")
    assert follower.source is not None
    assert not follower.source.stopped


@pytest.mark.parametrize("runs", [True, False])
def test_values_of_an_enum_or_a_composite_type_are_those_that_they_are_called_now(
    session: psycopg.Connection[Any], follower: Follower, runs: bool
) -> None:
    for statement in (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN moods AS mood",
        "CREATE TYPE pair AS (x int, y int)",
        "CREATE TABLE people (id mood PRIMARY KEY, was moods, at pair)",
        "INSERT INTO people VALUES ('sad', 'sad', '(1,2)'), ('ok', 'ok', '(3,4)')",
    ):
        session.execute(statement)  # type: ignore[call-overload]
    follower.options["tables"] = "people"
    follower.follow()
    for statement, copies in (
        ("ALTER TYPE mood ADD VALUE 'glad' BEFORE 'sad'", 2),
        ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", 4),
        ("ALTER TYPE pair DROP ATTRIBUTE y", 6),
    ):
        if not runs:
            follower.close()
        session.execute(statement)  # type: ignore[call-overload]
        session.execute("UPDATE people SET was = was WHERE id = 'ok'")
        assert becomes_equal(follower, session, "people"), statement
        follower.settle()
        assert [op for op, _ in follower.ops("people")].count("snapshot") == copies, statement
        assert follower.source is not None
        assert not follower.source.stopped


@pytest.mark.parametrize("published", ["ALL TABLES", "TABLES IN SCHEMA public"])
@pytest.mark.parametrize("columns", ["n int", "n int, note text"])
def test_changes_of_a_table_that_was_unlogged_for_a_while_are_copied(
    session: psycopg.Connection[Any], follower: Follower, published: str, columns: str
) -> None:
    for statement in (
        f"CREATE TABLE plain (id int PRIMARY KEY, {columns})",
        f"CREATE TABLE ranges (id int PRIMARY KEY, {columns}) PARTITION BY RANGE (id)",
        "CREATE TABLE ranges_0 PARTITION OF ranges DEFAULT",
        "INSERT INTO plain VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO ranges VALUES (1, 1), (2, 2), (3, 3)",
        f"CREATE PUBLICATION every FOR {published} WITH (publish_via_partition_root)",
    ):
        session.execute(statement)  # type: ignore[call-overload]
    follower.options |= {"tables": "plain, ranges", "publication": "every"}
    follower.follow()
    follower.close()
    for table, part in (("plain", "plain"), ("ranges", "ranges_0")):
        session.execute(f"ALTER TABLE {part} SET UNLOGGED")  # type: ignore[call-overload]
        session.execute(f"UPDATE {table} SET n = 7 WHERE id = 1")  # type: ignore[call-overload]
        session.execute(f"DELETE FROM {table} WHERE id = 2")  # type: ignore[call-overload]
        session.execute(f"ALTER TABLE {part} SET LOGGED")  # type: ignore[call-overload]
    for table in ("plain", "ranges"):
        assert becomes_equal(follower, session, table)
    session.execute("ALTER TABLE ranges_0 SET UNLOGGED")
    session.execute("UPDATE ranges SET n = 8 WHERE id = 1")
    follower.follow()
    follower.stream()
    assert follower.source is not None
    assert follower.source.stopped["public.ranges"].facts["partition"] == "public.ranges_0"
    session.execute("ALTER TABLE ranges_0 SET LOGGED")
    follower.source.retry("ranges")
    follower.settle(ordered=True)
    assert becomes_equal(follower, session, "ranges")


def test_vacuum_full_behind_an_added_column_is_no_gap(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE TABLE small (id int PRIMARY KEY)")  # without a TOAST table
    session.execute("INSERT INTO small VALUES (1), (2)")
    follower.options["tables"] = "small"
    follower.follow()
    for runs in (True, False):
        session.execute(f"ALTER TABLE small ADD added_{runs} int DEFAULT 5")  # type: ignore[call-overload]
        session.execute("DELETE FROM small WHERE id = 1")
        assert becomes_equal(follower, session, "small")
        if not runs:
            follower.close()
        session.execute("VACUUM FULL small")
        session.execute("INSERT INTO small VALUES (1)")
        assert becomes_equal(follower, session, "small")
        follower.stream()
        assert follower.source is not None
        assert not follower.source.stopped


def test_a_partition_that_is_attached_again_behind_a_look_is_copied(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    for dies in (False, True):
        session.execute("ALTER TABLE parts DETACH PARTITION parts_1")
        assert becomes_equal(follower, session, "parts")
        if dies:
            follower.close()
        session.execute("DELETE FROM parts_1 WHERE id = 120")
        session.execute(
            "INSERT INTO parts_1 VALUES (121, 0) ON CONFLICT (id) DO UPDATE SET n = parts_1.n + 1"
        )
        session.execute("ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (100) TO (200)")
        assert becomes_equal(follower, session, "parts")
        assert follower.source is not None
        assert not follower.source.stopped


def test_a_partition_that_is_emptied_while_rows_of_another_are_looked_for_is_noticed(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.follow()
    write_mark, emptied = snapshot_rows.write_mark, []

    def late(*arguments: Any) -> None:
        if not emptied:
            emptied.append(session.execute("TRUNCATE parts_0"))
            time.sleep(0.5)  # that is noticed before the mark comes
        write_mark(*arguments)

    monkeypatch.setattr(snapshot_rows, "write_mark", late)
    session.execute("TRUNCATE parts_1")
    while not emptied or follower.is_copying:
        follower.step()
    assert becomes_equal(follower, session, "parts")
    assert min(follower.contents["parts"]) == (200,)


@pytest.mark.parametrize("runs", [True, False])
def test_rows_of_partitions_that_are_gone_or_emptied_are_deleted(
    session: psycopg.Connection[Any], follower: Follower, runs: bool
) -> None:
    follower.follow()
    changes = (
        "INSERT INTO parts VALUES (105, 0); ALTER TABLE parts DETACH PARTITION parts_1",
        "INSERT INTO parts VALUES (7, 0); DROP TABLE parts_0",
        "INSERT INTO parts VALUES (207, 0); TRUNCATE parts_2; INSERT INTO parts VALUES (208, 0)",
    )
    for change in changes:
        if not runs:
            follower.close()
        for statement in change.split("; "):
            session.execute(statement)  # type: ignore[call-overload]
        assert becomes_equal(follower, session, "parts"), change
    assert [key for (key,) in follower.contents["parts"]] == [208]
    assert [op for op, _ in follower.ops("parts")].count("snapshot") == 15  # nothing was copied again


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize(
    "end",
    [
        "DROP TABLE parts_3",
        "ALTER TABLE parts DETACH PARTITION parts_3",
        "TRUNCATE parts_3",
        "ALTER TABLE parts DETACH PARTITION parts_3; DELETE FROM parts_3 WHERE id = 301; "
        "ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (300) TO (400)",
    ],
)
def test_rows_of_partitions_that_came_and_were_gone_or_emptied_before_a_look_are_deleted(
    session: psycopg.Connection[Any],
    follower: Follower,
    monkeypatch: pytest.MonkeyPatch,
    runs: bool,
    end: str,
) -> None:
    follower.follow()
    if runs:
        monkeypatch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 1.0)
    else:
        follower.close()
    for statement in (
        "CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (300) TO (400)",
        "INSERT INTO parts VALUES (301, 1), (302, 2)",
        "UPDATE parts SET n = 7 WHERE id = 302",
        *end.split("; "),
        "INSERT INTO parts VALUES (101, 3)",
    ):
        session.execute(statement)  # type: ignore[call-overload]
    if runs:
        follower.stream()
    assert becomes_equal(follower, session, "parts")
    assert follower.source is not None
    assert not follower.source.stopped


def test_a_new_partition_is_copied_though_the_connection_breaks_at_once(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwater.core.errors import SourceUnreachableError
    from headwater.sources.postgres.capture_session import CaptureSession

    follower.follow()
    follower.close()
    session.execute("CREATE TABLE parts_3 (id int PRIMARY KEY, n int, note text)")
    session.execute("INSERT INTO parts_3 SELECT 300 + i, i FROM generate_series(1, 5) i")
    session.execute("ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (300) TO (400)")
    start, breaks = CaptureSession._start, [True]

    def broken(self: CaptureSession) -> Any:
        if breaks:
            breaks.pop()
            raise SourceUnreachableError("the connection is broken")
        return start(self)

    monkeypatch.setattr(CaptureSession, "_start", broken)
    assert becomes_equal(follower, session, "parts")
    assert not breaks
