"""Custom functions in the aggregation kernel, held against the same done with lists."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.operators.aggregate import aggregate
from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.operators.zset.exact_sums import Bools
from headwater.operators.zset.runs import Run

ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64())])


@dataclass(frozen=True)
class Total:
    """The sum of a column; its result is text, and is never asked for of a group that is not there."""

    column: int

    state = pa.int64()
    result = pa.string()

    def zeros(self, count: int) -> pa.Array:
        return pa.array([0] * count, pa.int64())

    def applied(self, states: pa.Array, batch: GroupedRows, there: Bools) -> pa.Array:
        values = batch.sorted(batch.rows.column(self.column).to_numpy())
        weights = batch.weights((), None)
        sums = np.add.reduceat(values if weights is None else values * weights, batch.groups.starts)
        return pa.array(np.where(there, states.to_numpy() + sums, 0))

    def finished(self, states: pa.Array, there: Bools) -> pa.Array:
        pairs = zip(states.to_pylist(), there, strict=True)
        return pa.array([f"sum {s}" if present else None for s, present in pairs], pa.string())


Changes = list[list[tuple[int, int]]]
CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=8), max_size=5
)


def delta_of(rows: list[tuple[int, int]], weight: int, width: int) -> Delta:
    keys, values = (pa.array([r[i] for r in rows], pa.int64()) for i in (0, 1))
    columns = [keys, values] if width else [values]
    schema = ROWS if width else pa.schema([ROWS.field(1)])
    return Delta(pa.RecordBatch.from_arrays(columns, schema=schema), np.full(len(rows), weight))


@pytest.mark.parametrize("width", [0, 1])
@given(CHANGES)
def test_states_follow_rows_that_come_and_go(width: int, changes: Changes) -> None:
    schema = ROWS if width else pa.schema([ROWS.field(1)])
    spec = aggregate.AggregateSpec(schema, width, (AggregateFunction("count"),), (Total(width),))
    state: list[Run] = []
    held = aggregate.initial(spec)
    present: Counter[tuple[int, int]] = Counter()
    for rows in changes:
        going = [row for row in rows if present[row] > 0]
        going = list((Counter(going) & present).elements())
        delta = concat([delta_of(rows, 1, width), delta_of(going, -1, width)], schema)
        present = present + Counter(rows) - Counter(going)
        done = aggregate.step(spec, state, (), delta)
        state.append(done.state)
        held = concat([held, done.output], spec.output)
    net = consolidate(held)
    have = Counter(tuple(row.values()) for row in net.rows.to_pylist())
    left = list(present.elements())
    groups = {k: [v for key, v in left if key == k] for k, _ in left} if width else {0: [v for _, v in left]}
    want = [(*([k] if width else []), len(vs), f"sum {sum(vs)}") for k, vs in groups.items()]
    assert have == Counter(want)
    assert set(net.weights.tolist()) <= {1}
    assert not spec.combinable
