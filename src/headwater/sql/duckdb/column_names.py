"""Name resolution by Spark's rules: case-insensitive, a relation's qualifier takes precedence over a struct's field.

This module depends neither on the SQL parser nor on DuckDB; ambiguous and unknown names are declined, since Spark has the
error messages for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from headwater.sql.duckdb.typed_sql import Value, decline, is_known

Visibility = Literal["open", "system", "merged"]
"""`system` columns are found by name but are no part of `*`; `merged` columns were replaced by a USING column."""


@dataclass
class Scan:
    """A scan of a topic or view in a query: the columns it uses, and constants that some columns must equal."""

    relation: str
    schema: pa.Schema
    label: str
    used: set[int] = field(default_factory=set)
    equal: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScopedColumn:
    """A column in scope; a column of a scan, by position, or a computed one."""

    name: str
    qualifier: str | None
    sql: str
    kind: pa.DataType
    visibility: Visibility = "open"
    scan: Scan | None = None
    position: int = 0

    def use(self) -> None:
        """Record that the query uses the column."""
        if self.scan is not None:
            self.scan.used.add(self.position)

    def is_(self, name: str) -> bool:
        """Whether the column has a name, qualifiers aside."""
        return self.name.lower() == name.lower()

    def of(self, qualifier: str) -> bool:
        """Whether the column belongs to the relation of that name."""
        return self.qualifier is not None and self.qualifier.lower() == qualifier.lower()


@dataclass(frozen=True)
class Reference:
    """A resolved dotted name: a column, and the path of struct fields below it, as typed."""

    column: ScopedColumn
    typed: str
    fields: tuple[str, ...]

    def value(self, root: str | None = None) -> Value:
        """Return the value of the reference; `root` is SQL for the column's value if it differs from the column itself."""
        self.column.use()
        sql, kind = root or self.column.sql, self.column.kind
        if not is_known(kind):
            decline(f"column {self.column.name!r} of type {kind}")
        for part in self.fields:
            position = _field(kind, part)
            # By position, so that a field's name never reaches DuckDB.
            sql = f"struct_extract_at({sql}, {position + 1})"
            kind = kind.field(position).type
        name = ".".join((self.typed, *self.fields))
        return Value(sql, kind, name, self.fields[-1] if self.fields else self.typed)


def _field(kind: pa.DataType, name: str) -> int:
    if not pa.types.is_struct(kind):
        decline(f"field {name!r} of {kind}")
    found = [i for i in range(kind.num_fields) if kind.field(i).name.lower() == name.lower()]
    if len(found) != 1:
        decline(f"field {name}, which is missing or ambiguous")
    return found[0]


def resolve(columns: Sequence[ScopedColumn], parts: Sequence[str]) -> Reference:
    """Return the column that `a`, `t.a`, `a.field` or `t.a.field` refers to."""
    if len(parts) > 1:
        found = [c for c in columns if c.of(parts[0]) and c.is_(parts[1])]
        if found:
            return Reference(_single(found, parts), parts[1], tuple(parts[2:]))
    found = [c for c in columns if c.visibility == "open" and c.is_(parts[0])]
    found = found or [c for c in columns if c.visibility == "system" and c.is_(parts[0])]
    return Reference(_single(found, parts), parts[0], tuple(parts[1:]))


def _single(found: Sequence[ScopedColumn], parts: Sequence[str]) -> ScopedColumn:
    if len(found) != 1:
        decline(f"the name {'.'.join(parts)!r}, which {'is ambiguous' if found else 'is not known'}")
    return found[0]


def star(columns: Sequence[ScopedColumn], qualifier: str | None) -> list[ScopedColumn]:
    """Return the columns of `*` or of `qualifier.*`."""
    if qualifier is None:
        return [c for c in columns if c.visibility == "open"]
    found = [c for c in columns if c.of(qualifier) and c.visibility != "system"]
    if not found or any(c.visibility == "merged" for c in found):
        decline(f"{qualifier}.*")
    return found
