"""The stages of collections: the one that applies records to a keyed topic's table, and the last one of a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.executor import Added, Rows, StageProgram, size
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.operator_interface import ArrangementSpec, StepState
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run


class KeyedTable(Protocol):
    """A keyed topic as a table, or as the versions of its rows: what its stage needs of it."""

    slots: tuple[ArrangementSpec, ...]
    schema: pa.Schema

    def apply(self, records: Rows, state: StepState) -> tuple[Delta, Run]:
        """Return the change that records make, and the run to add."""


class TableStage(StageProgram):
    """Applies upserts and tombstones of a keyed topic to its table."""

    def __init__(self, table: KeyedTable) -> None:
        self._table = table
        self.slots = table.slots

    def evaluate(self, inputs: Sequence[Rows], *, first: bool) -> Sequence[Rows]:
        return list(inputs)

    def without_state(self, given: Sequence[Rows], *, first: bool) -> Delta | None:
        return None if size(given[0]) else Delta.empty(self._table.schema)

    def step(
        self, given: Sequence[Rows], state: StepState, *, first: bool, watermarks: Mapping[str, int]
    ) -> tuple[Delta, Added]:
        change, run = self._table.apply(given[0], state)
        return change, (run,)


class ContentsStage(StageProgram):
    """The last stage of a view: consolidates the change of its rows, and arranges it by the view's key."""

    def __init__(self, pipeline: Dataflow, contents: ArrangementSpec) -> None:
        self._pipeline = pipeline
        self._schema = contents.schema
        self.slots = (contents,)

    def evaluate(self, inputs: Sequence[Rows], *, first: bool) -> Sequence[Rows]:
        return list(inputs)

    def without_state(self, given: Sequence[Rows], *, first: bool) -> Delta | None:
        return None if size(given[0]) else Delta.empty(self._schema)

    def step(
        self, given: Sequence[Rows], state: StepState, *, first: bool, watermarks: Mapping[str, int]
    ) -> tuple[Delta, Added]:
        change = given[0]
        assert isinstance(change, Delta)
        return self.named_run(self._pipeline.arranged(change, self.slots[0].key))

    def named_run(self, changed: Run) -> tuple[Delta, Added]:
        """Return an arranged change of the contents with the column names of the view, as a delta and as a run."""
        rows = renamed(changed.rows, self._schema)
        return Delta(rows, changed.weights, distinct=True), (Run(changed.hashes, rows, changed.weights),)
