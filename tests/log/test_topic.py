"""The handle of a topic: appending in every form, and reading to a cut, from anywhere, and onwards."""

import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.log.topic import END_OF_TIME, Topic
from tests.raising import raises

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def numbers(ws: hw.Workspace) -> Topic:
    return ws.topic("numbers", "n BIGINT, word STRING", partitions=1)


@pytest.fixture
def shared(ws: hw.Workspace) -> Topic:
    return ws.topic("shared", "n BIGINT, at TIMESTAMP, WATERMARK FOR at", partitions=3, partition_by="n")


def values(batches: Iterable[pa.RecordBatch], column: str = "n") -> list[Any]:
    return [value for batch in batches for value in batch.column(column).to_pylist()]


def rows(start: int, end: int) -> list[dict[str, Any]]:
    return [{"n": n, "word": f"w{n}"} for n in range(start, end)]


def batches(*ranges: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    for start, end in ranges:
        yield pa.RecordBatch.from_pylist(rows(start, end))


@pytest.mark.parametrize(
    "given",
    [
        lambda: rows(0, 5),
        lambda: tuple(rows(0, 5)),
        lambda: iter(rows(0, 5)),
        lambda: pa.Table.from_pylist(rows(0, 5)),
        lambda: pa.RecordBatch.from_pylist(rows(0, 5)),
        lambda: pa.Table.from_pylist(rows(0, 5)).to_reader(),
        lambda: batches((0, 2), (2, 5)),
        lambda: pd.DataFrame(rows(0, 5)),
        lambda: pl.DataFrame(rows(0, 5)),
    ],
    ids=["list", "tuple", "iterator", "table", "batch", "reader", "batches", "pandas", "polars"],
)
def test_rows_of_every_form_are_one_append(numbers: Topic, given: Any) -> None:
    receipt = numbers.append(given())
    assert receipt == hw.Receipt({"numbers": {0: (0, 5)}})
    (batch,) = numbers.read()
    assert batch.schema.names == ["n", "word", "_partition", "_offset"]
    assert batch.schema.field("_partition").type == pa.int32()
    assert batch.to_pylist() == [{**row, "_partition": 0, "_offset": row["n"]} for row in rows(0, 5)]


def test_a_bad_row_in_a_stream_is_counted_from_its_beginning_and_nothing_is_written(numbers: Topic) -> None:
    with raises(hw.BadRowError, row=70_000) as caught:
        numbers.append({"n": "x" if n == 70_000 else n} for n in range(80_000))
    assert "row 70000 " in caught.value.message
    assert values(numbers.read()) == []


def test_a_repeated_sequence_is_answered_with_the_first_receipt(numbers: Topic) -> None:
    first = numbers.append(rows(0, 3), producer="loader", sequence=1)
    assert numbers.append(rows(0, 3), producer="loader", sequence=1) == first
    assert numbers.append(iter(rows(0, 3)), producer="loader", sequence=1) == first
    assert values(numbers.read()) == [0, 1, 2]


def test_producer_and_sequence_belong_together(numbers: Topic) -> None:
    with raises(hw.UsageError, producer="loader", reason="no-sequence"):
        numbers.append(rows(0, 1), producer="loader")
    with raises(hw.UsageError, reason="no-producer"):
        numbers.append(rows(0, 1), sequence=1)
    with raises(hw.UsageError, argument="sequence", value=-1):
        numbers.append(rows(0, 1), producer="loader", sequence=-1)


@pytest.mark.parametrize("name", [("x",), 5, b"x", "", "a\nb", "x" * 201, ["x"]])
def test_a_producer_has_a_name_that_prints(ws: hw.Workspace, numbers: Topic, name: Any) -> None:
    with raises(hw.UsageError, argument="producer", value=name):
        numbers.append(rows(0, 1), producer=name, sequence=1)
    with raises(hw.UsageError, argument="producer", value=name):
        ws.transaction(producer=name, sequence=1)
    assert values(numbers.read()) == []


@pytest.mark.parametrize("wrong", ["1", 1.0, True, np.bool_(True), np.timedelta64(1, "s"), -1, None])
def test_sequence_and_epoch_are_whole_numbers(numbers: Topic, wrong: Any) -> None:
    missing = {"producer": "loader", "reason": "no-sequence"}
    with raises(hw.UsageError, **(missing if wrong is None else {"argument": "sequence", "value": wrong})):
        numbers.append(rows(0, 1), producer="loader", sequence=wrong)
    if wrong is not None:
        with raises(hw.UsageError, argument="epoch", value=wrong):
            numbers.append(rows(0, 1), producer="loader", sequence=1, epoch=wrong)


def test_sequence_and_epoch_may_be_numpys(numbers: Topic) -> None:
    first = numbers.append(rows(0, 1), producer="loader", sequence=np.int64(1), epoch=np.uint8(2))
    assert numbers.append(rows(0, 1), producer="loader", sequence=1, epoch=2) == first
    with pytest.raises(hw.FencedError):
        numbers.append(rows(0, 1), producer="loader", sequence=2, epoch=1)


@pytest.mark.parametrize(
    "wrong", ["2", 1.7, True, -1, {0: "2"}, {0: 1.7}, {0: True}, {"0": 2}, {0.5: 2}, [0]]
)
def test_expect_is_of_whole_numbers(numbers: Topic, wrong: Any) -> None:
    for given in (rows(0, 1), iter(rows(0, 1))):
        with raises(hw.UsageError, reason=None) as caught:
            numbers.append(given, expect=wrong)
        assert caught.value.argument in ("expect", "a partition in expect")
    assert values(numbers.read()) == []


def test_expect_may_be_numpys(numbers: Topic) -> None:
    numbers.append(rows(0, 1), expect=np.int64(0))
    numbers.append(rows(1, 2), expect={np.int64(0): np.int32(1)})
    assert values(numbers.read()) == [0, 1]


def test_expect_on_a_versioned_topic_is_by_key(ws: hw.Workspace) -> None:
    events = ws.topic("events", "id STRING, n BIGINT", versioned_by="id")
    wrong: Any
    for wrong in (0, "a", True):
        with raises(hw.UsageError, topic="events", argument="expect", value=wrong) as caught:
            events.append([{"id": "a", "n": 1}], expect=wrong)
        assert "{key: count of its records}" in (caught.value.hint or "")
    with raises(hw.UsageError, argument="expect of key 'a'", value=0.0):
        events.append([{"id": "a", "n": 1}], expect={"a": 0.0})  # type: ignore[dict-item]
    events.append([{"id": "a", "n": 1}], expect={"a": np.int64(0)})
    assert values(events.read()) == [1]


def test_expect_lets_one_of_two_win(numbers: Topic) -> None:
    numbers.append(rows(0, 1), expect=0)
    with pytest.raises(hw.ConflictError):
        numbers.append(rows(1, 2), expect=0)
    numbers.append(rows(1, 2), expect={0: 1})
    assert values(numbers.read()) == [0, 1]


def test_deletes_are_tombstones(ws: hw.Workspace) -> None:
    people = ws.topic("people", "id BIGINT, name STRING NOT NULL", key="id")
    people.append([{"id": 1, "name": "Ada"}])
    people.delete([{"id": 1}])
    people.delete(pa.table({"id": [2]}))
    people.delete({"id": n} for n in (3,))
    (*_, last) = found = [row for batch in people.read() for row in batch.to_pylist()]
    assert [row["_op"] for row in found] == ["upsert", "delete", "delete", "delete"]
    assert (last["id"], last["name"]) == (3, None)


def test_a_topic_without_a_key_has_no_deletes(numbers: Topic) -> None:
    with raises(hw.UsageError, topic="numbers", reason="no-primary-key"):
        numbers.delete([{"n": 1}])


def test_a_read_ends_at_the_cut_taken_when_it_began(numbers: Topic) -> None:
    numbers.append(rows(0, 3))
    reader = numbers.read()
    numbers.append(rows(3, 6))
    assert values(reader) == [0, 1, 2]
    assert reader.positions == {0: 3}
    assert values(numbers.read(reader.positions)) == [3, 4, 5]


def test_places_to_begin(numbers: Topic, clock: ManualClock) -> None:
    numbers.append(rows(0, 3))
    clock.advance("1 hour")
    moment = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    numbers.append(rows(3, 5))
    assert values(numbers.read("earliest")) == [0, 1, 2, 3, 4]
    assert values(numbers.read("latest")) == []
    assert values(numbers.read({0: 4})) == [4]
    assert values(numbers.read(moment)) == [3, 4]
    assert values(numbers.read(from_time=moment - timedelta(minutes=1))) == [3, 4]
    assert values(numbers.read(from_time=moment + timedelta(minutes=1))) == []


def test_reading_by_event_time(shared: Topic) -> None:
    shared.append([{"n": 1, "at": NOON + timedelta(minutes=m)} for m in range(5)])
    assert values(shared.read(from_time=NOON + timedelta(minutes=3), by="event", partitions=[0, 1, 2])) == [
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"start": "middle"}, {"argument": "start", "value": "middle"}),
        ({"start": {7: 0}}, {"partition": 7}),
        ({"start": {0: 99}}, {"partition": 0, "offset": 99}),
        ({"start": {0: -1}}, {"partition": 0, "offset": -1}),
        ({"partitions": [4]}, {"partition": 4}),
        ({"columns": ["nope"]}, {"topic": "numbers", "column": "nope"}),
        ({"columns": "n"}, {"argument": "columns", "value": "n"}),
        ({"on_gap": "ignore"}, {"argument": "on_gap", "value": "ignore"}),
        ({"batch_rows": 0}, {"argument": "batch_rows", "value": 0}),
        ({"start": "latest", "from_time": NOON}, {"argument": "from_time", "value": NOON}),
        ({"from_time": NOON, "by": "event"}, {"reason": "no-event-time"}),
        ({"from_time": NOON, "by": "moon"}, {"argument": "by", "value": "moon"}),
    ],
)
def test_wrong_reads_are_refused_at_once(
    numbers: Topic, options: dict[str, Any], facts: dict[str, Any]
) -> None:
    with raises(hw.UsageError, **facts):
        numbers.read(**options)


