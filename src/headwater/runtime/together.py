"""Views that move side by side in a tick: where several are about to make small steps of one kind, these are made as one.

A move is a generator. Where it comes to a step that others may make with it, it asks, and is given what comes of that step,
or None if it is to make it alone. So a view's own code reads as if it moved by itself, and its errors arise in it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

from headwater.errors import ArithmeticOverflowError
from headwater.operators.aggregate import Step
from headwater.operators.stacking import Small, step_stacked

_Made = TypeVar("_Made")
Move = Generator[Small, Step | None, _Made]
"""A move that asks for small steps, and makes something in the end."""


def alone(move: Move[_Made]) -> _Made:
    """What a move makes that goes on by itself."""
    try:
        next(move)
        while True:
            move.send(None)
    except StopIteration as done:
        made: _Made = done.value
        return made


def together(moves: Iterable[Move[None]]) -> None:
    """Make several moves, all of them up to where they ask, and so on. The first error ends them all."""
    under_way: list[Move[None]] = []
    asked: list[Small] = []
    begun: list[Move[None]] = []
    try:
        for move in moves:
            begun.append(move)
            _go_on(move, None, under_way, asked)
        while under_way:
            waiting, answers = under_way, _answers(asked)
            under_way, asked = [], []
            for move, answer in zip(waiting, answers, strict=True):
                _go_on(move, answer, under_way, asked)
    finally:
        for move in begun:
            move.close()


def _go_on(move: Move[None], answer: Step | None, under_way: list[Move[None]], asked: list[Small]) -> None:
    try:
        asked.append(move.send(answer))
    except StopIteration:
        return
    under_way.append(move)


def _answers(asked: Sequence[Small]) -> list[Step | None]:
    """What comes of each step, those of one shape taken together; None for one that has no company, or cannot be taken."""
    alike: dict[str, list[int]] = {}
    for place, step in enumerate(asked):
        alike.setdefault(step.spec.shape, []).append(place)
    answers: list[Step | None] = [None] * len(asked)
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
