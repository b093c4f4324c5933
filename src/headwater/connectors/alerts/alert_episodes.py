"""Episodes of alerts: which alerts are firing, and which notifications were sent, as records of the topic `_alerts`.

A record is the state of one episode, by alert and key: pending while its condition holds but has not held for long enough,
then firing, then over. It is deleted when its end was reported, or if it never fired. So firing and pending episodes survive
every process. Of two processes that evaluate at once the second is rejected, because an append names the end of the topic
that its writer has read. A notice on a topic is in the same append as the record of the episode: it is sent exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.clock import Microseconds, from_us
from headwater.core.errors import ConflictError, TopicExistsError, UsageError
from headwater.core.types import TIMESTAMP
from headwater.log.protocol import Append, Log

TOPIC = "_alerts"
SCHEMA = pa.schema(
    [
        pa.field("alert", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("episode", pa.int64()),
        pa.field("incarnation", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("told", pa.string()),
        pa.field("fired_at", pa.int64()),
        pa.field("ended_at", pa.int64()),
        pa.field("row", pa.string()),
    ]
)
NOTICES = pa.schema(
    [
        pa.field("alert", pa.string(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("episode", TIMESTAMP, nullable=False),
        pa.field("at", TIMESTAMP, nullable=False),
        pa.field("on", pa.string(), nullable=False),
        pa.field("condition", pa.string(), nullable=False),
        pa.field("row", pa.string()),
    ]
)
"""Columns of a topic of alert notices."""

Event = Literal["fired", "over"]


@dataclass(frozen=True)
class Episode:
    """A period in which an alert's condition holds, for one key. `episode`, the time at which it began to hold, identifies
    it."""

    alert: str
    key: str
    episode: Microseconds
    incarnation: int
    state: Literal["pending", "firing", "over"]
    fired_at: Microseconds
    """Time at which the episode fired; of a pending episode, its start."""
    row: str
    """Row that met the condition then, as JSON."""
    told: Event | None = None
    """Last event that the receiver of notifications has taken."""
    ended_at: Microseconds | None = None

    @property
    def unsent(self) -> Event | None:
        """Event to report next, or None."""
        if self.state == "pending":
            return None
        if self.told is None:
            return "fired"
        return "over" if self.state == "over" and self.told == "fired" else None

    def at(self, event: Event) -> Microseconds:
        """Return the time of an event."""
        return self.fired_at if event == "fired" or self.ended_at is None else self.ended_at

    def notice(self, event: Event, on: str, condition: str) -> dict[str, Any]:
        """Return the row that reports an event."""
        return {
            "alert": self.alert,
            "event": event,
            "key": self.key,
            "episode": from_us(self.episode),
            "at": from_us(self.at(event)),
            "on": on,
            "condition": condition,
            "row": self.row,
        }


class Episodes:
    """The episodes that are not over, or whose end was not reported, read from the log. Not thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._incarnation: int | None = None
        self._read_to = 0
        self._episodes: dict[tuple[str, str], Episode] = {}

    def refresh(self) -> Mapping[tuple[str, str], Episode]:
        """Read what was written since the last call, and return the episodes by alert and key."""
        topic = self._log.topics().get(TOPIC)
        if topic is None:
            self._incarnation, self._read_to, self._episodes = None, 0, {}
            return self._episodes
        _refuse_other(topic)
        info = self._log.partitions(TOPIC)[0]
        # compaction may have removed the deletion of an episode that is cached here
        if topic.incarnation != self._incarnation or max(info.first, info.compacted_to) > self._read_to:
            self._incarnation, self._read_to, self._episodes = topic.incarnation, info.first, {}
        columns = [*SCHEMA.names, "_op"]
        for batch in self._log.read(TOPIC, 0, self._read_to, info.end, columns):
            for row in batch.to_pylist():
                deleted = row.pop("_op") == "delete"
                place = (row["alert"], row["key"])
                if deleted:
                    self._episodes.pop(place, None)
                else:
                    self._episodes[place] = Episode(**row)
        self._read_to = info.end
        return self._episodes

    def write(
        self,
        changed: Sequence[Episode],
        done: Sequence[Episode] = (),
        notices: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    ) -> bool:
        """Write states, delete finished episodes, and write notices to topics, in one append. Return False, with nothing
        written, if another process has written since `refresh`."""
        topic = self._topic()
        rows = [asdict(episode) for episode in changed]
        rows += [{"alert": e.alert, "key": e.key, "_op": "delete"} for e in done]
        batches = {TOPIC: [conform(rows, topic)]}
        made_for = {TOPIC: topic.incarnation}
        for name, sent in (notices or {}).items():
            target = make_notices(self._log, name)
            batches[target.name] = [conform(list(sent), target)]
            made_for[target.name] = target.incarnation
        try:
            self._log.append(Append(batches, expect={TOPIC: {0: self._read_to}}, incarnations=made_for))
        except ConflictError:
            return False
        finally:
            self.refresh()
        return True

    def _topic(self) -> TopicDefinition:
        if TOPIC not in self._log.topics():
            try:
                made = define_topic(TOPIC, SCHEMA, key=("alert", "key"), options={"cleanup": "compact"})
                self._log.create_topic(made)
            except TopicExistsError:
                # Another process created the topic. Both expect an empty topic, so the first to append wins.
                pass
        return self._log.topic(TOPIC)


def make_notices(log: Log, name: str) -> TopicDefinition:
    """Return the topic for notices of alerts, created if missing; UsageError if it has other columns."""
    known = log.topics().get(name)
    if known is None:
        log.create_topic(define_topic(name, NOTICES))
        return log.topic(name)
    if not known.schema.equals(NOTICES) or known.key:
        raise UsageError(
            f"topic {known.name!r}, to which an alert would write notices, exists with other columns",
            hint="name another topic, which is created with the columns of a notice",
            topic=known.name,
        )
    return known


def _refuse_other(known: TopicDefinition) -> None:
    if known.key != ("alert", "key") or not known.schema.equals(SCHEMA):
        raise UsageError(
            f"topic {TOPIC!r}, which stores the episodes of alerts, exists with other columns",
            hint=f"copy it to another topic, then DROP TOPIC {TOPIC}",
            topic=TOPIC,
        )
