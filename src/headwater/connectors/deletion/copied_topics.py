"""Records in the topic of a sink that its view no longer has: an excision of the original records must remove these too.

A record to which an excised record contributed was appended after that record, and is replaced by another one once the topic
is reconciled with its view: in a keyed topic by a later record of its key, in a changelog by records of the opposite weight.
Records that meet both conditions can be removed without changing the contents of the topic.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.core.hashing import identities
from headwater.log.protocol import Log
from headwater.operators.zset.delta import concat_rows
from headwater.plan.relations.metadata_columns import fitted, read_records, topic_schema
from headwater.sinks.base.target import TICK, WEIGHT


def replaced(log: Log, topic: TopicDefinition, since: Microseconds) -> dict[int, list[int]]:
    """Return the offsets, by partition, of the records of a copy that were appended since a time and replaced by others.

    If the last record of a key is a tombstone, it is included, unless its removal would bring back an older record.
    """
    metadata = (WEIGHT.name, TICK.name)
    of = list(topic.key) if topic.key else [n for n in topic.schema.names if n not in metadata]
    if not topic.key and WEIGHT.name not in topic.schema.names:
        # an append-only topic
        return {}
    hidden = ("_partition", "_offset", "_appended_at", *(("_op",) if topic.key else ()))
    schema = topic_schema(topic, hidden)
    columns = [*of, *([] if topic.key else [WEIGHT.name]), *hidden]
    shown = pa.schema([schema.field(name) for name in columns])
    records = [
        fitted(batch, shown)
        for partition, info in sorted(log.partitions(topic.name).items())
        for batch in read_records(log, topic.name, partition, (info.first, info.end), columns)
    ]
    rows = concat_rows(records, shown)
    if not rows.num_rows:
        return {}
    groups = _groups(rows.select(of))
    recent = rows.column("_appended_at").view(pa.int64()).to_numpy() >= since
    has_older = np.zeros(int(groups.max()) + 1, np.bool_)
    has_older[groups[~recent]] = True
    if topic.key:
        last = np.zeros(len(has_older), np.int64)
        np.maximum.at(last, groups, np.arange(len(groups)))
        is_last = np.arange(len(groups)) == last[groups]
        deleted = pc.equal(rows.column("_op"), "delete").to_numpy(zero_copy_only=False)
        gone = recent & np.where(is_last, deleted & ~has_older[groups], True)
    else:
        net = np.zeros(len(has_older), np.int64)
        np.add.at(net, groups, rows.column(WEIGHT.name).to_numpy().astype(np.int64))
        gone = (net[groups] == 0) & ~has_older[groups]
    partitions, offsets = (rows.column(name).to_numpy() for name in ("_partition", "_offset"))
    return {int(p): np.sort(offsets[gone & (partitions == p)]).tolist() for p in np.unique(partitions[gone])}


def _groups(rows: pa.RecordBatch) -> np.ndarray:
    """Return a number for each row, shared by equal rows."""
    high, low = identities(rows.columns, rows.num_rows, exact=True)
    both = np.empty(rows.num_rows, dtype=[("high", high.dtype), ("low", low.dtype)])
    both["high"], both["low"] = high, low
    numbers: np.ndarray = np.unique(both, return_inverse=True)[1].reshape(-1)
    return numbers
