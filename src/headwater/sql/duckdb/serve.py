"""SELECTs over views and topics answered in this process, without Spark, where the answer is provably Spark's.

A query is parsed, bound by Spark's rules for names and types, and written anew for DuckDB out of parts that were tested
to agree with Spark in ANSI mode and UTC; what is not on that list is declined, with a reason. A plain look-up is not
even given to DuckDB. An error at run time declines too: whether Spark raises, and in which words, is Spark's to say.
Where Spark's plan decides whether an error is met at all (a row that another condition excludes, a LIMIT), so may ours.

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
FAILS = "it fails on the rows that are there"

LIGHT_CHARACTERS_MAX = 4_000
LIGHT_SQL_CHARACTERS_MAX = 20_000
LIGHT_SELECTS_MAX, LIGHT_JOINS_MAX, LIGHT_CONCATENATIONS_MAX = 20, 10, 4
"""What DuckDB plans in well under a second. It plans without looking whether it is interrupted, and the time grows with a high power of
the number of joins: 40 take a second, 200 take minutes."""


class HeavyError(Exception):
    """A query may run for long where it cannot be interrupted: it is for a process that can be ended."""


class ServedRelation(Protocol):
    """A view or topic as a query reads it. A field with `HIDDEN` in its metadata is no part of `*`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, in the types of `headwater.core.types` and what Spark makes of them."""

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """The rows, with these columns (all if None), named so; rows that differ from `equal` may be left out, and so may
        all but so many of the `first`.

        The constants of `equal` are int, str, bool, date or datetime in UTC. No promise is made that they are used.
        """


def serve(
    query: str,
    relations: Mapping[str, ServedRelation],
    *,
    rows_max: int | None = None,
    seconds: float | None = None,
) -> pa.Table | None:
    """The answer to one SELECT, with Spark's column names and types; None if it is Spark's to answer.

    Relations are found by name in any case, and read at most once for each place in which the query names them. The
    rows are in order only if the query says ORDER BY. Thread-safe if the relations are. With `rows_max` only the first rows are
    computed; TooLongError if it takes more than `seconds`, and nothing of it goes on.
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
    """The answer to one SELECT as `serve` gives it, or why it is Spark's to answer. TooLargeError if it has more than `bytes_max`;
    with `light`, HeavyError if the query may not end at `seconds`."""
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
    """Why a query is left to Spark, or None if it is served, errors at run time aside."""
    try:
        _plan(query, relations)
    except Declined as declined:
        return declined.reason
    return None


class _Dialect(Spark):
    """Spark's dialect as it is written: a doubled quote is a quote, a call keeps its name and arguments."""

    class Tokenizer(Spark.Tokenizer):
        """Spark's tokenizer but for quotes; texts with a backslash never get here."""

        STRING_ESCAPES: ClassVar[list[str]] = ["'", "\\"]

    class Parser(SparkParser):
        """Spark's parser without the rewriting of calls, in which arguments get lost."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: SparkParser.FUNCTION_PARSERS[name]
            for name in ("CAST", "TRY_CAST", "TRIM", "SUBSTR", "SUBSTRING", "EXTRACT", "POSITION")
        }


@dataclass(frozen=True)
class _Read:
    """What a relation is asked for, by positions of its schema."""

    relation: str
    schema: pa.Schema
    columns: tuple[int, ...]
    equal: Mapping[str, Any]

    @classmethod
    def of(cls, scan: Scan) -> _Read:
        """What a scan turned out to need; at least one column, since a table without any has no rows."""
        used = tuple(sorted(scan.used)) or (_narrowest(scan.schema),)
        equal = {scan.schema.field(i).name: constant for i, constant in scan.equal.items()}
        return cls(scan.relation, scan.schema, used, equal)

    def rows(
        self, relations: Mapping[str, ServedRelation], first: int | None = None
    ) -> list[pa.ChunkedArray]:
        """The columns; of no more rows than the first so many, if the relation can tell these."""
        names = [self.schema.field(i).name for i in self.columns]
        whole = len(names) == len(self.schema)
        table = relations[self.relation].read(None if whole else names, self.equal or None, first)
        return [table.column(name) for name in names]


@dataclass(frozen=True)
class _Lookup:
    """Columns of one relation where columns equal constants: no need for an engine."""

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
        """The answer."""
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
        """Whether the query is planned at once, and interrupted when it runs too long.

        DuckDB computes a function for 2,048 rows before it looks whether it is interrupted, and holds texts outside of its memory
        limit: texts that `replace` or many concatenations make longer and longer take any time and any memory. So do some patterns of
        LIKE take any time.
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
        """The answer; `serving_duckdb.Failed` if there is none to be had here."""
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
    """The plan of a query, kept as long as the relations that it names have the same schemas."""
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
    # Texts that Spark's lexer and the parser's read differently, or might.
    for text in ("\\", "|>", '""', "/*+"):
        if text in query:
            decline(f"{text} in the text")
    if re.search(r"(?i)\b(var)?char(acter)?\b", query):
        decline("CHAR or VARCHAR, which the parser does not tell from STRING")
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
        decline("what the parser does not read")
    if len(statements) != 1 or statements[0] is None:
        decline("something else than one statement")
    return statements[0]


def _lookup(node: exp.Expr, context: BindContext) -> _Lookup | None:
    """The plan of `SELECT columns FROM relation [WHERE column = constant AND ...] [LIMIT n]`, if it is one."""
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
        if uses > 1:  # a stream can be read once
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
    """A column that costs little to read."""
    for position, column in enumerate(schema):
        if pa.types.is_primitive(column.type):
            return position
    return 0
