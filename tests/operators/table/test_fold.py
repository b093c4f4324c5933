"""A fold per key, held against the same done with a dictionary."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.operators.table.fold import fold
from headwater.operators.zset.delta import consolidate
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import KeyGroups
from headwater.operators.zset.runs import Run, contents_latest, merge_latest

ROWS = pa.schema([("key", pa.float64()), ("letter", pa.string())])
STATES = pa.schema([("key", pa.float64()), ("word", pa.string())])
KEYS = st.sampled_from([None, 0.0, -0.0, 1.0, math.nan])


def advance(rows: pa.RecordBatch, groups: KeyGroups, found: Ints, stored: pa.RecordBatch) -> list[pa.Array]:
    """Append the letters of each key to its word, which ends at a full stop."""
    words = []
    for place, start, size in zip(found, groups.starts, groups.sizes, strict=True):
        word = stored.column(1)[int(place)].as_py() if place >= 0 else ""
        for letter in rows.column(1).slice(int(start), int(size)).to_pylist():
            word = word if word.endswith(".") else word + letter
        words.append(word)
    return [pa.array(words, pa.string())]


def same(key: float | None) -> Any:
    return "NaN" if key is not None and math.isnan(key) else key


@given(
    st.lists(st.lists(st.tuples(KEYS, st.sampled_from("ab.")), min_size=1, max_size=12), max_size=5),
    st.booleans(),
)
def test_it_is_the_same_fold_however_rows_are_split(
    batches: list[list[tuple[float | None, str]]], merge: bool
) -> None:
    runs: list[Run] = []
    table: dict[Any, str] = {}
    for batch in batches:
        before = dict(table)
        for key, letter in batch:
            word = table.get(same(key), "")
            table[same(key)] = word if word.endswith(".") else word + letter
        columns = [pa.array([k for k, _ in batch], pa.float64()), pa.array([c for _, c in batch])]
        delta, run = fold(runs, (0,), pa.RecordBatch.from_arrays(columns, schema=ROWS), advance, STATES)
        runs.append(run)
        if merge:
            runs = [merge_latest(runs, (0,), bottom=True)]
        changed = {k for k in table if before.get(k) != table[k]}
        net = consolidate(delta)
        went = {
            same(r["key"]): r["word"] for r, w in zip(net.rows.to_pylist(), net.weights, strict=True) if w < 0
        }
        came = {
            same(r["key"]): r["word"] for r, w in zip(net.rows.to_pylist(), net.weights, strict=True) if w > 0
        }
        assert came == {k: table[k] for k in changed}
        assert went == {k: before[k] for k in changed if k in before}
    held = contents_latest(runs, STATES, (0,)).rows.to_pylist()
    assert {same(r["key"]): r["word"] for r in held} == table
