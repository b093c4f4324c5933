"""Rows as members of sets: which rows of one batch are found in another, by whole rows or by their keys.

A row is stood for by the 128 bits of `hashing.identities`, so that membership is one vectorised lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import Hashes, Indices, Mask, identities
from headwater.operators.zset.delta import Delta

Ids: TypeAlias = pa.Array
"""One value of 16 bytes for each row."""


def row_ids(columns: Sequence[pa.Array], count: int) -> Ids:
    """Whole rows: -0.0 is not 0.0."""
    return _ids(*identities(columns, count, exact=True))


def key_ids(delta: Delta, key: Sequence[int]) -> Ids:
    """Keys: -0.0 is 0.0. Without columns, all have the same."""
    return _ids(*identities([delta.rows.column(i) for i in key], len(delta), exact=False))


def among(ids: Ids, wanted: Ids) -> Mask:
    """Which of them are found among others."""
    mask: Mask = pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False)
    return mask


def places(ids: Ids, where: Ids) -> Indices:
    """Where each is first found among others; -1 if it is not."""
    found: Indices = pc.index_in(ids, value_set=where).fill_null(-1).to_numpy().astype(np.int64)
    return found


def chosen(ids: Ids, mask: Mask) -> Ids:
    """Those at which the mask is true."""
    return ids.filter(pa.array(mask, pa.bool_()))


def joined(*ids: Ids) -> Ids:
    """All of several."""
    return pa.concat_arrays(ids)


def _ids(high: Hashes, low: Hashes) -> Ids:
    halves = np.ascontiguousarray(np.column_stack((high, low)))
    return pa.Array.from_buffers(pa.binary(16), len(high), [None, pa.py_buffer(halves)])
