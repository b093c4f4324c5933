"""Conversion between text and a topic's types, for values that JSON and CSV cannot represent by themselves.

Timestamps and dates are ISO text, decimals text or numbers, binary base64, NaN and infinities text, maps objects (or lists of
pairs), nested values JSON. Values written here are read back as the same values.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa

from headwater.core.clock import timestamp
from headwater.core.errors import BadRowError, shown
from headwater.core.types import format_type
from headwater.core.values import decimal_in_range

Convert = Callable[[Any], Any]

_EXAMPLES = {
    "TIMESTAMP": "such as 2026-01-31T12:00:00Z",
    "TIMESTAMP_NTZ": "such as 2026-01-31T12:00:00",
    "DATE": "such as 2026-01-31",
    "BINARY": "binary is written in base64",
    "DECIMAL": "such as 12.50",
    "BOOLEAN": "true or false",
}
UNREADABLE = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions of a decoder for a value that cannot be read."""
_TRUE, _FALSE = {"true", "t", "yes", "y", "1"}, {"false", "f", "no", "n", "0"}


def read_json(text: bytes | str, *, exact: bool) -> Any:
    """Parse JSON, with decimals in all their digits if `exact`; ValueError if the text is not JSON."""
    try:
        return json.loads(text, parse_float=Decimal) if exact else orjson.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except InvalidOperation:
        raise ValueError("it has a number whose exponent is out of range") from None


