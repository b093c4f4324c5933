"""Converts rows from users to Arrow batches that fit a topic exactly, or rejects them with the row at fault.

Only schemas and values; independent of partitions, offsets and the disk.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import OP_TYPE, TopicDefinition
from headwater.catalog.time_options import STORED
from headwater.core.errors import BadRowError, HeadwaterError, UsageError, shown
from headwater.core.parallel import side_by_side
from headwater.core.types import format_type
from headwater.core.values import (
    UNFIT,
    array_of,
    convert,
    decode_dictionary,
    decoded_bytes,
    with_times_as_numbers,
)

OPS = ("upsert", "delete", "insert", "update", "snapshot")
"""Values of `_op`; active segments store each as its index in this tuple."""
UPSERT, DELETE, CAPTURED_FROM = 0, 1, 2

SHOWN_BYTES_MAX = 1 << 20
"""Size above which a value is not converted to a Python object for an error message: it may take ten times as much memory."""

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""Pandas' name for an index without a name when it exports a frame."""


def conform(
    rows: Any, topic: TopicDefinition, *, captured: bool = False, validated: bool = False
) -> pa.RecordBatch:
    """Return one batch in the topic's columns and types, without the columns that the log fills, plus `_op` (int8) on keyed
    topics; BadRowError if a row does not fit.

    `_op` is 'upsert' or 'delete'; rows `captured` from a database may have the database's operation. Arrow rows that were
    `validated` in full are not validated again.
    """
    if topic.captured_by is not None and not captured:
        raise UsageError(
            f"topic {topic.name!r} is written by source {topic.captured_by!r} only",
            hint="change the rows in the captured system, or append to another topic",
            topic=topic.name,
            source=topic.captured_by,
        )
    ops, topic = OPS if captured else OPS[:CAPTURED_FROM], topic.given
    if isinstance(rows, Mapping):
        raise UsageError(
            f"append to topic {topic.name!r} takes a list of rows, not one mapping",
            hint=f"write append([{{...}}]), or ws.append({{{topic.name!r}: [...]}}) for several topics",
            topic=topic.name,
            reason="not-a-list",
        )
    if (batch := _fitting(rows, topic)) is not None:
        if not validated:
            for field, column in zip(topic.schema, batch.columns, strict=False):
                _validate(column, field, topic)
        if topic.keyed:
            _check_codes(batch.column("_op"), topic, ops)
        _check_nulls(batch, topic)
        return _without_hidden_nulls(batch, topic)
    table = _as_table(rows)
    batch = _from_arrow(table, topic, ops) if table is not None else _from_dicts(rows, topic, ops)
    _check_nulls(batch, topic)
    return _without_hidden_nulls(batch, topic) if table is not None else batch


def adapt(batch: pa.RecordBatch, schema: pa.Schema, rows: int | None = None) -> pa.RecordBatch:
    """Convert a batch written under an earlier schema to the present one: added columns are null, widened ones are cast.

    `rows` is the number of rows, for a batch without any column left.
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
    """Return `_op` codes as text."""
    return pa.array(OPS).take(codes)


def chunks(rows: Any, size: int = 65_536) -> Iterator[Any]:
    """Yield rows of any length in pieces that fit in memory: lists and frames are sliced, iterators are drained."""
    table = _as_table(rows) if not isinstance(rows, pa.RecordBatchReader) else None
    if table is not None:
        yield from table.to_batches(max_chunksize=size) if table.num_rows else [table]
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


def _fitting(rows: Any, topic: TopicDefinition) -> pa.RecordBatch | None:
    """Return the rows unchanged if they are already one batch in the topic's columns and types; None otherwise."""
    if isinstance(rows, pa.Table) and not topic.keyed and rows.schema.equals(topic.row_schema):
        batches = rows.to_batches()
        return batches[0] if len(batches) == 1 else None
    return rows if isinstance(rows, pa.RecordBatch) and rows.schema.equals(topic.row_schema) else None


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
        table = _read_frame(rows)
        unnamed = [name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)]
        return table.drop_columns(unnamed) if unnamed else table
    return None


