"""The columns of a view as a Postgres table: the type of each column, the requirements for an existing table, and SQL.

| column | created as | also accepted |
| --- | --- | --- |
| BOOLEAN | boolean | |
| TINYINT, SMALLINT, INT, BIGINT | smallint, smallint, integer, bigint | any of the three |
| FLOAT, DOUBLE | real, double precision | real as double precision |
| DECIMAL(p,s) | numeric(p,s) | numeric, and numeric of a larger scale |
| STRING | text | varchar |
| BINARY | bytea | |
| DATE, TIMESTAMP, TIMESTAMP_NTZ | date, timestamptz, timestamp | |
| ARRAY, STRUCT, MAP | jsonb, as `headwater.sinks.base.text_values` writes it | json |

Every value except those of the last row is stored exactly. This module does not connect to a server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from headwater.core.errors import UsageError
from headwater.core.hashing import null_mask
from headwater.sinks.base.text_values import binaries, canonical_json, hex_texts, texts

_FIRST_US, _END_US = -62_135_596_800_000_000, 253_402_300_800_000_000
_INTEGERS = ("smallint", "integer", "bigint")
_SIMPLE: dict[pa.DataType, tuple[str, tuple[str, ...]]] = {
    pa.bool_(): ("boolean", ()),
    pa.int8(): ("smallint", _INTEGERS),
    pa.int16(): ("smallint", _INTEGERS),
    pa.int32(): ("integer", _INTEGERS),
    pa.int64(): ("bigint", _INTEGERS),
    pa.float32(): ("real", ("double precision",)),
    pa.float64(): ("double precision", ()),
    pa.string(): ("text", ("character varying",)),
    pa.binary(): ("bytea", ()),
    pa.date32(): ("date", ()),
    pa.timestamp("us", "UTC"): ("timestamp with time zone", ()),
    pa.timestamp("us"): ("timestamp without time zone", ()),
}
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([A-Za-z_][A-Za-z0-9_$]*))\s*')
_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?$")


def sql_type(kind: pa.DataType) -> str:
    """Return the type with which a column is created."""
    if kind in _SIMPLE:
        return _SIMPLE[kind][0]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return "jsonb"


def takes(found: str, kind: pa.DataType) -> bool:
    """Whether a column of a type, as `format_type` writes it, stores or rejects every value of the view's type, and alters
    none."""
    base = found.partition("(")[0]
    if kind in _SIMPLE:
        made, others = _SIMPLE[kind]
        return found == made or base in others
    if pa.types.is_decimal(kind):
        numeric = _NUMERIC.match(found)
        return numeric is not None and (numeric[2] is None or int(numeric[2]) >= kind.scale)
    return found in ("jsonb", "json")


def quote(name: str) -> str:
    """Return a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def split_table(text: str) -> tuple[str | None, str]:
    """Return the schema, if given, and the table of `table`, `schema.table` or `"Sch.ema"."table"`."""
    parts, at, more = [], 0, True
    while more and (match := _NAME.match(text, at)):
        parts.append(match[1].replace('""', '"') if match[1] else match[2].lower())
        at = match.end()
        more = text[at : at + 1] == "."
        at += more
    if more or at != len(text) or len(parts) > 2:
        raise UsageError(
            f"{text!r} is not the name of a table",
            hint="write table = 'name' or table = 'schema.name'",
            option="table",
            value=text,
        )
    return (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


@dataclass(frozen=True)
class TargetTable:
    """A table for rows of a schema, upserted by a key; in `schema` nested columns are text."""

    place: str
    """Qualified and quoted name of the table."""
    schema: pa.Schema
    key: tuple[str, ...]

    @property
    def columns(self) -> str:
        """All columns of the view, quoted and separated by commas."""
        return ", ".join(map(quote, self.schema.names))

    def create(self, kinds: pa.Schema, *, nulls_not_distinct: bool) -> str:
        """Return the statement that creates the table; `kinds` is the schema of the view."""
        lines = [
            f"{quote(field.name)} {sql_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
            for field in kinds
        ]
        if self.key:
            lines.append(self.unique(kinds, nulls_not_distinct=nulls_not_distinct))
        return f"CREATE TABLE IF NOT EXISTS {self.place} ({', '.join(lines)})"

    def unique(self, kinds: pa.Schema, *, nulls_not_distinct: bool) -> str:
        """Return the constraint of the key: UNIQUE NULLS NOT DISTINCT if a key column is nullable and the server supports
        it, else a primary key."""
        names = ", ".join(map(quote, self.key))
        if nulls_not_distinct and any(kinds.field(name).nullable for name in self.key):
            return f"UNIQUE NULLS NOT DISTINCT ({names})"
        return f"PRIMARY KEY ({names})"

    def staging(self, name: str, columns: Sequence[str], kinds: pa.Schema) -> str:
        """Return the statement that creates a temporary table with some of the columns."""
        body = ", ".join(f"{quote(column)} {sql_type(kinds.field(column).type)}" for column in columns)
        return f"CREATE TEMP TABLE IF NOT EXISTS {name} ({body}) ON COMMIT DELETE ROWS"

    def upsert(self, source: str) -> str:
        """Return the statement that upserts the rows of `source`."""
        updates = ", ".join(f"{quote(name)} = EXCLUDED.{quote(name)}" for name in self.schema.names)
        conflict = ", ".join(map(quote, self.key))
        rest = f" ON CONFLICT ({conflict}) DO UPDATE SET {updates}" if self.key else ""
        return f"INSERT INTO {self.place} ({self.columns}) SELECT {self.columns} FROM {source}{rest}"

    def delete(self, source: str, null: Sequence[str]) -> str:
        """Return the statement that deletes rows by the keys of `source`, in which the columns `null`, and no others, are
        NULL."""
        tests = []
        for name in map(quote, self.key):
            tests.append(
                f"t.{name} IS NULL AND d.{name} IS NULL"
                if name in map(quote, null)
                else f"t.{name} = d.{name}"
            )
        return f"DELETE FROM {self.place} t USING {source} WHERE {' AND '.join(tests)}"

    def unnested(self, alias: str, columns: Sequence[str], kinds: pa.Schema) -> str:
        """Return a row source from parameters with one array of texts for each column."""
        arrays = ", ".join(["%s::text[]"] * len(columns))
        names = ", ".join(f"c{i}" for i in range(len(columns)))
        casts = ", ".join(
            f"c{i}::{sql_type(kinds.field(name).type)} AS {quote(name)}" for i, name in enumerate(columns)
        )
        return f"(SELECT {casts} FROM unnest({arrays}) AS u({names})) {alias}"

    def select(self, kinds: pa.Schema) -> str:
        """Return the query of the contents, as numbers and texts that `read` parses."""
        return f"SELECT {', '.join(_selected(field) for field in kinds)} FROM {self.place}"


def wire(column: pa.Array) -> pa.Array:
    """Return a stored column in a form for COPY as CSV."""
    kind = column.type
    if pa.types.is_binary(kind):
        return pc.binary_join_element_wise("\\x", hex_texts(column), "")
    if not pa.types.is_timestamp(kind) and not pa.types.is_date32(kind):
        return column
    per_day = 86_400_000_000 if pa.types.is_date32(kind) else 1
    numbers = column.cast(pa.int32()).cast(pa.int64()) if per_day > 1 else column.cast(pa.int64())
    ends = pc.min_max(numbers).as_py()
    low, high = ends["min"], ends["max"]
    if low is not None and (low < _FIRST_US // per_day or high >= _END_US // per_day):
        return pa.array([_moment(text) for text in texts(column).to_pylist()], pa.string())
    # The session's time zone is UTC; writing a zone takes Arrow ten times as long as everything else.
    return column if per_day > 1 else numbers.cast(pa.timestamp("us"))


def copied(rows: pa.RecordBatch) -> pa.Buffer:
    """Return stored rows as CSV: every value quoted, NULL as an empty field."""
    out = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([wire(column) for column in rows.columns], names=rows.schema.names)
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid", batch_size=8_192)
    csv.write_csv(batch, out, options)
    return out.getvalue()


def arrays(rows: pa.RecordBatch) -> list[list[str | None]]:
    """Return stored rows as one list of texts per column."""
    return [texts(wire(column)).to_pylist() for column in rows.columns]


def read(data: bytes, schema: pa.Schema, kinds: pa.Schema) -> pa.RecordBatch:
    """Return stored rows from CSV lines of `TargetTable.select`. A number that exceeds the view's type, which the sink
    cannot have written, is read as the type's largest one."""
    names = [str(i) for i in range(len(schema))]
    numbers = [_number(field.type) for field in kinds]
    types = dict(zip(names, numbers, strict=True))
    try:
        table = _parsed(data, types)
    except pa.ArrowInvalid:
        table = _parsed(data, dict.fromkeys(names, pa.string()))
    columns = []
    for column, number, field, kind in zip(table.columns, numbers, schema, kinds, strict=True):
        made = column.combine_chunks()
        if made.type != number:
            made = pa.array([_within(value, number) for value in made.to_pylist()], number)
        columns.append(_stored_column(made, field.type, kind.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _parsed(data: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    return csv.read_csv(
        pa.py_buffer(data),
        read_options=csv.ReadOptions(column_names=list(types), block_size=len(data) + 1, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
            column_types=types,
        ),
    )


def _number(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which a column is read."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return pa.string()
    return kind


def _stored_column(made: pa.Array, kind: pa.DataType, view: pa.DataType) -> pa.Array:
    if pa.types.is_nested(view):
        return canonical_json(made)
    if pa.types.is_binary(kind):
        return binaries(made)
    return made if made.type == kind else made.cast(kind)


def _within(text: str | None, kind: pa.DataType) -> object:
    """Return a value of a type from its text, or the type's largest value."""
    if text is None or pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "t"
    try:
        return pa.scalar(text).cast(kind).as_py()
    except pa.ArrowInvalid:
        if pa.types.is_decimal(kind):
            import decimal

            return decimal.Decimal((0, (9,) * kind.precision, -kind.scale))
        return 2 ** (kind.bit_width - 1) - 1


def _selected(field: pa.Field) -> str:
    name = quote(field.name)
    kind = field.type
    if pa.types.is_timestamp(kind):
        number, low, high = f"(extract(epoch FROM {name}) * 1000000)::bigint", -(2**63) + 1, 2**63 - 1
    elif pa.types.is_date32(kind):
        number, low, high = f"({name} - DATE '1970-01-01')", -(2**31) + 1, 2**31 - 1
    elif pa.types.is_binary(kind):
        return f"encode({name}, 'hex')"
    elif pa.types.is_nested(kind):
        return f"{name}::text"
    else:
        return name
    infinite = f"CASE WHEN {name} > '1970-01-01' THEN {high} ELSE {low} END"
    return f"CASE WHEN {name} IS NULL THEN NULL WHEN isfinite({name}) THEN {number} ELSE {infinite} END"


def _moment(text: str | None) -> str | None:
    """Return a time in the syntax of Postgres, whatever its year."""
    if text is None or not text.startswith(("-", "0000-", "+")):
        return text
    year, rest = re.match(r"([+-]?\d+)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    number = int(year)
    return f"{number:04d}{rest}" if number > 0 else f"{1 - number:04d}{rest} BC"


def null_patterns(keys: pa.RecordBatch) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Return each set of columns that are NULL together, with the indices of the keys in which exactly these are NULL."""
    masks = [null_mask(column) for column in keys.columns]
    code = np.zeros(keys.num_rows, dtype=np.int64)
    for bit, mask in enumerate(masks):
        if mask is not None:
            code |= mask.astype(np.int64) << bit
    names = keys.schema.names
    return [
        (tuple(name for bit, name in enumerate(names) if pattern >> bit & 1), np.flatnonzero(code == pattern))
        for pattern in np.unique(code).tolist()
    ]
