"""Postgres types and their counterparts: a column type of topics, and how values of it are read.

| Postgres | topic | remarks |
| --- | --- | --- |
| boolean | BOOLEAN | |
| smallint, integer, bigint | SMALLINT, INT, BIGINT | serial too |
| real, double precision | FLOAT, DOUBLE | NaN and both infinities are kept |
| numeric(p, s) | DECIMAL(p, s) | up to 38 digits; NaN stops the table. A scale below 0 or above p widens p |
| numeric, numeric(p > 38, s) | STRING | all digits, NaN and Infinity, as Postgres writes them |
| timestamptz, timestamp | TIMESTAMP, TIMESTAMP_NTZ | infinity is 9999-12-31 23:59:59.999999, -infinity 0001-01-01 00:00:00 |
| date | DATE | infinity is 9999-12-31, -infinity 0001-01-01 |
| bytea | BINARY | |
| oid, xid, cid | BIGINT | |
| xid8 | DECIMAL(20, 0) | |
| a domain | as what it is based on | |
| an array | ARRAY<...> of its elements' type | one that is declared with several dimensions: STRING |
| interval | STRING | in ISO 8601, such as P1Y2M3DT4H5M6.5S |
| all others: text, varchar, char, name, uuid, json, jsonb, xml, time, timetz, money, inet, cidr, macaddr, bit, ranges, enums, composite and geometric types, tsvector, pg_lsn, and those of extensions, such as hstore and citext | STRING | as Postgres writes them |

Any column can be declared STRING instead, and then has every value as Postgres writes it; a numeric one DECIMAL(p, s) too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.core.errors import SchemaError
from headwater.core.types import TIMESTAMP, format_type
from headwater.sources.postgres.decode.postgres_values import (
    Converter,
    binaries,
    booleans,
    casting,
    dates,
    lists,
    strings,
    timestamps,
)

_DIGITS_MAX = 38
_NUMERIC = 1700
_XID8 = pa.decimal128(20, 0)
_NTZ = pa.timestamp("us")

TYPES_SQL = """
WITH RECURSIVE wanted(oid) AS (
  SELECT unnest(%s::oid[])
  UNION
  SELECT used.oid FROM wanted JOIN pg_type t ON t.oid = wanted.oid, unnest(ARRAY[t.typelem, t.typbasetype]) AS used(oid)
  WHERE used.oid <> 0
)
SELECT t.oid::bigint, n.nspname::text, t.typname::text, t.typbasetype::bigint, t.typtypmod, t.typndims,
       CASE WHEN e.typarray = t.oid THEN e.oid ELSE 0 END::bigint, coalesce(e.typdelim, ',')::text
FROM wanted JOIN pg_type t USING (oid) JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_type e ON e.oid = t.typelem
"""
"""Query for the types with given oids and the types that they are based on; `read_types` reads the result."""


@dataclass(frozen=True)
class TypeFacts:
    """A type in the server's catalog; oids are 0 where they do not apply."""

    oid: int
    namespace: str
    name: str
    base: int
    """Base type of a domain, to which `typmod` and `dimensions` belong."""
    typmod: int
    dimensions: int
    element: int
    """Element type of an array, whose text form separates elements by `delimiter`."""
    delimiter: str


Types = Mapping[int, TypeFacts]


@dataclass(frozen=True)
class ColumnType:
    """Counterpart of a Postgres column type: the type in the topic, and the converter of its values."""

    kind: pa.DataType
    convert: Converter = field(compare=False)


_STRING = ColumnType(pa.string(), strings)
_SCALARS: dict[int, ColumnType] = {
    16: ColumnType(pa.bool_(), booleans),
    17: ColumnType(pa.binary(), binaries),
    20: ColumnType(pa.int64(), casting(pa.int64())),
    21: ColumnType(pa.int16(), casting(pa.int16())),
    23: ColumnType(pa.int32(), casting(pa.int32())),
    26: ColumnType(pa.int64(), casting(pa.int64())),  # oid
    28: ColumnType(pa.int64(), casting(pa.int64())),  # xid
    29: ColumnType(pa.int64(), casting(pa.int64())),  # cid
    700: ColumnType(pa.float32(), casting(pa.float32())),
    701: ColumnType(pa.float64(), casting(pa.float64())),
    1082: ColumnType(pa.date32(), dates),
    1114: ColumnType(_NTZ, timestamps(_NTZ)),
    1184: ColumnType(TIMESTAMP, timestamps(TIMESTAMP)),
    5069: ColumnType(_XID8, casting(_XID8)),
}
"""Built-in types by oid, which is fixed; all types not listed become strings."""


def read_types(rows: Iterable[Sequence[Any]]) -> dict[int, TypeFacts]:
    """Return the types in the result of TYPES_SQL, by oid."""
    return {row[0]: TypeFacts(*row) for row in rows}


def unknown_types(oids: Iterable[int], types: Types) -> list[int]:
    """Return the oids that must be looked up in the server's catalog: neither built-in scalars nor in `types` already."""
    return sorted({oid for oid in oids if oid not in types and oid not in _SCALARS and oid != _NUMERIC})


def counterpart(
    oid: int, typmod: int, types: Types, *, dimensions: int = 1, declared: pa.DataType | None = None
) -> ColumnType:
    """Return the column type for a Postgres type; `declared` is the type that the user chose instead of the default.

    `typmod` is as in pg_attribute, -1 for none; `dimensions` of an array as declared. A type that is missing in the catalog,
    for instance because it was dropped since, becomes a string. SchemaError if values of the type cannot have the declared
    type.
    """
    facts = types.get(oid)
    while facts is not None and facts.base:
        oid, typmod, dimensions = facts.base, facts.typmod, max(facts.dimensions, 1)
        facts = types.get(oid)
    if declared is not None:
        return _declared(declared, oid)
    if facts is not None and facts.element:
        if dimensions > 1:
            return _STRING
        item = counterpart(facts.element, typmod, types)
        if pa.types.is_nested(item.kind):  # an array of a domain over an array
            return _STRING
        return ColumnType(pa.list_(item.kind), lists(item.convert, item.kind, facts.delimiter))
    if oid == _NUMERIC:
        kind = _decimal(typmod)
        return _STRING if kind is None else ColumnType(kind, casting(kind))
    return _SCALARS.get(oid, _STRING)


def _decimal(typmod: int) -> pa.DataType | None:
    """Return DECIMAL for the typmod of a numeric; None if it has no precision, or more than 38 digits."""
    if typmod < 4:
        return None
    precision = (typmod - 4) >> 16 & 0xFFFF
    scale = ((typmod - 4 & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return pa.decimal128(precision, scale) if precision <= _DIGITS_MAX else None


def _declared(kind: pa.DataType, oid: int) -> ColumnType:
    if pa.types.is_string(kind):
        return _STRING
    if pa.types.is_decimal128(kind) and oid == _NUMERIC:
        return ColumnType(kind, casting(kind))
    if oid in _SCALARS and _SCALARS[oid].kind == kind:
        return _SCALARS[oid]
    raise SchemaError(
        f"a column of this Postgres type cannot be captured as {format_type(kind)}",
        hint="declare it STRING, or DECIMAL(p, s) for a numeric column, and CAST it in the view",
    )
