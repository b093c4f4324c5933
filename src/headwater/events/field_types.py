"""Python types as column types, with conversions of values both ways, for the fields of events and states.

Plain values (integers, text, booleans, dates) are stored unchanged. The others are converted for a row: an enum to its
value, a UUID to its text, a dataclass to a STRUCT. Reading returns the declared type. JSON, the format of snapshots, is read
back by the same types. Pure; independent of topics and events.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow as pa

from headwater.core.errors import SchemaError
from headwater.core.types import TIMESTAMP, parse_type

Convert = Callable[[Any], Any]
DECIMAL = pa.decimal128(38, 9)
"""Column type of a Decimal without annotation."""

_PLAIN: dict[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


@dataclasses.dataclass(frozen=True)
class FieldType:
    """A Python type as a column, with its conversions; None stands for a conversion without effect."""

    column: pa.DataType | None
    """Column type; None if a column cannot hold the type: it may be part of a state, but not of an event."""
    to_row: Convert | None = None
    from_row: Convert | None = None
    from_json: Convert | None = None
    optional: bool = False


def shape_of(hint: Any) -> FieldType:
    """Return the shape of a type as it is annotated; SchemaError if there is none."""
    if get_origin(hint) is Annotated:
        return _annotated(hint)
    if hint in _PLAIN:
        return FieldType(_PLAIN[hint], from_json=_unhex if hint is bytes else None)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union or origin is types.UnionType:
        return _optional(hint, arguments)
    if origin is Literal:
        return shape_of(_one_type(hint, {type(value) for value in arguments}))
    if origin in (list, tuple, set, frozenset, Sequence) and arguments:
        return _collection(hint, origin, arguments)
    if origin in (dict, Mapping) and len(arguments) == 2:
        return _mapping(*map(shape_of, arguments))
    if isinstance(hint, type):
        return _of_class(hint)
    raise _unknown(hint)


def fields_of(kind: type) -> dict[str, tuple[dataclasses.Field[Any], FieldType]]:
    """Return the fields of a dataclass with their shapes; SchemaError names the field without one."""
    hints = hints_of(kind)
    found = {}
    for field in dataclasses.fields(kind):
        try:
            found[field.name] = field, shape_of(hints[field.name])
        except SchemaError as error:
            raise SchemaError(
                f"field {field.name!r} of {kind.__name__}: {error.message}",
                hint=error.hint,
                **{**error.facts, "field": field.name},
            ) from None
    return found


def hints_of(thing: Any) -> dict[str, Any]:
    """Return the annotations of a class or function, as types; SchemaError if a name in them cannot be resolved."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except (NameError, TypeError) as error:
        raise SchemaError(
            f"the annotations of {getattr(thing, '__name__', thing)!r} cannot be resolved: {error}",
            hint="define the types that it names at the top level of a module",
            reason="annotations-not-resolved",
        ) from None


def json_default(value: Any) -> Any:
    """Return a value that orjson cannot serialize in a form that it can."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be serialized as JSON")


def _annotated(hint: Any) -> FieldType:
    """Return the shape of `Annotated[Decimal, "DECIMAL(12, 2)"]`, in which the text is the column's type."""
    kind, *notes = get_args(hint)
    shape = shape_of(kind)
    said = [note for note in notes if isinstance(note, str)]
    return dataclasses.replace(shape, column=parse_type(said[0])) if said else shape


def _optional(hint: Any, arguments: Sequence[Any]) -> FieldType:
    inner = [argument for argument in arguments if argument is not type(None)]
    if len(inner) != 1 or len(inner) == len(arguments):
        raise _unknown(hint)
    shape = shape_of(inner[0])
    return FieldType(
        shape.column,
        _unless_none(shape.to_row),
        _unless_none(shape.from_row),
        _unless_none(shape.from_json),
        True,
    )


def _one_type(hint: Any, kinds: set[type]) -> type:
    if len(kinds) != 1:
        raise _unknown(hint)
    return kinds.pop()


