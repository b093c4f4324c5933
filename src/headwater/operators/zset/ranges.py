"""Range lookups in ordered runs: a key's rows whose time or number lies in a range, found by bisection.

The runs are those of `ordered_runs`, all sorted by key hash, then by one ascending column of 64-bit integers or
timestamps, then by all columns. A probe is a key and a range of that column; values are int64 (microseconds for
timestamps). NULL lies in no range, whether the order puts NULLs first or last.

Results are net: a row inserted by one run and retracted by another is absent. Cost is proportional to the rows found
and the retractions among them, never to the size of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, Mask, equal_rows, spread, words_of
from headwater.operators.zset.collation import ColumnOrder, sort_rows, total_order
from headwater.operators.zset.delta import concat_rows, empty_rows, take_rows
from headwater.operators.zset.radix_sort import stable_order
from headwater.operators.zset.runs import Key, Matches, Probes, Run, is_sorted, locate

__all__ = ["Spans", "between", "first_from", "last_upto", "spans"]

_SHARED = 64
"""Average number of consecutive probes with the same range from which each range is searched separately."""


def between(
    runs: Sequence[Run], column: int, probes: Probes, low: Indices, high: Indices, *, schema: pa.Schema
) -> Matches:
    """Return for each probe i the rows of its key whose `column` lies in [low[i], high[i]], with their net weight.

    A row occurs once for each probe that finds it. Matches are ordered by probe, then in the order of the runs; rows
    whose net weight is not positive are left out. If there are no runs, the matches have the columns of `schema`.
    """
    return _net(spans(runs, column, probes.hashes, low, high).read(probes.key, probes.keys, schema), column)[
        0
    ]


def last_upto(runs: Sequence[Run], column: int, probes: Probes, at: Indices, *, schema: pa.Schema) -> Matches:
    """Return for each probe i the rows of its key with the greatest present value <= at[i], including all ties.

    Order, weights and `schema` are as for `between`.
    """
    return _nearest(spans(runs, column, probes.hashes, None, at), probes, schema, from_end=True)


def first_from(
    runs: Sequence[Run], column: int, probes: Probes, at: Indices, *, schema: pa.Schema
) -> Matches:
    """Return for each probe i the rows of its key with the least present value >= at[i], including all ties.

    Order, weights and `schema` are as for `between`.
    """
    return _nearest(spans(runs, column, probes.hashes, at, None), probes, schema, from_end=False)


@dataclass(frozen=True, eq=False)
class Spans:
    """Index ranges of the rows of probes: for probe `probes[i]` the range [starts[r, i], ends[r, i]) of run r.

    The ranges include rows that share only the hash of the key, and exclude rows with NULL in `column`, the range column.
    """

    runs: Sequence[Run]
    column: int
    probes: Indices
    starts: Indices
    ends: Indices

    def only(self, mask: Mask) -> Spans:
        """Return the spans where the mask is true."""
        if mask.all():
            return self
        return Spans(self.runs, self.column, self.probes[mask], self.starts[:, mask], self.ends[:, mask])

    def filled(self) -> Mask:
        """Return a mask of the spans that have any row."""
        mask: Mask = np.any(self.starts < self.ends, axis=0)
        return mask

    def cut(self, length: Indices, *, from_end: bool = False) -> tuple[Spans, Spans]:
        """Split each span at one value: the rows up to and including it (`from_end`: from it on), and the other rows.

        The value is that of the `length[i]`-th row of the run whose first `length[i]` rows reach least far. The first
        part has all rows of all runs up to this value, including all ties, so that it is complete, whatever the other
        runs retract.
        """
        limits = np.iinfo(np.int64)
        frontier = np.full(len(self.probes), limits.min if from_end else limits.max)
        lanes = [_values(run, self.column) for run in self.runs]
        for lane, starts, ends in zip(lanes, self.starts, self.ends, strict=True):
            goes_on = np.flatnonzero(ends - starts > length)
            if from_end:
                last = lane[ends[goes_on] - length[goes_on]]
                frontier[goes_on] = np.maximum(frontier[goes_on], last)
            else:
                last = lane[starts[goes_on] + length[goes_on] - 1]
                frontier[goes_on] = np.minimum(frontier[goes_on], last)
        cuts = np.zeros_like(self.starts)
        for i, lane in enumerate(lanes):
            cuts[i] = _bisect(lane, self.starts[i], self.ends[i], frontier, after=not from_end)
        lower = Spans(self.runs, self.column, self.probes, self.starts, cuts)
        upper = Spans(self.runs, self.column, self.probes, cuts, self.ends)
        return (upper, lower) if from_end else (lower, upper)

    def read(self, key: Key, keys: pa.RecordBatch, schema: pa.Schema) -> Matches:
        """Return the rows of these spans that have the key of their probe, run by run, with their weight in the run."""
        parts: list[Matches] = []
        for run, starts, ends in zip(self.runs, self.starts, self.ends, strict=True):
            places = spread(starts, ends - starts)
            if len(places):
                found = np.repeat(self.probes, ends - starts)
                parts.append(_of_their_key(run, places, found, key, keys))
        if len(parts) == 1:
            return parts[0]
        if not parts:
            none = np.zeros(0, dtype=np.int64)
            return Matches(none, empty_rows(self.runs[0].rows.schema if self.runs else schema), none)
        return Matches(
            np.concatenate([part.probe for part in parts]),
            concat_rows([part.rows for part in parts], parts[0].rows.schema),
            np.concatenate([part.weights for part in parts]),
        )


def spans(
    runs: Sequence[Run], column: int, hashes: Hashes, low: Indices | None, high: Indices | None
) -> Spans:
    """Locate the rows with the hash of probe i and a value in [low[i], high[i]]; None leaves that end of the range open."""
    filled = [run for run in runs if len(run)]
    count = len(hashes)
    order = None if is_sorted(hashes) else stable_order(hashes)
    ascending = hashes if order is None else hashes[order]
    places = slice(None) if order is None else order
    starts = np.zeros((len(filled), count), dtype=np.int64)
    ends = np.zeros((len(filled), count), dtype=np.int64)
    for i, run in enumerate(filled):
        first, lengths = locate(run, ascending)
        starts[i, places], ends[i, places] = first, first + lengths
        _leave_out_nulls(run.rows.column(column), starts[i], ends[i])
        values, whole = _values(run, column), starts[i].copy()
        if low is not None:
            starts[i] = _bisect(values, whole, ends[i], low, after=False)
        if high is not None:
            ends[i] = np.maximum(_bisect(values, whole, ends[i], high, after=True), starts[i])
    return Spans(filled, column, np.arange(count), starts, ends)


def _of_their_key(run: Run, places: Indices, probes: Indices, key: Key, keys: pa.RecordBatch) -> Matches:
    """Return the rows at indices of a run, without those that match their probe's key only by hash."""
    rows, wanted = take_rows(run.rows, places), take_rows(keys, probes)
    same = equal_rows([rows.column(i) for i in key], wanted.columns, len(places))
    if same.all():
        return Matches(probes, rows, run.weights[places])
    kept = np.flatnonzero(same)
    return Matches(probes[kept], take_rows(rows, kept), run.weights[places[kept]])


