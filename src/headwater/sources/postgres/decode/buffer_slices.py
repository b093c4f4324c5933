"""Slices of one buffer as an Arrow column: the basis of all decoding, in a few vector operations."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def cut(data: pa.Buffer, starts: Places, ends: Places, valid: Mask | None = None) -> pa.Array:
    """Return the strings `data[start:end]`, null where not `valid`. The bytes are not validated as UTF-8; that is up to the
    caller.

    Slices in ascending order without overlaps are the fast case; any others work, too.
    """
    rows = len(starts)
    if rows > 1 and not bool((starts[1:] >= ends[:-1]).all()):
        return _cut_anywhere(data, starts, ends, valid)
    # The wanted slices alternate with the gaps between them as strings of the buffer; `take` copies the wanted ones.
    bounds = np.empty(2 * rows, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    if not rows:
        return pa.array([], pa.string())
    every = pa.Array.from_buffers(pa.string(), 2 * rows - 1, [None, pa.py_buffer(bounds), data])
    pieces = every.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    return pieces if valid is None else with_nulls(pieces, valid)


def with_nulls(column: pa.Array, valid: Mask) -> pa.Array:
    """Return a column with nulls where not `valid`. The column must have no nulls, and begin at the start of its buffers."""
    if valid.all():
        return column
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(column), [bitmap, *column.buffers()[1:]])


def texts(values: Sequence[bytes | None]) -> pa.Array:
    """Return single values as a string column, not validated as UTF-8 like the result of `cut`. Faster than Arrow for few
    values."""
    valid = None
    if None in values:
        valid = np.array([value is not None for value in values])
        values = [value or b"" for value in values]
    bounds = array("i", accumulate(map(len, values), initial=0))  # type: ignore[arg-type]
    data = pa.py_buffer(b"".join(values))  # type: ignore[arg-type]
    column = pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(bounds), data])
    return column if valid is None else with_nulls(column, valid)


def bounds_of(column: pa.Array) -> tuple[Places, Places, Any]:
    """Return the start and end of each string of a column in its data buffer, and that buffer."""
    _, offsets, data = column.buffers()
    stored = np.frombuffer(offsets, dtype=np.int32, count=len(column) + column.offset + 1)
    at = stored[column.offset :].astype(np.int64)
    return at[:-1], at[1:], data if data is not None else pa.py_buffer(b"")


def _cut_anywhere(data: pa.Buffer, starts: Places, ends: Places, valid: Mask | None) -> pa.Array:
    order = np.lexsort((ends, starts))
    first = np.empty(len(order), dtype=np.bool_)
    first[0] = True
    first[1:] = (np.diff(starts[order]) != 0) | (np.diff(ends[order]) != 0)
    distinct = order[first]
    pieces = cut(data, starts[distinct], ends[distinct])
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.cumsum(first) - 1
    taken = pieces.take(pa.array(places))
    return taken if valid is None else with_nulls(taken, valid)
