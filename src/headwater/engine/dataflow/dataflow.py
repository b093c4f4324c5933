"""The graph of a view, ready to run: a change of the sources goes in, a change of the view comes out.

A step is a sequence of stages (`dataflow_stages`). A stage is a pure function of its state: it gets the runs of its
arrangements and returns the runs to add. It neither reads nor writes state files, so it can run in any process, and
again after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.core.errors import EvaluationError
from headwater.engine.dataflow.dataflow_stages import DataflowStage, PlacedOperator, divided, source_change
from headwater.engine.dataflow.driver_executor import DriverExecutor
from headwater.engine.dataflow.executor import (
    BoundStage,
    RowsInMemory,
    RunParts,
    StageResult,
    StageRows,
    run_one,
)
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.linear import positional, renamed
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, StepState
from headwater.engine.dataflow.operators.operator_kind import BuildContext
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.engine.dataflow.output_keys import group_columns
from headwater.engine.dataflow.pruning import unread
from headwater.engine.dataflow.window_preaggregation import WindowPreaggregation
from headwater.operators import graph as g
from headwater.operators.aggregate import aggregate
from headwater.operators.zset.delta import Delta, consolidate
from headwater.operators.zset.runs import Run, arrange
from headwater.plan.time.state_expiry import Expiries

NO_ROWS = RowsInMemory(Delta.empty(positional([])))
"""Empty change of a source, regardless of the source's columns."""


@dataclass(frozen=True)
class StepResult:
    """Result of a step of a view: the change of its rows, and the runs to add, by arrangement."""

    change: Delta
    runs: Mapping[ArrangementSpec, Run | RunParts]


