"""Answers SELECTs over views and topics in this process, without Spark, where the answer provably equals Spark's.

A query is parsed, bound by Spark's rules for names and types, and rewritten for DuckDB from parts that were tested to agree
with Spark in ANSI mode and UTC; all other queries are declined, with a reason. A plain key lookup does not use DuckDB at
all. An error at run time declines the query too: whether an error occurs, and its message, is decided by Spark. Where
Spark's plan determines whether an error occurs (a row that another condition excludes, a LIMIT), the plan used here may
differ in the same way.

    serve ─▶ parse ─▶ look-up? ─▶ pyarrow
                 └──▶ bind ─▶ DuckDB SQL ─▶ DuckDB
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from headwater.sql.duckdb import duckdb_engine
from headwater.sql.duckdb.aggregates import RowBinder
from headwater.sql.duckdb.column_names import Scan
from headwater.sql.duckdb.from_clause import (
    HIDDEN,
    BindContext,
    BoundQuery,
    FromBinder,
    OutputColumn,
    Shared,
    scan_token,
)
from headwater.sql.duckdb.scalar_operators import WANDERING_LIKE, only
from headwater.sql.duckdb.selects import StatementBinder, conjuncts, items_of, note_equality
from headwater.sql.duckdb.typed_sql import VOID, Declined, decline, plain_type

__all__ = [
    "HIDDEN",
    "HeavyError",
    "ServedRelation",
    "TooLongError",
    "decline_reason",
    "serve",
    "serve_or_reason",
]

TooLongError = duckdb_engine.TooLongError
TooLargeError = duckdb_engine.ResultTooLargeError
PLANS_KEPT = 256
QUERY_CHARACTERS_MAX = 50_000
SQL_CHARACTERS_MAX = 500_000
FAILS = "it fails on the current rows"

LIGHT_CHARACTERS_MAX = 4_000
LIGHT_SQL_CHARACTERS_MAX = 20_000
LIGHT_SELECTS_MAX, LIGHT_JOINS_MAX, LIGHT_CONCATENATIONS_MAX = 20, 10, 4
"""Limits within which DuckDB plans a query in well under a second. Planning does not check for interrupts, and its time
grows with a high power of the number of joins: 40 take a second, 200 take minutes."""


class HeavyError(Exception):
    """A query may run for long without being interruptible: it must run in a process that can be killed."""


class ServedRelation(Protocol):
    """A view or topic as a query reads it. A field with `HIDDEN` in its metadata is no part of `*`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, in the types of `headwater.core.types` or types that Spark derives from these."""

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """Return the rows with columns in the given order (all columns if None). Rows that differ from `equal` may be
        omitted; with `first`, rows after the first so many may be omitted too.

        The constants of `equal` are int, str, bool, date or datetime in UTC. An implementation need not use them.
        """


def serve(
    query: str,
    relations: Mapping[str, ServedRelation],
    *,
    rows_max: int | None = None,
    seconds: float | None = None,
) -> pa.Table | None:
    """Return the answer to one SELECT, with Spark's column names and types; None if Spark must answer it.

    Relations are found by name in any case, and read at most once per mention in the query. Rows are ordered only if the
    query has ORDER BY. Thread-safe if the relations are. With `rows_max` only the first rows are computed; TooLongError if
    the query takes more than `seconds`, after which no part of it continues to run.
    """
    answer = serve_or_reason(query, relations, rows_max=rows_max, seconds=seconds)
    return None if isinstance(answer, str) else answer


def serve_or_reason(
    query: str,
    relations: Mapping[str, ServedRelation],
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
    seconds: float | None = None,
    light: bool = False,
) -> pa.Table | str:
    """Return the answer to one SELECT like `serve`, or the reason why Spark must answer it.

    TooLargeError if the answer has more than `bytes_max`; with `light`, HeavyError if the query may not be interruptible at
    `seconds`.
    """
    bounds = duckdb_engine.QueryBounds.of(rows_max, seconds, bytes_max)
    if light and len(query) > LIGHT_CHARACTERS_MAX:
        raise HeavyError
    try:
        plan = _plan(query, relations)
        if light and not plan.light:
            raise HeavyError
        return plan.run(relations, bounds)
    except Declined as declined:
        return declined.reason
    except duckdb_engine.Failed:
        return FAILS


def decline_reason(query: str, relations: Mapping[str, ServedRelation]) -> str | None:
    """Return why a query is left to Spark; None if it is served, unless an error occurs at run time."""
    try:
        _plan(query, relations)
    except Declined as declined:
        return declined.reason
    return None


class _Dialect(Spark):
    """Spark's dialect without rewriting: a doubled quote is a quote, a call keeps its name and arguments."""

    class Tokenizer(Spark.Tokenizer):
        """Spark's tokenizer except for quotes; texts with a backslash are declined before."""

        STRING_ESCAPES: ClassVar[list[str]] = ["'", "\\"]

    class Parser(SparkParser):
        """Spark's parser without the rewriting of calls, which loses arguments."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: SparkParser.FUNCTION_PARSERS[name]
            for name in ("CAST", "TRY_CAST", "TRIM", "SUBSTR", "SUBSTRING", "EXTRACT", "POSITION")
        }


@dataclass(frozen=True)
class _Read:
    """A read of a relation, by positions in its schema."""

    relation: str
    schema: pa.Schema
    columns: tuple[int, ...]
    equal: Mapping[str, Any]

    @classmethod
    def of(cls, scan: Scan) -> _Read:
        """Return the read that a scan needs; at least one column, since a table without columns has no row count."""
        used = tuple(sorted(scan.used)) or (_narrowest(scan.schema),)
        equal = {scan.schema.field(i).name: constant for i, constant in scan.equal.items()}
        return cls(scan.relation, scan.schema, used, equal)

    def rows(
        self, relations: Mapping[str, ServedRelation], first: int | None = None
    ) -> list[pa.ChunkedArray]:
        """Return the columns of the read; only the first rows, if `first` is given and the relation supports it."""
        names = [self.schema.field(i).name for i in self.columns]
        whole = len(names) == len(self.schema)
        table = relations[self.relation].read(None if whole else names, self.equal or None, first)
        return [table.column(name) for name in names]


@dataclass(frozen=True)
class _Lookup:
    """A selection of columns of one relation where columns equal constants, computed without DuckDB."""

    read: _Read
    outputs: tuple[OutputColumn, ...]
    positions: tuple[int, ...]
    filters: tuple[tuple[int, pa.Scalar], ...]
    limit: int | None
    light: ClassVar[bool] = True

    @property
    def reads(self) -> tuple[_Read, ...]:
        return (self.read,)

    def run(self, relations: Mapping[str, ServedRelation], bounds: duckdb_engine.QueryBounds) -> pa.Table:
        """Return the answer."""
        limits = [limit for limit in (self.limit, bounds.rows_max) if limit is not None]
        first = min(limits) if limits and not self.filters else None
        columns = dict(zip(self.read.columns, self.read.rows(relations, first), strict=True))
        table = _result(self.outputs, [columns[i] for i in self.positions])
        mask = None
        for position, constant in self.filters:
            equal = pc.equal(_cast(columns[position], constant.type), constant)
            mask = equal if mask is None else pc.and_(mask, equal)
        if mask is not None:
            table = table.filter(mask)
        return table.slice(0, min(limits)) if limits else table


@dataclass(frozen=True)
class _Duck:
    """A query for DuckDB."""

    sql: str
    outputs: tuple[OutputColumn, ...]
    tables: Mapping[str, _Read]

    @property
    def reads(self) -> tuple[_Read, ...]:
        return tuple(self.tables.values())

    @cached_property
    def light(self) -> bool:
        """Whether the query is planned quickly, and can be interrupted when it runs too long.

        DuckDB computes a function for 2,048 rows before it checks for interrupts, and allocates strings outside of its
        memory limit: strings that `replace` or many concatenations make ever longer take unbounded time and memory. Some
        patterns of LIKE also take unbounded time.
        """
        return (
            len(self.sql) <= LIGHT_SQL_CHARACTERS_MAX
            and self.sql.count("FROM ") <= LIGHT_SELECTS_MAX
            and self.sql.count(" JOIN ") <= LIGHT_JOINS_MAX
            and self.sql.count(" || ") <= LIGHT_CONCATENATIONS_MAX
            and "replace(" not in self.sql
            and WANDERING_LIKE not in self.sql
        )

    def run(self, relations: Mapping[str, ServedRelation], bounds: duckdb_engine.QueryBounds) -> pa.Table:
        """Return the answer; `duckdb_engine.Failed` if DuckDB cannot compute it."""
        tables = {}
        for name, read in self.tables.items():
            columns = [
                _cast(column, plain_type(read.schema.field(i).type, naive=True))
                for i, column in zip(read.columns, read.rows(relations), strict=True)
            ]
            tables[name] = pa.table(columns, names=[f"c{i}" for i in read.columns])
        return _result(self.outputs, duckdb_engine.run(self.sql, tables, bounds).columns)


_Plan = _Lookup | _Duck

_plans: OrderedDict[str, _Plan] = OrderedDict()
_plans_lock = threading.Lock()


def _plan(query: str, relations: Mapping[str, ServedRelation]) -> _Plan:
    """Return the plan of a query, cached while the relations that it names keep their schemas."""
    with _plans_lock:
        plan = _plans.get(query)
        if plan is not None:
            _plans.move_to_end(query)
    if plan is None or not _current(plan, relations):
        plan = _planned(query, relations)
        with _plans_lock:
            _plans[query] = plan
            while len(_plans) > PLANS_KEPT:
                _plans.popitem(last=False)
    return plan


def _current(plan: _Plan, relations: Mapping[str, ServedRelation]) -> bool:
    for read in plan.reads:
        relation = relations.get(read.relation)
        if relation is None:
            return False
        schema = relation.schema
        if schema is not read.schema and not schema.equals(read.schema, check_metadata=True):
            return False
    return True


def _planned(query: str, relations: Mapping[str, ServedRelation]) -> _Plan:
    known: dict[str, tuple[str, pa.Schema]] = {}
    for name, relation in relations.items():
        if name.lower() in known:
            decline(f"two relations called {name.lower()!r}")
        known[name.lower()] = (name, relation.schema)
    try:
        node = _parsed(query)
        with contextlib.suppress(Declined):
            if plan := _lookup(node, BindContext(known)):
                return plan
        return _duck(node, BindContext(known))
    except RecursionError:
        decline("a query nested too deeply")


def _parsed(query: str) -> exp.Expr:
    if len(query) > QUERY_CHARACTERS_MAX:
        decline("a very long query")
    # texts that Spark's lexer and the parser's tokenize differently, or might
    for text in ("\\", "|>", '""', "/*+"):
        if text in query:
            decline(f"{text} in the text")
    if re.search(r"(?i)\b(var)?char(acter)?\b", query):
        decline("CHAR or VARCHAR, which the parser does not distinguish from STRING")
    if '"' in query and "''" in query:
        decline("both kinds of quotes")
    try:
        statements = sqlglot.parse(query, dialect=_Dialect)
    except (
        SqlglotError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
    ):
        decline("syntax that the parser does not support")
    if len(statements) != 1 or statements[0] is None:
        decline("a text that is not one statement")
    return statements[0]


def _lookup(node: exp.Expr, context: BindContext) -> _Lookup | None:
    """Return the plan of `SELECT columns FROM relation [WHERE column = constant AND ...] [LIMIT n]`; None for any other
    query."""
    if not isinstance(node, exp.Select) or any(
        argument and name not in ("expressions", "from_", "where", "limit")
        for name, argument in node.args.items()
    ):
        return None
    start = node.args.get("from_")
    limit = node.args.get("limit")
    if start is None or not isinstance(start.this, exp.Table):
        return None
    if limit is not None:
        only(limit, "expression")
        if not isinstance(limit.expression, exp.Literal) or not re.fullmatch(
            r"\d{1,9}", limit.expression.name
        ):
            return None
    source = FromBinder(context, {}, _no_subquery).bind(node)
    rows = RowBinder(source.columns)
    by_sql = {column.sql: column.position for column in source.columns}
    if not all(p.is_star or isinstance(p.unalias(), exp.Column) for p in node.expressions):
        return None
    items = items_of(node, rows)
    if not all(item.value.sql in by_sql for item in items):
        return None
    filters = []
    for part in conjuncts(node.args["where"].this) if node.args.get("where") else ():
        found = note_equality(part, rows)
        if found is None:
            return None
        found[0].use()
        filters.append((found[0].position, pa.scalar(found[1], found[0].kind)))
    return _Lookup(
        _Read.of(context.scans[0]),
        tuple(OutputColumn(item.name, item.value.kind) for item in items),
        tuple(by_sql[item.value.sql] for item in items),
        tuple(filters),
        int(limit.expression.name) if limit is not None else None,
    )


def _no_subquery(node: exp.Expr, shared: Shared) -> BoundQuery:
    decline("a subquery")


def _duck(node: exp.Expr, context: BindContext) -> _Duck:
    query = StatementBinder(context).query(node, {})
    for output in query.outputs:
        if output.kind == VOID:
            decline(f"column {output.name!r}, which is always NULL and has no type")
    sql = query.sql
    shared: list[str] = []
    for label, body in reversed(context.shared):
        uses = sum(len(re.findall(rf"\b{label} AS ", text)) for text in (sql, *shared))
        if uses:
            shared.append(f"{label} AS {'MATERIALIZED ' if uses > 1 else ''}({body})")
    shared.reverse()
    tables = {}
    for scan in context.scans:
        token = scan_token(scan)
        uses = sum(text.count(token) for text in (sql, *shared))
        if not uses:
            continue
        table = f"t{scan.label[1:]}"
        tables[table] = _Read.of(scan)
        name = table
        if uses > 1:  # a stream can be read only once
            name = f"m{scan.label[1:]}"
            shared.insert(0, f"{name} AS MATERIALIZED (SELECT * FROM {table})")
        sql = sql.replace(token, name)
        shared = [s.replace(token, name) for s in shared]
    if shared:
        sql = f"WITH {', '.join(shared)} {sql}"
    if len(sql) > SQL_CHARACTERS_MAX:
        decline("a query that becomes very long")
    return _Duck(sql, query.outputs, tables)


def _result(outputs: Sequence[OutputColumn], columns: Sequence[pa.ChunkedArray]) -> pa.Table:
    kinds = [plain_type(output.kind) for output in outputs]
    arrays = [_cast(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    schema = pa.schema([pa.field(o.name, kind) for o, kind in zip(outputs, kinds, strict=True)])
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise Declined(f"{column.type} as {kind}") from error


def _narrowest(schema: pa.Schema) -> int:
    """Return the position of a column that is cheap to read."""
    for position, column in enumerate(schema):
        if pa.types.is_primitive(column.type):
            return position
    return 0
