"""Binds a SELECT to DuckDB SQL, clause by clause, or declines it with a reason.

Names of the query never reach DuckDB: relations are named q1, q2.., columns c0, c1.., so that only Spark's rules resolve
names. Groups are computed in a subquery, inside the query that computes the columns from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from headwater.core.types import TIMESTAMP
from headwater.sql.duckdb.aggregates import (
    GroupBinder,
    Grouping,
    RowBinder,
    is_aggregate,
    normalized,
    parts_of,
)
from headwater.sql.duckdb.column_names import ScopedColumn, star
from headwater.sql.duckdb.from_clause import (
    BindContext,
    BoundQuery,
    FromBinder,
    OutputColumn,
    Shared,
    column_value,
)
from headwater.sql.duckdb.results import Item, having, limit, order_by
from headwater.sql.duckdb.scalar_operators import boolean, only
from headwater.sql.duckdb.typed_sql import (
    BOOLEAN,
    DATE,
    STRING,
    VOID,
    Value,
    common_type,
    converted,
    decline,
    fits,
    is_atomic,
    is_groupable,
    is_integer,
    is_known,
    time_of,
)

_SET_WORDS = {exp.Union: "UNION", exp.Intersect: "INTERSECT", exp.Except: "EXCEPT"}
_CLAUSES = ("order", "limit", "offset")


class StatementBinder:
    """Binds one statement; `context` collects the scans of its relations."""

    def __init__(self, context: BindContext) -> None:
        self.context = context

    def query(self, node: exp.Expr, shared: Shared) -> BoundQuery:
        """Bind a query, with the CTEs in scope."""
        if isinstance(node, exp.Subquery):
            only(node, "this")
            return self.query(node.this, shared)
        if not isinstance(node, exp.Select | exp.SetOperation):
            decline(f"{type(node).__name__.lower()} as a query")
        if with_ := node.args.get("with_"):
            shared = self._shared(with_, shared)
        if isinstance(node, exp.Select):
            return self._select(node, shared)
        return self._combined(node, shared)

    def _shared(self, with_: exp.Expr, shared: Shared) -> Shared:
        only(with_, "expressions")
        found = dict(shared)
        for cte in with_.expressions:
            only(cte, "this", "alias")
            only(cte.args["alias"], "this")
            query = self.query(cte.this, found)
            label = self.context.label()
            self.context.shared.append((label, query.sql))
            found[cte.alias.lower()] = (label, query)
        return found

    def _combined(self, node: exp.SetOperation, shared: Shared) -> BoundQuery:
        only(node, "this", "expression", "distinct", "with_", *_CLAUSES)
        left, right = self.query(node.this, shared), self.query(node.expression, shared)
        if len(left.outputs) != len(right.outputs):
            decline("a set operation over different numbers of columns")
        distinct = bool(node.args.get("distinct"))
        kinds = [common_type((a.kind, b.kind)) for a, b in zip(left.outputs, right.outputs, strict=True)]
        if (distinct or not isinstance(node, exp.Union)) and not all(is_groupable(k) for k in kinds):
            decline("a set operation that compares nested values")
        sides = []
        for side in (left, right):
            label = self.context.label()
            values = [
                converted(column_value(c), k) for c, k in zip(side.columns(label, None), kinds, strict=True)
            ]
            listed = ", ".join(
                f"{normalized(v.sql, v.kind) if distinct else v.sql} AS c{i}" for i, v in enumerate(values)
            )
            sides.append(f"SELECT {listed} FROM ({side.sql}) AS {label}")
        word = _SET_WORDS[type(node)] + ("" if distinct else " ALL")
        outputs = tuple(OutputColumn(o.name, k) for o, k in zip(left.outputs, kinds, strict=True))
        sql = f"{sides[0]} {word} {sides[1]}"
        if not any(node.args.get(clause) for clause in _CLAUSES):
            return BoundQuery(sql, outputs)
        label = self.context.label()
        columns = BoundQuery(sql, outputs).columns(label, None)
        items = [Item(c.name, column_value(c)) for c in columns]
        order = order_by(node, items, RowBinder(columns), distinct=False)
        listed = ", ".join(f"{i.value.sql} AS c{n}" for n, i in enumerate(items))
        return BoundQuery(f"SELECT {listed} FROM ({sql}) AS {label}{order}{limit(node)}", outputs)

    def _select(self, node: exp.Select, shared: Shared) -> BoundQuery:
        only(
            node, "expressions", "from_", "joins", "where", "group", "having", "distinct", "with_", *_CLAUSES
        )
        source = FromBinder(self.context, shared, self.query).bind(node)

        def scalar(subquery: exp.Expr) -> Value:
            return self._scalar(subquery, shared)

        rows = RowBinder(source.columns, scalar)
        where = self._where(node, rows, shared)
        binder: RowBinder = rows
        from_ = f" FROM {source.sql}" if source.sql else ""
        if node.args.get("group") or node.args.get("having") or _aggregates(node):
            grouping = Grouping(self.context.label())
            grouping.keys = _keys(node, rows)
            binder = GroupBinder(rows, grouping, scalar)
        items = items_of(node, binder)
        for item in items:
            if item.value.kind != VOID and not is_known(item.value.kind):
                decline(f"a column of type {item.value.kind}")
        distinct = _distinct(node, items)
        kept = having(node, binder, items)
        order = order_by(node, items, binder, distinct=distinct)
        if isinstance(binder, GroupBinder):
            if not grouping.keys and not grouping.calls:
                decline("HAVING without groups")
            from_, where = f" FROM ({_grouped(grouping, from_, where)}) AS {grouping.label}", kept
        listed = ", ".join(
            f"{normalized(i.value.sql, i.value.kind) if distinct else i.value.sql} AS c{n}"
            for n, i in enumerate(items)
        )
        sql = f"SELECT {'DISTINCT ' if distinct else ''}{listed}{from_}{where}{order}{limit(node)}"
        return BoundQuery(sql, tuple(OutputColumn(i.name, i.value.kind) for i in items))

    def _scalar(self, node: exp.Expr, shared: Shared) -> Value:
        query = self.query(node, shared)
        if len(query.outputs) != 1 or query.outputs[0].kind == VOID:
            decline("a subquery of several columns as a value")
        label = self.context.label()
        return Value(
            f"(SELECT {label}.c0 FROM ({query.sql}) AS {label})", query.outputs[0].kind, fallible=True
        )

    def _where(self, node: exp.Select, rows: RowBinder, shared: Shared) -> str:
        where = node.args.get("where")
        if where is None:
            return ""
        conditions = []
        for part in conjuncts(where.this):
            condition = self._membership(part, rows, shared) or boolean(rows.bind(part))
            note_equality(part, rows)
            conditions.append(condition)
        return f" WHERE {_all(conditions)}"

    def _membership(self, node: exp.Expr, rows: RowBinder, shared: Shared) -> Value | None:
        """Bind [NOT] IN and [NOT] EXISTS over a subquery. Outside of WHERE, Spark's answer differs from standard SQL."""
        word = ""
        if isinstance(node, exp.Not):
            node, word = node.this, "NOT "
        if isinstance(node, exp.Exists):
            only(node, "this")
            query = self.query(node.this, shared)
            return Value(f"({word}EXISTS (SELECT 1 FROM ({query.sql}) AS {self.context.label()}))", BOOLEAN)
        if not isinstance(node, exp.In) or not node.args.get("query"):
            return None
        only(node, "this", "query")
        value, query = rows.bind(node.this), self.query(node.args["query"], shared)
        if len(query.outputs) != 1:
            decline("IN over a subquery of several columns")
        label = self.context.label()
        kind = common_type((value.kind, query.outputs[0].kind))
        if not is_atomic(kind):
            decline(f"IN over a subquery of {kind}")
        member = converted(column_value(query.columns(label, None)[0]), kind)
        listed = f"SELECT {member.sql} FROM ({query.sql}) AS {label}"
        sql = f"({converted(value, kind).sql} {word}IN ({listed}))"
        return Value(sql, BOOLEAN, fallible=value.fallible)


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """Return the conditions that a WHERE joins with AND, in order."""
    return list(node.flatten(unnest=False)) if isinstance(node, exp.And) else [node]


