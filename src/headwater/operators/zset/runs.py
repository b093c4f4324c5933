"""State as immutable runs sorted by key hash, oldest first: how runs are created, probed and merged.

A run is a batch of rows with weights in ascending order of the 64-bit hash of their key columns. Two disciplines share
this layout:

- *multiset*: the contents are the sum of the weights of equal rows over all runs; no run contains a row twice.
- *latest*: a map from key to row; the newest run that contains the key wins. Weight 1 is a present row, weight 0 a
  deleted one; no run contains a key twice.

Runs may be memory-mapped from files: a probe reads only the rows it needs and never scans a run. Hashes only narrow the
search; keys are compared by value (-0.0 = 0.0, NaN = NaN, NULL = NULL). Runs ordered within a key are in
`ordered_runs`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, Mask, equal_rows, hash_rows, identities, spread
from headwater.operators.zset.delta import (
    Delta,
    Weights,
    concat,
    concat_rows,
    consolidate,
    empty_rows,
    groups_of,
    take_rows,
)
from headwater.operators.zset.interpolation_search import first_places
from headwater.operators.zset.radix_sort import stable_order

_INTEGER = pa.int64()

Key = Sequence[int]
_HASHES = 2**64
_PIECE_ROWS = 1 << 12
"""Minimum number of rows read for a limited query: reading fewer takes as long."""
Sources = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Run:
    """Rows with weights, in ascending order of the hash of their key."""

    hashes: Hashes
    rows: pa.RecordBatch
    weights: Weights

    def __len__(self) -> int:
        return len(self.hashes)

    def lane(self, column: int) -> npt.NDArray[Any]:
        """Return a numeric column without NULLs as a view of its memory; cached, because probes request it repeatedly."""
        if column not in self._lanes:
            self._lanes[column] = self.rows.column(column).to_numpy()
        return self._lanes[column]

    def integers(self, column: int) -> npt.NDArray[np.int64] | None:
        """Return a column of 64-bit integers without NULLs as a view of its memory; None for any other column."""
        if column not in self._integers:
            values = self.rows.column(column)
            is_plain = values.type == _INTEGER and not values.null_count
            self._integers[column] = self.lane(column) if is_plain else None
        return self._integers[column]

    @cached_property
    def _integers(self) -> dict[int, npt.NDArray[np.int64] | None]:
        return {}

    @cached_property
    def _lanes(self) -> dict[int, npt.NDArray[Any]]:
        return {}


@dataclass(frozen=True, eq=False)
class Matches:
    """Stored rows found by a probe: row j has the key of probe `probe[j]`."""

    probe: Indices
    rows: pa.RecordBatch
    weights: Weights


@dataclass(frozen=True, eq=False)
class Probes:
    """Keys to look up. Probes may come in any order, and several may have the same key."""

    key: Key
    """Indices of the key columns in the runs."""
    keys: pa.RecordBatch
    """One row for each probe: the key values, in the column order of `key`."""
    hashes: Hashes
    """Hashes of `keys`."""


def key_hashes(rows: pa.RecordBatch, key: Key) -> Hashes:
    """Return the hash of each row's key columns; a constant if the key has no columns."""
    return hash_rows([rows.column(i) for i in key], rows.num_rows)


def arrange(delta: Delta, key: Key) -> Run:
    """Return a delta as a run of a multiset: consolidated and sorted."""
    if not delta.distinct and delta.rows.num_columns == len(key) > 0 and delta.weights.all():
        # Equal rows have equal hashes: if all hashes differ, as is usual, the delta is already consolidated.
        hashes = key_hashes(delta.rows, key)
        order = stable_order(hashes)
        ascending = hashes[order]
        if not (ascending[1:] == ascending[:-1]).any():
            return Run(ascending, take_rows(delta.rows, order), delta.weights[order])
    delta = consolidate(delta)
    hashes = hash_rows([delta.rows.column(i) for i in key], len(delta))
    return sorted_run(delta.rows, delta.weights, hashes)


def distinct_keys(rows: pa.RecordBatch, key: Key) -> tuple[pa.RecordBatch, Hashes]:
    """Return the distinct keys of the rows, in the order in which they first appear, and their hashes."""
    columns = [rows.column(i) for i in key]
    keys = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in key])
    if not columns:
        return keys, hash_rows([], 1 if rows.num_rows or not rows.num_columns else 0)
    if groups := groups_of(*identities(columns, rows.num_rows, exact=False)):
        keys = take_rows(keys, np.sort(groups.firsts))
    return keys, hash_rows(keys.columns, keys.num_rows)


