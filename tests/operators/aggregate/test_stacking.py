"""Steps that are made as one: each aggregation gets what it would have got by itself."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import ArithmeticOverflowError
from headwater.operators.aggregate import aggregate as a
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.aggregate.stacking import StackableStep, stackable, step_stacked
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run, merge_latest
from tests.operators.aggregate.test_aggregate import (
    ARGUMENTS,
    Table,
    View,
    _plain,
    check,
    choices,
    functions,
    shared_fixture,
)
from tests.operators.zsets import KEYS, changes_of, hashing, schema_of, tuples

__all__ = ["hashing"]


@st.composite
def several(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[Any]]]:
    """Types of the key columns, and for each step the changes of each of a few aggregations; some have none."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    count = draw(st.integers(2, 4))
    changes = changes_of([*keys, *_plain(ARGUMENTS)], max_size=4)
    steps = draw(st.lists(st.lists(changes, min_size=count, max_size=count), min_size=1, max_size=3))
    return keys, steps


def named(schema: pa.Schema, prefix: str) -> pa.Schema:
    return pa.schema([field.with_name(prefix + field.name) for field in schema])


class Stack:
    """Aggregations of one shape, whose columns have names of their own, and what is in each of their inputs."""

    def __init__(self, keys: list[pa.DataType], count: int, functions: tuple[AggregateFunction, ...]) -> None:
        schema = schema_of([*keys, *ARGUMENTS])
        self.views = [
            View(a.AggregateSpec(named(schema, f"{i} "), len(keys), functions)) for i in range(count)
        ]
        self.tables = [Table() for _ in range(count)]
        self.keys = keys

    def apply(self, changes: list[Any], *, growing: bool, merged: bool) -> None:
        """A step of all that have something to do, made as one."""
        given: list[tuple[View, Delta]] = []
        for view, table, own in zip(self.views, self.tables, changes, strict=True):
            own = [(row, abs(weight)) for row, weight in own] if growing else own
            if len(delta := table.apply(own, self.keys)):
                named = pa.RecordBatch.from_arrays(delta.rows.columns, schema=view.spec.schema)
                given.append((view, Delta(named, delta.weights)))
        if not given:
            return
        made = step_stacked([StackableStep(view.spec, view.state, delta) for view, delta in given])
        for (view, delta), step in zip(given, made, strict=True):
            alone = a.step(view.spec, view.state, (), delta)
            assert step.output.distinct
            assert step.output.hashes is not None
            assert alone.output.hashes is not None
            assert step.output.hashes.tolist() == alone.output.hashes.tolist()
            assert step.output.weights.tolist() == alone.output.weights.tolist()
            assert step.state.rows.schema == view.spec.state
            assert step.state.hashes.tolist() == alone.state.hashes.tolist()
            assert step.state.weights.tolist() == alone.state.weights.tolist()
            assert step.ordered == ()
            view.state.append(step.state)
            if merged:
                view.state = [merge_latest(view.state, range(view.spec.width), bottom=True)]
            view._show(step.output)
        for view, table in zip(self.views, self.tables, strict=True):
            check(view, table)


@settings(shared_fixture, max_examples=25)
@given(history=several(), chosen=choices(), merged=st.booleans())
def test_each_gets_what_it_would_have_got_alone(
    hashing: str, history: Any, chosen: list[int], merged: bool
) -> None:
    keys, steps = history
    additive = tuple(f for f in functions(len(keys), chosen) if not f.extreme)
    stack = Stack(keys, len(steps[0]), (AggregateFunction("count"), *additive))
    for changes in steps:
        stack.apply(changes, growing=False, merged=merged)


@settings(max_examples=25)
@given(history=several(), chosen=choices())
def test_extremes_of_inputs_that_only_grow_are_stacked_too(history: Any, chosen: list[int]) -> None:
    keys, steps = history
    stack = Stack(keys, len(steps[0]), functions(len(keys), chosen, append_only=True))
    assert all(stackable(view.spec) for view in stack.views)
    for changes in steps:
        stack.apply(changes, growing=True, merged=False)


def numbers(keys: list[int], values: list[int], weight: int = 1) -> Delta:
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["k", "v"])
    return Delta(rows, np.full(len(keys), weight))


SUMS = a.AggregateSpec(numbers([1], [1]).rows.schema, 1, (AggregateFunction("sum", (1,)),))


def test_the_same_keys_of_several_do_not_meet() -> None:
    made = step_stacked(
        [StackableStep(SUMS, (), numbers([1, 2], [10, 20])), StackableStep(SUMS, (), numbers([2, 1], [5, 7]))]
    )
    assert [sorted(tuples(step.output.rows)) for step in made] == [[(1, 10), (2, 20)], [(1, 7), (2, 5)]]


def test_each_looks_into_its_own_state() -> None:
    first = a.step(SUMS, (), (), numbers([1], [100])).state
    made = step_stacked(
        [StackableStep(SUMS, [first], numbers([1], [1])), StackableStep(SUMS, [], numbers([1], [1]))]
    )
    assert [tuples(step.output.rows) for step in made] == [[(1, 100), (1, 101)], [(1, 1)]]
    assert [step.output.weights.tolist() for step in made] == [[-1, 1], [1]]


def test_a_group_that_goes_is_remembered_by_its_own_alone() -> None:
    first = a.step(SUMS, (), (), numbers([1], [100])).state
    made = step_stacked(
        [StackableStep(SUMS, [first], numbers([1], [100], -1)), StackableStep(SUMS, [], numbers([1], [3]))]
    )
    assert [step.state.weights.tolist() for step in made] == [[0], [1]]
    assert [step.output.weights.tolist() for step in made] == [[-1], [1]]


def test_a_sum_that_does_not_fit_is_said_by_whose_it_is() -> None:
    full: list[Run] = [a.step(SUMS, (), (), numbers([1], [2**63 - 1])).state]
    with pytest.raises(ArithmeticOverflowError):
        step_stacked(
            [StackableStep(SUMS, [], numbers([1], [1])), StackableStep(SUMS, full, numbers([1], [1]))]
        )


@pytest.mark.parametrize(
    ("spec", "can"),
    [
        (SUMS, True),
        (a.AggregateSpec(SUMS.schema, 0, SUMS.functions), False),
        (a.AggregateSpec(SUMS.schema, 1, (AggregateFunction("max", (1,)),)), False),
        (a.AggregateSpec(SUMS.schema, 1, (AggregateFunction("max", (1,), append_only=True),)), True),
    ],
)
def test_what_can_be_stacked(spec: a.AggregateSpec, can: bool) -> None:
    assert stackable(spec) is can


def test_one_shape_is_the_same_types_key_and_functions() -> None:
    other = a.AggregateSpec(named(SUMS.schema, "other "), 1, SUMS.functions, names=("x", "y"))
    assert other.shape == SUMS.shape
    assert a.AggregateSpec(SUMS.schema, 1, (AggregateFunction("count"),)).shape != SUMS.shape
    wider = SUMS.schema.set(1, pa.field("v", pa.int32()))
    assert a.AggregateSpec(wider, 1, SUMS.functions).shape != SUMS.shape