def note_equality(node: exp.Expr, rows: RowBinder) -> tuple[ScopedColumn, Any] | None:
    """Record a condition `column = constant` on a relation in FROM in its scan, and return both; None for any other
    condition."""
    if not isinstance(node, exp.EQ):
        return None
    left, right = node.this, node.expression
    if not isinstance(left, exp.Column):
        left, right = right, left
    if not isinstance(left, exp.Column) or isinstance(right, exp.Column):
        return None
    reference, value = rows.reference(parts_of(left)), rows.bind(right)
    column = reference.column
    if column.scan is None or reference.fields or not value.literal or value.constant is None:
        return None
    constant: Any = value.constant
    if column.kind in (DATE, TIMESTAMP) and value.kind == STRING:
        constant = time_of(value.constant, column.kind)
    elif not (is_integer(column.kind) and is_integer(value.kind) and fits(constant, column.kind)) and not (
        column.kind == value.kind and column.kind in (STRING, BOOLEAN, DATE, TIMESTAMP)
    ):
        return None
    column.scan.equal.setdefault(column.position, constant)
    return column, constant


def _all(conditions: Sequence[Value]) -> str:
    if not any(c.fallible for c in conditions):
        return " AND ".join(c.sql for c in conditions)
    # In written order: whether a row raises an error may depend on it.
    steps = "".join(f" WHEN {c.sql} IS DISTINCT FROM TRUE THEN FALSE" for c in conditions)
    return f"(CASE{steps} ELSE TRUE END)"


