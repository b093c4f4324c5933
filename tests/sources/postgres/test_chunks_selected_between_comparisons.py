"""Chunks of snapshots that are selected while a table is, for a moment, not what it was when it was compared last, and will be next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.sources.base import Commit
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.snapshot.snapshot_rows import (
    Chunks,
    Selected,
    SnapshotChunk,
    SnapshotRequest,
    copied,
)
from tests.sources.pipelines import Follower, rows_in

EVERY_S = "headwater.sources.postgres.capture_session.EVERY_S"
ATTACH = "ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (100) TO (200)"
DETACH = "ALTER TABLE parts DETACH PARTITION parts_1"


@pytest.fixture
def session(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    monkeypatch.setattr(EVERY_S, 0.0)
    monkeypatch.setattr("headwater.sources.postgres.capture_session.QUIET_S", 0.02)
    with psycopg.connect(postgres_url, autocommit=True) as session:
        run(session, "CREATE TABLE orders (id int PRIMARY KEY, n int)")
        run(session, "INSERT INTO orders SELECT i, i FROM generate_series(1, 5) i")
        run(session, "CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
        for number in range(2):
            values = f"FROM ({number}00) TO ({number + 1}00)"
            run(session, f"CREATE TABLE parts_{number} PARTITION OF parts FOR VALUES {values}")
        run(session, "INSERT INTO parts SELECT i * 20, i FROM generate_series(0, 9) i")
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders, parts"})
    yield follower
    follower.close()


class Meanwhile:
    """Changes a table before the first chunk of some kind is selected, and changes it back before it is compared again."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, session: psycopg.Connection[Any], kind: str, before: str, after: str = ""
    ) -> None:  # fmt: skip
        self.is_done = False
        self._patch, self._session = monkeypatch, session
        self._kind, self._before, self._after = kind, before, after
        self._select = Chunks._select
        monkeypatch.setattr(Chunks, "_select", lambda *given: self._selected(*given))

    def _selected(self, chunks: Chunks, chunk: SnapshotChunk, condition: str | None) -> Selected:
        if self.is_done or not getattr(chunk.request, self._kind):
            return self._select(chunks, chunk, condition)
        self.is_done = True
        self._patch.setattr(EVERY_S, 1e9)
        run(self._session, self._before)
        try:
            return self._select(chunks, chunk, condition)
        finally:
            run(self._session, self._after)


def run(session: psycopg.Connection[Any], statements: str) -> None:
    for statement in filter(None, statements.split("; ")):
        session.execute(statement)  # type: ignore[call-overload]


def settle(follower: Follower, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read until a chunk was selected meanwhile, and everything was compared and copied behind it."""
    while not meanwhile.is_done:
        follower.step()
    follower.settle()
    monkeypatch.setattr(EVERY_S, 0.0)
    follower.settle()
    follower.settle()


def test_rows_of_a_partition_that_was_attached_while_keys_were_selected_are_deleted(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.follow()
    meanwhile = Meanwhile(monkeypatch, session, "prune", ATTACH, f"{DETACH}; DROP TABLE parts_1")
    run(session, DETACH)
    settle(follower, meanwhile, monkeypatch)
    assert follower.contents["parts"] == rows_in(session, "parts")


def test_a_chunk_has_no_rows_of_a_partition_that_was_attached_while_it_was_selected(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, "CREATE TABLE parts_2 (LIKE parts INCLUDING ALL); INSERT INTO parts_2 VALUES (210, 1)")
    follower.follow()
    attach = "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (200) TO (300)"
    detach = "ALTER TABLE parts DETACH PARTITION parts_2"
    meanwhile = Meanwhile(monkeypatch, session, "is_whole", attach, detach)
    assert follower.source is not None
    follower.source.snapshot("parts")
    settle(follower, meanwhile, monkeypatch)
    assert follower.contents["parts"] == rows_in(session, "parts")


def test_a_chunk_has_no_rows_of_another_table_that_had_the_name_while_it_was_selected(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, "CREATE TABLE other (id int PRIMARY KEY, n int); INSERT INTO other VALUES (7, 70)")
    follower.follow()
    meanwhile = Meanwhile(
        monkeypatch, session, "is_whole", "ALTER TABLE orders RENAME TO away; ALTER TABLE other RENAME TO orders",
        "ALTER TABLE orders RENAME TO other; ALTER TABLE away RENAME TO orders",
    )  # fmt: skip
    assert follower.source is not None
    follower.source.snapshot("orders")
    settle(follower, meanwhile, monkeypatch)
    assert follower.contents["orders"] == rows_in(session, "orders")


def test_a_new_partition_is_copied_though_it_is_renamed_before_it_is_selected(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.follow()
    meanwhile = Meanwhile(monkeypatch, session, "part", "ALTER TABLE parts_2 RENAME TO parts_two")
    run(session, "CREATE TABLE parts_2 (LIKE parts INCLUDING ALL); INSERT INTO parts_2 VALUES (210, 1)")
    run(session, "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (200) TO (300)")
    settle(follower, meanwhile, monkeypatch)
    assert follower.contents["parts"] == rows_in(session, "parts")


def test_the_first_copy_has_no_rows_of_a_partition_that_was_attached_while_it_was_made(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, "CREATE TABLE parts_2 (LIKE parts INCLUDING ALL); INSERT INTO parts_2 VALUES (210, 1)")

    def copied_meanwhile(connection: Connection, table: CapturedTable, *rest: Any) -> Iterator[Any]:
        if table.relation.name == "parts":
            run(session, "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (200) TO (300)")
        yield from copied(connection, table, *rest)

    monkeypatch.setattr("headwater.sources.postgres.first_copy.copied", copied_meanwhile)
    while not isinstance(follower.step(), Commit):
        pass
    run(session, "ALTER TABLE parts DETACH PARTITION parts_2")
    follower.settle()
    follower.settle()
    assert follower.contents["parts"] == rows_in(session, "parts")


def test_a_snapshot_of_a_partition_that_an_older_version_has_asked_for_is_of_the_whole_table() -> None:
    older = {"table": "public.parts", "part": ["public", "parts_1"], "after": ["7"], "rows": 7, "horizon": 9}
    assert SnapshotRequest.from_json(older) == SnapshotRequest("public.parts", horizon=9)
    asked = SnapshotRequest("public.parts", part=16_400, after=("7",), rows=7)
    assert SnapshotRequest.from_json(asked.to_json()) == asked
