"""Multiset runs ordered within each key, so that the first rows of a group can be read without the rest.

A run is sorted by key hash, then by the declared order, then by all columns ascending with NULLs first, in column
order. The first (or last) rows of a group of any size, for min, max and top-k, are read at a cost proportional to the
number of rows requested and the number of them retracted, not to the size of the group. `collation` defines how values
compare; runs without an order within a key are in `runs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, Mask, equal_rows, hash_rows, spread
from headwater.operators.zset.collation import ColumnOrder, compare_rows, sort_rows, total_order
from headwater.operators.zset.delta import Delta, Weights, concat_rows, consolidate, empty_rows, take_rows
from headwater.operators.zset.radix_sort import stable_order
from headwater.operators.zset.runs import Key, Matches, Probes, Run, is_sorted, key_hashes, locate

__all__ = [
    "ColumnOrder",
    "Counting",
    "Firsts",
    "Limit",
    "arrange_ordered",
    "first_changes",
    "first_rows",
    "merge_ordered",
]

Counting = Literal["rows", "ties", "values"]

SLICE_ROWS = 1 << 18
"""Number of rows read from runs at a time: it bounds memory independently of the number of keys requested."""
_SPARE_ROWS = 3
"""Number of rows read initially beyond those requested, so that a few retracted rows need no second read."""
_INSERT_RATIO = 8
"""Run length ratio from which rows are inserted by bisection; below it, the runs are sorted together."""


def arrange_ordered(delta: Delta, key: Key, order: Sequence[ColumnOrder]) -> Run:
    """Return a delta as an ordered run: consolidated and sorted."""
    if not delta.rows.num_columns:
        delta = consolidate(delta)
        return Run(hash_rows([], len(delta)), delta.rows, delta.weights)
    return _sorted(delta.rows, delta.weights, key_hashes(delta.rows, key), order)


def merge_ordered(runs: Sequence[Run], key: Key, order: Sequence[ColumnOrder]) -> Run:
    """Merge ordered runs into one with equal contents; at least one is required. All have the same key and order."""
    del key  # the hashes represent the key
    filled = sorted((run for run in runs if len(run)), key=len)
    if len(filled) < 2:
        return filled[0] if filled else runs[0]
    *small, big = filled
    if sum(map(len, small)) * _INSERT_RATIO > len(big):
        return _sorted_together(filled, order)
    return _inserted(big, small[0] if len(small) == 1 else _sorted_together(small, order), order)


@dataclass(frozen=True, slots=True)
class Limit:
    """The number of rows of a key that are first, as `counting` defines it.

    "rows": `count` rows, where a row of weight 2 counts twice and the last row's weight is cut to fit; "ties": these and
    all rows that the declared order ties with the last of them; "values": all rows with one of the first `count` values
    of the declared order.
    """

    count: int
    counting: Counting = "rows"


def first_rows(
    runs: Sequence[Run],
    order: Sequence[ColumnOrder],
    probes: Probes,
    limit: Limit,
    *,
    from_end: bool = False,
    schema: pa.Schema | None = None,
) -> Matches:
    """Return the first rows of each probe key in order (`from_end`: the last, from the end), each once, with its net weight.

    Rows whose net weight is not positive are absent. Matches are ordered by probe, then by `order`. If there are no
    runs, they have the columns of `schema`, or no columns.
    """
    filled = [run for run in runs if len(run)]
    schema = runs[0].rows.schema if runs else schema or pa.schema([])
    parts: list[Firsts] = []
    if filled and limit.count > 0:
        parts = list(_Reader(filled, None, order, probes, from_end).firsts(limit))
    if len(parts) == 1:
        return Matches(parts[0].probe, parts[0].rows, parts[0].after)
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Matches(none, empty_rows(schema), none)
    numbers = np.concatenate([part.probe for part in parts])
    rows = concat_rows([part.rows for part in parts], schema)
    weights = np.concatenate([part.after for part in parts])
    if (numbers[1:] >= numbers[:-1]).all():
        return Matches(numbers, rows, weights)
    by_probe = np.argsort(numbers, kind="stable")
    return Matches(numbers[by_probe], take_rows(rows, by_probe), weights[by_probe])


@dataclass(frozen=True, eq=False)
class Firsts:
    """Rows among the first of their probe before a change, after it, or both; ordered by probe, then by the declared order."""

    probe: Indices
    rows: pa.RecordBatch
    values: Indices
    """Number of the row's value in the declared order: it increases where a row is not tied with the previous one."""
    before: Weights
    """Number of times each row is among the first before the change; 0 if it is not."""
    after: Weights


