"""Names in expressions of MATCH_RECOGNIZE: pattern variables, columns of the rows, and row classifications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from headwater.operators.match_recognize import spec as k
from headwater.plan.match_recognize.pattern_aggregates import is_aggregate
from headwater.spark.catalyst import Catalyst, Jvm, children_of, find, items, kind, module
from headwater.sql.match_recognize_clause import MatchClause

NAMES = ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable")
"""Node kinds of references before Spark's analysis."""
PHYSICAL = {"prev": -1, "next": 1}
LOGICAL = ("first", "last")


class RowColumns:
    """The distinct columns of the matched rows: expressions over the relation, in the order of first use."""

    def __init__(self, names: Sequence[str]) -> None:
        self.expressions: list[Jvm] = []
        self._places: dict[str, int] = {}
        self._names = [name.lower() for name in names]

    def place(self, expression: Jvm) -> int:
        """Return the index of the column for an expression, adding a column if needed."""
        text = str(expression.sql())
        text = text.lower() if kind(expression) == "UnresolvedAttribute" else text
        if text not in self._places:
            self._places[text] = len(self.expressions)
            self.expressions.append(expression)
        return self._places[text]

    def has(self, name: str) -> bool:
        """Whether the relation has a column of this name."""
        return name.lower() in self._names


class PatternScope:
    """Names that the expressions of one clause can use."""

    def __init__(
        self, catalyst: Catalyst, clause: MatchClause, columns: RowColumns, refuse: Callable[..., NoReturn]
    ) -> None:
        self.catalyst = catalyst
        self.clause = clause
        self.columns = columns
        self.refuse = refuse
        self.analysis = catalyst.jvm.org.apache.spark.sql.catalyst.analysis

    def attribute(self, parts: Sequence[str]) -> Jvm:
        """Return an unresolved column reference."""
        return module(self.analysis, "UnresolvedAttribute").apply(self.catalyst.seq(parts))

    def split(self, e: Jvm, parts: list[str]) -> tuple[k.Variables, list[str]]:
        """Split a reference into its variable, or None, and the column followed by its fields."""
        if len(parts) > 1 and (variables := self.clause.variables(parts[0])) is not None:
            if not self.columns.has(parts[1]):
                self.refuse(
                    e,
                    f"the relation has no column {parts[1]!r}",
                    hint=None,
                    reason="unknown-column",
                    name=parts[1],
                )
            return variables, parts[1:]
        if not self.columns.has(parts[0]):
            known = ", ".join(self.clause.pattern.variables.values())
            reason = f"the relation has no column {parts[0]!r}"
            if len(parts) > 1:
                reason = f"{parts[0]!r} is neither a variable of the pattern nor a column"
            self.refuse(e, reason, hint=f"variables: {known}", reason="unknown-column", name=parts[0])
        return None, parts

    def extracted(self, value: Jvm, fields: Sequence[str]) -> Jvm:
        """Return a nested field of a value."""
        for name in fields:
            literal = module(self.catalyst.expressions, "Literal").apply(name)
            value = self.analysis.UnresolvedExtractValue(value, literal)
        return value

    def arguments(self, e: Jvm) -> list[Jvm]:
        """Return the arguments of a call that is no aggregate."""
        if kind(e) == "UnresolvedFunction":
            if e.isDistinct() or e.filter().isDefined():
                self.refuse(
                    e,
                    "DISTINCT and FILTER can only be used with aggregates",
                    hint="count(DISTINCT A.x)",
                    reason="distinct-filter",
                )
            return items(e.arguments())
        function = e.aggregateFunction()
        if function.ignoreNulls():
            self.refuse(
                e,
                "IGNORE NULLS is not supported in patterns",
                hint="leave IGNORE NULLS out",
                reason="ignore-nulls",
            )
        return children_of(function)[:1]

    def classified(self, e: Jvm) -> k.Variables:
        """Return the variables of a CLASSIFIER call; None for all variables."""
        arguments = self.arguments(e)
        if not arguments:
            return None
        parts = items(arguments[0].nameParts()) if kind(arguments[0]) == "UnresolvedAttribute" else []
        variables = self.clause.variables(parts[0]) if len(parts) == 1 and len(arguments) == 1 else None
        if variables is None:
            self.refuse(
                e,
                "CLASSIFIER takes a variable of the pattern or a SUBSET",
                hint="CLASSIFIER(), CLASSIFIER(A)",
                reason="classifier-argument",
            )
        return variables

    def variables(self, e: Jvm, whole: Jvm) -> k.Variables:
        """Return the variable of all columns in the operand of a navigation."""
        self.check_plain(e, whole)
        met = self.met([e])
        if not met:
            self.refuse(
                whole,
                "the expression has no column that determines its rows",
                hint="A.x refers to the rows mapped to A",
                reason="no-column",
            )
        if any(variables != met[0] for variables in met):
            self.differ(whole)
        return met[0]

    def variables_of(self, expressions: Sequence[Jvm], whole: Jvm) -> k.Variables:
        """Return the variable of everything that an aggregate reads; None, for all rows, if it reads no row."""
        for e in expressions:
            self.check_plain(e, whole)
        met = self.met(expressions)
        if any(variables != met[0] for variables in met):
            self.differ(whole)
        return met[0] if met else None

    def met(self, expressions: Sequence[Jvm]) -> list[k.Variables]:
        """Return the variables that expressions name, with columns or in CLASSIFIER."""
        met = [self.split(name, items(name.nameParts()))[0] for e in expressions for name in _columns_in(e)]
        return met + [self.classified(call) for e in expressions for call in _classifiers(e)]

    def differ(self, whole: Jvm) -> NoReturn:
        """Reject an expression over rows of several variables."""
        self.refuse(
            whole,
            "the columns of this expression belong to different variables",
            hint="use one variable inside: FIRST(A.x) + FIRST(B.x)",
            reason="several-variables",
        )

    def check_plain(self, e: Jvm, whole: Jvm) -> None:
        """Reject a navigation or aggregate inside of another one."""

        def navigates(e: Jvm) -> bool:
            return (called_name(e) or "") in {*PHYSICAL, *LOGICAL} or is_aggregate(self.catalyst, e)

        if find(e, navigates) is not None:
            self.refuse(
                whole,
                "navigation functions and aggregates cannot be nested here",
                hint="FIRST(A.x) and sum(A.x) take expressions over one row; PREV can contain FIRST or LAST",
                reason="nested-navigation",
            )

    def stripped(self, e: Jvm) -> Jvm:
        """Return an expression over a row, with variables removed from its column references."""

        def change(found: Jvm) -> Jvm | None:
            if kind(found) not in NAMES:
                return None
            parts = items(found.nameParts())
            if len(parts) < 2 or self.clause.variables(parts[0]) is None:
                return None
            return self.attribute(parts[1:])

        return self.catalyst.rewritten(e, change)

    def where(self, condition: Jvm | None, value: Jvm) -> Jvm:
        """Return a value that is NULL where the condition, if any, does not hold."""
        if condition is None:
            return value
        pair = self.catalyst.jvm.scala.Tuple2(condition, value)
        return self.catalyst.expressions.CaseWhen(self.catalyst.seq([pair]), self.catalyst.none())


