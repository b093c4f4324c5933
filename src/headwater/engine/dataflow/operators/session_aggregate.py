"""Aggregation of sessions: a row per session. Input rows are never retracted, so they need not be kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headwater.engine.dataflow.facets.column_origins import Origins
from headwater.engine.dataflow.facets.demands import Demands, Slice, TraceRequest
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.facets.unique_keys import Keys, least
from headwater.engine.dataflow.keyed_operators import SessionAggregateOperator
from headwater.engine.dataflow.operator_interface import Operator
from headwater.engine.dataflow.operators.aggregate import group_origins, kernel_function
from headwater.engine.dataflow.operators.operator_kind import (
    BuildContext,
    OperatorKind,
    Retraction,
    column_names,
)
from headwater.engine.dataflow.operators.sessions import trace_sessions
from headwater.operators import graph as g
from headwater.operators.aggregate.aggregate import AggregateSpec
from headwater.operators.window.session_aggregate import SessionAggregateSpec


class SessionAggregateKind(OperatorKind[g.SessionAggregate]):
    """GROUP BY session_window(...) over a topic without a key."""

    keeps_output = True

    def build(self, node: g.SessionAggregate, context: BuildContext) -> Operator:
        functions = tuple(kernel_function(f, append_only=True) for f in node.functions)
        whole = AggregateSpec(node.input.schema, node.keys, functions)
        return SessionAggregateOperator(SessionAggregateSpec(whole, node.column), context.name)

    def title(self, node: g.SessionAggregate) -> str:
        functions = ", ".join(f.text for f in node.functions) or "distinct"
        return f"session aggregate {functions} by ({column_names(node.input.schema, range(node.keys))})"

    def final_when(self, node: g.SessionAggregate) -> str:
        return "passed the end of its session"

    def kept_state(self, node: g.SessionAggregate, below: Sequence[Extent]) -> Iterable[KeptState]:
        instead = "the same over a topic with a PRIMARY KEY"
        return [KeptState(node, "a row for every session", instead, below[0])]

    def retraction(self, node: g.SessionAggregate) -> Retraction:
        return "groups"

    def lookup_keys(self, node: g.SessionAggregate) -> Sequence[tuple[int, ...]] | None:
        return [tuple(i for i in range(node.keys) if i != node.column)]

    def shown_columns(self, node: g.SessionAggregate) -> Mapping[int, int]:
        return {column: column for column in range(node.keys)}

    def group_key(self, node: g.SessionAggregate) -> Sequence[int]:
        return range(node.keys)

    def unique_keys(self, node: g.SessionAggregate, below: Sequence[Keys]) -> Keys:
        return least([frozenset(range(node.keys))])

    def column_origins(self, node: g.SessionAggregate, below: Sequence[Origins]) -> Origins:
        return group_origins(node, below[0])

    def input_slices(self, node: g.SessionAggregate, one: Slice) -> Sequence[Slice]:
        return [{c: v for c, v in one.items() if c < node.keys and c != node.column}]

    def trace(self, node: g.SessionAggregate, request: TraceRequest) -> Demands:
        return trace_sessions(node, range(node.keys), request)
