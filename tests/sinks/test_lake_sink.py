"""LAKE: an Iceberg table whose snapshots carry the position; what changes cost, what others see, and what is cleaned up."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from headwater.sinks.base.target import (
    CheckpointConflictError,
    Since,
    SinkError,
    Target,
    TargetChange,
    TargetShape,
)
from headwater.sinks.iceberg import table_files
from headwater.sinks.iceberg import target as lake
from headwater.sinks.iceberg.target import CHECKPOINT, LakeTarget
from headwater.testing.sinks import SinkContract
from tests.raising import raises
from tests.sinks.changelogs import ChangelogContract
from tests.sinks.killed import kill_and_compare
from tests.sinks.samples import (
    EVERYTHING,
    SCHEMA,
    checkpoint_of,
    contents_at,
    everything,
    follow,
    same_rows,
    shape,
    upsert,
)


@contextmanager
def outside(warehouse: Path) -> Iterator[Catalog]:
    """The catalog as any other program opens it."""
    place = {"uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
    catalog = load_catalog("headwater", type="sql", **place)
    try:
        yield catalog
    finally:
        catalog.close()


class LakePlace(SinkContract):
    """What tests do to a table."""

    takes_all = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.aside, self.patch = tmp_path / "warehouse", tmp_path / "aside", monkeypatch

    def make_target(self) -> Target:
        return LakeTarget(self.path, "follower", file_rows=50, snapshots=6)

    @contextmanager
    def table(self) -> Iterator[Table]:
        with outside(self.path) as catalog:
            yield catalog.load_table("headwater.follower")

    @contextmanager
    def break_within(self) -> Iterator[None]:
        def fail(*_: Any) -> None:
            raise OSError("no space left")

        with self.patch.context() as patch:
            patch.setattr(lake, "commit", fail)
            yield

    def take_down(self) -> None:
        self.path.rename(self.aside)
        self.path.write_text("not a folder")

    def bring_up(self) -> None:
        self.path.unlink()
        self.aside.rename(self.path)

    def back_up(self) -> Path:
        shutil.copytree(self.path, self.aside)
        return self.aside

    def put_back(self, backup: Path) -> None:
        shutil.copytree(backup, self.path, dirs_exist_ok=True)


class TestLakeTarget(LakePlace):
    def tamper(self) -> None:
        with self.table() as table:
            kind = table.schema().as_arrow()
            rows = [
                {"region": "ch", "id": 1, "name": "tampered", "score": 0.0},
                {"region": "xx", "id": 9, "name": "foreign", "score": 0.0},
            ]
            checkpoint = table.current_snapshot().summary[CHECKPOINT]  # type: ignore[union-attr]
            table.delete("id in (1, 2)")
            table.append(pa.Table.from_pylist(rows, kind), snapshot_properties={CHECKPOINT: str(checkpoint)})

    def lose_stand(self) -> None:
        with self.table() as table:
            kind = table.schema().as_arrow()
            table.append(pa.Table.from_pylist([{"region": "zz", "id": -1}], kind))
            table.delete(EqualTo("region", "zz"))


class TestLakeChangelog(LakePlace, ChangelogContract):
    def tamper(self) -> None:
        with self.table() as table:
            checkpoint = table.current_snapshot().summary[CHECKPOINT]  # type: ignore[union-attr]
            row = {"region": "xx", "id": 9, "name": "foreign", "score": 0.0, "_weight": 1, "_tick": 1}
            table.append(
                pa.Table.from_pylist([row], table.schema().as_arrow()),
                snapshot_properties={CHECKPOINT: str(checkpoint)},
            )

    def lose_stand(self) -> None:
        with self.table() as table:
            kind = table.schema().as_arrow()
            table.append(pa.Table.from_pylist([{"region": "zz", "id": -1, "_weight": 1}], kind))
            table.delete(EqualTo("region", "zz"))


def opened(folder: Path, **options: Any) -> LakeTarget:
    """A target for the rows of the history."""
    target = LakeTarget(folder, "t", **options)
    target.prepare(shape())
    return target


def test_every_type_comes_back_bit_for_bit(tmp_path: Path) -> None:
    target = LakeTarget(tmp_path, "t")
    target.prepare(TargetShape("s", "v", EVERYTHING, ("id",)))
    rows = everything()
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(1, rows))
    assert same_rows(target.contents(), [rows])
    target.apply(
        upsert(rows.slice(1, 3), ("id",), rows.slice(0, 1)), checkpoint_of(1, rows), checkpoint_of(2, rows)
    )
    assert same_rows(target.contents(), [rows.slice(1)])
    target.close()


@pytest.mark.parametrize("key", [("text",), ("double", "raw"), ("at", "wide", "small"), ("yes", "id")])
def test_any_scalar_columns_can_be_the_key(tmp_path: Path, key: tuple[str, ...]) -> None:
    rows = everything().slice(0, 5)
    target = LakeTarget(tmp_path, "t")
    target.prepare(TargetShape("s", "v", EVERYTHING, key))
    target.apply(upsert(rows, key), None, checkpoint_of(1, rows))
    target.apply(upsert(rows, key), checkpoint_of(1, rows), checkpoint_of(2, rows))
    assert same_rows(target.contents(), [rows])
    target.apply(
        upsert(rows.slice(0, 0), key, rows.slice(0, 3)), checkpoint_of(2, rows), checkpoint_of(3, rows)
    )
    assert same_rows(target.contents(), [rows.slice(3)])
    target.close()


def test_other_programs_read_the_same_rows_after_every_tick(tmp_path: Path) -> None:
    target = opened(tmp_path, file_rows=20, snapshots=8)
    for tick in range(1, 25):
        follow(target, range(tick, tick + 1))
        with outside(tmp_path) as catalog:
            rows = catalog.load_table("headwater.t").scan().to_arrow().cast(SCHEMA)
        assert same_rows(rows.combine_chunks().to_batches(), [contents_at(tick)])
        assert same_rows(target.contents(), [contents_at(tick)])
    target.close()


def test_a_change_is_one_snapshot_and_older_ones_can_be_read(tmp_path: Path) -> None:
    target = opened(tmp_path)
    follow(target, range(1, 6))
    with outside(tmp_path) as catalog:
        table = catalog.load_table("headwater.t")
        assert len(table.snapshots()) == 5
        for tick, snapshot in enumerate(table.snapshots(), 1):
            rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().cast(SCHEMA)
            assert same_rows(rows.combine_chunks().to_batches(), [contents_at(tick)])
    target.close()


def test_what_a_change_writes_follows_the_change(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    ids = np.arange(40_000)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array([f"text {n * 7919}" for n in ids])], schema=schema
    )
    target = LakeTarget(tmp_path, "t", file_rows=10_000)
    target.prepare(TargetShape("s", "v", schema, ("id",)))
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(1, rows))
    first = sum(path.stat().st_size for path in (tmp_path / "headwater" / "t" / "data").iterdir())
    target.apply(upsert(rows.slice(5, 10), ("id",)), checkpoint_of(1, rows), checkpoint_of(2, rows))
    second = sum(path.stat().st_size for path in (tmp_path / "headwater" / "t" / "data").iterdir())
    assert second - first < first / 20
    assert sum(batch.num_rows for batch in target.contents()) == 40_000
    target.close()


def test_files_and_manifests_stay_few_and_old_ones_are_removed(tmp_path: Path) -> None:
    target = opened(tmp_path, file_rows=100, snapshots=10)
    follow(target, range(1, 46))
    with outside(tmp_path) as catalog:
        table = catalog.load_table("headwater.t")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(table.io)) < 40
        assert len(list(table.scan().plan_files())) < 20
        assert len(table.snapshots()) <= 12
        for kept in table.snapshots():
            table.scan(snapshot_id=kept.snapshot_id).to_arrow()
    assert len(list(tmp_path.rglob("*.parquet"))) < 110
    assert len(list(tmp_path.rglob("*.avro"))) < 120
    assert len(list(tmp_path.rglob("*.json"))) < 15
    assert same_rows(target.contents(), [contents_at(45)])
    target.close()


def test_files_that_only_grow_are_put_together_without_changing_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "_SMALL_FILES_MAX", 4)
    target = LakeTarget(tmp_path, "t", snapshots=1_000)
    target.prepare(shape(mode="append"))
    checkpoint, rows = None, contents_at(1).slice(0, 3)
    for tick in range(1, 19):
        after = checkpoint_of(tick, rows)
        target.apply(TargetChange.of_records(rows), checkpoint, after)
        checkpoint = after
    assert target.checkpoint() == checkpoint
    assert sum(batch.num_rows for batch in target.contents()) == 54
    with outside(tmp_path) as catalog:
        table = catalog.load_table("headwater.t")
        assert len(list(table.scan().plan_files())) < 10
        done = [str(one.summary.operation.value) for one in table.snapshots() if one.summary is not None]
        assert (done.count("append"), done.count("replace")) == (18, 1)
    target.close()


@pytest.mark.parametrize("column", ["id", "text", "day", "at", "wide", "raw", "double"])
def test_rows_are_found_by_any_key_in_files_that_are_not_remembered(
    tmp_path: Path, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "_REMEMBERED_ROWS", 0)
    rows = everything()
    key = (column, "id") if column != "id" else ("id",)
    target = LakeTarget(tmp_path, "t", file_rows=1)
    target.prepare(TargetShape("s", "v", EVERYTHING, key))
    checkpoint = None
    for tick in range(rows.num_rows):
        after = checkpoint_of(tick, rows)
        target.apply(upsert(rows.slice(tick, 1), key), checkpoint, after)
        checkpoint = after
    for tick in range(rows.num_rows):
        after = checkpoint_of(100 + tick, rows)
        target.apply(upsert(rows.slice(0, 0), key, rows.slice(tick, 1)), checkpoint, after)
        checkpoint = after
        assert same_rows(target.contents(), [rows.slice(tick + 1)])
    target.close()


def test_files_that_cannot_have_a_key_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_REMEMBERED_ROWS", 0)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(1_000)), pa.array(["w"] * 1_000), pa.array([0] * 1_000)], schema=SCHEMA
    )
    target = opened(tmp_path, file_rows=100)
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(1, rows))
    read: list[str] = []
    scan = table_files._scan

    def counted(table: Table, live: Any, *rest: Any) -> pa.Table:
        read.append(live.data.file_path)
        return scan(table, live, *rest)

    monkeypatch.setattr(table_files, "_scan", counted)
    target.apply(upsert(rows.slice(250, 20), ("id",)), checkpoint_of(1, rows), checkpoint_of(2, rows))
    assert len(read) == 1
    assert same_rows(target.contents(), [rows])
    target.close()


def test_snapshots_that_somebody_named_stay(tmp_path: Path) -> None:
    target = opened(tmp_path, snapshots=3)
    follow(target, range(1, 3))
    with outside(tmp_path) as catalog:
        table = catalog.load_table("headwater.t")
        old = table.current_snapshot()
        assert old is not None
        table.manage_snapshots().create_tag(old.snapshot_id, "audit").commit()
    follow(target, range(3, 12))
    with outside(tmp_path) as catalog:
        rows = catalog.load_table("headwater.t").scan(snapshot_id=old.snapshot_id).to_arrow().cast(SCHEMA)
    assert same_rows(rows.combine_chunks().to_batches(), [contents_at(2)])
    target.close()


def test_two_that_commit_at_once_do_not_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, other = opened(tmp_path), opened(tmp_path)
    checkpoint = follow(target, range(1, 3))
    commit = lake.commit

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(lake, "commit", commit)
        follow(other, range(3, 4))
        commit(*arguments)

    monkeypatch.setattr(lake, "commit", overtaken)
    with pytest.raises(CheckpointConflictError) as caught:
        target.apply(upsert(contents_at(9), ("id",)), checkpoint, checkpoint_of(9, contents_at(9)))
    assert caught.value.found.tick == 3
    assert same_rows(target.contents(), [contents_at(3)])
    target.close()
    other.close()


def test_a_table_of_other_columns_is_refused_with_both(tmp_path: Path) -> None:
    opened(tmp_path).close()
    target = LakeTarget(tmp_path, "t")
    with raises(
        SinkError,
        sink="s",
        found="id long, word string, n long",
        expected="id long, word string, n string",
    ):
        target.prepare(TargetShape("s", "v", SCHEMA.set(2, pa.field("n", pa.string())), ("id",)))
    target.close()


def test_a_table_that_another_fills_is_left_alone(tmp_path: Path) -> None:
    target = opened(tmp_path)
    follow(target, range(1, 3))
    target.close()
    other = LakeTarget(tmp_path, "t")
    with raises(SinkError, sink="another", table="headwater.t", owner="s"):
        other.prepare(shape("another"))
    other.close()


def test_a_catalog_of_ones_own_is_given_by_its_properties(tmp_path: Path) -> None:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/mine.db",
        "warehouse": f"file://{tmp_path}/files",
    }
    target = LakeTarget(tmp_path / "unused", "sales.orders", catalog=properties)
    target.prepare(shape())
    follow(target, range(1, 4))
    assert same_rows(target.contents(), [contents_at(3)])
    target.close()
    with sqlite3.connect(tmp_path / "mine.db") as database:
        found = database.execute("SELECT table_namespace, table_name FROM iceberg_tables").fetchall()
    database.close()
    assert found == [("sales", "orders")]
    assert not (tmp_path / "unused").exists()


@pytest.mark.slow
def test_kill_9_leaves_the_table_at_a_tick_and_writable(tmp_path: Path) -> None:
    kill_and_compare("lake", tmp_path, kills=2, seed=2)


def test_its_past_is_gone_when_files_are_written_anew_and_older_snapshots_expired(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    rows = pa.RecordBatch.from_pylist([{"id": n, "text": f"secret {n}"} for n in range(100)], schema)
    other = pa.RecordBatch.from_pylist([{"id": 7, "text": None}], schema)
    since = Since(2, 0, 0)

    def named(**options: Any) -> LakeTarget:
        made = LakeTarget(tmp_path, "t", **options)
        made.prepare(TargetShape("s", "v", schema, ("id",)))
        return made

    target = named()
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(1, rows))
    assert target.past(since).gone_at is None, "nothing is of that tick yet"
    target.apply(upsert(other, ("id",)), checkpoint_of(1, rows), checkpoint_of(2, rows))
    past = target.past(since)
    assert past.gone_at is None
    assert "marked as deleted in 1 data file" in past.detail
    assert "`headwater rebuild s`" in past.detail

    beside = target.versions().target("new")
    beside.prepare(TargetShape("s", "v", schema, ("id",)))
    beside.apply(upsert(rows, ("id",)), None, checkpoint_of(2, rows))
    beside.close()
    target.versions().switch("new", checkpoint_of(2, rows))
    target.versions().drop("old")
    past = target.past(since)
    assert past.gone_at is None
    assert "`ALTER SINK s SET (snapshots = 1)`" in past.detail
    assert "CALL system.expire_snapshots(table => 'headwater.t'" in past.detail
    assert target.past(Since(1, 0, 0)).gone_at is not None, "all of it is later than that"
    assert target.past(Since(1, 1 << 60, 0)).gone_at is None, (
        "ticks may be counted again; the clock says otherwise"
    )
    target.close()

    target = named(snapshots=1)
    target.apply(upsert(other, ("id",)), checkpoint_of(2, rows), checkpoint_of(3, rows))
    past = target.past(since)
    assert past.gone_at is not None
    assert past.detail == "no older snapshot of table headwater.t is left"
    target.close()
