"""Routing and checks of an append, without side effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import adapt
from headwater.core.errors import ConflictError, FencedError, UsageError
from headwater.log.memory.memory_partition import comparable, writing_schema
from headwater.log.memory.memory_topic import MemoryTopic
from headwater.log.protocol import CursorMove
from headwater.log.routing import route

Plan = Mapping[int, pa.RecordBatch]
"""Rows of an append for each partition of a topic."""


def plan_append(topic: MemoryTopic, batches: Sequence[pa.RecordBatch]) -> Plan:
    """Assign rows to partitions; each of several batches is routed as if those before it had been written."""
    ends = {p: partition.end for p, partition in enumerate(topic.partitions)}
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for p, piece in route(adapt(batch, writing_schema(topic.definition)), topic.definition, ends).items():
            pieces.setdefault(p, []).append(piece)
            ends[p] += piece.num_rows
    return {p: pa.concat_batches(parts) for p, parts in pieces.items()}


def check_expected(topic: MemoryTopic, plan: Plan, expected: int | Mapping[Any, int]) -> None:
    """Raise ConflictError unless the log is at the offsets, or record counts, that the appender expects."""
    actual: int | Mapping[Any, int]
    if isinstance(expected, int):
        if len(plan) != 1:
            raise UsageError(
                f"expect={expected} needs rows for one partition of topic {topic.definition.name!r}, but they go to {len(plan)}",
                hint="write expect={partition: offset}",
                topic=topic.definition.name,
                partitions=len(plan),
            )
        actual = topic.partitions[next(iter(plan))].end
    elif topic.definition.versioned_by is not None:
        actual = {key: topic.versions[_stored_key(topic, key)] for key in expected}
    else:
        actual = {p: topic.partition(p).end for p in expected}
    if actual != expected:
        raise ConflictError(
            f"topic {topic.definition.name!r} is at {actual}, expected {expected}",
            detail="another writer appended first; nothing was written",
            hint="read the new records, decide again, and append with the new position",
            topic=topic.definition.name,
            expected=expected,
            actual=actual,
        )


def check_moves(topic: MemoryTopic, move: CursorMove) -> None:
    """Raise FencedError unless the member still owns the partitions that it moves."""
    if move.cursor not in topic.cursors:
        raise UsageError(
            f"topic {move.topic!r} has no cursor {move.cursor!r}",
            hint=f"create it with topic.cursor({move.cursor!r})",
            topic=move.topic,
            cursor=move.cursor,
        )
    for p in move.positions:
        topic.partition(p)
        group = topic.groups.get(move.cursor)
        if move.member is not None and (group is None or not group.owns(move.member, p)):
            raise FencedError(
                f"member {move.member!r} of group {move.cursor!r} no longer owns partition {p} of {move.topic!r}",
                hint="discard the rows read from it; the new owner reads them again",
                topic=move.topic,
                partition=p,
                member=move.member,
            )


def _stored_key(topic: MemoryTopic, key: Any) -> tuple[Any, ...]:
    kind = topic.definition.schema.field(topic.definition.versioned_by).type
    try:
        return comparable([pa.scalar(key, kind).as_py()])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{key!r} cannot be a {topic.definition.versioned_by!r} of topic {topic.definition.name!r}",
            hint="expect must be {key: number of its records} on this topic",
            topic=topic.definition.name,
            key=key,
        ) from None
