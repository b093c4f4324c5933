"""The definition of a queue, a catalog entry, and the names of the topics that belong to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.options import Option, names_of
from headwater.catalog.rules import DEAD, NAME, check_column
from headwater.core.arguments import span_us, whole_number
from headwater.core.clock import Microseconds, format_span, parse_span_us
from headwater.core.errors import QueueNotFoundError, SchemaError, UsageError
from headwater.log.protocol import Entry, Log

QUEUE = "queue"
"""Kind of the catalog entries of queues."""
STATE_TOPICS = "_queue_"
"""Prefix of the names of the topics that store operations on messages."""
QUEUE_OPTIONS = (
    Option("lease", "span", "'30 seconds'", "Time for which a worker holds a message that it has received."),
    Option("deliveries", "whole number", "5", "Number of deliveries after which a message is a dead letter."),
    Option(
        "key",
        "columns",
        "none",
        "Columns that order the queue: messages with equal values are handed out one at a time, in log order.",
    ),
    Option(
        "delay",
        "column",
        "none",
        "Column that delays a message: the time from which it may be handed out, or the seconds after its append.",
    ),
)
"""Options of `ws.queue(name, topic=...)`."""
OPTIONS = names_of(QUEUE_OPTIONS)
LEASE_US = parse_span_us("30 seconds")
DELIVERIES = 5


@dataclass(frozen=True)
class QueueDefinition:
    """The definition of a queue: the topic whose records are its messages, and the rules for handing them out."""

    name: str
    topic: str
    key: tuple[str, ...] = ()
    """Columns that order the queue: messages that are equal in them are handed out one at a time, in log order."""
    delay: str | None = None
    """The column that delays a message: a time from which on it may be handed out, or seconds after its append."""
    lease_us: Microseconds = LEASE_US
    deliveries: int = DELIVERIES
    """Number of deliveries after which a message is dead."""

    @property
    def state_topic(self) -> str:
        """The topic with the records of operations on messages."""
        return f"{STATE_TOPICS}{self.name}"

    @property
    def dead_topic(self) -> str:
        """The topic of dead messages, with their errors."""
        return f"{self.name}.{DEAD}"

    @property
    def cursor(self) -> str:
        """The cursor on the queue's topic that keeps retention and compaction from removing messages that are not done."""
        return f"queue:{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return the definition as plain values that `from_entry` reads."""
        return {
            "topic": self.topic,
            "key": list(self.key),
            "delay": self.delay,
            "lease_us": self.lease_us,
            "deliveries": self.deliveries,
        }

    @classmethod
    def from_entry(cls, entry: Entry) -> QueueDefinition:
        """Return the definition in a catalog entry."""
        plain = entry.document
        return cls(
            entry.name,
            plain["topic"],
            tuple(plain["key"]),
            plain["delay"],
            plain["lease_us"],
            plain["deliveries"],
        )

    def shown(self) -> dict[str, str]:
        """Return the definition as texts by option."""
        facts = {"topic": self.topic, "lease": format_span(self.lease_us), "deliveries": str(self.deliveries)}
        facts |= {"key": ", ".join(self.key)} if self.key else {}
        return facts | ({"delay": self.delay} if self.delay else {})


def define_queue(name: Any, topic: TopicDefinition, options: Mapping[str, Any]) -> QueueDefinition:
    """Return a checked definition from the user's arguments."""
    if not isinstance(name, str) or not NAME.match(name):
        raise UsageError(
            f"{name!r} cannot be the name of a queue",
            hint="use letters, digits and underscores, not starting with a digit",
            argument="name",
            value=name,
        )
    lease, deliveries = options.get("lease"), options.get("deliveries")
    made = QueueDefinition(
        name,
        topic.name,
        _columns(options.get("key")),
        options.get("delay"),
        LEASE_US if lease is None else lease_of(lease),
        DELIVERIES if deliveries is None else whole_number(deliveries, "deliveries", least=1),
    )
    for column in made.key:
        check_column(topic, column)
    for column, _ in topic.private:
        if column in (*made.key, made.delay):
            raise SchemaError(
                f"queue {name!r} cannot use private column {column!r} of topic {topic.name!r} for its order or delay",
                detail="the queue needs the value even after its subject was forgotten",
                hint="use another column, such as an id without personal data",
                reason="private-column",
                queue=name,
                topic=topic.name,
                column=column,
            )
    if topic.partitions > 1 and made.key and not (topic.routing and set(topic.routing) <= set(made.key)):
        raise SchemaError(
            f"queue {name!r} cannot deliver in order of {', '.join(made.key)}: topic {topic.name!r} has messages of one key in "
            "several partitions",
            hint=f"use a topic with partition_by = '{made.key[0]}', or with one partition",
            reason="key-in-several-partitions",
            queue=name,
            topic=topic.name,
        )
    if made.delay is not None:
        kind = check_column(topic, made.delay).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise SchemaError(
                f"column {made.delay!r} of topic {topic.name!r} cannot delay messages: its type is neither TIMESTAMP nor a number",
                hint="use a TIMESTAMP, the time of the first delivery, or a number, seconds after the append",
                reason="delay-type",
                queue=name,
                topic=topic.name,
                column=made.delay,
            )
    return made


def lease_of(value: Any) -> Microseconds:
    """Return the duration of a lease; UsageError if it is not positive."""
    span = span_us(value, "lease")
    if span <= 0:
        raise UsageError(
            f"a lease must be longer than 0 seconds, not {value!r}",
            hint="lease='30 seconds'",
            argument="lease",
            value=value,
        )
    return span


def delay_of(value: Any) -> Microseconds:
    """Return a delay; 0 for None."""
    return 0 if value is None else span_us(value, "delay")


def _columns(key: Any) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) else () if key is None else key
    if not isinstance(columns, Sequence) or not all(isinstance(column, str) for column in columns):
        raise UsageError(
            f"key must be the name of a column or a list of names, not {key!r}",
            hint="key='customer'",
            argument="key",
            value=key,
        )
    return tuple(columns)


def definitions(log: Log) -> Mapping[str, QueueDefinition]:
    """Return every queue's definition, by name."""
    return {name: QueueDefinition.from_entry(entry) for name, entry in log.entries(QUEUE).items()}


def entry_of(log: Log, name: str) -> Entry:
    """Return the catalog entry of a queue; QueueNotFoundError."""
    entries = log.entries(QUEUE)
    found = entries.get(name)
    if found is None:
        known = ", ".join(sorted(entries))
        raise QueueNotFoundError(
            f"there is no queue {name!r}",
            hint=f"existing queues: {known}" if known else f'create it: ws.queue("{name}", topic="outbox")',
            queue=name,
        )
    return found
