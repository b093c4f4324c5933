"""Splits the receipt of an append among the posts that were written in it together.

Pure functions, which follow the log's placement of rows: in their order within a partition, by the hash of the routing
columns, or, in a topic without any, whole or in even pieces, one per partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.hashing import hash_rows, partition_of
from headwater.core.positions import Receipt
from headwater.log.routing import needs_ends

Share = Mapping[int, tuple[int, int]]
"""partition -> (rows of other posts before these, rows of this post), counted within the append."""


def shares_of(rows: pa.RecordBatch, counts: Sequence[int], topic: TopicDefinition) -> list[Share] | None:
    """Return the share of each post in their common rows, given the posts' row counts; None if the log decides the
    partitions."""
    if topic.partitions == 1:
        return _consecutive(counts, {0: sum(counts)})
    if needs_ends(topic):
        return None
    partitions = partition_of(
        hash_rows([rows.column(name) for name in topic.routing], rows.num_rows), topic.partitions
    )
    owners = np.repeat(np.arange(len(counts)), counts)
    table = np.zeros((len(counts), topic.partitions), np.int64)
    np.add.at(table, (owners, np.asarray(partitions, np.int64)), 1)
    before = np.cumsum(table, axis=0) - table
    return [
        {int(p): (int(before[i, p]), int(table[i, p])) for p in np.flatnonzero(table[i])}
        for i in range(len(counts))
    ]


def shares_after(counts: Sequence[int], receipt: Receipt, topic: str) -> list[Share]:
    """Return the share of each post in rows that the log spread over partitions: evenly, in partition order."""
    placed = receipt.positions.get(topic, {})
    return _consecutive(counts, {p: end - first for p, (first, end) in sorted(placed.items())})


def own_receipt(receipt: Receipt, topic: str, share: Share) -> Receipt:
    """Return the receipt of one post, given the receipt of its append."""
    placed = receipt.positions.get(topic, {})
    mine = {p: (placed[p][0] + before, placed[p][0] + before + rows) for p, (before, rows) in share.items()}
    return Receipt({topic: mine} if mine else {}, receipt.commit)


def _consecutive(counts: Sequence[int], placed: Mapping[int, int]) -> list[Share]:
    """Return the shares of posts whose rows are consecutive, in partitions with these row counts."""
    found: list[Share] = []
    bounds, at = [], 0
    for partition, rows in placed.items():
        bounds.append((partition, at, at + rows))
        at += rows
    start = 0
    for count in counts:
        end = start + count
        found.append(
            {
                p: (max(start, low) - low, min(end, high) - max(start, low))
                for p, low, high in bounds
                if max(start, low) < min(end, high)
            }
        )
        start = end
    return found
