"""Aggregation: a row per group, with aggregate functions over its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from headwater.engine.dataflow.facets.column_origins import Origins, all_of, of_group
from headwater.engine.dataflow.facets.demands import Demands, Slice, TraceRequest, of_groups
from headwater.engine.dataflow.facets.kept_state import ONE, Extent, KeptState
from headwater.engine.dataflow.facets.unique_keys import Keys, least
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.keyed_operators import AggregateOperator
from headwater.engine.dataflow.operator_interface import Operator
from headwater.engine.dataflow.operators.operator_kind import (
    BuildContext,
    OperatorKind,
    Retraction,
    column_names,
)
from headwater.engine.dataflow.window_preaggregation import WindowPreaggregation, spread
from headwater.operators import graph as g
from headwater.operators.aggregate.aggregate import AggregateSpec
from headwater.operators.aggregate.aggregate_functions import AggregateFunction


class AggregateKind(OperatorKind[g.AggregateNode]):
    """GROUP BY and DISTINCT."""

    keeps_output = True
    recomputes_without_key = True

    def build(self, node: g.AggregateNode, context: BuildContext) -> Operator:
        functions = tuple(kernel_function(f, append_only=not f.ordered) for f in node.functions)
        customs = tuple(c.handle for c in node.customs)
        names = tuple(node.schema.names)
        spec = AggregateSpec(node.input.schema, node.keys, functions, customs, names)
        return AggregateOperator(spec, context.name)

    def with_map_below(
        self, node: g.AggregateNode, operator: Operator, evaluator: Evaluator
    ) -> WindowPreaggregation | None:
        assert isinstance(operator, AggregateOperator)
        return spread(node, operator.spec, evaluator)

    def title(self, node: g.AggregateNode) -> str:
        texts = [*(f.text for f in node.functions), *(c.text for c in node.customs)]
        functions = ", ".join(texts) or "distinct"
        return f"aggregate {functions} by ({column_names(node.input.schema, range(node.keys))})"

    def final_when(self, node: g.AggregateNode) -> str:
        if isinstance(node.input, g.Sessions):
            return "passed the end of its session"
        if any(is_window(node.schema.field(k).type) for k in range(node.keys)):
            return "reached the end of its window"
        return super().final_when(node)

    def row_extent(self, node: g.AggregateNode, below: Sequence[Extent]) -> Extent:
        return super().row_extent(node, below) if node.keys else ONE

    def kept_state(self, node: g.AggregateNode, below: Sequence[Extent]) -> Iterator[KeptState]:
        if node.keys:
            what = "a row for every group" if node.functions or node.customs else "every different row"
            instead = "the same without GROUP BY or DISTINCT, or over a topic with a PRIMARY KEY"
            if any(is_window(node.schema.field(key).type) for key in range(node.keys)):
                instead = "late = 'divert', late = 'drop' or correct_for removes closed windows"
            yield KeptState(node, what, instead, below[0])
            return
        yield KeptState(node, "one row", "", ONE)
        for function in node.functions:
            if function.ordered:
                what = f"every value of {function.text}, since the current one can be retracted"
                yield KeptState(node, what, "count, sum and avg keep one value", below[0])

    def retraction(self, node: g.AggregateNode) -> Retraction:
        one_way = ("min", "max", "min_by", "max_by", "sketch")
        keeps_best = bool(node.customs) or any(f.kind in one_way for f in node.functions)
        return "groups" if node.input.append_only and keeps_best else "rows"

    def lookup_keys(self, node: g.AggregateNode) -> Sequence[tuple[int, ...]] | None:
        return [tuple(range(node.keys))]

    def shown_columns(self, node: g.AggregateNode) -> Mapping[int, int]:
        return {column: column for column in range(node.keys)}

    def group_key(self, node: g.AggregateNode) -> Sequence[int]:
        return range(node.keys)

    def unique_keys(self, node: g.AggregateNode, below: Sequence[Keys]) -> Keys:
        return least([frozenset(range(node.keys))])

    def column_origins(self, node: g.AggregateNode, below: Sequence[Origins]) -> Origins:
        return group_origins(node, below[0], node.customs)

    def input_slices(self, node: g.AggregateNode, one: Slice) -> Sequence[Slice]:
        return [{c: v for c, v in one.items() if c < node.keys}]

    def trace(self, node: g.AggregateNode, request: TraceRequest) -> Demands:
        below, key = request.below(node.input), range(node.keys)
        yield below, of_groups(below, key, request.keys(key))


def kernel_function(function: g.MergeableFunction, *, append_only: bool) -> AggregateFunction:
    """Return an aggregate function of a graph as a function of the aggregation kernels."""
    return AggregateFunction(
        function.kind,  # type: ignore[arg-type]
        function.args,
        function.filter,
        append_only,
        sketch=function.sketch,
    )


def group_origins(
    node: g.AggregateNode | g.SessionAggregate, given: Origins, customs: Sequence[g.CustomFunction] = ()
) -> Origins:
    """Return the origins of the columns of groups: key columns keep theirs, and buffers may contain values of any row
    of the group."""
    keys = given[: node.keys]
    buffers = len(node.schema) - node.keys - len(customs)
    read = [f.args if f.filter is None else (*f.args, f.filter) for f in node.functions]
    if buffers != len(read):  # some functions have several buffers, and which is not available here
        read = [tuple(column for columns in read for column in columns)] * buffers
    read += [custom.args for custom in customs]
    return (*keys, *(of_group(all_of(given[c] for c in columns), keys) for columns in read))


def is_window(kind: pa.DataType) -> bool:
    """Whether a column of this type contains windows, as structs of their start and end."""
    return pa.types.is_struct(kind) and [field.name for field in kind] == ["start", "end"]
