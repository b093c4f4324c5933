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
from headwater.runtime.planning.pattern_aggregates import Call, arguments_of, is_aggregate

AGGREGATES: dict[str, k.AggregateKind] = {
    "count": "count",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "min": "min",
    "max": "max",
}
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
class _Moved:
    """An expression that looks at how rows are classified, at a row that is navigated to."""

    of: Jvm
    at: k.Navigate


@dataclass(frozen=True)
class Argument:
    """What an aggregate is of: a column of the rows, or an expression that looks at how they are classified, too."""

    text: str
    column: int | None = None
    read: Read | None = field(default=None, compare=False)


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
        self.arguments: list[Argument] = []
        """What aggregates are of: an expression each, which comes before all others."""
        self.calls: dict[k.Aggregate, Call] = {}
        """Aggregates over lists of their arguments, as they were called."""

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
            if isinstance(made, _Moved):
                return self._there(made, read)
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
        return kind(e.aggregateFunction()).lower() if kind(e) == "AggregateExpression" else None

    def _arguments(self, e: Jvm) -> list[Jvm]:
        if kind(e) == "UnresolvedFunction":
            if e.isDistinct() or e.filter().isDefined():
                self._refuse(e, "DISTINCT and FILTER are for aggregates", hint="count(DISTINCT A.x)")
            return items(e.arguments())
        function = e.aggregateFunction()
        if function.ignoreNulls():
            self._refuse(e, "IGNORE NULLS is not there in patterns", hint="leave it out")
        return children_of(function)[:1]

    # --- inputs ----------------------------------------------------------------------------------------------------

    def _there(self, moved: _Moved, read: Read) -> Jvm:
        """An expression at a row that is navigated to; NULL if there is no such row, whatever it makes of NULLs."""
        is_there = module(self._c.expressions, "Literal").apply(True)
        seen = self._placed(replace(moved.at, column=self._columns.place(is_there)), read)
        value = self._row_by_row(moved.of, read, frozenset(), moved.at)
        return self._where(self._c.expressions.IsNotNull(seen), value)

    def _input(self, e: Jvm, called: str, is_condition: bool) -> k.Input | _Moved | None:
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
        return self._aggregate(e, called, is_final) if is_aggregate(self._c, e) else None

    def _is_final(self, e: Jvm, called: str, is_condition: bool) -> bool:
        start = option(e.origin().startIndex())
        is_final = None if start is None else self._prefixes.get(start)
        if is_final is None:
            return False
        if called not in _LOGICAL and not is_aggregate(self._c, e):
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
        return self._extracted(self._placed(k.Navigate(column, variables), read), rest[1:])

    def _extracted(self, value: Jvm, fields: Sequence[str]) -> Jvm:
        for name in fields:
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

    def _physical(self, e: Jvm, called: str, is_condition: bool) -> k.Input | _Moved:
        of, count = self._offset(e, called, default=1)
        inner = self._called(of)
        offset = _PHYSICAL[called] * count
        if inner in _LOGICAL:
            found = self._logical(of, inner or "", self._is_final(of, inner or "", is_condition))
            if isinstance(found, _Moved):
                return replace(found, at=replace(found.at, offset=offset))
            return replace(found, offset=offset)
        return self._navigated(of, e, k.Navigate(0, offset=offset))

    def _logical(self, e: Jvm, called: str, is_final: bool) -> k.Navigate | k.Classify | _Moved:
        of, nth = self._offset(e, called, default=0)
        if (inner := self._called(of)) in _PHYSICAL:
            self._refuse(
                e,
                f"{called.upper()} finds a row of the match, and {(inner or '').upper()} goes on from one",
                hint=f"the other way round: {(inner or '').upper()}({called.upper()}(A.x), 1)",
            )
        return self._navigated(of, e, k.Navigate(0, None, called, nth, final=is_final))  # type: ignore[arg-type]

    def _navigated(self, of: Jvm, whole: Jvm, at: k.Navigate) -> k.Navigate | k.Classify | _Moved:
        """A value at the row that is navigated to."""
        if self._is_classifier(of):
            return _classified_at(replace(at, variables=self._classified(of)))
        at = replace(at, variables=self._variables(of, whole))
        if self._looks_at_match(of) is not None:
            return _Moved(of, at)
        return _column_at(self._columns.place(self._stripped(of)), at)

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
        arguments = arguments_of(e)
        plain = kind(e) == "UnresolvedFunction"
        if plain and items(e.orderingWithinGroup()):
            self._refuse(e, "WITHIN GROUP is not there in patterns", hint="rows are in the order of ORDER BY")
        is_distinct = plain and e.isDistinct()
        condition = option(e.filter()) if plain else None
        if any(kind(of) == "UnresolvedStar" for of in arguments):
            return self._count_rows(e, called, is_final, is_distinct=is_distinct, condition=condition)
        looked = [*arguments, *([] if condition is None else [condition])]
        variables = self._variables_of(looked, e)
        if called in AGGREGATES and len(arguments) == 1 and not is_distinct:
            of = arguments[0]
            if (
                AGGREGATES[called] == "count"
                and condition is None
                and kind(of) == "Literal"
                and of.value() is not None
            ):
                return k.Aggregate("count", None, None, is_final)
            number = self._argument(self._where(condition, of))
            return k.Aggregate(AGGREGATES[called], variables, number, is_final)
        own = [place for place, of in enumerate(arguments) if self._looks(of)]
        literal = module(self._c.expressions, "Literal")
        fields = [arguments[place] for place in own] or [literal.apply(1)]
        element = fields[0]
        is_plain = len(own) == 1 and condition is None
        if not is_plain:
            named = [part for i, of in enumerate(fields) for part in (literal.apply(f"a{i}"), of)]
            element = self._where(condition, self._c.expressions.CreateNamedStruct(self._c.seq(named)))
        made = k.Aggregate("list", variables, self._argument(element), is_final, str(e.sql()))
        self.calls[made] = Call(e, tuple(own), is_plain, is_distinct, condition is not None)
        return made

    def _count_rows(
        self, e: Jvm, called: str, is_final: bool, *, is_distinct: bool, condition: Jvm | None
    ) -> k.Input:
        arguments = arguments_of(e)
        if called != "count" or is_distinct or len(arguments) != 1:
            self._refuse(
                e, "rows can be counted, and nothing else be done with all of a row", hint="count(A.*)"
            )
        target = option(arguments[0].target())
        variables = None
        if target is not None:
            variables = self._clause.variables(items(target)[0])
            if variables is None:
                self._refuse(e, f"{items(target)[0]!r} is no variable of the pattern", hint="count(A.*)")
        if condition is None:
            return k.Aggregate("count", variables, None, is_final)
        if any(met != variables for met in self._met([condition])):
            self._differ(e)
        one = module(self._c.expressions, "Literal").apply(1)
        return k.Aggregate("count", variables, self._argument(self._where(condition, one)), is_final)

    def _where(self, condition: Jvm | None, value: Jvm) -> Jvm:
        """A value if a condition holds, if there is one, else NULL."""
        if condition is None:
            return value
        pair = self._c.jvm.scala.Tuple2(condition, value)
        return self._c.expressions.CaseWhen(self._c.seq([pair]), self._c.none())

    def _argument(self, value: Jvm) -> int:
        """The number of what an aggregate is of."""
        if self._looks_at_match(value) is None:
            column = self._columns.place(self._stripped(value))
            made = Argument(f"column {column}", column)
        else:
            read = Read(value, value)
            read.expression = self._row_by_row(value, read, frozenset())
            made = Argument(str(read.expression.sql()), None, read)
        if made not in self.arguments:
            self.arguments.append(made)
        return self.arguments.index(made)

    def _row_by_row(self, e: Jvm, read: Read, bound: frozenset[str], at: k.Navigate | None = None) -> Jvm:
        """An expression over a row of a match, with inputs in the place of its columns and of how it is classified: its own, or
        those of the row that is navigated to."""
        name = kind(e)
        called = self._called(e)
        if called == "classifier":
            self._classified(e)
            return self._placed(_classified_at(at), read)
        if called == "match_number":
            return self._placed(k.MatchNumber(), read)
        if name in _NAMES and not (name == _NAMES[1] and items(e.nameParts())[0].lower() in bound):
            _, rest = self._split(e, items(e.nameParts()))
            column = self._columns.place(self._attribute(rest[:1]))
            return self._extracted(self._placed(_column_at(column, at), read), rest[1:])
        if name == "LambdaFunction":
            bound |= {items(a.nameParts())[0].lower() for a in items(e.arguments())}
            return e.copy(self._row_by_row(e.function(), read, bound, at), e.arguments(), e.hidden())
        children = children_of(e)
        changed = [self._row_by_row(c, read, bound, at) for c in children]
        if all(a is b for a, b in zip(children, changed, strict=True)):
            return e
        return e.withNewChildren(self._c.seq(changed))

    def _looks_at_match(self, e: Jvm) -> Jvm | None:
        return find(e, lambda e: self._called(e) in ("classifier", "match_number"))

    def _looks(self, e: Jvm) -> bool:
        """Whether an expression is another for each row."""
        return bool(_references(e)) or self._looks_at_match(e) is not None

    def _variables_of(self, looked: Sequence[Jvm], whole: Jvm) -> k.Variables:
        """The variable that everything an aggregate looks at is of; all rows, if it looks at none."""
        for e in looked:
            self._check_plain(e, whole)
        met = self._met(looked)
        if any(variables != met[0] for variables in met):
            self._differ(whole)
        return met[0] if met else None

    def _met(self, looked: Sequence[Jvm]) -> list[k.Variables]:
        met = [self._split(name, items(name.nameParts()))[0] for e in looked for name in self._columns_in(e)]
        return met + [self._classified(call) for e in looked for call in self._classifiers(e)]

    def _columns_in(self, e: Jvm) -> list[Jvm]:
        """The columns of an expression; what CLASSIFIER is of is none."""
        return [] if self._called(e) == "classifier" else _references(e, stop=self._is_classifier)

    def _is_classifier(self, e: Jvm) -> bool:
        return self._called(e) == "classifier"

    def _classifiers(self, e: Jvm) -> list[Jvm]:
        if self._is_classifier(e):
            return [e]
        return [found for child in children_of(e) for found in self._classifiers(child)]

    def _differ(self, whole: Jvm) -> NoReturn:
        self._refuse(
            whole,
            "its columns are of different variables, and so of different rows",
            hint="use one variable inside: FIRST(A.x) + FIRST(B.x)",
        )

    def _check_plain(self, e: Jvm, whole: Jvm) -> None:
        def navigates(e: Jvm) -> bool:
            return (self._called(e) or "") in {*_PHYSICAL, *_LOGICAL} or is_aggregate(self._c, e)

        if find(e, navigates) is not None:
            self._refuse(
                whole,
                "this looks at other rows inside of what looks at other rows",
                hint="FIRST(A.x) and sum(A.x) are of plain expressions over a row; PREV may be of FIRST or LAST",
            )

    def _variables(self, e: Jvm, whole: Jvm) -> k.Variables:
        """The variable that all columns of what is navigated to are of."""
        self._check_plain(e, whole)
        met = self._met([e])
        if not met:
            self._refuse(
                whole,
                "there is no column in it, which would say of what rows it is",
                hint="A.x is of the rows mapped to A",
            )
        if any(variables != met[0] for variables in met):
            self._differ(whole)
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


def _column_at(column: int, at: k.Navigate | None) -> k.Navigate:
    return k.Navigate(column) if at is None else replace(at, column=column)


def _classified_at(at: k.Navigate | None) -> k.Classify:
    return k.Classify() if at is None else k.Classify(at.variables, at.side, at.nth, at.offset, at.final)


def _references(
    e: Jvm, bound: frozenset[str] = frozenset(), stop: Callable[[Jvm], bool] = lambda e: False
) -> list[Jvm]:
    """The columns that an expression names, but not in parts where it is to stop."""
    if stop(e):
        return []
    if kind(e) == "UnresolvedAttribute":
        return [e]
    if kind(e) == "UnresolvedNamedLambdaVariable":
        return [] if items(e.nameParts())[0].lower() in bound else [e]
    if kind(e) == "LambdaFunction":
        bound |= {items(a.nameParts())[0].lower() for a in items(e.arguments())}
        return _references(e.function(), bound, stop)
    return [found for child in children_of(e) for found in _references(child, bound, stop)]


def text_of(part: Part, text: str) -> str:
    """An expression as it was written, on one line."""
    return " ".join(text[part.start : part.end].split())
