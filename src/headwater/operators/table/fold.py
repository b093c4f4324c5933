"""A fold per key: every row moves the state of its key on, in the order in which rows come. Nothing is taken back.

State are runs of the *latest* discipline (see `runs`): the key, then the columns of the key's state. The output is that
state as a table: the old row of each touched key goes, the new one comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headwater.operators.zset.delta import Delta, concat, row_hashes, take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import KeyGroups, group
from headwater.operators.zset.runs import Run, lookup

Advance = Callable[[pa.RecordBatch, KeyGroups, Ints, pa.RecordBatch], list[pa.Array]]
"""advance(rows in the order of their groups, groups, found, stored): the columns of each group's new state. The state
before is the row `found` of `stored`, whose columns are the key's and the state's; there is none where it is -1."""


def fold(
    runs: Sequence[Run], key: Sequence[int], rows: pa.RecordBatch, advance: Advance, schema: pa.Schema
) -> tuple[Delta, Run]:
    """What rows do to the table of states, and the run that remembers it; `schema` is the key's columns and the state's.

    Rows of one key are given to `advance` in the order in which they are in `rows`.
    """
    width = len(key)
    groups = group(rows, rows.num_rows, key)
    found, stored = lookup(runs, range(width), groups.keys, groups.hashes, schema=schema)
    ordered = rows if groups.order is None else take_rows(rows, groups.order)
    states = advance(ordered, groups, found, stored)
    made = pa.RecordBatch.from_arrays([*groups.keys.columns, *states], schema=schema)
    known = np.flatnonzero(found >= 0)
    changed = np.ones(len(groups), dtype=np.bool_)
    if len(known):
        old = take_rows(stored, found[known])
        before, after = row_hashes(old), row_hashes(take_rows(made, known))
        changed[known] = (before[0] != after[0]) | (before[1] != after[1])
    going = take_rows(stored, found[changed & (found >= 0)])
    kept = np.flatnonzero(changed)
    coming = take_rows(made, kept)
    delta = concat([Delta.of(going).negated(), Delta.of(coming)], schema)
    return delta, Run(groups.hashes[kept], coming, np.ones(len(kept), dtype=np.int64))
