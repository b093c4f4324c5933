"""Where a streaming query is in a topic: asked of the source as Spark asks it, without a Spark."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import headwater as hw
from headwater.core.errors import GapError, OtherHistoryError, TopicNotFoundError, UsageError
from headwater.spark_datasource.datasource import HeadwaterDataSource
from headwater.spark_datasource.topic_reader import TopicSlice
from headwater.spark_datasource.topic_stream import TopicStreamReader
from tests.raising import raises

ALL = ReadAllAvailable()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[hw.Workspace]:
    """A workspace with a topic of two partitions."""
    with hw.open(tmp_path / "shop", durability="os") as ws:
        ws.sql("CREATE TOPIC clicks (n BIGINT) WITH (partitions = 2, partition_by = 'n')")
        yield ws


def source(ws: hw.Workspace, **options: Any) -> TopicStreamReader:
    """The source of a query that begins, or that starts again."""
    given = {"workspace": str(ws.path), "topic": "clicks", **{k: str(v) for k, v in options.items()}}
    made = HeadwaterDataSource(given)
    return made.streamReader(made.schema())


def append(ws: hw.Workspace, first: int, rows: int) -> None:
    ws.topic("clicks").append([{"n": n} for n in range(first, first + rows)])


def rows(reader: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """What the tasks of a batch read."""
    found = [
        n
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for n in batch["n"].to_pylist()
    ]
    return sorted(found)


def test_the_beginning_stays_however_often_it_is_asked_for(shop: hw.Workspace) -> None:
    reader = source(shop, starting="latest")
    first = reader.initialOffset()
    append(shop, 0, 10)
    assert reader.initialOffset() == first


def test_a_batch_goes_to_the_end_of_the_topic(shop: hw.Workspace) -> None:
    append(shop, 0, 10)
    reader = source(shop)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == list(range(10))
    append(shop, 10, 5)
    assert rows(reader, end, reader.latestOffset(end, ALL)) == list(range(10, 15))


def test_with_nothing_new_the_position_stays_as_it_is(shop: hw.Workspace) -> None:
    append(shop, 0, 10)
    reader = source(shop)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    assert rows(reader, end, end) == []


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_first_batch_that_is_repeated_after_a_crash_begins_where_it_began(
    shop: hw.Workspace, starting: str
) -> None:
    append(shop, 0, 10)
    before = source(shop, starting=starting)
    start = before.initialOffset()
    append(shop, 10, 5)
    end = before.latestOffset(start, ALL)
    expected = rows(before, start, end)
    append(shop, 15, 5)
    after = source(shop, starting="latest")
    assert rows(after, after.initialOffset(), end) == expected


def test_a_first_batch_without_rows_has_none_when_it_is_repeated(shop: hw.Workspace) -> None:
    append(shop, 0, 10)
    before = source(shop, starting="latest")
    end = before.latestOffset(before.initialOffset(), ALL)
    append(shop, 10, 5)
    after = source(shop, starting="latest")
    assert rows(after, after.initialOffset(), end) == []
    assert rows(after, end, after.latestOffset(end, ALL)) == list(range(10, 15))


def test_a_bounded_batch_holds_no_more_rows_than_allowed(shop: hw.Workspace) -> None:
    for n in range(20):
        append(shop, n, 1)
    reader = source(shop, maxRowsPerTrigger=7)
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    at = reader.initialOffset()
    batches = []
    while (end := reader.latestOffset(at, ReadMaxRows(7))) != at and len(batches) < 9:
        batches.append(rows(reader, at, end))
        at = end
    assert batches == [list(range(7)), list(range(7, 14)), list(range(14, 20))]


def test_an_atomic_append_is_never_split(shop: hw.Workspace) -> None:
    append(shop, 0, 3)
    append(shop, 3, 10)
    append(shop, 13, 2)
    reader = source(shop)
    at = reader.initialOffset()
    batches = []
    while (end := reader.latestOffset(at, ReadMaxRows(4))) != at and len(batches) < 9:
        batches.append(len(rows(reader, at, end)))
        at = end
    assert batches == [3, 10, 2]


def test_a_query_over_what_is_available_now_ends_there(shop: hw.Workspace) -> None:
    append(shop, 0, 10)
    reader = source(shop)
    reader.prepareForTriggerAvailableNow()
    append(shop, 10, 5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == list(range(10))
    assert reader.latestOffset(end, ALL) == end
    assert reader.reportLatestOffset() != end


def test_a_query_from_the_latest_over_what_is_available_now_reads_nothing(shop: hw.Workspace) -> None:
    append(shop, 0, 10)
    reader = source(shop, starting="latest")
    reader.prepareForTriggerAvailableNow()
    append(shop, 10, 5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == []
    assert reader.latestOffset(end, ALL) == end


@pytest.mark.parametrize(("rows_per_task", "tasks"), [(100, range(10, 13)), (1_000, range(1, 2))])
def test_large_ranges_are_split_and_small_ones_share_a_task(
    shop: hw.Workspace, rows_per_task: int, tasks: range
) -> None:
    append(shop, 0, 1_000)
    reader = source(shop, rowsPerTask=rows_per_task)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = reader.partitions(start, end)
    spans = [sum(r.end - r.start for r in part.ranges) for part in parts if isinstance(part, TopicSlice)]
    assert len(spans) in tasks
    assert sum(spans) == 1_000
    assert max(spans) <= rows_per_task
    assert rows(reader, start, end) == list(range(1_000))


def _remove_history(ws: hw.Workspace) -> None:
    """Retention by time takes everything that is sealed."""
    ws.maintain()
    ws.sql("ALTER TOPIC clicks SET (retention = '1 millisecond')")
    ws.maintain()
    assert all(info.first == info.end for info in ws.topic("clicks").partitions().values())
    ws.sql("ALTER TOPIC clicks SET (retention = '1 day')")


def test_a_gap_is_an_error_that_says_what_to_do(shop: hw.Workspace) -> None:
    append(shop, 0, 100)
    reader = source(shop)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    _remove_history(shop)
    with raises(GapError, topic="clicks") as caught:
        reader.latestOffset(start, ALL)
    assert '.option("onGap", "skip")' in caught.value.hint
    with pytest.raises(GapError):
        reader.partitions(start, end)


def test_a_gap_that_opens_while_a_task_reads_is_an_error_too(shop: hw.Workspace) -> None:
    append(shop, 0, 100)
    reader = source(shop)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    _remove_history(shop)
    with raises(GapError, topic="clicks") as caught:
        list(reader.read(parts[0]))
    assert '.option("onGap", "skip")' in caught.value.hint


def test_a_gap_can_be_skipped(shop: hw.Workspace) -> None:
    append(shop, 0, 100)
    reader = source(shop, onGap="skip")
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    _remove_history(shop)
    append(shop, 100, 10)
    assert list(reader.read(parts[0])) == []
    assert rows(reader, start, reader.latestOffset(start, ALL)) == list(range(100, 110))
    assert rows(reader, start, reader.latestOffset(start, ReadMaxRows(3))) == list(range(100, 110))


def test_a_topic_that_was_made_again_is_another_one(shop: hw.Workspace) -> None:
    append(shop, 0, 10)
    reader = source(shop)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = reader.partitions(start, end)
    shop.sql("DROP TOPIC clicks; CREATE TOPIC clicks (n BIGINT) WITH (partitions = 2, partition_by = 'n')")
    append(shop, 0, 10)
    with raises(TopicNotFoundError, topic="clicks", reason="recreated") as caught:
        reader.latestOffset(end, ALL)
    assert "checkpointLocation" in caught.value.hint
    with raises(TopicNotFoundError, topic="clicks", reason="recreated"):
        reader.partitions(start, end)
    with raises(TopicNotFoundError, topic="clicks", reason="recreated"):
        list(reader.read(parts[0]))


def test_a_checkpoint_of_another_topic_is_refused(shop: hw.Workspace) -> None:
    reader = source(shop)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with raises(UsageError, checkpoint_topic="views", topic="clicks"):
        reader.latestOffset({**end, "topic": "views"}, ALL)
    with raises(UsageError, reason="other-source"):
        reader.latestOffset({"offset": 10}, ALL)


def test_a_topic_that_ends_before_the_query_is_refused(shop: hw.Workspace) -> None:
    append(shop, 0, 10)
    reader = source(shop)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with raises(TopicNotFoundError, topic="clicks", position=1_000):
        reader.latestOffset({**end, "offsets": {"0": 1_000, "1": 1_000}}, ALL)


def test_a_query_goes_on_when_its_topic_is_widened(shop: hw.Workspace) -> None:
    shop.sql("CREATE TOPIC sums (n INT)")
    made = HeadwaterDataSource({"workspace": str(shop.path), "topic": "sums"})
    reader = made.streamReader(made.schema())
    start = reader.initialOffset()
    shop.sql("ALTER TOPIC sums ALTER COLUMN n TYPE BIGINT; ALTER TOPIC sums ADD COLUMN label STRING")
    shop.topic("sums").append([{"n": 1, "label": "a"}])
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == [1]
    shop.topic("sums").append([{"n": 2**40}])
    with raises(hw.SchemaError, topic="sums", column="n", expected="INT"):
        rows(reader, end, reader.latestOffset(end, ALL))


def test_an_older_copy_of_the_workspace_is_refused_wherever_it_has_come_to(tmp_path: Path) -> None:
    copy, folder = tmp_path / "copy", tmp_path / "shop"
    with hw.open(folder, durability="os") as ws:
        ws.sql("CREATE TOPIC clicks (n BIGINT)")
        append(ws, 0, 3)
    shutil.copytree(folder, copy)
    with hw.open(folder, durability="os") as ws:
        reader = source(ws)
        start = reader.initialOffset()
        before = {**reader.latestOffset(start, ALL)}
        for n in range(3, 6):
            append(ws, n, 1)
        seen = reader.latestOffset(before, ALL)
        assert rows(reader, before, seen) == [3, 4, 5]
        commit = ws.log.commit_id(ws.log.sequence())
        assert seen["commit"] == f"{ws.log.sequence()}-{commit}"
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with hw.open(folder, durability="os") as ws:
        append(ws, 100, 20)  # one commit: the topic is longer than it was, the log is not
        reader = source(ws)
        for _ in range(2):
            with raises(OtherHistoryError, token=seen["commit"]):
                reader.latestOffset(seen, ALL)
            with raises(OtherHistoryError, token=seen["commit"]):
                reader.partitions(before, seen)
            assert len(rows(reader, before, reader.latestOffset(before, ALL))) >= 20
            for n in range(200, 206):
                append(ws, n, 1)
        old = {name: value for name, value in seen.items() if name != "commit"}
        assert (
            reader.latestOffset(old, ALL) != old
        )  # a checkpoint of an earlier version has the numbers alone
