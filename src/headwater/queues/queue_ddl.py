"""Creates, finds and drops queues: a catalog entry, the topics that belong to the queue, and the cursor that holds
retention back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.catalog.definitions import define_topic
from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.errors import ConflictError, QueueExistsError, TopicExistsError, UsageError
from headwater.core.types import quote
from headwater.log.protocol import Append, Log
from headwater.log.reader import Start, resolve_start
from headwater.queues.folded_queue import POSITION
from headwater.queues.message_positions import place_of
from headwater.queues.queue_dead_letters import make_letters
from headwater.queues.queue_definition import QUEUE, QueueDefinition, define_queue, entry_of
from headwater.queues.queue_records import SCHEMA, Op, to_batch

RETENTION = "1 hour"
"""Time that records of operations on messages are kept after a checkpoint covers them."""


def create_queue(
    log: Log, name: str, topic: str, start: Start, options: Mapping[str, Any]
) -> QueueDefinition:
    """Create a queue, or return the existing one if its definition is equal; QueueExistsError, with the difference, if
    it is not.

    The topics and cursors are created first and the entry last: an interrupted call leaves no queue, and can be
    repeated.
    """
    made = define_queue(name, log.topic(topic), options)
    known = log.entries(QUEUE).get(name)
    if known is None:
        _make_state(log, made, start)
        make_letters(log, made)
        try:
            log.put_entry(QUEUE, made.name, made.to_json(), expect=None)
            return made
        except ConflictError:  # another process created it first
            known = entry_of(log, name)
    there = QueueDefinition.from_entry(known)
    differs = [
        f"{k}: {there.shown().get(k)}, not {v}" for k, v in made.shown().items() if there.shown().get(k) != v
    ]
    differs += [f"{k}: {v}, not unset" for k, v in there.shown().items() if k not in made.shown()]
    if differs:
        raise QueueExistsError(
            f"queue {there.name!r} already exists with another definition",
            detail="; ".join(differs),
            hint=f'ws.queue("{there.name}") opens the existing queue; ws.drop_queue("{there.name}") drops it',
            queue=there.name,
            difference=differs,
        )
    return there


def _make_state(log: Log, queue: QueueDefinition, start: Start) -> None:
    name = queue.state_topic
    try:
        log.create_topic(define_topic(name, SCHEMA, options={"retention": RETENTION}))
    except TopicExistsError:
        if log.topic(name).schema.names != SCHEMA.names:
            raise UsageError(
                f"queue {queue.name!r} needs the topic {name!r} for its state, but a topic of that name with other columns exists",
                hint="choose another name for the queue",
                queue=queue.name,
                topic=name,
            ) from None
    log.create_cursor(name, POSITION, {0: 0}, True)
    begins = resolve_start(log, queue.topic, start)
    log.create_cursor(queue.topic, queue.cursor, begins, True)
    passed = tuple((place_of(p, 0), place_of(p, offset)) for p, offset in sorted(begins.items()) if offset)
    if passed:
        try:
            batch = to_batch([Op("skip", ranges=passed)], log.topic(name).row_schema)
            log.append(Append({name: [batch]}, expect={name: {0: 0}}))
        except ConflictError:  # an earlier attempt appended it
            pass


def drop_queue(log: Log, name: str) -> None:
    """Drop a queue with all that belongs to it, its dead messages included; QueueNotFoundError. The queue's topic stays
    unchanged."""
    entry = entry_of(log, name)
    queue = QueueDefinition.from_entry(entry)
    _refuse_read(log, queue)
    log.drop_entry(QUEUE, queue.name, expect=entry.sequence)
    topics = log.topics()
    if queue.topic in topics and log.cursor(queue.topic, queue.cursor) is not None:
        log.drop_cursor(queue.topic, queue.cursor)
    for topic in (queue.state_topic, queue.dead_topic):
        if topic in topics:
            log.drop_topic(topic)


def _refuse_read(log: Log, queue: QueueDefinition) -> None:
    """Raise UsageError while a view reads the dead messages, which would be dropped with the queue."""
    for name, entry in log.entries("view").items():
        if queue.dead_topic in ViewDefinition.from_document(entry.document).reads:
            raise UsageError(
                f"queue {queue.name!r} cannot be dropped: view {name!r} reads {queue.dead_topic}",
                hint=f"DROP VIEW {quote(name)} first",
                queue=queue.name,
                view=name,
            )


def queues_on(log: Log, topic: str) -> list[str]:
    """Return the names of the queues on a topic."""
    return sorted(name for name, entry in log.entries(QUEUE).items() if entry.document["topic"] == topic)
