"""`OperatorKind`: the properties of a kind of operator, one method for each.

Methods with a default need not be defined by most kinds; the default is safe, though not always the tightest answer.
Methods get a node of the graph and are pure: their results depend on nothing else.
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
"""How an operator handles a deletion of rows from its input. `rows`: it retracts any row. `groups`: its state is insufficient
for that, and the groups of these rows are recomputed from the log. `rebuild`: neither is possible, and the view is rebuilt."""


@dataclass(frozen=True)
class BuildContext:
    """The arguments with which an operator is built, apart from its node."""

    name: str
    """Prefix of the names of the operator's arrangements."""
    evaluator: Evaluator
    unread: frozenset[int]
    """IDs of the nodes of the graph some output of which is not read (`pruning`)."""


class OperatorKind(ABC, Generic[N]):
    """The properties of one kind of operator, whose nodes are `N`."""

    is_linear: ClassVar[bool] = False
    """Whether the operator has no state, and each output row is computed from a single input row."""
    keeps_output: ClassVar[bool] = False
    """Whether the state determines the complete output (`Operator.shown`)."""
    recomputes_without_key: ClassVar[bool] = False
    """Whether the only group of an operator without a key can be recomputed."""

    # --- running ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def build(self, node: N, context: BuildContext) -> Operator:
        """Return the operator, ready to run."""

    def with_map_below(
        self, node: N, operator: Operator, evaluator: Evaluator
    ) -> WindowPreaggregation | None:
        """Return the operator combined with the Map below, which has no other reader, if that is cheaper; else None."""
        return None

    def is_unread(self, node: N, reader: g.Map) -> bool:
        """Whether a Map above the operator does not read a part of its output that need not be computed then."""
        return False

    # --- EXPLAIN ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def title(self, node: N) -> str:
        """Return a one-line description of the operator."""

    def final_when(self, node: N) -> str:
        """Return the condition that a watermark has met when a row of the operator is final, as it reads after "has"."""
        return "passed everything that can still change it"

    # --- state -----------------------------------------------------------------------------------------------------

    def row_extent(self, node: N, below: Sequence[Extent]) -> Extent:
        """Return the bound of the operator's rows, given the bounds of its inputs."""
        return together(below)

    def kept_state(self, node: N, below: Sequence[Extent]) -> Iterable[KeptState]:
        """Return the operator's state and its bounds, given the bounds of its inputs; the state that most changes touch
        comes first."""
        if self.is_linear:
            return ()
        return [
            KeptState(node, "every row", "the same over topics that have a PRIMARY KEY", each)
            for each in below
        ]

    # --- deletion --------------------------------------------------------------------------------------------------

    def retraction(self, node: N) -> Retraction:
        """Return how rows that a deletion removes from the input are removed from the operator."""
        return "rebuild"

    def lookup_keys(self, node: N) -> Sequence[tuple[int, ...]] | None:
        """Return the key columns, per input, by which the operator looks up its state; None if it looks nothing up by key."""
        return None

    # --- columns ---------------------------------------------------------------------------------------------------

    def shown_columns(self, node: N) -> Mapping[int, int]:
        """Return the output columns that are unchanged columns of the first input: output index to input index."""
        return {}

    def group_key(self, node: N) -> Sequence[int]:
        """Return the output columns that are the key of each row's group; empty if the operator has no groups."""
        return ()

    def partition_key(self, node: N) -> Sequence[int]:
        """Return the input columns by which the operator partitions rows that all appear in the output; else empty."""
        return ()

    def contents_key(self, node: N) -> tuple[int, ...] | None:
        """Return the columns that arrange a view with this final operator, if neither group nor partition key applies."""
        return None

    def unique_keys(self, node: N, below: Sequence[Keys]) -> Keys:
        """Return the unique keys of the output, given those of each input."""
        return NONE

    def column_origins(self, node: N, below: Sequence[Origins]) -> Origins:
        """Return the origins of the output columns, given those of each input."""
        return unknown(node.schema, below)

    # --- lineage ---------------------------------------------------------------------------------------------------

    def input_slices(self, node: N, one: Slice) -> Sequence[Slice]:
        """Return, for each input, the slice on which the rows of a slice of the output depend."""
        return [{}] * len(node.inputs)

    def replay(
        self, node: N, operator: Operator, inputs: Sequence[Delta], watermarks: Mapping[str, int]
    ) -> OperatorOutput:
        """Return the complete output over all rows of the inputs, computed without state."""
        output = Delta.empty(node.schema)
        if any(len(d) for d in inputs):
            output, _ = operator.begin(inputs, [() for _ in operator.slots])
        elif (initial := operator.initial()) is not None:
            output = initial
        if not len(output):
            return OperatorOutput(Delta.empty(node.schema))
        return OperatorOutput(output.renamed(renamed(output.rows, node.schema)))

    def trace(self, node: N, request: TraceRequest) -> Demands:
        """Translate a demand at the operator to its inputs; by default, all of their rows are demanded."""
        for child in node.inputs:
            below = request.below(child)
            need, bad = len(below.whole.delta), len(below.part.delta)
            yield below, Demand(np.ones(need, np.bool_), np.ones(bad, np.bool_))


def column_names(schema: pa.Schema, columns: Iterable[int]) -> str:
    """Return the names of some columns, as EXPLAIN lists them."""
    return ", ".join(schema.field(c).name for c in columns)
