"""Row pairs of a join: one side with its state and its delta, and pairs of rows of both sides.

`join` computes join results from the pairs. Side 0 is the left side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Hashes, null_mask, spread
from headwater.operators.zset.delta import Delta, concat_rows, consolidate, groups_of, row_hashes, take_rows
from headwater.operators.zset.exact_sums import Bools, Ints
from headwater.operators.zset.grouping import group
from headwater.operators.zset.runs import Matches, Run, probe

Condition = Callable[[pa.RecordBatch], Bools]
"""The rest of an ON clause: a function from the left columns followed by the right columns to a mask of matching pairs."""

_Half = tuple[pa.RecordBatch, Ints, Ints]


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a join: its state before the step, its delta as a run, and the delta's keys that have no NULL.

    The delta's rows with the i-th key are the `sizes[i]` rows from `starts[i]` on.
    """

    state: tuple[Run, ...]
    key: tuple[int, ...]
    delta: Run
    starts: Ints
    sizes: Ints
    keys: pa.RecordBatch
    hashes: Hashes

    @staticmethod
    def of(delta: Delta, state: Sequence[Run], key: tuple[int, ...]) -> Side:
        delta = consolidate(delta)
        filled = tuple(run for run in state if len(run))
        if not len(delta):
            none, hashes = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
            keys = delta.rows.select(list(key))
            return Side(filled, key, Run(hashes, delta.rows, none), none, none, keys, hashes)
        groups = group(delta.rows, len(delta), key)
        if groups.order is not None:
            delta = delta.take(groups.order)
        run = Run(np.repeat(groups.hashes, groups.sizes), delta.rows, delta.weights)
        live = _without_null(groups.keys)
        if live is None:
            return Side(filled, key, run, groups.starts, groups.sizes, groups.keys, groups.hashes)
        keys = take_rows(groups.keys, live)
        return Side(filled, key, run, groups.starts[live], groups.sizes[live], keys, groups.hashes[live])

    def members(self, places: Ints) -> tuple[Ints, Ints]:
        """Return the delta's rows that have the keys at these indices, and for each row the index into `places` of its key."""
        sizes = self.sizes[places]
        if (sizes == 1).all():
            return self.starts[places], np.arange(len(places))
        return spread(self.starts[places], sizes), np.repeat(np.arange(len(places)), sizes)

    def probe(self, runs: Sequence[Run], keys: pa.RecordBatch, hashes: Hashes) -> Matches:
        """Return the rows of some runs of this side that have these keys."""
        return probe(runs, self.key, keys, hashes, schema=self.delta.rows.schema)

    def count(self, runs: Sequence[Run], keys: pa.RecordBatch, hashes: Hashes) -> Ints:
        """Count the rows of some runs of this side for each key; reads key columns only."""
        narrow = [Run(run.hashes, run.rows.select(list(self.key)), run.weights) for run in runs]
        matches = probe(narrow, range(len(self.key)), keys, hashes, schema=keys.schema)
        return tally(matches.probe, matches.weights, len(hashes))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of the left and the right side with their weights, and the row indices of pairs: pair i is at[0][i], at[1][i]."""

    rows: tuple[pa.RecordBatch, pa.RecordBatch]
    weights: tuple[Ints, Ints]
    at: tuple[Ints, Ints]
    made: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.at[0])

    def joined(self) -> pa.RecordBatch:
        """Return the pairs as rows: the left columns, then the right ones."""
        if self.made is not None:
            return self.made
        both = [_rows_at(rows, at) for rows, at in zip(self.rows, self.at, strict=True)]
        schema = pa.schema([*both[0].schema, *both[1].schema])
        return pa.RecordBatch.from_arrays([*both[0].columns, *both[1].columns], schema=schema)

    def filtered(self, mask: Bools, made: pa.RecordBatch) -> Pairs:
        """Return the pairs where the mask holds; `made` is the result of `joined()`."""
        if mask.all():
            return Pairs(self.rows, self.weights, self.at, made)
        kept = np.flatnonzero(mask)
        return Pairs(self.rows, self.weights, (self.at[0][kept], self.at[1][kept]), take_rows(made, kept))

    def delta(self, schema: pa.Schema) -> Delta:
        """Return the pairs with their weights multiplied."""
        weights = self.weights[0][self.at[0]] * self.weights[1][self.at[1]]
        return Delta(pa.RecordBatch.from_arrays(self.joined().columns, schema=schema), weights)

    def matches(self, side: int) -> Ints:
        """Return the number of rows of the other side that each row of this side pairs with."""
        return tally(self.at[side], self.weights[1 - side][self.at[1 - side]], len(self.weights[side]))


def pair_found(sides: tuple[Side, Side], side: int, found: Matches) -> Pairs:
    """Pair every row of a side's delta with every row of the other side found by its key."""
    run = sides[side].delta
    members, places = sides[side].members(found.probe)
    return paired(side, (run.rows, run.weights, members), (found.rows, found.weights, places))


