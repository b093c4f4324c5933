"""The stages of a dataflow: its graph divided into parts of linear operators with at most one stateful operator each.

A stage ends at a stateful operator, and at a linear operator that several stages read, so that its rows are computed once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.engine.dataflow.executor import Added, Rows, StageProgram
from headwater.engine.dataflow.keyed_operators import KeyedOperator
from headwater.engine.dataflow.linear import columns_used, renamed
from headwater.engine.dataflow.operator_interface import Operator, StepState
from headwater.engine.dataflow.operators.close import CloseOperator
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.engine.dataflow.portable_stages import PortableInput, PortableOperator, PortableStage
from headwater.engine.dataflow.window_preaggregation import WindowPreaggregation
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta


@dataclass(frozen=True, eq=False)
class PlacedOperator:
    """An operator at its place in a dataflow."""

    place: int
    node: g.Node
    operator: Operator
    inputs: tuple[int, ...]
    """Places of the operators that this operator reads."""
    nothing: Delta
    """Empty change of the output."""

    @property
    def is_source(self) -> bool:
        return isinstance(self.node, g.SourceNode)

    @property
    def is_linear(self) -> bool:
        return kind_of(self.node).is_linear

    def named(self, output: Delta) -> Delta:
        """Return the output with the column names of the node."""
        return output.renamed(renamed(output.rows, self.node.schema)) if len(output) else self.nothing

    def initial(self, *, first: bool) -> Delta:
        """Return the output if no row comes in: in the first step the operator's output over no rows, later an empty
        change."""
        made = self.operator.initial() if first else None
        return self.nothing if made is None else self.named(made)

    def linear_output(self, outputs: Mapping[int, Delta], *, first: bool) -> Delta:
        """Return the output of a linear operator."""
        given = [outputs[i] for i in self.inputs]
        if not any(map(len, given)):
            return self.initial(first=first)
        return self.named(self.operator.step(given, ())[0])


class DataflowStage(StageProgram):
    """A part of a dataflow: linear operators, and the stateful operator that reads them, if there is one."""

    def __init__(
        self,
        members: Sequence[PlacedOperator],
        preaggregation: tuple[WindowPreaggregation, Operator] | None = None,
    ) -> None:
        """`members`: the operators of the stage, inputs first; the output of the last one is that of the stage.
        `preaggregation`: the combination of rows of overlapping windows before they are expanded, and the Map that
        expands them."""
        self._head = members[-1]
        self.place = self._head.place
        """Place in the dataflow of the operator that computes the output."""
        self._sources = [each for each in members if each.is_source]
        self._linear = [each for each in members if each.is_linear and not each.is_source]
        self._is_linear = self._head.is_linear
        self.source_names = tuple(cast(g.SourceNode, each.node).name for each in self._sources)
        """Names of the sources that the stage reads; they are the first of its inputs."""
        own = {each.place for each in members}
        self._schemas = {
            place: child.schema
            for each in members
            for place, child in zip(each.inputs, each.node.inputs, strict=False)
        }
        self._portable: PortableStage | None = None
        self._is_portable = preaggregation is None and not self._is_linear
        below = dict.fromkeys(i for each in members for i in each.inputs if i not in own)
        self.reads = tuple(below)
        """Places of the outputs of earlier stages that the stage reads; they are the inputs after the sources."""
        self._preaggregation = preaggregation
        if not self._is_linear:
            self.operator = self._head.operator
            self.slots = self._head.operator.slots
            self.keys = self._head.operator.keys if preaggregation is None else None

    def evaluate(self, inputs: Sequence[Rows], *, first: bool) -> Sequence[Rows]:
        changes = cast("Sequence[Delta]", inputs)
        outputs = {
            each.place: _read(each, change) for each, change in zip(self._sources, changes, strict=False)
        }
        outputs.update(zip(self.reads, changes[len(self._sources) :], strict=True))
        for each in self._linear:
            outputs[each.place] = each.linear_output(outputs, first=first)
        return [outputs[self.place]] if self._is_linear else [outputs[i] for i in self._head.inputs]

    def without_state(self, given: Sequence[Rows], *, first: bool) -> Delta | None:
        changes = cast("Sequence[Delta]", given)
        if self._is_linear:
            return changes[0]
        if any(map(len, changes)) or isinstance(self.operator, CloseOperator):
            return None
        return self._head.initial(first=first)

    def preaggregated(self, given: Sequence[Rows], state: StepState) -> tuple[Delta, Added] | None:
        if self._preaggregation is None:
            return None
        (change,) = cast("Sequence[Delta]", given)
        done = self._preaggregation[0].step(change, state(self.slots[0]))
        return None if done is None else (done.output, (done.state,))

    def expanded(self, given: Sequence[Rows]) -> Sequence[Rows]:
        if self._preaggregation is None:
            return given
        return [self._preaggregation[1].step(cast("Sequence[Delta]", given), ())[0]]

    def step(
        self, given: Sequence[Rows], state: StepState, *, first: bool, watermarks: Mapping[str, int]
    ) -> tuple[Delta, Added]:
        operator, changes = self._head.operator, cast("Sequence[Delta]", given)
        runs = [state(slot) for slot in self.slots]
        if isinstance(operator, CloseOperator):
            output, run = operator.step_at(changes[0], runs[0], watermarks)
            return output, (run,)
        return (operator.begin if first else operator.step)(changes, runs)

    def named(self, output: Delta) -> Delta:
        return self._head.named(output)

    def portable(self) -> PortableStage | None:
        if self._is_portable and self._portable is None:
            self._portable = self._made_portable()
            self._is_portable = self._portable is not None
        return self._portable

    def _made_portable(self) -> PortableStage | None:
        operator = self._head.operator
        if not isinstance(operator, KeyedOperator) or not operator.keys or not all(map(len, operator.keys)):
            return None
        if any(isinstance(each.node, g.Constant) or _calls_user_code(each.node) for each in self._linear):
            return None  # constants are rows of the first step alone; user code is known to this process
        sources = [self._portable_input(each) for each in self._sources]
        earlier = [PortableInput(place, self._schemas[place]) for place in self.reads]
        linear = [
            PortableOperator(each.place, each.inputs, each.operator, each.node.schema)
            for each in self._linear
        ]
        stage = PortableStage((*sources, *earlier), tuple(linear), self._head.inputs, operator.keys)
        return None if stage.pickled is None else stage

    def _portable_input(self, source: PlacedOperator) -> PortableInput:
        node, used = source.node, set[int]()
        assert isinstance(node, g.SourceNode)
        readers = [each for each in (*self._linear, self._head) if source.place in each.inputs]
        for each in readers:
            columns = columns_used(each.node) if isinstance(each.node, g.Map) else None
            if columns is None:
                return PortableInput(source.place, node.schema, node.columns, node.hidden)
            used |= columns
        return PortableInput(source.place, node.schema, node.columns, node.hidden, tuple(sorted(used)))


def _calls_user_code(node: g.Node) -> bool:
    return isinstance(node, g.Map) and any(isinstance(step, g.UdfCall) for step in node.steps)


def divided(operators: Sequence[PlacedOperator]) -> list[list[PlacedOperator]]:
    """Divide the operators of a dataflow, inputs first and its root last, into the members of stages.

    A source belongs to every stage with an operator that reads it.
    """
    stages: dict[int, list[PlacedOperator]] = {}
    readers: dict[int, set[int]] = defaultdict(set)
    root = operators[-1].place
    for each in reversed(operators):
        mine = readers[each.place]
        if each.place == root or (not each.is_source and (len(mine) > 1 or not each.is_linear)):
            mine = {each.place}
        for head in mine:
            stages.setdefault(head, []).append(each)
        for below in each.inputs:
            readers[below] |= mine
    return [list(reversed(stages[head])) for head in sorted(stages)]


def source_change(node: g.SourceNode, change: Delta | None) -> Delta:
    """Return a change of a topic or view with the columns that a source node reads."""
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
            f"a value of {node.name} does not fit the previous type of its column: {error}",
            hint="the view is being rebuilt with the wider type",
        ) from error


def _read(source: PlacedOperator, change: Delta) -> Delta:
    assert isinstance(source.node, g.SourceNode)
    return source_change(source.node, change) if len(change) else source.nothing
