"""Functions of whole groups, recomputed for the groups that a change touches: by Spark, or by the aggregation kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Mask
from headwater.engine.dataflow.facets.demands import Demands, OperatorOutput, Slice, TraceRequest, of_groups
from headwater.engine.dataflow.facets.kept_state import ONE, Extent, KeptState
from headwater.engine.dataflow.facets.row_sets import Ids, among, chosen, joined, key_ids, row_ids
from headwater.engine.dataflow.facets.unique_keys import NONE, Keys, least
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.aggregate import AggregateKind, kernel_function
from headwater.engine.dataflow.operators.operator_kind import (
    BuildContext,
    OperatorKind,
    Retraction,
    column_names,
)
from headwater.engine.dataflow.spark_groups import compile_groups, in_order, shown_columns
from headwater.operators import graph as g
from headwater.operators.aggregate import aggregate
from headwater.operators.table.regroup import regroup, regroup_whole
from headwater.operators.zset.delta import Delta, take_rows
from headwater.operators.zset.runs import Run
from headwater.plan.relations.relations import Evaluation
from headwater.spark.catalyst import items, kind


class RegroupKind(OperatorKind[g.Regroup]):
    """Window functions without a kernel, percentiles, lists, and users' aggregates that cannot retract rows."""

    def build(self, node: g.Regroup, context: BuildContext) -> Operator:
        return _Regroup(node, context)

    def title(self, node: g.Regroup) -> str:
        return f"recompute whole groups by ({column_names(node.input.schema, node.key)}): {node.text}"

    def final_when(self, node: g.Regroup) -> str:
        if isinstance(node.evaluate, g.AggregateNode):
            return AggregateKind().final_when(node.evaluate)
        return super().final_when(node)

    def row_extent(self, node: g.Regroup, below: Sequence[Extent]) -> Extent:
        return ONE if node.whole else super().row_extent(node, below)

    def kept_state(self, node: g.Regroup, below: Sequence[Extent]) -> Iterable[KeptState]:
        instead = "count, sum, avg, min and max without GROUP BY keep one row"
        return [KeptState(node, "every row of its groups", instead, below[0])]

    def retraction(self, node: g.Regroup) -> Retraction:
        return "rows"

    def lookup_keys(self, node: g.Regroup) -> Sequence[tuple[int, ...]] | None:
        return None if node.whole else [node.key]

    def group_key(self, node: g.Regroup) -> Sequence[int]:
        return range(node.evaluate.keys) if isinstance(node.evaluate, g.AggregateNode) else ()

    def partition_key(self, node: g.Regroup) -> Sequence[int]:
        return node.key

    def unique_keys(self, node: g.Regroup, below: Sequence[Keys]) -> Keys:
        return least([frozenset()]) if node.whole else NONE

    def shown_columns(self, node: g.Regroup) -> Mapping[int, int]:
        if isinstance(node.evaluate, Evaluation):
            return shown_columns(node.evaluate)
        return dict(enumerate(node.key))  # an aggregate: its keys come first

    def input_slices(self, node: g.Regroup, one: Slice) -> Sequence[Slice]:
        shown = self.shown_columns(node)
        return [{shown[c]: v for c, v in one.items() if shown.get(c) in node.key}]

    def trace(self, node: g.Regroup, request: TraceRequest) -> Demands:
        below, site, demand = request.below(node.input), request.site, request.demand
        groups = joined(
            self._groups(node, site.whole, demand.need, below.whole, request.evaluator),
            self._groups(node, site.part, demand.bad, below.part, request.evaluator),
        )
        yield below, of_groups(below, node.key, groups)

    def _groups(
        self,
        node: g.Regroup,
        output: OperatorOutput,
        wanted: Mask,
        given: OperatorOutput,
        evaluator: Evaluator,
    ) -> Ids:
        """Return the keys of the groups that have output the rows in `wanted`."""
        if not wanted.any():
            return row_ids([], 0)
        if not node.key:
            return key_ids(output.delta, ()).slice(0, 1)
        rows = output.delta.filter(wanted)
        shown = {column: place for place, column in self.shown_columns(node).items()}
        if all(column in shown for column in node.key):
            return key_ids(rows, [shown[column] for column in node.key])
        evaluation: Evaluation = node.evaluate
        width = len(evaluation.attributes)
        if kind(evaluation.plan) == "Window":
            # a window function leaves the rows of its input as they are
            mine = among(
                row_ids(given.delta.rows.columns[:width], len(given.delta)),
                row_ids(rows.rows.columns[:width], len(rows)),
            )
            return chosen(key_ids(given.delta, node.key), mine)
        every_row = take_rows(given.delta.rows, np.repeat(np.arange(len(given.delta)), given.delta.weights))
        made = Delta.of(_with_keys(node, evaluator)(every_row))
        width = len(node.schema)
        mine = among(row_ids(made.rows.columns[:width], len(made)), chosen(output.ids, wanted))
        return chosen(key_ids(made, range(width, width + len(node.key))), mine)


class _Regroup(Operator):
    def __init__(self, node: g.Regroup, context: BuildContext) -> None:
        self._node = node
        self._evaluate = _compiled(node, context.evaluator)
        self.slots = (ArrangementSpec(f"{context.name}.rows", "multiset", node.key, (), node.input.schema),)

    def initial(self) -> Delta | None:
        if not self._node.whole:
            return None
        return Delta.of(self._evaluate(Delta.empty(self._node.input.schema).rows))

    def begin(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        return self._stepped(inputs[0], state[0], first=True)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        return self._stepped(inputs[0], state[0], first=False)

    def _stepped(self, given: Delta, runs: Runs, *, first: bool) -> tuple[Delta, Sequence[Run]]:
        if self._node.whole:
            output, run = regroup_whole(runs, given, self._evaluate, self._node.schema, first=first)
        else:
            output, run = regroup(runs, self._node.key, given, self._evaluate, self._node.schema)
        return output, (run,)


def _compiled(node: g.Regroup, evaluator: Evaluator) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Compile the function of a group's rows, for many groups at once."""
    if isinstance(node.evaluate, g.AggregateNode):
        return _aggregated(node.evaluate)
    return compile_groups(node.evaluate, node.schema, evaluator)


def _aggregated(node: g.AggregateNode) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Compile users' aggregates that cannot retract rows: the aggregation kernel, run without state."""
    functions = tuple(kernel_function(f, append_only=True) for f in node.functions)
    customs = tuple(c.handle for c in node.customs)
    spec = aggregate.AggregateSpec(node.input.schema, node.keys, functions, customs)

    def evaluate(rows: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.num_rows:
            made = aggregate.initial(spec).rows
        else:
            change = aggregate.step(spec, (), (), Delta.of(in_order(rows)), first=True).output
            made = change.rows
        return pa.RecordBatch.from_arrays(made.columns, schema=node.schema)

    return evaluate


def _with_keys(node: g.Regroup, evaluator: Evaluator) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Compile the node's function of groups, with the key of the group appended to each output row."""
    evaluation: Evaluation = node.evaluate
    c, plan = evaluator.catalyst, evaluation.plan
    keys = [c.alias(e, f"key_{i}") for i, e in enumerate(items(plan.groupingExpressions()))]
    shown = c.seq([*items(plan.aggregateExpressions()), *keys])
    wider = c.plans.Aggregate(plan.groupingExpressions(), shown, plan.child(), plan.hint())
    fields = [node.input.schema.field(k).with_name(f"key_{i}") for i, k in enumerate(node.key)]
    schema = pa.schema([*node.schema, *fields])
    return compile_groups(evaluation._replace(plan=wider), schema, evaluator)
