"""Backpressure: what becomes of an append when a cursor marked hold is too far behind, by the topic's own choice."""

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from tests.raising import raises


@pytest.fixture(params=["memory", "folder"])
def ws(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    place = "memory:" if request.param == "memory" else str(tmp_path / "ws")
    with hw.open(place, durability="os") as ws:
        yield ws


def rows(count: int, first: int = 0) -> list[dict[str, int]]:
    return [{"id": n} for n in range(first, first + count)]


def caught_up(cursor: Any) -> None:
    for _ in cursor.read():
        cursor.commit()


def count(topic: Any) -> int:
    return sum(info.rows for info in topic.partitions().values())


def test_a_topic_that_refuses_says_who_is_behind_and_writes_nothing(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (id BIGINT) WITH (backlog_rows = 10, when_behind = 'refuse', partitions = 2)")
    clicks = ws.topic("clicks")
    clicks.append(rows(20))  # nobody holds yet, and nothing is behind
    mailer = clicks.cursor("mailer", hold=True)
    clicks.cursor("other")  # does not hold, and does not count
    with raises(hw.BacklogError, topic="clicks", cursor="mailer", rows=20, backlog_rows=10):
        clicks.append(rows(1))
    with pytest.raises(hw.BacklogError):
        ws.append({"clicks": rows(1)})
    with pytest.raises(hw.BacklogError), ws.transaction() as transaction:
        transaction.append("clicks", iter(rows(1)))
    assert count(clicks) == 20
    caught_up(mailer)
    clicks.append(rows(25, 20))  # taken whole, since nothing is behind
    with pytest.raises(hw.BacklogError):
        clicks.append(rows(1))
    clicks.append(rows(0))


def test_a_repeat_of_what_was_written_is_answered_all_the_same(ws: hw.Workspace) -> None:
    clicks = ws.topic("clicks", "id BIGINT", backlog_rows=3, when_behind="refuse")
    clicks.cursor("mailer", hold=True)
    first = clicks.append(rows(3), producer="p", sequence=1)
    assert clicks.append(rows(3), producer="p", sequence=1) == first
    with pytest.raises(hw.BacklogError):
        clicks.append(rows(1), producer="p", sequence=2)


def test_a_topic_that_blocks_waits_until_its_reader_moves_on(ws: hw.Workspace) -> None:
    clicks = ws.topic("clicks", "id BIGINT", backlog_rows=5, when_behind="block")
    mailer = clicks.cursor("mailer", hold=True)
    clicks.append(rows(5))
    begun, done = threading.Event(), threading.Event()

    def produce() -> None:
        begun.set()
        clicks.append(rows(2, 5))
        done.set()

    thread = threading.Thread(target=produce)
    thread.start()
    begun.wait()
    assert not done.wait(0.1)
    assert count(clicks) == 5
    caught_up(mailer)
    thread.join()
    assert count(clicks) == 7


def test_a_topic_that_blocks_gives_up_in_the_end(ws: hw.Workspace) -> None:
    clicks = ws.topic("clicks", "id BIGINT", backlog_rows=5, when_behind="block", block_for="50 ms")
    clicks.cursor("mailer", hold=True)
    clicks.append(rows(5))
    with raises(hw.BacklogError, rows=5, waited="50 milliseconds"):
        clicks.append(rows(1))


def test_a_topic_grows_unless_it_is_told_otherwise(ws: hw.Workspace) -> None:
    clicks = ws.topic("clicks", "id BIGINT", backlog_rows=5)
    clicks.cursor("mailer", hold=True)
    clicks.append(rows(50))
    clicks.append(rows(50))
    ws.sql("ALTER TOPIC clicks SET (when_behind = 'refuse')")
    with pytest.raises(hw.BacklogError):
        clicks.append(rows(1))
    assert count(clicks) == 100


def test_a_topic_may_drop_its_oldest_unless_somebody_holds_it(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os", clock=ManualClock()) as ws:
        ws.sql("CREATE TOPIC clicks (id BIGINT) WITH (backlog_rows = 80, when_behind = 'drop_oldest')")
        clicks = ws.topic("clicks")
        for first in range(0, 400, 10):
            clicks.append(rows(10, first))
        ws.maintain()
        assert 80 <= count(clicks) < 100
        last = [row["id"] for batch in clicks.read() for row in batch.to_pylist()][-80:]
        assert last == list(range(320, 400)), "the newest are there"
        clicks.cursor("mailer", hold=True)
        for first in range(400, 600, 10):
            clicks.append(rows(10, first))
        before = count(clicks)
        ws.maintain()
        assert count(clicks) == before


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_what_drops_its_oldest_has_the_newest_and_little_more(
    tmp_path: Path, partitions: int, seed: int
) -> None:
    """After upkeep each partition has its share of `backlog_rows`, and at most an eighth and an append more."""
    chance, backlog = random.Random(seed), 240
    with hw.open(tmp_path / "ws", durability="os", clock=ManualClock()) as ws:
        clicks = ws.topic(
            "clicks", "id BIGINT", backlog_rows=backlog, when_behind="drop_oldest", partitions=partitions
        )
        ids = itertools.count()
        kept, largest, written = backlog // partitions, 0, [0] * partitions
        for _ in range(40):
            size = chance.choice([1, 3, 20, 20, 150])
            receipt = clicks.append([{"id": next(ids)} for _ in range(size)])
            spans = receipt.positions["clicks"]
            for number, (first, end) in spans.items():
                largest, written[number] = max(largest, end - first), end
            if chance.random() < 0.3:
                ws.maintain()
                for number, info in ws.log.partitions("clicks").items():
                    there = [
                        offset
                        for batch in ws.log.read("clicks", number, info.first, info.end, ["_offset"])
                        for offset in batch["_offset"].to_pylist()
                    ]
                    assert there == list(range(info.first, written[number])), "the newest, without a gap"
                    assert min(kept, written[number]) <= len(there) <= kept + kept // 8 + largest


def test_its_oldest_are_dropped_without_anybody_asking(tmp_path: Path) -> None:
    often = LogSettings(durability="os", maintenance_every_ms=20)
    with hw.open(tmp_path / "ws", settings=often) as ws:
        clicks = ws.topic("clicks", "id BIGINT", backlog_rows=80, when_behind="drop_oldest")
        for first in range(0, 400, 10):
            clicks.append(rows(10, first))
        until = time.monotonic() + 20
        while count(clicks) > 100:
            assert time.monotonic() < until
            ws.log.wait_commit(ws.log.sequence(), 20)


def test_the_memory_log_drops_its_oldest_too() -> None:
    with hw.open("memory:") as ws:
        clicks = ws.topic("clicks", "id BIGINT", backlog_rows=80, when_behind="drop_oldest")
        for first in range(0, 400, 10):
            clicks.append(rows(10, first))
        ws.maintain()
        assert count(clicks) == 80


def test_a_queue_is_a_reader_that_holds(ws: hw.Workspace) -> None:
    clicks = ws.topic("clicks", "id BIGINT", backlog_rows=5, when_behind="refuse")
    queue = ws.queue("work", topic="clicks")
    clicks.append(rows(5))
    with raises(hw.BacklogError, cursor="queue:work"):
        clicks.append(rows(1))
    queue.ack(queue.receive(5))
    while queue.receive(1, wait=0.05) or ws.log.cursor("clicks", "queue:work").positions[0] < 5:
        pass
    clicks.append(rows(5))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ("when_behind = 'block'", {"option": "backlog_rows", "reason": "missing-option"}),
        ("backlog_rows = 5, when_behind = 'panic'", {"option": "when_behind", "value": "panic"}),
        ("backlog_rows = 5, block_for = '1 second'", {"option": "block_for", "reason": "missing-option"}),
        ("backlog_rows = -1, when_behind = 'block'", {"argument": "backlog_rows", "value": -1}),
    ],
)
def test_what_cannot_be_meant_is_refused(ws: hw.Workspace, options: str, facts: dict[str, Any]) -> None:
    with raises(hw.StatementError, **facts):
        ws.sql(f"CREATE TOPIC clicks (id BIGINT) WITH ({options})")


def test_a_keyed_topic_does_not_drop_its_oldest(ws: hw.Workspace) -> None:
    with raises(hw.SchemaError, option="when_behind", reason="has-key"):
        ws.topic("customers", "id BIGINT", key="id", backlog_rows=5, when_behind="drop_oldest")


def test_the_choice_is_part_of_the_topics_statement(ws: hw.Workspace) -> None:
    clicks = ws.topic("clicks", "id BIGINT", backlog_rows=5, when_behind="block", block_for="5 seconds")
    said = clicks.definition.to_sql()
    assert "backlog_rows = 5" in said
    assert "when_behind = 'block'" in said
    assert "block_for = '5 seconds'" in said
    assert type(clicks.definition).from_json(clicks.definition.to_json()) == clicks.definition
