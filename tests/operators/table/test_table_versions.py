"""The versions of a changelog's rows are the same however it is cut, and each change is the difference of two of them."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.table.table_versions import VersionSpec, contents, standing, step
from headwater.operators.zset.delta import take_rows
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run
from tests.operators.zsets import (
    KEYS,
    Row,
    batch,
    count,
    counted,
    hashing,
    is_consolidated,
    key_identity,
    schema_of,
    values,
)

__all__ = ["hashing"]

TIME = pa.timestamp("us")
SPEC = VersionSpec(key=(1, 2), begin=3, offset=4, op=5)
Record = tuple[Any, Any, int, int, str]
"""Two parts of a key, when it begins, its offset, its op."""


@st.composite
def changelogs(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[Row]], list[bool]]:
    kind = draw(st.sampled_from(KEYS))
    kinds = [pa.float64(), kind, pa.int64(), TIME, pa.int64(), pa.string()]
    record = st.tuples(
        values(kind), st.integers(0, 1), st.integers(-3, 5), st.sampled_from(["upsert", "delete"])
    )
    batches = draw(st.lists(st.lists(record, max_size=8), max_size=5))
    offset, made = 0, []
    for records in batches:
        rows = []
        for one, two, begin, op in records:
            rows.append((float(offset), one, two, begin, offset, op))
            offset += draw(st.integers(1, 3))
        made.append(rows)
    return kinds, made, [draw(st.booleans()) for _ in made]


def versions(records: list[Row]) -> list[Row]:
    """By definition: sorted by begin and offset, each until the next of its key."""
    found: list[Row] = []
    for row in records:
        key = tuple(key_identity(row[i]) for i in SPEC.key)
        own = [r for r in records if tuple(key_identity(r[i]) for i in SPEC.key) == key]
        after = sorted((r[3], r[4]) for r in own if (r[3], r[4]) > (row[3], row[4]))
        if row[5] != "delete":
            found.append((*row, after[0][0] if after else None))
    return found


def plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Times as numbers."""
    columns = [c.view(pa.int64()) if c.type == TIME else c for c in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changelogs())
def test_changes_are_the_difference_of_the_versions_before_and_after(hashing: str, changelog: Any) -> None:
    kinds, batches, merges = changelog
    records: list[Row] = []
    runs: list[Run] = []
    for rows, merge in zip(batches, merges, strict=True):
        before = [(row, -1) for row in versions(records)]
        records += rows
        change, run = step(SPEC, runs, batch(rows, kinds))
        shown = type(change)(plain(change.rows), change.weights)
        assert counted(shown) == count([*before, *((row, 1) for row in versions(records))])
        assert is_consolidated(shown)
        runs.append(run)
        if merge:
            runs = [merge_ordered(runs, SPEC.key, SPEC.order)]
    whole = contents(SPEC, runs, schema_of(kinds))
    assert counted(type(whole)(plain(whole.rows), whole.weights)) == count(
        (row, 1) for row in versions(records)
    )


KINDS = [pa.string(), pa.int64(), pa.int64(), TIME, pa.int64(), pa.string()]


def stepped(*batches: list[Row]) -> Counter[Any]:
    """The change that the last of some batches makes, without the parts that say the same of all."""
    runs: list[Run] = []
    for rows in batches:
        change, run = step(SPEC, runs, batch(rows, KINDS))
        runs.append(run)
    told = count(
        zip(
            zip(*(c.to_pylist() for c in plain(change.rows).columns), strict=True),
            change.weights.tolist(),
            strict=True,
        )
    )
    return Counter({(row[0], row[3], row[6]): weight for row, weight in told.items()})  # type: ignore[index]


def test_a_late_record_ends_the_version_before_it_and_ends_where_the_next_begins() -> None:
    known = [("a", 1, 0, 10, 0, "upsert"), ("c", 1, 0, 30, 1, "upsert")]
    assert stepped(known, [("b", 1, 0, 20, 2, "upsert")]) == {
        ("a", 10, 30): -1,
        ("a", 10, 20): 1,
        ("b", 20, 30): 1,
    }


def test_of_two_that_begin_at_one_time_the_earlier_is_never_valid() -> None:
    known = [("a", 1, 0, 10, 0, "upsert")]
    assert stepped(known, [("b", 1, 0, 10, 1, "upsert")]) == {
        ("a", 10, None): -1,
        ("a", 10, 10): 1,
        ("b", 10, None): 1,
    }


def test_a_tombstone_ends_a_version_and_is_none() -> None:
    known = [("a", 1, 0, 10, 0, "upsert")]
    assert stepped(known, [("", 1, 0, 15, 1, "delete")]) == {("a", 10, None): -1, ("a", 10, 15): 1}
    assert stepped(known, [("", 1, 0, 5, 1, "delete")]) == {}
    gone = [*known, ("", 1, 0, 15, 1, "delete")]
    assert stepped(gone, [("b", 1, 0, 20, 2, "upsert")]) == {("b", 20, None): 1}


def test_no_record_changes_nothing() -> None:
    change, run = step(SPEC, [], batch([], KINDS))
    assert len(change) == len(run) == 0
    assert change.rows.schema.names[-1] == "_valid_to"
    assert len(contents(SPEC, [], schema_of(KINDS))) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changelogs(), st.integers(-3, 5))
def test_of_records_before_a_time_those_that_stand_are_all_that_later_ones_meet(
    hashing: str, changelog: Any, level: int
) -> None:
    kinds, batches, _ = changelog
    runs = [step(SPEC, [], batch(rows, kinds))[1] for rows in batches[:-1] if rows]
    later = [row for row in batches[-1] if row[3] >= level] if batches else []
    if not runs:
        return
    whole = merge_ordered(runs, SPEC.key, SPEC.order)
    old = whole.rows.column(SPEC.begin).view(pa.int64()).to_numpy() <= level
    stand = standing(whole, SPEC.key, old, SPEC.op)
    assert not (stand & ~old).any()
    kept = np.flatnonzero(~old | stand)
    short = Run(whole.hashes[kept], take_rows(whole.rows, kept), whole.weights[kept])
    mine, theirs = (step(SPEC, [run], batch(later, kinds))[0] for run in (short, whole))
    assert counted(type(mine)(plain(mine.rows), mine.weights)) == counted(
        type(theirs)(plain(theirs.rows), theirs.weights)
    )
    if hashing == "good":
        rows = take_rows(whole.rows, np.flatnonzero(stand))
        columns = [rows.column(i).to_pylist() for i in SPEC.key]
        keys = [tuple(map(key_identity, key)) for key in zip(*columns, strict=True)]
        assert len(set(keys)) == len(keys)
        assert "delete" not in rows.column(SPEC.op).to_pylist()