def has_decimal(kind: pa.DataType) -> bool:
    """Whether values of this type must be read from JSON in all their digits."""
    if pa.types.is_map(kind):
        return has_decimal(kind.key_type) or has_decimal(kind.item_type)
    if pa.types.is_nested(kind):
        return any(has_decimal(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


def json_decoder(kind: pa.DataType) -> Convert | None:
    """Return the function that reads a value of this type from JSON; None if JSON's own value is right.

    The function raises ValueError or TypeError for a value that cannot be read.
    """
    types = pa.types
    if types.is_timestamp(kind):
        return _text(datetime.fromisoformat)
    if types.is_date(kind):
        return _text(date.fromisoformat)
    if types.is_decimal(kind):
        return _decimal
    if types.is_binary(kind):
        return _text(lambda text: base64.b64decode(text, validate=True))
    if types.is_floating(kind):
        return _float
    if types.is_list(kind):
        return _each(json_decoder(kind.value_type))
    if types.is_struct(kind):
        return _fields(
            {f.name: json_decoder(f.type) for f in (kind.field(i) for i in range(kind.num_fields))}
        )
    if types.is_map(kind):
        return _pairs(_key_decoder(kind.key_type), json_decoder(kind.item_type))
    return None


def text_decoder(kind: pa.DataType) -> Convert:
    """Return the function that reads a value of this type from a field of a CSV file."""
    types = pa.types
    if types.is_string(kind):
        return str
    if types.is_boolean(kind):
        return _boolean
    if types.is_integer(kind):
        return _number(int)
    if types.is_floating(kind):
        return _number(float)
    if types.is_nested(kind):
        decode = json_decoder(kind)
        return lambda text: decode(read_json(text, exact=True)) if decode else read_json(text, exact=True)
    decode_text = json_decoder(kind)
    assert decode_text is not None, "every other type is text in JSON"
    return decode_text


def json_encoder(kind: pa.DataType) -> Convert | None:
    """Return the function that writes a value of this type to JSON; None if JSON has the value itself."""
    types = pa.types
    if types.is_timestamp(kind):
        return timestamp
    if types.is_date(kind):
        return lambda value: value.isoformat()
    if types.is_decimal(kind):
        return str
    if types.is_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else str(value)
    if types.is_list(kind):
        return _each(json_encoder(kind.value_type))
    if types.is_struct(kind):
        return _fields(
            {f.name: json_encoder(f.type) for f in (kind.field(i) for i in range(kind.num_fields))}
        )
    if types.is_map(kind):
        return _map_encoder(kind)
    return None


def _text(read: Convert) -> Convert:
    def decode(value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError("not text")
        return read(value)

    return decode


def _number(read: Convert) -> Convert:
    """Return a decoder of numbers that rejects the underscores that Python allows."""

    def decode(text: str) -> Any:
        if "_" in text:
            raise ValueError(f"{text!r} is not a number")
        return read(text)

    return decode


def _decimal(value: Any) -> Decimal:
    if isinstance(value, str) and "_" in value:
        raise ValueError(f"{value!r} is not a number")
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise TypeError("not a number")
    try:
        return decimal_in_range(Decimal(repr(value) if isinstance(value, float) else value))
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None


def _float(value: Any) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, str):
        if value.lower() not in ("nan", "inf", "-inf", "infinity", "-infinity"):
            raise ValueError(f"{value!r} is not a number")
        return float(value)
    return float(value) if isinstance(value, (int, Decimal)) and not isinstance(value, bool) else value


def _boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in _TRUE


def _key_decoder(kind: pa.DataType) -> Convert:
    """Return a decoder of map keys. Keys of JSON objects are text, whatever the type of the map's keys."""
    decode = text_decoder(kind)
    return lambda key: decode(key) if isinstance(key, str) else (json_decoder(kind) or (lambda k: k))(key)


def _each(convert: Convert | None) -> Convert:
    def run(value: Any) -> Any:
        if convert is None or not isinstance(value, list):
            return value
        return [None if v is None else convert(v) for v in value]

    return run


def _fields(converters: dict[str, Convert | None]) -> Convert:
    def run(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in value:
            if name not in converters:
                raise ValueError(f"there is no field {name!r}")
        return {n: v if v is None or not (c := converters[n]) else c(v) for n, v in value.items()}

    return run


def _pairs(key: Convert, item: Convert | None) -> Convert:
    def run(value: Any) -> Any:
        pairs = value.items() if isinstance(value, dict) else value
        return [(key(k), v if v is None or item is None else item(v)) for k, v in pairs]

    return run


def _map_encoder(kind: pa.DataType) -> Convert:
    key, item = json_encoder(kind.key_type), json_encoder(kind.item_type)
    as_object = pa.types.is_string(kind.key_type)

    def run(pairs: Any) -> Any:
        done = [(k if key is None else key(k), v if v is None or item is None else item(v)) for k, v in pairs]
        return dict(done) if as_object and len({k for k, _ in done}) == len(done) else [list(p) for p in done]

    return run


@dataclass(frozen=True)
class InputRows:
    """Rows of input for a topic, as errors name them."""

    topic: str
    place: str
    """Name of a row, such as 'line {}', in which its number replaces the braces."""
    detail: str | None = None
    """Detail for the errors, such as a note that nothing was written."""


def decoded(decode: Convert, value: Any, field: pa.Field, rows: InputRows, number: int = 0) -> Any:
    """Return a value decoded for its column; BadRowError, which names its row by the number, if it cannot be decoded."""
    try:
        return decode(value)
    except UNREADABLE:
        raise unreadable(value, field, rows, number) from None


def unreadable(value: Any, field: pa.Field, rows: InputRows, number: int = 0) -> BadRowError:
    """Return the error for a value that cannot be decoded for its column, see `decoded`."""
    expected = format_type(field.type)
    place = rows.place.format(number)
    return BadRowError(
        f"column {field.name!r} of {place} for topic {rows.topic!r} is {shown(value, 80)}, expected {expected}",
        detail=rows.detail,
        hint=_EXAMPLES.get(expected.split("(")[0]),
        topic=rows.topic,
        row=number,
        column=field.name,
        value=value,
        expected=expected,
    )


def distinct(names: Iterable[str]) -> list[str]:
    """Return unique names for an object: a second `n` becomes `n_2`."""
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found


# --- single rows ---------------------------------------------------------------------------------------------------


def as_json(row: Mapping[str, Any]) -> str:
    """Return a row as JSON for display: times in ISO 8601, decimals as text, binary in base64."""
    return orjson.dumps(dict(row), default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def packed(row: pa.RecordBatch) -> bytes:
    """Return a row as an Arrow stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, row.schema) as writer:
        writer.write_batch(row)
    return bytes(out.getvalue())


def unpacked(data: bytes) -> pa.Table:
    """Return the row of a stream that `packed` made."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
