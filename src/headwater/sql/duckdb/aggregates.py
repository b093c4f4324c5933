"""Expressions over rows and over groups: names are resolved, and aggregates become DuckDB's with Spark's types and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from headwater.sql.duckdb.casts import CASTS
from headwater.sql.duckdb.column_names import Reference, ScopedColumn, resolve
from headwater.sql.duckdb.scalar_functions import FUNCTIONS
from headwater.sql.duckdb.scalar_operators import GIVE_UP, OPERATORS, boolean, composed, only
from headwater.sql.duckdb.typed_sql import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    Declined,
    Value,
    converted,
    decimal_type,
    decline,
    duck_type,
    is_atomic,
    is_decimal,
    is_float,
    is_groupable,
    is_integer,
)

Scalar = Callable[[exp.Expr], Value]
_REWRITERS = {**OPERATORS, **CASTS, **FUNCTIONS}
_LONG_MAX = 2**63 - 1
_EXPRESSION_CHARACTERS_MAX = 100_000
"""Limit for rewrites that repeat their operands, whose length therefore grows with the depth of an expression."""
_MEAN_DIGITS = 4
"""Number of digits that avg adds to a decimal's scale."""


class RowBinder:
    """Binds expressions over the rows of FROM; `scalar` binds scalar subqueries."""

    def __init__(self, columns: Sequence[ScopedColumn], scalar: Scalar | None = None) -> None:
        self.columns = columns
        self._scalar = scalar

    def bind(self, node: exp.Expr) -> Value:
        """Return an expression as DuckDB SQL; Declined where it is not known to have the same meaning."""
        if isinstance(node, exp.Column):
            return self.column(parts_of(node))
        if isinstance(node, exp.Subquery):
            if self._scalar is None:
                decline("a subquery here")
            return self._scalar(node)
        rewriter = _REWRITERS.get(type(node))
        if rewriter is None:
            decline(type(node).__name__.lower())
        value = rewriter(self.bind, node)
        if len(value.sql) > _EXPRESSION_CHARACTERS_MAX:
            decline("an expression that becomes very long")
        return value

    def column(self, parts: Sequence[str]) -> Value:
        """Return the value of a dotted name."""
        return self.reference(parts).value()

    def reference(self, parts: Sequence[str]) -> Reference:
        """Return the column of a dotted name."""
        return resolve(self.columns, parts)


@dataclass
class Grouping:
    """The keys and aggregates that a grouped query computes per group, as columns g0.. and a0.. of `label`."""

    label: str
    keys: list[Value] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def key(self, sql: str) -> str | None:
        """Return the column of the key that this SQL computes, or None."""
        found = [i for i, key in enumerate(self.keys) if key.sql == sql]
        return f"{self.label}.g{found[0]}" if found else None

    def call(self, sql: str) -> str:
        """Return the column of an aggregate, which is computed once."""
        if sql not in self.calls:
            self.calls.append(sql)
        return f"{self.label}.a{self.calls.index(sql)}"


