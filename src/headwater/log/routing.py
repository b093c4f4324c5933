"""Assigns rows to partitions: by the hash of the routing columns, or spread if the topic has none.

Pure; both backends use it, so that they place rows alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import TopicNotFoundError
from headwater.core.hashing import hash_rows, partition_of

SPREAD_ROWS_MIN = 64
"""Minimum rows per partition for splitting an append without routing columns. A smaller append stays whole and goes to the
partition with the fewest records."""


def route(
    batch: pa.RecordBatch, topic: TopicDefinition, ends: Mapping[int, int]
) -> dict[int, pa.RecordBatch]:
    """Return the batch split by partition, in order within each. `ends` matters only if rows are spread."""
    if batch.num_rows == 0:
        return {}
    if topic.partitions == 1:
        return {0: batch}
    if not topic.routing:
        return _spread(batch, topic.partitions, ends)
    hashes = hash_rows([batch.column(name) for name in topic.routing], batch.num_rows)
    partitions = partition_of(hashes, topic.partitions)
    first = int(partitions[0])
    if (partitions == first).all():
        return {first: batch}
    order = np.argsort(partitions, kind="stable")
    ranked = partitions[order]
    cuts = np.flatnonzero(np.diff(ranked)) + 1
    starts = [0, *cuts.tolist()]
    stops = [*cuts.tolist(), len(ranked)]
    return {
        int(ranked[start]): batch.take(pa.array(order[start:stop]))
        for start, stop in zip(starts, stops, strict=True)
    }


def check_incarnation(topic: TopicDefinition, incarnation: int) -> None:
    """Raise TopicNotFoundError if the topic that the rows were conformed to was dropped, and another topic has its name."""
    if topic.incarnation != incarnation:
        raise TopicNotFoundError(
            f"topic {topic.name!r} was dropped and created again during this append",
            detail="nothing of this append was written",
            hint="append again; the rows are then checked against the new topic",
            topic=topic.name,
            reason="recreated",
        )


def needs_ends(topic: TopicDefinition) -> bool:
    """Whether routing depends on the size of the partitions, so that it must be done under the lock."""
    return topic.partitions > 1 and not topic.routing


def partition_of_key(topic: TopicDefinition, values: Sequence[object]) -> int:
    """Return the partition of one key."""
    if topic.partitions == 1:
        return 0
    columns = [
        pa.array([value], topic.schema.field(name).type)
        for name, value in zip(topic.routing, values, strict=True)
    ]
    return int(partition_of(hash_rows(columns, 1), topic.partitions)[0])


def _spread(batch: pa.RecordBatch, partitions: int, ends: Mapping[int, int]) -> dict[int, pa.RecordBatch]:
    by_fill = sorted(range(partitions), key=lambda p: (ends.get(p, 0), p))
    if batch.num_rows < partitions * SPREAD_ROWS_MIN:
        return {by_fill[0]: batch}
    edges = np.linspace(0, batch.num_rows, partitions + 1).astype(int)
    return {
        p: batch.slice(int(edges[i]), int(edges[i + 1] - edges[i])) for i, p in enumerate(sorted(by_fill))
    }