def test_columns_select_and_order(numbers: Topic) -> None:
    numbers.append(rows(0, 2))
    (batch,) = numbers.read(columns=["_appended_at", "word", "_sequence"])
    assert batch.schema.names == ["_appended_at", "word", "_sequence"]
    (only,) = numbers.read(columns=["_partition"])
    assert only.to_pydict() == {"_partition": [0, 0]}


def test_batches_are_of_one_partition_and_no_longer_than_asked(shared: Topic) -> None:
    shared.append([{"n": n, "at": NOON} for n in range(100)])
    reader = shared.read(batch_rows=7)
    seen: list[int] = []
    for batch in reader:
        assert 0 < batch.num_rows <= 7
        assert len(set(batch.column("_partition").to_pylist())) == 1
        partition, last = batch.column("_partition")[0].as_py(), batch.column("_offset")[-1].as_py()
        assert reader.positions[partition] == last + 1
        seen += batch.column("n").to_pylist()
    assert sorted(seen) == list(range(100))


def test_positions_pass_over_punctuation(shared: Topic) -> None:
    shared.punctuate(NOON)
    reader = shared.read()
    assert list(reader) == []
    assert reader.positions == {0: 1, 1: 1, 2: 1}
    assert shared.watermark(0) == NOON
    assert shared.watermark(0, 0) is None
    shared.finish()
    assert {shared.watermark(p) for p in shared.partitions()} == {END_OF_TIME}