def sorted_run(rows: pa.RecordBatch, weights: Weights, hashes: Hashes) -> Run:
    """Return a run of rows given in any order; rows with equal hashes keep their order."""
    if is_sorted(hashes):
        return Run(hashes, rows, weights)
    order = stable_order(hashes)
    return Run(hashes[order], take_rows(rows, order), weights[order])


def is_sorted(hashes: Hashes) -> bool:
    """Whether the hashes are in ascending order."""
    return bool((hashes[1:] >= hashes[:-1]).all())


def locate(run: Run, hashes: Hashes) -> tuple[Indices, Indices]:
    """Find each hash in a run; return the starts and lengths of the index ranges. Fast if the hashes ascend."""
    starts = first_places(run.hashes, hashes)
    lengths = np.zeros(len(hashes), dtype=np.int64)
    if len(run):
        inside = np.minimum(starts, len(run) - 1)
        hits = np.flatnonzero(run.hashes[inside] == hashes)
        lengths[hits] = 1
        # Most keys have one row: search only the other keys for the end of their range.
        after = inside[hits] + 1
        more = hits[run.hashes[np.minimum(after, len(run) - 1)] == hashes[hits]]
        more = more[starts[more] + 1 < len(run)]
        if len(more):
            lengths[more] = np.searchsorted(run.hashes, hashes[more], side="right") - starts[more]
    return starts, lengths


def probe(
    runs: Sequence[Run], key: Key, keys: pa.RecordBatch, hashes: Hashes, *, schema: pa.Schema | None = None
) -> Matches:
    """Return every stored row of a multiset whose key is that of a probe row, with its weight in its run.

    `keys` has the key values in the column order of `key`, and `hashes` their hashes. A row that is in several runs is
    returned several times. The order of matches is unspecified but deterministic. If there are no runs, the matches
    have the columns of `schema`, or no columns.
    """
    order = None if is_sorted(hashes) else stable_order(hashes)
    ascending = hashes if order is None else hashes[order]
    probes, batches, weights = [], [], []
    for run in runs:
        starts, lengths = locate(run, ascending)
        hits = np.flatnonzero(lengths)
        if not len(hits):
            continue
        places = spread(starts[hits], lengths[hits])
        found = np.repeat(hits if order is None else order[hits], lengths[hits])
        rows = take_rows(run.rows, places)
        same = _same_keys(rows, key, keys, found)
        if not same.all():
            kept = np.flatnonzero(same)
            found, places, rows = found[kept], places[kept], take_rows(rows, kept)
        probes.append(found)
        batches.append(rows)
        weights.append(run.weights[places])
    if len(probes) == 1:
        return Matches(probes[0], batches[0], weights[0])
    if not probes:
        none = np.zeros(0, dtype=np.int64)
        return Matches(none, _no_rows(runs, schema), none)
    rows = concat_rows(batches, batches[0].schema)
    return Matches(np.concatenate(probes), rows, np.concatenate(weights))


def lookup(
    runs: Sequence[Run], key: Key, keys: pa.RecordBatch, hashes: Hashes, *, schema: pa.Schema | None = None
) -> tuple[Indices, pa.RecordBatch]:
    """Return for each probe key the index of its latest row in the batch returned, or -1 if the key is absent or deleted.

    If there are no runs, the batch has the columns of `schema`, or no columns.
    """
    found = np.full(len(hashes), -1, dtype=np.int64)
    batches: list[pa.RecordBatch] = []
    count = 0
    left = np.argsort(hashes)
    for run in reversed(runs):
        if not len(left):
            break
        starts, lengths = locate(run, hashes[left])
        hits = np.flatnonzero(lengths)
        if not len(hits):
            continue
        places = spread(starts[hits], lengths[hits])
        slots = np.repeat(hits, lengths[hits])
        rows = take_rows(run.rows, places)
        same = _same_keys(rows, key, keys, left[slots])
        present = same & (run.weights[places] != 0)
        chosen = np.flatnonzero(present)
        found[left[slots[chosen]]] = count + np.arange(len(chosen))
        batches.append(rows if len(chosen) == len(places) else take_rows(rows, chosen))
        count += len(chosen)
        settled = np.zeros(len(left), dtype=np.bool_)
        settled[slots[same]] = True
        left = left[~settled]
    if not count:
        return found, _no_rows(runs, schema)
    return found, concat_rows(batches, batches[0].schema)


