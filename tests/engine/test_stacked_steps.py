"""Steps side by side: each goes on with what it asked for, and an error in one is its own."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headwater.core.errors import ArithmeticOverflowError, EvaluationError, HeadwaterError
from headwater.engine.dataflow.stacked_steps import run_alone, run_stacked
from headwater.operators.aggregate import aggregate
from headwater.operators.aggregate.aggregate import AggregateSpec, AggregateStep
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.aggregate.stacking import StackableStep
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUMS = AggregateSpec(SCHEMA, 1, (AggregateFunction("sum", (1,)),))
COUNTS = AggregateSpec(SCHEMA, 1, (AggregateFunction("count"),))


class Asking:
    """A step that asks `times` times for a small step, and keeps what came of each: the value, and whether others made it too."""

    def __init__(
        self, value: int, spec: AggregateSpec = SUMS, times: int = 1, state: tuple[Run, ...] = ()
    ) -> None:
        rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([value])], schema=SCHEMA)
        self.small = StackableStep(spec, state, Delta(rows, np.ones(1, dtype=np.int64)))
        self.left = times
        self.came: list[tuple[int, bool]] = []

    def advance(self) -> StackableStep | None:
        self.left -= 1
        return self.small if self.left >= 0 else None

    def resume(self, done: AggregateStep | None) -> None:
        made = done or aggregate.step(self.small.spec, self.small.state, (), self.small.delta)
        self.came.append((made.output.rows.column(1)[0].as_py(), done is not None))


class Failing(Asking):
    """A step that fails before it asks for anything."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self.error = error

    def advance(self) -> StackableStep | None:
        raise self.error


def run(steps: list[Asking]) -> tuple[list[Asking], list[tuple[Asking, HeadwaterError]]]:
    """Run steps stacked; those that are done, in that order, and those that failed."""
    done: list[Asking] = []
    failed: list[tuple[Asking, HeadwaterError]] = []
    run_stacked(steps, done.append, lambda step, error: failed.append((step, error)))
    return done, failed


def test_steps_of_one_shape_are_made_as_one() -> None:
    steps = [Asking(5), Asking(6), Asking(7, COUNTS)]
    done, failed = run(steps)
    assert (done, failed) == (steps, [])
    assert [step.came for step in steps] == [[(5, True)], [(6, True)], [(1, False)]]


def test_some_ask_more_often_than_others() -> None:
    steps = [Asking(5, times=3), Asking(6), Asking(7, times=2)]
    done, _ = run(steps)
    assert done == [steps[1], steps[2], steps[0]]
    assert [step.came for step in steps] == [
        [(5, True), (5, True), (5, False)],
        [(6, True)],
        [(7, True), (7, True)],
    ]


def test_a_step_by_itself_makes_all_of_it() -> None:
    assert run_alone(Asking(5, times=2)).came == [(5, False), (5, False)]


def test_where_one_overflows_each_makes_its_own_step_and_the_others_go_on() -> None:
    full = aggregate.step(SUMS, (), (), Asking(2**63 - 1).small.delta).state
    steps = [Asking(5), Asking(1, state=(full,)), Asking(6)]
    done, failed = run(steps)
    assert done == [steps[0], steps[2]]
    assert [step.came for step in done] == [[(5, False)], [(6, False)]]
    ((step, error),) = failed
    assert step is steps[1]
    assert isinstance(error, ArithmeticOverflowError)
    assert error.detail == "the group is k = 1"


def test_a_step_that_fails_before_it_asks_leaves_the_others_alone() -> None:
    steps = [Asking(5), Failing(EvaluationError("a value does not fit")), Asking(6)]
    done, failed = run(steps)
    assert done == [steps[0], steps[2]]
    assert [(step, str(error)) for step, error in failed] == [(steps[1], "a value does not fit")]


def test_an_error_that_is_no_steps_own_ends_them_all() -> None:
    begun: list[int] = []

    def steps() -> Iterator[Asking]:
        begun.append(1)
        yield Asking(5)
        begun.append(2)
        yield Failing(OSError("the disk is full"))
        pytest.fail("none is begun after that")

    with pytest.raises(OSError, match="full"):
        run_stacked(steps(), lambda _: None, lambda *_: None)
    assert begun == [1, 2]
