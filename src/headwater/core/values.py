"""Converts single values to a column's type: converted if nothing is lost, rejected if it would become another value.

Only types and values; independent of rows and topics. The caller adds the row to an error.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError)
"""Exceptions that `array_of` and `convert` raise for values that do not fit."""

_STRANGERS: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (
        pa.types.is_integer,
        (bool, float, decimal.Decimal, np.floating, np.bool_, np.timedelta64, np.datetime64),
    ),
    (pa.types.is_floating, (bool, np.bool_)),
    (pa.types.is_string, (bytes, bytearray)),
    (pa.types.is_binary, (str,)),
    (pa.types.is_date, (datetime.datetime, int, float, decimal.Decimal, np.number, np.bool_)),
    (pa.types.is_timestamp, (int, float, decimal.Decimal, np.number, np.bool_)),
)
"""Python types that Arrow would convert to a column's type, although the value changes or its unit is a guess."""
_PLAIN_TIMES = {datetime.datetime, datetime.date, type(None)}
EXPONENT_MAX = 76
"""Digits of Arrow's widest decimal. An exponent far beyond makes Arrow read outside of its tables."""
TEXT_BYTES_MAX = 2**31 - 1
"""Capacity of a text column in bytes: its offsets have 32 bits."""


def decimal_in_range(value: decimal.Decimal) -> decimal.Decimal:
    """Return the same number with an exponent that Arrow can read; ValueError for a number that no DECIMAL holds."""
    if -EXPONENT_MAX <= value.adjusted() <= EXPONENT_MAX and value.is_finite():
        return value
    if value.is_finite() and not value:
        return decimal.Decimal(0)
    raise ValueError(f"a decimal has at most {EXPONENT_MAX} digits")


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return Python values as an array; raises one of UNFIT if Arrow would change one of them, at any depth."""
    if pa.types.is_nested(kind):
        return _nested(values, kind)
    kinds = set(map(type, values))
    for applies, strangers in _STRANGERS:
        if applies(kind) and any(issubclass(given, strangers) for given in kinds):
            raise pa.ArrowTypeError("another kind of value")
    if pa.types.is_temporal(kind) and not kinds <= _PLAIN_TIMES:
        values = [_exact_time(value, kind) for value in values]
    if pa.types.is_decimal(kind) and decimal.Decimal in kinds:
        values = [decimal_in_range(v) if isinstance(v, decimal.Decimal) else v for v in values]
    array = pa.array(values, type=kind)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_float32(kind):
        _check_overflow(pa.array(values, pa.float64()), array)
    return array


def _exact_time(value: Any, kind: pa.DataType) -> Any:
    """Return a time of numpy or pandas as a Python value; ArrowInvalid if microseconds (for a DATE, days) cannot hold it."""
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        rounded = value.astype("M8[D]" if pa.types.is_date(kind) else "M8[us]")
        plain = rounded.astype(object)
        if rounded != value or not isinstance(plain, datetime.date):
            raise pa.ArrowInvalid("would lose a part")
        return plain
    if getattr(value, "nanosecond", 0):
        raise pa.ArrowInvalid("would lose nanoseconds")
    return value


def _nested(values: list[Any], kind: pa.DataType) -> pa.Array:
    present = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        names = {part.name for part in parts}
        if not all(isinstance(value, Mapping) and names.issuperset(value) for value in present):
            raise pa.ArrowInvalid("not a mapping of the fields")
        children = [_part(values, part) for part in parts]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=parts, mask=missing)
    if pa.types.is_map(kind):
        pairs = [list(v.items()) if isinstance(v, Mapping) else _sequence(v) for v in present]
        keys = [key for key, _ in chain.from_iterable(pairs)]
        if None in keys:
            raise pa.ArrowInvalid("a key is missing")
        items = [item for _, item in chain.from_iterable(pairs)]
        return pa.MapArray.from_arrays(
            _offsets(values, pairs), array_of(keys, kind.key_type), array_of(items, kind.item_type), type=kind
        )
    lists = [_sequence(value) for value in present]
    inner = array_of(list(chain.from_iterable(lists)), kind.value_type)
    return pa.ListArray.from_arrays(_offsets(values, lists), inner, type=kind)


def _part(values: list[Any], part: pa.Field) -> pa.Array:
    """Return one field of structs. Below a NULL struct, a NOT NULL field has an empty value, as Arrow requires."""
    array = array_of([None if value is None else value.get(part.name) for value in values], part.type)
    if part.nullable or all(value is not None for value in values):
        return array
    empty = pa.array([None], pa.struct([part])).field(0)
    places = [len(values) if value is None else place for place, value in enumerate(values)]
    return pa.concat_arrays([array, empty]).take(pa.array(places, pa.int64()))


def _sequence(value: Any) -> Sequence[Any]:
    """Return an ordered collection as a sequence; ArrowTypeError for a text or an unordered collection such as a set."""
    if isinstance(value, (list, tuple)):
        return value
    ordered = isinstance(value, Sequence) or hasattr(value, "__array__")
    if not ordered or isinstance(value, (str, bytes, bytearray, memoryview)):
        raise pa.ArrowTypeError("not a list")
    return list(value)


def _offsets(values: list[Any], present: Iterable[Sequence[Any]]) -> pa.Array:
    """Return the offset of each list in the concatenated values, null for a missing list; and the end of the last one."""
    at, lengths, offsets = 0, map(len, present), []
    for value in values:
        offsets.append(None if value is None else at)
        at += 0 if value is None else next(lengths)
    return pa.array([*offsets, at], pa.int32())


def convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert Arrow values to another type of their family; raises one of UNFIT if one of them would change."""
    if column.type == kind:
        return column
    if not castable(column.type, kind):
        raise pa.ArrowTypeError(f"{column.type} is not {kind}")
    if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
        column = column.cast(pa.decimal128(20, 0))  # Arrow requires room for any 64-bit integer
    converted = column.cast(kind, safe=True)
    _check_floats(column, converted)
    return converted


