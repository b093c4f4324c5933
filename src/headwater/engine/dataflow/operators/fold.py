"""Folds: for each key, the state that a user's step function computes from its rows, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headwater.core.errors import EvaluationError
from headwater.engine.dataflow.facets.column_origins import Origins, all_of, of_group
from headwater.engine.dataflow.facets.demands import Demands, Slice, TraceRequest, of_groups
from headwater.engine.dataflow.facets.kept_state import ONE, Extent, KeptState
from headwater.engine.dataflow.facets.unique_keys import Keys, least
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.operator_kind import (
    BuildContext,
    OperatorKind,
    Retraction,
    column_names,
)
from headwater.operators import graph as g
from headwater.operators.table.fold import fold
from headwater.operators.zset.delta import Delta, take_rows
from headwater.operators.zset.runs import Run, contents_latest


class FoldKind(OperatorKind[g.FoldNode]):
    """CREATE FOLD: a row per key; records cannot be retracted from it."""

    keeps_output = True

    def build(self, node: g.FoldNode, context: BuildContext) -> Operator:
        return _Fold(node, context.name)

    def title(self, node: g.FoldNode) -> str:
        return f"fold {node.name} by ({column_names(node.input.schema, node.key)}), in the order of the log"

    def row_extent(self, node: g.FoldNode, below: Sequence[Extent]) -> Extent:
        return super().row_extent(node, below) if node.key else ONE

    def kept_state(self, node: g.FoldNode, below: Sequence[Extent]) -> Iterable[KeptState]:
        instead = "the same over a topic with a PRIMARY KEY"
        return [KeptState(node, "a state for every key", instead, self.row_extent(node, below))]

    def retraction(self, node: g.FoldNode) -> Retraction:
        return "groups"

    def lookup_keys(self, node: g.FoldNode) -> Sequence[tuple[int, ...]] | None:
        return [node.key]

    def contents_key(self, node: g.FoldNode) -> tuple[int, ...] | None:
        return tuple(range(len(node.key)))

    def unique_keys(self, node: g.FoldNode, below: Sequence[Keys]) -> Keys:
        return least([frozenset(range(len(node.key)))])

    def column_origins(self, node: g.FoldNode, below: Sequence[Origins]) -> Origins:
        (given,) = below
        keys = tuple(given[column] for column in node.key)
        state = of_group(all_of(given), keys)
        return (*keys, *(state,) * (len(node.schema) - len(keys)))

    def input_slices(self, node: g.FoldNode, one: Slice) -> Sequence[Slice]:
        return [{node.key[c]: v for c, v in one.items() if c < len(node.key)}]

    def trace(self, node: g.FoldNode, request: TraceRequest) -> Demands:
        below = request.below(node.input)
        yield below, of_groups(below, node.key, request.keys(range(len(node.key))))


class _Fold(Operator):
    def __init__(self, node: g.FoldNode, name: str) -> None:
        self._node = node
        self.slots = (
            ArrangementSpec(f"{name}.states", "latest", tuple(range(len(node.key))), (), node.schema),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        (given,) = inputs
        if (given.weights < 0).any():
            raise EvaluationError(
                f"a record was retracted under fold {self._node.name!r}", reason="retraction"
            )
        rows = take_rows(given.rows, np.repeat(np.arange(len(given)), given.weights))
        output, run = fold(state[0], self._node.key, rows, self._node.handle, self._node.schema)
        return output, (run,)

    def shown(self, state: Sequence[Runs]) -> Delta:
        return contents_latest(state[0], self._node.schema, range(len(self._node.key)))
