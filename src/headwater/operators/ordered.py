"""Multiset runs kept in order within each key, so that the first rows of a group are read without the rest.

A run is sorted by key hash, then by the declared order, then by all columns ascending with NULLs first, in column order.
So a group of any size gives its first (or last) rows, for min, max and top-k, at a cost that follows how many are asked
for and how many of them were taken back, not the size of the group.
How values compare is said in `collation`; runs in no order within a key are in `runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from headwater.hashing import Hashes, Indices, Mask, equal_rows, hash_rows, spread
from headwater.operators.collation import Order, compare_rows, sort_rows, total_order
from headwater.operators.delta import (
    Delta,
    Weights,
    concat_rows,
    consolidate,
    empty_rows,
    stable_order,
    take_rows,
)
from headwater.operators.runs import Key, Matches, Run, is_sorted, key_hashes, locate

__all__ = ["Counting", "Order", "arrange_ordered", "first_rows", "merge_ordered"]

Counting = Literal["rows", "ties", "values"]

_SPARE_ROWS = 3
"""Read beyond what is asked for at first, so that a few rows taken back need no second look."""
_INSERT_RATIO = 8
"""Rows are searched one by one in a run this many times longer; in a shorter one they are sorted together with it."""


def arrange_ordered(delta: Delta, key: Key, order: Sequence[Order]) -> Run:
    """A delta as an ordered run: consolidated and sorted."""
    if not delta.rows.num_columns:
        delta = consolidate(delta)
        return Run(hash_rows([], len(delta)), delta.rows, delta.weights)
    return _sorted(delta.rows, delta.weights, key_hashes(delta.rows, key), order)


def merge_ordered(runs: Sequence[Run], key: Key, order: Sequence[Order]) -> Run:
    """One ordered run with the contents of all; there must be at least one. All have the same key and order."""
    del key  # the hashes stand for it
    filled = sorted((run for run in runs if len(run)), key=len)
    if len(filled) < 2:
        return filled[0] if filled else runs[0]
    *small, big = filled
    if sum(map(len, small)) * _INSERT_RATIO > len(big):
        return _sorted_together(filled, order)
    return _inserted(big, small[0] if len(small) == 1 else _sorted_together(small, order), order)


def first_rows(
    runs: Sequence[Run],
    key: Key,
    order: Sequence[Order],
    keys: pa.RecordBatch,
    hashes: Hashes,
    limit: int,
    *,
    from_end: bool = False,
    counting: Counting = "rows",
    schema: pa.Schema | None = None,
) -> Matches:
    """For each probe key its first rows in order (`from_end`: the last, from the end), each once, with its net weight.

    Rows whose weights do not add up to more than 0 are not there. How many are first is a matter of `counting`:
    "rows": `limit`, where a row of weight 2 counts twice and the last one's weight is cut to fit; "ties": these and
    all that the declared order does not tell from the last of them; "values": all that have one of the first
    `limit` values of the declared order. Matches go by probe, then by order. Without a run they have the columns
    of `schema`, or none.
    """
    filled = [run for run in runs if len(run)]
    if not filled or limit < 1:
        none = np.zeros(0, dtype=np.int64)
        return Matches(none, empty_rows(runs[0].rows.schema if runs else schema or pa.schema([])), none)
    reader = _Reader(filled, key, order, keys, hashes, from_end)
    pending = reader.occupied()
    parts: list[Matches] = []
    length = limit + _SPARE_ROWS
    while len(pending) or not parts:
        part, done = reader.read(pending, length, limit, counting)
        parts.append(part)
        pending = pending[~done]
        length *= 2
    if len(parts) == 1:
        return parts[0]
    probes = np.concatenate([part.probe for part in parts])
    rows = concat_rows([part.rows for part in parts], parts[0].rows.schema)
    weights = np.concatenate([part.weights for part in parts])
    by_probe = np.argsort(probes, kind="stable")
    return Matches(probes[by_probe], take_rows(rows, by_probe), weights[by_probe])


class _Reader:
    """Reads the beginnings of the ranges that some keys have in some runs."""

    def __init__(
        self,
        runs: Sequence[Run],
        key: Key,
        order: Sequence[Order],
        keys: pa.RecordBatch,
        hashes: Hashes,
        from_end: bool,
    ) -> None:
        self._runs = runs
        self._key = key
        self._keys = keys
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

    def occupied(self) -> Indices:
        """The probes that may have rows."""
        return np.flatnonzero(self._lengths.any(axis=0))

    def read(self, probes: Indices, length: int, limit: int, counting: Counting) -> tuple[Matches, Mask]:
        """The first rows of those probes for which `length` rows of each run are enough, and which these are."""
        batches, weights, slots, lasts = [], [], [], []
        count = 0
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
        if not batches:
            none = np.zeros(0, dtype=np.int64)
            rows = empty_rows(self._runs[0].rows.schema)
            return Matches(none, rows, none), np.ones(len(probes), dtype=np.bool_)
        rows = concat_rows(batches, self._runs[0].rows.schema)
        slot = np.concatenate(slots)
        weight = self._of_their_key(rows, np.concatenate(weights), probes[slot])
        sort = sort_rows(rows, slot, self._order, self._declared)
        # What comes after the last row read of a run that goes on may lack rows, and weights, of that run.
        place = np.empty(count, dtype=np.int64)
        place[sort.order] = np.arange(count)
        frontier = np.full(len(probes), count)
        last = np.concatenate(lasts)
        np.minimum.at(frontier, slot[last], place[last])
        starts = np.flatnonzero(sort.rows)
        net = np.add.reduceat(weight[sort.order], starts)
        there = (net > 0) & (starts <= frontier[slot[sort.order[starts]]])
        starts, net = starts[there], net[there]
        first = sort.order[starts]
        group = slot[first]
        chosen, beyond = _choose(group, np.cumsum(sort.values, dtype=np.int64)[starts], net, limit, counting)
        done = frontier == count
        done[group[beyond]] = True
        chosen &= done[group]
        cut = net[chosen] if counting != "rows" else _cut(group, net, limit)[chosen]
        return Matches(probes[group[chosen]], take_rows(rows, first[chosen]), cut), done

    def _of_their_key(self, rows: pa.RecordBatch, weights: Weights, probes: Indices) -> Weights:
        """The weights, with 0 for rows that share but the hash of their probe's key."""
        wanted = take_rows(self._keys, probes)
        same = equal_rows([rows.column(i) for i in self._key], wanted.columns, len(probes))
        return weights if same.all() else np.where(same, weights, 0)


