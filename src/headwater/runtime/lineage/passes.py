"""A view's graph run over some rows of its sources, keeping what every operator gives: in the driver, from no state.

`Pipeline.step` is the same without the memory. A pass over all that a view reads gives its contents; one over a few
records, what they alone would make of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headwater.errors import ArithmeticOverflowError, EvaluationError
from headwater.hashing import Indices
from headwater.operators import closing
from headwater.operators.delta import Delta, concat, consolidate, take_rows
from headwater.queries import graph as g
from headwater.runtime.lineage.sets import Ids, row_ids
from headwater.runtime.linear import renamed
from headwater.runtime.pipeline import Operator, Pipeline


@dataclass(frozen=True, eq=False)
class Output:
    """The rows that an operator gave, as they came."""

    given: Delta
    origin: Indices | None = None
    """Of a linear operator: the row of its input, as they came there, that each row came from."""

    @cached_property
    def delta(self) -> Delta:
        """Each row once, with how often it is there."""
        return consolidate(self.given)

    @cached_property
    def ids(self) -> Ids:
        """What stands for each row of `delta`."""
        return row_ids(self.delta.rows.columns, len(self.delta))

    @cached_property
    def given_ids(self) -> Ids:
        """What stands for each row of `given`."""
        return row_ids(self.given.rows.columns, len(self.given))


@dataclass(frozen=True, eq=False)
class Pass:
    """What every operator of a graph gave, inputs first. Where one failed, those from it on gave nothing."""

    outputs: tuple[Output, ...]
    failed: int | None = None
    error: EvaluationError | ArithmeticOverflowError | None = None

    @property
    def rows(self) -> Output:
        """What the last operator gave: the view."""
        return self.outputs[-1]


def run(pipeline: Pipeline, sources: Mapping[str, Delta], watermarks: Mapping[str, int]) -> Pass:
    """Run a graph over its sources as they are given, one that is not given being empty, at these watermarks of topics."""
    made: list[Output] = []
    places: dict[int, int] = {}
    for place, (node, operator) in enumerate(pipeline.nodes):
        places[id(node)] = place
        inputs = [made[places[id(child)]].given for child in node.inputs]
        try:
            if isinstance(node, g.Source):
                made.append(Output(_of_source(node, sources.get(node.name))))
            elif isinstance(node, g.Map):
                made.append(_mapped(node, operator, inputs[0]))
            elif isinstance(node, g.Close):
                made.append(_closed(node, inputs[0], watermarks))
            else:
                made.append(Output(_stepped(node, operator, inputs)))
        except (EvaluationError, ArithmeticOverflowError) as error:
            rest = [Output(Delta.empty(n.schema)) for n, _ in pipeline.nodes[place:]]
            return Pass((*made, *rest), place, error)
    return Pass(tuple(made))


def _of_source(node: g.Source, rows: Delta | None) -> Delta:
    if rows is None or not len(rows):
        return Delta.empty(node.schema)
    return Delta(source_rows(node, rows.rows), rows.weights)


def source_rows(node: g.Source, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that a graph reads of rows of a topic or view."""
    columns = [rows.column(i) for i in (*node.columns, *node.hidden)]
    fields = [f.name for f in node.schema]
    return renamed(pa.RecordBatch.from_arrays(columns, names=fields), node.schema)


def _stepped(node: g.Node, operator: Operator, inputs: list[Delta]) -> Delta:
    output = Delta.empty(node.schema)
    if any(len(d) for d in inputs):
        output, _ = operator.step(inputs, [() for _ in operator.slots])
    if (initial := operator.initial()) is not None:
        output = concat([initial, output], node.schema)
    return output.renamed(renamed(output.rows, node.schema)) if len(output) else Delta.empty(node.schema)


def _closed(node: g.Close, given: Delta, watermarks: Mapping[str, int]) -> Output:
    final = np.flatnonzero(closing.is_final(given, closing.levels(node.domains, watermarks)))
    rows = take_rows(given.rows, final).select(range(len(node.schema)))
    return Output(Delta(renamed(rows, node.schema), given.weights[final]), final)


def _mapped(node: g.Map, operator: Operator, given: Delta) -> Output:
    """Linear steps carry the weights of rows along: numbered, they tell where each row that comes out came from."""
    if not len(given):
        return Output(Delta.empty(node.schema), np.zeros(0, dtype=np.int64))
    numbered, _ = operator.step([Delta(given.rows, np.arange(1, len(given) + 1))], ())
    copies = np.ones(len(numbered), dtype=np.int64)
    if any(isinstance(step, g.Replicate) for step in node.steps):
        copies = operator.step([Delta(given.rows, np.ones(len(given), dtype=np.int64))], ())[0].weights
    origin = numbered.weights // copies - 1
    rows = renamed(numbered.rows, node.schema) if len(numbered) else Delta.empty(node.schema).rows
    return Output(Delta(rows, given.weights[origin] * copies), origin)
