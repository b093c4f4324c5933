"""Rows that are shown once they are final: they wait, by the time at which they will be, until watermarks have reached it.

The last two columns of the input say when: a time in microseconds, NULL for what is final at once, and which of several
watermarks must have reached it. Once shown, a row is changed like any other. What waits is an ordered arrangement: for
each watermark by time, so that a step reads what becomes final and nothing else.
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
"""A watermark before which nothing is final."""


def waiting_key(width: int) -> tuple[int, ...]:
    """The column by which rows wait, of an input of this width: which watermark they wait for."""
    return (width - 1,)


def waiting_order(width: int) -> tuple[ColumnOrder, ...]:
    """The order in which they wait."""
    return (ColumnOrder(width - 2, descending=False, nulls_first=True),)


def close(
    runs: Sequence[Run], delta: Delta, watermarks: Sequence[int], shown: pa.Schema
) -> tuple[Delta, Run]:
    """What a change, and watermarks that went on, change in the rows that are final; and a run for those that wait.

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
    # two rows that differ in when they became final alone are one from now on
    shown_rows = consolidate(Delta(rows, output.weights))
    return shown_rows, arrange_ordered(waits, waiting_key(width), waiting_order(width))


def levels(domains: Sequence[Sequence[str]], watermarks: Mapping[str, int]) -> list[int]:
    """The least watermark of each of some sets of topics, given those of topics."""
    return [min((watermarks.get(topic, EARLIEST) for topic in each), default=EARLIEST) for each in domains]


def is_final(delta: Delta, watermarks: Sequence[int]) -> Mask:
    """Which rows of a change of the input are final at some watermarks."""
    width, levels = delta.rows.num_columns, np.array([*watermarks, EARLIEST], dtype=np.int64)
    times, domains = delta.rows.column(width - 2), delta.rows.column(width - 1)
    at = times.fill_null(EARLIEST).to_numpy(zero_copy_only=False)
    level = levels[domains.fill_null(len(levels) - 1).to_numpy(zero_copy_only=False)]
    reached: Mask = (at <= level) | (at == EARLIEST)
    return reached
