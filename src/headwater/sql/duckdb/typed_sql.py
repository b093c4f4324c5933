"""Typed pieces of DuckDB SQL: their Spark types, and the conversions on which Spark and DuckDB agree.

This module depends neither on the SQL parser nor on names. In DuckDB a timestamp is a TIMESTAMP without time zone, in UTC:
whether it has a zone is only recorded here.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from headwater.core.types import TIMESTAMP

BOOLEAN = pa.bool_()
INT, BIGINT = pa.int32(), pa.int64()
FLOAT, DOUBLE = pa.float32(), pa.float64()
STRING, BINARY, DATE, VOID = pa.string(), pa.binary(), pa.date32(), pa.null()
TIMESTAMP_NTZ = pa.timestamp("us")

PRECISION_MAX = 38
EXACT_DOUBLE_DIGITS = 15
"""Number of digits up to which a decimal converts to the same double in every engine: its digits and the power of ten are
exact."""

_INTEGERS = (pa.int8(), pa.int16(), INT, BIGINT)
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, INT: 10, BIGINT: 20}
_NAMES = {
    BOOLEAN: "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    INT: "INTEGER",
    BIGINT: "BIGINT",
    FLOAT: "FLOAT",
    DOUBLE: "DOUBLE",
    STRING: "VARCHAR",
    BINARY: "BLOB",
    DATE: "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP",
}
_DATE_TEXT = re.compile(r"(?!0000)\d{4}-\d\d-\d\d\Z")
_TIMESTAMP_TEXT = re.compile(r"(?!0000)\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?\Z")


class Declined(Exception):
    """The query must be answered by Spark; the reason is in lower case, without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decline(reason: str) -> NoReturn:
    """Raise `Declined`: leave the query to Spark."""
    raise Declined(reason)


@dataclass(frozen=True)
class Value:
    """An expression: its DuckDB SQL, the Arrow form of its Spark type, and its Spark name.

    `name` is its name inside another expression's (`w.start` in `max(w.start)`), `title` its name as a result column
    (`start`); None where Spark's rule is not implemented. `fallible` means that it can raise an error for some row.
    `constant` is set for literals; `suffixed` for a literal with an explicit type (10L), which Spark distinguishes from a
    cast and the parser does not.
    """

    sql: str
    kind: pa.DataType
    name: str | None = None
    title: str | None = None
    fallible: bool = False
    constant: Any = None
    literal: bool = False
    suffixed: bool = False

    @property
    def heading(self) -> str | None:
        """The name of a result column with this value, unless an alias overrides it."""
        return self.title if self.title is not None else self.name


def is_integer(kind: pa.DataType) -> bool:
    """Whether a type is one of Spark's four integer types."""
    return kind in _INTEGERS


def fits(number: int, kind: pa.DataType) -> bool:
    """Whether an integer type can represent a number."""
    limit: int = 2 ** (kind.bit_width - 1)
    return -limit <= number < limit


def is_float(kind: pa.DataType) -> bool:
    """Whether a type is FLOAT or DOUBLE."""
    return kind in (FLOAT, DOUBLE)


def is_decimal(kind: pa.DataType) -> bool:
    """Whether a type is a decimal of up to 38 digits."""
    return bool(pa.types.is_decimal128(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a type is an integer, a float or a decimal."""
    return is_integer(kind) or is_float(kind) or is_decimal(kind)


def is_atomic(kind: pa.DataType) -> bool:
    """Whether a type is neither nested nor specific to Spark."""
    return kind in _NAMES or is_decimal(kind)


def is_known(kind: pa.DataType) -> bool:
    """Whether DuckDB preserves values of a type unchanged, nested types included."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        distinct = {f.name.lower() for f in fields}
        return bool(fields) and len(distinct) == len(fields) and all(is_known(f.type) for f in fields)
    if pa.types.is_list(kind):
        return is_known(kind.value_type)
    if pa.types.is_map(kind):
        return is_known(kind.key_type) and is_known(kind.item_type)
    return is_atomic(kind)


def is_groupable(kind: pa.DataType) -> bool:
    """Whether both engines consider the same values equal in a group: atomic types, and structs of atomic values without
    floats."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i).type for i in range(kind.num_fields)]
        return is_known(kind) and all(is_atomic(f) and not is_float(f) for f in fields)
    return is_atomic(kind)


def duck_type(kind: pa.DataType) -> str:
    """Return DuckDB's name of an atomic type."""
    if is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _NAMES[kind]


def plain_type(kind: pa.DataType, *, naive: bool = False) -> pa.DataType:
    """Return a type with everything nested in it nullable, as in results; with `naive`, timestamps have no zone."""
    if kind == TIMESTAMP and naive:
        return TIMESTAMP_NTZ
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return pa.struct([pa.field(f.name, plain_type(f.type, naive=naive)) for f in fields])
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type, naive=naive))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type, naive=naive), plain_type(kind.item_type, naive=naive))
    return kind


