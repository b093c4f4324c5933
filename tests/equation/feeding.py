"""Topics with event times that are fed at random, and their log as the model has it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from tests.equation.late_model import MINUTE, SECOND, Late, Log, Policy, Punctuation, Row

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
NOON = 1_767_268_800_000_000
"""2026-01-01 12:00 UTC"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PARTITIONS = 2
MAX_AHEAD = 10 * MINUTE
STEP = 10 * SECOND
LATENESS = {"clicks": MINUTE, "pays": 30 * SECOND, "acks": 45 * SECOND, "tips": 20 * SECOND}
"""By topic."""


def declared(topics: Sequence[str], options: str = "") -> str:
    """The statements that make the topics."""
    return "; ".join(
        f"CREATE TOPIC {topic} (user BIGINT, x INT, at TIMESTAMP, "
        f"WATERMARK FOR at AS at - INTERVAL '{LATENESS[topic] // SECOND} seconds') "
        f"WITH (partitions = {PARTITIONS}, partition_by = 'user'{options})"
        for topic in topics
    )


def created(name: str, select: str, policy: Policy) -> str:
    """The CREATE of a view."""
    options = f"WITH (late = '{policy.late}')"
    if policy.correct_for is not None:
        options = f"WITH (correct_for = '{policy.correct_for // SECOND} seconds')"
    emit = " EMIT ON WINDOW CLOSE" if policy.emits else ""
    return f"CREATE MATERIALIZED VIEW {name} {options} AS {select}{emit}"


@dataclass
class Feed:
    """What writes into the topics of a workspace, which may be opened anew meanwhile."""

    ws: hw.Workspace
    topics: Sequence[str]
    clock: ManualClock
    chance: random.Random
    lag: Mapping[str, int] = field(default_factory=dict)
    """By topic: how much its times are behind those of others."""
    is_orderly: bool = False
    """Nothing is ever late."""
    max_ahead: int | None = None
    punctuations: tuple[Punctuation, ...] = ()
    appended: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """When each row was."""

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Rows around the time that it is by now, most of them in time and on round seconds."""
        made = []
        for _ in range(self.chance.randint(1, 5)):
            away = self.chance.choice([0, 0, 1, 2, 3, 6, 9, 12, 20, 30, self._ahead()]) * STEP
            if self.is_orderly:
                away = min(max(away, 0), LATENESS[topic] - 6 * SECOND)
            at = self.clock.now_us() - self.lag.get(topic, 0) - away
            at += self.chance.choice([0, 0, 0, -1, 1, 5 * SECOND])
            made.append({"user": self.chance.randint(1, 4), "x": self.chance.randint(0, 5), "at": moment(at)})
        return made

    def _ahead(self) -> int:
        return -100 if self.chance.random() < 0.1 and self.max_ahead is not None else 4

    def append(self, topic: str) -> None:
        """Some rows."""
        receipt = self.ws.topic(topic).append(self.rows(topic))
        now = self.clock.now_us()
        for partition, (first, end) in receipt.positions[topic].items():
            self.appended |= {(topic, partition, offset): now for offset in range(first, end)}

    def punctuate(self, topic: str) -> None:
        """A word of the time, or a little before or after it; one in ten rows will not keep it."""
        at = self.clock.now_us() - self.lag.get(topic, 0) - self.chance.choice([0, 1, 3, 6, -3]) * STEP
        ends = self._ends(topic)
        self.ws.topic(topic).punctuate(moment(at))
        self.punctuations += tuple(Punctuation(topic, p, end, at) for p, end in ends.items())

    def finish(self) -> None:
        """Say of every topic that nothing is to come."""
        for topic in self.topics:
            ends = self._ends(topic)
            self.ws.topic(topic).finish()
            at = micros(self.ws.topic(topic).watermark(0))
            self.punctuations += tuple(Punctuation(topic, p, end, at) for p, end in ends.items())

    def play(self, times: int) -> None:
        """Appends, most to the first topic, and punctuations unless all is in order, while time goes on."""
        for _ in range(times):
            self.clock.advance(timedelta(seconds=10 * self.chance.randint(0, 6)))
            topic = self.chance.choice([*self.topics, self.topics[0]])
            if self.is_orderly or self.chance.random() < 0.75:
                self.append(topic)
            else:
                self.punctuate(topic)

    def log(self) -> Log:
        """What the topics have by now."""
        rows = [
            Row(
                topic,
                row["_partition"],
                row["_offset"],
                micros(row["at"]),
                row["user"],
                row["x"],
                self.appended[topic, row["_partition"], row["_offset"]],
            )
            for topic in self.topics
            for batch in self.ws.topic(topic).read("earliest")
            for row in batch.to_pylist()
        ]
        lateness = {topic: LATENESS[topic] for topic in self.topics}
        return Log(lateness, PARTITIONS, tuple(rows), self.punctuations, self.max_ahead)

    def _ends(self, topic: str) -> dict[int, int]:
        return {p: info.end for p, info in self.ws.topic(topic).partitions().items()}


def moment(us: int) -> datetime:
    """A time."""
    return EPOCH + timedelta(microseconds=us)


def micros(value: Any) -> Any:
    """Times as microseconds, windows as pairs of them, all else as it is."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, dict):
        return tuple(micros(part) for part in value.values())
    return value


def contents(table: pa.Table) -> Counter[Any]:
    """A table as a multiset, as the model has it."""
    columns = [column.to_pylist() for column in table.columns]
    return Counter(tuple(map(micros, row)) for row in zip(*columns, strict=True))


def told(late: Sequence[Late], topics: Sequence[str]) -> Counter[Any]:
    """What `<view>.late` says of late rows, each once for every window that it missed."""
    found = {
        (
            *((each.row.topic,) if len(topics) > 1 else ()),
            each.row.user,
            each.row.x,
            each.row.at,
            *(each.window or (None, None)),
            each.lateness,
            each.watermark,
            each.row.partition,
            each.row.offset,
        )
        for each in late
    }
    return Counter(found)
