"""The records that make up a topic at a tick, each with its log position: all records, or the current ones of a keyed
topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.core.hashing import Mask, identities
from headwater.engine.dataflow.linear import renamed
from headwater.lineage.input_slices import Slices, within
from headwater.log.protocol import Log
from headwater.operators.zset.delta import concat_rows, groups_of, take_rows
from headwater.plan.relations.metadata_columns import WATERMARK, hidden_fields, hidden_schema, read_records


@dataclass(frozen=True, eq=False)
class Records:
    """Records of a topic by partition and offset: the topic's columns, then the metadata columns; for a topic with event
    times but without a key, also the watermark at which each record arrived."""

    topic: TopicDefinition
    rows: pa.RecordBatch

    def table(self, chosen: Mask) -> pa.Table:
        """Return some of the records: their log positions (`_partition`, `_offset`, `_appended_at`, for a keyed topic
        `_op`), then the topic's columns."""
        rows = take_rows(self.rows, np.flatnonzero(chosen))
        own = self.topic.schema.names
        hidden = [name for name in rows.schema.names[len(own) :] if name != WATERMARK]
        return pa.Table.from_batches([rows]).select([*hidden, *own])


def records_of(log: Log, topic: TopicDefinition, ends: Mapping[int, int], slices: Slices) -> Records:
    """Return the records that make up a topic at the cut and are in the slices; the log is read once and other records are
    dropped."""
    met = hidden_fields(topic, [WATERMARK] if topic.time is not None and not topic.key else [])
    schema = pa.schema([*topic.schema, *hidden_schema(topic), *met])
    found: list[pa.RecordBatch] = []
    for partition, info in sorted(log.partitions(topic.name).items()):
        end = ends.get(partition, info.first)
        if info.first >= end:
            continue
        read = read_records(log, topic.name, partition, (info.first, end), schema.names)
        found += _current(list(read), topic, slices) if topic.key else [_within(b, slices) for b in read]
    return Records(topic, concat_rows([renamed(b, schema) for b in found if b.num_rows], schema))


def _within(batch: pa.RecordBatch, slices: Slices) -> pa.RecordBatch:
    mask = within(batch.columns, batch.num_rows, slices)
    return batch if mask.all() else take_rows(batch, np.flatnonzero(mask))


def _current(batches: list[pa.RecordBatch], topic: TopicDefinition, slices: Slices) -> list[pa.RecordBatch]:
    """Return the last record of each key, unless it is a tombstone. A key has one partition, so partitions are reduced
    separately."""
    key = [topic.schema.get_field_index(name) for name in topic.key]
    by_key = tuple({c: v for c, v in one.items() if c in key} for one in slices)
    kept = [b for b in (_within(batch, by_key) for batch in batches) if b.num_rows]
    if not kept:
        return []
    rows = concat_rows(kept, kept[0].schema)
    high, low = identities([rows.column(c) for c in key], rows.num_rows, exact=False)
    if groups := groups_of(high[::-1], low[::-1]):
        rows = take_rows(rows, np.sort(rows.num_rows - 1 - groups.firsts))
    return [_within(rows.filter(pc.not_equal(rows.column("_op"), "delete")), slices)]
