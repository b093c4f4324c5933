"""FROM and JOIN of a query: relations become table expressions of DuckDB and columns in scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from headwater.sql.duckdb.aggregates import RowBinder
from headwater.sql.duckdb.column_names import Scan, ScopedColumn, resolve
from headwater.sql.duckdb.scalar_operators import boolean, compared, only
from headwater.sql.duckdb.typed_sql import Value, decline, duck_type, is_integer

HIDDEN = b"headwater.hidden"
"""Metadata key of a field that is found by name but is no part of `*`, such as `_offset`."""

_SIDES = {"": "INNER", "LEFT": "LEFT", "RIGHT": "RIGHT", "FULL": "FULL"}


@dataclass(frozen=True)
class OutputColumn:
    """A column of a query's result; DuckDB names it c0, c1.. by position."""

    name: str
    kind: pa.DataType


@dataclass(frozen=True)
class BoundQuery:
    """A query bound to DuckDB SQL, with its output columns."""

    sql: str
    outputs: tuple[OutputColumn, ...]

    def columns(self, label: str, qualifier: str | None) -> list[ScopedColumn]:
        """Return the columns of the query, for an enclosing query that names it `label`."""
        return [ScopedColumn(o.name, qualifier, f"{label}.c{i}", o.kind) for i, o in enumerate(self.outputs)]


@dataclass
class BindContext:
    """State while a statement is bound: relations by lower-case name, and the scans and CTEs found so far."""

    relations: Mapping[str, tuple[str, pa.Schema]]
    scans: list[Scan] = field(default_factory=list)
    shared: list[tuple[str, str]] = field(default_factory=list)
    _labels: int = 0

    def label(self) -> str:
        """Return a new name, unique in the generated SQL."""
        self._labels += 1
        return f"q{self._labels}"


Shared = Mapping[str, tuple[str, BoundQuery]]
"""CTEs in scope: lower-case name to the name in DuckDB and the query."""
Subquery = Callable[[exp.Expr, Shared], BoundQuery]


@dataclass(frozen=True)
class FromSource:
    """A bound FROM clause, and the columns that it brings into scope."""

    sql: str
    columns: list[ScopedColumn]


