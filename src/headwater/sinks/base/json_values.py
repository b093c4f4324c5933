"""Exact conversion of columns to plain JSON values and back, for targets without column types of their own.

Booleans, integers, text and finite floats are native JSON. Other floats are the texts 'NaN', 'Infinity' and '-Infinity';
decimals are text; binaries are base64; dates are days and timestamps microseconds since 1970. Structs are objects, lists
arrays, maps arrays of [key, value]. With `readable`, dates and timestamps are ISO text instead, for readers that do not know
the types.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import null_mask

_ODD = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SHOWN_FROM, _SHOWN_TO = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Microseconds of the years 1 to 9999, which ISO text can express; times outside stay numbers."""


def plain_values(column: pa.Array, *, readable: bool = False) -> list[Any]:
    """Return the values of a column as plain JSON values."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_decimal(kind):
        return _list(column.cast(pa.string()))
    if pa.types.is_temporal(kind):
        return _times(column, readable)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()]
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        parts = [plain_values(pc.struct_field(column, [i]), readable=readable) for i in range(len(names))]
        rows = zip(*parts, strict=True) if parts else [()] * len(column)
        return _without(column, [dict(zip(names, row, strict=True)) for row in rows])
    if pa.types.is_map(kind):
        entries = pa.ListArray.from_arrays(
            column.offsets, pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"])
        )
        flat = [[e["k"], e["v"]] for e in plain_values(entries.flatten(), readable=readable)]
        return _without(column, _split(flat, pc.list_value_length(entries)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        flat = plain_values(column.flatten(), readable=readable)
        return _without(column, _split(flat, pc.list_value_length(column)))
    return _list(column)


def from_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the column of type `kind` with these `plain_values`."""
    if pa.types.is_floating(kind):
        return pa.array([_ODD[v] if isinstance(v, str) else v for v in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if v is None else base64.b64decode(v) for v in values], kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        missing = pa.array([v is None for v in values], pa.bool_())
        parts = [from_plain([None if v is None else v[f.name] for v in values], f.type) for f in fields]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=missing)
    if pa.types.is_map(kind):
        flat = [entry for v in values if v is not None for entry in v]
        keys = from_plain([key for key, _ in flat], kind.key_type)
        items = from_plain([item for _, item in flat], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind)
    if pa.types.is_list(kind):
        inner = from_plain([item for v in values if v is not None for item in v], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), inner, type=kind)
    return pa.array(values, kind)


def _list(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _floats(column: pa.Array) -> list[Any]:
    values = _list(column)
    odd = pc.invert(pc.is_finite(column)).fill_null(False).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(odd):
        value = values[row]
        values[row] = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return values


def _times(column: pa.Array, readable: bool) -> list[Any]:
    days = pa.types.is_date32(column.type)
    numbers = column.cast(pa.int32() if days else pa.int64())
    if not readable:
        return _list(numbers)
    unit = 86_400_000_000 if days else 1
    low, high = _SHOWN_FROM // unit, _SHOWN_TO // unit
    shown = pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high)).fill_null(False)
    text = pc.if_else(shown, column, pa.scalar(None, column.type)).cast(pa.string())
    said = [v if v is None else v.replace(" ", "T") for v in text.to_pylist()]
    if pc.all(pc.or_(shown, column.is_null())).as_py() is not False:
        return said
    return [number if t is None else t for t, number in zip(said, numbers.to_pylist(), strict=True)]


def _split(flat: list[Any], lengths: pa.Array) -> list[list[Any]]:
    ends = accumulate(lengths.fill_null(0).to_pylist(), initial=0)
    return [flat[start:end] for start, end in pairwise(ends)]


def _without(column: pa.Array, values: list[Any]) -> list[Any]:
    """Set the values to None where the column is NULL, and return them."""
    nulls = null_mask(column)
    if nulls is not None:
        for row in np.flatnonzero(nulls):
            values[row] = None
    return values


def _offsets(values: Sequence[Any]) -> pa.Array:
    at, offsets = 0, []
    for value in values:
        offsets.append(None if value is None else at)
        at += 0 if value is None else len(value)
    return pa.array([*offsets, at], pa.int32())
