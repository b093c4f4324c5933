"""Records that a sink has copied to a topic, found once others have replaced them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.connectors.deletion.copied_topics import replaced
from headwater.core.clock import ManualClock

CHANGELOG = "url STRING, n BIGINT, _weight BIGINT, _tick BIGINT"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ws(tmp_path: Path, clock: ManualClock) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", clock=clock) as made:
        yield made


def gone(ws: hw.Workspace, topic: str, since: int) -> dict[int, list[int]]:
    return replaced(ws.log, ws.log.topic(topic), since)


def told(url: str, n: int, weight: int) -> dict[str, Any]:
    return {"url": url, "n": n, "_weight": weight, "_tick": 1}


def test_of_a_table_what_was_replaced_since_and_tombstones(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql("CREATE TOPIC c (url STRING, n BIGINT NOT NULL, PRIMARY KEY (url))")
    topic = ws.topic("c")
    topic.append(
        [{"url": "/a", "n": 1}, {"url": "/b", "n": 1}, {"url": "/b", "n": 2}, {"url": "/old", "n": 2}]
    )
    clock.advance("1 minute")
    since = clock.now_us()
    assert gone(ws, "c", since) == {}, "what was replaced before stays"
    topic.append([{"url": "/a", "n": 3}, {"url": "/new", "n": 3}, {"url": "/a", "n": 4}])
    topic.delete([{"url": "/new"}, {"url": "/old"}])
    assert gone(ws, "c", since) == {0: [4, 5, 7]}, "without its tombstone /old would be there again"
    assert gone(ws, "c", 0) == {0: [0, 1, 3, 4, 5, 7, 8]}
    ws.log.excise("c", {0: [4, 5, 7]})
    assert gone(ws, "c", since) == {}


def test_of_a_changelog_what_was_taken_back_since(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql(f"CREATE TOPIC c ({CHANGELOG})")
    topic = ws.topic("c")
    topic.append([told("/a", 1, 1), told("/b", 1, 2), told("/c", 1, 1), told("/c", 1, -1)])
    clock.advance("1 minute")
    since = clock.now_us()
    assert gone(ws, "c", since) == {}
    topic.append([told("/a", 1, -1), told("/a", 2, 1), told("/b", 1, -1), told("/a", 2, -1)])
    assert gone(ws, "c", since) == {0: [5, 7]}
    assert gone(ws, "c", 0) == {0: [0, 2, 3, 4, 5, 7]}


def test_of_rows_that_only_come_nothing(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC c (url STRING)")
    ws.topic("c").append([{"url": "/a"}, {"url": "/a"}])
    assert gone(ws, "c", 0) == {}
    ws.sql("CREATE TOPIC d (url STRING, PRIMARY KEY (url))")
    assert gone(ws, "d", 0) == {}