class GroupBinder(RowBinder):
    """Binds expressions over groups: keys, aggregates, and expressions over these."""

    def __init__(self, rows: RowBinder, grouping: Grouping, scalar: Scalar | None = None) -> None:
        super().__init__(rows.columns, scalar)
        self._rows = rows
        self._grouping = grouping
        self._bound: dict[int, Value | Declined] = {}

    def bind(self, node: exp.Expr) -> Value:
        # A part is bound within its parent and then by itself: caching the result keeps that quadratic.
        known = self._bound.get(id(node))
        if known is None:
            try:
                known = self._bind(node)
            except Declined as declined:
                known = declined
            self._bound[id(node)] = known
        if isinstance(known, Declined):
            raise known
        return known

    def _bind(self, node: exp.Expr) -> Value:
        if is_aggregate(node):
            return _aggregate(node, self._rows.bind, self._grouping)
        if not isinstance(node, exp.Literal | exp.Subquery | exp.Column):
            try:
                value = self._rows.bind(node)
            except Declined:
                pass
            else:
                if key := self._grouping.key(value.sql):
                    return Value(key, value.kind, value.name, value.title)
        return super().bind(node)

    def column(self, parts: Sequence[str]) -> Value:
        reference = self._rows.reference(parts)
        whole = reference.value()
        if key := self._grouping.key(whole.sql):
            return Value(key, whole.kind, whole.name, whole.title)
        if key := self._grouping.key(reference.column.sql):
            return reference.value(key)
        raise Declined(f"column {parts[-1]!r}, which is neither grouped nor aggregated")


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node calls a supported aggregate."""
    if isinstance(node, exp.Filter):
        return True
    return isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this.lower() in _AGGREGATES


def parts_of(node: exp.Column) -> list[str]:
    """Return the parts of a dotted name, as typed."""
    only(node, "this", "table", "db", "catalog")
    if any(not isinstance(p, exp.Identifier) for p in node.parts):
        decline("a star inside an expression")
    return [p.name for p in node.parts]


def normalized(sql: str, kind: pa.DataType) -> str:
    """Return a value as a group key: Spark normalizes -0.0 to 0.0 there."""
    return (
        f"(CASE WHEN {sql} = 0 THEN CAST(0 AS {duck_type(kind)}) ELSE {sql} END)" if is_float(kind) else sql
    )


def _aggregate(node: exp.Expr, bind: Scalar, grouping: Grouping) -> Value:
    only_where = ""
    name_end: str | None = ""
    if isinstance(node, exp.Filter):
        only(node, "this", "expression")
        condition = boolean(bind(node.expression.this))
        only_where = f" FILTER (WHERE {condition.sql})"
        name_end = composed(" FILTER (WHERE ", condition.name, ")")
        node = node.this
    if not is_aggregate(node):
        decline("FILTER of a function that is not an aggregate")
    only(node, "this", "expressions")
    function = node.this.lower()
    if len(node.expressions) != 1:
        decline(f"{function} of {len(node.expressions)} arguments")
    name, kind, template, calls = _AGGREGATES[function](function, node.expressions[0], bind)
    columns = [grouping.call(call + only_where) for call in calls]
    return Value(template.format(*columns), kind, composed(name, name_end), fallible=template != "{0}")


Call = tuple[str | None, pa.DataType, str, list[str]]
"""An aggregate: its name, its type, SQL over the columns {0}, {1}.. of the group, and the SQL that computes these columns."""


def _argument(argument: exp.Expr, bind: Scalar) -> tuple[Value, str]:
    """Return the argument of an aggregate, and DISTINCT or an empty text."""
    if not isinstance(argument, exp.Distinct):
        return bind(argument), ""
    only(argument, "expressions")
    if len(argument.expressions) != 1:
        decline("DISTINCT of several columns")
    value = bind(argument.expressions[0])
    if not is_groupable(value.kind):
        decline(f"DISTINCT of {value.kind}")
    return value, "DISTINCT "


def _count(function: str, argument: exp.Expr, bind: Scalar) -> Call:
    if isinstance(argument, exp.Star):
        only(argument)
        return "count(1)", BIGINT, "{0}", ["count(*)"]
    value, distinct = _argument(argument, bind)
    return composed("count(", distinct, value.name, ")"), BIGINT, "{0}", [f"count({distinct}{value.sql})"]


def _count_if(function: str, argument: exp.Expr, bind: Scalar) -> Call:
    value, distinct = _argument(argument, bind)
    if distinct:
        decline("count_if of DISTINCT")
    condition = boolean(value)
    name = composed("count_if(", value.name, ")")
    return name, BIGINT, "{0}", [f"count(CASE WHEN {condition.sql} THEN 1 END)"]


def _sum(function: str, argument: exp.Expr, bind: Scalar) -> Call:
    value, distinct = _argument(argument, bind)
    name = composed("sum(", distinct, value.name, ")")
    if is_integer(value.kind):
        total = f"sum({distinct}{value.sql})"
        if value.kind != BIGINT:
            return name, BIGINT, "CAST({0} AS BIGINT)", [total]
        # Spark fails if a partial sum overflows, which depends on the order of rows: such queries are left to Spark.
        size = f"sum({distinct}abs(CAST({value.sql} AS HUGEINT)))"
        guarded = f"(CASE WHEN {{1}} > {_LONG_MAX} THEN {GIVE_UP} ELSE CAST({{0}} AS BIGINT) END)"
        return name, BIGINT, guarded, [total, size]
    if is_float(value.kind):
        return name, DOUBLE, "{0}", [f"sum({distinct}{converted(value, DOUBLE).sql})"]
    if is_decimal(value.kind):
        kind = decimal_type(value.kind.precision + 10, value.kind.scale)
        return name, kind, f"CAST({{0}} AS {duck_type(kind)})", [f"sum({distinct}{value.sql})"]
    raise Declined(f"sum of {value.kind}")


def _avg(function: str, argument: exp.Expr, bind: Scalar) -> Call:
    value, distinct = _argument(argument, bind)
    if distinct:
        decline("avg of DISTINCT")
    name = composed(f"{function}(", value.name, ")")
    if is_integer(value.kind) or is_float(value.kind):
        return name, DOUBLE, "{0}", [f"avg({converted(value, DOUBLE).sql})"]
    if not is_decimal(value.kind):
        decline(f"avg of {value.kind}")
    return name, *_decimal_mean(value)


def _decimal_mean(value: Value) -> tuple[pa.DataType, str, list[str]]:
    """Compute the mean of decimals, rounded half away from zero, with 128-bit integers."""
    precision, scale = value.kind.precision, value.kind.scale
    kind = decimal_type(precision + _MEAN_DIGITS, scale + _MEAN_DIGITS)
    # Up to 10^10 rows add ten digits; the integer is then doubled and scaled up.
    if precision + 10 + _MEAN_DIGITS + 1 > 37 or precision + scale + 2 * _MEAN_DIGITS > 38:
        decline(f"avg of a decimal of {precision} digits")
    units = f"sum(CAST({value.sql} * CAST({10**scale} AS DECIMAL({scale + 1},0)) AS HUGEINT))"
    doubled = 2 * 10**_MEAN_DIGITS
    mean = f"((abs({{0}}) * {doubled} + {{1}}) // ({{1}} * 2)) * (CASE WHEN {{0}} < 0 THEN -1 ELSE 1 END)"
    unit = f"CAST('0.{'0' * (kind.scale - 1)}1' AS DECIMAL({kind.scale},{kind.scale}))"
    sql = f"CAST(CAST({mean} AS DECIMAL({kind.precision},0)) * {unit} AS {duck_type(kind)})"
    return kind, sql, [units, f"count({value.sql})"]


def _extreme(function: str, argument: exp.Expr, bind: Scalar) -> Call:
    value, distinct = _argument(argument, bind)
    if not is_atomic(value.kind):
        decline(f"{function} of {value.kind}")
    name = composed(f"{function}(", distinct, value.name, ")")
    return name, value.kind, "{0}", [f"{function}({value.sql})"]


def _logical(function: str, argument: exp.Expr, bind: Scalar) -> Call:
    value, distinct = _argument(argument, bind)
    if distinct:
        decline(f"{function} of DISTINCT")
    duck = "bool_or" if function in ("bool_or", "some") else "bool_and"
    return None, BOOLEAN, "{0}", [f"{duck}({boolean(value).sql})"]


_AGGREGATES: dict[str, Callable[[str, exp.Expr, Scalar], Call]] = {
    "count": _count,
    "count_if": _count_if,
    "sum": _sum,
    **dict.fromkeys(("avg", "mean"), _avg),
    **dict.fromkeys(("min", "max"), _extreme),
    **dict.fromkeys(("bool_and", "every", "bool_or", "some"), _logical),
}
