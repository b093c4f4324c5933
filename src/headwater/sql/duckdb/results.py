"""Clauses after the columns of a SELECT: HAVING, ORDER BY and LIMIT, and the name resolution in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from headwater.sql.duckdb.aggregates import GroupBinder, RowBinder, is_aggregate, parts_of
from headwater.sql.duckdb.scalar_operators import boolean, only
from headwater.sql.duckdb.typed_sql import Declined, Value, decline, is_atomic


@dataclass(frozen=True)
class Item:
    """A column of a SELECT: its name and its value."""

    name: str
    value: Value


def having(node: exp.Select, binder: RowBinder, items: Sequence[Item]) -> str:
    """Bind HAVING, as the WHERE of the query around the groups."""
    clause = node.args.get("having")
    if clause is None:
        return ""
    if not isinstance(binder, GroupBinder):
        decline("HAVING without groups")
    condition = boolean(_Having(items, binder).bind(clause.this))
    return f" WHERE {condition.sql}"


def order_by(node: exp.Expr, items: Sequence[Item], binder: RowBinder, *, distinct: bool) -> str:
    """Bind ORDER BY, with NULLs placed as in Spark."""
    order = node.args.get("order")
    if order is None:
        return ""
    only(order, "expressions")
    terms = []
    for term in order.expressions:
        only(term, "this", "desc", "nulls_first")
        direction = "DESC" if term.args.get("desc") else "ASC"
        nulls = "FIRST" if term.args.get("nulls_first") else "LAST"
        terms.append(f"{_order_key(term.this, items, binder, distinct)} {direction} NULLS {nulls}")
    return f" ORDER BY {', '.join(terms)}"


def limit(node: exp.Expr) -> str:
    """Bind LIMIT and OFFSET."""
    sql = ""
    for clause in ("limit", "offset"):
        found = node.args.get(clause)
        if found is None:
            continue
        only(found, "expression")
        number = found.expression
        if not isinstance(number, exp.Literal) or not number.name.isdecimal() or int(number.name) >= 2**31:
            decline(f"{clause.upper()} of an expression that is not a number")
        sql += f" {clause.upper()} {int(number.name)}"
    return sql


def _order_key(node: exp.Expr, items: Sequence[Item], binder: RowBinder, distinct: bool) -> str:
    if isinstance(node, exp.Literal) and not node.is_string:
        if not node.name.isdecimal() or not 1 <= int(node.name) <= len(items):
            decline("ORDER BY an unknown position")
        value = items[int(node.name) - 1].value
    else:
        value = _Sorted(items, binder).bind(node)
    if value.literal or not is_atomic(value.kind):
        decline(f"ORDER BY {'a constant' if value.literal else value.kind}")
    for position, item in enumerate(items):
        if item.value.sql == value.sql:
            return str(position + 1)
    if distinct:
        decline("ORDER BY an expression that is not in SELECT DISTINCT")
    return value.sql


class _Sorted(RowBinder):
    """Binds an expression of ORDER BY: names refer to columns of the result first, then to columns of FROM."""

    def __init__(self, items: Sequence[Item], below: RowBinder) -> None:
        super().__init__(below.columns)
        self._items = items
        self._below = below

    def bind(self, node: exp.Expr) -> Value:
        if isinstance(node, exp.Column):
            return self.column(parts_of(node))
        if not any(self._shadowed(parts_of(column)) for column in node.find_all(exp.Column)):
            return self._below.bind(node)
        if is_aggregate(node):
            decline("an aggregate in ORDER BY over a name that the result has too")
        return super().bind(node)

    def column(self, parts: Sequence[str]) -> Value:
        found = _titled(self._items, parts[0])
        if not found or not self._shadowed(parts):
            return self._below.column(parts)
        if len(found) > 1 or len(parts) > 1:
            decline(f"ORDER BY {'.'.join(parts)!r}, which may mean several things")
        return found[0].value

    def _shadowed(self, parts: Sequence[str]) -> bool:
        """Whether a name has one meaning in the result and another, or none, in FROM."""
        found = _titled(self._items, parts[0])
        if not found:
            return False
        try:
            below = self._below.column(parts[:1])
        except Declined:
            return True
        return any(item.value.sql != below.sql for item in found)


class _Having(RowBinder):
    """Binds HAVING: names refer to keys first, then to columns of the result."""

    def __init__(self, items: Sequence[Item], groups: GroupBinder) -> None:
        super().__init__(groups.columns)
        self._items = items
        self._groups = groups

    def bind(self, node: exp.Expr) -> Value:
        try:
            return self._groups.bind(node)
        except Declined:
            if isinstance(node, exp.Filter | exp.Subquery):
                raise
        return super().bind(node)

    def column(self, parts: Sequence[str]) -> Value:
        found = _titled(self._items, parts[0])
        if len(parts) == 1 and len(found) == 1 and not any(c.is_(parts[0]) for c in self.columns):
            return found[0].value
        return self._groups.column(parts)


def _titled(items: Sequence[Item], name: str) -> list[Item]:
    return [i for i in items if i.name.lower() == name.lower()]
