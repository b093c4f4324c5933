"""CAST between the types on which Spark in ANSI mode and DuckDB agree, including overflow and rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from headwater.core.types import TIMESTAMP
from headwater.sql.duckdb.scalar_operators import GIVE_UP, Bind, Rewriter, only
from headwater.sql.duckdb.typed_sql import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP_NTZ,
    VOID,
    Declined,
    Value,
    converted,
    decimal_to_double,
    decimal_type,
    decline,
    duck_type,
    is_decimal,
    is_float,
    is_integer,
    literal,
    time_of,
)

_CAST_TYPES: Mapping[exp.DType, pa.DataType] = {
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: INT,
    exp.DType.BIGINT: BIGINT,
    exp.DType.FLOAT: FLOAT,
    exp.DType.DOUBLE: DOUBLE,
    exp.DType.TEXT: STRING,
    exp.DType.DATE: DATE,
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


def _cast(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "to")
    to = node.args["to"]
    only(to, "this", "expressions")
    if to.this == exp.DType.DECIMAL:
        sizes = [int(p.name) for p in to.expressions if p.name.isdecimal()]
        if len(sizes) != len(to.expressions) or len(sizes) > 2:
            decline("this form of DECIMAL")
        precision, scale = [*sizes, *(10, 0)[len(sizes) :]]
        kind = decimal_type(precision, scale)
    elif to.this in _CAST_TYPES and not to.expressions:
        kind = _CAST_TYPES[to.this]
    else:
        decline(f"a cast to {to.sql()}")
    return replace(cast(bind(node.this), kind), name=None, title=None)


def cast(value: Value, kind: pa.DataType) -> Value:
    """Return CAST(value AS kind), for the pairs of types on which both engines agree; Declined for other pairs."""
    source = value.kind
    if source in (kind, VOID):
        return converted(value, kind)
    plain = Value(f"CAST({value.sql} AS {duck_type(kind)})", kind, fallible=value.fallible)
    risky = replace(plain, fallible=True)
    if value.literal and source == STRING and kind in (DATE, TIMESTAMP):
        return literal(time_of(value.constant, kind), kind)
    if value.literal and source == INT and kind == BIGINT:
        return replace(converted(value, kind), suffixed=True)
    if is_integer(source):
        if is_integer(kind) or is_decimal(kind):
            return risky
        if is_float(kind) or kind == STRING:
            return plain
        if kind == BOOLEAN:
            return replace(plain, sql=f"({value.sql} <> 0)")
    elif is_float(source):
        if is_integer(kind):
            return replace(risky, sql=f"CAST(trunc({value.sql}) AS {duck_type(kind)})")
        if is_float(kind):
            return risky
    elif is_decimal(source):
        if is_decimal(kind):
            return risky
        if is_integer(kind):
            return replace(risky, sql=f"CAST(trunc({value.sql}) AS {duck_type(kind)})")
        if kind == DOUBLE:
            return decimal_to_double(value)
        if kind == FLOAT and value.literal:
            return literal(value.constant, FLOAT)
        if kind == STRING:  # DuckDB omits the zero before the point if the precision has no room for it
            roomy = converted(value, decimal_type(max(source.precision, source.scale + 1), source.scale))
            return replace(plain, sql=f"CAST({roomy.sql} AS VARCHAR)")
    elif source == BOOLEAN:
        if is_integer(kind) or kind == STRING:
            return plain
    elif source in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        if kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
            return plain
        if kind == STRING:  # years before 1 and after 9999 are formatted differently
            return replace(
                risky,
                sql=f"(CASE WHEN year({value.sql}) NOT BETWEEN 1 AND 9999 THEN {GIVE_UP} ELSE {plain.sql} END)",
            )
    raise Declined(f"a cast of {source} to {kind}")


CASTS: Mapping[type[exp.Expr], Rewriter] = {exp.Cast: _cast, exp.TryCast: _cast}
"""sqlglot parses Spark's CAST as a TryCast; TRY_CAST is marked otherwise, and declined."""
