"""Emit on close: rows are emitted once they are final; until then they wait for the watermark to reach their time.

The last two columns of the input define when a row is final: a time in microseconds, NULL for rows that are final at
once, and the index of the watermark that must reach this time. Once emitted, a row is changed like any other. Waiting
rows are an ordered arrangement, by watermark and time, so that a step reads only the rows that become final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Mask
from headwater.operators.zset.collation import ColumnOrder
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.operators.zset.ordered_runs import arrange_ordered
from headwater.operators.zset.ranges import between
from headwater.operators.zset.runs import Probes, Run, key_hashes

EARLIEST = -(2**63)
"""Watermark value at which no row is final."""


def waiting_key(width: int) -> tuple[int, ...]:
    """Return the key of waiting rows, for an input of this width: the index of the watermark that they wait for."""
    return (width - 1,)


def waiting_order(width: int) -> tuple[ColumnOrder, ...]:
    """Return the order of waiting rows within a key: by time."""
    return (ColumnOrder(width - 2, descending=False, nulls_first=True),)


def close(
    runs: Sequence[Run], delta: Delta, watermarks: Sequence[int], shown: pa.Schema
) -> tuple[Delta, Run]:
    """Return the change of the final rows due to a delta and advanced watermarks, and the run of changes to the waiting rows.

    `shown` is the schema of the output: the input's without its last two columns.
    """
    schema, width = delta.rows.schema, delta.rows.num_columns
    final = is_final(delta, watermarks)
    domains = pa.record_batch([pa.array(range(len(watermarks)), schema.field(width - 1).type)], names=["d"])
    low = np.full(len(watermarks), EARLIEST, dtype=np.int64)
    found = between(
        runs,
        width - 2,
        Probes(waiting_key(width), domains, key_hashes(domains, (0,))),
        low,
        np.asarray(watermarks, dtype=np.int64),
        schema=schema,
    )
    due = Delta(found.rows, found.weights)
    waits = concat([delta.filter(~final), due.negated()], schema)
    output = consolidate(concat([due, delta.filter(final)], schema))
    rows = pa.RecordBatch.from_arrays(output.rows.columns[:-2], schema=shown)
    # Rows that differ only in when they became final are equal without these columns.
    shown_rows = consolidate(Delta(rows, output.weights))
    return shown_rows, arrange_ordered(waits, waiting_key(width), waiting_order(width))


def levels(domains: Sequence[Sequence[str]], watermarks: Mapping[str, int]) -> list[int]:
    """Return the minimum watermark of each set of topics, given the watermarks of topics."""
    return [min((watermarks.get(topic, EARLIEST) for topic in each), default=EARLIEST) for each in domains]


def is_final(delta: Delta, watermarks: Sequence[int]) -> Mask:
    """Return a mask of the rows of an input delta that are final at the given watermarks."""
    width, levels = delta.rows.num_columns, np.array([*watermarks, EARLIEST], dtype=np.int64)
    times, domains = delta.rows.column(width - 2), delta.rows.column(width - 1)
    at = times.fill_null(EARLIEST).to_numpy(zero_copy_only=False)
    level = levels[domains.fill_null(len(levels) - 1).to_numpy(zero_copy_only=False)]
    reached: Mask = (at <= level) | (at == EARLIEST)
    return reached
