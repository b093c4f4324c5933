"""Conversion of Arrow columns to numpy arrays and back, and bitwise equality of values.

A numpy column has one number for each row. Rows where the Arrow column is NULL are 0 unless stated otherwise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import doubles_of, null_mask, words_of
from headwater.operators.zset.delta import row_hashes
from headwater.operators.zset.exact_sums import Bools, Floats, Ints, Words

_TYPES = pa.types
_INTEGER, _DOUBLE = pa.int64(), pa.float64()


def booleans(column: pa.Array) -> Bools:
    """Return a boolean column as a mask; NULL becomes false."""
    if column.null_count:
        column = column.fill_null(False)
    lane: Bools = column.to_numpy(zero_copy_only=False)
    return lane


def integers(column: pa.Array) -> Ints:
    """Return a column of single-word values (integers, booleans, dates, timestamps, durations) as 64-bit integers."""
    if column.type == _INTEGER and not column.null_count:
        whole: Ints = column.to_numpy()
        return whole
    return _words(column)[0]


def floats(column: pa.Array) -> Floats:
    """Return a numeric column as doubles; decimals are not supported."""
    if not _TYPES.is_floating(column.type):
        return integers(column).astype(np.float64)
    if column.type == _DOUBLE and not column.null_count:
        whole: Floats = column.to_numpy()
        return whole
    lane: Floats = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    absent = null_mask(column)
    return lane if absent is None else np.where(absent, 0.0, lane)


def words(column: pa.Array) -> tuple[Words, Ints]:
    """Return the lower and the upper 64-bit words of a decimal column."""
    low, high = _words(column)
    return np.ascontiguousarray(low).view(np.uint64), np.ascontiguousarray(high)


def _words(column: pa.Array) -> list[Ints]:
    lanes = words_of(column)
    if lanes is None:
        raise TypeError(f"columns of type {column.type} are not supported as numpy words")
    absent = null_mask(column)
    return lanes if absent is None else [np.where(absent, 0, lane) for lane in lanes]


def array(lane: npt.NDArray[np.generic], kind: pa.DataType, present: Bools | None = None) -> pa.Array:
    """Return a numpy column as an Arrow column of a type of the same width; NULL where `present` is false."""
    mask = None if present is None or present.all() else ~present
    column = pa.array(lane, mask=mask)
    return column if column.type == kind else column.view(kind)


def decimals(low: Words, high: Ints, kind: pa.DataType) -> pa.Array:
    """Return lower and upper 64-bit words as a decimal column."""
    both = np.empty((len(low), 2), dtype="<u8")
    both[:, 0] = low
    both[:, 1] = high.view(np.uint64)
    return pa.Array.from_buffers(kind, len(low), [None, pa.py_buffer(both)])


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Return a column of `count` NULLs.

    `pa.nulls` is not used because the children of a nested column would share one buffer, which may end inside a
    child's value.
    """
    return pa.array([], kind).take(pa.nulls(count, pa.int64()))


def same(left: pa.Array, right: pa.Array) -> Bools:
    """Whether the values of each row are bitwise equal: NULL equals NULL, all NaNs are equal, -0.0 differs from 0.0."""
    kind = left.type
    equal: Bools
    if kind == _INTEGER and not left.null_count and not right.null_count:
        equal = left.to_numpy() == right.to_numpy()
        return equal
    if _TYPES.is_floating(kind):
        equal = doubles_of(left, exact=True).view(np.int64) == doubles_of(right, exact=True).view(np.int64)
    elif (mine := words_of(left)) is not None and (theirs := words_of(right)) is not None:
        equal = mine[0] == theirs[0]
        for a, b in zip(mine[1:], theirs[1:], strict=True):
            equal &= a == b
    elif _TYPES.is_string(kind) or _TYPES.is_binary(kind):
        equal = booleans(pc.equal(left, right))
    else:
        hashes = [row_hashes(pa.RecordBatch.from_arrays([side], names=["value"])) for side in (left, right)]
        equal = (hashes[0][0] == hashes[1][0]) & (hashes[0][1] == hashes[1][1])
        return equal
    if not left.null_count and not right.null_count:
        return equal
    mine_null, theirs_null = (
        np.zeros(len(left), dtype=np.bool_) if mask is None else mask
        for mask in map(null_mask, (left, right))
    )
    return (equal & ~mine_null & ~theirs_null) | (mine_null & theirs_null)


def numpy_type(kind: pa.DataType) -> type[np.generic]:
    """Return the NumPy type of a numeric Arrow type, without pandas, which `to_pandas_dtype` would import."""
    found: type[np.generic] = pa.array([], type=kind).to_numpy(zero_copy_only=False).dtype.type
    return found


def normal(column: pa.Array) -> pa.Array:
    """Return grouping keys in the form that SQL shows: 0.0 for -0.0 and a single NaN, also inside nested values."""
    kind = column.type
    if _TYPES.is_floating(kind):
        values = column.to_numpy(zero_copy_only=False) + numpy_type(kind)(0)
        values[np.isnan(values)] = np.nan
        return pa.array(values, type=kind, mask=null_mask(column), from_pandas=False)
    if not _TYPES.is_nested(kind) or not _holds_floats(kind):
        return column
    absent = null_mask(column)
    mask = None if absent is None else pa.array(absent)
    if _TYPES.is_struct(kind):
        fields = [normal(pc.struct_field(column, [i])) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if _TYPES.is_list(kind):
        sizes = pa.array(column.offsets.to_numpy() - column.offsets[0].as_py(), pa.int32())
        return pa.ListArray.from_arrays(sizes, normal(column.flatten()), type=kind, mask=mask)
    return column


def _holds_floats(kind: pa.DataType) -> bool:
    if not _TYPES.is_nested(kind):
        return bool(_TYPES.is_floating(kind))
    return any(_holds_floats(kind.field(i).type) for i in range(kind.num_fields))
