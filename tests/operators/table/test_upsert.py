"""A changelog makes the same table however it is cut, and says what changed in it."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.table.upsert import upsert
from headwater.operators.zset.runs import Run, contents_latest, is_sorted, merge_latest
from tests.operators.zsets import (
    KEYS,
    KINDS,
    Row,
    batch,
    count,
    counted,
    hashing,
    is_consolidated,
    key_identity,
    rows_of,
    schema_of,
)

__all__ = ["hashing"]

Record = tuple[Row, bool]


@st.composite
def changelogs(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[Record]], list[bool]]:
    kinds = [draw(st.sampled_from(KINDS)), draw(st.sampled_from(KEYS)), pa.float64()]
    records = st.tuples(rows_of(kinds), st.booleans())
    batches = draw(st.lists(st.lists(records, max_size=8), max_size=5))
    return kinds, batches, [draw(st.booleans()) for _ in batches]


def mask(records: list[Record]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([deleted for _, deleted in records], dtype=np.bool_)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changelogs())
def test_changes_are_the_difference_of_the_table_before_and_after(hashing: str, changelog: Any) -> None:
    kinds, batches, merges = changelog
    table: dict[Any, Row] = {}
    runs: list[Run] = []
    for records, merge in zip(batches, merges, strict=True):
        before = [(row, -1) for row in table.values()]
        for row, deleted in records:
            table.pop(key_identity(row[1]), None)
            if not deleted:
                table[key_identity(row[1])] = row
        delta, run = upsert(runs, [1], batch([row for row, _ in records], kinds), mask(records))
        assert counted(delta) == count([*before, *((row, 1) for row in table.values())])
        assert is_consolidated(delta)
        assert is_sorted(run.hashes)
        runs.append(run)
        if merge:
            runs = [merge_latest(runs, [1], bottom=True)]
    contents = contents_latest(runs, schema_of(kinds), [1])
    assert counted(contents) == count((row, 1) for row in table.values())


def test_what_changes_nothing_is_not_remembered() -> None:
    kinds = [pa.int64(), pa.string()]
    first, run = upsert([], [0], batch([(1, "a"), (2, "b")], kinds), np.zeros(2, dtype=np.bool_))
    assert len(first) == len(run) == 2
    again = batch([(1, "a"), (3, None)], kinds)
    delta, nothing = upsert([run], [0], again, np.array([False, True]))
    assert len(delta) == len(nothing) == 0


def test_a_record_that_was_replaced_in_its_batch_is_never_seen() -> None:
    kinds = [pa.int64(), pa.string()]
    _, run = upsert([], [0], batch([(1, "a")], kinds), np.zeros(1, dtype=np.bool_))
    delta, _ = upsert(
        [run], [0], batch([(1, "b"), (1, None), (1, "c")], kinds), np.array([False, True, False])
    )
    assert counted(delta) == Counter({(1, "a"): -1, (1, "c"): 1})


def test_a_tombstone_needs_only_its_key() -> None:
    kinds = [pa.int64(), pa.string()]
    _, run = upsert([], [0], batch([(1, "a")], kinds), np.zeros(1, dtype=np.bool_))
    delta, tombstone = upsert([run], [0], batch([(1, None)], kinds), np.array([True]))
    assert counted(delta) == Counter({(1, "a"): -1})
    assert tombstone.weights.tolist() == [0]
    assert len(merge_latest([run, tombstone], [0], bottom=True)) == 0
    assert len(merge_latest([run, tombstone], [0], bottom=False)) == 1
