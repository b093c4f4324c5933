"""Expressions of MATCH_RECOGNIZE: values that they read from a match become columns, and Spark evaluates the remaining
expression.

    B.price < 0.9 * FIRST(A.price) AND sum(B.volume) > 100

becomes `in0 < 0.9 * in1 AND in2 > 100`, where `in0` is the price of the last row mapped to B, `in1` that of the first row
mapped to A, and `in2` a sum over the rows mapped to B. The operand of a navigation or an aggregate is an expression over a
single row, and becomes a column of the matched rows, which Spark computes below the match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from headwater.operators.match_recognize import spec as k
from headwater.plan.match_recognize.pattern_aggregates import is_aggregate
from headwater.plan.match_recognize.pattern_calls import PatternAggregates
from headwater.plan.match_recognize.pattern_inputs import (
    MatchRead,
    PatternInputs,
)
from headwater.plan.match_recognize.pattern_navigation import Navigated, PatternNavigation
from headwater.plan.match_recognize.pattern_scope import (
    NAMES,
    PatternScope,
    RowColumns,
    arguments_named,
    called_name,
    is_bound,
)
from headwater.spark.catalyst import Catalyst, Jvm, children_of, items, kind, module
from headwater.sql.match_recognize_clause import MatchClause

_SUBQUERIES = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "InSubquery")


class ExpressionReader:
    """Reads the expressions of one clause."""

    def __init__(
        self,
        catalyst: Catalyst,
        clause: MatchClause,
        columns: RowColumns,
        prefixes: dict[int, bool],
        refuse: Callable[..., NoReturn],
    ) -> None:
        """`prefixes` maps the start of a call to whether FINAL (true) or RUNNING (false) precedes it."""
        self._scope = PatternScope(catalyst, clause, columns, refuse)
        self.found = PatternInputs(self._scope)
        """Inputs of the expressions that were read."""
        self._navigation = PatternNavigation(self._scope, prefixes)
        self._aggregates = PatternAggregates(self._scope, self.found)

    def read(self, expression: Jvm, *, is_condition: bool) -> MatchRead:
        """Read a parsed expression."""
        made = MatchRead(expression, expression)
        made.expression = self._visit(expression, made, is_condition, frozenset())
        made.inputs = list(dict.fromkeys(made.inputs))
        return made

    def _visit(self, e: Jvm, read: MatchRead, is_condition: bool, bound: frozenset[str]) -> Jvm:
        name = kind(e)
        if name in _SUBQUERIES:
            self._scope.refuse(
                e,
                "a pattern can read only rows of its relation",
                hint="join before MATCH_RECOGNIZE: FROM (SELECT ...)",
                reason="subquery-in-pattern",
            )
        if name in ("WindowExpression", "UnresolvedWindowExpression"):
            self._scope.refuse(
                e,
                "window functions are not supported in patterns",
                hint="use PREV, NEXT, FIRST, LAST, or an aggregate of a variable",
                reason="window-in-pattern",
            )
        if name in NAMES and not is_bound(e, bound):
            return self._column(e, read, is_condition)
        if (called := called_name(e)) is not None:
            made = self._input(e, called, is_condition)
            if isinstance(made, Navigated):
                return self._there(made, read)
            if made is not None:
                return self.found.placed(made, read)
        if name == "LambdaFunction":
            body = self._visit(e.function(), read, is_condition, bound | arguments_named(e))
            return e if body is e.function() else e.copy(body, e.arguments(), e.hidden())
        children = children_of(e)
        changed = [self._visit(c, read, is_condition, bound) for c in children]
        if all(a is b for a, b in zip(children, changed, strict=True)):
            return e
        return e.withNewChildren(self._scope.catalyst.seq(changed))

    def _there(self, moved: Navigated, read: MatchRead) -> Jvm:
        """Return an expression at a navigated row; NULL if there is no such row, however the expression treats NULLs."""
        is_there = module(self._scope.catalyst.expressions, "Literal").apply(True)
        seen = self.found.placed(replace(moved.at, column=self._scope.columns.place(is_there)), read)
        value = self.found.row_by_row(moved.of, read, frozenset(), moved.at)
        return self._scope.where(self._scope.catalyst.expressions.IsNotNull(seen), value)

    def _input(self, e: Jvm, called: str, is_condition: bool) -> k.Input | Navigated | None:
        is_final = self._navigation.is_final(e, called, is_condition)
        match called:
            case "prev" | "next":
                return self._navigation.physical(e, called, is_condition)
            case "first" | "last":
                return self._navigation.logical(e, called, is_final)
            case "classifier":
                return k.Classify(self._scope.classified(e))
            case "match_number":
                if self._scope.arguments(e):
                    self._scope.refuse(
                        e,
                        "MATCH_NUMBER takes no arguments",
                        hint="MATCH_NUMBER()",
                        reason="match-number-arguments",
                    )
                return k.MatchNumber()
        return (
            self._aggregates.aggregate(e, called, is_final) if is_aggregate(self._scope.catalyst, e) else None
        )

    def _column(self, e: Jvm, read: MatchRead, is_condition: bool) -> Jvm:
        """Return a plain column reference: of the last row mapped to the variable, or of the last row of the match."""
        parts = items(e.nameParts())
        variables, rest = self._scope.split(e, parts)
        column = self._scope.columns.place(self._scope.attribute(rest[:1]))
        return self._scope.extracted(self.found.placed(k.Navigate(column, variables), read), rest[1:])
