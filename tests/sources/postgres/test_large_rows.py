"""Rows of any size: what is selected, decoded and filled in at a time is bounded by bytes as well as by rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from headwater.catalog.conform import OPS
from headwater.catalog.definitions import define_topic
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append
from headwater.sources import row_sizes
from headwater.sources.base import Commit, Rows
from headwater.sources.log_lookup import Lookups
from headwater.sources.postgres.decode.decode_rows import DecodedRows
from headwater.sources.postgres.rows import toast_pending
from headwater.sources.row_sizes import RowsTooLargeError, row_bytes, taken
from tests.sources.pipelines import Follower

ROWS, BYTES = 100, 1_500_000


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("CREATE TABLE pages (id int PRIMARY KEY, n int, body text)")
        session.execute(
            f"INSERT INTO pages SELECT i, 0, repeat('x', {BYTES}) FROM generate_series(1, {ROWS}) i"
        )  # type: ignore[call-overload]
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "pages", "snapshot": "incremental"})
    yield follower
    follower.close()


def commits(follower: Follower, until: int) -> list[list[tuple[int, int]]]:
    """What comes until so many rows are there: rows and bytes of each batch, by commit."""
    found: list[list[tuple[int, int]]] = [[]]
    while sum(rows for commit in found for rows, _ in commit) < until:
        event = follower.step()
        if isinstance(event, Rows):
            found[-1].append((event.batch.num_rows, event.batch.nbytes))
        elif isinstance(event, Commit):
            found.append([])
    while not isinstance(follower.step(), Commit):
        pass
    follower.records["pages"].clear()
    return [commit for commit in found if commit]


def test_chunks_and_values_that_are_filled_in_are_bounded(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    chunks = commits(follower, ROWS)
    assert max(size for commit in chunks for _, size in commit) < 80 << 20
    assert len(chunks) == 3
    session.execute("UPDATE pages SET n = 1")
    (parts,) = commits(follower, ROWS)
    assert max(size for _, size in parts) <= row_sizes.BYTES_MAX
    session.execute("DO $$ BEGIN FOR i IN 1..200 LOOP UPDATE pages SET n = i WHERE id = 7; END LOOP; END $$")
    (parts,) = commits(follower, 200)
    assert max(size for _, size in parts) <= row_sizes.BYTES_MAX
    contents = follower.contents["pages"]
    assert {len(row["body"]) for row in contents.values()} == {BYTES}
    assert contents[(7,)]["n"] == 200
    assert sum(row["n"] for row in contents.values()) == 200 + ROWS - 1


def test_rows_that_are_lacking_are_had_in_chunks_of_bounded_size(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.options["snapshot"] = "none"
    follower.stream()
    session.execute("UPDATE pages SET n = 1")
    session.execute("DELETE FROM pages WHERE id = 3")
    found = commits(follower, ROWS)
    assert max(size for commit in found for _, size in commit) < 80 << 20
    assert len(found) == 4  # one is the delete
    follower.settle()
    assert len(follower.contents["pages"]) == ROWS - 1


def test_last_values_that_are_too_many_bytes_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = define_topic("pages", pa.schema([("id", pa.int64()), ("body", pa.string())]), key=("id",))
    log = MemoryLog()
    log.create_topic(topic)
    rows = [{"id": i, "body": "x" * 1_000, "_op": OPS.index("insert")} for i in range(50)]
    log.append(Append({"pages": [pa.RecordBatch.from_pylist(rows, schema=topic.row_schema)]}))
    keys = pa.RecordBatch.from_pydict({"id": pa.array(range(50), pa.int64())})
    lookups = Lookups(log)
    assert lookups.last_values("pages", keys, ["body"]).num_rows == 50
    monkeypatch.setattr(row_sizes, "BYTES_MAX", 10_000)
    with pytest.raises(RowsTooLargeError) as caught:
        lookups.last_values("pages", keys, ["body"])
    assert lookups.last_values("pages", keys.slice(0, caught.value.rows), ["body"]).num_rows == 9


def test_the_bytes_of_values_are_known_before_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.array(["a", None, "b" * 50, "c" * 100])
    lists = pa.array([["a", "bb"], None, [], ["ccc", "d" * 20, "e"]])
    assert row_bytes(texts).tolist() == [1, 0, 50, 100]
    assert row_bytes(texts.slice(2)).tolist() == [50, 100]
    assert row_bytes(lists).tolist() == [3, 0, 0, 24]
    assert row_bytes(lists.slice(3)).tolist() == [24]
    assert row_bytes(pa.array([], pa.string())).tolist() == []
    monkeypatch.setattr(row_sizes, "BYTES_MAX", 300)
    assert taken(texts, np.array([3, 3, 2])).to_pylist() == ["c" * 100, "c" * 100, "b" * 50]
    with pytest.raises(RowsTooLargeError) as caught:
        taken(texts, np.array([3, 3, 3, 3]))
    assert caught.value.rows == 3


def test_changes_are_divided_between_messages() -> None:
    """The two rows of a change of a key stay together."""
    batch = pa.RecordBatch.from_pydict({"id": list(range(7))})
    places = np.array([0, 1, 2, 2, 4, 5, 5])
    changes = DecodedRows(
        batch, {"body": np.array([False, True, False, True, False, False, True])}, places, None
    )
    for rows in range(1, 8):
        parts = list(changes.parts(rows))
        assert [i for part in parts for i in part.batch.column("id").to_pylist()] == list(range(7))
        for part in parts:
            assert part.fill_from.min() == 0
            assert all(mask.any() for mask in part.unchanged.values())
    assert [part.batch.num_rows for part in changes.parts(1)] == [1, 1, 2, 1, 2]
    assert toast_pending.PENDING_BYTES_MAX < row_sizes.BYTES_MAX