def with_times_as_numbers(column: pa.Array) -> pa.Array:
    """Return the column with its dates and times, at any depth, as integers: Python only represents the years 1 to 9999."""
    kind = _times_as_numbers(column.type)
    return column if kind == column.type else column.cast(kind)


def _times_as_numbers(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_date32(kind):
        return pa.int32()
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_struct(kind):
        parts = (kind.field(i) for i in range(kind.num_fields))
        return pa.struct([part.with_type(_times_as_numbers(part.type)) for part in parts])
    if types.is_map(kind):
        item = kind.item_field.with_type(_times_as_numbers(kind.item_type))
        return pa.map_(kind.key_field.with_type(_times_as_numbers(kind.key_type)), item)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_numbers(kind.value_type)))
    return kind


def decode_dictionary(column: pa.DictionaryArray) -> pa.Array:
    """Return the column without its dictionary; ArrowInvalid if the values exceed the capacity of a column, on which Arrow
    crashes."""
    if _expanded_bytes(column) > TEXT_BYTES_MAX:
        raise pa.ArrowInvalid("the values are larger than 2 GB once each row has its own")
    return column.dictionary_decode()


def converted_bytes(column: pa.Array, kind: pa.DataType) -> int:
    """Return about how many bytes `convert` makes of a column: values may be larger in another type, or take none before."""
    types, given = pa.types, column.type
    if types.is_dictionary(given):
        return _expanded_bytes(column)
    if given == kind:
        return int(column.nbytes)
    if types.is_struct(given) and types.is_struct(kind):
        total = 0
        for part in (kind.field(i) for i in range(kind.num_fields)):
            place = given.get_field_index(part.name)
            absent = place < 0
            total += (
                len(column) * null_bytes(part.type)
                if absent
                else converted_bytes(column.field(place), part.type)
            )
        return total
    if types.is_map(given) and types.is_map(kind):
        return converted_bytes(column.keys, kind.key_type) + converted_bytes(column.items, kind.item_type)
    if any(is_list(given) for is_list in _LISTS) and types.is_list(kind):
        return 4 * len(column) + converted_bytes(column.values, kind.value_type)
    return decoded_bytes(column) + len(column) * null_bytes(kind)


