"""Emptying a topic: a tombstone for each key that is in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import DELETE, adapt
from headwater.catalog.definitions import CAPTURED, OP_TYPE, TopicDefinition
from headwater.sources.base import Rows
from headwater.sources.postgres.rows.captured_tables import TopicHistory
from headwater.sources.postgres.rows.toast_fill import KeySet

Stamps = Sequence[int | None]
"""Values of the columns of `CAPTURED`: position, time in microseconds, and transaction."""


def emptied(
    history: TopicHistory, definition: TopicDefinition, stamps: Stamps, spared: KeySet | None = None
) -> Iterator[Rows]:
    """Yield tombstones for all keys whose last record in the log is not a tombstone, except for the keys in `spared`."""
    for keys in history.live_keys(definition.name):
        if spared is not None:
            kept = spared.has([keys.column(name) for name in definition.key], keys.num_rows)
            keys = keys.filter(pc.invert(pa.array(kept)))
        if keys.num_rows:
            op = pa.repeat(pa.scalar(DELETE, OP_TYPE), keys.num_rows)
            rows = located(keys.append_column("_op", op), stamps)
            yield Rows(definition.name, adapt(rows, definition.row_schema))


def located(batch: pa.RecordBatch, stamps: Stamps) -> pa.RecordBatch:
    """Return rows with the columns of `CAPTURED` added, which have the same values in every row."""
    more = [
        pa.repeat(pa.scalar(value, f.type), batch.num_rows) for value, f in zip(stamps, CAPTURED, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=pa.schema([*batch.schema, *CAPTURED]))
