"""Cursors: what comes again after a crash and what does not, how far behind they are, and where they can go."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.log.cursor import Cursor, Lag
from headwater.log.embedded.maintenance import Maintenance
from headwater.log.topic import Topic
from tests.log.test_topic import rows, values
from tests.raising import raises


@pytest.fixture
def numbers(ws: hw.Workspace) -> Topic:
    topic = ws.topic("numbers", "n BIGINT, word STRING")
    topic.append(rows(0, 6))
    return topic


def test_reading_begins_at_what_was_committed(numbers: Topic) -> None:
    cursor = numbers.cursor("mailer")
    assert values(cursor.read()) == [0, 1, 2, 3, 4, 5]
    assert values(cursor.read()) == [0, 1, 2, 3, 4, 5], "nothing was committed"
    cursor.commit()
    assert cursor.position() == {0: 6}
    assert values(numbers.cursor("mailer").read()) == []
    numbers.append(rows(6, 7))
    assert values(numbers.cursor("mailer").read()) == [6]


def test_commit_covers_what_was_handed_out_and_no_more(numbers: Topic) -> None:
    cursor = numbers.cursor("mailer")
    reading = cursor.read(batch_rows=2)
    next(reading), next(reading)
    cursor.commit()
    assert cursor.position() == {0: 4}
    next(reading)
    assert cursor.position() == {0: 4}
    assert values(numbers.cursor("mailer").read()) == [4, 5]


@pytest.mark.parametrize(
    ("commit", "again"), [(None, [0, 1, 2, 3, 4, 5]), ("after", [2, 3, 4, 5]), ("before", [4, 5])]
)
def test_what_comes_again_after_a_crash(numbers: Topic, commit: Any, again: list[int]) -> None:
    """The consumer dies while it works on its second batch."""
    reading = numbers.cursor("mailer").read(batch_rows=2, commit=commit)
    next(reading), next(reading)
    assert values(numbers.cursor("mailer").read()) == again


def test_automatic_commit_covers_all_once_the_loop_is_through(numbers: Topic) -> None:
    for _ in numbers.cursor("mailer").read(batch_rows=4, commit="after"):
        pass
    assert numbers.cursor("mailer").position() == {0: 6}


def test_explicit_positions(numbers: Topic) -> None:
    cursor = numbers.cursor("mailer")
    cursor.commit({0: 3})
    assert values(cursor.read()) == [3, 4, 5]
    with raises(hw.UsageError, partition=0, offset=99):
        cursor.commit({0: 99})


def test_output_and_position_move_together(ws: hw.Workspace, numbers: Topic) -> None:
    out = ws.topic("out", "n BIGINT")
    cursor = numbers.cursor("doubler")
    for batch in cursor.read(batch_rows=2):
        ws.append({"out": [{"n": 2 * n} for n in batch.column("n").to_pylist()]}, commit=cursor)
        if len(values(out.read())) == 4:
            break
    again = numbers.cursor("doubler")
    assert again.position() == {0: 4}
    for batch in again.read():
        ws.append({"out": [{"n": 2 * n} for n in batch.column("n").to_pylist()]}, commit=again)
    assert values(out.read()) == [0, 2, 4, 6, 8, 10]


def test_an_append_that_fails_leaves_the_position(ws: hw.Workspace, numbers: Topic) -> None:
    ws.topic("out", "n BIGINT")
    cursor = numbers.cursor("doubler")
    next(cursor.read())
    with pytest.raises(hw.BadRowError):
        ws.append({"out": [{"n": "x"}]}, commit=cursor)
    with pytest.raises(hw.ConflictError):
        ws.append({"out": [{"n": 1}]}, expect={"out": 7}, commit=cursor)
    assert cursor.position() == {0: 0}
    ws.append({"out": [{"n": 1}]}, commit=cursor)
    assert cursor.position() == {0: 6}


def test_lag_in_rows_and_in_time(numbers: Topic, clock: ManualClock) -> None:
    cursor = numbers.cursor("mailer")
    clock.advance("90 seconds")
    assert cursor.lag() == Lag(6, 90.0)
    cursor.commit({0: 6})
    assert cursor.lag() == Lag(0, 0.0)


def test_seeking_is_durable_and_takes_a_reader_along(numbers: Topic, clock: ManualClock) -> None:
    cursor = numbers.cursor("mailer")
    reading = cursor.read(batch_rows=3)
    assert next(reading).column("n").to_pylist() == [0, 1, 2]
    cursor.seek({0: 1})
    assert next(reading).column("n").to_pylist() == [1, 2, 3]
    assert numbers.cursor("mailer").position() == {0: 1}
    assert cursor.seek("latest") == {0: 6}
    assert list(reading) == []
    clock.advance("1 hour")
    moment = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    numbers.append(rows(6, 8))
    cursor.seek("earliest")
    cursor.seek(moment)
    assert values(cursor.read()) == [6, 7]


def test_a_mapping_moves_only_the_partitions_it_names(ws: hw.Workspace) -> None:
    topic = ws.topic("two", "n BIGINT", partitions=2, partition_by="n")
    topic.append([{"n": n} for n in range(20)])
    cursor = topic.cursor("c", start="latest")
    before = cursor.position()
    cursor.seek({0: 0})
    assert cursor.position() == {0: 0, 1: before[1]}


def test_start_counts_only_for_a_new_cursor(numbers: Topic) -> None:
    assert numbers.cursor("late", start="latest").position() == {0: 6}
    assert numbers.cursor("late", start="earliest").position() == {0: 6}


def test_hold_keeps_what_is_unread_and_stays_until_it_is_taken_back(
    ws: hw.Workspace, numbers: Topic, clock: ManualClock
) -> None:
    numbers.cursor("slow", hold=True)
    numbers.cursor("slow")  # says nothing about hold
    ws.sql("ALTER TOPIC numbers SET (retention = '1 hour')")
    ws.maintain()
    clock.advance("2 hours")
    ws.maintain()
    assert numbers.partitions()[0].first == 0
    numbers.cursor("slow", hold=False)
    ws.maintain()
    assert numbers.partitions()[0].first == 6


def test_a_hold_that_is_laid_while_maintenance_is_at_work_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    ws = hw.open(tmp_path / "ws", clock=clock)
    numbers = ws.topic("numbers", "n BIGINT, word STRING", partitions=1, retention="1 hour")
    numbers.append(rows(0, 6))
    ws.maintain()
    clock.advance("2 hours")
    swap = Maintenance._swap

    def late(self: Maintenance, *args: Any, **options: Any) -> bool:
        numbers.cursor("new", hold=True)
        return swap(self, *args, **options)

    monkeypatch.setattr(Maintenance, "_swap", late)
    assert ws.maintain().rows_removed == 0
    assert numbers.partitions()[0].first == 0
    ws.close()


def fallen(ws: hw.Workspace, numbers: Topic, clock: ManualClock, on_gap: Any) -> Cursor:
    cursor = numbers.cursor("slow", on_gap=on_gap)
    ws.sql("ALTER TOPIC numbers SET (retention = '1 hour')")
    ws.maintain()
    clock.advance("2 hours")
    numbers.append(rows(6, 8))
    ws.maintain()
    return cursor


def test_a_cursor_that_fell_off_says_so(ws: hw.Workspace, numbers: Topic, clock: ManualClock) -> None:
    cursor = fallen(ws, numbers, clock, "fail")
    with raises(hw.GapError, first_available=6, missed=6):
        next(cursor.read())


def test_or_goes_on_and_its_loss_is_kept(ws: hw.Workspace, numbers: Topic, clock: ManualClock) -> None:
    cursor = fallen(ws, numbers, clock, "earliest")
    assert values(cursor.read()) == [6, 7]
    assert cursor.lost == 6
    cursor.commit()
    cursor.commit()
    assert cursor.lost == 6
    assert numbers.cursor("slow").lost == 6


def test_a_dropped_cursor_begins_anew(numbers: Topic) -> None:
    cursor = numbers.cursor("mailer")
    cursor.commit({0: 6})
    cursor.drop()
    with raises(hw.UsageError, cursor="mailer", reason="dropped"):
        cursor.position()
    assert numbers.cursor("mailer").position() == {0: 0}


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 201])
def test_names_print_on_one_line(numbers: Topic, name: str) -> None:
    with raises(hw.UsageError, argument="name", value=name):
        numbers.cursor(name)


def test_commit_is_one_of_three(numbers: Topic) -> None:
    with raises(hw.UsageError, argument="commit", value="sometimes"):
        numbers.cursor("mailer").read(commit="sometimes")  # type: ignore[arg-type]


def test_a_gap_at_the_end_is_no_lag(ws: hw.Workspace) -> None:
    topic = ws.topic("timed", "n BIGINT, at TIMESTAMP", time="at")
    topic.append([{"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}])
    topic.finish()
    cursor = topic.cursor("mailer")
    assert cursor.lag().rows > 0
    for _ in cursor.read():
        cursor.commit()
    assert cursor.lag() == Lag(0, 0.0)
    assert [c.rows for c in ws.lag()] == [0]
    with topic.group("mailer") as member:
        assert member.lag().rows == 0


def test_numbers_of_numpy_are_positions(numbers: Topic) -> None:
    cursor = numbers.cursor("mailer")
    cursor.commit({np.int64(0): np.int64(3)})
    assert cursor.position() == {0: 3}
    cursor.seek({np.int32(0): np.uint8(5)})
    assert values(cursor.read()) == [5]
    assert values(numbers.read({np.int64(0): np.int64(4)}, partitions=np.array([0]))) == [4, 5]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"columns": ["n", "n"]}, {"column": "n", "reason": "duplicate-column"}),
        ({"partitions": 0}, {"argument": "partitions", "value": 0}),
        ({"partitions": "0"}, {"argument": "partitions", "value": "0"}),
        ({"start": {0: True}}, {"partition": 0, "offset": True}),
        ({"batch_rows": "5"}, {"argument": "batch_rows", "value": "5"}),
        ({"timeout": "1 second"}, {"argument": "timeout", "value": "1 second"}),
        ({"timeout": -1}, {"argument": "timeout", "value": -1}),
    ],
)
def test_wrong_options_of_a_read_are_refused(
    numbers: Topic, options: dict[str, Any], facts: dict[str, Any]
) -> None:
    with raises(hw.UsageError, **facts):
        numbers.read(**options)
    if not options.keys() & {"partitions", "start"}:
        for consumer in (numbers.cursor("mailer"), numbers.group("others")):
            with raises(hw.UsageError, **facts):
                consumer.read(**options)


def test_closing_a_reader_wakes_the_thread_that_waits_in_it(numbers: Topic) -> None:
    reader = numbers.read("latest", follow=True)
    thread = threading.Thread(target=lambda: list(reader), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    reader.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_follower_does_not_swallow_that_the_folder_is_gone(
    numbers: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = numbers.read("latest", follow=True, timeout=0.01)
    log: Any = reader._log

    def quiet(*_: Any) -> bool:
        monkeypatch.setattr(log, "partitions", gone)
        return False

    def gone(*_: Any) -> Any:
        raise hw.WorkspaceMissingError("the folder is gone")

    monkeypatch.setattr(log, "wait", quiet)
    with pytest.raises(hw.WorkspaceMissingError):
        next(reader)
