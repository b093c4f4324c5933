"""Sliding frames: every row, with functions over the rows of its key that are near it in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from headwater.engine.dataflow.facets.column_origins import Origins, all_of, of_group
from headwater.engine.dataflow.facets.demands import Demand, Demands, Slice, TraceRequest
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.facets.unique_keys import Keys
from headwater.engine.dataflow.keyed_operators import SlideOperator
from headwater.engine.dataflow.operator_interface import Operator
from headwater.engine.dataflow.operators.operator_kind import (
    BuildContext,
    OperatorKind,
    Retraction,
    column_names,
)
from headwater.engine.dataflow.spark_groups import compile_groups
from headwater.operators import graph as g
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.window.sliding_aggregate import SlideSpec, SlidingFunction, near


class SlideKind(OperatorKind[g.Slide]):
    """Window functions with a RANGE frame along a time."""

    def build(self, node: g.Slide, context: BuildContext) -> Operator:
        framed = tuple(
            SlidingFunction(
                AggregateFunction(f.function.kind, f.function.args, f.function.filter),  # type: ignore[arg-type]
                f.low,
                f.high,
            )
            for f in node.framed
        )
        frame = node.time, node.preceding, node.following
        spec = SlideSpec(node.input.schema, node.key, *frame, framed)
        evaluate = None
        if node.evaluate is not None:
            evaluate = compile_groups(node.evaluate, node.schema, context.evaluator)
        return SlideOperator(spec, node.schema, evaluate, context.name)

    def title(self, node: g.Slide) -> str:
        key, along = column_names(node.input.schema, node.key), node.input.schema.field(node.time).name
        return f"recompute near changes by ({key}) along {along}: {node.text}"

    def final_when(self, node: g.Slide) -> str:
        return "passed its time and the end of its frame"

    def kept_state(self, node: g.Slide, below: Sequence[Extent]) -> Iterable[KeptState]:
        what = "every row, for later rows that are near it in time"
        return [KeptState(node, what, "GROUP BY window(...) keeps a row for every window", below[0])]

    def retraction(self, node: g.Slide) -> Retraction:
        return "rows"

    def lookup_keys(self, node: g.Slide) -> Sequence[tuple[int, ...]] | None:
        return [node.key]

    def shown_columns(self, node: g.Slide) -> Mapping[int, int]:
        return {column: column for column in range(len(node.input.schema))}

    def unique_keys(self, node: g.Slide, below: Sequence[Keys]) -> Keys:
        return below[0]

    def column_origins(self, node: g.Slide, below: Sequence[Origins]) -> Origins:
        (given,) = below
        made = of_group(all_of(given), [given[column] for column in node.key])
        return (*given, *(made,) * (len(node.schema) - len(given)))

    def input_slices(self, node: g.Slide, one: Slice) -> Sequence[Slice]:
        return [{c: v for c, v in one.items() if c in node.key}]

    def trace(self, node: g.Slide, request: TraceRequest) -> Demands:
        """Demand all rows in the frames of the named rows, which are themselves the first columns of the output."""
        below, width = request.below(node.input), len(node.input.schema)
        rows = request.rows().columns[:width]
        wanted = pa.RecordBatch.from_arrays(rows, schema=node.input.schema)
        reach = node.preceding, node.following
        need, bad = (
            near(output.delta.rows, wanted, node.key, node.time, *reach)
            for output in (below.whole, below.part)
        )
        yield below, Demand(need, bad)
