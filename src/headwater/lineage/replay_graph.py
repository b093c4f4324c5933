"""Runs a view's graph over some rows of its sources and keeps the output of every operator, in the driver, from empty
state.

`Dataflow.step` computes the same without keeping outputs. A pass over everything that a view reads gives the view's
contents; a pass over a few records gives the contents that these records alone would produce.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headwater.core.errors import ArithmeticOverflowError, EvaluationError
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.facets.demands import OperatorOutput
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta


@dataclass(frozen=True, eq=False)
class Pass:
    """The output of every operator of a graph, inputs first. If an operator failed, its output and all later ones are
    empty."""

    outputs: tuple[OperatorOutput, ...]
    failed: int | None = None
    error: EvaluationError | ArithmeticOverflowError | None = None

    @property
    def rows(self) -> OperatorOutput:
        """Output of the last operator: the rows of the view."""
        return self.outputs[-1]


def run(pipeline: Dataflow, sources: Mapping[str, Delta], watermarks: Mapping[str, int]) -> Pass:
    """Run a graph over the given source rows at these watermarks of topics; a source that is not given is empty."""
    made: list[OperatorOutput] = []
    places: dict[int, int] = {}
    for place, (node, operator) in enumerate(pipeline.nodes):
        places[id(node)] = place
        inputs = [made[places[id(child)]].given for child in node.inputs]
        try:
            if isinstance(node, g.SourceNode):
                made.append(OperatorOutput(_of_source(node, sources.get(node.name))))
            else:
                made.append(kind_of(node).replay(node, operator, inputs, watermarks))
        except (EvaluationError, ArithmeticOverflowError) as error:
            rest = [OperatorOutput(Delta.empty(n.schema)) for n, _ in pipeline.nodes[place:]]
            return Pass((*made, *rest), place, error)
    return Pass(tuple(made))


def _of_source(node: g.SourceNode, rows: Delta | None) -> Delta:
    if rows is None or not len(rows):
        return Delta.empty(node.schema)
    return Delta(source_rows(node, rows.rows), rows.weights)


def source_rows(node: g.SourceNode, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns that a graph reads, from rows of a topic or view."""
    columns = [rows.column(i) for i in (*node.columns, *node.hidden)]
    fields = [f.name for f in node.schema]
    return renamed(pa.RecordBatch.from_arrays(columns, names=fields), node.schema)
