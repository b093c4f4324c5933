"""Sessions: every row with the interval of its session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headwater.engine.dataflow.facets.column_origins import Origins, of_group, replaced
from headwater.engine.dataflow.facets.demands import Demand, Demands, OperatorOutput, Slice, TraceRequest
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.facets.row_sets import Ids, among, chosen, joined, key_ids
from headwater.engine.dataflow.facets.unique_keys import Keys
from headwater.engine.dataflow.keyed_operators import SessionsOperator
from headwater.engine.dataflow.operator_interface import Operator
from headwater.engine.dataflow.operators.operator_kind import (
    BuildContext,
    OperatorKind,
    Retraction,
    column_names,
)
from headwater.operators import graph as g
from headwater.operators.window.sessions import SessionSpec, sessions_of
from headwater.operators.zset.delta import Delta


class SessionsKind(OperatorKind[g.Sessions]):
    """session_window(...), below the aggregate that groups by sessions."""

    def build(self, node: g.Sessions, context: BuildContext) -> Operator:
        return SessionsOperator(SessionSpec(node.input.schema, node.key, node.column), context.name)

    def title(self, node: g.Sessions) -> str:
        return f"sessions of rows by ({column_names(node.input.schema, node.key)})"

    def kept_state(self, node: g.Sessions, below: Sequence[Extent]) -> Iterable[KeptState]:
        what = "every row, since its session changes with the rows before and after it"
        instead = "count, sum, avg, min and max over a topic without a PRIMARY KEY keep only the sessions"
        return [KeptState(node, what, instead, below[0])]

    def retraction(self, node: g.Sessions) -> Retraction:
        return "rows"

    def unique_keys(self, node: g.Sessions, below: Sequence[Keys]) -> Keys:
        return frozenset(key for key in below[0] if node.column not in key)

    def column_origins(self, node: g.Sessions, below: Sequence[Origins]) -> Origins:
        (given,) = below
        interval = of_group(given[node.column].of, [given[column] for column in node.key])
        return replaced(given, node.column, interval)

    def input_slices(self, node: g.Sessions, one: Slice) -> Sequence[Slice]:
        return [{c: v for c, v in one.items() if c in node.key}]

    def trace(self, node: g.Sessions, request: TraceRequest) -> Demands:
        return trace_sessions(node, node.key, request)


def trace_sessions(
    node: g.Sessions | g.SessionAggregate, key: Sequence[int], request: TraceRequest
) -> Demands:
    """Demand all rows of the sessions that are named.

    A session that exists in the part but not in the whole is a fragment of one or more sessions of the whole, whose
    rows are all needed.
    """
    below, site, demand = request.below(node.input), request.site, request.demand
    columns = [*(c for c in key if c != node.column), node.column]
    whole, part = (_session_ids(output, columns) for output in (below.whole, below.part))
    bad = among(part, chosen(key_ids(site.part.delta, columns), demand.bad))
    pieces = chosen(whole, among(below.whole.ids, chosen(below.part.ids, bad)))
    asked = chosen(key_ids(site.whole.delta, columns), demand.need)
    yield below, Demand(among(whole, joined(asked, pieces)), bad)


def _session_ids(output: OperatorOutput, columns: list[int]) -> Ids:
    """Return an ID of the key and the session of each row; the last of `columns` is the session."""
    delta = output.delta
    *key, column = columns
    arrays = [*delta.rows.columns]
    arrays[column] = sessions_of(delta.rows, key, column)
    return key_ids(
        Delta(pa.RecordBatch.from_arrays(arrays, schema=delta.rows.schema), delta.weights), columns
    )
