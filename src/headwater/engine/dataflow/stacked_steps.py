"""Steps of several views that run side by side: where several are about to make small steps of one shape, these are made as one.

A step stops before a small step that can be stacked (`advance`), and continues with its outcome (`resume`); with None it makes the small step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from headwater.core.errors import ArithmeticOverflowError, HeadwaterError
from headwater.operators.aggregate.aggregate import AggregateStep
from headwater.operators.aggregate.stacking import StackableStep, step_stacked


class ResumableStep(Protocol):
    """A step that stops where it may go on together with others."""

    def advance(self) -> StackableStep | None:
        """Run up to the next small step that can be stacked; None once the step is done."""

    def resume(self, done: AggregateStep | None) -> None:
        """Take what came of that small step; None if it is to be made alone."""


_Step = TypeVar("_Step", bound=ResumableStep)


def run_alone(step: _Step) -> _Step:
    """Run one step to its end."""
    while step.advance() is not None:
        step.resume(None)
    return step


def run_stacked(
    steps: Iterable[_Step], done: Callable[[_Step], None], failed: Callable[[_Step, HeadwaterError], None]
) -> None:
    """Run several steps to their ends, small ones of one shape as one. Each is handed to `done` as soon as it is; or, if it
    fails, to `failed`, which may raise: the others go on."""
    under_way: Iterable[_Step] = steps  # which may be begun as they are asked for
    while True:
        asked: list[tuple[_Step, StackableStep]] = []
        for step in under_way:
            try:
                if (small := step.advance()) is None:
                    done(step)
                else:
                    asked.append((step, small))
            except HeadwaterError as error:
                failed(step, error)
        if not asked:
            return
        going_on: list[_Step] = []
        for (step, _), made in zip(asked, _stacked([small for _, small in asked]), strict=True):
            try:
                step.resume(made)
                going_on.append(step)
            except HeadwaterError as error:
                failed(step, error)
        under_way = going_on


def _stacked(asked: Sequence[StackableStep]) -> list[AggregateStep | None]:
    """The outcome of each small step, with those of one shape made together; None for a step that is alone of its shape or overflows."""
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
            continue  # each is to find out by itself whether it is the one, and say so in its own words
        for place, answer in zip(places, made, strict=True):
            answers[place] = answer
    return answers