def _choose(
    group: Indices, value: Indices, net: Weights, limit: int, counting: Counting
) -> tuple[Mask, Mask]:
    """Which of the rows, sorted by group and order, are among the first, and which prove that no more follow."""
    before = _before(group, net)
    if counting == "rows":
        return before < limit, before + net >= limit
    new = np.ones(len(group), dtype=np.bool_)
    new[1:] = (group[1:] != group[:-1]) | (value[1:] != value[:-1])
    if counting == "ties":
        ahead = before[new]
    else:
        ahead = _before(group[new], np.ones(int(new.sum()), dtype=np.int64))
    chosen: Mask = (ahead < limit)[np.cumsum(new) - 1]
    return chosen, ~chosen


def _before(group: Indices, counts: Weights) -> Weights:
    """How many the rows before each one in its group count."""
    before = np.cumsum(counts) - counts
    starts = np.ones(len(group), dtype=np.bool_)
    starts[1:] = group[1:] != group[:-1]
    before -= before[starts][np.cumsum(starts) - 1]
    return before


def _cut(group: Indices, net: Weights, limit: int) -> Weights:
    return np.minimum(net, limit - _before(group, net))


def _sorted(rows: pa.RecordBatch, weights: Weights, hashes: Hashes, order: Sequence[Order]) -> Run:
    """Rows in any order as a run: the sort brings equal rows together."""
    if not len(hashes):
        return Run(hashes, rows, weights)
    sort = sort_rows(rows, hashes, total_order(order, rows.num_columns), len(order))
    starts = np.flatnonzero(sort.rows)
    net = np.add.reduceat(weights[sort.order], starts)
    kept = np.flatnonzero(net)
    places = sort.order[starts[kept]]
    return Run(hashes[places], take_rows(rows, places), net[kept])


def _sorted_together(runs: Sequence[Run], order: Sequence[Order]) -> Run:
    hashes = np.concatenate([run.hashes for run in runs])
    weights = np.concatenate([run.weights for run in runs])
    return _sorted(concat_rows([run.rows for run in runs], runs[0].rows.schema), weights, hashes, order)


def _inserted(big: Run, small: Run, order: Sequence[Order]) -> Run:
    """A run with the rows of another one, which is short, put in their places."""
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


def _search(run: Run, wanted: Run, total: Sequence[Order]) -> tuple[Indices, Indices]:
    """For each row wanted the place in a run before which it belongs, and where it is, or -1: by bisection."""
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
