"""The interface that decides where work runs: an `Executor` runs whole stages and returns their results.

A step of a collection is a sequence of stages. A stage reads its inputs (ranges of the log, changes of other collections,
outputs of earlier stages), evaluates linear operators over them, exchanges the rows by key if it is divided, executes one step
of one stateful operator, and writes a run for each of its arrangements. A stage is a function of its inputs, of the runs of
its arrangements and of watermarks, so it can run in any process, and again after a failure.

`driver_executor.DriverExecutor` runs stages in this process. This module does not depend on where input rows are stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from headwater.core.errors import EvaluationError, HeadwaterError
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, StepState
from headwater.engine.dataflow.portable_stages import PortableStage
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Key, Run
from headwater.state.run_refs import RunRef

Rows: TypeAlias = "Delta | pa.RecordBatch"
"""A change; or records of a keyed topic, in the order of the log."""


class StageRows(Protocol):
    """The input or output rows of a stage, stored in the log, in memory or in files."""

    @property
    def is_empty(self) -> bool:
        """Whether there are certainly no rows; determined without reading any, so False does not promise that there are
        rows."""

    def load(self) -> Rows:
        """Return the rows in the memory of this process."""

    def weight(self) -> int:
        """Return the number of inserted rows minus the number of retracted rows."""


@dataclass(frozen=True)
class LogScan:
    """Ranges of a topic that any process with access to the log can read."""

    topic: str
    columns: tuple[str, ...]
    """The topic's own columns, in their order."""
    spans: tuple[tuple[int, int, int], ...]
    """Partitions, each with a half-open range of offsets."""

    @property
    def rows_max(self) -> int:
        """The largest number of records that the ranges can have."""
        return sum(stop - begin for _, begin, stop in self.spans)


class LogRows(StageRows, Protocol):
    """Rows that are ranges of the log."""

    def scan(self) -> LogScan | None:
        """Return the ranges; None if only this process can read them, or if it has read them already."""

    def was_scanned(self, scan: LogScan, rows: Mapping[int, int]) -> None:
        """Record that other processes have read these ranges, with the number of records by partition."""


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
    """A run that was written in parts, whose hash ranges ascend and do not overlap."""

    refs: tuple[RunRef, ...]

    def __len__(self) -> int:
        return sum(ref.rows for ref in self.refs)


Added = Sequence[Run | RunParts]
"""The run that is added to each arrangement of a stage, in their order; trailing arrangements may be omitted."""


class StageProgram(ABC):
    """The computation of a stage. The same definitions give the same program in every process."""

    slots: tuple[ArrangementSpec, ...] = ()
    """The arrangements that the stage reads and adds runs to."""
    operator: Operator | None = None
    """The stateful operator of the stage, if stages of other views may have the same kind of operator, so that steps
    can be stacked or divided among tasks."""
    keys: tuple[Key, ...] | None = None
    """Columns of each input of the step by which rows are exchanged; None if the step cannot be divided."""

    @abstractmethod
    def evaluate(self, inputs: Sequence[Rows], *, first: bool) -> Sequence[Rows]:
        """Evaluate the linear operators over the inputs of the stage, and return the inputs of the stateful step."""

    @abstractmethod
    def without_state(self, given: Sequence[Rows], *, first: bool) -> Delta | None:
        """Return the output if it does not depend on state, for example because no row has reached the step; else None."""

    def preaggregated(self, given: Sequence[Rows], state: StepState) -> tuple[Delta, Added] | None:
        """Return the outcome of the step if it can be computed without expanding rows; None if the rows must be `expanded`."""
        return None

    def expanded(self, given: Sequence[Rows]) -> Sequence[Rows]:
        """Return the inputs of the step with each row that represents several rows expanded."""
        return given

    @abstractmethod
    def step(
        self, given: Sequence[Rows], state: StepState, *, first: bool, watermarks: Mapping[str, int]
    ) -> tuple[Delta, Added]:
        """Return the output and the runs to add, given the inputs of the step and the runs of the arrangements."""

    def named(self, output: Delta) -> Delta:
        """Return an output of the step with the column names that its readers expect."""
        return output

    def portable(self) -> PortableStage | None:
        """Return the program in a form that tasks on other machines can run; None if it needs this process or its JVM."""
        return None


@dataclass(frozen=True, eq=False)
class BoundStage:
    """The program of a stage with its inputs, its state and its watermarks."""

    program: StageProgram
    inputs: Sequence[StageRows]
    state: StepState
    first: bool = False
    """Whether there is no state yet, so that constants and aggregates over no rows are emitted."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """The watermarks of the topics that the program waits for."""


@dataclass(frozen=True, eq=False)
class StageResult:
    """The outcome of a stage: the change of its output, and the runs to add, by arrangement."""

    output: StageRows
    runs: Mapping[ArrangementSpec, Run | RunParts] = field(default_factory=dict)


class StagedStep(Protocol):
    """A step that an executor runs stage by stage."""

    def next_stage(self) -> BoundStage | None:
        """Return the next stage; None once all have run. The same stage is returned again until its result has been taken."""

    def take(self, result: StageResult) -> None:
        """Accept the result of the stage that `next_stage` returned last."""

    def recover(self, error: EvaluationError) -> None:
        """Restart the step in a way that avoids an evaluation error, or raise the error."""


Step = TypeVar("Step", bound=StagedStep)
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs the stages of steps: in this process, in other processes, or as jobs of a cluster."""

    def run(
        self,
        steps: Iterable[Step],
        done: Callable[[Step], None],
        failed: Callable[[Step, HeadwaterError], None],
    ) -> None:
        """Run independent steps to completion.

        Each step is passed to `done` as soon as it has ended, or to `failed` with its error. `failed` may raise, which ends the
        other steps too. The rows of a step's results can be loaded until `done` has returned. `steps` is consumed one by one,
        because creating a step may do work of its own.
        """


def run_one(executor: Executor, step: Step, result: Callable[[Step], Result]) -> Result:
    """Run one step to completion and return its result, or raise its error."""
    results: list[Result] = []

    def raised(_: Step, error: HeadwaterError) -> None:
        raise error

    executor.run([step], lambda ended: results.append(result(ended)), raised)
    return results[0]


def size(rows: Rows) -> int:
    """Return the number of rows of a change, or of records."""
    return rows.num_rows if isinstance(rows, pa.RecordBatch) else len(rows)
