"""What a SELECT reads and what it gives: relations, the sources of a FROM, and finished queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.equation.grammar.choice import Chooser, Option
from tests.equation.grammar.expressions import Expression, Expressions, Scope
from tests.equation.grammar.model import Column


@dataclass(frozen=True)
class Relation:
    """A topic, a view or a common table expression. `rows` is a guess, `depth` counts the views down to topics."""

    name: str
    columns: tuple[Column, ...]
    rows: float
    depth: int = 0
    common: bool = False


@dataclass(frozen=True)
class Source:
    """One entry of FROM: the text with its alias, the columns, and about how many rows."""

    sql: str
    alias: str
    scope: Scope
    rows: float
    name: str


@dataclass(frozen=True)
class Query:
    """A SELECT and the columns that it gives."""

    sql: str
    columns: tuple[Column, ...]
    rows: float


class Outputs:
    """Gathers the output list of a SELECT, each expression under a name of its own."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._items: list[tuple[Expression, Column]] = []

    def add(self, *expressions: Expression) -> None:
        """Further outputs."""
        for expression in expressions:
            self._items.append((expression, expression.named(f"c{len(self._items) + 1}")))

    @property
    def sql(self) -> str:
        """The list after SELECT."""
        return ", ".join(f"{expression.sql} AS {column.name}" for expression, column in self._items)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns."""
        return tuple(column for _, column in self._items)

    def query(self, template: str, rows: float) -> Query:
        """The SELECT, with `{}` in the template for its list."""
        return Query(template.replace("{}", self.sql, 1), self.columns, rows)


def projection(
    chooser: Chooser, scope: Scope, *, exact: bool = False, low: int = 2, high: int = 4
) -> list[Expression]:
    """Some columns as they are, some expressions; with `exact`, none that has only a tolerance."""
    expressions = Expressions(chooser, scope)
    columns = scope.exact if exact else scope.references
    made: list[Expression] = []
    wanted = chooser.rng.randint(low, high)
    fresh = chooser.some(columns, 1, wanted)
    while len(made) < wanted:
        options: list[Option[Expression]] = [
            (None, 6, lambda: fresh.pop() if fresh else chooser.one(columns)),
            (None, 5, lambda: expressions.any(2)),
        ]
        made.append(chooser.make(options))
    return made


def of_kinds(chooser: Chooser, scope: Scope, kinds: Sequence[str]) -> list[Expression]:
    """An expression of each of these types."""
    expressions = Expressions(chooser, scope)
    return [expressions.of(kind, 1) for kind in kinds]


def merged(first: Iterable[Column], second: Iterable[Column]) -> tuple[Column, ...]:
    """The columns of a set operation: the names of the first, what holds for both."""
    return tuple(
        Column(
            a.name,
            a.kind,
            max(a.bound, b.bound),
            a.exact and b.exact,
            a.floats if a.floats == b.floats else "",
        )
        for a, b in zip(first, second, strict=True)
    )
