"""Rows as users have them, turned into Arrow batches that fit a topic exactly, or refused row by row.

Knows schemas and values; knows nothing of partitions, offsets or disk.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog import OP_TYPE, TopicDefinition
from headwater.errors import BadRowError, HeadwaterError, UsageError
from headwater.types import format_type

OPS = ("upsert", "delete", "insert", "update", "snapshot")
"""The values of `_op`; in active segments each is stored as its place in this tuple."""
UPSERT, DELETE = 0, 1

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls an index without a name when it hands over its frame."""


def conform(rows: Any, topic: TopicDefinition) -> pa.RecordBatch:
    """One batch in the topic's columns and types, plus `_op` (int8) on keyed topics; BadRowError if a row is not fit."""
    if isinstance(rows, Mapping):
        raise UsageError(
            f"append to topic {topic.name!r} takes a list of rows, not one mapping",
            hint=f"write append([{{...}}]), or ws.append({{{topic.name!r}: [...]}}) for several topics",
        )
    if isinstance(rows, pa.RecordBatch) and rows.schema.equals(topic.row_schema):
        for field, column in zip(topic.schema, rows.columns, strict=False):
            _validate(column, field, topic)
        _check_nulls(rows, topic)
        return rows
    table = _as_table(rows)
    batch = _from_arrow(table, topic) if table is not None else _from_dicts(rows, topic)
    _check_nulls(batch, topic)
    return batch


def adapt(batch: pa.RecordBatch, schema: pa.Schema, rows: int | None = None) -> pa.RecordBatch:
    """A batch written under an earlier schema, in today's: added columns are null, widened ones are cast.

    `rows` counts where the batch has no column left to count by.
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(batch.num_rows if rows is None else rows, field.type))
        else:
            column = batch.column(at)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def op_names(codes: pa.Array) -> pa.Array:
    """The text of `_op` codes."""
    return pa.array(OPS).take(codes)


def chunks(rows: Any, size: int = 65_536) -> Iterator[Any]:
    """Rows of any length in pieces that fit in memory: lists and frames are sliced, iterators are drained."""
    table = _as_table(rows) if not isinstance(rows, pa.RecordBatchReader) else None
    if table is not None:
        yield from table.to_batches(max_chunksize=size)
    elif isinstance(rows, Sequence):
        for start in range(0, len(rows), size):
            yield rows[start : start + size]
    else:
        pending: list[Any] = []
        for row in rows:
            if isinstance(row, Mapping):
                pending.append(row)
                if len(pending) == size:
                    yield pending
                    pending = []
            else:
                yield row
        if pending:
            yield pending


def is_stream(rows: Any) -> bool:
    """Whether rows come from an iterator of unknown length, which may be larger than memory."""
    return isinstance(rows, pa.RecordBatchReader) or (
        isinstance(rows, Iterator) and not hasattr(rows, "__arrow_c_stream__")
    )


def _as_table(rows: Any) -> pa.Table | None:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader) or hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
        unnamed = [name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)]
        return table.drop_columns(unnamed) if unnamed else table
    return None


def _from_dicts(rows: Any, topic: TopicDefinition) -> pa.RecordBatch:
    if not isinstance(rows, list):
        if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
            raise UsageError(
                f"rows for topic {topic.name!r} are {type(rows).__name__}, which cannot be appended",
                hint="pass a list of dicts, a pyarrow Table or RecordBatch, or a pandas or polars frame",
            )
        rows = list(rows)
    if not all(issubclass(kind, Mapping) for kind in set(map(type, rows))):
        row = next(i for i, r in enumerate(rows) if not isinstance(r, Mapping))
        raise _bad(topic, row, None, rows[row], "a mapping of column names to values")
    given: set[Any] = set().union(*rows)
    allowed = set(topic.schema.names) | ({"_op"} if topic.keyed else set())
    if given - allowed:
        _refuse_unknown(rows, allowed, topic)
    arrays = []
    for field in topic.schema:
        values = _values(rows, field.name) if field.name in given else [None] * len(rows)
        arrays.append(_column(values, field, topic))
    if topic.keyed:
        arrays.append(_ops([row.get("_op") for row in rows] if "_op" in given else None, len(rows), topic))
    return pa.RecordBatch.from_arrays(arrays, schema=topic.row_schema)


def _values(rows: list[Mapping[str, Any]], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def _column(values: list[Any], field: pa.Field, topic: TopicDefinition) -> pa.Array:
    try:
        _check_kinds(set(map(type, values)), field.type)
        array = pa.array(values, type=field.type)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if pa.types.is_float32(field.type):
            _check_overflow(pa.array(values, pa.float64()), array)
        if pa.types.is_nested(field.type):
            for value in values:
                _check_fields(value, field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError):
        row = _first_failure(values, lambda v: _check_value(v, field.type))
        raise _bad(topic, row, field.name, values[row], format_type(field.type)) from None
    return array


_STRANGERS: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pa.types.is_integer, (bool, float, decimal.Decimal, np.floating, np.bool_)),
    (pa.types.is_floating, (bool, np.bool_)),
    (pa.types.is_string, (bytes, bytearray)),
    (pa.types.is_binary, (str,)),
    (pa.types.is_date, (datetime.datetime, int)),
    (pa.types.is_timestamp, (int,)),
)
"""Python types that Arrow would convert to a column's type, though the value is another or the unit a guess."""


