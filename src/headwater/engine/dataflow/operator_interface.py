"""The interface of an operator of a running view: its arrangements, and its step over a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

from headwater.operators.aggregate import aggregate
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.operators.zset.ordered_runs import ColumnOrder
from headwater.operators.zset.runs import Key, Run
from headwater.state.manifest import encode_schema
from headwater.state.run_refs import RunRef
from headwater.state.state_files import FileOrigin
from headwater.state.task_exchange import Exchange

if TYPE_CHECKING:
    from headwater.plan.time.state_expiry import Expiry

Runs = Sequence[Run]


@dataclass(frozen=True, eq=False)
class ArrangementSpec:
    """One arrangement of an operator: how its runs are sorted and merged. Compared by identity."""

    name: str
    discipline: Literal["multiset", "latest", "ordered"]
    key: tuple[int, ...]
    order: tuple[ColumnOrder, ...]
    schema: pa.Schema
    expires: Expiry | None = None

    @cached_property
    def layout(self) -> str:
        """The columns as text; runs of arrangements with equal layouts can be stored in one stream."""
        return encode_schema(self.schema)


class TickContext(Protocol):
    """The properties of a tick that the tasks of a step need."""

    @property
    def root(self) -> str:
        """The folder of the workspace."""

    @property
    def origin(self) -> FileOrigin:
        """The origin that marks the tick's files."""

    def exchange(self) -> Exchange:
        """Return a new folder for the files of one step."""


class StepState(TickContext, Protocol):
    """The arrangements that a step may read, in memory or as files, and the context of its tick."""

    def __call__(self, slot: ArrangementSpec) -> Runs:
        """Return the runs of an arrangement, oldest first."""

    def refs(self, slot: ArrangementSpec) -> Sequence[RunRef]:
        """Return references to the runs of an arrangement, oldest first; all of them are on disk and durable."""


class Operator:
    """A node that is ready to run. `slots` are its arrangements; `step` gets their runs in that order."""

    slots: tuple[ArrangementSpec, ...] = ()
    keys: tuple[Key, ...] | None = None
    """Columns of each input by which a step can be divided among tasks (`keyed_operators`); None if it cannot be divided."""
    stackable: aggregate.AggregateSpec | None = None
    """Specification of the aggregation, if small steps of the operator can be stacked with those of other operators."""

    def initial(self) -> Delta | None:
        """Return the output before any change has come in; None if there is none."""
        return None

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        """Return the change of the output, and a run to add to each arrangement."""
        raise NotImplementedError

    def begin(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        """Run the first step, over inputs that are not empty; the output omits the initial row that the same step would
        retract."""
        output, runs = self.step(inputs, state)
        initial = self.initial()
        return (output if initial is None else netted(initial, output)), runs

    def shown(self, state: Sequence[Runs]) -> Delta:
        """Return the complete output so far, computed from the state; only operators whose kind has `keeps_output`
        implement this."""
        raise NotImplementedError


def netted(initial: Delta, output: Delta) -> Delta:
    """Return the first output of an operator without the row over empty input that it retracts at once: expressions may
    fail on that row."""
    return consolidate(concat([initial, output], initial.rows.schema))
