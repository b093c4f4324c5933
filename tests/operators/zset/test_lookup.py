"""Looking up keys column by column gives what `lookup` gives, also where keys share a hash or were deleted."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.aggregate import aggregate
from headwater.operators.zset.delta import Delta, consolidate
from headwater.operators.zset.lookup import find, find_stacked
from headwater.operators.zset.runs import Run, key_hashes, lookup, sorted_run
from tests.operators.zsets import KEYS, batch, counted, hashing, identity, rows_of, schema_of

__all__ = ["hashing"]

KEY, LANE = (0, 1), 2
shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@st.composite
def maps(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[tuple[Any, int]]], list[Any]]:
    """Types of two key columns and a number, runs of rows that are there or deleted, and keys to ask for."""
    kinds = [draw(st.sampled_from([pa.int64(), *KEYS])), draw(st.sampled_from(KEYS)), pa.int64()]
    key, number = rows_of(kinds[:2]), st.integers(1, 9)
    row = st.tuples(st.builds(lambda k, n: (*k, n), key, number), st.integers(0, 1))
    runs = st.lists(row, max_size=6, unique_by=lambda change: identity(change[0][:2]))
    return kinds, draw(st.lists(runs, max_size=4)), draw(st.lists(key, min_size=1, max_size=6))


@shared_fixture
@given(maps())
def test_what_is_found_is_the_latest_row_of_each_key(hashing: str, case: Any) -> None:
    kinds, histories, probes = case
    runs = []
    for changes in histories:
        rows = batch([row for row, _ in changes], kinds)
        weights = np.array([weight for _, weight in changes], dtype=np.int64)
        runs.append(sorted_run(rows, weights, key_hashes(rows, KEY)))
    keys = batch(probes, kinds[:2])
    hashes = key_hashes(keys, (0, 1))
    places, rows = lookup(runs, KEY, keys, hashes, schema=schema_of(kinds))
    found = find(runs, KEY, keys, hashes, schema_of(kinds))
    wanted = [rows.column(LANE)[int(place)].as_py() if place >= 0 else None for place in places]
    assert found.known.tolist() == [value is not None for value in wanted]
    assert found.column(LANE).to_pylist() == wanted
    assert found.lane(LANE, np.int64).tolist() == [value or 0 for value in wanted]


def rewritten(run: Run, deleted: bool) -> Run:
    """Another run of the same keys: the very same array of hashes, and other numbers; the first key deleted, or not."""
    columns = [
        *run.rows.columns[:LANE],
        pa.array([-n for n in run.rows.column(LANE).to_pylist()], pa.int64()),
    ]
    weights = run.weights.copy()
    weights[:1] = not deleted
    return Run(run.hashes, pa.RecordBatch.from_arrays(columns, schema=run.rows.schema), weights)


@settings(shared_fixture, max_examples=50)
@given(maps(), st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_what_several_find_is_what_each_finds(hashing: str, case: Any, others: Any) -> None:
    """Maps that have so many oldest runs of keys of their own, and then the keys of the first, and are asked for the same."""
    kinds, histories, probes = case
    schema = schema_of(kinds)

    def map_of(changes: Any) -> Run:
        rows = batch([row for row, _ in changes], kinds)
        weights = np.array([weight for _, weight in changes], dtype=np.int64)
        return sorted_run(rows, weights, key_hashes(rows, KEY))

    runs = [map_of(changes) for changes in histories]
    keys = batch(probes, kinds[:2])
    hashes = key_hashes(keys, (0, 1))
    states, sought = [runs], [hashes]
    for own, deleted, asks_by_itself in others:
        older = [map_of(changes) for changes in histories[:own]]
        states.append([*older, *[rewritten(run, deleted) for run in runs[own:]]])
        sought.append(hashes.copy() if asks_by_itself else hashes)
    stacked = pa.concat_batches([keys] * len(states))
    firsts = np.arange(len(states) + 1) * len(probes)
    found = find_stacked(states, KEY, stacked, sought, firsts, schema)
    each = [find(state, KEY, keys, hashes, schema) for state in states]
    assert found.known.tolist() == [known for one in each for known in one.known.tolist()]
    assert found.column(LANE).to_pylist() == [n for one in each for n in one.column(LANE).to_pylist()]
    lanes = [one.lane(LANE, np.int64) for one in each]
    assert found.lane(LANE, np.int64).tolist() == np.concatenate(lanes).tolist()


def test_a_key_that_was_deleted_hides_the_older_row() -> None:
    rows = pa.RecordBatch.from_pydict({"k": [7], "n": [3]})
    hashes = key_hashes(rows, (0,))
    old, gone = (Run(hashes, rows, np.array([weight])) for weight in (1, 0))
    assert find([old], (0,), rows.select([0]), hashes, rows.schema).known.tolist() == [True]
    assert find([old, gone], (0,), rows.select([0]), hashes, rows.schema).known.tolist() == [False]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6))
def test_a_change_of_groups_is_consolidated_after_rows_were_computed_on(pairs: list[tuple[int, int]]) -> None:
    """Old and new row of each group beside each other, as `step` gives them; 0 stands for a group that is not there."""
    told = [
        (group, value, weight)
        for group, (old, new) in enumerate(pairs)
        for value, weight in ((old, -1), (new, 1))
        if value
    ]
    groups, values, weights = (
        (np.array(lane, dtype=np.int64) for lane in zip(*told, strict=True))
        if told
        else [np.zeros(0, dtype=np.int64)] * 3
    )
    rows = pa.RecordBatch.from_arrays([pa.array(groups), pa.array(values)], names=["g", "v"])
    change = Delta(rows, weights, hashes=(groups // 2).astype(np.uint64))  # two groups share a hash
    done = aggregate.netted(change)
    assert counted(done) == counted(consolidate(change))
    assert done.distinct
    assert done.hashes is not None
    assert len(done.hashes) == len(done)
