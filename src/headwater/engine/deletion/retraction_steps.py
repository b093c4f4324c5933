"""Steps of a view that retract rows which only a deletion removes.

Operators that keep too little to take a row back have the groups computed again that rows go from (`recompute_groups`); all others
step as ever. Such steps are rare: they run in the driver, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.engine.collections.collections import ViewCollection, ViewStep
from headwater.engine.dataflow.dataflow import Dataflow, DataflowStep
from headwater.engine.dataflow.operator_interface import StepState
from headwater.engine.dataflow.operators.close import CloseOperator
from headwater.engine.deletion.recompute_groups import GroupRecomputation
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run


class RetractionStep(DataflowStep):
    """A step of a dataflow that recomputes the groups of retracted rows where an operator cannot retract them."""

    def __init__(
        self,
        dataflow: Dataflow,
        changes: Mapping[str, Delta],
        state: StepState,
        watermarks: Mapping[str, int],
        recomputing: GroupRecomputation,
    ) -> None:
        super().__init__(dataflow, changes, state, first=False, watermarks=watermarks)
        self._recomputing = recomputing

    def advance(self) -> None:
        """Run all operators."""
        dataflow, recomputing = self.dataflow, self._recomputing
        for place, (node, operator) in enumerate(dataflow.nodes):
            if (leaf := dataflow.leaf(place, self.changes)) is not None:
                self.outputs.append(leaf)
                continue
            given = dataflow.inputs(place, self.outputs)
            state = [self.state(slot) for slot in operator.slots]
            if isinstance(operator, CloseOperator):
                self.close(operator, recomputing.waiting(node, given[0], state[0]))
                continue
            if place in dataflow.spreads:
                given = dataflow.mapped(place, given)
            if recomputing.applies(node, given):
                self.put(*recomputing.step(node, operator, given, state))
            elif any(map(len, given)):
                self.put(*operator.step(given, state))
            else:
                self.put_initial(operator)


class RetractionViewStep(ViewStep):
    """A step of a view that retracts rows."""

    def __init__(
        self,
        unit: ViewCollection,
        changes: Mapping[str, Delta],
        state: StepState,
        watermarks: Mapping[str, int],
        recomputing: GroupRecomputation,
    ) -> None:
        self._recomputing = recomputing
        super().__init__(unit, changes, state, first=False, watermarks=watermarks)

    def _begun(self) -> DataflowStep:
        pipeline, watermarks = self.unit.pipeline, self._watermarks
        return RetractionStep(pipeline, self._admitted, self.state, watermarks, self._recomputing)

    def _arranged(self, step: DataflowStep) -> Run:
        change, key = super()._arranged(step), self.unit.key
        return self._recomputing.instead(change, self.state(self.unit.contents), key)
