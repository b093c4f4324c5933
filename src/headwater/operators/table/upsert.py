"""A changelog as changes of a table: a newer record of a key replaces the older one, a tombstone deletes it.

State consists of runs of the *latest* discipline (see `runs`), keyed by the table's key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Indices, Mask, identities
from headwater.operators.zset.delta import Delta, concat, groups_of, row_hashes, take_rows
from headwater.operators.zset.radix_sort import stable_order
from headwater.operators.zset.runs import Key, Run, key_hashes, lookup


def upsert(runs: Sequence[Run], key: Key, changes: pa.RecordBatch, deleted: Mask) -> tuple[Delta, Run]:
    """Return the change that records make to a table (old rows with weight -1, new rows with +1), and the run of new rows.

    The records are in log order: the last record of a key wins over earlier ones in the batch. `deleted` marks
    tombstones, of which only the key columns are read. A record that changes nothing (an equal row exists, or there is
    no row to delete) produces no change and is not stored.
    """
    chosen = _last_of_each_key(changes, key)
    hashes = key_hashes(changes, key)[chosen]
    order = stable_order(hashes)
    chosen, hashes = chosen[order], hashes[order]
    keys = take_rows(changes.select(list(key)), chosen)
    found, stored = lookup(runs, key, keys, hashes, schema=changes.schema)
    present, gone = found >= 0, deleted[chosen]
    effective = present | ~gone
    both = np.flatnonzero(present & ~gone)
    if len(both):
        old = row_hashes(take_rows(stored, found[both]))
        new = row_hashes(take_rows(changes, chosen[both]))
        effective[both] = (old[0] != new[0]) | (old[1] != new[1])
    leaving = take_rows(stored, found[effective & present])
    coming = take_rows(changes, chosen[effective & ~gone])
    delta = concat([Delta.of(leaving).negated(), Delta.of(coming)], changes.schema)
    kept = np.flatnonzero(effective)
    run = Run(hashes[kept], take_rows(changes, chosen[kept]), (~gone[kept]).astype(np.int64))
    return delta, run


def _last_of_each_key(changes: pa.RecordBatch, key: Key) -> Indices:
    high, low = identities([changes.column(i) for i in key], changes.num_rows, exact=False)
    if groups := groups_of(high[::-1], low[::-1]):
        return np.sort(changes.num_rows - 1 - groups.firsts)
    return np.arange(changes.num_rows, dtype=np.int64)