def first_changes(
    runs: Sequence[Run],
    change: Run,
    order: Sequence[ColumnOrder],
    probes: Probes,
    limit: Limit,
) -> Iterator[Firsts]:
    """Return for each probe key its first rows, as defined by `first_rows`, before and after `change` is added to the runs.

    Both versions are read in one pass, a subset of the probes at a time; each probe is in exactly one part.
    """
    if len(change) and limit.count > 0:
        filled = [run for run in runs if len(run)]
        yield from _Reader(filled, change, order, probes, from_end=False).firsts(limit)


class _Reader:
    """Reads the beginning of the index ranges of the probe keys in the runs."""

    def __init__(
        self,
        runs: Sequence[Run],
        change: Run | None,
        order: Sequence[ColumnOrder],
        probes: Probes,
        from_end: bool,
    ) -> None:
        self._old = len(runs)
        self._runs = runs = runs if change is None else [*runs, change]
        self._key = probes.key
        self._keys = probes.keys
        hashes = probes.hashes
        self._from_end = from_end
        self._declared = len(order)
        total = total_order(order, runs[0].rows.num_columns)
        self._order = tuple(by.reversed() for by in total) if from_end else total
        ascending = None if is_sorted(hashes) else stable_order(hashes)
        self._starts = np.zeros((len(runs), len(hashes)), dtype=np.int64)
        self._lengths = np.zeros((len(runs), len(hashes)), dtype=np.int64)
        for i, run in enumerate(runs):
            starts, lengths = locate(run, hashes if ascending is None else hashes[ascending])
            places = slice(None) if ascending is None else ascending
            self._starts[i, places], self._lengths[i, places] = starts, lengths

    def firsts(self, limit: Limit) -> Iterator[Firsts]:
        """Yield the first rows of all probes; each probe is in exactly one part."""
        pending = [(np.flatnonzero(self._lengths.any(axis=0)), limit.count + _SPARE_ROWS)]
        while pending:
            probes, length = pending.pop()
            for some in self._slices(probes, length):
                part, done = self._read(some, length, limit)
                if len(part.probe):
                    yield part
                if not done.all():
                    pending.append((some[~done], 2 * length))

    def _slices(self, probes: Indices, length: int) -> Sequence[Indices]:
        """Split the probes so that reading up to `length` rows of every run for each probe reads about one slice at a time."""
        if not len(probes):
            return ()
        rows = np.zeros(len(probes), dtype=np.int64)
        for lengths in self._lengths:
            rows += np.minimum(lengths[probes], length)
        return np.split(probes, np.flatnonzero(np.diff(np.cumsum(rows) // SLICE_ROWS)) + 1)

    def _read(self, probes: Indices, length: int, limit: Limit) -> tuple[Firsts, Mask]:
        """Return the first rows of those probes for which `length` rows of each run suffice, and a mask of these probes."""
        batches, weights, slots, lasts = [], [], [], []
        count = old = 0
        for i, run in enumerate(self._runs):
            starts, lengths = self._starts[i, probes], self._lengths[i, probes]
            taken = np.minimum(lengths, length)
            if self._from_end:
                starts = starts + lengths - taken
            places = spread(starts, taken)
            if not len(places):
                continue
            ends = count + np.cumsum(taken)
            unread = taken < lengths
            lasts.append((ends - taken if self._from_end else ends - 1)[unread])
            batches.append(take_rows(run.rows, places))
            weights.append(run.weights[places])
            slots.append(np.repeat(np.arange(len(probes)), taken))
            count += len(places)
            old = count if i < self._old else old
        rows = concat_rows(batches, self._runs[0].rows.schema)
        slot = np.concatenate(slots)
        weight = self._of_their_key(rows, np.concatenate(weights), probes[slot])
        sort = sort_rows(rows, slot, self._order, self._declared)
        # Beyond the last row read of a run with more rows, rows and weights of that run may be missing.
        place = np.empty(count, dtype=np.int64)
        place[sort.order] = np.arange(count)
        frontier = np.full(len(probes), count)
        last = np.concatenate(lasts)
        np.minimum.at(frontier, slot[last], place[last])
        starts = np.flatnonzero(sort.rows)
        first = sort.order[starts]
        group, value = slot[first], np.cumsum(sort.values, dtype=np.int64)[starts]
        known = starts <= frontier[group]
        done = np.ones(len(probes), dtype=np.bool_)
        counts = []
        for each in self._versions(weight, old):
            net = np.where(known, np.add.reduceat(each[sort.order], starts), 0)
            counted, proven = _choose(group, value, net, limit)
            counts.append(counted)
            enough = frontier == count
            enough[proven] = True
            done &= enough
        before, after = counts[0], counts[-1]
        kept = np.flatnonzero(((before > 0) | (after > 0)) & done[group])
        found = take_rows(rows, first[kept])
        return Firsts(probes[group[kept]], found, value[kept], before[kept], after[kept]), done

    def _versions(self, weights: Weights, old: int) -> Iterator[Weights]:
        """Yield the weights without the change, whose rows come last, if there is one; then all weights."""
        if self._old < len(self._runs):
            without = weights.copy()
            without[old:] = 0
            yield without
        yield weights

    def _of_their_key(self, rows: pa.RecordBatch, weights: Weights, probes: Indices) -> Weights:
        """Return the weights, with 0 for rows that match their probe's key only by hash."""
        wanted = take_rows(self._keys, probes)
        same = equal_rows([rows.column(i) for i in self._key], wanted.columns, len(probes))
        return weights if same.all() else np.where(same, weights, 0)


def _choose(group: Indices, value: Indices, net: Weights, limit: Limit) -> tuple[Weights, Indices]:
    """Return how often each row, sorted by group and order, is among the first, and the groups proven complete."""
    counts = np.zeros(len(net), dtype=np.int64)
    there = np.flatnonzero(net > 0)
    group, value, net = group[there], value[there], net[there]
    before = _before(group, net)
    if limit.counting == "rows":
        counts[there] = np.clip(limit.count - before, 0, net)
        return counts, group[before + net >= limit.count]
    new = np.ones(len(group), dtype=np.bool_)
    new[1:] = (group[1:] != group[:-1]) | (value[1:] != value[:-1])
    if limit.counting == "ties":
        ahead = before[new]
    else:
        ahead = _before(group[new], np.ones(int(new.sum()), dtype=np.int64))
    chosen: Mask = (ahead < limit.count)[np.cumsum(new) - 1]
    counts[there[chosen]] = net[chosen]
    return counts, group[~chosen]


def _before(group: Indices, counts: Weights) -> Weights:
    """Return the sum of the counts of the preceding rows of the group, for each row."""
    before = np.cumsum(counts) - counts
    starts = np.ones(len(group), dtype=np.bool_)
    starts[1:] = group[1:] != group[:-1]
    before -= before[starts][np.cumsum(starts) - 1]
    return before


def _sorted(rows: pa.RecordBatch, weights: Weights, hashes: Hashes, order: Sequence[ColumnOrder]) -> Run:
    """Return rows given in any order as a run; the sort makes equal rows adjacent."""
    if not len(hashes):
        return Run(hashes, rows, weights)
    sort = sort_rows(rows, hashes, total_order(order, rows.num_columns), len(order))
    starts = np.flatnonzero(sort.rows)
    net = np.add.reduceat(weights[sort.order], starts)
    kept = np.flatnonzero(net)
    places = sort.order[starts[kept]]
    return Run(hashes[places], take_rows(rows, places), net[kept])


def _sorted_together(runs: Sequence[Run], order: Sequence[ColumnOrder]) -> Run:
    hashes = np.concatenate([run.hashes for run in runs])
    weights = np.concatenate([run.weights for run in runs])
    return _sorted(concat_rows([run.rows for run in runs], runs[0].rows.schema), weights, hashes, order)


def _inserted(big: Run, small: Run, order: Sequence[ColumnOrder]) -> Run:
    """Insert the rows of a short run into a long one."""
    places, found = _search(big, small, total_order(order, big.rows.num_columns))
    weights = np.concatenate([big.weights, small.weights])
    known = found >= 0
    weights[found[known]] += small.weights[known]
    new = np.flatnonzero(~known)
    slots = places[new] + np.arange(len(new))
    indices = np.empty(len(big) + len(new), dtype=np.int64)
    old = np.ones(len(indices), dtype=np.bool_)
    old[slots] = False
    indices[old] = np.arange(len(big))
    indices[slots] = len(big) + new
    if not weights[found[known]].all():
        indices = indices[weights[indices] != 0]
    hashes = np.concatenate([big.hashes, small.hashes])
    rows = concat_rows([big.rows, small.rows], big.rows.schema)
    return Run(hashes[indices], take_rows(rows, indices), weights[indices])


def _search(run: Run, wanted: Run, total: Sequence[ColumnOrder]) -> tuple[Indices, Indices]:
    """Find for each wanted row, by bisection, its insertion index in a run, and its index there, or -1."""
    low, lengths = locate(run, wanted.hashes)
    high = low + lengths
    found = np.full(len(wanted), -1, dtype=np.int64)
    active = np.flatnonzero(lengths)
    while len(active):
        middle = (low[active] + high[active]) // 2
        sign = compare_rows(run.rows, middle, wanted.rows, active, total)
        less, more, same = sign < 0, sign > 0, sign == 0
        low[active[less]] = middle[less] + 1
        high[active[more]] = middle[more]
        found[active[same]] = middle[same]
        active = active[~same]
        active = active[low[active] < high[active]]
    return low, found