def _check_kinds(kinds: set[type], kind: pa.DataType) -> None:
    for applies, strangers in _STRANGERS:
        if applies(kind) and any(issubclass(given, strangers) for given in kinds):
            raise pa.ArrowTypeError("another kind of value")


def _check_overflow(wide: pa.Array, narrow: pa.Array) -> None:
    """A finite number that becomes infinite as a FLOAT does not fit one."""
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide))).as_py():
        raise pa.ArrowInvalid("out of range")


def _check_fields(value: Any, kind: pa.DataType) -> None:
    """A struct has no fields but those declared; Arrow would drop the others."""
    if value is None or not pa.types.is_nested(kind):
        return
    if pa.types.is_struct(kind):
        if not isinstance(value, Mapping):
            return
        parts = {part.name: part.type for part in (kind.field(i) for i in range(kind.num_fields))}
        for name, inner in value.items():
            if name not in parts:
                raise pa.ArrowInvalid(f"no field {name!r}")
            _check_fields(inner, parts[name])
    elif pa.types.is_map(kind):
        for _, item in value.items() if isinstance(value, Mapping) else value:
            _check_fields(item, kind.item_type)
    else:
        for item in value:
            _check_fields(item, kind.value_type)


def _check_value(value: Any, kind: pa.DataType) -> None:
    _check_kinds({type(value)}, kind)
    array = pa.array([value], type=kind)
    if pa.types.is_float32(kind):
        _check_overflow(pa.array([value], pa.float64()), array)
    _check_fields(value, kind)


def _first_failure(values: Sequence[Any], check: Callable[[Any], object]) -> int:
    for row, value in enumerate(values):
        try:
            check(value)
        except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError):
            return row
    return 0


def _refuse_unknown(rows: list[Mapping[str, Any]], allowed: set[str], topic: TopicDefinition) -> None:
    row = next(i for i, r in enumerate(rows) if not allowed.issuperset(r))
    column = next(c for c in rows[row] if c not in allowed)
    raise BadRowError(
        f"row {row} for topic {topic.name!r} has a column {column!r} that the topic does not have",
        detail=f"value {_short(rows[row][column])}; nothing of this append was written",
        hint=f"the columns are {', '.join(topic.schema.names)}; ALTER TOPIC {topic.name} ADD COLUMN adds one",
        topic=topic.name,
        row=row,
        column=column,
        value=rows[row][column],
        expected="a column of the topic",
    )


def _ops(values: Sequence[Any] | None, rows: int, topic: TopicDefinition) -> pa.Array:
    if values is None:
        return pa.repeat(pa.scalar(UPSERT, OP_TYPE), rows)
    codes = []
    for row, value in enumerate(values):
        if value is not None and value not in OPS:
            raise _bad(topic, row, "_op", value, "one of " + ", ".join(OPS))
        codes.append(UPSERT if value is None else OPS.index(value))
    return pa.array(codes, OP_TYPE)


def _from_arrow(table: pa.Table, topic: TopicDefinition) -> pa.RecordBatch:
    allowed = set(topic.schema.names) | ({"_op"} if topic.keyed else set())
    for column in table.column_names:
        if column not in allowed and table.num_rows:
            _refuse_unknown([{column: table.column(column)[0].as_py()}], allowed, topic)
        if table.column_names.count(column) > 1:
            raise UsageError(f"column {column!r} appears twice in the rows for topic {topic.name!r}")
    arrays = []
    for field in topic.schema:
        if field.name in table.column_names:
            arrays.append(_cast(table.column(field.name), field, topic))
        else:
            arrays.append(pa.nulls(table.num_rows, field.type))
    if topic.keyed:
        given = table.column("_op").to_pylist() if "_op" in table.column_names else None
        arrays.append(_ops(given, table.num_rows, topic))
    return pa.RecordBatch.from_arrays(arrays, schema=topic.row_schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, topic: TopicDefinition) -> pa.Array:
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if column.type != field.type:
            if not _castable(column.type, field.type):
                raise pa.ArrowTypeError(f"{column.type} is not {field.type}")
            column = _convert(column, field.type)
    except (pa.ArrowException, ValueError, TypeError):
        row = _first_failure(range(len(column)), lambda i: _check_arrow(column.slice(i, 1), field.type))
        value = _value(column, row)
        raise _bad(topic, row, field.name, value, format_type(field.type), given=str(column.type)) from None
    _validate(column, field, topic)
    return column


def _validate(column: pa.Array, field: pa.Field, topic: TopicDefinition) -> None:
    """Refuse what is not a value of its type: text that is not UTF-8, a decimal beyond its precision."""
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_boolean(field.type):
        return  # every bit pattern is a value
    try:
        column.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError):
        row = _first_failure(range(len(column)), lambda i: column.slice(i, 1).validate(full=True))
        raise _bad(topic, row, field.name, _value(column, row), format_type(field.type)) from None