def merge(runs: Sequence[Run], key: Key) -> Run:
    """Merge the runs of a multiset into one with equal contents; at least one run is required. All have the same key."""
    del key  # equal rows have equal hashes, so comparing rows is sufficient
    if (joined := _joined(runs)) is None:
        return _first_filled(runs)
    return joined.run(_summed(joined))


def merge_stacked(stacks: Sequence[Sequence[Run]], key: Key) -> list[Run]:
    """Apply `merge` to the runs of each stack; the runs of all stacks have the same columns."""
    del key
    joined = _joined_stacked(stacks)
    return joined.runs(_summed(joined.whole))


def merge_latest(runs: Sequence[Run], key: Key, bottom: bool) -> Run:
    """Merge the runs of a map into one with equal contents; at least one run is required.

    `bottom`: there are no older runs below, so that deleted keys need no marker.
    """
    if (joined := _joined(runs[::-1])) is None:  # the newest first: of equal keys the first is kept
        run = _first_filled(runs)
        if not bottom or run.weights.all():
            return run
        present = np.flatnonzero(run.weights)
        return Run(run.hashes[present], take_rows(run.rows, present), run.weights[present])
    return joined.run(_newest(joined, key, bottom))


def merge_latest_stacked(stacks: Sequence[Sequence[Run]], key: Key, bottom: bool) -> list[Run]:
    """Apply `merge_latest` to the runs of each stack; the runs of all stacks have the same columns."""
    joined = _joined_stacked([runs[::-1] for runs in stacks])
    return joined.runs(_newest(joined.whole, key, bottom))


def _summed(joined: _Joined) -> Mask | None:
    """Add up the weights of equal rows on the first of them; return a mask of the rows to keep, or None to keep all."""
    shared = joined.shared()
    if not len(shared):
        return None
    groups = groups_of(*joined.identities(joined.at(shared).columns, shared, exact=True))
    if groups is None:
        return None
    places, firsts = shared[groups.order], shared[groups.firsts]
    sums = np.add.reduceat(joined.weights[places], groups.starts)
    joined.weights[firsts] = sums
    kept = np.ones(len(joined.order), dtype=np.bool_)
    kept[places] = False
    kept[firsts] = sums != 0
    return kept


def _newest(joined: _Joined, key: Key, bottom: bool) -> Mask:
    """Return a mask of the first row of each key; with `bottom`, deleted rows are excluded."""
    kept = np.ones(len(joined.order), dtype=np.bool_)
    shared = joined.shared()
    if len(shared):
        rows = take_rows(joined.rows.select(list(key)), joined.order[shared])
        if groups := groups_of(*joined.identities(rows.columns, shared, exact=False)):
            kept[shared] = False
            kept[shared[groups.firsts]] = True
    if bottom:
        kept &= joined.weights != 0
    return kept


