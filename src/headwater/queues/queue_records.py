"""Operations on messages as records of a queue's own topic: the schema, and the conversion in both directions.

A record states a request, not its outcome. The outcome follows from the records before it, and is the same for every
process that folds them (`headwater.queues.queue_state`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.queues.message_positions import NONE, Places, from_ranges, to_ranges

Kind = Literal["claim", "ack", "nack", "release", "extend", "skip", "bury", "replay", "gone", "checkpoint"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("worker", pa.string()),
        pa.field("lease", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("deliveries", pa.int64()),
        pa.field("span_us", pa.int64()),
        pa.field("firsts", pa.list_(pa.int64())),
        pa.field("ends", pa.list_(pa.int64())),
        pa.field("keys", pa.list_(pa.int64())),
        pa.field("error", pa.string()),
        pa.field("body", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Op:
    """An operation on messages.

    'claim': lease up to `count` of `places`, in their order, for `span_us`; `deliveries` is the number after which a
        message is dead. A claim without places goes on with the candidates left by the claim before it in the append.
    'ack', 'nack', 'release', 'extend': settle or extend `places` of a lease; `lease` is the number of the record that
        claimed them. A 'nack' makes them due after `span_us`, with an error, or dead if they were handed out
        `deliveries` times, where that is given. A 'release' undoes the delivery. An 'extend' lets the lease end
        `span_us` after its own append.
    'skip': there is no message in `ranges`.
    'bury': the dead letters of `places` are written.
    'gone': the records of `places` were excised, whatever their state was.
    'replay': dead messages are waiting again, with the row in `body` if there is one.
    'checkpoint': `body` is the state that all records before number `lease` fold to.
    """

    kind: Kind
    places: Places = field(default_factory=lambda: NONE)
    worker: str | None = None
    lease: int | None = None
    count: int | None = None
    deliveries: int | None = None
    span_us: Microseconds | None = None
    keys: Places | None = None
    """For a claim on an ordered queue: the hash of each position's key."""
    error: str | None = None
    body: bytes | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    """For a 'skip', instead of `places`: the range may cover all records from before the queue was created."""


def to_batch(ops: Sequence[Op], schema: pa.Schema) -> pa.RecordBatch:
    """Return operations as rows of a queue's topic."""
    ranges = [_ranges(op) for op in ops]
    columns: dict[str, list[object]] = {
        "kind": [op.kind for op in ops],
        "worker": [op.worker for op in ops],
        "lease": [op.lease for op in ops],
        "count": [op.count for op in ops],
        "deliveries": [op.deliveries for op in ops],
        "span_us": [op.span_us for op in ops],
        "firsts": [firsts for firsts, _ in ranges],
        "ends": [ends for _, ends in ranges],
        "keys": [None if op.keys is None else op.keys for op in ops],
        "error": [op.error for op in ops],
        "body": [op.body for op in ops],
    }
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    """Return a column; most columns are all null, for which `pa.nulls` is faster."""
    return pa.array(values, kind) if any(v is not None for v in values) else pa.nulls(len(values), kind)


def _ranges(op: Op) -> tuple[list[int], list[int]]:
    if op.kind == "skip":
        return [first for first, _ in op.ranges], [end for _, end in op.ranges]
    return to_ranges(op.places)


def from_batch(batch: pa.RecordBatch) -> Iterator[Op]:
    """Return the operations that rows of a queue's topic encode."""
    for row in batch.select(SCHEMA.names).to_pylist():
        keys, firsts, ends = row.pop("keys"), row.pop("firsts") or (), row.pop("ends") or ()
        if row["kind"] == "skip":
            yield Op(ranges=tuple(zip(firsts, ends, strict=True)), **row)
            continue
        places = from_ranges(firsts, ends)
        yield Op(places=places, keys=None if keys is None else np.array(keys, dtype=np.int64), **row)
