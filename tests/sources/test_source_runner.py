"""From a source into the log: each transaction one atomic append with the position in it, wherever it dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog.conform import OPS
from headwater.catalog.definitions import TopicDefinition, add_column, define_topic
from headwater.core.clock import ManualClock, SystemClock
from headwater.core.errors import FencedError, HeadwaterError, LogTimeoutError
from headwater.log.embedded import EmbeddedLog
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append, Log
from headwater.sources.base import Commit, Event, Evolve, Position, Quiet, Rows
from headwater.sources.log_lookup import Lookups
from headwater.sources.source_runner import Capture, Capturing, producer_of
from tests.raising import raises

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TOPIC = dataclasses.replace(define_topic("people", SCHEMA, key=("id",)), captured_by="shop")


def rows(*people: tuple[int, str | None], op: str = "insert", topic: TopicDefinition = TOPIC) -> Rows:
    plain = [{"id": i, "name": name, "_op": OPS.index(op), "_source_position": 1} for i, name in people]
    return Rows(topic.name, pa.RecordBatch.from_pylist(plain, schema=topic.row_schema))


TRANSACTIONS: list[list[Rows]] = [
    [rows((1, "a"), (2, "b"))],
    [rows((1, "A"), op="update"), rows((3, "c"))],
    [rows((2, None), op="delete")],
    [],
    [rows((4, "d")), rows((5, "e")), rows((4, None), op="delete")],
]


class Died(OSError):
    """The process died."""


class Scripted:
    """Transactions that are there from the beginning; the sequence of each is its number, times ten."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.confirmed: list[int] = []
        self.fail_at = fail_at
        self.given = 0

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        if position is None:
            yield from self._event(Evolve(TOPIC))
        done = 0 if position is None else position["transactions"]
        assert sequence == done * 10 if position is not None else sequence == -1
        for number, transaction in enumerate(TRANSACTIONS[done:], done + 1):
            for part in transaction:
                yield from self._event(part)
            yield from self._event(Commit(number * 10, {"transactions": number}))
        while True:
            yield Quiet(len(TRANSACTIONS) * 10 + 3)

    def _event(self, event: Event) -> Iterator[Event]:
        if self.given == self.fail_at:
            raise Died("the connection is lost")
        self.given += 1
        yield event

    def durable(self, sequence: int, position: Position | None) -> None:
        self.confirmed.append(sequence)

    def end(self) -> int:
        return len(TRANSACTIONS) * 10

    def close(self) -> None:
        pass


def define(log: Log) -> Callable[[TopicDefinition], None]:
    def make(topic: TopicDefinition) -> None:
        if topic.name not in log.topics():
            log.create_topic(topic)

    return make


def capture(log: Log, source: Scripted) -> Capture:
    return Capture(log, "shop", source, define(log), SystemClock())