def test_a_topic_without_event_time_cannot_be_punctuated(numbers: Topic) -> None:
    with raises(hw.UsageError, topic="numbers", reason="no-event-time"):
        numbers.punctuate(NOON)


def test_wrong_places_in_time(shared: Topic) -> None:
    wrong: Any
    for wrong in (9, -1, "0", 0.0):
        facts = {"partition": 9} if wrong == 9 else {"argument": "partition", "value": wrong}
        with raises(hw.UsageError, **facts):
            shared.watermark(wrong)
        with raises(hw.UsageError, **facts):
            shared.watermark(wrong, 0)
    for wrong in ("0", 1.5, -1):
        with raises(hw.UsageError, argument="offset", value=wrong):
            shared.watermark(0, wrong)
    for wrong in ("2026-01-31", 5, None):
        with raises(hw.UsageError, argument="moment", value=wrong):
            shared.punctuate(wrong)


def test_following_waits_for_what_comes_and_ends_in_silence(numbers: Topic) -> None:
    numbers.append(rows(0, 1))
    reader = numbers.read("earliest", follow=True, timeout=0.2)
    assert next(reader).column("n").to_pylist() == [0]
    writer = threading.Timer(0.05, lambda: numbers.append(rows(1, 2)))
    writer.start()
    assert next(reader).column("n").to_pylist() == [1]
    writer.join()
    assert list(reader) == []