class FromBinder:
    """Binds the FROM of one SELECT; `subquery` binds queries inside it."""

    def __init__(self, context: BindContext, shared: Shared, subquery: Subquery) -> None:
        self._context = context
        self._shared = shared
        self._subquery = subquery

    def bind(self, select: exp.Select) -> FromSource:
        """Bind FROM with its joins; without FROM, a single row without columns."""
        start = select.args.get("from_")
        joins: Sequence[exp.Join] = select.args.get("joins") or []
        if start is None:
            return FromSource("", [])
        only(start, "this")
        source = self._item(start.this)
        crossed = False
        for join in joins:
            cross = join.kind == "CROSS"
            if crossed and not cross:
                # after a comma Spark joins the right-hand relations first, and the parser does not distinguish a comma from
                # CROSS JOIN
                decline("a join after a comma or CROSS JOIN")
            crossed = cross
            source = self._join(source, join)
        return source

    def _item(self, node: exp.Expr) -> FromSource:
        label = self._context.label()
        if isinstance(node, exp.Subquery):
            only(node, "this", "alias")
            query = self._subquery(node.this, self._shared)
            return FromSource(f"({query.sql}) AS {label}", query.columns(label, _alias(node)))
        if not isinstance(node, exp.Table):
            decline(f"{type(node).__name__.lower()} in FROM")
        only(node, "this", "alias", "db")
        if not isinstance(node.this, exp.Identifier):
            decline("a table function")
        alias = _alias(node) or node.name
        name = f"{node.db}.{node.name}" if node.db else node.name
        if shared := self._shared.get(name.lower()):
            return FromSource(f"{shared[0]} AS {label}", shared[1].columns(label, alias))
        return self._scan(name, label, alias)

    def _scan(self, name: str, label: str, alias: str) -> FromSource:
        known = self._context.relations.get(name.lower())
        if known is None:
            decline(f"the relation {name!r}, which is not known")
        scan = Scan(known[0], known[1], label)
        self._context.scans.append(scan)
        columns = [
            ScopedColumn(
                f.name,
                alias,
                f"{label}.c{i}",
                f.type,
                "system" if f.metadata and HIDDEN in f.metadata else "open",
                scan,
                i,
            )
            for i, f in enumerate(scan.schema)
        ]
        return FromSource(f"{scan_token(scan)} AS {label}", columns)

    def _join(self, left: FromSource, join: exp.Join) -> FromSource:
        only(join, "this", "side", "kind", "on", "using")
        right = self._item(join.this)
        side, kind = join.side, join.kind
        if kind in ("SEMI", "ANTI"):
            if side not in ("", "LEFT"):
                decline(f"{side} {kind} JOIN")
            word = kind
        elif kind in ("", "INNER", "OUTER", "CROSS") and side in _SIDES and not (side and kind == "CROSS"):
            word = "INNER" if kind == "CROSS" else _SIDES[side]
        else:
            decline(f"{side} {kind} JOIN")
        condition, merged = self._condition(left, right, join)
        sql = f"{left.sql} {word} JOIN {right.sql} ON {condition}"
        if word in ("SEMI", "ANTI"):
            return FromSource(sql, left.columns)
        if not merged:
            return FromSource(sql, [*left.columns, *right.columns])
        return FromSource(sql, _merged(left.columns, right.columns, merged, word))

    def _condition(
        self, left: FromSource, right: FromSource, join: exp.Join
    ) -> tuple[str, list[tuple[ScopedColumn, ScopedColumn]]]:
        using, on = join.args.get("using"), join.args.get("on")
        if using:
            pairs = []
            for name in using:
                pair = (
                    resolve(left.columns, [name.name]).column,
                    resolve(right.columns, [name.name]).column,
                )
                same = pair[0].kind == pair[1].kind
                if not same and (join.side == "FULL" or not all(is_integer(c.kind) for c in pair)):
                    decline(f"USING columns of types {pair[0].kind} and {pair[1].kind}")
                pairs.append(pair)
            equal = (compared(column_value(a), column_value(b), "=") for a, b in pairs)
            return " AND ".join(equal), pairs
        if on is None:
            return "TRUE", []
        return boolean(RowBinder([*left.columns, *right.columns]).bind(on)).sql, []


def _merged(
    left: Sequence[ScopedColumn],
    right: Sequence[ScopedColumn],
    pairs: Sequence[tuple[ScopedColumn, ScopedColumn]],
    side: str,
) -> list[ScopedColumn]:
    """Return the columns after USING: the keys first, each once, then the other columns."""
    keys, hidden = [], []
    for a, b in pairs:
        kept, others = (a, [b]) if side in ("INNER", "LEFT") else (b, [a])
        if side == "FULL":
            sql = f"CAST(coalesce({a.sql}, {b.sql}) AS {duck_type(a.kind)})"
            kept, others = ScopedColumn(a.name, None, sql, a.kind), [a, b]
        keys.append(kept)
        hidden += [replace(c, visibility="merged") for c in others]
    gone = {c.sql for pair in pairs for c in pair}
    return [*keys, *(c for c in (*left, *right) if c.sql not in gone), *hidden]


def column_value(column: ScopedColumn) -> Value:
    """Return a column as a value, and record its use."""
    column.use()
    return Value(column.sql, column.kind, column.name)


def scan_token(scan: Scan) -> str:
    """Return a placeholder for a scan in SQL, replaced once the number of its uses is known."""
    return f"@{scan.label}@"


def _alias(node: exp.Expr) -> str | None:
    alias = node.args.get("alias")
    if alias is None:
        return None
    only(alias, "this")
    return str(alias.name)
