"""What MATCH_RECOGNIZE asks for, as the kernels take it: pattern, conditions, measures, and what is shown of a match.

Expressions are evaluated by who made them: a kernel hands over columns for their *inputs*, one row for each time that the
expression is asked for, and takes the column of results. An input says where its value is found:

- `Navigate`: a column of one row of the match, or of a row so many before or after that one. The row is the first or
  last of those mapped to some variables, or the n-th from there. A plain reference to a column is the last row of all;
  in DEFINE that is the row in question, which counts as mapped to the variable that it is asked for.
- `Classify`: the variable that such a row is mapped to.
- `PatternAggregate`: the buffer of an aggregate function (see `functions`) over the rows mapped to some variables.
- `MatchNumber`: which match of its partition it is, counted from 1, empty ones too.

*Running* looks at the match up to the current row, *final* at all of it. In DEFINE everything is running; with one row
per match the current row is the last one.

A condition whose inputs all are the row itself, or lie at a fixed distance from it, is evaluated once for all rows: a
*symbol*. It is so asked for rows, too, that no match ever reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import pyarrow as pa

from headwater.operators.aggregate import aggregate_functions
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.match_recognize.pattern import Pattern, variables
from headwater.operators.zset.collation import ColumnOrder

Variables = frozenset[str] | None
"""Some variables: one, or those of a SUBSET. None is all of them."""

Evaluate = Callable[[int, pa.RecordBatch, int], pa.Array]
"""Evaluates the expression of this number over its inputs, of so many rows; a batch without columns keeps no count."""

AggregateKind = Literal["count", "sum", "avg", "min", "max", "list"]

CLOSES = "closes"
"""The column, the last of all if it is asked for, that says when a row of the output is final."""
NEVER = 2**63 - 1
"""What `closes` says as long as only a row that is not there yet can settle it."""
WORK_MAX = 1_000_000
"""Steps that matching may take in one partition, and as many more for each of its rows as `WORK_ROW_MAX` says."""
WORK_ROW_MAX = 200


@dataclass(frozen=True)
class Navigate:
    """A column of a row of the match; NULL if there is no such row.

    `nth` counts from the first row forwards, from the last one backwards, among those mapped to the variables; `offset`
    goes from there to any row of the partition: -1 is the one before (PREV), 1 the one after (NEXT).
    """

    column: int
    variables: Variables = None
    side: Literal["first", "last"] = "last"
    nth: int = 0
    offset: int = 0
    final: bool = False


@dataclass(frozen=True)
class Classify:
    """The variable that a row of the match is mapped to; NULL outside of it. The row is found as by `Navigate`."""

    variables: Variables = None
    side: Literal["first", "last"] = "last"
    nth: int = 0
    offset: int = 0
    final: bool = False


@dataclass(frozen=True)
class PatternAggregate:
    """The buffer columns of a function over the rows mapped to the variables, in place of one input as many as it has.

    `argument` is the number of an expression whose inputs are columns of the row, its variable and the number of the match
    alone; None counts rows. A `list` has the argument of every row, in their order: what becomes of it is up to the
    expression, of which `function` tells one from another.
    """

    kind: AggregateKind
    variables: Variables = None
    argument: int | None = None
    final: bool = False
    function: str = ""


@dataclass(frozen=True)
class MatchNumber:
    """Which match of its partition it is, counted from 1."""


Input = Navigate | Classify | PatternAggregate | MatchNumber


@dataclass(frozen=True)
class PatternExpression:
    """What an expression looks at, and the type of its result."""

    inputs: tuple[Input, ...]
    type: pa.DataType


@dataclass(frozen=True)
class Skip:
    """Where the search goes on after a match that has rows; after an empty one, at the next row.

    `variables` belongs to the last two: the first or last row that is mapped to them.
    """

    kind: Literal["past last row", "to next row", "to first", "to last"] = "past last row"
    variables: Variables = None


Shows = Literal["column", "measure", "timed out"]


@dataclass(frozen=True)
class Shown:
    """A column of the output: one of the input or a measure, by number; or whether the row is a match that ran out of
    time. With one row per match, columns of the input are those of its first row."""

    name: str
    what: Shows
    number: int = 0


RowsPerMatch = Literal["one", "all", "all, omit empty", "all, with unmatched"]


@dataclass(frozen=True, eq=False)
class MatchSpec:
    """What is looked for, in which rows, and what is shown."""

    schema: pa.Schema
    partition: tuple[int, ...]
    order: tuple[ColumnOrder, ...]
    """Rows that it leaves tied go by their other columns (see `collation`)."""
    pattern: Pattern
    text: str
    """The pattern as it was written, for errors."""
    expressions: tuple[PatternExpression, ...]
    conditions: Mapping[str, tuple[int, ...]]
    """The expressions that must all be true of a row, by variable. Those that are symbols are looked at first."""
    measures: tuple[int, ...]
    """Their expressions."""
    shown: tuple[Shown, ...]
    rows: RowsPerMatch = "one"
    skip: Skip = field(default_factory=Skip)
    within: int | None = None
    """The time of a match, in microseconds: its last row lies less than that after its first."""
    time: int | None = None
    """The column of a timestamp by which `order` begins, ascending; needed for `within` and `closing`."""
    timeouts: bool = False
    """Show also, as a row each, matches that had begun, and would have gone on, when their time was over."""
    closing: bool = False
    """Append when each row of the output is final: no row at that time or later can change it."""
    work_max: int = WORK_MAX

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Those of the pattern, by number."""
        return variables(self.pattern)

    @cached_property
    def output(self) -> pa.Schema:
        """The schema of the output."""
        fields = [pa.field(shown.name, self._type_of(shown)) for shown in self.shown]
        if self.closing:
            fields.append(pa.field(CLOSES, pa.int64()))
        return pa.schema(fields)

    def _type_of(self, shown: Shown) -> pa.DataType:
        match shown.what:
            case "column":
                return self.schema.field(shown.number).type
            case "measure":
                return self.expressions[self.measures[shown.number]].type
        return pa.bool_()

    def input_types(self, expression: int) -> list[pa.DataType]:
        """The types of the columns that are handed over for an expression."""
        return [kind for each in self.expressions[expression].inputs for kind in self._types(each)]

    def _types(self, each: Input) -> list[pa.DataType]:
        match each:
            case Navigate(column=column):
                return [self.schema.field(column).type]
            case Classify():
                return [pa.string()]
            case MatchNumber():
                return [pa.int64()]
            case PatternAggregate(kind=kind, argument=argument):
                if argument is None:
                    return [pa.int64()]
                value = self.expressions[argument].type
                if kind == "list":
                    return [pa.list_(pa.field("element", value))]
                return aggregate_functions.fields(
                    AggregateFunction(kind, (0,)), pa.schema([pa.field("value", value)])
                )

    def argument_inputs(self, each: Input) -> tuple[Input, ...]:
        """What the argument of an aggregate looks at; nothing if it is none, or has none."""
        if not isinstance(each, PatternAggregate) or each.argument is None:
            return ()
        return self.expressions[each.argument].inputs

    def is_symbol(self, variable: str, expression: int) -> bool:
        """Whether a condition of a variable depends on the row, and rows at a fixed distance, alone."""
        return all(is_fixed(each, variable) for each in self.expressions[expression].inputs)


def is_fixed(each: Input, variable: str) -> bool:
    """Whether an input of a condition of a variable is the row itself, or lies at a fixed distance from it."""
    if not isinstance(each, Navigate):
        return False
    mine = each.variables is None or variable in each.variables
    return mine and each.side == "last" and each.nth == 0