def same_hashes(run: Run, known: MutableMapping[tuple[object, ...], Hashes], of: str = "") -> Run:
    """Return the run with its array of hashes replaced by an equal array from `known`, if there is one; else register
    its array.

    Runs with equal keys then share one array, so that readers of both detect equality by identity without comparing
    keys. Only arrays registered under the same `of` are compared.
    """
    if not len(run):
        return run
    hashes = run.hashes
    key = of, len(run), int(hashes[0]), int(hashes[len(run) // 2]), int(hashes[-1])
    found = known.setdefault(key, hashes)
    if found is run.hashes or not np.array_equal(found, run.hashes):
        return run
    return Run(found, run.rows, run.weights)


def contents(runs: Sequence[Run], schema: pa.Schema) -> Delta:
    """Return the consolidated contents of a multiset."""
    if not runs:
        return Delta.empty(schema)
    run = merge(runs, ())
    return Delta(concat_rows([run.rows], schema), run.weights)


def first_contents(runs: Sequence[Run], read: Callable[[Sequence[Run]], Delta], count: int | None) -> Delta:
    """Return at least `count` rows of the output of `read` over the runs, or all rows if there are fewer or `count` is None.

    The runs are read by hash range until there are enough rows, so that the cost is proportional to the rows returned.
    """
    if count is None:
        return read(runs)
    rows, found = sum(map(len, runs)), 0
    parts: list[Delta] = []
    low, width = 0, _HASHES
    if rows > _PIECE_ROWS:
        width = min(_HASHES, _HASHES * (2 * count + _PIECE_ROWS) // rows)
    while not parts or (found < count and low < _HASHES):
        parts.append(read([split(run, low, low + width) for run in runs]))
        found += len(parts[-1])
        low, width = low + width, 2 * width
    return parts[0] if len(parts) == 1 else concat(parts, parts[0].rows.schema)


def evolved(run: Run, schema: pa.Schema) -> Run:
    """Return a run written with fewer or narrower columns in the columns of `schema`; added columns are NULL.

    The hashes stay valid: a key keeps its hash when its type is widened.
    """
    if run.rows.schema.equals(schema):
        return run
    known = run.rows.schema.names
    columns = [
        run.rows.column(known.index(field.name)).cast(field.type)
        if field.name in known
        else pa.nulls(len(run), field.type)
        for field in schema
    ]
    return Run(run.hashes, pa.RecordBatch.from_arrays(columns, schema=schema), run.weights)


def contents_latest(runs: Sequence[Run], schema: pa.Schema, key: Key) -> Delta:
    """Return all rows of a map."""
    if not runs:
        return Delta.empty(schema)
    run = merge_latest([evolved(each, schema) for each in runs], key, bottom=True)
    return Delta(concat_rows([run.rows], schema), run.weights)


def split(run: Run, low: int, high: int) -> Run:
    """Return the part of a run with hashes in [low, high), without copying; `high` may be 2**64."""
    start = int(np.searchsorted(run.hashes, np.uint64(low))) if low < 2**64 else len(run)
    end = int(np.searchsorted(run.hashes, np.uint64(high))) if high < 2**64 else len(run)
    end = max(start, end)
    return Run(run.hashes[start:end], run.rows.slice(start, end - start), run.weights[start:end])


def among(run: Run, hashes: Hashes) -> Run:
    """Return the part of a run whose key hashes are in `hashes`, which must be distinct and ascending."""
    starts, lengths = locate(run, hashes)
    before = np.cumsum(lengths) - lengths
    places = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
    return Run(run.hashes[places], take_rows(run.rows, places), run.weights[places])


def is_among(hashes: Hashes, some: Hashes) -> Mask:
    """Return a mask of the hashes contained in `some`, which must be distinct and ascending."""
    if not len(some):
        return np.zeros(len(hashes), dtype=np.bool_)
    found: Mask = some[np.minimum(np.searchsorted(some, hashes), len(some) - 1)] == hashes
    return found


def joined(parts: Sequence[Run]) -> Run:
    """Concatenate runs of consecutive hash ranges into one run."""
    return Run(
        np.concatenate([part.hashes for part in parts]),
        concat_rows([part.rows for part in parts], parts[0].rows.schema),
        np.concatenate([part.weights for part in parts]),
    )


@dataclass(frozen=True, eq=False)
class _Joined:
    """Several runs concatenated, and the order that sorts them; rows with equal hashes stay in the order of the runs.

    Hashes and weights are already sorted; rows are not.
    """

    sources: Sources
    """Index of the run from which each row of the order comes."""
    rows: pa.RecordBatch
    order: Indices
    hashes: Hashes
    weights: Weights
    stacks: Hashes | None = None
    """Index of the stack from which each row of the order comes, if there are several; rows of different stacks never
    match."""

    def identities(
        self, columns: Sequence[pa.Array], places: Indices, *, exact: bool
    ) -> tuple[Hashes, Hashes]:
        """Return a 128-bit identity of the column values at these indices of the order, combined with the row's stack."""
        high, low = identities(columns, len(places), exact=exact)
        return high, low if self.stacks is None else low + self.stacks[places]

    def shared(self) -> Indices:
        """Return ascending indices in the order that include every hash found in more than one run, and possibly others."""
        same = self.hashes[1:] == self.hashes[:-1]
        mixed = same & (self.sources[1:] != self.sources[:-1])
        if not mixed.any():
            return np.zeros(0, dtype=np.int64)
        starts = np.flatnonzero(np.concatenate(([True], ~same)))
        sizes = np.diff(starts, append=len(self.order))
        groups = np.flatnonzero(np.logical_or.reduceat(np.concatenate(([False], mixed)), starts))
        sizes = sizes[groups]
        if 2 * int(sizes.sum()) > len(self.order):  # scanning all rows costs less than selecting most of them
            return np.arange(len(self.order))
        return spread(starts[groups], sizes)

    def at(self, places: Indices) -> pa.RecordBatch:
        """Return the rows at ascending indices of the order."""
        if len(places) == len(self.order):
            return self.sorted_rows
        return take_rows(self.rows, self.order[places])

    @cached_property
    def sorted_rows(self) -> pa.RecordBatch:
        """All rows in sorted order."""
        return take_rows(self.rows, self.order)

    def run(self, kept: Mask | None) -> Run:
        """Return the sorted rows as a run, restricted to `kept` if given."""
        if kept is None or kept.all():
            return Run(self.hashes, self.sorted_rows, self.weights)
        return Run(self.hashes[kept], take_rows(self.rows, self.order[kept]), self.weights[kept])


def _joined(runs: Sequence[Run]) -> _Joined | None:
    """Concatenate and sort the runs; None unless at least two runs have rows."""
    filled = [run for run in runs if len(run)]
    if len(filled) < 2:
        return None
    hashes = np.concatenate([run.hashes for run in filled])
    weights = np.concatenate([run.weights for run in filled])
    sources = np.repeat(np.arange(len(filled), dtype=np.int32), [len(run) for run in filled])
    order = np.argsort(hashes, kind="stable")  # a merge: the stable sort detects the ascending runs
    return _Joined(
        sources[order],
        concat_rows([run.rows for run in filled], filled[0].rows.schema),
        order,
        hashes[order],
        weights[order],
    )


@dataclass(frozen=True, eq=False)
class _Stacked:
    """The runs of several stacks concatenated stack by stack, with the sort order of each stack."""

    whole: _Joined
    bounds: Indices
    """Start of each stack in the order, and the end of the last one."""

    def runs(self, kept: Mask | None) -> list[Run]:
        """Return one merged run for each stack, as slices of a single run."""
        run = self.whole.run(kept)
        bounds = self.bounds
        if len(run) < bounds[-1]:
            assert kept is not None
            bounds = np.concatenate(([0], np.cumsum(kept)))[bounds]
        return [
            Run(run.hashes[start:stop], run.rows.slice(start, stop - start), run.weights[start:stop])
            for start, stop in pairwise(bounds.tolist())
        ]


def _joined_stacked(stacks: Sequence[Sequence[Run]]) -> _Stacked:
    known: dict[tuple[int, ...], tuple[Indices, Hashes]] = {}
    orders: list[Indices] = []
    hashes: list[Hashes] = []
    start = 0
    for stack in stacks:
        same = tuple([id(run.hashes) for run in stack])  # stacks with the same arrays have the same order
        if same not in known:
            own = np.concatenate([run.hashes for run in stack])
            order = np.argsort(own, kind="stable")
            known[same] = order, own[order]
        order, ascending = known[same]
        orders.append(order + start)
        hashes.append(ascending)
        start += len(order)
    every = [run for stack in stacks for run in stack]
    whole = np.concatenate(orders)
    sizes = [len(order) for order in orders]
    return _Stacked(
        _Joined(
            np.repeat(np.arange(len(every), dtype=np.int32), [len(run) for run in every])[whole],
            concat_rows([run.rows for run in every], every[0].rows.schema),
            whole,
            np.concatenate(hashes),
            np.concatenate([run.weights for run in every])[whole],
            np.repeat(np.arange(len(stacks), dtype=np.uint64), sizes),
        ),
        np.cumsum([0, *sizes]),
    )


def _first_filled(runs: Sequence[Run]) -> Run:
    return next((run for run in runs if len(run)), runs[0])


def _same_keys(rows: pa.RecordBatch, key: Key, keys: pa.RecordBatch, probes: Indices) -> Mask:
    """Return a mask of the rows that have the key of their probe."""
    wanted = take_rows(keys, probes)
    return equal_rows([rows.column(i) for i in key], wanted.columns, len(probes))


def _no_rows(runs: Sequence[Run], schema: pa.Schema | None) -> pa.RecordBatch:
    return empty_rows(runs[0].rows.schema if runs else schema or pa.schema([]))