def _net(found: Matches, column: int) -> tuple[Matches, Mask]:
    """Consolidate matches, ordered by probe and value; return a mask of where a new probe or a new value begins too."""
    if not len(found.probe):
        return found, np.zeros(0, dtype=np.bool_)
    total = total_order([ColumnOrder(column, descending=False, nulls_first=True)], found.rows.num_columns)
    sort = sort_rows(found.rows, found.probe, total, 1)
    starts = np.flatnonzero(sort.rows)
    net = np.add.reduceat(found.weights[sort.order], starts)
    there = np.flatnonzero(net > 0)
    starts = starts[there]
    chosen, value = sort.order[starts], np.cumsum(sort.values)[starts]
    fresh = np.ones(len(starts), dtype=np.bool_)
    fresh[1:] = value[1:] != value[:-1]
    return Matches(found.probe[chosen], take_rows(found.rows, chosen), net[there]), fresh


def _nearest(found: Spans, wanted: Probes, schema: pa.Schema, *, from_end: bool) -> Matches:
    """Return for each probe the rows of the first present value in its spans (`from_end`: of the last).

    Values are read from that end: one value of a run at first and, where that was retracted, twice as many rows each time.
    """
    parts: list[Matches] = []
    length = 1
    while True:
        near, found = found.cut(np.full(len(found.probes), length), from_end=from_end)
        matches, fresh = _net(near.read(wanted.key, wanted.keys, schema), found.column)
        chosen = _outermost(matches.probe, fresh, from_end)
        if len(chosen) < len(matches.probe):
            matches = Matches(matches.probe[chosen], take_rows(matches.rows, chosen), matches.weights[chosen])
        parts.append(matches)
        found = found.only(found.filled() & ~np.isin(found.probes, matches.probe))
        if not len(found.probes):
            break
        length *= 2
    if len(parts) == 1:
        return parts[0]
    probes = np.concatenate([part.probe for part in parts])
    rows = concat_rows([part.rows for part in parts], parts[0].rows.schema)
    weights = np.concatenate([part.weights for part in parts])
    by_probe = np.argsort(probes, kind="stable")
    return Matches(probes[by_probe], take_rows(rows, by_probe), weights[by_probe])