def decoded_bytes(column: pa.Array) -> int:
    """Return about how many bytes the rows of a column, or of a slice, take once its dictionaries are decoded."""
    types, kind = pa.types, column.type
    if not len(column):
        return 0
    if types.is_dictionary(kind):
        return _expanded_bytes(column)
    if types.is_struct(kind):
        return len(column) + sum(decoded_bytes(column.field(i)) for i in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        first, count = column.offset * kind.list_size, len(column) * kind.list_size
        return decoded_bytes(column.values.slice(first, count))
    if types.is_map(kind) or any(is_list(kind) for is_list in _LISTS):
        first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        inner = (column.keys, column.items) if types.is_map(kind) else (column.values,)
        return 4 * len(column) + sum(decoded_bytes(part.slice(first, end - first)) for part in inner)
    return int(column.nbytes)


def has_required_part(kind: pa.DataType) -> bool:
    """Whether a type has a NOT NULL part at any depth."""
    types = pa.types
    if types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
    elif types.is_map(kind):
        parts = [kind.item_field]
    elif types.is_list(kind):
        parts = [kind.value_field]
    else:
        return False
    return any(not part.nullable or has_required_part(part.type) for part in parts)


def count_values(column: pa.Array) -> int:
    """Return the number of values of a column, including nested values."""
    types, kind = pa.types, column.type
    inner: list[pa.Array] = []
    if types.is_struct(kind):
        inner = [column.field(i) for i in range(kind.num_fields)]
    elif types.is_map(kind):
        inner = [column.keys, column.items]
    elif any(is_list(kind) for is_list in _LISTS):
        inner = [column.values]
    return len(column) + sum(map(count_values, inner))


def null_bytes(kind: pa.DataType) -> int:
    """Return about how many bytes a NULL of a type takes."""
    if pa.types.is_struct(kind):
        return 1 + sum(null_bytes(kind.field(i).type) for i in range(kind.num_fields))
    try:
        return 1 + int(kind.bit_width) // 8
    except ValueError:  # variable width: size of an offset
        return 5


def _expanded_bytes(column: pa.DictionaryArray) -> int:
    """Return the size of a dictionary column once it is decoded."""
    values = column.dictionary
    if not any(same(values.type) for same in (_is_text, _is_bytes)):
        return len(column) * null_bytes(values.type)
    if pa.types.is_fixed_size_binary(values.type):
        return len(column) * int(values.type.byte_width)
    return 4 * len(column) + (
        pc.sum(pc.binary_length(values).cast(pa.int64()).take(column.indices)).as_py() or 0
    )


def _check_floats(wide: pa.Array, narrow: pa.Array) -> None:
    """Check for overflow at every depth, which Arrow's cast does not do."""
    types = pa.types
    if types.is_float32(narrow.type) and types.is_floating(wide.type):
        _check_overflow(wide, narrow)
    elif types.is_map(narrow.type) and types.is_map(wide.type):
        _check_floats(_entries(wide, wide.keys), _entries(narrow, narrow.keys))
        _check_floats(_entries(wide, wide.items), _entries(narrow, narrow.items))
    elif types.is_list(narrow.type) and not types.is_null(wide.type):
        _check_floats(wide.flatten(), narrow.flatten())
    elif types.is_struct(narrow.type) and types.is_struct(wide.type):
        for i in range(wide.type.num_fields):
            name = wide.type.field(i).name
            _check_floats(pc.struct_field(wide, [i]), pc.struct_field(narrow, name))


def _entries(column: pa.MapArray, inner: pa.Array) -> pa.Array:
    """Return the keys or items of the maps within a slice."""
    return pa.ListArray.from_arrays(column.offsets, inner).flatten()


def _check_overflow(wide: pa.Array, narrow: pa.Array) -> None:
    """Raise ArrowInvalid if a finite number becomes infinite as a FLOAT."""
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide))).as_py():
        raise pa.ArrowInvalid("out of range")


def castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values may be converted at all: within a family of types, never by parsing or printing text."""
    types = pa.types
    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return castable(given.value_type, wanted)
    if types.is_struct(given) and types.is_struct(wanted):
        parts = {part.name: part.type for part in (wanted.field(i) for i in range(wanted.num_fields))}
        inner = (given.field(i) for i in range(given.num_fields))
        return all(part.name in parts and castable(part.type, parts[part.name]) for part in inner)
    if types.is_map(given) and types.is_map(wanted):
        return castable(given.key_type, wanted.key_type) and castable(given.item_type, wanted.item_type)
    if any(is_list(given) for is_list in _LISTS) and types.is_list(wanted):
        return castable(given.value_type, wanted.value_type)
    if any(same(given) and same(wanted) for same in _FAMILIES):
        return True
    number = types.is_floating(wanted) or types.is_decimal(wanted)
    return bool(types.is_integer(given) and number)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    large = types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(types.is_binary(kind) or large or kind == pa.binary_view())


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    _is_text,
    _is_bytes,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_boolean,
)
