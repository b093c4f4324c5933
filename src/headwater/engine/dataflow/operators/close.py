"""EMIT ON CLOSE: rows are emitted once the watermarks have reached the time from which they are final."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headwater.engine.dataflow.facets.column_origins import Origins
from headwater.engine.dataflow.facets.demands import Demands, OperatorOutput, Slice, TraceRequest
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.facets.unique_keys import Keys
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.operator_kind import BuildContext, OperatorKind, Retraction
from headwater.operators import graph as g
from headwater.operators.window import emit_on_close
from headwater.operators.zset.delta import Delta, take_rows
from headwater.operators.zset.runs import Run


class CloseKind(OperatorKind[g.Close]):
    """The last operator of a view that emits only final rows."""

    def build(self, node: g.Close, context: BuildContext) -> Operator:
        return CloseOperator(node, context.name)

    def title(self, node: g.Close) -> str:
        return f"wait until final, by the watermark of {waited_for(node)}"

    def kept_state(self, node: g.Close, below: Sequence[Extent]) -> Iterable[KeptState]:
        topics = frozenset(topic for domain in node.domains for topic in domain)
        return [KeptState(node, "rows that are not final yet", "", Extent(passing=topics))]

    def retraction(self, node: g.Close) -> Retraction:
        return "rows"

    def unique_keys(self, node: g.Close, below: Sequence[Keys]) -> Keys:
        return frozenset(key for key in below[0] if all(c < len(node.schema) for c in key))

    def column_origins(self, node: g.Close, below: Sequence[Origins]) -> Origins:
        return below[0][: len(node.schema)]

    def input_slices(self, node: g.Close, one: Slice) -> Sequence[Slice]:
        return [one]

    def replay(
        self, node: g.Close, operator: Operator, inputs: Sequence[Delta], watermarks: Mapping[str, int]
    ) -> OperatorOutput:
        (given,) = inputs
        levels = emit_on_close.levels(node.domains, watermarks)
        final = np.flatnonzero(emit_on_close.is_final(given, levels))
        rows = take_rows(given.rows, final).select(range(len(node.schema)))
        return OperatorOutput(Delta(renamed(rows, node.schema), given.weights[final]), final)

    def trace(self, node: g.Close, request: TraceRequest) -> Demands:
        yield request.below(node.input), request.origins(node.input)


class CloseOperator(Operator):
    """Holds rows until they are final; unlike all other operators, advances with the watermarks too."""

    def __init__(self, node: g.Close, name: str) -> None:
        self._node = node
        width = len(node.input.schema)
        key, order = emit_on_close.waiting_key(width), emit_on_close.waiting_order(width)
        self.slots = (ArrangementSpec(f"{name}.waiting", "ordered", key, order, node.input.schema),)

    def step_at(self, given: Delta, waiting: Runs, watermarks: Mapping[str, int]) -> tuple[Delta, Run]:
        """Return the change of the final rows at these watermarks, and a run for the rows that are not final yet."""
        levels = emit_on_close.levels(self._node.domains, watermarks)
        return emit_on_close.close(waiting, given, levels, self._node.schema)


def waited_for(node: g.Close) -> str:
    """Return the topics whose watermarks the operator waits for, as text for EXPLAIN."""
    return " and ".join(dict.fromkeys(topic for domain in node.domains for topic in domain))
