"""How rows get from Spark's tasks into one append: the steps that Spark takes, taken here one by one."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import headwater as hw
from headwater.core.errors import BadRowError, TopicNotFoundError, UsageError
from headwater.log.embedded.open_logs import OPEN_MAX, open_log
from headwater.spark_datasource.datasource import HeadwaterDataSource
from headwater.spark_datasource.topic_writer import StagedRows, TopicStreamWriter
from tests.raising import raises

COLUMNS = StructType([StructField("n", LongType())])


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[hw.Workspace]:
    """A workspace with one topic."""
    with hw.open(tmp_path / "shop", durability="os") as ws:
        ws.topic("clicks", "n BIGINT", partitions=2)
        yield ws


def source(ws: hw.Workspace, **options: str) -> HeadwaterDataSource:
    return HeadwaterDataSource({"workspace": str(ws.path), "topic": "clicks", **options})


def stream_writer(ws: hw.Workspace) -> TopicStreamWriter:
    """Created for each step, as Spark does in each of its processes."""
    return source(ws).streamWriter(COLUMNS, overwrite=False)


def stage(ws: hw.Workspace, *numbers: int, query: str | None = "q", batch: int = 0) -> StagedRows:
    """What a task does; Spark passes the query that it belongs to."""
    staged = stream_writer(ws).write(batches(*numbers))
    return dataclasses.replace(staged, query=query, batch=str(batch))


def batches(*numbers: int) -> Iterator[pa.RecordBatch]:
    for n in numbers:
        yield pa.record_batch({"n": pa.array([n], pa.int64())})


def written(ws: hw.Workspace) -> list[int]:
    return sorted(n for batch in ws.topic("clicks").read() for n in batch["n"].to_pylist())


def staged_files(ws: hw.Workspace) -> list[Path]:
    assert ws.path is not None
    return [path for path in (ws.path / "staging").rglob("*") if path.is_file()]


def test_the_rows_of_all_tasks_are_one_append(shop: hw.Workspace) -> None:
    messages = [stage(shop, 1, 2), stage(shop), stage(shop, 3)]
    assert written(shop) == []
    stream_writer(shop).commit(messages, 0)
    assert written(shop) == [1, 2, 3]
    assert (
        len({n for b in shop.topic("clicks").read(columns=["_sequence"]) for n in b["_sequence"].to_pylist()})
        == 1
    )
    assert staged_files(shop) == []


def test_a_batch_of_a_query_is_written_once_whoever_repeats_it(shop: hw.Workspace) -> None:
    for _ in range(3):
        stream_writer(shop).commit([stage(shop, 1, 2)], 0)
    stream_writer(shop).commit([stage(shop, 3, batch=1)], 1)
    stream_writer(shop).commit([stage(shop, 1, 2)], 0)
    assert written(shop) == [1, 2, 3]
    assert staged_files(shop) == []


def test_batches_of_two_queries_are_both_written(shop: hw.Workspace) -> None:
    stream_writer(shop).commit([stage(shop, 1, query="a")], 0)
    stream_writer(shop).commit([stage(shop, 1, query="b")], 0)
    assert written(shop) == [1, 1]


def test_only_the_attempt_that_counts_is_written(shop: hw.Workspace) -> None:
    writer = stream_writer(shop)
    counted, spare = writer.write(batches(1, 2)), writer.write(batches(1, 2))
    assert counted.file != spare.file
    stream_writer(shop).commit([dataclasses.replace(counted, query="q", batch="0")], 0)
    assert written(shop) == [1, 2]
    assert staged_files(shop) == []


def test_an_attempt_that_fails_leaves_no_file(shop: hw.Workspace) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(1)
        raise RuntimeError("the task is lost")

    with pytest.raises(RuntimeError):
        stream_writer(shop).write(failing())
    assert staged_files(shop) == []


def test_a_write_that_is_given_up_leaves_nothing(shop: hw.Workspace) -> None:
    stream_writer(shop).abort([stage(shop, 1), None], 0)
    batch = source(shop).writer(COLUMNS, overwrite=False)
    batch.write(batches(1))
    batch.abort([None])
    assert written(shop) == []
    assert staged_files(shop) == []


def test_what_a_dead_spark_leaves_is_removed_by_maintenance(
    shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)  # no process has this number
    stage(shop, 1)
    assert len(staged_files(shop)) == 1
    shop.maintain()
    assert staged_files(shop) == []


def test_a_batch_without_rows_writes_nothing(shop: hw.Workspace) -> None:
    stream_writer(shop).commit([], 0)
    stream_writer(shop).commit([stage(shop)], 0)
    assert written(shop) == []


def test_a_batch_that_does_not_know_its_query_is_refused(shop: hw.Workspace) -> None:
    with raises(UsageError, reason="query-unknown", query=None):
        stream_writer(shop).commit([stage(shop, 1, query=None)], 0)
    with raises(UsageError, reason="reports-missing", tasks=1):
        stream_writer(shop).commit([stage(shop, 1), None], 0)
    assert written(shop) == []


def test_a_bad_row_is_counted_over_all_rows_of_its_task(shop: hw.Workspace) -> None:
    shop.topic("ints", "n INT")
    writer = source(shop, topic="ints").writer(COLUMNS, overwrite=False)
    with raises(BadRowError, topic="ints", row=2, column="n", value=2**40, task=0):
        writer.write(batches(0, 1, 2**40))


def test_rows_for_a_topic_that_was_made_again_are_refused(shop: hw.Workspace) -> None:
    first = stage(shop, 1)
    shop.sql("DROP TOPIC clicks; CREATE TOPIC clicks (n BIGINT)")
    with pytest.raises(TopicNotFoundError):
        stream_writer(shop).commit([first], 0)
    with raises(TopicNotFoundError, topic="clicks", reason="recreated"):
        stream_writer(shop).commit([first, stage(shop, 2)], 0)
    assert written(shop) == []


def test_a_column_that_is_added_meanwhile_is_null(shop: hw.Workspace) -> None:
    message = stage(shop, 1)
    shop.sql("ALTER TOPIC clicks ADD COLUMN label STRING")
    stream_writer(shop).commit([message], 0)
    assert written(shop) == [1]


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        (["wrong"], "ALTER TOPIC clicks ADD COLUMN"),
        (["n", "_offset"], "df.drop('_offset')"),
        (["n", "_op"], "df.drop('_op')"),
    ],
)
def test_columns_that_the_topic_does_not_have_are_refused_at_once(
    shop: hw.Workspace, columns: list[str], remedy: str
) -> None:
    schema = StructType([StructField(name, StringType()) for name in columns])
    with raises(UsageError, topic="clicks", column=columns[-1]) as caught:
        source(shop).writer(schema, overwrite=False)
    assert remedy in caught.value.hint


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_a_topic_cannot_be_overwritten(shop: hw.Workspace, kind: str) -> None:
    make: Any = getattr(source(shop), kind)
    with raises(UsageError, reason="overwrite"):
        make(COLUMNS, overwrite=True)


def test_a_log_stays_open_until_another_workspace_takes_its_place(tmp_path: Path) -> None:
    place = tmp_path / "shop"
    for rows in (1, 2):
        with hw.open(place, durability="os") as ws:
            ws.topic("clicks", "n BIGINT").append([{"n": n} for n in range(rows)])
        assert open_log(str(place)).ends(["clicks"]) == {"clicks": {0: rows}}
        assert open_log(str(place)) is open_log(str(place))
        shutil.rmtree(place)
    with pytest.raises(hw.HeadwaterError):
        open_log(str(place))


def test_only_so_many_logs_stay_open(tmp_path: Path) -> None:
    places = [str(tmp_path / str(i)) for i in range(OPEN_MAX + 1)]
    for place in places:
        hw.open(place, durability="os").close()
    first = open_log(places[0])
    for place in places[1:]:
        open_log(place)
    assert open_log(places[0]) is not first
