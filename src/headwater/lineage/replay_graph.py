"""A view's graph run over some rows of its sources, keeping what every operator gives: in the driver, from no state.

`Dataflow.step` is the same without the memory. A pass over all that a view reads gives its contents; one over a few
records, what they alone would make of it.
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
    """What every operator of a graph gave, inputs first. Where one failed, those from it on gave nothing."""

    outputs: tuple[OperatorOutput, ...]
    failed: int | None = None
    error: EvaluationError | ArithmeticOverflowError | None = None

    @property
    def rows(self) -> OperatorOutput:
        """What the last operator gave: the view."""
        return self.outputs[-1]


def run(pipeline: Dataflow, sources: Mapping[str, Delta], watermarks: Mapping[str, int]) -> Pass:
    """Run a graph over its sources as they are given, one that is not given being empty, at these watermarks of topics."""
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
    """The columns that a graph reads of rows of a topic or view."""
    columns = [rows.column(i) for i in (*node.columns, *node.hidden)]
    fields = [f.name for f in node.schema]
    return renamed(pa.RecordBatch.from_arrays(columns, names=fields), node.schema)