def contents(log: Log) -> list[tuple[Any, ...]]:
    end = log.ends(["people"])["people"][0]
    batches = log.read("people", 0, 0, end, ["id", "name", "_op", "_sequence"])
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.fixture(params=["memory", "embedded"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    made: Log = MemoryLog() if request.param == "memory" else EmbeddedLog.open(tmp_path / "log")
    yield made
    made.close()


def test_a_transaction_is_one_commit_and_is_confirmed_when_it_is_there(log: Log) -> None:
    source = Scripted()
    capture(log, source).run(until=50)
    by_commit: dict[int, list[int]] = {}
    for person, _, _, commit in contents(log):
        by_commit.setdefault(commit, []).append(person)
    assert list(by_commit.values()) == [[1, 2], [1, 3], [2], [4, 5, 4]]
    assert source.confirmed == [10, 20, 30, 40, 50]
    known = log.producer(producer_of("shop"))
    assert known is not None
    assert (known.sequence, known.note) == (50, {"transactions": 5})


@pytest.mark.parametrize("fail_at", range(13))
def test_wherever_it_dies_it_goes_on_with_nothing_lost_and_nothing_twice(log: Log, fail_at: int) -> None:
    undisturbed = MemoryLog()
    capture(undisturbed, Scripted()).run(until=50)
    with pytest.raises(Died):
        capture(log, Scripted(fail_at)).run(until=50)
    capture(log, Scripted()).run(until=50)
    assert [row[:3] for row in contents(log)] == [row[:3] for row in contents(undisturbed)]


def test_whoever_begins_later_takes_over(log: Log) -> None:
    first = capture(log, Scripted())
    first.run(until=20)
    second = capture(log, Scripted())
    with pytest.raises(FencedError):
        first.run(until=50)
    second.run(until=50)
    assert len(contents(log)) == 8


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_commit_that_its_process_died_of_before_it_was_published_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    log, others = EmbeddedLog.open(tmp_path / "log"), EmbeddedLog.open(tmp_path / "log")
    dying = capture(others, Scripted())
    dying.run(until=commits * 10) if commits else others.create_topic(TOPIC)

    def die(*_: object, **__: object) -> None:
        raise Died

    monkeypatch.setattr(others.core.flusher, "flush", die)
    with pytest.raises(Died):
        dying.run(until=50)
    known = log.producer(producer_of("shop"))
    assert (-1 if known is None else known.sequence) == (
        commits * 10 or -1
    )  # it is written, and nobody sees it
    second = capture(log, Scripted())
    assert second.progress.sequence == commits * 10 + 10
    second.run(until=50)
    assert len(contents(log)) == 8
    log.close()
    others.close()


def test_moving_on_without_rows_is_noted_for_others(log: Log) -> None:
    clock = ManualClock()
    moving = Capture(log, "shop", Scripted(), define(log), clock)
    moving.run(until=50)
    moving.run(until=53)
    known = log.producer(producer_of("shop"))
    assert known is not None
    assert (known.sequence, known.note) == (50, {"transactions": 5})
    clock.advance("1 minute")
    again = Capture(log, "shop", Scripted(), define(log), clock)
    clock.advance("1 minute")
    again.run(until=53)
    known = log.producer(producer_of("shop"))
    assert known is not None
    assert (known.sequence, known.note) == (53, {"transactions": 5})


def test_in_a_thread_it_goes_on_until_it_is_stopped_and_tells_why_it_ended(log: Log) -> None:
    going = Capturing("shop", lambda: capture(log, Scripted()), SystemClock())
    going.wait(53, 20)
    assert going.running
    going.stop()
    assert going.progress.rows == 8

    def broken() -> Capture:
        raise HeadwaterError("no way in", hint="knock", reason="no-way-in")

    ended = Capturing("shop", broken, SystemClock())
    with raises(HeadwaterError, reason="no-way-in"):
        ended.wait(1, 20)


def test_the_log_tells_the_live_keys_and_last_values_of_a_table(log: Log) -> None:
    capture(log, Scripted()).run(until=50)
    lookups = Lookups(log)
    assert lookups.definition("nobody") is None
    live = [row["id"] for batch in lookups.live_keys("people") for row in batch.to_pylist()]
    assert sorted(live) == [1, 3, 5]
    keys = pa.RecordBatch.from_pydict({"id": [5, 2, 1, 9, 3, 1]})
    found = lookups.last_values("people", keys, ["name"]).to_pylist()
    assert [(row["name"], row["_found"]) for row in found] == [
        ("e", True),
        (None, False),
        ("A", True),
        (None, False),
        ("c", True),
        ("A", True),
    ]


def test_last_values_are_found_far_back_and_by_several_key_columns(log: Log) -> None:
    schema = pa.schema([("shop", pa.string()), ("n", pa.int64()), ("text", pa.string()), ("x", pa.float64())])
    log.create_topic(define_topic("big", schema, key=("shop", "n"), options={"partitions": 3}))
    topic = log.topic("big")
    for start in range(0, 60_000, 20_000):
        numbers = range(start, start + 20_000)
        columns = {
            "shop": [f"s{i % 2}" for i in numbers],
            "n": [i // 2 % 25_000 for i in numbers],
            "text": [f"t{i}" for i in numbers],
            "x": [float(i) for i in numbers],
            "_op": [0] * 20_000,
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=topic.row_schema)
        log.append(Append({"big": [batch]}))
    wanted = [("s0", 0), ("s1", 24_999), ("s0", 12_345), ("s2", 1)]
    keys = pa.RecordBatch.from_pylist([{"shop": s, "n": n} for s, n in wanted])
    found = Lookups(log).last_values("big", keys, ["x", "text"]).to_pylist()
    last = {(f"s{i % 2}", i // 2 % 25_000): i for i in range(60_000)}
    assert [row["text"] for row in found] == [f"t{last[key]}" if key in last else None for key in wanted]
    assert [row["_found"] for row in found] == [True, True, True, False]


def test_a_value_of_before_a_column_was_added_is_null(log: Log) -> None:
    capture(log, Scripted()).run(until=50)
    known = log.topic("people")
    log.alter_topic(known, add_column(known, pa.field("age", pa.int64())))
    keys = pa.RecordBatch.from_pydict({"id": [1]})
    assert Lookups(log).last_values("people", keys, ["age", "name"]).to_pylist() == [
        {"age": None, "name": "A", "_found": True}
    ]


def test_what_passes_by_itself_is_tried_again(log: Log) -> None:
    tries = []

    def at_last() -> Capture:
        tries.append(1)
        if len(tries) < 3:
            raise LogTimeoutError("not now")
        return capture(log, Scripted())

    going = Capturing("shop", at_last, SystemClock())
    going.wait(50, 20)
    going.stop()
    assert len(tries) == 3
    assert len(contents(log)) == 8
