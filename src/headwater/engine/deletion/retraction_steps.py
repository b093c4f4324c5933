"""Steps of a view that retract rows removed by a deletion.

Operators whose state is insufficient to retract a row recompute the groups from which rows are removed
(`recompute_groups`); all other operators run their regular step. Such steps are rare: they run in the driver, one
operator after the other, and not as stages.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.core.errors import EvaluationError
from headwater.engine.collections.collection_steps import ViewStep
from headwater.engine.collections.collections import ViewCollection
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.executor import (
    Added,
    BoundStage,
    RowsInMemory,
    RunParts,
    StageResult,
    StageRows,
)
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, StepState
from headwater.engine.dataflow.operators.close import CloseOperator
from headwater.engine.deletion.recompute_groups import GroupRecomputation
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run


class RetractionStep:
    """A step of a dataflow that recomputes the groups of retracted rows if an operator cannot retract them."""

    def __init__(
        self,
        dataflow: Dataflow,
        state: StepState,
        watermarks: Mapping[str, int],
        recomputing: GroupRecomputation,
    ) -> None:
        self._dataflow = dataflow
        self._state = state
        self._watermarks = watermarks
        self._recomputing = recomputing
        self._outputs: list[Delta] = []
        self.runs: dict[ArrangementSpec, Run | RunParts] = {}

    def run(self, changes: Mapping[str, Delta]) -> Delta:
        """Run all operators over a change of the sources, and return the change of the root's rows."""
        dataflow, recomputing = self._dataflow, self._recomputing
        for place, (node, operator) in enumerate(dataflow.nodes):
            if (leaf := dataflow.leaf(place, changes)) is not None:
                self._outputs.append(leaf)
                continue
            given = dataflow.inputs(place, self._outputs)
            state = [self._state(slot) for slot in operator.slots]
            if isinstance(operator, CloseOperator):
                final = recomputing.waiting(node, given[0], state[0])
                output, run = operator.step_at(final, self._state(operator.slots[0]), self._watermarks)
                self._put(operator, output, (run,))
                continue
            if place in dataflow.spreads:
                given = dataflow.mapped(place, given)
            if recomputing.applies(node, given):
                self._put(operator, *recomputing.step(node, operator, given, state))
            elif any(map(len, given)):
                self._put(operator, *operator.step(given, state))
            else:
                self._outputs.append(dataflow.nothing[place])
        return self._outputs[-1]

    def _put(self, operator: Operator, output: Delta, added: Added) -> None:
        """Keep the outcome of an operator: the change of its output, and the runs to add to its arrangements."""
        self.runs.update((slot, run) for slot, run in zip(operator.slots, added, strict=False) if len(run))
        self._outputs.append(self._dataflow.named(len(self._outputs), output))


class RetractionViewStep(ViewStep):
    """A step of a view that retracts rows."""

    def __init__(
        self,
        unit: ViewCollection,
        changes: Mapping[str, StageRows],
        state: StepState,
        watermarks: Mapping[str, int],
        recomputing: GroupRecomputation,
    ) -> None:
        super().__init__(unit, changes, state, first=False, watermarks=watermarks)
        self._recomputing = recomputing

    def next_stage(self) -> BoundStage | None:
        """Run the whole step in this process, and return None: no stage is left to an executor."""
        try:
            self._made = self._retracted()
        except EvaluationError as error:
            self.recover(error)
            self._made = self._retracted()
        self._find_late()
        return None

    def _retracted(self) -> StageResult:
        unit = self.unit
        step = RetractionStep(unit.pipeline, self.state, self._watermarks, self._recomputing)
        change = unit.pipeline.arranged(step.run(self.admitted()), unit.key)
        change = self._recomputing.instead(change, self.state(unit.contents), unit.key)
        output, added = unit.contents_stage.named_run(change)
        runs = step.runs | {slot: run for slot, run in zip((unit.contents,), added, strict=True) if len(run)}
        return StageResult(RowsInMemory(output), runs)