def _collection(hint: Any, origin: Any, arguments: Sequence[Any]) -> FieldType:
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not ...):
        return _fixed(tuple(map(shape_of, arguments)))
    item = shape_of(arguments[0])
    make = list if origin is Sequence else origin
    ordered = make in (list, tuple)
    return FieldType(
        pa.list_(item.column) if item.column is not None else None,
        functools.partial(_each, item.to_row, list if ordered else _in_order),
        functools.partial(_each, item.from_row, make),
        functools.partial(_each, item.from_json, make),
    )


def _fixed(items: tuple[FieldType, ...]) -> FieldType:
    """Return the shape of a tuple of fixed length, each item of its own type: for states only."""
    return FieldType(None, from_json=functools.partial(_pieces, tuple(item.from_json for item in items)))


def _pieces(each: tuple[Convert | None, ...], values: Any) -> Any:
    return tuple(v if c is None else c(v) for c, v in zip(each, values, strict=True))


def _mapping(key: FieldType, value: FieldType) -> FieldType:
    both = key.column is not None and value.column is not None
    return FieldType(
        pa.map_(key.column, value.column) if both else None,
        lambda pairs: [(_apply(key.to_row, k), _apply(value.to_row, v)) for k, v in pairs.items()],
        lambda pairs: {_apply(key.from_row, k): _apply(value.from_row, v) for k, v in pairs},
        lambda pairs: {_apply(_key_of(key), k): _apply(value.from_json, v) for k, v in pairs.items()},
    )


def _key_of(key: FieldType) -> Convert | None:
    """Return the conversion of JSON object keys, which are text."""
    if key.from_json is not None or key.column is None:
        return key.from_json
    readers: dict[pa.DataType, Convert] = {
        pa.int64(): int,
        pa.float64(): float,
        pa.bool_(): lambda text: text == "true",
    }
    return readers.get(key.column)


def _of_class(kind: type) -> FieldType:
    if issubclass(kind, enum.Enum):
        column = shape_of(_one_type(kind, {type(member.value) for member in kind})).column
        return FieldType(column, lambda member: kind(member).value, kind, kind)
    if kind is datetime:
        return FieldType(TIMESTAMP, _utc, _utc, datetime.fromisoformat)
    if kind is date:
        return FieldType(pa.date32(), None, None, date.fromisoformat)
    if kind is Decimal:
        return FieldType(DECIMAL, None, _normal, Decimal)
    if kind is uuid.UUID:
        return FieldType(pa.string(), str, uuid.UUID, uuid.UUID)
    if dataclasses.is_dataclass(kind):
        return _struct(kind)
    raise _unknown(kind)


def _struct(kind: type) -> FieldType:
    fields = [(field.name, shape) for field, shape in fields_of(kind).values()]
    columns = [(name, shape.column) for name, shape in fields]
    whole = bool(fields) and all(column is not None for _, column in columns)
    return FieldType(
        pa.struct(columns) if whole else None,
        lambda value: {name: _apply(shape.to_row, getattr(value, name)) for name, shape in fields},
        lambda row: kind(**{name: _apply(shape.from_row, row[name]) for name, shape in fields}),
        lambda row: kind(**{name: _apply(shape.from_json, row[name]) for name, shape in fields}),
    )


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None else convert(value)


def _unless_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _each(convert: Convert | None, make: Convert, values: Any) -> Any:
    return make(values if convert is None else map(convert, values))


def _in_order(values: Any) -> list[Any]:
    found = list(values)
    try:
        return sorted(found)
    except TypeError:
        return found


def _utc(moment: Any) -> Any:
    if isinstance(moment, datetime):
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment


def _normal(value: Any) -> Any:
    """Return a decimal without the trailing zeros that a column's scale adds."""
    if not isinstance(value, Decimal):
        return value
    plain = value.normalize()
    return plain.quantize(Decimal(1)) if plain.as_tuple().exponent > 0 else plain  # type: ignore[operator]


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def _unknown(hint: Any) -> SchemaError:
    shown = hint.__name__ if isinstance(hint, type) else str(hint)
    return SchemaError(
        f"{shown} is not a type that a column can hold",
        hint="use int, float, str, bool, bytes, datetime, date, Decimal, UUID, an Enum, a dataclass, "
        "or a list, tuple, dict or X | None of these",
        type=shown,
    )
