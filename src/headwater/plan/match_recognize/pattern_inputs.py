"""Inputs of expressions of MATCH_RECOGNIZE: the distinct values that they read from a match, numbered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headwater.operators.match_recognize import spec as k
from headwater.plan.match_recognize.pattern_aggregates import AggregateCall
from headwater.plan.match_recognize.pattern_scope import (
    NAMES,
    PatternScope,
    arguments_named,
    called_name,
    is_bound,
    match_call,
)
from headwater.spark.catalyst import Jvm, children_of, items, kind


@dataclass
class MatchRead:
    """An expression in which reads from the match are replaced by inputs."""

    expression: Jvm
    written: Jvm
    """The expression as parsed."""
    inputs: list[int] = field(default_factory=list)
    """Numbers of the inputs; an input is named by its number: `in0`."""


@dataclass(frozen=True)
class Argument:
    """The argument of an aggregate: a column of the rows, or an expression that also reads the classification of rows."""

    text: str
    column: int | None = None
    read: MatchRead | None = field(default=None, compare=False)


class PatternInputs:
    """The inputs of the expressions of a clause."""

    def __init__(self, scope: PatternScope) -> None:
        self._scope = scope
        self.inputs: list[k.Input] = []
        """Distinct inputs of all expressions."""
        self.arguments: list[Argument] = []
        """Arguments of aggregates; their expressions are numbered before all others."""
        self.calls: dict[k.PatternAggregate, AggregateCall] = {}
        """Calls of aggregates that take a list of their arguments."""

    def placed(self, made: k.Input, read: MatchRead) -> Jvm:
        """Return the column that has the values of an input."""
        if made not in self.inputs:
            self.inputs.append(made)
        number = self.inputs.index(made)
        read.inputs.append(number)
        return self._scope.attribute([f"in{number}"])

    def argument(self, value: Jvm) -> int:
        """Return the number of an aggregate's argument."""
        if match_call(value) is None:
            column = self._scope.columns.place(self._scope.stripped(value))
            made = Argument(f"column {column}", column)
        else:
            read = MatchRead(value, value)
            read.expression = self.row_by_row(value, read, frozenset())
            made = Argument(str(read.expression.sql()), None, read)
        if made not in self.arguments:
            self.arguments.append(made)
        return self.arguments.index(made)

    def row_by_row(self, e: Jvm, read: MatchRead, bound: frozenset[str], at: k.Navigate | None = None) -> Jvm:
        """Return an expression over a row of a match with its columns and classifications replaced by inputs: those of the
        row itself, or of the row navigated to."""
        name = kind(e)
        called = called_name(e)
        if called == "classifier":
            self._scope.classified(e)
            return self.placed(classified_at(at), read)
        if called == "match_number":
            return self.placed(k.MatchNumber(), read)
        if name in NAMES and not is_bound(e, bound):
            _, rest = self._scope.split(e, items(e.nameParts()))
            column = self._scope.columns.place(self._scope.attribute(rest[:1]))
            return self._scope.extracted(self.placed(column_at(column, at), read), rest[1:])
        if name == "LambdaFunction":
            body = self.row_by_row(e.function(), read, bound | arguments_named(e), at)
            return e.copy(body, e.arguments(), e.hidden())
        children = children_of(e)
        changed = [self.row_by_row(c, read, bound, at) for c in children]
        if all(a is b for a, b in zip(children, changed, strict=True)):
            return e
        return e.withNewChildren(self._scope.catalyst.seq(changed))


def column_at(column: int, at: k.Navigate | None) -> k.Navigate:
    """Return a column at the row of a match, or at the row navigated to."""
    return k.Navigate(column) if at is None else replace(at, column=column)


def classified_at(at: k.Navigate | None) -> k.Classify:
    """Return the classification of the row of a match, or of the row navigated to."""
    return k.Classify() if at is None else k.Classify(at.variables, at.side, at.nth, at.offset, at.final)
