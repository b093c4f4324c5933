"""The searchable fields of documents: their kinds, and the order of their values.

Strings are text, which is tokenized, or keywords, which are single terms. Numbers, dates, timestamps and booleans are
mapped to 64-bit integers in the order of their values, so that every range is a pair of integers, both inclusive. As in
Spark SQL, NaN equals itself and is greater than every number, and 0.0 equals -0.0.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.errors import UsageError
from headwater.core.hashing import words_of
from headwater.core.text_analysis import Analysis
from headwater.operators.percolator.query_nodes import (
    HIGHEST,
    LOWEST,
    Clauses,
    Everything,
    Node,
    RangeQuery,
    Term,
)

Kind = Literal["text", "keyword", "integer", "float", "decimal", "date", "timestamp", "boolean"]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_US = 86_400_000_000
_DATE = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d\d)(?:-(?P<day>\d\d)"
    r"(?:[T ](?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<part>\d{1,6}))?)?)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?)?)?)?\Z"
)


@dataclass(frozen=True)
class Field:
    """A column that queries can name."""

    name: str
    kind: Kind
    type: pa.DataType

    @property
    def ordered(self) -> bool:
        """Whether values are ordered numbers, not words."""
        return self.kind not in ("text", "keyword")

    @property
    def many(self) -> bool:
        """Whether the column has lists of values."""
        return bool(pa.types.is_list(self.type) or pa.types.is_large_list(self.type))

    def interval(self, written: str) -> tuple[int, int]:
        """Return the first and the last value that a literal (number, date or boolean) stands for.

        A date without a time stands for the whole day in a timestamp column. A number that the column cannot represent
        gives an empty interval, whose last value is before its first. Raises ValueError for other text.
        """
        if self.kind in ("date", "timestamp"):
            return self._dates(written)
        if self.kind == "boolean":
            if written.lower() not in ("true", "false"):
                raise ValueError("it takes true and false")
            return (int(written.lower() == "true"),) * 2
        try:
            number = Decimal(written)
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite():
            raise ValueError("it takes numbers, such as 10 or -2.5")
        if abs(number.adjusted()) > 400:
            number = number.copy_sign(Decimal("1e400" if number.adjusted() > 0 and number else "0"))
        return self.around(Fraction(number))

    def around(self, number: Fraction) -> tuple[int, int]:
        """Return the smallest value not below a number, and the largest not above; equal if the column can represent it."""
        if self.kind == "float":
            return _floats_around(number)
        if self.kind == "decimal":
            number *= 10**self.type.scale
        return math.ceil(number), math.floor(number)

    def _dates(self, written: str) -> tuple[int, int]:
        found = _DATE.match(written)
        if found is None or (self.kind == "date" and found["hour"]):
            example = "2026-03-01" if self.kind == "date" else "2026-03-01T10:30:00Z"
            raise ValueError(f"it takes dates, such as {example}, or a part of one")
        first, last = _instants(found)
        if self.kind == "date":
            return first // _DAY_US, last // _DAY_US - 1
        return first, last - 1

    def order(self, values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Map values to integers in their order; also return a mask of the values that are not NULL."""
        there = np.asarray(values.is_valid())
        types, kind = pa.types, values.type
        if types.is_floating(kind):
            floats = np.asarray(values.cast(pa.float64()).fill_null(0.0))
            return float_order(floats), there
        if types.is_decimal(kind):
            words = words_of(values)
            assert words is not None
            return words[0].astype(np.int64, copy=False), there
        if types.is_date32(kind):
            values = values.cast(pa.int32())
        elif types.is_timestamp(kind):
            values = values.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        return np.asarray(values.cast(pa.int64()).fill_null(0)), there


@dataclass(frozen=True)
class Fields:
    """The fields of documents, the default fields of queries, and the analysis of text."""

    columns: tuple[Field, ...]
    default: tuple[str, ...]
    analysis: Analysis = field(default_factory=Analysis)

    @staticmethod
    def of(
        schema: pa.Schema,
        *,
        text: Sequence[str] | None = None,
        default: Sequence[str] | None = None,
        analysis: Analysis = Analysis(),  # noqa: B008 - it is immutable
    ) -> Fields:
        """Return the fields of a schema's columns.

        `text` are the columns to tokenize, by default every STRING and ARRAY<STRING>; `default` are the fields searched
        where a query names none, by default all text fields.
        """
        strings = [column.name for column in schema if _is_string(column.type)]
        text = strings if text is None else text
        for name in text:
            if name not in strings:
                raise UsageError(
                    f"column {name!r} is not a text column",
                    hint=f"text takes STRING columns: {', '.join(strings) or 'this topic has none'}",
                    column=name,
                )
        columns = []
        for column in schema:
            if (kind := _kind(column.type)) is not None:
                columns.append(Field(column.name, "text" if column.name in text else kind, column.type))
        names = [one.name for one in columns]
        default = tuple(text if default is None else default)
        for name in default:
            if name not in names:
                raise UsageError(
                    f"there is no default field {name!r}", hint=f"fields: {', '.join(names)}", field=name
                )
        return Fields(tuple(columns), default, analysis)

    @cached_property
    def named(self) -> dict[str, Field]:
        """Fields by name."""
        return {column.name: column for column in self.columns}

    def place(self, name: str) -> int:
        """Return the index of a field."""
        return self._places[name]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {column.name: place for place, column in enumerate(self.columns)}

    def equals(self, column: str, value: Any) -> Node:
        """Return a condition implied by `column = value`, to select candidates for a predicate."""
        its = self.named.get(column)
        if its is None or value is None or its.many:
            return Everything()
        if not its.ordered:
            if not isinstance(value, str):
                return Everything()
            if its.kind == "keyword":
                return Term(column, value)
            words = self.analysis.words(value)
            return Clauses(must=tuple(Term(column, word.term) for word in words)) if words else Everything()
        return self.between(column, value, value)

    def between(
        self, column: str, low: Any = None, high: Any = None, *, low_in: bool = True, high_in: bool = True
    ) -> Node:
        """Return a condition implied by `column` lying between two values; None leaves an end open."""
        its = self.named.get(column)
        if its is None or not its.ordered:
            return Everything()
        first, last = LOWEST, HIGHEST
        if low is not None:
            if (around := _around(its, low)) is None:
                return Everything()
            first = around[0] if low_in else around[1] + 1
        if high is not None:
            if (around := _around(its, high)) is None:
                return Everything()
            last = around[1] if high_in else around[0] - 1
        return range_of(column, first, last)


