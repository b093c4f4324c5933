"""Rows brought together by key, for operators that touch their state once per group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.hashing import Hashes, equal_rows, identities
from headwater.operators.delta import stable_order, take_rows
from headwater.operators.lanes import normal
from headwater.operators.runs import key_hashes
from headwater.operators.sums import Ints


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows sorted by the hash of their key, and where in that order each group starts.

    `order` is None if the rows are in order as they are. `keys` has one row for each group, in the form in which SQL
    shows grouping keys, and `hashes` ascend with the groups.
    """

    order: Ints | None
    starts: Ints
    sizes: Ints
    keys: pa.RecordBatch
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.starts)


def group(rows: pa.RecordBatch, count: int, key: Sequence[int]) -> Groups:
    """The groups of `count` > 0 rows by their key columns; all rows are one group if there are none."""
    if not key:
        # A batch without columns does not keep count: the constant of the empty key is that of any one row.
        constant = key_hashes(_ANY_ROW, ())
        keys = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
        return Groups(None, np.zeros(1, dtype=np.int64), np.array([count]), keys, constant)
    keys = rows.select(list(key))
    hashes = key_hashes(keys, range(len(key)))
    order = stable_order(hashes)
    ascending = hashes[order]
    same = ascending[1:] == ascending[:-1]
    if same.any():
        columns = take_rows(keys, order).columns
        upper, lower = [c.slice(1) for c in columns], [c.slice(0, count - 1) for c in columns]
        if (same & ~equal_rows(upper, lower, count - 1)).any():
            high, low = identities(keys.columns, count, exact=False)
            order = np.lexsort((low, high, hashes))
            high, low, ascending = high[order], low[order], hashes[order]
            same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    starts = np.flatnonzero(np.concatenate(([True], ~same)))
    firsts = take_rows(keys, order[starts])
    keys = pa.RecordBatch.from_arrays([normal(column) for column in firsts.columns], schema=keys.schema)
    return Groups(order, starts, np.diff(starts, append=count), keys, ascending[starts])


_ANY_ROW = pa.RecordBatch.from_arrays([pa.array([0])], names=["any"])
