"""Runs: whatever way the state is split into them, a probe finds what is there."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headwater.operators.zset import runs as r
from headwater.operators.zset.delta import Delta, consolidate
from tests.operators.zsets import (
    KEYS,
    PAIR,
    Row,
    batch,
    changes_of,
    count,
    counted,
    delta,
    hashing,
    identity,
    is_consolidated,
    key_identity,
    rows_of,
    schema_of,
    tuples,
)

__all__ = ["hashing"]

shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
VALUE = pa.float64()


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[list[pa.DataType], list[list[tuple[Row, int]]], list[Row], list[bool]]:
    """Types of two key columns and a value, batches of changes, keys to ask for, and where to merge."""
    kinds = [draw(st.sampled_from(KEYS)), draw(st.sampled_from(KEYS)), VALUE]
    batches = draw(st.lists(changes_of(kinds), max_size=5))
    probes = draw(st.lists(rows_of(kinds[:2]), max_size=6))
    merges = [draw(st.booleans()) for _ in batches]
    return kinds, batches, probes, merges


KEY = (0, 1)


@shared_fixture
@given(histories())
def test_a_probe_finds_every_row_of_its_keys(hashing: str, history: Any) -> None:
    kinds, batches, probes, merges = history
    runs: list[r.Run] = []
    for changes, merge in zip(batches, merges, strict=True):
        runs.append(r.arrange(delta(changes, kinds), KEY))
        if merge:
            runs = [r.merge(runs, KEY)]
    every = [change for changes in batches for change in changes]
    assert all(is_consolidated(run) and r.is_sorted(run.hashes) for run in runs)
    assert counted(r.contents(runs, schema_of(kinds))) == count(every)
    keys = batch(probes, kinds[:2])
    matches = r.probe(runs, KEY, keys, r.key_hashes(keys, (0, 1)), schema=schema_of(kinds))
    found = zip(matches.probe.tolist(), tuples(matches.rows), matches.weights.tolist(), strict=True)
    expected = [
        ((i, *row), weight)
        for i, probe in enumerate(probes)
        for row, weight in every
        if key_identity(row[:2]) == key_identity(probe)
    ]
    assert count(((i, *row), weight) for i, row, weight in found) == count(expected)


@shared_fixture
@given(histories(), st.integers(0, 40), st.booleans())
def test_the_first_rows_are_the_beginning_of_all(
    hashing: str, history: Any, first: int, latest: bool
) -> None:
    kinds, batches, _, _ = history
    runs = [r.arrange(delta([(row, 1) for row, _ in changes], kinds), KEY) for changes in batches]
    read = partial(r.contents_latest, key=KEY) if latest else r.contents
    read = partial(read, schema=schema_of(kinds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(r, "_PIECE_ROWS", 2)
        found, whole = r.first_contents(runs, read, first), read(runs)
    assert min(first, len(whole)) <= len(found) <= len(whole)
    assert list(map(repr, tuples(found.rows))) == list(map(repr, tuples(whole.rows)))[: len(found)]
    assert (found.weights == whole.weights[: len(found)]).all()


def test_few_of_many_rows_are_found_by_a_look_at_few() -> None:
    ids = pa.RecordBatch.from_pydict({"id": range(100_000)})
    runs = [r.arrange(Delta.of(ids.slice(start, 10_000)), (0,)) for start in range(0, 100_000, 10_000)]
    looked = list[int]()

    def read(parts: Sequence[r.Run]) -> Delta:
        looked.append(sum(map(len, parts)))
        return r.contents(parts, ids.schema)

    assert len(r.first_contents(runs, read, 10)) >= 10
    assert sum(looked) < 10_000


@shared_fixture
@given(histories(), st.data())
def test_of_equal_keys_the_newest_wins(hashing: str, history: Any, data: st.DataObject) -> None:
    kinds, batches, probes, merges = history
    table: dict[Any, Row] = {}
    runs: list[r.Run] = []
    for changes, merge in zip(batches, merges, strict=True):
        fresh = {key_identity(row[:2]): (row, int(weight > 0)) for row, weight in changes}
        for key, (row, weight) in fresh.items():
            table.pop(key, None)
            if weight:
                table[key] = row
        change = delta(list(fresh.values()), kinds)
        runs.append(r.sorted_run(change.rows, change.weights, r.key_hashes(change.rows, KEY)))
        if merge:
            low = data.draw(st.integers(0, len(runs) - 1))
            runs[low:] = [r.merge_latest(runs[low:], KEY, bottom=low == 0)]
            assert low or runs[0].weights.all()
    assert counted(r.contents_latest(runs, schema_of(kinds), KEY)) == count(
        (row, 1) for row in table.values()
    )
    keys = batch(probes, kinds[:2])
    found, rows = r.lookup(runs, KEY, keys, r.key_hashes(keys, (0, 1)), schema=schema_of(kinds))
    stored = tuples(rows)
    for probe, index in zip(probes, found.tolist(), strict=True):
        expected = table.get(key_identity(probe))
        assert identity(stored[index] if index >= 0 else None) == identity(expected)


@st.composite
def stacks(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[list[tuple[Row, int]]]], list[int]]:
    """Types of two key columns and a value, for each stack the changes of its runs, and how many others have the keys of
    each stack."""
    kinds = [draw(st.sampled_from(KEYS)), draw(st.sampled_from(KEYS)), VALUE]
    runs = st.lists(changes_of(kinds, max_size=4), min_size=1, max_size=4)
    made = draw(st.lists(runs, min_size=1, max_size=3))
    return kinds, made, [draw(st.integers(0, 2)) for _ in made]


def negated(run: r.Run) -> r.Run:
    """Another run of the same keys: the very same array of hashes, and other weights."""
    return r.Run(run.hashes, run.rows, -run.weights)


def absent(run: r.Run) -> r.Run:
    """A run of a map in which every key is deleted."""
    return r.Run(run.hashes, run.rows, np.zeros(len(run), dtype=np.int64))


def assert_same(made: list[r.Run], expected: list[r.Run]) -> None:
    assert len(made) == len(expected)
    for one, other in zip(made, expected, strict=True):
        assert one.hashes.tolist() == other.hashes.tolist()
        assert one.weights.tolist() == other.weights.tolist()
        assert list(map(identity, tuples(one.rows))) == list(map(identity, tuples(other.rows)))
        assert one.rows.schema == other.rows.schema


@settings(shared_fixture, max_examples=50)
@given(stacks())
def test_multisets_that_are_merged_as_one_are_merged_each_by_itself(hashing: str, case: Any) -> None:
    kinds, histories, twins = case
    every = []
    for batches, more in zip(histories, twins, strict=True):
        runs = [r.arrange(delta(changes, kinds), KEY) for changes in batches]
        every += [runs, *[[negated(run) for run in runs]] * more]
    assert_same(r.merge_stacked(every, KEY), [r.merge(runs, KEY) for runs in every])


@settings(shared_fixture, max_examples=50)
@given(stacks(), st.booleans())
def test_maps_that_are_merged_as_one_are_merged_each_by_itself(hashing: str, case: Any, bottom: bool) -> None:
    kinds, histories, twins = case
    every = []
    for batches, more in zip(histories, twins, strict=True):
        runs = []
        for changes in batches:
            newest = {key_identity(row[:2]): (row, weight) for row, weight in changes}
            rows = batch([row for row, _ in newest.values()], kinds)
            present = np.array([weight > 0 for _, weight in newest.values()], dtype=np.int64)
            runs.append(r.sorted_run(rows, present, r.key_hashes(rows, KEY)))
        every += [runs, *[[*runs[:-1], absent(runs[-1])]] * more]
    expected = [r.merge_latest(runs, KEY, bottom) for runs in every]
    assert_same(r.merge_latest_stacked(every, KEY, bottom), expected)


def test_equal_rows_of_two_stacks_stay_apart() -> None:
    run = r.arrange(delta([((1, 1.0), 1), ((2, 1.0), 3)], [pa.int64(), VALUE]), (0,))
    gone, twice = r.merge_stacked([[run, negated(run)], [run, run]], (0,))
    assert len(gone) == 0
    assert twice.weights.tolist() == [2 * weight for weight in run.weights.tolist()]


def test_a_run_takes_the_hashes_of_one_that_has_the_same() -> None:
    known: dict[tuple[object, ...], Any] = {}
    run = r.arrange(delta([((key, 1.0), 1) for key in range(5)], [pa.int64(), VALUE]), (0,))
    copy = r.Run(run.hashes.copy(), run.rows, run.weights)
    other = r.Run(run.hashes + np.array([0, 1, 0, 0, 0], dtype=np.uint64), run.rows, run.weights)
    assert r.same_hashes(run, known) is run
    assert r.same_hashes(copy, known).hashes is run.hashes
    assert r.same_hashes(copy, known, "elsewhere") is copy
    assert r.same_hashes(other, known) is other  # but for one hash, none of those that are looked at first
    none = r.Run(run.hashes[:0], run.rows.slice(0, 0), run.weights[:0])
    assert r.same_hashes(none, known) is none


@given(changes_of([pa.int64(), VALUE], max_size=20), st.lists(st.integers(0, 2**64), max_size=4))
@example([((1, 1.0), 1)], [0, 2**64])
def test_the_parts_of_a_run_are_the_run(changes: list[Any], cuts: list[int]) -> None:
    run = r.arrange(delta(changes, [pa.int64(), VALUE]), [0])
    edges = [0, *sorted(cuts), 2**64]
    parts = [r.split(run, low, high) for low, high in pairwise(edges)]
    assert [h for part in parts for h in part.hashes.tolist()] == run.hashes.tolist()
    assert sum((counted(part) for part in parts), Counter()) == Counter(counted(run)) + Counter()
    for part, low, high in zip(parts, edges[:-1], edges[1:], strict=True):
        assert all(low <= h < high for h in part.hashes.tolist())


@given(changes_of([pa.int8(), VALUE]), st.sets(st.sampled_from([None, -2, -1, 0, 1, 2])))
def test_a_run_among_some_keys_has_their_rows(changes: list[Any], keys: set[int | None]) -> None:
    kinds = [pa.int8(), VALUE]
    run = r.arrange(delta(changes, kinds), (0,))
    hashes = np.unique(r.key_hashes(batch([(key,) for key in keys], [pa.int8()]), (0,)))
    found = r.among(run, hashes)
    assert r.is_sorted(found.hashes)
    assert counted(found) == count([change for change in changes if change[0][0] in keys])


def test_without_a_key_all_rows_are_one_group() -> None:
    changes = [((n, 0.5), 1) for n in range(5)]
    run = r.arrange(delta(changes, [pa.int64(), VALUE]), ())
    assert len(set(run.hashes.tolist())) == 1
    keys = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    matches = r.probe([run], (), keys, r.key_hashes(keys, ()))
    assert sorted(matches.probe.tolist()) == [0] * 5 + [1] * 5


def test_without_runs_there_is_nothing_to_find() -> None:
    keys = batch([(1,)], [pa.int64()])
    hashes = r.key_hashes(keys, [0])
    schema = schema_of([pa.int64(), VALUE])
    assert r.probe([], [0], keys, hashes).rows.num_columns == 0
    assert r.probe([], [0], keys, hashes, schema=schema).rows.schema == schema
    assert r.lookup([], [0], keys, hashes)[0].tolist() == [-1]
    assert len(r.contents([], schema)) == len(r.contents_latest([], schema, [0])) == 0


def test_merging_with_nothing_copies_nothing() -> None:
    kinds = [pa.int64(), VALUE]
    run, nothing = r.arrange(delta([((1, 0.5), 1)], kinds), [0]), r.arrange(delta([], kinds), [0])
    assert r.merge([nothing, run, nothing], [0]) is run
    assert r.merge_latest([nothing, run], [0], bottom=True) is run


def test_a_merge_leaves_its_runs_alone() -> None:
    kinds = [pa.int64(), VALUE]
    one = r.arrange(delta([((n, 0.5), 1) for n in range(9)], kinds), [0])
    two = r.arrange(delta([((n, 0.5), n) for n in range(-2, 4)], kinds), [0])
    before = counted(one), counted(two)
    r.merge([one, two], [0])
    assert (counted(one), counted(two)) == before


@pytest.mark.parametrize("few", [1, 1_000])
def test_many_rows_are_arranged_and_found(few: int) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 50_000, 100_000)
    values = rng.integers(0, few, 100_000).astype(np.float64)
    rows = pa.RecordBatch.from_arrays([pa.array(ids), pa.array(values)], names=["k", "v"])
    run = r.arrange(consolidate(Delta.of(rows)), [0])
    keys = pa.RecordBatch.from_arrays([pa.array(rng.integers(0, 60_000, 1_000))], names=["k"])
    matches = r.probe([run], [0], keys, r.key_hashes(keys, [0]))
    assert (
        matches.weights.sum() == np.isin(ids, keys.column(0)).sum() or len(np.unique(keys.column(0))) < 1_000
    )
    counts = np.bincount(ids, minlength=60_000)
    assert matches.weights.sum() == counts[keys.column(0).to_numpy()].sum()


GOLDEN: list[tuple[Any, pa.DataType]] = [
    ({"a": 1, "b": "x"}, PAIR),
    ({"a": None, "b": None}, PAIR),
    (None, PAIR),
    ([1.5, None, 0.0], pa.list_(pa.float64())),
    ([], pa.list_(pa.float64())),
    ([{"a": 1, "b": None}], pa.list_(PAIR)),
]


def test_hashes_of_nested_keys_are_what_they_have_always_been() -> None:
    found = [int(r.key_hashes(batch([(value,)], [kind]), [0])[0]) for value, kind in GOLDEN]
    assert found == GOLDEN_HASHES


GOLDEN_HASHES = [
    0x3ECD3C32D38B88E3,
    0xAFD31286D47CDF48,
    0xB8BDA4628F0AFA03,
    0x7C6D192A1F20898E,
    0xB7334502757611A6,
    0xF6C6F9C750434EAD,
]


def test_where_an_element_is_in_a_list_matters() -> None:
    lists = batch([([1.0, 0.0],), ([0.0, 1.0],), ([1.0],), ([1.0, 0.0, None],)], [pa.list_(pa.float64())])
    assert len(set(r.key_hashes(lists, [0]).tolist())) == 4


def test_rows_without_columns_are_kept_count_of() -> None:
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    one = r.arrange(Delta(nothing, np.array([2, 1])), ())
    two = r.arrange(Delta(nothing, np.array([-1])), ())
    assert r.contents([one, two], pa.schema([])).weights.tolist() == [2]
    assert len(r.merge([one, r.arrange(Delta(nothing, np.array([-3])), ())], ())) == 0
