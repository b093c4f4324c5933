"""Rows as members of sets: which rows of one batch occur in another, by whole rows or by their keys.

A row is represented by the 128 bits of `hashing.identities`, so that membership is one vectorised lookup.
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
"""A 16-byte ID for each row."""


def row_ids(columns: Sequence[pa.Array], count: int) -> Ids:
    """Return IDs of whole rows; -0.0 and 0.0 differ."""
    return _ids(*identities(columns, count, exact=True))


def key_ids(delta: Delta, key: Sequence[int]) -> Ids:
    """Return IDs of keys; -0.0 and 0.0 are equal, and without key columns all rows have the same ID."""
    return _ids(*identities([delta.rows.column(i) for i in key], len(delta), exact=False))


def among(ids: Ids, wanted: Ids) -> Mask:
    """Return a mask of the IDs that occur in `wanted`."""
    mask: Mask = pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False)
    return mask


def places(ids: Ids, where: Ids) -> Indices:
    """Return the first index in `where` of each ID, or -1."""
    found: Indices = pc.index_in(ids, value_set=where).fill_null(-1).to_numpy().astype(np.int64)
    return found


def chosen(ids: Ids, mask: Mask) -> Ids:
    """Return the IDs at which the mask is true."""
    return ids.filter(pa.array(mask, pa.bool_()))


def joined(*ids: Ids) -> Ids:
    """Return the concatenation of several arrays of IDs."""
    return pa.concat_arrays(ids)


def _ids(high: Hashes, low: Hashes) -> Ids:
    halves = np.ascontiguousarray(np.column_stack((high, low)))
    return pa.Array.from_buffers(pa.binary(16), len(high), [None, pa.py_buffer(halves)])
