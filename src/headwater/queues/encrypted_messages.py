"""Rows that a queue copies out of its topic, a dead message's or what one was edited to, as bytes in which private values stay private.

They are encrypted as they are in the topic, by the same subjects' keys: who is forgotten there is forgotten here.
"""

from __future__ import annotations

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.json_csv import packed, unpacked
from headwater.log.protocol import Log
from headwater.privacy.column_encryption import unveil, veil


def sealed(log: Log, topic: TopicDefinition, row: pa.RecordBatch) -> bytes:
    """A row of a topic as bytes."""
    return packed(veil(row, topic, log.keys))


def opened(log: Log, topic: TopicDefinition, body: bytes) -> pa.Table:
    """The row that `sealed` made bytes of; private values are NULL if their subject was forgotten since."""
    stored = unpacked(body).combine_chunks().to_batches()[0]
    return pa.Table.from_batches([unveil(stored, topic, log.keys, stored.schema.names)])


def shown_row(topic: TopicDefinition, row: dict[str, object]) -> dict[str, object]:
    """A row without its private values, for what is kept in plain."""
    return {**row, **{column: None for column, _ in topic.private if column in row}}


def forgettings(log: Log, topic: TopicDefinition) -> int:
    """What rises when private values of a topic may have been forgotten; reading it costs nothing where there are none."""
    if not topic.private:
        return 0
    log.keys.refresh()
    return len(log.keys.destroyed())
