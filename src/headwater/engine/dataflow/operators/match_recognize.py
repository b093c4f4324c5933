"""MATCH_RECOGNIZE: matches of a pattern in the rows of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.operator_kind import BuildContext, column_names
from headwater.engine.dataflow.operators.regroup import RegroupKind
from headwater.engine.dataflow.row_matches import compile_expressions
from headwater.operators import graph as g
from headwater.operators.match_recognize import match_operator as patterns
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run


class RowPatternKind(RegroupKind):
    """A `Regroup` whose function is a `RowPattern`: its groups are partitions, for which there is a kernel."""

    def build(self, node: g.Regroup, context: BuildContext) -> Operator:
        return _RowPattern(node.evaluate, context)

    def title(self, node: g.Regroup) -> str:
        spec = node.evaluate.spec
        by = column_names(spec.schema, spec.partition)
        along = column_names(spec.schema, (o.column for o in spec.order))
        return f"match rows ({spec.text}) by ({by}) in the order of ({along})"

    def final_when(self, node: g.Regroup) -> str:
        return "passed all rows that decide its match and earlier ones, or WITHIN has ended"

    def kept_state(self, node: g.Regroup, below: Sequence[Extent]) -> Iterable[KeptState]:
        what = "every row of its partitions, since later rows can extend or replace a match"
        return [KeptState(node, what, "GROUP BY window(...) keeps a row for every window", below[0])]

    def shown_columns(self, node: g.Regroup) -> Mapping[int, int]:
        shown = enumerate(node.evaluate.spec.shown)
        return {place: each.number for place, each in shown if each.what == "column"}


class _RowPattern(Operator):
    def __init__(self, pattern: g.RowPattern, context: BuildContext) -> None:
        name = context.name
        self._spec = spec = pattern.spec
        self._evaluate = compile_expressions(pattern, context.evaluator)
        rows, cuts = patterns.rows_order(spec), patterns.cuts_order(spec)
        self.slots = (
            ArrangementSpec(f"{name}.rows", "ordered", spec.partition, rows, spec.schema),
            ArrangementSpec(
                f"{name}.cuts", "ordered", patterns.cuts_key(spec), cuts, patterns.cuts_schema(spec)
            ),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        given = inputs[0].renamed(renamed(inputs[0].rows, self._spec.schema))
        done = patterns.step(self._spec, state[0], state[1], given, self._evaluate)
        return done.output, (done.rows, done.cuts)
