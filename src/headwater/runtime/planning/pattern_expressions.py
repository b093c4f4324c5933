"""Expressions of MATCH_RECOGNIZE: what they look at in a match becomes columns, and what is left of them is Spark's.

    B.price < 0.9 * FIRST(A.price) AND sum(B.volume) > 100

is `in0 < 0.9 * in1 AND in2 > 100`, where `in0` is the price of the last row mapped to B, `in1` that of the first one mapped
to A, and `in2` a sum over the rows mapped to B. What a navigation or an aggregate is of is an expression over a row alone,
and a column of the rows that are matched: Spark computes it below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from headwater.operators.patterns import spec as k
from headwater.queries.matches import MatchClause, Part
from headwater.runtime.planning.catalyst import Catalyst, Jvm, children_of, find, items, kind, module, option

AGGREGATES = {"count": "count", "sum": "sum", "avg": "avg", "mean": "avg", "min": "min", "max": "max"}
_PHYSICAL = {"prev": -1, "next": 1}
_LOGICAL = ("first", "last")
_SUBQUERIES = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "InSubquery")
_NAMES = ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable")
_OFFSET_MAX = 1 << 20


@dataclass
class Read:
    """An expression with its inputs in the place of what looks at a match."""

    expression: Jvm
    written: Jvm
    """As it was parsed."""
    inputs: list[int] = field(default_factory=list)
    """Numbers of inputs, by which they are called: `in0`."""


@dataclass(frozen=True)
class _Value:
    """What a navigation or an aggregate is of: a column of the rows, or how they are classified."""

    column: int | None
    variables: k.Variables


class RowColumns:
    """The columns of the rows that are matched, each once: expressions over the relation, in the order they are met."""

    def __init__(self, names: Sequence[str]) -> None:
        self.expressions: list[Jvm] = []
        self._places: dict[str, int] = {}
        self._names = [name.lower() for name in names]

    def place(self, expression: Jvm) -> int:
        """Which column an expression is, which may become one now."""
        text = str(expression.sql())
        text = text.lower() if kind(expression) == "UnresolvedAttribute" else text
        if text not in self._places:
            self._places[text] = len(self.expressions)
            self.expressions.append(expression)
        return self._places[text]

    def has(self, name: str) -> bool:
        """Whether the relation has a column of this name."""
        return name.lower() in self._names


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
        """`prefixes`: by where a call begins, whether FINAL, or RUNNING, stands before it."""
        self._c = catalyst
        self._clause = clause
        self._columns = columns
        self._prefixes = prefixes
        self._refuse = refuse
        self._analysis = catalyst.jvm.org.apache.spark.sql.catalyst.analysis
        self.inputs: list[k.Input] = []
        """Everything that expressions look at, each once."""
        self.arguments: list[int] = []
        """The columns that aggregates are of: an expression each, which comes before all others."""

    def read(self, expression: Jvm, *, is_condition: bool) -> Read:
        """An expression as it was parsed."""
        made = Read(expression, expression)
        made.expression = self._visit(expression, made, is_condition, frozenset())
        made.inputs = list(dict.fromkeys(made.inputs))
        return made

    # --- the tree --------------------------------------------------------------------------------------------------

    def _visit(self, e: Jvm, read: Read, is_condition: bool, bound: frozenset[str]) -> Jvm:
        name = kind(e)
        if name in _SUBQUERIES:
            self._refuse(
                e,
                "a pattern looks at rows of its relation alone",
                hint="join the relation with it before: FROM (SELECT ...)",
            )
        if name in ("WindowExpression", "UnresolvedWindowExpression"):
            self._refuse(
                e,
                "a pattern has no windows",
                hint="use PREV, NEXT, FIRST, LAST, or an aggregate of a variable",
            )
        if name in _NAMES and not (name == _NAMES[1] and items(e.nameParts())[0].lower() in bound):
            return self._column(e, read, is_condition)
        if (called := self._called(e)) is not None:
            made = self._input(e, called, is_condition)
            if made is not None:
                return self._placed(made, read)
        if name == "LambdaFunction":
            bound |= {items(a.nameParts())[0].lower() for a in items(e.arguments())}
            body = self._visit(e.function(), read, is_condition, bound)
            return e if body is e.function() else e.copy(body, e.arguments(), e.hidden())
        children = children_of(e)
        changed = [self._visit(c, read, is_condition, bound) for c in children]
        if all(a is b for a, b in zip(children, changed, strict=True)):
            return e
        return e.withNewChildren(self._c.seq(changed))

    def _placed(self, made: k.Input, read: Read) -> Jvm:
        """The column that has the values of an input."""
        if made not in self.inputs:
            self.inputs.append(made)
        number = self.inputs.index(made)
        read.inputs.append(number)
        return self._attribute([f"in{number}"])

    def _attribute(self, parts: Sequence[str]) -> Jvm:
        return module(self._analysis, "UnresolvedAttribute").apply(self._c.seq(parts))

    def _called(self, e: Jvm) -> str | None:
        """The name that an expression is a call of; Spark reads FIRST and LAST as its own functions."""
        if kind(e) == "UnresolvedFunction":
            parts = items(e.nameParts())
            return parts[0].lower() if len(parts) == 1 else None
        if kind(e) == "AggregateExpression" and kind(e.aggregateFunction()).lower() in _LOGICAL:
            return kind(e.aggregateFunction()).lower()
        return None

    def _arguments(self, e: Jvm) -> list[Jvm]:
        if kind(e) == "UnresolvedFunction":
            if e.isDistinct() or e.filter().isDefined():
                self._refuse(
                    e,
                    "DISTINCT and FILTER are not there for aggregates over variables",
                    hint="sum(CASE WHEN A.x > 0 THEN A.x END)",
                )
            return items(e.arguments())
        function = e.aggregateFunction()
        if function.ignoreNulls():
            self._refuse(e, "IGNORE NULLS is not there in patterns", hint="leave it out")
        return children_of(function)[:1]

    # --- inputs ----------------------------------------------------------------------------------------------------

    def _input(self, e: Jvm, called: str, is_condition: bool) -> k.Input | None:
        is_final = self._is_final(e, called, is_condition)
        match called:
            case "prev" | "next":
                return self._physical(e, called, is_condition)
            case "first" | "last":
                return self._logical(e, called, is_final)
            case "classifier":
                return k.Classify(self._classified(e))
            case "match_number":
                if self._arguments(e):
                    self._refuse(e, "MATCH_NUMBER takes no arguments", hint="MATCH_NUMBER()")
                return k.MatchNumber()
            case _ if called in AGGREGATES:
                return self._aggregate(e, called, is_final)
        return None

    def _is_final(self, e: Jvm, called: str, is_condition: bool) -> bool:
        start = option(e.origin().startIndex())
        is_final = None if start is None else self._prefixes.get(start)
        if is_final is None:
            return False
        if called not in (*_LOGICAL, *AGGREGATES):
            self._refuse(
                e,
                "RUNNING and FINAL belong before FIRST, LAST and aggregates",
                hint="FINAL LAST(A.x), FINAL sum(A.x)",
            )
        if is_final and is_condition:
            self._refuse(
                e,
                "a condition is asked before the match is over: there is no FINAL in DEFINE",
                hint="leave FINAL out",
            )
        return is_final

    def _column(self, e: Jvm, read: Read, is_condition: bool) -> Jvm:
        """A plain reference: of the last row mapped to a variable, or of the last row at all."""
        parts = items(e.nameParts())
        variables, rest = self._split(e, parts)
        column = self._columns.place(self._attribute(rest[:1]))
        value = self._placed(k.Navigate(column, variables), read)
        for name in rest[1:]:
            literal = module(self._c.expressions, "Literal").apply(name)
            value = self._analysis.UnresolvedExtractValue(value, literal)
        return value

    def _split(self, e: Jvm, parts: list[str]) -> tuple[k.Variables, list[str]]:
        """The variable of a reference, and the column with the fields of it that are meant."""
        if len(parts) > 1 and (variables := self._clause.variables(parts[0])) is not None:
            if not self._columns.has(parts[1]):
                self._refuse(e, f"the rows that are matched have no column {parts[1]!r}", hint=None)
            return variables, parts[1:]
        if not self._columns.has(parts[0]):
            known = ", ".join(self._clause.pattern.variables.values())
            reason = f"the rows that are matched have no column {parts[0]!r}"
            if len(parts) > 1:
                reason = f"{parts[0]!r} is neither a variable of the pattern nor a column"
            self._refuse(e, reason, hint=f"variables are {known}")
        return None, parts

    def _physical(self, e: Jvm, called: str, is_condition: bool) -> k.Input:
        of, count = self._offset(e, called, default=1)
        inner = self._called(of)
        offset = _PHYSICAL[called] * count
        if inner in _LOGICAL:
            found = self._logical(of, inner or "", self._is_final(of, inner or "", is_condition))
            assert isinstance(found, k.Navigate | k.Classify)
            return replace(found, offset=offset)
        value = self._value(of, e)
        if value.column is None:
            return k.Classify(value.variables, offset=offset)
        return k.Navigate(value.column, value.variables, offset=offset)

    def _logical(self, e: Jvm, called: str, is_final: bool) -> k.Input:
        of, nth = self._offset(e, called, default=0)
        if (inner := self._called(of)) in _PHYSICAL:
            self._refuse(
                e,
                f"{called.upper()} finds a row of the match, and {(inner or '').upper()} goes on from one",
                hint=f"the other way round: {(inner or '').upper()}({called.upper()}(A.x), 1)",
            )
        value = self._value(of, e)
        if value.column is None:
            return k.Classify(value.variables, called, nth, final=is_final)  # type: ignore[arg-type]
        return k.Navigate(value.column, value.variables, called, nth, final=is_final)  # type: ignore[arg-type]

    def _offset(self, e: Jvm, called: str, default: int) -> tuple[Jvm, int]:
        arguments = self._arguments(e)
        if len(arguments) not in (1, 2):
            self._refuse(
                e,
                f"{called.upper()} takes a value and how many rows away it is",
                hint=f"{called.upper()}(A.x, 1)",
            )
        if len(arguments) == 1:
            return arguments[0], default
        number = arguments[1]
        value = number.value() if kind(number) == "Literal" else None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _OFFSET_MAX:
            self._refuse(
                number, "how many rows away is a number, not less than 0", hint=f"{called.upper()}(A.x, 1)"
            )
        return arguments[0], value

    def _value(self, e: Jvm, whole: Jvm) -> _Value:
        """What a navigation is of."""
        if self._called(e) == "classifier":
            return _Value(None, self._classified(e))
        variables = self._variables(e, whole)
        return _Value(self._columns.place(self._stripped(e)), variables)

    def _classified(self, e: Jvm) -> k.Variables:
        arguments = self._arguments(e)
        if not arguments:
            return None
        parts = items(arguments[0].nameParts()) if kind(arguments[0]) == "UnresolvedAttribute" else []
        variables = self._clause.variables(parts[0]) if len(parts) == 1 and len(arguments) == 1 else None
        if variables is None:
            self._refuse(
                e,
                "CLASSIFIER takes a variable of the pattern or a SUBSET",
                hint="CLASSIFIER(), CLASSIFIER(A)",
            )
        return variables

    def _aggregate(self, e: Jvm, called: str, is_final: bool) -> k.Input:
        arguments = self._arguments(e)
        function = AGGREGATES[called]
        if len(arguments) != 1:
            self._refuse(e, f"{called} takes one value", hint=f"{called}(A.x)")
        of = arguments[0]
        if kind(of) == "UnresolvedStar":
            target = option(of.target())
            variables = None
            if target is not None:
                variables = self._clause.variables(items(target)[0])
                if variables is None:
                    self._refuse(e, f"{items(target)[0]!r} is no variable of the pattern", hint="count(A.*)")
            return k.Aggregate("count", variables, None, is_final)
        if function == "count" and kind(of) == "Literal" and of.value() is not None:
            return k.Aggregate("count", None, None, is_final)
        variables = self._variables(of, e)
        column = self._columns.place(self._stripped(of))
        if column not in self.arguments:
            self.arguments.append(column)
        number = self.arguments.index(column)
        return k.Aggregate(function, variables, number, is_final)  # type: ignore[arg-type]

    def _variables(self, e: Jvm, whole: Jvm) -> k.Variables:
        """The variable that all columns of an expression are of."""
        if find(e, lambda e: (self._called(e) or "") in {*_PHYSICAL, *_LOGICAL, *AGGREGATES}) is not None:
            self._refuse(
                whole,
                "this looks at other rows inside of what looks at other rows",
                hint="FIRST(A.x) and sum(A.x) are of plain expressions over a row; PREV may be of FIRST or LAST",
            )
        if (found := find(e, lambda e: self._called(e) in ("classifier", "match_number"))) is not None:
            self._refuse(
                found,
                f"{(self._called(found) or '').upper()} cannot be part of what is navigated to",
                hint="LAST(CLASSIFIER(), 1)",
            )
        met = [self._split(name, items(name.nameParts()))[0] for name in _references(e)]
        if not met:
            self._refuse(
                whole,
                "there is no column in it, which would say of what rows it is",
                hint="A.x is of the rows mapped to A",
            )
        if any(variables != met[0] for variables in met):
            self._refuse(
                whole,
                "its columns are of different variables, and so of different rows",
                hint="use one variable inside: FIRST(A.x) + FIRST(B.x)",
            )
        return met[0]

    def _stripped(self, e: Jvm) -> Jvm:
        """An expression over a row: columns without their variables."""

        def change(found: Jvm) -> Jvm | None:
            if kind(found) not in _NAMES:
                return None
            parts = items(found.nameParts())
            if len(parts) < 2 or self._clause.variables(parts[0]) is None:
                return None
            return self._attribute(parts[1:])

        return self._c.rewritten(e, change)


def _references(e: Jvm, bound: frozenset[str] = frozenset()) -> list[Jvm]:
    """The columns that an expression names."""
    if kind(e) == "UnresolvedAttribute":
        return [e]
    if kind(e) == "UnresolvedNamedLambdaVariable":
        return [] if items(e.nameParts())[0].lower() in bound else [e]
    if kind(e) == "LambdaFunction":
        bound |= {items(a.nameParts())[0].lower() for a in items(e.arguments())}
        return _references(e.function(), bound)
    return [found for child in children_of(e) for found in _references(child, bound)]


def text_of(part: Part, text: str) -> str:
    """An expression as it was written, on one line."""
    return " ".join(text[part.start : part.end].split())
