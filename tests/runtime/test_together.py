"""Moves side by side: each goes on with what it asked for, and an error in one is its own."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import ArithmeticOverflowError
from headwater.operators import aggregate
from headwater.operators.aggregate import AggregateSpec, Step
from headwater.operators.delta import Delta
from headwater.operators.functions import Function
from headwater.operators.stacking import Small
from headwater.runtime.together import Move, alone, together

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUMS = AggregateSpec(SCHEMA, 1, (Function("sum", (1,)),))
COUNTS = AggregateSpec(SCHEMA, 1, (Function("count"),))


def small(value: int, spec: AggregateSpec = SUMS) -> Small:
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([value])], schema=SCHEMA)
    return Small(spec, (), Delta(rows, np.ones(1, dtype=np.int64)))


def asking(asked: Small, told: list[tuple[int, bool]], times: int = 1) -> Move[None]:
    """Asks, and tells what came of it, and whether that was made together with others."""
    for _ in range(times):
        answer = yield asked
        done = answer or aggregate.step(asked.spec, asked.state, (), asked.delta)
        told.append((done.output.rows.column(1)[0].as_py(), answer is not None))


def test_steps_of_one_shape_are_made_as_one() -> None:
    told: list[tuple[int, bool]] = []
    together([asking(small(5), told), asking(small(6), told), asking(small(7, COUNTS), told)])
    assert told == [(5, True), (6, True), (1, False)]


def test_some_ask_more_often_than_others() -> None:
    told: list[tuple[int, bool]] = []
    together([asking(small(5), told, times=3), asking(small(6), told), asking(small(7), told, times=2)])
    assert told == [(5, True), (6, True), (7, True), (5, True), (7, True), (5, False)]


def test_a_move_that_goes_on_by_itself_is_told_to_make_its_steps() -> None:
    told: list[tuple[int, bool]] = []

    def move() -> Move[str]:
        yield from asking(small(5), told, times=2)
        return "done"

    assert alone(move()) == "done"
    assert told == [(5, False), (5, False)]


def test_where_one_overflows_each_makes_its_own_step() -> None:
    told: list[tuple[int, bool]] = []
    failed: list[str] = []
    full = aggregate.step(SUMS, (), (), small(2**63 - 1).delta).state

    def overflowing() -> Move[None]:
        asked = Small(SUMS, [full], small(1).delta)
        try:
            assert (yield asked) is None
            aggregate.step(asked.spec, asked.state, (), asked.delta)
        except ArithmeticOverflowError as error:
            failed.append(str(error.detail))

    together([asking(small(5), told), overflowing(), asking(small(6), told)])
    assert told == [(5, False), (6, False)]
    assert failed == ["the group is k = 1"]


def test_the_first_error_ends_them_all() -> None:
    ended: list[str] = []

    def waiting() -> Move[None]:
        try:
            yield small(1)
        finally:
            ended.append("waiting")

    def failing() -> Move[None]:
        raise OSError("the disk is full")
        yield small(1)

    def moves() -> Iterator[Move[None]]:
        yield waiting()
        yield failing()
        pytest.fail("none is begun after that")

    with pytest.raises(OSError, match="full"):
        together(moves())
    assert ended == ["waiting"]


def test_an_answer_is_a_step() -> None:
    def move(made: list[Step | None]) -> Move[None]:
        made.append((yield small(3)))

    made: list[Step | None] = []
    together([move(made), move(made)])
    assert all(step is not None and len(step.state) == 1 for step in made)
