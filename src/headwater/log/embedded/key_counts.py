"""Record counts of the keys of a versioned topic: the basis of optimistic concurrency per aggregate.

Kept in memory per partition, read once from the key column, then updated with every commit of any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.core.errors import ConflictError, UsageError
from headwater.log.embedded.journal.journal_state import TopicState
from headwater.log.routing import partition_of_key

ReadColumns = Callable[[TopicState, int, int, int, Sequence[str]], Iterator[pa.RecordBatch]]
"""(topic, partition, start, end, columns) -> batches."""


class _Counts:
    def __init__(self, topic: TopicState) -> None:
        self.topic = topic
        self.end = 0
        self.by_key: dict[Any, int] = {}


class KeyCounts:
    """Counts per key, by topic id and partition. Used under the writer's lock."""

    def __init__(self, read: ReadColumns) -> None:
        self._read = read
        self._counts: dict[tuple[int, int], _Counts] = {}

    def number(
        self, topic: TopicState, routed: Mapping[int, list[pa.RecordBatch]]
    ) -> tuple[dict[int, list[pa.RecordBatch]], dict[int, dict[Any, int]]]:
        """Return the rows with their `_version`, the ordinal of the record among its key's, from 1; and the counts per key for
        `advance` once they are committed."""
        numbered: dict[int, list[pa.RecordBatch]] = {}
        fresh: dict[int, dict[Any, int]] = {}
        for partition, batches in routed.items():
            counts = self._current(topic, partition).by_key
            latest = fresh.setdefault(partition, {})
            for batch in batches:
                ordinals = []
                for key in batch.column(topic.definition.versioned_by).to_pylist():
                    latest[key] = latest.get(key, counts.get(key, 0)) + 1
                    ordinals.append(latest[key])
                versions = pa.array(ordinals, pa.int64())
                numbered.setdefault(partition, []).append(batch.append_column("_version", versions))
        return numbered, fresh

    def advance(self, topic: TopicState, fresh: Mapping[int, Mapping[Any, int]]) -> None:
        """Apply the counts of rows that were just committed."""
        for partition, latest in fresh.items():
            counts = self._counts[topic.id, partition]
            counts.by_key.update(latest)
            counts.end = topic.partitions[partition].end

    def check(self, topic: TopicState, expected: Mapping[Any, int]) -> None:
        """Raise ConflictError unless every key has as many records as expected."""
        actual = {key: self.count(topic, key) for key in expected}
        for key, count in expected.items():
            if actual[key] != count:
                raise ConflictError(
                    f"{topic.definition.versioned_by} {key!r} of topic {topic.definition.name!r} "
                    f"has {actual[key]} records, not {count}",
                    detail="another writer appended first; nothing was written",
                    hint="load the new records, decide again, and append with the new count",
                    topic=topic.definition.name,
                    expected=dict(expected),
                    actual=actual,
                )

    def count(self, topic: TopicState, key: Any) -> int:
        """Return the number of records of a key; UsageError if the value cannot be a key."""
        kind = topic.definition.schema.field(topic.definition.versioned_by).type
        try:
            key = pa.scalar(key, kind).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise UsageError(
                f"{key!r} cannot be a {topic.definition.versioned_by} of topic {topic.definition.name!r}",
                hint="expect must be {key: number of its records} on this topic",
                topic=topic.definition.name,
                key=key,
            ) from None
        partition = partition_of_key(topic.definition, [key])
        return self._current(topic, partition).by_key.get(key, 0)

    def _current(self, topic: TopicState, partition: int) -> _Counts:
        counts = self._counts.get((topic.id, partition))
        if (
            counts is None or counts.topic is not topic
        ):  # the state was reloaded: counted records may have been voided
            counts = self._counts[topic.id, partition] = _Counts(topic)
        end = topic.partitions[partition].end
        if counts.end < end:
            columns = [topic.definition.versioned_by or "", "_version"]
            for batch in self._read(topic, partition, counts.end, end, columns):
                keys, versions = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                counts.by_key.update(zip(keys, versions, strict=True))
            counts.end = end
        return counts
