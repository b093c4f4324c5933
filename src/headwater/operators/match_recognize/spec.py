"""The specification of a MATCH_RECOGNIZE clause for the kernels: pattern, conditions, measures, and output columns.

Expressions are evaluated by a callback of the planner: a kernel passes columns for their *inputs*, one row for each
evaluation, and receives a column of results. An input defines where its value comes from:

- `Navigate`: a column of one row of the match, or of a row at an offset from it. The row is the first or last row
  mapped to some variables, or the n-th from there. A plain column reference is the last row of the match; in DEFINE
  that is the current row, which counts as mapped to the variable being tested.
- `Classify`: the variable to which such a row is mapped.
- `PatternAggregate`: the buffer of an aggregate function (see `aggregate_functions`) over the rows mapped to some variables.
- `MatchNumber`: the number of the match in its partition, counted from 1 and including empty matches.

*Running* semantics read the match up to the current row, *final* semantics all of it. In DEFINE everything is running;
with one row per match the current row is the last one.

A condition whose inputs are all the row itself, or at a fixed distance from it, is a *symbol*: it is evaluated once for
all rows, including rows that no match ever reaches.
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
"""Set of pattern variables: a single variable or a SUBSET; None means all variables."""

Evaluate = Callable[[int, pa.RecordBatch, int], pa.Array]
"""evaluate(number, inputs, count): returns `count` results of an expression; a batch without columns has no row count."""

AggregateKind = Literal["count", "sum", "avg", "min", "max", "list"]

CLOSES = "closes"
"""Name of the column, the last one if requested, with the time from which a row of the output is final."""
NEVER = 2**63 - 1
"""Value of `closes` while only a future row can make the match final."""
WORK_MAX = 1_000_000
"""Maximum number of matching steps in one partition, plus `WORK_ROW_MAX` for each of its rows."""
WORK_ROW_MAX = 200


@dataclass(frozen=True)
class Navigate:
    """A column of a row of the match; NULL if there is no such row.

    `nth` counts the rows mapped to the variables, forwards from the first or backwards from the last; `offset` goes
    from there to any row of the partition: -1 is the previous row (PREV), 1 the next row (NEXT).
    """

    column: int
    variables: Variables = None
    side: Literal["first", "last"] = "last"
    nth: int = 0
    offset: int = 0
    final: bool = False


@dataclass(frozen=True)
class Classify:
    """The variable to which a row of the match is mapped; NULL outside the match. The row is resolved as in `Navigate`."""

    variables: Variables = None
    side: Literal["first", "last"] = "last"
    nth: int = 0
    offset: int = 0
    final: bool = False


@dataclass(frozen=True)
class PatternAggregate:
    """The buffer columns of a function over the rows mapped to the variables; replaces one input by as many columns.

    `argument` is the number of an expression whose inputs are only columns of the row, its variable and the number of
    the match; None counts rows. A `list` has the argument of every row, in order, for functions that the expression
    computes; `function` distinguishes such functions.
    """

    kind: AggregateKind
    variables: Variables = None
    argument: int | None = None
    final: bool = False
    function: str = ""


@dataclass(frozen=True)
class MatchNumber:
    """The number of the match in its partition, counted from 1."""


Input = Navigate | Classify | PatternAggregate | MatchNumber


@dataclass(frozen=True)
class PatternExpression:
    """The inputs of an expression, and the type of its result."""

    inputs: tuple[Input, ...]
    type: pa.DataType


@dataclass(frozen=True)
class Skip:
    """The row at which the search continues after a non-empty match; after an empty one it is the next row.

    `variables` applies to `to first` and `to last`: the first or last row mapped to them.
    """

    kind: Literal["past last row", "to next row", "to first", "to last"] = "past last row"
    variables: Variables = None


Shows = Literal["column", "measure", "timed out"]


@dataclass(frozen=True)
class Shown:
    """An output column: a column of the input or a measure, by number, or whether the match timed out.

    With one row per match, columns of the input are those of its first row.
    """

    name: str
    what: Shows
    number: int = 0


RowsPerMatch = Literal["one", "all", "all, omit empty", "all, with unmatched"]


@dataclass(frozen=True, eq=False)
class MatchSpec:
    """The definition of a MATCH_RECOGNIZE operator: input, pattern, conditions and output."""

    schema: pa.Schema
    partition: tuple[int, ...]
    order: tuple[ColumnOrder, ...]
    """ORDER BY of the clause; ties are ordered by the other columns (see `collation`)."""
    pattern: Pattern
    text: str
    """Pattern as written in the SQL, for errors."""
    expressions: tuple[PatternExpression, ...]
    conditions: Mapping[str, tuple[int, ...]]
    """Expressions, by variable, that must all be true for a row. Symbols are evaluated first."""
    measures: tuple[int, ...]
    """Numbers of the expressions of the measures."""
    shown: tuple[Shown, ...]
    rows: RowsPerMatch = "one"
    skip: Skip = field(default_factory=Skip)
    within: int | None = None
    """Time limit of a match, in microseconds: its last row is less than that after its first."""
    time: int | None = None
    """Timestamp column that is first in `order`, ascending; required for `within` and `closing`."""
    timeouts: bool = False
    """Whether to output also, as one row each, matches that had begun and were incomplete when their time limit passed."""
    closing: bool = False
    """Whether to append when each row of the output is final: no row at that time or later can change it."""
    work_max: int = WORK_MAX

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Variables of the pattern, by number."""
        return variables(self.pattern)

    @cached_property
    def output(self) -> pa.Schema:
        """Schema of the output."""
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
        """Return the types of the input columns of an expression."""
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
        """Return the inputs of an aggregate's argument; empty for other inputs and for aggregates without an argument."""
        if not isinstance(each, PatternAggregate) or each.argument is None:
            return ()
        return self.expressions[each.argument].inputs

    def is_symbol(self, variable: str, expression: int) -> bool:
        """Whether a condition of a variable depends only on the row and on rows at a fixed distance."""
        return all(is_fixed(each, variable) for each in self.expressions[expression].inputs)


def is_fixed(each: Input, variable: str) -> bool:
    """Whether an input of a condition of a variable is the row itself, or a row at a fixed distance from it."""
    if not isinstance(each, Navigate):
        return False
    mine = each.variables is None or variable in each.variables
    return mine and each.side == "last" and each.nth == 0