def _aggregates(node: exp.Select) -> bool:
    clauses = [*node.expressions, node.args.get("having"), node.args.get("order")]
    return any(True for clause in clauses if clause is not None for _ in _aggregates_in(clause))


def _aggregates_in(node: exp.Expr) -> list[exp.Expr]:
    """Return the aggregates of an expression, excluding those in its subqueries."""
    walked = node.walk(prune=lambda n: isinstance(n, exp.Query))
    return [n for n in walked if is_aggregate(n)]


def items_of(node: exp.Select, binder: RowBinder) -> list[Item]:
    """Return the columns of a SELECT, with stars expanded."""
    items: list[Item] = []
    if not node.expressions:
        decline("SELECT without columns")
    for part in node.expressions:
        if isinstance(part, exp.Star) or (isinstance(part, exp.Column) and isinstance(part.this, exp.Star)):
            only(part.this if isinstance(part, exp.Column) else part)
            qualifier = None
            if isinstance(part, exp.Column):
                only(part, "this", "table")
                qualifier = part.table
            if not binder.columns:
                decline("* without FROM")
            for column in star(binder.columns, qualifier):
                parts = [column.qualifier, column.name] if column.qualifier else [column.name]
                items.append(Item(column.name, _starred(binder, column, parts)))
        elif isinstance(part, exp.Alias):
            only(part, "this", "alias")
            if not isinstance(part.args["alias"], exp.Identifier):
                decline("a column of a document, or several aliases")
            items.append(Item(part.alias, binder.bind(part.this)))
        else:
            value = binder.bind(part)
            if value.heading is None:
                decline("an expression without an alias")
            items.append(Item(value.heading, value))
    return items


def _starred(binder: RowBinder, column: ScopedColumn, parts: Sequence[str]) -> Value:
    if isinstance(binder, GroupBinder):
        return binder.column(parts)
    return column_value(column)


def _distinct(node: exp.Select, items: Sequence[Item]) -> bool:
    distinct = node.args.get("distinct")
    if distinct is None:
        return False
    only(distinct)
    if not all(is_groupable(i.value.kind) for i in items):
        decline("DISTINCT of nested values")
    return True


def _keys(node: exp.Select, rows: RowBinder) -> list[Value]:
    group = node.args.get("group")
    if group is None:
        return []
    only(group, "expressions", "all")
    aliases = {p.alias.lower(): p.this for p in node.expressions if isinstance(p, exp.Alias)}
    parts = list(group.expressions)
    if group.args.get("all"):
        parts = [p.this if isinstance(p, exp.Alias) else p for p in node.expressions]
        parts = [p for p in parts if not _aggregates_in(p)]
    keys: list[Value] = []
    for part in parts:
        if isinstance(part, exp.Literal) and not part.is_string and not group.args.get("all"):
            part = _ordinal(node, part)
        elif isinstance(part, exp.Column) and len(part.parts) == 1 and part.name.lower() in aliases:
            part = part if any(c.is_(part.name) for c in rows.columns) else aliases[part.name.lower()]
        if part.find(exp.Query) or not part.find(exp.Column):
            decline("GROUP BY a constant or a subquery")
        key = rows.bind(part)
        if not is_groupable(key.kind):
            decline(f"GROUP BY {key.kind}")
        keys.append(key)
    return keys


def _ordinal(node: exp.Select, number: exp.Literal) -> exp.Expr:
    if any(p.is_star for p in node.expressions) or not number.name.isdecimal():
        decline("GROUP BY a number beside *")
    if not 1 <= int(number.name) <= len(node.expressions):
        decline("GROUP BY an unknown position")
    part: exp.Expr = node.expressions[int(number.name) - 1]
    return part.this if isinstance(part, exp.Alias) else part


def _grouped(grouping: Grouping, from_: str, where: str) -> str:
    keys = [f"{normalized(k.sql, k.kind)} AS g{i}" for i, k in enumerate(grouping.keys)]
    calls = [f"{call} AS a{i}" for i, call in enumerate(grouping.calls)]
    group = f" GROUP BY {', '.join(str(i + 1) for i in range(len(keys)))}" if keys else ""
    return f"SELECT {', '.join([*keys, *calls])}{from_}{where}{group}"
