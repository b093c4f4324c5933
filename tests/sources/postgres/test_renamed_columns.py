"""Large values that are not sent, of columns that have another name, or another meaning, than when the log got them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.sources.postgres.snapshot.snapshot_rows import Chunks
from tests.sources.pipelines import Follower, rows_in

LARGE = """
CREATE FUNCTION large() RETURNS text VOLATILE LANGUAGE sql
AS $$ SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100) $$
"""
CHANGES = {
    "renamed": ["RENAME body TO story"],
    "swapped": ["RENAME body TO other", "RENAME more TO body", "RENAME other TO more"],
    "taken": ["DROP COLUMN body", "RENAME more TO body"],
    "refilled": ["DROP COLUMN more", "ADD COLUMN more text DEFAULT public.large()"],
}
HARMLESS = {
    "wider": "ALTER TABLE wider ADD COLUMN note text",
    "defaults": "ALTER TABLE defaults ALTER body SET DEFAULT 'x'",
    "vacuumed": "VACUUM FULL vacuumed",
    "counted": "ALTER TABLE counted RENAME n TO count",
}


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute(LARGE)
        for table in (*CHANGES, *HARMLESS):
            session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, body text, more text)")  # type: ignore[call-overload]
            for column in ("body", "more"):
                session.execute(f"ALTER TABLE {table} ALTER {column} SET STORAGE EXTERNAL")  # type: ignore[call-overload]
            session.execute(f"INSERT INTO {table} SELECT i, i, large(), large() FROM generate_series(1, 9) i")  # type: ignore[call-overload]
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": ", ".join((*CHANGES, *HARMLESS))})
    yield follower
    follower.close()


def test_values_that_are_not_sent_are_those_of_the_column_and_not_of_its_name(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    def change(table: str, key: int) -> None:
        session.execute(f"UPDATE {table} SET n = n + 1 WHERE id = {key}")  # type: ignore[call-overload]

    def check(*keys: int) -> None:
        """Rows that have changed since are those of the table, in all columns that it has."""
        follower.settle()
        for table in CHANGES:
            stored = rows_in(session, table)
            for key in keys:
                row = follower.contents[table][(key,)]
                assert {name: row[name] for name in stored[(key,)]} == stored[(key,)], (table, key)

    follower.follow()
    for table, statements in CHANGES.items():
        for statement in statements:
            session.execute(f"ALTER TABLE {table} {statement}")  # type: ignore[call-overload]
        change(table, 1)
    check(1)
    for table in CHANGES:
        change(table, 1)  # now the log has it
    check(1)
    for (
        table
    ) in CHANGES:  # the rows that no change has touched are copied again, for what the columns have in them
        follower_rows, stored = follower.contents[table], rows_in(session, table)
        for key, row in stored.items():
            assert {name: follower_rows[key][name] for name in row} == row, (table, key)

    # In one transaction, with changes before and behind, and nobody there who reads.
    follower.close()
    for table, again in {
        "renamed": ["RENAME story TO body"],
        "swapped": CHANGES["swapped"],
        "taken": ["ADD COLUMN more text DEFAULT public.large()"],
        "refilled": CHANGES["refilled"],
    }.items():
        change(table, 2)
        with session.transaction():
            change(table, 3)
            for statement in again:
                session.execute(f"ALTER TABLE {table} {statement}")  # type: ignore[call-overload]
            change(table, 3)
            change(table, 4)
        change(table, 5)
    check(2, 3, 4, 5)


def test_other_changes_of_a_table_leave_the_values_that_the_log_has(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    for table, statement in HARMLESS.items():
        session.execute(statement)  # type: ignore[call-overload]
        session.execute(f"UPDATE {table} SET {'count' if table == 'counted' else 'n'} = 0 WHERE id = 1")  # type: ignore[call-overload]
    follower.settle()
    for table in HARMLESS:
        stored = rows_in(session, table)[(1,)]
        assert {name: follower.contents[table][(1,)][name] for name in stored} == stored
        if table != "counted":  # a column of another name has values in rows that are there already
            assert follower.ops(table)[9:] == [("update", 1)], table


def test_a_chunk_whose_table_has_other_columns_before_its_mark_is_selected_again(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.options |= {"tables": "swapped", "snapshot": "incremental"}
    columns, looks = Chunks._columns, [0]

    def changed(self: Chunks, *arguments: Any) -> Any:
        looks[0] += 1
        if looks[0] == 2:  # behind the chunk's transaction
            for statement in CHANGES["swapped"]:
                session.execute(f"ALTER TABLE swapped {statement}")  # type: ignore[call-overload]
            session.execute("UPDATE swapped SET n = n + 1 WHERE id = 1")
        return columns(self, *arguments)

    monkeypatch.setattr(Chunks, "_columns", changed)
    follower.settle()
    assert follower.contents["swapped"] == rows_in(session, "swapped")
