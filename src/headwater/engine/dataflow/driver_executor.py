"""The executor that runs stages in this process, and large steps of keyed operators in Spark tasks (`placement`).

Small aggregate steps of the same shape, of several views, are stacked: they are executed as one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import cast

from headwater.core.errors import ArithmeticOverflowError, EvaluationError, HeadwaterError
from headwater.engine.dataflow.executor import Added, BoundStage, RowsInMemory, RunParts, StageResult, Step
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.dataflow.placement import Placement
from headwater.operators.aggregate import stacking
from headwater.operators.aggregate.aggregate import AggregateStep
from headwater.operators.aggregate.stacking import StackableStep, step_stacked
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run


class DriverExecutor:
    """Runs stages in this process."""

    def __init__(self, placement: Placement | None = None) -> None:
        """`placement` divides large steps among Spark tasks; if it is None, every step runs in this process."""
        self._placement = placement

    def run(
        self,
        steps: Iterable[Step],
        done: Callable[[Step], None],
        failed: Callable[[Step, HeadwaterError], None],
    ) -> None:
        """Run steps to completion (`Executor.run`); each runs until its next small step that can be stacked, and waits
        for the others."""
        with self._placement.outputs() if self._placement is not None else nullcontext():
            under_way: Iterable[Step] = steps
            while True:
                stopped: list[tuple[Step, BoundStage, StackableStep]] = []
                for step in under_way:
                    try:
                        if (found := self._advance(step)) is None:
                            done(step)
                        else:
                            stopped.append((step, *found))
                    except HeadwaterError as error:
                        failed(step, error)
                if not stopped:
                    return
                going_on: list[Step] = []
                made = _stacked([small for _, _, small in stopped])
                for (step, stage, small), outcome in zip(stopped, made, strict=True):
                    try:
                        _resume(step, stage, small, outcome)
                        going_on.append(step)
                    except HeadwaterError as error:
                        failed(step, error)
                under_way = going_on

    def _advance(self, step: Step) -> tuple[BoundStage, StackableStep] | None:
        """Run the stages of a step up to the next small step that can be stacked, and return that; None once all stages
        have run."""
        while True:
            try:
                if (stage := step.next_stage()) is None:
                    return None
                made = self._run(stage)
            except EvaluationError as error:
                step.recover(error)
                continue
            if isinstance(made, StackableStep):
                return stage, made
            step.take(made)

    def _run(self, stage: BoundStage) -> StageResult | StackableStep:
        """Run a stage; if its operator's step can be stacked, return that step instead of running it."""
        program, state = stage.program, stage.state
        if self._placement is not None and (whole := self._placement.stage(stage)) is not None:
            return StageResult(whole[0], _by_slot(stage, whole[1]))
        given = program.evaluate([rows.load() for rows in stage.inputs], first=stage.first)
        if (output := program.without_state(given, first=stage.first)) is not None:
            return StageResult(RowsInMemory(output))
        if (made := program.preaggregated(given, state)) is not None:
            return _result(stage, *made)
        given, operator = program.expanded(given), program.operator
        if operator is not None:
            changes = cast("Sequence[Delta]", given)
            placement = self._placement
            if placement is not None and placement.wants(operator, changes):
                refs = [state.refs(slot) for slot in program.slots]
                if (placed := placement.step(operator, changes, refs, state)) is not None:
                    return _result(stage, *placed)
            if operator.stackable is not None and len(changes[0]) <= stacking.ROWS_MAX:
                return StackableStep(operator.stackable, state(program.slots[0]), changes[0])
        return _result(stage, *program.step(given, state, first=stage.first, watermarks=stage.watermarks))


def _resume(step: Step, stage: BoundStage, small: StackableStep, outcome: AggregateStep | None) -> None:
    """Pass the outcome of a small step to its view step; None: the small step was not stacked, and is run here."""
    try:
        if outcome is not None:
            made = _result(stage, outcome.output, (outcome.state,))
        else:
            operator = stage.program.operator
            assert operator is not None
            made = _result(stage, *operator.step([small.delta], [small.state]))
    except EvaluationError as error:
        step.recover(error)
    else:
        step.take(made)


def _result(stage: BoundStage, output: Delta, added: Added) -> StageResult:
    return StageResult(RowsInMemory(stage.program.named(output)), _by_slot(stage, added))


def _by_slot(stage: BoundStage, added: Added) -> dict[ArrangementSpec, Run | RunParts]:
    """Return the runs that a step has added, without empty ones, by arrangement."""
    return {slot: run for slot, run in zip(stage.program.slots, added, strict=False) if len(run)}


def _stacked(asked: Sequence[StackableStep]) -> list[AggregateStep | None]:
    """Return the outcome of each small step, after executing steps of the same shape as one.

    The outcome is None for a step that has no other of its shape, or whose stack has overflowed: these must run on their own.
    """
    alike: dict[str, list[int]] = {}
    for place, step in enumerate(asked):
        alike.setdefault(step.spec.shape, []).append(place)
    answers: list[AggregateStep | None] = [None] * len(asked)
    for places in alike.values():
        if len(places) < 2:
            continue
        try:
            made = step_stacked([asked[place] for place in places])
        except ArithmeticOverflowError:
            continue  # each step then runs on its own, and reports the group that overflows
        for place, answer in zip(places, made, strict=True):
            answers[place] = answer
    return answers
