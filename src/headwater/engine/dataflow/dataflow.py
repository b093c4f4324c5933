"""A view's graph made ready to run: a change of its sources goes in, a change of the view comes out.

Pure over its state: `step` is given the runs of every arrangement and returns the runs to add. It neither reads nor
writes files, so the same step runs in the driver and, by hash range, in tasks, and can be done again after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, StepState
from headwater.engine.dataflow.operators.close import CloseOperator
from headwater.engine.dataflow.operators.operator_kind import BuildContext
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.engine.dataflow.output_keys import group_columns
from headwater.engine.dataflow.placement import Placement, RunParts
from headwater.engine.dataflow.pruning import unread
from headwater.engine.dataflow.stacked_steps import run_alone
from headwater.engine.dataflow.window_preaggregation import WindowPreaggregation
from headwater.operators import graph as g
from headwater.operators.aggregate import aggregate, stacking
from headwater.operators.aggregate.aggregate import AggregateStep
from headwater.operators.aggregate.stacking import StackableStep
from headwater.operators.zset.delta import Delta, consolidate
from headwater.operators.zset.runs import Run, arrange
from headwater.plan.time.state_expiry import Expiries


@dataclass(frozen=True)
class StepResult:
    """What a step of a view gave: the change of its rows, and the runs to add, by slot."""

    change: Delta
    runs: Mapping[ArrangementSpec, Run | RunParts]


class Dataflow:
    """All operators of a view, inputs first. An operator that two others read runs once."""

    def __init__(
        self,
        root: g.Node,
        evaluator: Evaluator,
        placement: Placement | None = None,
        expiries: Expiries | None = None,
    ) -> None:
        self.evaluator = evaluator
        self.placement = placement
        self._expiries = expiries or {}
        self.schema = root.schema
        self.root = root
        self._nodes: list[g.Node] = []
        self._place: dict[int, int] = {}
        self.operators: list[Operator] = []
        """By place."""
        self._inputs: list[list[int]] = []
        self._unread = unread(root)
        self._add(root, evaluator)
        self.spreads = self._spread(evaluator)
        """By place: aggregates that are computed together with the Map below them, which is then skipped."""
        self._passed_over = frozenset(below for _, below in self.spreads.values())
        self.nothing = [Delta.empty(node.schema) for node in self._nodes]
        """No change of each node's rows."""
        self.group = group_columns(root)
        """The columns of the group's key, where the view shows it."""
        self.slots = tuple(slot for operator in self.operators for slot in operator.slots)

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
        """Apply a change of the sources. `first`: there is no state yet, so constants and empty aggregates come in;
        `watermarks`: those of topics, where the graph waits for some.

        The change is consolidated.
        """
        step = run_alone(DataflowStep(self, changes, state, first=first, watermarks=watermarks or {}))
        return StepResult(consolidate(step.change), step.runs)

    # --- what a step asks --------------------------------------------------------------------------------------------

    def leaf(self, place: int, changes: Mapping[str, Delta]) -> Delta | None:
        """The change of a source, or no change for a Map that is computed with the aggregate above it; None for other nodes."""
        node = self._nodes[place]
        if isinstance(node, g.SourceNode):
            given = changes.get(node.name)
            return self.nothing[place] if given is None or not len(given) else source_change(node, given)
        return self.nothing[place] if place in self._passed_over else None

    def inputs(self, place: int, outputs: Sequence[Delta]) -> list[Delta]:
        """The input changes of an operator, out of the outputs of all operators before it."""
        return [outputs[i] for i in self._inputs[place]]

    def named(self, place: int, output: Delta) -> Delta:
        """The output of an operator with the column names of its node."""
        if not len(output):
            return self.nothing[place]
        return output.renamed(renamed(output.rows, self._nodes[place].schema))

    def mapped(self, place: int, given: Sequence[Delta]) -> list[Delta]:
        """The rows of the Map below an aggregate, where the two are not computed together after all."""
        below = self.spreads[place][1]
        return [self.operators[below].step(given, ())[0]]