def decimal_of(kind: pa.DataType) -> pa.DataType:
    """Return the decimal type that an integer or decimal type is treated as."""
    return kind if is_decimal(kind) else pa.decimal128(_INTEGER_DIGITS[kind], 0)


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return a decimal type; beyond 38 digits Spark reduces the scale, so the query is declined."""
    if precision > PRECISION_MAX or scale > precision:
        decline(f"a decimal of {precision} digits")
    return pa.decimal128(precision, scale)


def quoted(text: str) -> str:
    """Return a string literal."""
    if "\0" in text:
        decline("a NUL character in a string")
    return "'" + text.replace("'", "''") + "'"


def literal(constant: Any, kind: pa.DataType, name: str | None = None) -> Value:
    """Return a constant of a type."""
    if kind == VOID:
        return Value("NULL", kind, name, literal=True)
    if kind == STRING:
        sql = quoted(constant)
    elif kind == BOOLEAN:
        sql = "TRUE" if constant else "FALSE"
    elif kind == DATE:
        sql = f"DATE '{constant.isoformat()}'"
    elif kind in (TIMESTAMP, TIMESTAMP_NTZ):
        sql = f"TIMESTAMP '{constant.replace(tzinfo=None).isoformat(sep=' ')}'"
    elif is_integer(kind):
        sql = f"CAST({constant} AS {duck_type(kind)})"
    else:
        sql = f"CAST('{constant!s}' AS {duck_type(kind)})"
    return Value(sql, kind, name, constant=constant, literal=True)


def common_type(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """Return the common type of several types by Spark's ANSI rules."""
    found = VOID
    for kind in kinds:
        found = _wider(found, kind)
    return found


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if a == b or b == VOID:
        return a
    if a == VOID:
        return b
    if is_integer(a) and is_integer(b):
        return max(a, b, key=_INTEGERS.index)
    if is_numeric(a) and is_numeric(b):
        if is_float(a) or is_float(b):
            return DOUBLE
        left, right = decimal_of(a), decimal_of(b)
        scale = max(left.scale, right.scale)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        return decimal_type(whole + scale, scale)
    if {a, b} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    decline(f"{a} beside {b}")


def unified(values: list[Value], *, compared: bool = False) -> list[Value]:
    """Return the values in their common type, as for the branches of a CASE; with `compared`, as for the sides of a
    comparison.

    Only in a comparison is a string literal read as a date or timestamp because of the other side's type.
    """
    if compared:
        others = {v.kind for v in values if v.kind != STRING}
        if len(others & {DATE, TIMESTAMP, TIMESTAMP_NTZ}) == 1 and others <= {DATE, TIMESTAMP}:
            kind = next(iter(others & {DATE, TIMESTAMP}))
            values = [_read_time(v, kind) if v.kind == STRING else v for v in values]
    kind = common_type(v.kind for v in values)
    return [converted(v, kind) for v in values]


def _read_time(value: Value, kind: pa.DataType) -> Value:
    if not value.literal:
        decline("a string compared with a time")
    return literal(time_of(value.constant, kind), kind)


def time_of(text: str, kind: pa.DataType) -> dt.date | dt.datetime:
    """Return the date or timestamp of a literal in the standard format; other formats are declined."""
    try:
        if kind == DATE and _DATE_TEXT.match(text):
            return dt.date.fromisoformat(text)
        if kind == TIMESTAMP and _DATE_TEXT.match(text):
            return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
        if kind == TIMESTAMP and _TIMESTAMP_TEXT.match(text):
            whole, _, fraction = text.partition(".")
            moment = dt.datetime.fromisoformat(whole).replace(tzinfo=dt.UTC)
            return moment.replace(microsecond=int(fraction.ljust(6, "0"))) if fraction else moment
    except ValueError:
        pass
    decline(f"{text!r} as {kind}")


def converted(value: Value, kind: pa.DataType) -> Value:
    """Return a value in a type to which Spark converts implicitly: a wider one, or a timestamp from a date."""
    if value.kind == kind:
        return value
    if not is_atomic(kind):
        if value.kind == VOID:
            return replace(value, kind=kind)
        decline(f"{value.kind} as {kind}")
    if value.kind == VOID:
        return Value(f"CAST(NULL AS {duck_type(kind)})", kind, value.name, literal=True)
    if kind == DOUBLE and is_decimal(value.kind):
        return decimal_to_double(value)
    if value.literal and is_integer(kind):
        return replace(literal(value.constant, kind, value.name), suffixed=value.suffixed)
    return replace(
        value, sql=f"CAST({value.sql} AS {duck_type(kind)})", kind=kind, literal=False, constant=None
    )


def decimal_to_double(value: Value) -> Value:
    """Return a decimal as a double, where every engine gives the same double; Declined otherwise."""
    if value.literal:
        return literal(float(value.constant), DOUBLE, value.name)
    if value.kind.precision > EXACT_DOUBLE_DIGITS:
        decline(f"a decimal of {value.kind.precision} digits as a double")
    return replace(value, sql=f"CAST({value.sql} AS DOUBLE)", kind=DOUBLE)


def number_literal(text: str) -> Value:
    """Return a numeric literal without a suffix, with Spark's type for it."""
    if re.fullmatch(r"-?\d+", text):
        number = int(text)
        if -(2**31) <= number < 2**31:
            return literal(number, INT, str(number))
        if -(2**63) <= number < 2**63:
            return literal(number, BIGINT, str(number))
        decline("an integer beyond BIGINT")
    if re.fullmatch(r"-?\d*\.\d+", text):
        exact = Decimal(text)
        digits, exponent = exact.as_tuple().digits, exact.as_tuple().exponent
        assert isinstance(exponent, int)
        scale = -exponent
        return literal(exact, decimal_type(max(len(digits), scale), scale))
    if re.fullmatch(r"-?\d+(\.\d+)?[eE][+-]?\d+", text) and abs(float(text)) < float("inf"):
        return literal(float(text), DOUBLE)
    decline(f"the number {text}")