def called_name(e: Jvm) -> str | None:
    """Return the name of the called function, or None if the expression is no call; Spark parses FIRST and LAST as its own
    functions."""
    if kind(e) == "UnresolvedFunction":
        parts = items(e.nameParts())
        return parts[0].lower() if len(parts) == 1 else None
    return kind(e.aggregateFunction()).lower() if kind(e) == "AggregateExpression" else None


def is_classifier(e: Jvm) -> bool:
    """Whether an expression is a call of CLASSIFIER."""
    return called_name(e) == "classifier"


def match_call(e: Jvm) -> Jvm | None:
    """Return the first call of CLASSIFIER or MATCH_NUMBER in an expression, or None."""
    return find(e, lambda e: called_name(e) in ("classifier", "match_number"))


def depends_on_row(e: Jvm) -> bool:
    """Whether the value of an expression depends on the row."""
    return bool(_references(e)) or match_call(e) is not None


def is_bound(e: Jvm, bound: frozenset[str]) -> bool:
    """Whether a reference names an argument of an enclosing lambda."""
    return kind(e) == NAMES[1] and items(e.nameParts())[0].lower() in bound


def arguments_named(e: Jvm) -> frozenset[str]:
    """Return the argument names of a lambda, in lower case."""
    return frozenset(items(a.nameParts())[0].lower() for a in items(e.arguments()))


def _columns_in(e: Jvm) -> list[Jvm]:
    """Return the columns of an expression; the argument of CLASSIFIER is not a column."""
    return [] if called_name(e) == "classifier" else _references(e, stop=is_classifier)


def _classifiers(e: Jvm) -> list[Jvm]:
    if is_classifier(e):
        return [e]
    return [found for child in children_of(e) for found in _classifiers(child)]


def _references(
    e: Jvm, bound: frozenset[str] = frozenset(), stop: Callable[[Jvm], bool] = lambda e: False
) -> list[Jvm]:
    """Return the column references in an expression, excluding subexpressions for which `stop` is true."""
    if stop(e):
        return []
    if kind(e) in NAMES:
        return [] if is_bound(e, bound) else [e]
    if kind(e) == "LambdaFunction":
        return _references(e.function(), bound | arguments_named(e), stop)
    return [found for child in children_of(e) for found in _references(child, bound, stop)]
