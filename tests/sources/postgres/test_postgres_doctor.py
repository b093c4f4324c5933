"""What `doctor` finds on a server, each with the statement that mends it."""

from __future__ import annotations

import psycopg
import pytest

from headwater.sources.postgres.server.postgres_doctor import ServerFinding, doctor
from tests.postgres import PASSWORD, PostgresServer


def problems(found: list[ServerFinding]) -> list[tuple[str, str | None]]:
    return [(finding.sentence, finding.statement) for finding in found if finding.status == "problem"]


def test_a_server_that_has_everything_has_no_problems(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    found = doctor(postgres_url, "orders")
    assert problems(found) == []
    assert "table public.orders can be captured by its key (id)" in [finding.sentence for finding in found]


def test_tables_that_cannot_be_captured_are_named_with_what_mends_them(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("CREATE TABLE keyless (n int)")
        session.execute("CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)")
        session.execute("CREATE TABLE nothing (id int PRIMARY KEY)")
        session.execute("ALTER TABLE nothing REPLICA IDENTITY NOTHING")
        session.execute("CREATE VIEW seen AS SELECT 1")
        found = problems(doctor(postgres_url, "keyless, fleeting, nothing, seen, missing"))
        assert found == [
            (
                "table public.keyless has no primary key (replica identity DEFAULT): only its inserts can be captured, "
                "as an append-only topic",
                'ALTER TABLE "public"."keyless" ADD PRIMARY KEY (...)',
            ),
            (
                "table public.fleeting is unlogged: the WAL does not contain its changes",
                'ALTER TABLE "public"."fleeting" SET LOGGED',
            ),
            (
                "table public.nothing has REPLICA IDENTITY NOTHING: its updates and deletes cannot be sent, only inserts",
                'ALTER TABLE "public"."nothing" REPLICA IDENTITY DEFAULT',
            ),
            ("public.seen is not a table; only tables can be captured", None),
            ("table public.missing does not exist", None),
        ]
        for _, statement in found[1:3]:
            session.execute(str(statement))  # type: ignore[call-overload]
    assert [sentence for sentence, _ in problems(doctor(postgres_url, "fleeting, nothing"))] == []
    assert len(problems(doctor(postgres_url))) == 1


def test_missing_rights_are_named_with_what_grants_them(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        session.execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")  # type: ignore[call-overload]
        try:
            url = postgres_server.tcp_url(str(name), "guest")
            found = problems(doctor(url, "orders"))
            sentences = " | ".join(sentence for sentence, _ in found)
            for part in (
                "role guest may not replicate",
                f"role guest may not create a publication in {name}",
                "no replication connection",
                'role "guest" may not read table public.orders',
                "table public.orders belongs to postgres",
            ):
                assert part in sentences
            statements = [
                statement for _, statement in found if statement and statement.startswith(("ALTER", "GRANT"))
            ]
            for statement in statements:
                session.execute(statement)  # type: ignore[call-overload]
            assert problems(doctor(url, "orders")) == []
        finally:
            session.execute("DROP OWNED BY guest")
            session.execute("DROP ROLE guest")


def test_a_server_that_cannot_be_reached_is_a_finding(postgres_server: PostgresServer) -> None:
    ((sentence, _),) = problems(doctor("postgresql://me:secret@127.0.0.1:1/x"))
    assert "cannot reach x on 127.0.0.1:1" in sentence
    assert "secret" not in sentence
    ((sentence, _),) = problems(doctor(postgres_server.tcp_url(password="wrong-one")))
    assert "password authentication failed" in sentence
    assert "wrong-one" not in sentence


@pytest.mark.parametrize("level", ["replica"])
def test_the_wal_level_is_looked_at(level: str) -> None:
    server = PostgresServer()
    try:
        with psycopg.connect(server.url(), autocommit=True) as session:
            session.execute(f"ALTER SYSTEM SET wal_level = {level}")  # type: ignore[call-overload]
        server.restart()
        found = problems(doctor(server.url()))
        assert found[0][1] == "ALTER SYSTEM SET wal_level = logical"
    finally:
        server.remove()
