"""A fold per key: every row advances the state of its key, in the order in which rows arrive. Rows are not retracted.

State consists of runs of the *latest* discipline (see `runs`): the key, then the columns of the key's state. The output
is that state as a table: the old row of each changed key is retracted, the new one inserted.
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
"""advance(rows in the order of their groups, groups, found, stored): returns the columns of each group's new state. The
previous state is row `found` of `stored`, which has the columns of the key and the state; -1 means no previous
state."""


def fold(
    runs: Sequence[Run], key: Sequence[int], rows: pa.RecordBatch, advance: Advance, schema: pa.Schema
) -> tuple[Delta, Run]:
    """Return the change that rows make to the table of states, and the run of new states.

    `schema` has the columns of the key, then those of the state. `advance` receives rows of one key in the order of `rows`.
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
