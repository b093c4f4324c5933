"""PARQUET: plain files whose own metadata carries the position."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.core.storage import Storage
from headwater.sinks.base.target import SinkError, Target, TargetChange, TargetShape
from headwater.sinks.parquet.target import CONTENTS, ParquetTarget
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

FOREIGN = {"region": "xx", "id": 9, "name": "foreign", "score": 0.0}


class ParquetPlace(SinkContract):
    """What tests do to a folder."""

    takes_all = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.aside, self.patch = tmp_path / "files", tmp_path / "aside", monkeypatch

    def make_target(self) -> Target:
        return ParquetTarget(self.path)

    @contextmanager
    def break_within(self) -> Iterator[None]:
        def fail(*_: Any) -> None:
            raise OSError("no space left")

        with self.patch.context() as patch:
            patch.setattr(Storage, "rename", fail)
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
        shutil.rmtree(self.path)
        shutil.copytree(backup, self.path)

    def newest(self) -> Path:
        return max(self.path.glob("*.parquet"))

    def rewrite(self, rows: list[dict[str, Any]], *, checkpoint: bool = True) -> None:
        table = pq.read_table(self.newest())
        facts = table.schema.metadata if checkpoint else {}
        kept = pa.Table.from_pylist(rows, table.schema).replace_schema_metadata(facts)
        pq.write_table(kept, self.newest())

    def lose_stand(self) -> None:
        self.rewrite(pq.read_table(self.newest()).to_pylist(), checkpoint=False)


class TestParquetTarget(ParquetPlace):
    def tamper(self) -> None:
        rows = [row for row in pq.read_table(self.newest()).to_pylist() if row["id"] != 2]
        self.rewrite([{**row, "name": "tampered"} if row["id"] == 1 else row for row in rows] + [FOREIGN])


class TestParquetChangelog(ParquetPlace, ChangelogContract):
    def tamper(self) -> None:
        rows = pq.read_table(self.newest()).to_pylist()
        self.rewrite([*rows, {**FOREIGN, "_weight": 1, "_tick": 1}])


def test_every_type_comes_back_bit_for_bit(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path / "deep" / "folder")
    target.prepare(TargetShape("s", "v", EVERYTHING, ("id",)))
    rows = everything()
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(1, rows))
    assert same_rows(target.contents(), [rows])
    target.apply(
        upsert(rows.slice(1, 3), ("id",), rows.slice(0, 1)), checkpoint_of(1, rows), checkpoint_of(2, rows)
    )
    assert same_rows(target.contents(), [rows.slice(1)])


def test_any_reader_of_parquet_sees_the_rows_and_nothing_else(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path)
    target.prepare(shape())
    for tick in range(1, 10):
        follow(target, range(tick, tick + 1))
        (file,) = tmp_path.glob("*.parquet")
        assert file.name == CONTENTS
        assert same_rows(pq.read_table(file).cast(SCHEMA).to_batches(), [contents_at(tick)])


def test_appended_rows_are_a_file_per_change_named_by_its_tick(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path)
    target.prepare(shape(mode="append"))
    one, two = contents_at(1), contents_at(2)
    target.apply(TargetChange.of_records(one), None, checkpoint_of(7, one))
    target.apply(TargetChange.of_records(one.slice(0, 0)), checkpoint_of(7, one), checkpoint_of(8, one))
    assert target.checkpoint() == checkpoint_of(8, one)
    target.apply(TargetChange.of_records(two), checkpoint_of(8, one), checkpoint_of(9, two))
    names = sorted(path.name for path in tmp_path.glob("*.parquet"))
    assert names == ["0000000001-tick-7.parquet", "0000000002-tick-9.parquet"]
    assert target.checkpoint() == checkpoint_of(9, two)
    assert same_rows(target.contents(), [one, two])
    assert pq.read_table(tmp_path).num_rows == one.num_rows + two.num_rows


def test_a_stand_beside_another_file_means_nothing(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path)
    target.prepare(shape())
    checkpoint = follow(target, range(1, 3))
    old = (tmp_path / CONTENTS).read_bytes()
    nothing = contents_at(1).slice(0, 0)
    later = checkpoint_of(5, contents_at(2))
    target.apply(upsert(nothing, ("id",)), checkpoint, later)
    assert target.checkpoint() == later
    follow(target, range(6, 7))
    (tmp_path / CONTENTS).write_bytes(old)
    assert target.checkpoint() == later  # of this very file
    follow(target, range(7, 8))
    assert target.checkpoint() == checkpoint_of(7, contents_at(7))


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mine.parquet")
    with raises(SinkError, sink="s", file="mine.parquet"):
        ParquetTarget(tmp_path).prepare(shape())


def test_files_of_other_columns_are_refused_with_both(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path)
    target.prepare(shape())
    follow(target, range(1, 2))
    with raises(
        SinkError,
        sink="s",
        found="id int64, word string, n int64",
        expected="id int64, word string, n string",
    ):
        target.prepare(TargetShape("s", "v", SCHEMA.set(2, pa.field("n", pa.string())), ("id",)))


@pytest.mark.slow
def test_kill_9_leaves_the_folder_at_a_tick_and_writable(tmp_path: Path) -> None:
    kill_and_compare("parquet", tmp_path, kills=2, seed=3)
