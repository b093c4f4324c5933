"""`OperatorKind`: what is known of a kind of operator, one method for each thing that others ask of it.

A method with a default is one that most kinds need not define; the default is safe, if not the best that could be said. Methods are
given a node of the graph and are pure: what they say depends on nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
import pyarrow as pa

from headwater.engine.dataflow.facets.column_origins import Origins, unknown
from headwater.engine.dataflow.facets.demands import Demand, Demands, OperatorOutput, Slice, TraceRequest
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState, together
from headwater.engine.dataflow.facets.unique_keys import NONE, Keys
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.operator_interface import Operator
from headwater.engine.dataflow.window_preaggregation import WindowPreaggregation
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta

N = TypeVar("N", bound=g.Node)

Retraction = Literal["rows", "groups", "rebuild"]
"""What becomes of an operator when a deletion takes rows from its input. `rows`: it takes back any row. `groups`: it keeps too little for that,
and the groups of these rows are computed again from the log. `rebuild`: neither is possible, and the view is rebuilt."""


@dataclass(frozen=True)
class BuildContext:
    """What an operator is built with, beside its node."""

    name: str
    """What the names of its arrangements begin with."""
    evaluator: Evaluator
    unread: frozenset[int]
    """The identities of the nodes of the graph of which some output is not read (`pruning`)."""


class OperatorKind(ABC, Generic[N]):
    """What is known of one kind of operator, whose nodes are `N`."""

    is_linear: ClassVar[bool] = False
    """Whether it keeps nothing, and each row that comes out is made of a single row that went in."""
    keeps_output: ClassVar[bool] = False
    """Whether what it keeps says all that it has put out (`Operator.shown`)."""
    recomputes_without_key: ClassVar[bool] = False
    """Whether its only group can be computed again where it has no key."""

    # --- running ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def build(self, node: N, context: BuildContext) -> Operator:
        """The operator, ready to run."""

    def with_map_below(
        self, node: N, operator: Operator, evaluator: Evaluator
    ) -> WindowPreaggregation | None:
        """The operator and the Map that it alone reads as one step, where that is cheaper."""
        return None

    def is_unread(self, node: N, reader: g.Map) -> bool:
        """Whether a Map above it does not read that part of its output which it need not compute then."""
        return False

    # --- EXPLAIN ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def title(self, node: N) -> str:
        """The operator in one line of text."""

    def final_when(self, node: N) -> str:
        """What a watermark has done when a row of the operator is final, in words, after "has"."""
        return "passed all that could still change it"

    # --- state -----------------------------------------------------------------------------------------------------

    def row_extent(self, node: N, below: Sequence[Extent]) -> Extent:
        """How many rows it has, given how many each input has."""
        return together(below)

    def kept_state(self, node: N, below: Sequence[Extent]) -> Iterable[KeptState]:
        """What it keeps and what that grows with, given how many rows each input has; what most changes reach comes first."""
        if self.is_linear:
            return ()
        return [
            KeptState(node, "every row", "the same over topics that have a PRIMARY KEY", each)
            for each in below
        ]

    # --- deletion --------------------------------------------------------------------------------------------------

    def retraction(self, node: N) -> Retraction:
        """How rows are taken from it that a deletion takes from its input."""
        return "rebuild"

    def lookup_keys(self, node: N) -> Sequence[tuple[int, ...]] | None:
        """The columns of each input that the operator looks its state up by; None if it has no such key."""
        return None

    # --- columns ---------------------------------------------------------------------------------------------------

    def shown_columns(self, node: N) -> Mapping[int, int]:
        """Columns of its output that are columns of its first input, unchanged: which of that each is."""
        return {}

    def group_key(self, node: N) -> Sequence[int]:
        """The columns of its output that are the key of the group of which each row is the result; none if it has no groups."""
        return ()

    def partition_key(self, node: N) -> Sequence[int]:
        """The columns of its input by which it takes rows together of which it shows each; none if it does not."""
        return ()

    def contents_key(self, node: N) -> tuple[int, ...] | None:
        """The columns that a view is arranged by of which it is the last operator, if neither group nor partition says."""
        return None

    def unique_keys(self, node: N, below: Sequence[Keys]) -> Keys:
        """The keys of its output, given those of each input."""
        return NONE

    def column_origins(self, node: N, below: Sequence[Origins]) -> Origins:
        """Whose private values each column of its output is made of, given that of the columns of each input."""
        return unknown(node.schema, below)

    # --- lineage ---------------------------------------------------------------------------------------------------

    def input_slices(self, node: N, one: Slice) -> Sequence[Slice]:
        """The slice of each input on which the rows of a slice of its output depend."""
        return [{}] * len(node.inputs)

    def replay(
        self, node: N, operator: Operator, inputs: Sequence[Delta], watermarks: Mapping[str, int]
    ) -> OperatorOutput:
        """All that it puts out over all rows of its inputs, from no state."""
        output = Delta.empty(node.schema)
        if any(len(d) for d in inputs):
            output, _ = operator.begin(inputs, [() for _ in operator.slots])
        elif (initial := operator.initial()) is not None:
            output = initial
        if not len(output):
            return OperatorOutput(Delta.empty(node.schema))
        return OperatorOutput(output.renamed(renamed(output.rows, node.schema)))

    def trace(self, node: N, request: TraceRequest) -> Demands:
        """What a demand at it means for the operators that it reads; by default, that all of their rows matter."""
        for child in node.inputs:
            below = request.below(child)
            need, bad = len(below.whole.delta), len(below.part.delta)
            yield below, Demand(np.ones(need, np.bool_), np.ones(bad, np.bool_))


def column_names(schema: pa.Schema, columns: Iterable[int]) -> str:
    """The names of some columns, as EXPLAIN lists them."""
    return ", ".join(schema.field(c).name for c in columns)