class DataflowStep:
    """A step of a dataflow: the operators run in their order, inputs first, over a change of the sources.

    `advance` stops where an operator is about to make a small step that others of its shape may make with it, and `resume`
    goes on with what came of it.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        changes: Mapping[str, Delta],
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
        self.outputs: list[Delta] = []
        """The change of each node's output, as far as the step has come."""
        self.runs: dict[ArrangementSpec, Run | RunParts] = {}
        self._asked: StackableStep | None = None

    def advance(self) -> StackableStep | None:
        """Run operators until one may make its step with others; None once all have run."""
        dataflow, state = self.dataflow, self.state
        while (place := len(self.outputs)) < len(dataflow):
            if (leaf := dataflow.leaf(place, self.changes)) is not None:
                self.outputs.append(leaf)
                continue
            operator, given = dataflow.operators[place], dataflow.inputs(place, self.outputs)
            if isinstance(operator, CloseOperator):
                self.close(operator, given[0])
                continue
            if not any(map(len, given)):
                self.put_initial(operator)
                continue
            if place in dataflow.spreads:
                if (done := dataflow.spreads[place][0].step(given[0], state(operator.slots[0]))) is not None:
                    self.put(done.output, (done.state,))
                    continue
                given = dataflow.mapped(place, given)
            placement = dataflow.placement
            if placement is not None and placement.wants(operator, given):
                refs = [state.refs(slot) for slot in operator.slots]
                if (placed := placement.step(operator, given, refs, state)) is not None:
                    self.put(*placed)
                    continue
            runs = [state(slot) for slot in operator.slots]
            if operator.stackable is not None and len(given[0]) <= stacking.ROWS_MAX:
                self._asked = StackableStep(operator.stackable, runs[0], given[0])
                return self._asked
            self.put(*(operator.begin if self.first else operator.step)(given, runs))
        return None

    def resume(self, done: AggregateStep | None) -> None:
        """Continue with the outcome of the small step that `advance` stopped at; None if it was not stacked and is made here."""
        assert self._asked is not None
        if done is None:
            asked = self._asked
            operator = self.dataflow.operators[len(self.outputs)]
            self.put(*operator.step([asked.delta], [asked.state]))
        else:
            self.put(done.output, (done.state,))

    @property
    def change(self) -> Delta:
        """The change of the root's rows, not consolidated."""
        return self.outputs[-1]

    def arranged(self, key: tuple[int, ...]) -> Run:
        """The change of the root's rows, as a run by these columns, which must be the dataflow's `group` where there is one."""
        change = self.change
        if self.dataflow.group is not None and change.hashes is not None:
            change = aggregate.netted(change)
            assert change.hashes is not None
            return Run(change.hashes, change.rows, change.weights)
        return arrange(change, key)

    # --- one operator ------------------------------------------------------------------------------------------------

    def close(self, operator: CloseOperator, given: Delta) -> None:
        """Run an operator that depends on watermarks, also without a change of its input."""
        output, run = operator.step_at(given, self.state(operator.slots[0]), self.watermarks)
        self.put(output, (run,))

    def put_initial(self, operator: Operator) -> None:
        """Skip an operator without input changes; in the first step its output over no rows comes in."""
        initial = operator.initial() if self.first else None
        self.put(self.dataflow.nothing[len(self.outputs)] if initial is None else initial, ())

    def put(self, output: Delta, added: Sequence[Run | RunParts]) -> None:
        """Store the outcome of the operator that has just run: the change of its output, and the runs to add to its arrangements."""
        place = len(self.outputs)
        operator = self.dataflow.operators[place]
        self.runs.update((slot, run) for slot, run in zip(operator.slots, added, strict=False) if len(run))
        self.outputs.append(self.dataflow.named(place, output))


def source_change(node: g.SourceNode, change: Delta | None) -> Delta:
    """A change of a topic or view, by the columns that a source reads of it."""
    if change is None or not len(change):
        return Delta.empty(node.schema)
    if (
        not node.hidden
        and node.columns == tuple(range(len(node.schema)))
        and change.rows.schema.equals(node.schema)
    ):
        return change
    hidden = (change.rows.schema.names.index(name) for name in node.hidden)
    try:
        return change.with_rows(renamed(change.rows.select([*node.columns, *hidden]), node.schema))
    except pa.ArrowInvalid as error:  # a column was widened since the view was planned
        raise EvaluationError(
            f"a value of {node.name} does not fit the type that its column had: {error}",
            hint="the view is being built anew with the wider type",
        ) from error