def range_of(field: str, first: int, last: int) -> RangeQuery:
    """Return a range, given ends that may exceed 64 bits."""
    if first > last or first > HIGHEST or last < LOWEST:
        return RangeQuery(field, HIGHEST, LOWEST)
    return RangeQuery(field, max(first, LOWEST), min(last, HIGHEST))


def values_of(field: Field, values: pa.Array) -> Iterable[list[str]]:
    """Yield the texts of each row: one, several for a list column, none for NULL."""
    for value in values.to_pylist():
        if value is None:
            yield []
        else:
            yield [one for one in value if one is not None] if field.many else [value]


def float_order(floats: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Map floats to integers in their order: NaN last, and a single zero."""
    clean = np.where(np.isnan(floats), np.nan, floats + 0.0)
    bits = clean.view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(HIGHEST), bits)


def _floats_around(number: Fraction) -> tuple[int, int]:
    try:
        near = float(number)
    except OverflowError:
        near = math.inf if number > 0 else -math.inf
    exact = None if math.isinf(near) else Fraction(near)
    above = near if exact is not None and exact >= number else math.nextafter(near, math.inf)
    below = near if exact is not None and exact <= number else math.nextafter(near, -math.inf)
    if exact is None:  # beyond the largest float there is only infinity
        above, below = (
            (math.inf, math.nextafter(math.inf, 0))
            if number > 0
            else (math.nextafter(-math.inf, 0), -math.inf)
        )
    low, high = float_order(np.array([above, below])).tolist()
    return low, high


def _around(field: Field, value: Any) -> tuple[int, int] | None:
    """Apply `Field.around` to a Python value; None if the value cannot be mapped to the field."""
    if isinstance(value, bool):
        return (int(value), int(value)) if field.kind == "boolean" else None
    if isinstance(value, dt.datetime):
        if field.kind != "timestamp":
            return None
        aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        micros = (aware - _EPOCH) // dt.timedelta(microseconds=1)
        return micros, micros
    if isinstance(value, dt.date):
        if field.kind != "date":
            return None
        days = value.toordinal() - dt.date(1970, 1, 1).toordinal()
        return days, days
    if field.kind not in ("integer", "float", "decimal"):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        if field.kind != "float":
            return None
        place = int(float_order(np.array([value]))[0])
        return place, place
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    return field.around(Fraction(value)) if isinstance(value, int | float | Decimal) else None


def _instants(found: re.Match[str]) -> tuple[int, int]:
    """Return the first microsecond of a date of any precision, and the one after its last."""
    year, month = int(found["year"]), int(found["month"] or 1)
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    part = int((found["part"] or "").ljust(6, "0"))
    begin = dt.datetime(
        year, month, int(found["day"] or 1), hour, minute, second, part, tzinfo=_zone(found["zone"])
    )
    first = (begin - _EPOCH) // dt.timedelta(microseconds=1)
    if found["day"] is None:
        year, month = (year + 1, 1) if found["month"] is None or month == 12 else (year, month + 1)
        days = dt.date(year, month, 1).toordinal() if year <= dt.MAXYEAR else dt.date.max.toordinal() + 1
        return first, (days - _EPOCH.toordinal()) * _DAY_US
    units = {"hour": _DAY_US, "minute": 3_600_000_000, "second": 60_000_000, "part": 1_000_000}
    for name, length in units.items():
        if found[name] is None:
            return first, first + length
    return first, first + 10 ** (6 - len(found["part"]))


def _zone(written: str | None) -> dt.timezone:
    if written is None or written == "Z":
        return dt.UTC
    digits = written[1:].replace(":", "")
    away = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return dt.timezone(away if written[0] == "+" else -away)


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _kind(kind: pa.DataType) -> Kind | None:
    types = pa.types
    if _is_string(kind):
        return "keyword"
    if types.is_integer(kind) and not types.is_uint64(kind):
        return "integer"
    if types.is_floating(kind):
        return "float"
    if types.is_decimal128(kind) and kind.precision <= 18:
        return "decimal"
    if types.is_date32(kind):
        return "date"
    if types.is_timestamp(kind):
        return "timestamp"
    return "boolean" if types.is_boolean(kind) else None
