"""Tables and partitions whose changes do not say which row they are of: captured as what they are, or stopped with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.core.errors import SourceRefusedError
from headwater.sources.postgres.postgres_source import PostgresSource
from headwater.sources.postgres.server.postgres_doctor import doctor
from tests.raising import raises
from tests.sources.pipelines import Follower, rows_in

PARTS = """
CREATE TABLE parts (id int, region text, code text NOT NULL, n int, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us');
CREATE UNIQUE INDEX by_code ON parts_eu (code);
CREATE UNIQUE INDEX by_code_and_key ON parts_us (code, id, region);
INSERT INTO parts SELECT i, 'eu', 'c' || i, i FROM generate_series(1, 5) i;
INSERT INTO parts SELECT i, 'us', 'c' || i, i FROM generate_series(1, 5) i;
CREATE TABLE lines (id int PRIMARY KEY, n int);
"""
KEY = ("region", "id")


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute(PARTS)
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "parts, lines"})
    yield follower
    follower.close()


@pytest.mark.parametrize("identity", ["USING INDEX by_code", "NOTHING"])
def test_a_partition_whose_identity_lacks_the_key_is_refused(
    session: psycopg.Connection[Any], follower: Follower, identity: str
) -> None:
    session.execute(f"ALTER TABLE parts_eu REPLICA IDENTITY {identity}")  # type: ignore[call-overload]
    source = PostgresSource("shop", {"url": follower.url, **follower.options}, follower, follower.folder)
    with raises(SourceRefusedError, partition="public.parts_eu", reason="replica-identity") as caught:
        source.check()
    assert session.execute("SELECT count(*) FROM pg_publication_tables").fetchone() == (0,)
    (finding,) = [found for found in doctor(follower.url, "parts") if "partition" in found.sentence]
    assert (finding.status, finding.statement) == ("problem", caught.value.hint)
    session.execute(str(caught.value.hint))  # type: ignore[call-overload]
    assert [topic.name for topic in source.check()] == ["parts", "lines"]
    session.execute("ALTER TABLE parts_us REPLICA IDENTITY USING INDEX by_code_and_key")
    follower.follow()
    session.execute("UPDATE parts SET id = id + 10, n = 0 WHERE id = 1")
    session.execute("DELETE FROM parts WHERE id = 2")
    follower.follow()
    assert follower.contents["parts"] == rows_in(session, "parts", KEY)


def test_a_partition_that_is_given_an_identity_without_the_key_stops_its_table(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.follow()
    source = follower.source
    assert source is not None
    session.execute("ALTER TABLE parts_eu REPLICA IDENTITY USING INDEX by_code")
    session.execute("DELETE FROM parts WHERE region = 'eu' AND id = 1")
    session.execute("INSERT INTO lines VALUES (1, 1)")
    follower.follow()
    assert source.stopped["public.parts"].facts["column"] in KEY
    assert all(row["id"] is not None and row["region"] is not None for row in follower.records["parts"])
    assert follower.ops("lines") == [("insert", 1)]

    follower.close()  # it is stopped in another process, too, until the identity is one that tells rows apart
    follower.follow()
    assert follower.source is not None
    assert follower.source.stopped["public.parts"].facts["partition"] == "public.parts_eu"
    session.execute("ALTER TABLE parts_eu REPLICA IDENTITY FULL")
    follower.close()
    follower.settle()
    assert follower.contents["parts"] == rows_in(session, "parts", KEY)
    assert follower.source is not None
    assert not follower.source.stopped

    # A change of the key does not come with the key that the row had: only the catalog says so.
    monkeypatch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 0.0)
    follower.close()
    follower.follow()
    session.execute("ALTER TABLE parts_eu REPLICA IDENTITY USING INDEX by_code")
    session.execute("UPDATE parts SET id = 50 WHERE region = 'eu' AND id = 3")
    follower.follow()
    follower.stream()
    assert follower.source is not None
    stopped = follower.source.stopped["public.parts"].facts
    assert (stopped["replica_identity"], stopped["key"]) == ("USING INDEX, of (code)", KEY)


@pytest.mark.parametrize("then", ["DEFAULT", "FULL", "DEFAULT; DROP INDEX by_code"])
def test_a_key_that_was_changed_while_a_partition_had_another_identity_is_gone(
    session: psycopg.Connection[Any], follower: Follower, then: str
) -> None:
    follower.follow()
    follower.close()
    session.execute("ALTER TABLE parts_eu REPLICA IDENTITY USING INDEX by_code")
    session.execute("UPDATE parts SET id = 50 WHERE region = 'eu' AND id = 3")
    for statement in f"ALTER TABLE parts_eu REPLICA IDENTITY {then}".split("; "):
        session.execute(statement)  # type: ignore[call-overload]
    follower.settle()
    assert follower.contents["parts"] == rows_in(session, "parts", KEY)
    assert follower.source is not None
    assert not follower.source.stopped

    copies = follower.ops("parts").count(("snapshot", ("eu", 1)))
    follower.close()
    for harmless in ("TRUNCATE parts_us", "CREATE UNIQUE INDEX more ON parts_eu (n)", "VACUUM FULL parts_eu"):
        session.execute(harmless)
    follower.settle()
    assert follower.contents["parts"] == rows_in(session, "parts", KEY)
    assert follower.ops("parts").count(("snapshot", ("eu", 1))) == copies


def test_an_identity_of_the_parent_that_partitions_do_not_have_is_refused(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("CREATE UNIQUE INDEX by_region_and_code ON parts (region, code)")
    session.execute("ALTER TABLE parts REPLICA IDENTITY USING INDEX by_region_and_code")
    source = PostgresSource("shop", {"url": follower.url, **follower.options}, follower, follower.folder)
    with raises(SourceRefusedError, replica_identity="DEFAULT", key=("region", "code")):
        source.check()


def test_a_table_with_identity_nothing_is_appended_to_though_it_has_a_primary_key(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("INSERT INTO lines VALUES (1, 1)")
    session.execute("ALTER TABLE lines REPLICA IDENTITY NOTHING")
    follower.follow()
    session.execute("DELETE FROM lines")
    session.execute("INSERT INTO lines VALUES (1, 2)")
    follower.follow()
    assert follower.topics["lines"].key == ()
    assert [(row["id"], row["n"]) for row in follower.records["lines"]] == [(1, 1), (1, 2)]
    session.execute("ALTER TABLE lines REPLICA IDENTITY DEFAULT")
    session.execute("INSERT INTO lines VALUES (2, 2)")
    follower.follow()
    assert follower.source is not None
    assert follower.source.stopped["public.lines"].facts["reason"] == "not-supported"
    assert "is (id)" in follower.source.stopped["public.lines"].message


def test_a_table_that_has_its_key_again_is_taken_up_with_it(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    session.execute("INSERT INTO lines VALUES (1, 1)")
    follower.follow()
    follower.close()
    session.execute("ALTER TABLE lines REPLICA IDENTITY NOTHING")
    session.execute("TRUNCATE lines")
    follower.follow()
    source = follower.source
    assert source is not None
    assert "public.lines" in source.stopped
    session.execute("ALTER TABLE lines REPLICA IDENTITY DEFAULT")
    session.execute("INSERT INTO lines VALUES (2, 2)")
    source.retry("lines")
    follower.settle(ordered=True)
    assert follower.contents["lines"] == rows_in(session, "lines")
    assert not source.stopped
    assert not source.status.missing


@pytest.mark.parametrize("tables", ["parts, lines", "public.*"])
def test_a_table_that_was_not_fit_at_the_start_is_taken_up_on_request_once_it_is(
    session: psycopg.Connection[Any], follower: Follower, tables: str
) -> None:
    follower.options["tables"] = tables
    follower.follow()
    follower.close()
    session.execute("ALTER TABLE parts_eu REPLICA IDENTITY USING INDEX by_code")
    session.execute("UPDATE parts SET id = 50 WHERE region = 'eu' AND id = 3")
    follower.stream()
    source = follower.source
    assert source is not None
    assert source.stopped["public.parts"].facts["replica_identity"] == "USING INDEX, of (code)"
    session.execute("ALTER TABLE parts_eu REPLICA IDENTITY NOTHING")
    source.retry("parts")
    while not source._progress.orders.empty() or "public.parts" not in source.stopped:
        follower.step()
    assert source.stopped["public.parts"].facts["replica_identity"] == "NOTHING"
    session.execute("ALTER TABLE parts_eu REPLICA IDENTITY DEFAULT")
    source.retry("parts")
    follower.settle(ordered=True)
    assert not source.stopped
    assert follower.contents["parts"] == rows_in(session, "parts", KEY)


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_table_that_loses_its_last_column_stops_alone(
    session: psycopg.Connection[Any], follower: Follower, key: str
) -> None:
    session.execute(f"CREATE TABLE short (id int {key})")  # type: ignore[call-overload]
    session.execute("INSERT INTO short VALUES (1)")
    follower.options["tables"] = "short, lines"
    follower.follow()
    session.execute("ALTER TABLE short DROP COLUMN id")
    session.execute("INSERT INTO short DEFAULT VALUES")
    session.execute("INSERT INTO lines VALUES (1, 1)")
    follower.follow()
    for number in (2, 3):
        assert follower.source is not None
        assert list(follower.source.stopped) == ["public.short"]
        follower.close()
        session.execute("INSERT INTO lines VALUES (%s, 1)", [number])
        follower.follow()
    assert follower.contents["lines"] == rows_in(session, "lines")
    assert follower.source is not None
    assert follower.source.stopped["public.short"].facts["reason"] == "no-columns"
    follower.close()
    session.execute("TRUNCATE short")
    session.execute(f"ALTER TABLE short ADD COLUMN id int {key}")  # type: ignore[call-overload]
    session.execute("INSERT INTO short VALUES (7)")
    follower.settle()
    assert follower.source is not None
    assert not follower.source.stopped
    assert not key or follower.contents["short"] == rows_in(session, "short")


ANOTHER_IDENTITY = {
    "an index": ("REPLICA IDENTITY USING INDEX lines_code", "REPLICA IDENTITY FULL"),
    "nothing": ("REPLICA IDENTITY NOTHING", "REPLICA IDENTITY DEFAULT"),
    "no key": ("DROP CONSTRAINT lines_pkey", "ADD PRIMARY KEY (id)"),
    "another key": (
        "DROP CONSTRAINT lines_pkey, ADD CONSTRAINT lines_pkey PRIMARY KEY (code)",
        "DROP CONSTRAINT lines_pkey, ADD CONSTRAINT lines_pkey PRIMARY KEY (id)",
    ),
}
"""What stops a table, for other columns tell its rows apart, and what makes it fit again."""


@pytest.mark.parametrize("begins", ["unread", "while it runs", "while it does not run"])
@pytest.mark.parametrize("identity", ANOTHER_IDENTITY)
def test_a_table_that_has_stopped_is_copied_though_the_process_dies_directly_behind_that(
    session: psycopg.Connection[Any],
    follower: Follower,
    monkeypatch: pytest.MonkeyPatch,
    identity: str,
    begins: str,
) -> None:
    monkeypatch.setattr("headwater.sources.postgres.capture_session.QUIET_S", 0.02)
    monkeypatch.setattr("headwater.sources.postgres.postgres_source.BACKOFF_S", (0.0, 0.02))
    session.execute("ALTER TABLE lines ADD code int GENERATED ALWAYS AS IDENTITY")
    session.execute("CREATE UNIQUE INDEX lines_code ON lines (code)")
    begin, end = ANOTHER_IDENTITY[identity]
    follower.options |= {"tables": "lines", "snapshot": "none"}
    for events in (1, 2, 3):
        follower.stream()
        if begins == "while it does not run":
            follower.close()
        session.execute(f"ALTER TABLE lines {begin}")  # type: ignore[call-overload]
        session.execute("INSERT INTO lines VALUES (%s, 0)", [events])
        if begins == "unread":
            session.execute(f"ALTER TABLE lines {end}")  # type: ignore[call-overload]
        for _ in range(events):
            follower.step()
        follower.close()
        if begins != "unread":
            session.execute(f"ALTER TABLE lines {end}")  # type: ignore[call-overload]
        follower.settle()
        follower.close()  # one that has stopped behind the last start is taken up at the next
        follower.settle()
        assert follower.source is not None
        assert not follower.source.stopped
        assert follower.contents["lines"] == rows_in(session, "lines"), f"after {events} events"