def pair_deltas(sides: tuple[Side, Side]) -> Pairs:
    """Pair every row of the left delta with every row of the right delta that has its key."""
    left, right = sides
    none = np.zeros(0, dtype=np.int64)
    at = (none, none)
    if len(left.hashes) and len(right.hashes):
        columns = [*right.keys.columns, pa.array(np.arange(len(right.hashes)))]
        rows = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
        keys = Run(right.hashes, rows, np.ones(len(right.hashes), dtype=np.int64))
        found = probe([keys], range(len(right.key)), left.keys, left.hashes, schema=rows.schema)
        members, places = left.members(found.probe)
        partners = found.rows.column(len(columns) - 1).to_numpy()[places]
        sizes = right.sizes[partners]
        at = (np.repeat(members, sizes), spread(right.starts[partners], sizes))
    return Pairs((left.delta.rows, right.delta.rows), (left.delta.weights, right.delta.weights), at)


def paired(side: int, mine: _Half, theirs: _Half) -> Pairs:
    left, right = (theirs, mine) if side else (mine, theirs)
    return Pairs((left[0], right[0]), (left[1], right[1]), (left[2], right[2]))


def judged(condition: Condition | None, candidates: list[Pairs]) -> list[Pairs]:
    """Filter candidates to the pairs that match, evaluating the condition once for all."""
    filled = [pairs for pairs in candidates if len(pairs)]
    if condition is None or not filled:
        return candidates
    made = [pairs.joined() for pairs in filled]
    weights = np.concatenate(
        [pairs.weights[0][pairs.at[0]] * pairs.weights[1][pairs.at[1]] for pairs in filled]
    )
    verdict = verdict_on(condition, concat_rows(made, made[0].schema), weights)
    kept, start = [], 0
    for pairs in candidates:
        if not len(pairs):
            kept.append(pairs)
            continue
        kept.append(pairs.filtered(verdict[start : start + len(pairs)], made.pop(0)))
        start += len(pairs)
    return kept


def verdict_on(condition: Condition, rows: pa.RecordBatch, weights: Ints) -> Bools:
    """Return a mask of the matching pairs.

    A condition may fail on pairs whose net weight is 0, such as an inserted row of one side with a retracted row of the
    other: these pairs never exist, so the condition is then evaluated again without them.
    """
    try:
        return np.asarray(condition(rows), dtype=np.bool_)
    except EvaluationError:
        groups = groups_of(*row_hashes(rows))
        if groups is None:
            raise
        sums = np.add.reduceat(weights[groups.order], groups.starts)
        sizes = np.diff(np.append(groups.starts, rows.num_rows))
        there = groups.order[np.repeat(sums != 0, sizes)]
        if len(there) == rows.num_rows:
            raise
    verdict = np.zeros(rows.num_rows, dtype=np.bool_)
    if len(there):
        verdict[there] = condition(take_rows(rows, there))
    return verdict


def _without_null(keys: pa.RecordBatch) -> Ints | None:
    """Return the indices of the keys without NULL; None if no key has a NULL."""
    live: Bools | None = None
    for column in keys.columns:
        nulls = null_mask(column)
        if nulls is not None:
            live = ~nulls if live is None else live & ~nulls
    return None if live is None else np.flatnonzero(live)


def _rows_at(rows: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
    """Return the rows at these indices, without copying if these are all rows in order."""
    if len(places) == rows.num_rows and np.array_equal(places, np.arange(len(places))):
        return rows
    return take_rows(rows, places)


def tally(places: Ints, weights: Ints, count: int) -> Ints:
    """Return the sum of the weights at each index."""
    return np.bincount(places, weights, count).astype(np.int64)
