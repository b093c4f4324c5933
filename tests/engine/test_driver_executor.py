"""The driver's executor: steps go on with what came of their stages, small steps of one shape are stacked, and an error in one is its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.core.errors import ArithmeticOverflowError, EvaluationError, HeadwaterError
from headwater.engine.dataflow.driver_executor import DriverExecutor
from headwater.engine.dataflow.executor import (
    BoundStage,
    RowsInMemory,
    StageProgram,
    StageResult,
    run_one,
)
from headwater.engine.dataflow.keyed_operators import AggregateOperator
from headwater.operators.aggregate import aggregate, stacking
from headwater.operators.aggregate.aggregate import AggregateSpec
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUMS = AggregateSpec(SCHEMA, 1, (AggregateFunction("sum", (1,)),))
COUNTS = AggregateSpec(SCHEMA, 1, (AggregateFunction("count"),))


def rows(value: int) -> Delta:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([value])], schema=SCHEMA)
    return Delta(batch, np.ones(1, dtype=np.int64))


class Summing(StageProgram):
    """A stage with an aggregate over rows that need no evaluation."""

    def __init__(self, spec: AggregateSpec) -> None:
        self.operator = AggregateOperator(spec, "0")
        self.slots = self.operator.slots

    def evaluate(self, inputs: Sequence[Any], *, first: bool) -> Sequence[Any]:
        return inputs

    def without_state(self, given: Sequence[Any], *, first: bool) -> Delta | None:
        return None

    def step(
        self, given: Sequence[Any], state: Any, *, first: bool, watermarks: Mapping[str, int]
    ) -> tuple[Delta, Sequence[Run]]:
        raise AssertionError("a small step of an aggregate is offered to be stacked")


class Asking:
    """A step of `times` stages, all alike, that keeps the value that came of each."""

    def __init__(
        self, value: int, spec: AggregateSpec = SUMS, times: int = 1, state: tuple[Run, ...] = ()
    ) -> None:
        self.stage = BoundStage(Summing(spec), [RowsInMemory(rows(value))], lambda _: state)  # type: ignore[arg-type]
        self.left = times
        self.came: list[int] = []

    def next_stage(self) -> BoundStage | None:
        return self.stage if self.left else None

    def take(self, result: StageResult) -> None:
        output = result.output.load()
        assert isinstance(output, Delta)
        self.came.append(output.rows.column(1)[0].as_py())
        self.left -= 1

    def recover(self, error: EvaluationError) -> None:
        raise error


class Failing(Asking):
    """A step that fails before its first stage."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self.error = error

    def next_stage(self) -> BoundStage | None:
        raise self.error


class Diverting(Failing):
    """A step that fails, and recovers by doing without the rows on which it fails."""

    def recover(self, error: EvaluationError) -> None:
        assert error is self.error
        self.next_stage = super(Failing, self).next_stage  # type: ignore[method-assign]


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were made as one, each time."""
    sizes: list[int] = []
    step_stacked = stacking.step_stacked

    def noting(steps: Sequence[Any]) -> Any:
        sizes.append(len(steps))
        return step_stacked(steps)

    monkeypatch.setattr("headwater.engine.dataflow.driver_executor.step_stacked", noting)
    return sizes


def run(steps: list[Asking]) -> tuple[list[Asking], list[tuple[Asking, HeadwaterError]]]:
    """Run steps; those that are done, in that order, and those that failed."""
    done: list[Asking] = []
    failed: list[tuple[Asking, HeadwaterError]] = []
    DriverExecutor().run(steps, done.append, lambda step, error: failed.append((step, error)))
    return done, failed


def test_steps_of_one_shape_are_made_as_one(stacked: list[int]) -> None:
    steps = [Asking(5), Asking(6), Asking(7, COUNTS)]
    done, failed = run(steps)
    assert (done, failed) == (steps, [])
    assert [step.came for step in steps] == [[5], [6], [1]]
    assert stacked == [2]


def test_some_have_more_stages_than_others(stacked: list[int]) -> None:
    steps = [Asking(5, times=3), Asking(6), Asking(7, times=2)]
    done, _ = run(steps)
    assert done == [steps[1], steps[2], steps[0]]
    assert [step.came for step in steps] == [[5, 5, 5], [6], [7, 7]]
    assert stacked == [3, 2]


def test_a_step_by_itself_makes_all_of_it(stacked: list[int]) -> None:
    assert run_one(DriverExecutor(), Asking(5, times=2), lambda step: step.came) == [5, 5]
    assert not stacked


def test_where_one_overflows_each_makes_its_own_step_and_the_others_go_on() -> None:
    full = aggregate.step(SUMS, (), (), rows(2**63 - 1)).state
    steps = [Asking(5), Asking(1, state=(full,)), Asking(6)]
    done, failed = run(steps)
    assert done == [steps[0], steps[2]]
    assert [step.came for step in done] == [[5], [6]]
    ((step, error),) = failed
    assert step is steps[1]
    assert isinstance(error, ArithmeticOverflowError)
    assert error.facts["key"] == {"k": 1}


def test_a_step_that_fails_before_it_asks_leaves_the_others_alone() -> None:
    steps = [Asking(5), Failing(EvaluationError("a value does not fit")), Asking(6)]
    done, failed = run(steps)
    assert done == [steps[0], steps[2]]
    assert [(step, str(error)) for step, error in failed] == [(steps[1], "a value does not fit")]


def test_a_step_that_recovers_from_an_error_goes_on() -> None:
    steps = [Asking(5), Diverting(EvaluationError("a value does not fit"))]
    done, failed = run(steps)
    assert (done, failed) == (steps, [])
    assert [step.came for step in steps] == [[5], [1]]


def test_an_error_that_is_no_steps_own_ends_them_all() -> None:
    begun: list[int] = []

    def steps() -> Iterator[Asking]:
        begun.append(1)
        yield Asking(5)
        begun.append(2)
        yield Failing(OSError("the disk is full"))
        pytest.fail("none is begun after that")

    with pytest.raises(OSError):
        DriverExecutor().run(steps(), lambda _: None, lambda *_: None)
    assert begun == [1, 2]