def _read_frame(rows: Any) -> pa.Table:
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    try:
        return pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(
            f"the {type(rows).__name__} cannot be converted to Arrow: {'; '.join(map(str, error.args))}",
            hint="give each column values of one type",
            reason="not-convertible",
        ) from None


def _from_dicts(rows: Any, topic: TopicDefinition, ops: Sequence[str]) -> pa.RecordBatch:
    if not isinstance(rows, list):
        if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
            raise UsageError(
                f"rows for topic {topic.name!r} are {type(rows).__name__}, which cannot be appended",
                hint="pass a list of dicts, a pyarrow Table or RecordBatch, or a pandas or polars frame",
                topic=topic.name,
                reason="unsupported-rows",
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
        said = [row.get("_op") for row in rows] if "_op" in given else None
        arrays.append(_ops(said, len(rows), topic, ops))
    return pa.RecordBatch.from_arrays(arrays, schema=topic.row_schema)


def _values(rows: list[Mapping[str, Any]], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def _column(values: list[Any], field: pa.Field, topic: TopicDefinition) -> pa.Array:
    try:
        return array_of(values, field.type)
    except UNFIT:
        row = _first_failure(values, lambda value: array_of([value], field.type))
        raise _bad(topic, row, field.name, values[row], format_type(field.type)) from None


def _first_failure(values: Sequence[Any], check: Callable[[Any], object]) -> int:
    for row, value in enumerate(values):
        try:
            check(value)
        except UNFIT:
            return row
    return 0


def _refuse_unknown(rows: list[Mapping[str, Any]], allowed: set[str], topic: TopicDefinition) -> None:
    row = next(i for i, r in enumerate(rows) if not allowed.issuperset(r))
    column = next(c for c in rows[row] if c not in allowed)
    if topic.clock is not None and column in STORED.names:
        raise BadRowError(
            f"row {row} for topic {topic.name!r} has a column {column!r}, which the log computes",
            detail=f"value {shown(rows[row][column])}; nothing of this append was written",
            hint=f"leave it out: it is computed from {topic.clock}, {topic.occurred} and {topic.sent}",
            topic=topic.name,
            row=row,
            column=column,
            value=rows[row][column],
            expected="no value",
        )
    raise BadRowError(
        f"row {row} for topic {topic.name!r} has a column {column!r} that the topic does not have",
        detail=f"value {shown(rows[row][column])}; nothing of this append was written",
        hint=f"the columns are {', '.join(topic.schema.names)}; ALTER TOPIC {topic.name} ADD COLUMN adds one",
        topic=topic.name,
        row=row,
        column=column,
        value=rows[row][column],
        expected="a column of the topic",
    )


def _ops(values: Sequence[Any] | None, rows: int, topic: TopicDefinition, allowed: Sequence[str]) -> pa.Array:
    if values is None:
        return pa.repeat(pa.scalar(UPSERT, OP_TYPE), rows)
    codes = []
    for row, value in enumerate(values):
        if value is not None and (not isinstance(value, str) or value not in allowed):
            raise _bad(topic, row, "_op", value, "one of " + ", ".join(allowed))
        codes.append(UPSERT if value is None else OPS.index(value))
    return pa.array(codes, OP_TYPE)


def _check_codes(codes: pa.Array, topic: TopicDefinition, allowed: Sequence[str]) -> None:
    """Raise BadRowError if conformed rows have an invalid `_op` code."""
    fit = pc.fill_null(pc.and_(pc.greater_equal(codes, 0), pc.less(codes, len(allowed))), False)
    row = pc.index(fit, False).as_py()
    if row >= 0:
        code = codes[row].as_py()
        said = OPS[code] if code is not None and 0 <= code < len(OPS) else code
        raise _bad(topic, row, "_op", said, "one of " + ", ".join(allowed))


def _from_arrow(table: pa.Table, topic: TopicDefinition, ops: Sequence[str]) -> pa.RecordBatch:
    allowed = set(topic.schema.names) | ({"_op"} if topic.keyed else set())
    twice = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(
            f"column {twice!r} appears twice in the rows for topic {topic.name!r}",
            topic=topic.name,
            column=twice,
            reason="duplicate-column",
        )
    for name in table.column_names:
        if name not in allowed:
            if not table.num_rows:
                raise UsageError(
                    f"the rows for topic {topic.name!r} have a column {name!r} that the topic does not have",
                    hint=f"the columns are {', '.join(topic.schema.names)}",
                    topic=topic.name,
                    column=name,
                    reason="unknown-column",
                )
            _refuse_unknown([{name: _value(table.column(name), 0)}], allowed, topic)

    def array(field: pa.Field) -> pa.Array:
        if field.name in table.column_names:
            return _cast(table.column(field.name), field, topic)
        return pa.nulls(table.num_rows, field.type)

    arrays = side_by_side(array, list(topic.schema), size=table.nbytes)
    if topic.keyed:
        given = None
        if "_op" in table.column_names:
            given = _cast(table.column("_op"), pa.field("_op", pa.string()), topic).to_pylist()
        arrays.append(_ops(given, table.num_rows, topic, ops))
    return pa.RecordBatch.from_arrays(arrays, schema=topic.row_schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, topic: TopicDefinition) -> pa.Array:
    try:
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        if pa.types.is_dictionary(column.type):
            column = decode_dictionary(column)
    except pa.ArrowException as error:  # more than 2 GB, or a dictionary that Arrow does not join
        raise UsageError(
            f"the chunks of column {field.name!r} of the rows for topic {topic.name!r}, of type {column.type}, cannot be combined",
            detail=str(error).partition("\n")[0],
            hint="append fewer rows at once, and dictionary-encoded columns as plain values",
            topic=topic.name,
            column=field.name,
            reason="not-combinable",
        ) from None
    try:
        converted = convert(column, field.type)
    except UNFIT:
        if not len(column):
            raise UsageError(
                f"column {field.name!r} of the rows for topic {topic.name!r} is {column.type}, "
                f"expected {format_type(field.type)}",
                topic=topic.name,
                column=field.name,
                expected=format_type(field.type),
                actual=str(column.type),
            ) from None
        row = _first_failure(range(len(column)), lambda i: _check_arrow(_one(column, i), field.type))
        value = _value(column, row)
        raise _bad(topic, row, field.name, value, format_type(field.type), given=str(column.type)) from None
    _validate(converted, field, topic)
    return converted


def _validate(column: pa.Array, field: pa.Field, topic: TopicDefinition) -> None:
    """Raise BadRowError for an invalid value of the type: text that is not UTF-8, a decimal beyond its precision."""
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_boolean(field.type):
        return  # every bit pattern is a value
    try:
        column.validate(full=True)
    except UNFIT:
        row = _first_failure(range(len(column)), lambda i: _one(column, i).validate(full=True))
        raise _bad(topic, row, field.name, _value(column, row), format_type(field.type)) from None


def _one(column: pa.Array, row: int) -> pa.Array:
    """Return one row of a column: a copy without the other values, or a slice if it is large, since Arrow's `take` needs 8
    bytes per value."""
    one = column.slice(row, 1)
    return one if decoded_bytes(one) > SHOWN_BYTES_MAX else column.take([row])


def _check_arrow(one: pa.Array, kind: pa.DataType) -> None:
    if one.null_count == 0:
        convert(one, kind).validate(full=True)


def _check_nulls(batch: pa.RecordBatch, topic: TopicDefinition) -> None:
    """Raise BadRowError for NULL in a NOT NULL column; for a tombstone only the key columns count."""
    living = None
    if topic.keyed:
        ops = batch.column("_op")
        if pc.any(pc.equal(ops, DELETE)).as_py():
            living = pc.not_equal(ops, DELETE)
    for place in topic.null_places:
        field, column = topic.schema.field(place), batch.column(place)
        required = not field.nullable or field.name == topic.time
        if required and column.null_count:
            missing = column.is_null()
            if living is not None and field.name not in topic.key:
                missing = pc.and_(missing, living)
            row = pc.index(missing, True).as_py()
            if row >= 0:
                why = "the event time" if field.nullable else f"{format_type(field.type)} NOT NULL"
                raise _bad(topic, row, field.name, None, why)
        if pa.types.is_nested(field.type) and _may_miss_field(column, field.type):
            for row, value in enumerate(with_times_as_numbers(column).to_pylist()):
                if missing_field := _missing_field(value, field.type, field.name):
                    raise _bad(topic, row, missing_field[0], None, missing_field[1])


def _may_miss_field(column: pa.Array, kind: pa.DataType) -> bool:
    """Whether a NOT NULL field inside a nested column may be null: quick, but possibly true because of unreferenced entries."""
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            child, part = pc.struct_field(column, [i]), kind.field(i)
            if (not part.nullable and child.null_count > column.null_count) or _may_miss_field(
                child, part.type
            ):
                return True
    elif pa.types.is_list(kind):
        return _may_miss_field(column.flatten(), kind.value_type)
    elif pa.types.is_map(kind):
        return _may_miss_field(column.items, kind.item_type)
    return False


def _without_hidden_nulls(batch: pa.RecordBatch, topic: TopicDefinition) -> pa.RecordBatch:
    """Return the batch without nulls in NOT NULL fields below a NULL struct: they are invisible, but Parquet rejects them."""
    for place in topic.nested_places:
        column, kind = batch.column(place), topic.schema.field(place).type
        if _hides_nulls(column, kind):
            numbered = with_times_as_numbers(column)
            filled = array_of(numbered.to_pylist(), numbered.type).cast(kind)
            batch = batch.set_column(place, batch.schema.field(place), filled)
    return batch


def _hides_nulls(column: pa.Array, kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        parts = ((column.field(i), kind.field(i)) for i in range(kind.num_fields))
        return any((not p.nullable and child.null_count) or _hides_nulls(child, p.type) for child, p in parts)
    if pa.types.is_list(kind):
        return _hides_nulls(column.values, kind.value_type)
    return pa.types.is_map(kind) and _hides_nulls(column.items, kind.item_type)


def _missing_field(value: Any, kind: pa.DataType, path: str) -> tuple[str, str] | None:
    """Return the path of the first NOT NULL field that is NULL in a nested value, and the type expected there."""
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
    return next((found for each in inner if (found := _missing_field(*each))), None)


def _value(column: pa.Array | pa.ChunkedArray, row: int) -> Any:
    """Return a value for a message; for a value that is too large to convert to a Python object, a text with its size."""
    value = column.slice(row, 1)
    if (size := sum(map(decoded_bytes, getattr(value, "chunks", [value])))) > SHOWN_BYTES_MAX:
        return f"a value of {size:,} bytes"
    for show in (lambda scalar: scalar.as_py(), lambda scalar: scalar.cast(pa.binary()).as_py(), str):
        try:
            return show(column[row])
        except (ValueError, OverflowError, LookupError, pa.ArrowException):  # LookupError: no such time zone
            continue
    return None


def _bad(
    topic: TopicDefinition, row: int, column: str | None, value: Any, expected: str, given: str | None = None
) -> HeadwaterError:
    where = f"column {column!r} of row {row}" if column else f"row {row}"
    said = f"{shown(value)} ({given or _kind(value)})"
    return BadRowError(
        f"{where} for topic {topic.name!r} is {said}, expected {expected}",
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
