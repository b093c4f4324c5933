"""Versions of the rows of a table: each record, with the time at which the next record of its key begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.engine.dataflow.facets.column_origins import PLAIN, Origins
from headwater.engine.dataflow.facets.demands import Demands, Slice, TraceRequest, of_groups
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.operator_kind import BuildContext, OperatorKind, column_names
from headwater.operators import graph as g
from headwater.operators.table import table_versions
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run


class VersionsKind(OperatorKind[g.VersionsNode]):
    """FOR SYSTEM_TIME in views that drop late records."""

    def build(self, node: g.VersionsNode, context: BuildContext) -> Operator:
        return _Versions(node, context.name)

    def title(self, node: g.VersionsNode) -> str:
        return f"versions by ({column_names(node.input.schema, node.key)}), of records that are not late"

    def kept_state(self, node: g.VersionsNode, below: Sequence[Extent]) -> Iterable[KeptState]:
        what = "versions of rows, for rows of the other side"
        instead = "late = 'divert', late = 'drop' or correct_for removes versions that have ended"
        return [KeptState(node, what, instead, below[0])]

    def column_origins(self, node: g.VersionsNode, below: Sequence[Origins]) -> Origins:
        # the additional column is the begin of the next record of the key
        return (*below[0], *(PLAIN,) * (len(node.schema) - len(below[0])))

    def input_slices(self, node: g.VersionsNode, one: Slice) -> Sequence[Slice]:
        return [{c: v for c, v in one.items() if c in node.key}]

    def trace(self, node: g.VersionsNode, request: TraceRequest) -> Demands:
        below = request.below(node.input)
        yield below, of_groups(below, node.key, request.keys(node.key))


class _Versions(Operator):
    def __init__(self, node: g.VersionsNode, name: str) -> None:
        self._spec = table_versions.VersionSpec(node.key, node.begin, node.offset, node.op)
        self._schema = node.schema
        self.slots = (
            ArrangementSpec(f"{name}.records", "ordered", node.key, self._spec.order, node.input.schema),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        change, run = table_versions.step(self._spec, state[0], inputs[0].rows)
        return change.renamed(renamed(change.rows, self._schema)), (run,)
