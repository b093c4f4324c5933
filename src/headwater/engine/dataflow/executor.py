"""The interface that decides where work runs: an `Executor` is given whole stages, and says what each has made.

A step of a collection is a sequence of stages. A stage reads its inputs (ranges of the log, changes of other collections,
outputs of earlier stages), evaluates linear operators over them, exchanges the rows by key where it is divided, takes one
step of one stateful operator, and writes a run for each of its arrangements. A stage is a function of its inputs, of the
runs of its arrangements and of watermarks, so that it can run in any process, and be run again after a failure.

`driver_executor.DriverExecutor` runs stages in this process. Nothing here knows where the rows of an input are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from headwater.core.errors import EvaluationError, HeadwaterError
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, StepState
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Key, Run
from headwater.state.run_refs import RunRef

Rows: TypeAlias = "Delta | pa.RecordBatch"
"""A change; or records of a keyed topic, in the order of the log."""


class StageRows(Protocol):
    """Rows that a stage reads or has made, wherever they are: in the log, in memory or in files."""

    @property
    def is_empty(self) -> bool:
        """Whether it is known, without reading them, that there are no rows."""

    def load(self) -> Rows:
        """Return the rows in the memory of this process."""

    def weight(self) -> int:
        """Return the number of rows that come less the number of rows that go."""


@dataclass(frozen=True, eq=False)
class RowsInMemory:
    """Rows in the memory of this process."""

    rows: Rows

    @property
    def is_empty(self) -> bool:
        return not size(self.rows)

    def load(self) -> Rows:
        return self.rows

    def weight(self) -> int:
        return self.rows.num_rows if isinstance(self.rows, pa.RecordBatch) else int(self.rows.weights.sum())


@dataclass(frozen=True)
class RunParts:
    """A run that was written in parts: ranges of hashes that ascend and do not overlap."""

    refs: tuple[RunRef, ...]

    def __len__(self) -> int:
        return sum(ref.rows for ref in self.refs)


Added = Sequence[Run | RunParts]
"""The run that is added to each arrangement of a stage, in their order; arrangements at the end may be left out."""


class StageProgram(ABC):
    """What a stage computes. The same definitions give the same program in every process."""

    slots: tuple[ArrangementSpec, ...] = ()
    """The arrangements that the stage reads and adds runs to."""
    operator: Operator | None = None
    """The stateful operator of the stage, if it is one that stages of other views may have too."""
    keys: tuple[Key, ...] | None = None
    """The columns of each input of the step by which rows are exchanged; None if the step cannot be divided."""

    @abstractmethod
    def evaluate(self, inputs: Sequence[Rows], *, first: bool) -> Sequence[Rows]:
        """Return the inputs of the step: what linear operators make of the inputs of the stage."""

    @abstractmethod
    def without_state(self, given: Sequence[Rows], *, first: bool) -> Delta | None:
        """Return the output if the stage needs no state for it, as where no row has reached the step; else None."""

    def preaggregated(self, given: Sequence[Rows], state: StepState) -> tuple[Delta, Added] | None:
        """Return the outcome of the step where rows need not be expanded for it; else None, and `expanded` has the rows."""
        return None

    def expanded(self, given: Sequence[Rows]) -> Sequence[Rows]:
        """Return the inputs of the step with every row that stands for several expanded."""
        return given

    @abstractmethod
    def step(
        self, given: Sequence[Rows], state: StepState, *, first: bool, watermarks: Mapping[str, int]
    ) -> tuple[Delta, Added]:
        """Return the output and the runs to add, for inputs of the step and the runs of the arrangements."""

    def named(self, output: Delta) -> Delta:
        """Return an output of the step with the names of the columns that readers expect."""
        return output


@dataclass(frozen=True, eq=False)
class BoundStage:
    """The program of a stage with its inputs, its state and its watermarks."""

    program: StageProgram
    inputs: Sequence[StageRows]
    state: StepState
    first: bool = False
    """Whether there is no state yet, so that constants and aggregates over no rows come in."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """The watermarks of the topics that the program waits for."""


@dataclass(frozen=True, eq=False)
class StageResult:
    """The outcome of a stage: the change of its output, and the runs to add, by arrangement."""

    output: StageRows
    runs: Mapping[ArrangementSpec, Run | RunParts] = field(default_factory=dict)


class StagedStep(Protocol):
    """A step that is taken stage by stage."""

    def next_stage(self) -> BoundStage | None:
        """Return the next stage; None once all have run. It may be asked for again if it has not been run."""

    def take(self, result: StageResult) -> None:
        """Accept the outcome of the stage that `next_stage` returned last."""

    def recover(self, error: EvaluationError) -> None:
        """Begin again in a way that avoids an error of evaluation, or raise it."""


Step = TypeVar("Step", bound=StagedStep)
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs the stages of steps: in this process, in others, or as jobs of a cluster."""

    def run(
        self,
        steps: Iterable[Step],
        done: Callable[[Step], None],
        failed: Callable[[Step, HeadwaterError], None],
    ) -> None:
        """Run steps that do not depend on each other to their ends.

        A step is handed to `done` as soon as it has ended, or to `failed` with its error; `failed` may raise, which ends
        the others too. The rows of its results can be loaded until `done` has returned. Steps are asked for one by one:
        each may do work of its own as it is made.
        """


def run_one(executor: Executor, step: Step, result: Callable[[Step], Result]) -> Result:
    """Run one step to its end, and return its result; raise its error if it fails."""
    results: list[Result] = []

    def raised(_: Step, error: HeadwaterError) -> None:
        raise error

    executor.run([step], lambda ended: results.append(result(ended)), raised)
    return results[0]


def size(rows: Rows) -> int:
    """Return the number of rows of a change, or of records."""
    return rows.num_rows if isinstance(rows, pa.RecordBatch) else len(rows)
