"""SQL conditions over document columns, as standing queries: parsed, checked, and evaluated on batches without Spark.

Conditions have the semantics of Spark SQL, as far as DuckDB implements these in this process (`serving`); other conditions
are rejected. Comparisons of columns with constants that must hold are indexed, and preselect the documents on which a
condition is evaluated. A document on which evaluation fails, such as by a division by zero, does not match.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headwater.core.errors import StatementError
from headwater.operators.percolator.fields import Field, Fields
from headwater.operators.percolator.query_nodes import Clauses, Everything, Node
from headwater.sql.duckdb.serve import decline_reason, serve
from headwater.sql.lexer import pointing

_DOCUMENTS, _ROW = "documents", "_row"
_PARSED = "SELECT 1 WHERE (\n{}\n)"
_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.EQ: exp.EQ,
}


@dataclass(frozen=True)
class _Documents:
    rows: pa.Table

    @property
    def schema(self) -> pa.Schema:
        schema: pa.Schema = self.rows.schema
        return schema

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        del equal, first
        return self.rows if columns is None else self.rows.select(columns)


def check_predicate(text: str, schema: pa.Schema) -> None:
    """Raise StatementError, underlining the mistake, unless a text is a condition over these columns that can be evaluated
    here."""
    tree = _parsed(text)
    if tree.find(exp.Query) is not None:
        found = re.search(r"\b(select|from|with|values)\b", text, re.IGNORECASE)
        start, end = found.span() if found else (0, len(text))
        raise pointing(
            text,
            start,
            end,
            "a condition of a standing query cannot have a subquery: it is evaluated on one document",
            reason="subquery",
        )
    known = {name.lower() for name in schema.names}
    for column in tree.find_all(exp.Column):
        if column.name.lower() not in known or column.table:
            hint = f"columns: {', '.join(schema.names)}"
            _refuse(text, column.this, f"there is no column {column.sql()!r}", hint, reason="unknown-column")
    reason = decline_reason(_query(text), {_DOCUMENTS: _Documents(_numbered(schema.empty_table()))})
    if reason is not None:
        raise pointing(
            text,
            0,
            len(text),
            f"this condition is not supported: {reason}",
            hint=_HINT,
            reason="not-supported",
        )


_HINT = "use comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, arithmetic and scalar functions"


def holds(text: str, documents: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the documents that match a condition."""
    found = np.zeros(documents.num_rows, np.bool_)
    if not documents.num_rows:
        return found
    answer = serve(_query(text), {_DOCUMENTS: _Documents(_numbered(documents))})
    if answer is not None:
        found[answer.column(0).to_numpy()] = True
    elif documents.num_rows > 1:  # evaluation fails on at least one of them
        half = documents.num_rows // 2
        found[:half] = holds(text, documents.slice(0, half))
        found[half:] = holds(text, documents.slice(half))
    return found


def necessary(text: str, fields: Fields) -> list[Node]:
    """Return indexable conditions that hold for every document that matches a condition."""
    node = _node(_parsed(text), fields)
    return [] if isinstance(node, Everything) else [node]


def _query(text: str) -> str:
    return f"SELECT {_ROW} FROM {_DOCUMENTS} WHERE (\n{text}\n)"


def _numbered(documents: pa.Table) -> pa.Table:
    return documents.append_column(_ROW, pa.array(np.arange(documents.num_rows, dtype=np.int64)))


def _parsed(text: str) -> exp.Expr:
    try:
        made = sqlglot.parse_one(_PARSED.format(text), read="spark")
    except SqlglotError as error:
        raise _misread(text, error) from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError):
        raise pointing(
            text, 0, len(text), "this condition cannot be parsed", hint=_HINT, reason="not-parsed"
        ) from None
    where = made.args.get("where")
    others = {name for name, value in made.args.items() if value} - {"where", "expressions"}
    if where is None or others or not isinstance(where.this, exp.Paren):
        raise pointing(
            text, 0, len(text), "this is not a SQL condition", hint=_HINT, reason="not-a-condition"
        )
    condition: exp.Expr = where.this.unnest()
    return condition


def _misread(text: str, error: SqlglotError) -> StatementError:
    """Return the error for a text that cannot be parsed, pointing at the place of the mistake."""
    problem: dict[str, Any] = (getattr(error, "errors", None) or [{}])[0]
    marked, lines = str(problem.get("highlight") or ""), text.split("\n")
    place = (problem.get("line") or len(lines) + 2) - 2  # the condition starts on the second line
    start = len(text)
    if 0 <= place < len(lines):
        start = sum(len(one) + 1 for one in lines[:place]) + max(0, problem["col"] - len(marked))
    if start >= len(text):
        start, marked = len(text.rstrip()), ""
        return pointing(
            text, start, start + 1, "this SQL condition is incomplete", hint=_HINT, reason="incomplete"
        )
    return pointing(
        text, start, start + len(marked), "this is not a SQL condition", hint=_HINT, reason="not-a-condition"
    )


