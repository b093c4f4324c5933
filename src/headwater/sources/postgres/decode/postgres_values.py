"""Converts text values of Postgres to Arrow columns: exactly, many at a time.

A converter takes a column of texts (`buffer_slices`) and returns a column of its type with the same nulls; it raises one of
`UNFIT` if the type cannot represent a value. `postgres_types` assigns converters to types.

The text form of values depends on session settings: this module relies on `SETTINGS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.values import UNFIT as UNFIT
from headwater.sources.postgres.decode.buffer_slices import bounds_of, cut, with_nulls

Converter = Callable[[pa.Array], pa.Array]

SETTINGS: Mapping[str, str] = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, YMD",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
}
"""Settings that every session which sends values must have. `lc_monetary` keeps the server's setting: money is stored in that
format."""

_CAST, _EQUAL, _TRUE = pc.get_function("cast"), pc.get_function("equal"), pa.scalar("t")
_DAY_US = 86_400_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LAST_DAY, _FIRST_DAY = date.max.toordinal() - _EPOCH_DAY, date.min.toordinal() - _EPOCH_DAY
_ODD_TIME = r"^\d{5,}-|^-?infinity$| BC$"
"""Dates and times outside the years 1 to 9999."""
_TIME = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?", re.ASCII
)
_NOT_PLAIN_ARRAY = r'["\\]|^\[|.\{'
_ELEMENTS = {
    d: re.compile(rf'"((?:[^"\\]|\\.)*)"|([^{d}{{}}"]+)', re.DOTALL)
    for d in (",", ";")  # only arrays of boxes use semicolons
}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def casting(kind: pa.DataType) -> Converter:
    """Return a converter for types whose text form Arrow can parse: integers, floats, decimals. NaN is not a decimal."""

    options = pc.CastOptions.safe(kind)

    def convert(text: pa.Array) -> pa.Array:
        return _CAST.call([text], options)

    return convert


def booleans(text: pa.Array) -> pa.Array:
    """Convert booleans: t and f."""
    return _EQUAL.call([text, _TRUE])


def strings(text: pa.Array) -> pa.Array:
    """Return texts unchanged, validated as UTF-8: a database with encoding SQL_ASCII may contain any bytes."""
    text.validate(full=True)
    return text


def binaries(text: pa.Array) -> pa.Array:
    r"""Convert bytea in hex format: \x and two digits per byte."""
    starts, ends, data = bounds_of(text)
    valid = np.asarray(text.is_valid())
    starts, ends = starts + 2 * valid, np.where(valid, ends, starts)
    if (starts > ends).any():
        raise ValueError("bytea is expected in hex")
    letters = np.frombuffer(data, dtype=np.uint8)
    if (letters[starts[valid] - 2] != ord("\\")).any() or (letters[starts[valid] - 1] != ord("x")).any():
        raise ValueError("bytea is expected in hex")
    _, offsets, digits = cut(data, starts, ends).buffers()
    plain = bytes.fromhex(digits.to_pybytes().decode("ascii")) if digits is not None else b""
    halves = (
        np.frombuffer(offsets, dtype=np.int32)[: len(text) + 1] // 2 if len(text) else np.zeros(1, np.int32)
    )
    column = pa.Array.from_buffers(pa.binary(), len(text), [None, pa.py_buffer(halves), pa.py_buffer(plain)])
    return with_nulls(column, valid)


def timestamps(kind: pa.DataType) -> Converter:
    """Return a converter for timestamps in UTC with microseconds, of any year. infinity becomes the last microsecond of the
    year 9999 and -infinity the first of the year 1: the bounds that Python and most other systems support. Years after 294246
    do not fit."""

    usual = casting(kind)

    def convert(text: pa.Array) -> pa.Array:
        try:
            return usual(text)
        except pa.ArrowInvalid:
            return _odd_times(text, kind, _odd_microseconds)

    return convert


def dates(text: pa.Array) -> pa.Array:
    """Convert dates of any year; infinity becomes the last day of the year 9999 and -infinity the first of the year 1."""
    try:
        return text.cast(pa.date32())
    except pa.ArrowInvalid:
        return _odd_times(text, pa.date32(), _odd_days)


def lists(element: Converter, kind: pa.DataType, delimiter: str = ",") -> Converter:
    """Return a converter for one-dimensional arrays of elements of `kind`. Lower bounds other than 1 are lost; more dimensions
    do not fit."""

    def convert(text: pa.Array) -> pa.Array:
        if pc.any(pc.match_substring_regex(text, _NOT_PLAIN_ARRAY)).as_py():
            literals = [None if v is None else _elements(v, delimiter) for v in text.to_pylist()]
            parts = pa.array(literals, pa.list_(pa.string()))
        else:
            parts = _split(text, delimiter)
        return pa.ListArray.from_arrays(
            parts.offsets, element(parts.values), type=pa.list_(kind), mask=text.is_null()
        )

    return convert


def _odd_times(text: pa.Array, kind: pa.DataType, read: Callable[[str], int]) -> pa.Array:
    """Convert dates or timestamps; values outside the years 1 to 9999 are converted one by one."""
    odd = np.asarray(pc.fill_null(pc.match_substring_regex(text, _ODD_TIME), False))
    stored = pa.int32() if pa.types.is_date(kind) else pa.int64()
    usual = pc.if_else(pa.array(odd), None, text).cast(kind).cast(stored)
    numbers = np.asarray(pc.fill_null(usual, 0)).copy()
    for place in np.flatnonzero(odd):
        numbers[place] = read(text[int(place)].as_py())
    return pa.array(numbers, stored, mask=np.asarray(text.is_null())).cast(kind)


def _odd_days(text: str) -> int:
    if text.endswith("infinity"):
        return _FIRST_DAY if text.startswith("-") else _LAST_DAY
    return _parts(text)[0]


def _odd_microseconds(text: str) -> int:
    if text.endswith("infinity"):
        return _FIRST_DAY * _DAY_US if text.startswith("-") else (_LAST_DAY + 1) * _DAY_US - 1
    days, microseconds = _parts(text)
    moment = days * _DAY_US + microseconds
    if moment >= 2**63:
        raise ValueError("it is after the year 294246, where TIMESTAMP ends")
    return moment


def _parts(text: str) -> tuple[int, int]:
    """Return the days since 1970 and the microseconds within the day."""
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError("it is not a timestamp in the ISO format of Postgres")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    microsecond = int((found[7] or "").ljust(6, "0"))
    if found[8]:
        year = 1 - year  # 1 BC is the year 0
    cycles, year = divmod(year - 1, 400)  # the calendar repeats every 400 years; Python has 1 to 9999
    days = date(year + 1, month, day).toordinal() - _EPOCH_DAY + cycles * 146_097
    return days, ((hour * 60 + minute) * 60 + second) * 1_000_000 + microsecond


def _split(text: pa.Array, delimiter: str) -> pa.ListArray:
    """Split arrays without quotes, in which no element is an empty string."""
    parts = pc.split_pattern(pc.utf8_trim(text, "{}"), delimiter)
    values, lengths = parts.flatten(), np.asarray(pc.fill_null(pc.list_value_length(parts), 0))
    empty = np.asarray(pc.fill_null(pc.equal(text, "{}"), False))
    if empty.any():
        values = values.filter(pc.not_equal(values, ""))
        lengths = lengths - empty
    if pc.any(pc.equal(values, "NULL")).as_py():
        values = pc.if_else(pc.equal(values, "NULL"), None, values)
    offsets = np.zeros(len(text) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _elements(literal: str, delimiter: str) -> list[str | None]:
    if literal.startswith("["):
        literal = literal[literal.index("=") + 1 :]
    if literal.startswith("{{"):
        raise ValueError("arrays of more than one dimension are not supported")
    return [
        _ESCAPED.sub(r"\1", quoted) if plain == "" else None if plain == "NULL" else plain
        for quoted, plain in _ELEMENTS[delimiter].findall(literal, 1, len(literal) - 1)
    ]
