"""Encodes rows that a queue copies out of its topic (dead messages and their edited rows) as bytes with private values
encrypted.

The copies are encrypted with the same subject keys as the topic, so destroying a subject's key makes its values in the
copies unreadable too.
"""

from __future__ import annotations

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.json_csv import packed, unpacked
from headwater.log.protocol import Log
from headwater.privacy.column_encryption import decrypt_columns, encrypt_columns


def sealed(log: Log, topic: TopicDefinition, row: pa.RecordBatch) -> bytes:
    """Return a row of a topic as bytes, with its private values encrypted."""
    return packed(encrypt_columns(row, topic, log.keys))


def opened(log: Log, topic: TopicDefinition, body: bytes) -> pa.Table:
    """Return the row that `sealed` encoded; private values are NULL if their subject was forgotten since."""
    stored = unpacked(body).combine_chunks().to_batches()[0]
    return pa.Table.from_batches([decrypt_columns(stored, topic, log.keys, stored.schema.names)])


def shown_row(topic: TopicDefinition, row: dict[str, object]) -> dict[str, object]:
    """Return a row with its private values set to None, for copies that are stored unencrypted."""
    return {**row, **{column: None for column, _ in topic.private if column in row}}


def forgettings(log: Log, topic: TopicDefinition) -> int:
    """Return a count that rises whenever private values of a topic may have been forgotten; free for topics without any."""
    if not topic.private:
        return 0
    log.keys.refresh()
    return len(log.keys.destroyed())