def _refuse(text: str, part: exp.Expr, message: str, hint: str | None = None, *, reason: str) -> NoReturn:
    start, end = part.meta.get("start"), part.meta.get("end")
    if start is None or end is None:
        raise pointing(text, 0, len(text), message, hint=hint, reason=reason)
    before = _PARSED.index("{")
    raise pointing(text, start - before, end + 1 - before, message, hint=hint, reason=reason)


def _node(part: exp.Expr, fields: Fields) -> Node:
    """Return a node that holds for every document that matches a condition; Everything if no such node is known."""
    part = part.unnest()
    if isinstance(part, exp.And | exp.Or):
        sides = tuple(_node(side, fields) for side in (part.left, part.right))
        if isinstance(part, exp.Or):
            return Everything() if any(isinstance(s, Everything) for s in sides) else Clauses(should=sides)
        known = tuple(side for side in sides if not isinstance(side, Everything))
        return Clauses(must=known) if known else Everything()
    if isinstance(part, exp.Between):
        return _between(part, fields)
    if isinstance(part, exp.In):
        return _among(part, fields)
    if not isinstance(part, exp.EQ | exp.GT | exp.GTE | exp.LT | exp.LTE):
        return Everything()
    kind: type[exp.Expr] = type(part)
    column, value = part.left.unnest(), part.right.unnest()
    if isinstance(value, exp.Column):
        kind, column, value = _FLIPPED[kind], value, column
    field, constant = _field(column, fields), _constant(value)
    if field is None or constant is None:
        return Everything()
    name, constant = field.name, _in_column_type(field, constant)
    if kind is exp.EQ:
        return fields.equals(name, constant)
    if kind in (exp.GT, exp.GTE):
        return fields.between(name, constant, None, low_in=kind is exp.GTE)
    return fields.between(name, None, constant, high_in=kind is exp.LTE)


def _between(part: exp.Between, fields: Fields) -> Node:
    field = _field(part.this.unnest(), fields)
    low, high = (_constant(part.args[end].unnest()) for end in ("low", "high"))
    if field is None or low is None or high is None:
        return Everything()
    return fields.between(field.name, _in_column_type(field, low), _in_column_type(field, high))


def _among(part: exp.In, fields: Fields) -> Node:
    field = _field(part.this.unnest(), fields)
    constants = [_constant(value.unnest()) for value in part.expressions]
    if field is None or not constants or any(constant is None for constant in constants):
        return Everything()
    nodes = tuple(fields.equals(field.name, _in_column_type(field, constant)) for constant in constants)
    return Everything() if any(isinstance(n, Everything) for n in nodes) else Clauses(should=nodes)


def _in_column_type(field: Field, constant: Any) -> Any:
    """Convert a constant to the type in which it is compared with a column: numbers become floats for float columns."""
    is_number = isinstance(constant, int | Decimal) and not isinstance(constant, bool)
    return float(constant) if field.kind == "float" and is_number else constant


def _field(column: exp.Expr, fields: Fields) -> Field | None:
    if not isinstance(column, exp.Column):
        return None
    return next((f for f in fields.columns if f.name.lower() == column.name.lower()), None)


def _constant(value: exp.Expr) -> Any:
    """Return the value of a SQL literal whose meaning does not depend on the type of the column it is compared with, or
    None."""
    if isinstance(value, exp.Neg):
        inner = _constant(value.this)
        return -inner if isinstance(inner, int | Decimal) and not isinstance(inner, bool) else None
    if isinstance(value, exp.Boolean):
        return bool(value.this)
    if isinstance(value, exp.Literal):
        if value.is_string:
            return str(value.this)
        return int(value.this) if str(value.this).isdigit() else _decimal(str(value.this))
    if isinstance(value, exp.Cast) and isinstance(value.this, exp.Literal) and value.this.is_string:
        return _moment(value)
    return None


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except ArithmeticError:  # such as 1.5D
        return None


def _moment(value: exp.Cast) -> dt.date | None:
    text = str(value.this.this)
    try:
        if value.is_type("date"):
            return dt.date.fromisoformat(text) if len(text) == 10 else None
        if value.is_type("timestamp", "timestamptz"):
            found = dt.datetime.fromisoformat(text)
            return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return None
