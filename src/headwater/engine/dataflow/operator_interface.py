"""The interface of an operator of a running view: the arrangements that it keeps, and its step over a change."""

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
    """One arrangement of an operator: how its runs are sorted, and how they are merged. Each is itself alone."""

    name: str
    discipline: Literal["multiset", "latest", "ordered"]
    key: tuple[int, ...]
    order: tuple[ColumnOrder, ...]
    schema: pa.Schema
    expires: Expiry | None = None

    @cached_property
    def layout(self) -> str:
        """Its columns, as text: runs of arrangements that have the same can lie in one stream."""
        return encode_schema(self.schema)


class TickContext(Protocol):
    """The tick that a step is part of, as far as its tasks must know it."""

    @property
    def root(self) -> str:
        """The folder of the workspace."""

    @property
    def origin(self) -> FileOrigin:
        """Who writes the tick."""

    def exchange(self) -> Exchange:
        """A new folder for one step."""


class StepState(TickContext, Protocol):
    """The arrangements that a step may look into, in memory or as files, and the tick that it is part of."""

    def __call__(self, slot: ArrangementSpec) -> Runs:
        """The runs of an arrangement, oldest first."""

    def refs(self, slot: ArrangementSpec) -> Sequence[RunRef]:
        """The same, on disk and durable."""


class Operator:
    """A node that is ready to run. `slots` are its arrangements; `step` gets their runs in that order."""

    slots: tuple[ArrangementSpec, ...] = ()
    keys: tuple[Key, ...] | None = None
    """The columns of each input that a step can be divided by, among tasks (`keyed_operators`); None if it cannot."""
    stackable: aggregate.AggregateSpec | None = None
    """If small steps of it can be made together with those of others: what they do."""

    def initial(self) -> Delta | None:
        """What it puts out before any change reaches it."""
        return None

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        """The change of its output, and a run to add to each slot."""
        raise NotImplementedError

    def begin(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        """The first step, with rows: all that it puts out, without what it would have put out over none."""
        output, runs = self.step(inputs, state)
        initial = self.initial()
        return (output if initial is None else netted(initial, output)), runs

    def shown(self, state: Sequence[Runs]) -> Delta:
        """All that it has put out, if what it keeps tells that."""
        raise NotImplementedError


def netted(initial: Delta, output: Delta) -> Delta:
    """The first output of an operator without the row over empty input that goes at once: expressions may fail on it."""
    return consolidate(concat([initial, output], initial.rows.schema))
