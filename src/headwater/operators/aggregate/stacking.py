"""Small steps of several aggregations of one shape, executed as one step.

The cost of a step of few rows hardly depends on their number. So the deltas of many aggregations are stacked, and with
them their groups: those of the first aggregation, then those of the second, and so on. A group still belongs to one
aggregation: its state is looked up in that aggregation's runs only, and its results are returned to that aggregation.
All computation in between works on each group separately, independently of the boundaries between aggregations.

Each aggregation gets the result that `aggregate.step` would return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes
from headwater.operators.aggregate import aggregate
from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.aggregate.aggregate import AggregateSpec, AggregateStep
from headwater.operators.zset.delta import Delta, concat_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import KeyGroups, group
from headwater.operators.zset.lookup import find_stacked
from headwater.operators.zset.runs import Run, same_hashes

ROWS_MAX = 2_048
"""Maximum number of rows of a stackable step: in a larger one the cost of the rows exceeds the fixed cost of a step."""


@dataclass(frozen=True, eq=False)
class StackableStep:
    """The input of a step that may be executed together with others."""

    spec: AggregateSpec
    state: Sequence[Run]
    delta: Delta


def stackable(spec: AggregateSpec) -> bool:
    """Whether steps of an aggregation may be stacked: it has a key, and no function that must see rows individually."""
    return spec.width > 0 and spec.combinable


def step_stacked(steps: Sequence[StackableStep]) -> list[AggregateStep]:
    """Return the result of each step; the aggregations must be stackable and of one shape, and no delta empty.

    Raises ArithmeticOverflowError if a sum of any step does not fit its type: run the steps one by one to find out which.
    """
    spec = steps[0].spec
    groups = [group(step.delta.rows, len(step.delta), range(spec.width)) for step in steps]
    rows = np.cumsum([0, *(len(step.delta) for step in steps)])
    firsts = np.cumsum([0, *map(len, groups)])
    whole = _stacked(groups, rows, spec)
    batch = GroupedRows(
        concat_rows([step.delta.rows for step in steps], spec.schema),
        np.concatenate([step.delta.weights for step in steps]),
        whole,
    )
    states, sought = [step.state for step in steps], [each.hashes for each in groups]
    found = find_stacked(states, range(spec.width), whole.keys, sought, firsts, spec.state)
    change = aggregate.Contribution(whole, aggregate.collect(spec, batch), batch)
    done = aggregate.apply(spec, found, change, aggregate.as_they_are)
    outputs = _bounds(done.owners, firsts)
    runs = firsts.tolist() if done.places is None else _bounds(done.places, firsts)
    made: list[AggregateStep] = []
    known: dict[tuple[object, ...], Hashes] = {}
    for i, step in enumerate(steps):
        # Where every group has a row of state, steps with equal groups share one array of hashes.
        hashes = sought[i] if done.places is None else done.state.hashes[runs[i] : runs[i + 1]]
        run = _run(done.state, step.spec, hashes, *runs[i : i + 2])
        made.append(AggregateStep(_part(done.output, *outputs[i : i + 2]), same_hashes(run, known), ()))
    return made


def _stacked(groups: Sequence[KeyGroups], rows: Ints, spec: AggregateSpec) -> KeyGroups:
    """Concatenate all groups; `rows` has the index at which each aggregation's rows begin."""
    orders = [
        start + (np.arange(stop - start) if each.order is None else each.order)
        for each, start, stop in zip(groups, rows[:-1], rows[1:], strict=True)
    ]
    keys = pa.schema([spec.schema.field(i) for i in range(spec.width)])
    return KeyGroups(
        np.concatenate(orders),
        np.concatenate([each.starts + start for each, start in zip(groups, rows[:-1], strict=True)]),
        np.concatenate([each.sizes for each in groups]),
        concat_rows([each.keys for each in groups], keys),
        np.concatenate([each.hashes for each in groups]),
    )


def _bounds(owners: Ints, firsts: Ints) -> list[int]:
    """Return the index at which the rows of each aggregation begin, given the group of each row."""
    bounds: list[int] = np.searchsorted(owners, firsts).tolist()
    return bounds


def _part(output: Delta, start: int, stop: int) -> Delta:
    assert output.hashes is not None
    return Delta(
        output.rows.slice(start, stop - start),
        output.weights[start:stop],
        output.distinct,
        output.hashes[start:stop],
    )


def _run(state: Run, spec: AggregateSpec, hashes: Hashes, start: int, stop: int) -> Run:
    """Return an aggregation's part of a run, under the aggregation's column names."""
    rows = state.rows.slice(start, stop - start)
    if not rows.schema.equals(spec.state):
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=spec.state)
    return Run(hashes, rows, state.weights[start:stop])