class Dataflow:
    """All operators of a view, inputs first. An operator with several readers runs once."""

    def __init__(
        self,
        root: g.Node,
        evaluator: Evaluator,
        expiries: Expiries | None = None,
    ) -> None:
        self.evaluator = evaluator
        self._expiries = expiries or {}
        self.schema = root.schema
        self.root = root
        self._nodes: list[g.Node] = []
        self._place: dict[int, int] = {}
        self.operators: list[Operator] = []
        """The operators, by place (index in the order of evaluation)."""
        self._inputs: list[list[int]] = []
        self._unread = unread(root)
        self._add(root, evaluator)
        self.spreads = self._spread(evaluator)
        """By place: the aggregates that are computed together with the Map below them; that Map is then skipped."""
        self._passed_over = frozenset(below for _, below in self.spreads.values())
        self.nothing = [Delta.empty(node.schema) for node in self._nodes]
        """Empty change of each node, by place."""
        self.group = group_columns(root)
        """Output columns of the group's key; None if the output does not contain the whole key."""
        self.slots = tuple(slot for operator in self.operators for slot in operator.slots)
        self.stages = self._stages()
        """The stages of a step, inputs first."""

    def _add(self, node: g.Node, evaluator: Evaluator) -> int:
        if id(node) in self._place:
            return self._place[id(node)]
        inputs = [self._add(child, evaluator) for child in node.inputs]
        place = len(self._nodes)
        self._place[id(node)] = place
        self._nodes.append(node)
        self._inputs.append(inputs)
        operator = kind_of(node).build(node, BuildContext(str(place), evaluator, self._unread))
        if (known := self._expiries.get(id(node))) is not None:
            when = (*known, *[known[-1]] * len(operator.slots))
            operator.slots = tuple(replace(s, expires=e) for s, e in zip(operator.slots, when, strict=False))
        self.operators.append(operator)
        return place

    def _spread(self, evaluator: Evaluator) -> dict[int, tuple[WindowPreaggregation, int]]:
        found: dict[int, tuple[WindowPreaggregation, int]] = {}
        read = [below for inputs in self._inputs for below in inputs]
        for place, (node, operator) in enumerate(self.nodes):
            inputs = self._inputs[place]
            if len(inputs) != 1 or read.count(inputs[0]) != 1:
                continue
            if (made := kind_of(node).with_map_below(node, operator, evaluator)) is not None:
                found[place] = made, inputs[0]
                self._inputs[place] = self._inputs[inputs[0]]
        return found

    def _stages(self) -> tuple[DataflowStage, ...]:
        placed = [
            PlacedOperator(place, node, operator, tuple(self._inputs[place]), self.nothing[place])
            for place, (node, operator) in enumerate(self.nodes)
            if place not in self._passed_over
        ]
        return tuple(
            DataflowStage(members, self._preaggregation(members[-1].place)) for members in divided(placed)
        )

    def _preaggregation(self, place: int) -> tuple[WindowPreaggregation, Operator] | None:
        if place not in self.spreads:
            return None
        combined, below = self.spreads[place]
        return combined, self.operators[below]

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def nodes(self) -> Sequence[tuple[g.Node, Operator]]:
        """Every node with its operator, inputs first."""
        return list(zip(self._nodes, self.operators, strict=True))

    def step(
        self,
        changes: Mapping[str, Delta],
        state: StepState,
        *,
        first: bool,
        watermarks: Mapping[str, int] | None = None,
    ) -> StepResult:
        """Run all stages over a change of the sources, in this process, and return the result; its change is consolidated.

        `first`: whether there is no state yet, so that constants and aggregates over no rows are emitted; `watermarks`: the
            watermarks of the topics that the graph waits for.
        """
        given = {name: RowsInMemory(change) for name, change in changes.items()}
        step = DataflowStep(self, given, state, first=first, watermarks=watermarks or {})
        change = run_one(DriverExecutor(), step, lambda ended: ended.output.load())
        assert isinstance(change, Delta)
        return StepResult(consolidate(change), step.runs)

    # --- used by steps ------------------------------------------------------------------------------------------------

    def leaf(self, place: int, changes: Mapping[str, Delta]) -> Delta | None:
        """Return the change of a source, or no change for a Map that is computed with the aggregate above it; None for
        other nodes."""
        node = self._nodes[place]
        if isinstance(node, g.SourceNode):
            given = changes.get(node.name)
            return self.nothing[place] if given is None or not len(given) else source_change(node, given)
        return self.nothing[place] if place in self._passed_over else None

    def inputs(self, place: int, outputs: Sequence[Delta]) -> list[Delta]:
        """Return the input changes of an operator, given the outputs of all operators before it."""
        return [outputs[i] for i in self._inputs[place]]

    def named(self, place: int, output: Delta) -> Delta:
        """Return the output of an operator with the column names of its node."""
        if not len(output):
            return self.nothing[place]
        return output.renamed(renamed(output.rows, self._nodes[place].schema))

    def mapped(self, place: int, given: Sequence[Delta]) -> list[Delta]:
        """Return the output of the Map below an aggregate, for a change over which the two cannot be computed together."""
        below = self.spreads[place][1]
        return [self.operators[below].step(given, ())[0]]

    def arranged(self, change: Delta, key: tuple[int, ...]) -> Run:
        """Return a change of the root's rows as a run sorted by `key`, which must equal `group` if that is not None."""
        if self.group is not None and change.hashes is not None:
            change = aggregate.netted(change)
            assert change.hashes is not None
            return Run(change.hashes, change.rows, change.weights)
        return arrange(change, key)


class DataflowStep:
    """A step of a dataflow over a change of its sources, executed stage by stage."""

    def __init__(
        self,
        dataflow: Dataflow,
        changes: Mapping[str, StageRows],
        state: StepState,
        *,
        first: bool,
        watermarks: Mapping[str, int],
    ) -> None:
        self.dataflow = dataflow
        self.changes = changes
        self.state = state
        self.first = first
        self.watermarks = watermarks
        self.runs: dict[ArrangementSpec, Run | RunParts] = {}
        """The runs that the stages have added so far."""
        self._outputs: dict[int, StageRows] = {}
        self._ended = 0

    @property
    def is_over(self) -> bool:
        """Whether all stages have run."""
        return self._ended == len(self.dataflow.stages)

    def next_stage(self) -> BoundStage | None:
        """See `StagedStep`."""
        if self.is_over:
            return None
        program = self.dataflow.stages[self._ended]
        inputs = [self.changes.get(name) or NO_ROWS for name in program.source_names]
        inputs += [self._outputs[place] for place in program.reads]
        return BoundStage(program, inputs, self.state, self.first, self.watermarks)

    def take(self, result: StageResult) -> None:
        """See `StagedStep`."""
        self._outputs[self.dataflow.stages[self._ended].place] = result.output
        self.runs.update(result.runs)
        self._ended += 1

    def recover(self, error: EvaluationError) -> None:
        """See `StagedStep`."""
        raise error

    @property
    def output(self) -> StageRows:
        """The change of the root's rows, not consolidated, once all stages have run."""
        return self._outputs[len(self.dataflow) - 1]