def test_a_closed_reader_ends(numbers: Topic) -> None:
    numbers.append(rows(0, 10))
    reader = numbers.read(follow=True, batch_rows=1)
    next(reader)
    reader.close()
    assert list(reader) == []


def test_followers_see_columns_that_were_added(ws: hw.Workspace, numbers: Topic) -> None:
    reader = numbers.read(follow=True, timeout=1)
    numbers.append(rows(0, 1))
    assert "more" not in next(reader).schema.names
    ws.sql("ALTER TOPIC numbers ADD COLUMN more INT")
    numbers.append([{"n": 1, "more": 7}])
    assert next(reader).column("more").to_pylist() == [7]


def lose_some(ws: hw.Workspace, numbers: Topic, clock: ManualClock) -> None:
    """Five rows of which retention has removed the first three, in a maintenance step of its own."""
    ws.sql("ALTER TOPIC numbers SET (retention = '1 hour')")
    numbers.append(rows(0, 3))
    ws.maintain()
    clock.advance("2 hours")
    numbers.append(rows(3, 5))
    ws.maintain()


def test_a_removed_position_is_an_error(ws: hw.Workspace, numbers: Topic, clock: ManualClock) -> None:
    lose_some(ws, numbers, clock)
    reader = numbers.read({0: 1})
    for _ in range(2):  # and stays one
        with raises(hw.GapError, first_available=3, missed=2):
            next(reader)


@pytest.mark.parametrize(("on_gap", "kept", "lost"), [("earliest", [3, 4], 2), ("latest", [], 4)])
def test_or_the_reader_goes_on_with_the_loss_counted(
    ws: hw.Workspace, numbers: Topic, clock: ManualClock, on_gap: Any, kept: list[int], lost: int
) -> None:
    lose_some(ws, numbers, clock)
    reader = numbers.read({0: 1}, on_gap=on_gap)
    assert values(reader) == kept
    assert reader.lost == lost
    assert reader.positions == {0: 5}


def test_a_topic_made_anew_under_a_follower_is_noticed(ws: hw.Workspace, numbers: Topic) -> None:
    numbers.append(rows(0, 3))
    reader = numbers.read("latest", follow=True, timeout=0.1)
    ws.sql("DROP TOPIC numbers; CREATE TOPIC numbers (n BIGINT)")
    with raises(hw.TopicNotFoundError, topic="numbers", reason="recreated"):
        next(reader)


def test_a_handle_needs_a_topic(ws: hw.Workspace) -> None:
    with raises(hw.TopicNotFoundError, topic="nothing"):
        ws.topic("nothing")


def test_an_offset_alone_is_enough_where_there_is_one_partition(ws: hw.Workspace) -> None:
    topic = ws.topic("one", "n INT")
    topic.append([{"n": n} for n in range(5)])
    assert [n for batch in topic.read(3) for n in batch.column("n").to_pylist()] == [3, 4]
    cursor = topic.cursor("c")
    assert cursor.seek(2) == {0: 2}
    several = ws.topic("several", "n INT", partitions=2)
    with raises(hw.UsageError, topic="several", offset=0, partitions=2):
        several.read(0)
    assert list(several.read(0, partitions=[1])) == []


def test_a_large_append_to_more_partitions_than_files_are_held_open(ws: hw.Workspace) -> None:
    many = ws.topic("many", "n BIGINT, m BIGINT", partitions=300, partition_by="n")
    numbers = np.arange(600_000)
    receipt = many.append(pa.table({"n": numbers, "m": -numbers}))
    assert sum(end - start for start, end in receipt.positions["many"].values()) == len(numbers)
    read = pa.concat_tables([pa.Table.from_batches([batch]) for batch in many.read()]).sort_by("n")
    assert read.column("n").to_numpy().tolist() == numbers.tolist()
    assert read.column("m").to_numpy().tolist() == (-numbers).tolist()