def _outermost(probes: Indices, fresh: Mask, from_end: bool) -> Indices:
    """Return the indices of each probe's first value (`from_end`: last value), given where values begin."""
    firsts = np.flatnonzero(fresh)
    sizes = np.diff(firsts, append=len(probes))
    new = np.ones(len(firsts), dtype=np.bool_)
    if from_end:
        new[:-1] = probes[firsts[1:]] != probes[firsts[:-1]]
    else:
        new[1:] = probes[firsts[1:]] != probes[firsts[:-1]]
    return spread(firsts[new], sizes[new])


def _values(run: Run, column: int) -> Indices:
    """Return a column as a view of its memory; entries under NULLs are undefined."""
    words = words_of(run.rows.column(column))
    if words is None or len(words) != 1:
        raise TypeError(f"a range cannot be of type {run.rows.schema.types[column]}")
    return words[0]


def _bisect(values: Indices, starts: Indices, ends: Indices, wanted: Indices, *, after: bool) -> Indices:
    """Return the insertion index of each wanted value within its index range, where values ascend.

    `after`: behind equal values.
    """
    changes = np.flatnonzero((starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])) + 1
    if (len(changes) + 1) * _SHARED < len(starts):
        side: Literal["left", "right"] = "right" if after else "left"
        places = np.empty_like(starts)
        for first, last in pairwise([0, *changes.tolist(), len(starts)]):
            start = int(starts[first])
            within = np.searchsorted(values[start : ends[first]], wanted[first:last], side=side)
            places[first:last] = start + within
        return places
    low = starts.copy()
    active = np.flatnonzero(starts < ends)
    bottom, top, value = starts[active], ends[active], wanted[active]
    while len(active):
        middle = (bottom + top) >> 1
        before = values[middle] <= value if after else values[middle] < value
        bottom, top = np.where(before, middle + 1, bottom), np.where(before, top, middle)
        done = bottom >= top
        if done.any():
            low[active[done]] = bottom[done]
            more = ~done
            active, bottom, top, value = active[more], bottom[more], top[more], value[more]
    return low


def _leave_out_nulls(column: pa.Array, starts: Indices, ends: Indices) -> None:
    """Narrow the ranges to non-NULL values; NULLs are at one end of each range."""
    if not column.null_count:
        return
    bits = np.frombuffer(column.buffers()[0], dtype=np.uint8)

    def present(places: Indices) -> Mask:
        at = places + column.offset
        mask: Mask = (bits[at >> 3] >> (at & 7).astype(np.uint8) & 1).view(np.bool_)
        return mask

    filled = np.flatnonzero(starts < ends)
    first = ~present(starts[filled])
    for among, ahead in ((filled[first], False), (filled[~first], True)):
        # `ahead`: values precede NULLs. Bisect for the boundary between the two.
        bottom, top = starts[among], ends[among]
        while (open_ := bottom < top).any():
            middle = (bottom + top) >> 1
            same = open_ & (present(np.minimum(middle, ends[among] - 1)) == ahead)
            bottom, top = np.where(same, middle + 1, bottom), np.where(open_ & ~same, middle, top)
        (ends if ahead else starts)[among] = bottom
