"""Values as text, one text for each value, for targets that store text. Vectorized, except for nested values.

- BOOLEAN `true` and `false`; integers in decimal digits; DECIMAL in plain notation with all digits of its scale.
- FLOAT and DOUBLE: the shortest digits that give the same number back (`0.1`, `1`, `1e+20`), `NaN`, `Infinity`, `-Infinity`.
- DATE `2026-03-01`, TIMESTAMP `2026-03-01T12:00:00.000000Z`, TIMESTAMP_NTZ the same without `Z`; years outside 1 to 9999
  have a sign, as numpy writes them.
- BINARY in base64. STRING unchanged.
- ARRAY, STRUCT and MAP as JSON without spaces; a map whose keys are not strings is an array of `[key, value]`.

In JSON, numbers stay numbers with all their digits; NaN and infinities, times and binaries are strings.
"""

from __future__ import annotations

import base64
import decimal
import json
import math
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import null_mask, plain
from headwater.core.values import with_times_as_numbers

_ESCAPED = '[\\x00-\\x1f"\\\\]'
_FIRST_US, _END_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Microseconds since 1970 of the start of year 1 and the end of year 9999."""
_EXPONENT_MAX = 400
"""Largest decimal exponent that is written without exponent notation: no DOUBLE or DECIMAL exceeds it."""


def texts(column: pa.Array) -> pa.Array:
    """Return the text of each value; NULL stays NULL."""
    column = plain(column)
    kind = column.type
    types = pa.types
    if types.is_string(kind):
        return column
    if types.is_large_string(kind):
        return column.cast(pa.string())
    if types.is_boolean(kind) or types.is_integer(kind):
        return column.cast(pa.string())
    if types.is_floating(kind):
        return _floats(column)
    if types.is_decimal(kind):
        return _decimals(column)
    if types.is_date32(kind):
        return _moments(column.cast(pa.int32()).cast(pa.int64()), "D")
    if types.is_timestamp(kind):
        found = _moments(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()), "us")
        return found if kind.tz is None else pc.binary_join_element_wise(found, "Z", "")
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _each(column, lambda value: base64.b64encode(value).decode("ascii"))
    return _each(with_times_as_numbers(column), lambda value: _json(value, kind))


def json_texts(column: pa.Array) -> pa.Array:
    """Return each value as JSON; NULL stays NULL."""
    column = plain(column)
    kind = column.type
    types = pa.types
    found = texts(column)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_nested(kind):
        return found
    if types.is_floating(kind):
        finite = pc.is_finite(column)
        return pc.if_else(finite, found, pc.binary_join_element_wise('"', found, '"', ""))
    if not types.is_string(kind):
        return pc.binary_join_element_wise('"', found, '"', "")
    if pc.any(pc.match_substring_regex(found, _ESCAPED)).as_py():
        return _each(found, lambda value: orjson.dumps(value).decode("utf-8"))
    return pc.binary_join_element_wise('"', found, '"', "")


def json_rows(rows: pa.RecordBatch) -> pa.Array:
    """Return each row as a JSON object, without the columns that are NULL."""
    if not rows.num_columns:
        return pa.array(["{}"] * rows.num_rows, pa.string())
    pieces = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        label = "," + orjson.dumps(name).decode("utf-8") + ":"
        piece = pc.binary_join_element_wise(label, json_texts(column), "")
        pieces.append(pc.fill_null(piece, ""))
    body = pc.binary_join_element_wise(*pieces, "")
    body = pc.utf8_slice_codeunits(body, 1)  # without the first comma
    return pc.binary_join_element_wise("{", body, "}", "")


def shown(rows: pa.RecordBatch, count: int) -> str:
    """Return the first `count` rows as text for people."""
    some = rows.slice(0, count)
    columns = [
        [None if value is None else value.decode("utf-8", "backslashreplace") for value in column.to_pylist()]
        if pa.types.is_binary(column.type)
        else texts(column).to_pylist()
        for column in some.columns
    ]
    names = rows.schema.names
    return ", ".join(
        "(" + ", ".join(f"{name}: {value}" for name, value in zip(names, row, strict=True)) + ")"
        for row in zip(*columns, strict=True)
    )


def hex_texts(column: pa.Array) -> pa.Array:
    """Return binaries in hexadecimal digits."""
    column = plain(column).cast(pa.large_binary())
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    raw = np.zeros(0, dtype=np.uint8)
    if data is not None:
        raw = np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]
    pairs = np.stack([digits[raw >> 4], digits[raw & 15]], axis=1).ravel()
    made = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(((bounds - bounds[0]) * 2).tobytes()), pa.py_buffer(pairs.tobytes())
    )
    return _with_nulls(made.cast(pa.string()), column)


def binaries(column: pa.Array) -> pa.Array:
    """Return the binaries of texts in lowercase hexadecimal digits; each text has an even number of digits."""
    column = column.cast(pa.large_string())
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    values = np.zeros(256, dtype=np.uint8)
    for value, digit in enumerate(b"0123456789abcdef"):
        values[digit] = value
    raw = np.zeros(0, dtype=np.uint8)
    if data is not None:
        raw = values[np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]]
    made = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(column),
        [
            None,
            pa.py_buffer(((bounds - bounds[0]) // 2).tobytes()),
            pa.py_buffer(((raw[::2] << 4) | raw[1::2]).tobytes()),
        ],
    )
    return _with_nulls(made.cast(pa.binary()), column)


def canonical_json(column: pa.Array) -> pa.Array:
    """Return JSON texts in one canonical form, whatever their spacing and key order; numbers keep their exact value."""
    return _each(
        column,
        lambda value: _compact(json.loads(value, parse_float=decimal.Decimal, parse_int=decimal.Decimal)),
    )


def _floats(column: pa.Array) -> pa.Array:
    found = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return found
    found = pc.if_else(pc.is_nan(column), "NaN", found)
    infinite = pc.is_inf(column)
    signed = pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity")
    return pc.if_else(infinite, signed, found)


def _decimals(column: pa.Array) -> pa.Array:
    """Return decimals as text by the digits of their unscaled numbers, because Arrow writes small decimals with an exponent."""
    scale = column.type.scale
    kind = pa.decimal128(column.type.precision, 0)
    whole = pa.Array.from_buffers(kind, len(column), column.buffers(), offset=column.offset)
    digits = whole.cast(pa.string())
    if not scale:
        return digits
    negative = pc.starts_with(digits, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    sign = pc.if_else(negative, "-", "")
    before = pc.utf8_slice_codeunits(digits, 0, -scale)
    after = pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(sign, before, ".", after, "")


def _moments(numbers: pa.Array, unit: str) -> pa.Array:
    """Return days (unit 'D') or microseconds (unit 'us') since 1970 as text."""
    values = pc.fill_null(numbers, 0).to_numpy().astype(np.int64)
    per_day = 86_400_000_000 if unit == "D" else 1
    ordinary = (values >= _FIRST_US // per_day) & (values < _END_US // per_day)
    safe = pa.array(np.where(ordinary, values, 0))
    if unit == "D":
        made = safe.cast(pa.int32()).cast(pa.date32()).cast(pa.string())
    else:
        made = pc.utf8_replace_slice(safe.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    if not ordinary.all():
        odd = np.flatnonzero(~ordinary)
        replaced = np.array(made.to_pylist(), dtype=object)
        replaced[odd] = np.datetime_as_string(values[odd].view(f"datetime64[{unit}]"))
        made = pa.array(replaced, pa.string())
    return _with_nulls(made, numbers)


def _with_nulls(made: pa.Array, column: pa.Array) -> pa.Array:
    nulls = null_mask(column)
    return made if nulls is None else pc.if_else(pa.array(nulls), pa.scalar(None, made.type), made)


def _each(column: pa.Array, act: Any) -> pa.Array:
    return pa.array([None if value is None else act(value) for value in column.to_pylist()], pa.string())


def _json(value: Any, kind: pa.DataType) -> str:
    return _compact(_plain(value, kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a nested Arrow value, which has times as numbers, as a JSON value."""
    types = pa.types
    if value is None:
        return None
    if types.is_date32(kind) or types.is_timestamp(kind):
        number = pa.array([value], pa.int32() if types.is_date32(kind) else pa.int64())
        return texts(number.cast(kind)).to_pylist()[0]
    if types.is_struct(kind):
        return {
            f.name: _plain(value[f.name], f.type) for f in (kind.field(i) for i in range(kind.num_fields))
        }
    if types.is_map(kind):
        pairs = [(_plain(k, kind.key_type), _plain(v, kind.item_type)) for k, v in value]
        if types.is_string(kind.key_type):
            return dict(pairs)
        return [list(pair) for pair in pairs]
    if types.is_nested(kind):
        return [_plain(one, kind.value_type) for one in value]
    if isinstance(value, bool | str):
        return value
    if types.is_float32(kind) and math.isfinite(value):
        return decimal.Decimal(str(np.float32(value)))
    if isinstance(value, float):
        return (
            decimal.Decimal(repr(value)) if math.isfinite(value) else texts(pa.array([value])).to_pylist()[0]
        )
    if isinstance(value, int):
        return decimal.Decimal(value)
    if isinstance(value, decimal.Decimal):
        return value
    if isinstance(value, bytes):
        return texts(pa.array([value], kind)).to_pylist()[0]
    raise TypeError(f"values of type {kind} have no text")


def _compact(value: Any) -> str:
    """Return JSON in canonical form: no spaces, sorted keys, numbers without superfluous digits."""
    if isinstance(value, dict):
        body = ",".join(f"{_compact(name)}:{_compact(value[name])}" for name in sorted(value))
        return "{" + body + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if isinstance(value, decimal.Decimal):
        # the digits of such an exponent, written out, would fill the memory
        if abs(value.adjusted()) > _EXPONENT_MAX:
            return str(value.normalize())
        digits = format(value, "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return orjson.dumps(value).decode("utf-8")