def _check_arrow(one: pa.Array, kind: pa.DataType) -> None:
    if one.null_count == 0:
        if one.type != kind and not _castable(one.type, kind):
            raise pa.ArrowTypeError("other kind")
        _convert(one, kind).validate(full=True)


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values in another type of their family, or an error if one of them would be another value."""
    if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
        column = column.cast(pa.decimal128(20, 0))  # Arrow asks for room for any integer, not for these
    converted = column.cast(kind, safe=True)
    if pa.types.is_float32(kind) and pa.types.is_floating(column.type):
        _check_overflow(column, converted)
    return converted


def _castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values may be converted at all: within a family of types, never by parsing or printing text."""
    types = pa.types
    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _castable(given.value_type, wanted)
    if types.is_struct(given) and types.is_struct(wanted):
        parts = {part.name: part.type for part in (wanted.field(i) for i in range(wanted.num_fields))}
        inner = (given.field(i) for i in range(given.num_fields))
        return all(part.name in parts and _castable(part.type, parts[part.name]) for part in inner)
    if types.is_map(given) and types.is_map(wanted):
        return _castable(given.key_type, wanted.key_type) and _castable(given.item_type, wanted.item_type)
    if any(is_list(given) for is_list in _LISTS) and types.is_list(wanted):
        return _castable(given.value_type, wanted.value_type)
    if any(same(given) and same(wanted) for same in _FAMILIES):
        return True
    number = types.is_floating(wanted) or types.is_decimal(wanted)
    return bool(types.is_integer(given) and number)


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or t == pa.string_view(),
    lambda t: (
        pa.types.is_binary(t)
        or pa.types.is_large_binary(t)
        or pa.types.is_fixed_size_binary(t)
        or t == pa.binary_view()
    ),
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_boolean,
)


def _check_nulls(batch: pa.RecordBatch, topic: TopicDefinition) -> None:
    """NOT NULL holds for every column of a row, and for the key columns alone of a tombstone."""
    living = None
    if topic.keyed:
        ops = batch.column("_op")
        if pc.any(pc.equal(ops, DELETE)).as_py():
            living = pc.not_equal(ops, DELETE)
    for field in topic.schema:
        column = batch.column(field.name)
        required = not field.nullable or field.name == topic.time
        if required and column.null_count:
            missing = column.is_null()
            if living is not None and field.name not in topic.key:
                missing = pc.and_(missing, living)
            row = pc.index(missing, True).as_py()
            if row >= 0:
                why = "the event time" if field.nullable else f"{format_type(field.type)} NOT NULL"
                raise _bad(topic, row, field.name, None, why)
        if pa.types.is_nested(field.type) and _may_lack(column, field.type):
            for row, value in enumerate(column.to_pylist()):
                if lacking := _lacking(value, field.type, field.name):
                    raise _bad(topic, row, lacking[0], None, lacking[1])


def _may_lack(column: pa.Array, kind: pa.DataType) -> bool:
    """Whether a NOT NULL field inside a nested column may be null: quick, and at times wrong about unseen entries."""
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            child, part = pc.struct_field(column, [i]), kind.field(i)
            if (not part.nullable and child.null_count > column.null_count) or _may_lack(child, part.type):
                return True
    elif pa.types.is_list(kind):
        return _may_lack(column.flatten(), kind.value_type)
    elif pa.types.is_map(kind):
        return _may_lack(column.items, kind.item_type)
    return False


def _lacking(value: Any, kind: pa.DataType, path: str) -> tuple[str, str] | None:
    """The path of the first NOT NULL field that a nested value lacks, and what is expected there."""
    inner: Iterable[tuple[Any, pa.DataType, str]] = ()
    if value is None:
        return None
    if pa.types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        for part in parts:
            if not part.nullable and value[part.name] is None:
                return f"{path}.{part.name}", f"{format_type(part.type)} NOT NULL"
        inner = ((value[part.name], part.type, f"{path}.{part.name}") for part in parts)
    elif pa.types.is_list(kind):
        inner = ((item, kind.value_type, f"{path}[]") for item in value)
    elif pa.types.is_map(kind):
        inner = ((item, kind.item_type, f"{path}{{}}") for _, item in value)
    return next((found for each in inner if (found := _lacking(*each))), None)


def _value(column: pa.Array, row: int) -> Any:
    try:
        return column[row].as_py()
    except (ValueError, pa.ArrowException):
        return str(column[row])


def _bad(
    topic: TopicDefinition, row: int, column: str | None, value: Any, expected: str, given: str | None = None
) -> HeadwaterError:
    where = f"column {column!r} of row {row}" if column else f"row {row}"
    shown = f"{_short(value)} ({given or _kind(value)})"
    return BadRowError(
        f"{where} for topic {topic.name!r} is {shown}, expected {expected}",
        detail="nothing of this append was written",
        hint="correct the row, or change the topic with ALTER TOPIC",
        topic=topic.name,
        row=row,
        column=column,
        value=value,
        expected=expected,
    )


def _kind(value: Any) -> str:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return "datetime without zone"
    return "NULL" if value is None else type(value).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
