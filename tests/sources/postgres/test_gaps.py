"""Tables and slots that are not what the position was read from: each stops with what happened, or is snapshotted anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.core.errors import SlotError, SourceUnreachableError
from headwater.sources.base import Commit, Evolve
from headwater.sources.postgres.snapshot.wanted_snapshots import WantedSnapshots
from tests.raising import raises
from tests.sources.pipelines import Follower, drop_slot, rows_in

LARGE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)"
"""A value that is stored apart, and not sent with changes of other columns."""

BREAKS = {
    "created_again": """
        DROP TABLE created_again;
        CREATE TABLE created_again (id int PRIMARY KEY, n int);
        INSERT INTO created_again VALUES (1, 10), (7, 70)""",
    "swapped": """
        ALTER TABLE swapped RENAME TO swapped_old;
        ALTER TABLE other RENAME TO swapped;
        ALTER TABLE swapped_old RENAME TO other;
        INSERT INTO swapped VALUES (8, 80)""",
    "parts": """
        ALTER TABLE parts DETACH PARTITION parts_0;
        DELETE FROM parts_0 WHERE id = 1;
        UPDATE parts_0 SET n = 20 WHERE id = 2;
        INSERT INTO parts_0 VALUES (3, 3) ON CONFLICT DO NOTHING;
        ALTER TABLE parts ATTACH PARTITION parts_0 FOR VALUES FROM (0) TO (100)""",
    "rewritten": """
        ALTER TABLE rewritten ALTER body TYPE text USING 'new ' || body, ALTER n TYPE int USING n * 10;
        UPDATE rewritten SET m = 5 WHERE id = 1""",
}
UNPUBLISHED = """
    ALTER PUBLICATION headwater_shop DROP TABLE unpublished;
    DELETE FROM unpublished WHERE id = 1;
    INSERT INTO unpublished VALUES (9, 9) ON CONFLICT DO NOTHING;
    ALTER PUBLICATION headwater_shop ADD TABLE unpublished"""
HARMLESS = """
    VACUUM FULL plain;
    ALTER TABLE plain ALTER n SET DEFAULT 3;
    ALTER TABLE plain ADD CONSTRAINT above CHECK (id > 0);
    ANALYZE plain;
    UPDATE plain SET n = n + 1"""


def run(session: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";"):
        session.execute(statement)  # type: ignore[call-overload]


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        run(session, "CREATE TABLE plain (id int PRIMARY KEY, n int, note text)")
        run(session, "INSERT INTO plain VALUES (1, 1, 'a'), (2, 2, 'b')")
        for table in ("created_again", "swapped", "unpublished"):
            run(session, f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
            run(session, f"INSERT INTO {table} VALUES (1, 1), (2, 2)")
        run(session, "CREATE TABLE other (id int PRIMARY KEY, n int); INSERT INTO other VALUES (5, 5)")
        run(session, "CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
        run(session, "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (100)")
        run(session, "INSERT INTO parts VALUES (1, 1), (2, 2)")
        run(session, "CREATE TABLE rewritten (id int PRIMARY KEY, n int, m int, body text)")
        run(session, f"INSERT INTO rewritten SELECT i, i, i, {LARGE} FROM generate_series(1, 3) i")
        yield session


TABLES = [*BREAKS, "unpublished", "plain"]


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": ", ".join(TABLES), "chunk_rows": 2})
    yield follower
    follower.close()


def equal(follower: Follower, session: psycopg.Connection[Any], *tables: str) -> list[str]:
    """The tables that are not what their topics are, in the columns that rows have had from the beginning."""
    differing = []
    for table in tables:
        stored = rows_in(session, table)
        names = {name for row in stored.values() for name in row} - {"more"}
        mine = {key: {n: row[n] for n in names} for key, row in follower.contents[table].items()}
        if mine != {key: {n: row[n] for n in names} for key, row in stored.items()}:
            differing.append(table)
    return differing


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 0.05)


def follow_looks(follower: Follower) -> None:
    """Up to the end, after everything was looked at, and copied again if it is to be."""
    follower.follow()
    for _ in range(8):  # each waits at most for a moment: looks are due by then
        follower.step()
    follower.settle()


@pytest.mark.parametrize("all_tables", [False, True])
@pytest.mark.usefixtures("looks_often")
def test_tables_that_are_not_what_they_were_stop_or_are_copied_again(
    session: psycopg.Connection[Any], follower: Follower, all_tables: bool
) -> None:
    broken = dict(BREAKS)
    if all_tables:
        session.execute("CREATE PUBLICATION headwater_shop FOR ALL TABLES WITH (publish_via_partition_root)")
    else:
        broken["unpublished"] = UNPUBLISHED
    follower.options["publication"] = "headwater_shop"
    follower.follow()
    follower.close()
    for statements in (*broken.values(), HARMLESS):
        run(session, statements)
    session.execute("UPDATE plain SET n = 33 WHERE id = 1")
    follower.follow()
    assert follower.source is not None
    assert set(follower.source.stopped) == {f"public.{table}" for table in broken}, "while nothing ran"
    assert not equal(follower, session, "plain")
    for table in broken:
        error = follower.source.stopped[f"public.{table}"]
        assert (error.facts["source"], error.facts["table"]) == ("shop", f"public.{table}")
        assert f"ALTER SOURCE shop RESTART public.{table} takes a new snapshot" in str(error.hint)
    reasons = {table: follower.source.stopped[f"public.{table}"].facts["gap"] for table in broken}
    assert "dropped and created again" in reasons["created_again"]
    assert "another table has its name" in reasons["swapped"]
    assert "partition public.parts_0" in reasons["parts"]
    assert "ALTER TABLE" in reasons["rewritten"]
    follower.close()
    follower.follow()  # as after a restart: they stay stopped
    assert {table: follower.source.stopped[f"public.{table}"].facts["gap"] for table in broken} == reasons
    follower.source.retry("created_again")
    follower.settle(ordered=True)
    assert not equal(follower, session, "created_again", "plain")
    assert "public.created_again" not in follower.source.stopped

    follower.close()
    follower.options["on_gap"] = "snapshot"
    follower.settle()
    assert not follower.source.stopped
    assert not equal(follower, session, *TABLES)
    copies = sum(op == "snapshot" for op, _ in follower.ops("plain"))
    assert copies == 2, "what is as it was is copied once"

    for table, statements in broken.items():  # and now while it is being read
        run(session, statements.replace("'new '", "'newer '"))
        session.execute(f"UPDATE {table} SET n = n + 100")
    run(session, "VACUUM FULL plain; UPDATE plain SET n = 12 WHERE id = 2")
    follow_looks(follower)
    assert not follower.source.stopped
    assert not equal(follower, session, *TABLES)
    assert sum(op == "snapshot" for op, _ in follower.ops("plain")) == copies
    for table in TABLES:
        session.execute(f"UPDATE {table} SET n = n + 1")
    follower.follow()
    assert not equal(follower, session, *TABLES)


@pytest.mark.usefixtures("looks_often")
def test_a_table_that_is_another_one_while_it_is_read_stops(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE PUBLICATION headwater_shop FOR ALL TABLES WITH (publish_via_partition_root)")
    follower.options["publication"] = "headwater_shop"
    follower.follow()
    assert follower.source is not None
    for statements in BREAKS.values():
        run(session, statements)
    while len(follower.source.stopped) < len(BREAKS):
        follower.step()
    assert set(follower.source.stopped) == {f"public.{table}" for table in BREAKS}
    bodies = {row["body"][:4] for row in follower.contents["rewritten"].values()}
    assert "new " not in bodies
    session.execute("UPDATE plain SET n = 9")
    follower.follow()
    assert not equal(follower, session, "plain")


@pytest.mark.usefixtures("looks_often")
def test_a_table_that_was_swapped_while_it_is_read_is_taken_up_as_the_one_that_has_its_name(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["tables"] = "swapped, plain"
    follower.follow()
    source = follower.source
    assert source is not None
    run(session, BREAKS["swapped"])
    while not source.stopped:
        follower.step()
    error = source.stopped["public.swapped"]
    assert error.hint is not None
    run(session, error.hint.partition("; then")[0])
    source.retry("swapped")
    follower.settle(ordered=True)
    assert not source.stopped
    assert not equal(follower, session, "swapped", "plain")


@pytest.mark.usefixtures("looks_often")
def test_a_table_that_is_taken_up_again_has_the_rows_that_are_published_now(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["tables"] = "unpublished, plain"
    follower.follow()
    follower.close()
    published = "ALTER PUBLICATION headwater_shop SET TABLE plain, unpublished"
    session.execute(f"{published} WHERE (id > 1)")  # type: ignore[call-overload]
    follower.follow()
    source = follower.source
    assert source is not None
    assert list(source.stopped) == ["public.unpublished"]
    session.execute(published)
    source.retry("unpublished")
    follower.settle(ordered=True)
    follow_looks(follower)
    assert not source.stopped
    assert not equal(follower, session, "unpublished", "plain")


@pytest.mark.usefixtures("looks_often")
def test_a_table_that_is_taken_up_again_stays_so_though_the_connection_is_cut_at_once(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.options["tables"] = "created_again, plain"
    follower.follow()
    follower.close()
    run(session, BREAKS["created_again"])
    follower.follow()
    source = follower.source
    assert source is not None
    resume_table, cuts = WantedSnapshots.resume_table, [True]

    def cut(self: WantedSnapshots, table: Any) -> None:
        resume_table(self, table)
        if cuts:
            cuts.pop()
            raise SourceUnreachableError("the connection is cut")

    monkeypatch.setattr(WantedSnapshots, "resume_table", cut)
    source.retry("created_again")
    follower.settle(ordered=True)
    assert not cuts
    assert not source.stopped
    assert not equal(follower, session, "created_again", "plain")


def test_a_wider_type_is_followed_with_the_values_that_it_brings(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["tables"] = "rewritten"
    follower.follow()
    run(
        session,
        "ALTER TABLE rewritten ALTER n TYPE bigint USING n * 10, ALTER body TYPE text USING 'new ' || body",
    )
    session.execute("UPDATE rewritten SET m = 77 WHERE id = 2")
    follower.settle()
    assert follower.source is not None
    assert not follower.source.stopped
    assert not equal(follower, session, "rewritten")
    old = [row for row in follower.records["rewritten"] if row["m"] == 77]
    assert {row["body"][:4] for row in old} == {"new "}, "never with a value from before"


def test_a_publication_that_is_dropped_and_made_again_leaves_no_silent_gap(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["tables"] = "plain, other"
    follower.follow()
    again = """
        DROP PUBLICATION headwater_shop;
        DELETE FROM plain WHERE id = 1;
        INSERT INTO other VALUES (6, 6);
        CREATE PUBLICATION headwater_shop FOR TABLE plain, other WITH (publish_via_partition_root)"""
    follower.close()
    run(session, again)
    try:
        follower.follow()
        assert follower.source is not None
        assert set(follower.source.stopped) == {"public.other", "public.plain"}
        assert (
            "a publication that published it was dropped"
            in follower.source.stopped["public.plain"].facts["gap"]
        )
    except psycopg.Error as error:  # pragma: no cover
        raise AssertionError from error
    follower.close()
    follower.options["on_gap"] = "snapshot"
    follower.settle()
    assert not equal(follower, session, "plain", "other")
    follower.close()
    altered = "ALTER PUBLICATION headwater_shop SET (publish = 'insert')"
    run(
        session,
        f"{altered}; DELETE FROM other; {altered.replace('insert', 'insert, update, delete, truncate')}",
    )
    follower.settle()
    assert not equal(follower, session, "plain", "other")


@pytest.mark.parametrize("how", ["created again", "advanced"])
def test_a_slot_that_begins_behind_the_position_stops_or_begins_anew(
    session: psycopg.Connection[Any], follower: Follower, how: str
) -> None:
    follower.options["tables"] = "plain"
    follower.follow()

    def lose(n: int) -> None:
        follower.close()
        run(session, f"INSERT INTO plain VALUES ({n}, 0); DELETE FROM plain WHERE id = {n - 1}")
        if how == "created again":
            drop_slot(session)
            session.execute("SELECT pg_create_logical_replication_slot('headwater_shop', 'pgoutput')")
        else:
            idle = (
                "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'headwater_shop' AND NOT active"
            )
            while session.execute(idle).fetchone() != (1,):
                pass
            session.execute("SELECT pg_replication_slot_advance('headwater_shop', pg_current_wal_lsn())")

    lose(3)
    with raises(SlotError, reason="advanced") as caught:
        follower.follow()
    assert "ALTER SOURCE shop RESTART" in str(caught.value.hint)
    follower.close()
    follower.options["on_gap"] = "snapshot"
    follower.follow()
    assert not equal(follower, session, "plain")
    lose(4)
    follower.follow()
    session.execute("UPDATE plain SET n = 5")
    follower.follow()
    assert not equal(follower, session, "plain")


@pytest.mark.parametrize("on_gap", ["stop", "snapshot"])
@pytest.mark.parametrize("how", ["created again", "advanced"])
@pytest.mark.parametrize("starts_again", [False, True])
def test_a_slot_that_is_moved_after_it_was_compared_and_before_it_is_read_stops_or_begins_anew(
    session: psycopg.Connection[Any], follower: Follower, starts_again: bool, how: str, on_gap: str
) -> None:
    follower.options |= {"tables": "plain", "on_gap": on_gap}
    awaited: type = Commit
    if starts_again:
        follower.follow()
        follower.close()
        session.execute("ALTER TABLE plain ADD more int")
        awaited = Evolve
    while not isinstance(follower.step(), awaited):
        pass
    run(session, "INSERT INTO plain VALUES (3, 3); DELETE FROM plain WHERE id = 1")
    if how == "created again":
        drop_slot(session)
        session.execute("SELECT pg_create_logical_replication_slot('headwater_shop', 'pgoutput')")
    else:
        session.execute("SELECT pg_replication_slot_advance('headwater_shop', pg_current_wal_lsn())")
    if on_gap == "stop":
        with raises(SlotError, reason="advanced"):
            follower.follow()
        return
    follower.follow()
    session.execute("UPDATE plain SET n = 5")
    follower.follow()
    assert not equal(follower, session, "plain")


def test_a_position_of_an_older_version_gets_the_facts(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    follower.close()
    assert follower.position is not None
    new = ("facts", "gaps", "anchor", "timeline")
    follower.position = {name: value for name, value in follower.position.items() if name not in new}
    follower.sequence -= 1  # the slot may have been told of more than the log has
    session.execute("UPDATE plain SET n = 5")
    while "facts" not in (follower.position or {}):
        follower.step()
    follower.follow()
    assert follower.position.keys() >= {"facts", "anchor", "timeline"}
    assert follower.source is not None
    assert not follower.source.stopped
    assert not equal(follower, session, *TABLES)


@pytest.mark.usefixtures("looks_often")
def test_a_table_of_a_schema_that_is_gone_stays_stopped_until_it_is_there_again_or_that_is_known(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["tables"] = "public.*"
    follower.follow()
    follower.close()
    session.execute("DROP TABLE other")
    for _ in range(2):  # as after a restart, too
        follower.stream()
        assert follower.source is not None
        (error,) = follower.source.stopped.values()
        assert error.facts["table"] == "public.other"
        assert error.facts["reason"] == "no-table"
        session.execute("UPDATE plain SET n = n + 1")
        follower.follow()
        follower.close()
    follower.open().retry("other")
    while follower.source is None or follower.source.stopped or "stopped" in (follower.position or {}):
        follower.step()
    follower.close()
    follower.stream()
    assert not follower.source.stopped

    follower.close()
    follower.options["on_gap"] = "snapshot"
    follower.stream()
    session.execute("DROP TABLE plain")
    while "public.plain" not in follower.source.stopped:
        follower.step()
    session.execute("CREATE TABLE plain (id int PRIMARY KEY, n int, note text)")
    session.execute("INSERT INTO plain VALUES (2, 22, 'again')")
    while follower.source.stopped:
        follower.step()
    follower.settle()
    assert not equal(follower, session, "plain", "swapped")
