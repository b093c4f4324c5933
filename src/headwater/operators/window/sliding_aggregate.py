"""Aggregates over sliding frames: for every row, over the rows of its key whose time is close enough to its own.

The frame of a row at time t is [t + low, t + high], both ends included; the time is any column of integers, dates or
timestamps, in units of its type. Rows without a time form one frame. The output is the rows of the input, followed by
the value of each function over the row's frame, as the columns of Spark's aggregation buffer (see
`aggregate_functions`).

A change at t alters the frames of the rows within [t - following, t + preceding], which consist of the rows within [t -
following - preceding, t + preceding + following]: no other rows are read, however long the history of a key is. State
consists of runs ordered by time within a key (`ordered_runs`, `ranges`). Functions over frames are in `window_frames`;
for any other function the caller passes a function over all rows instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headwater.core.errors import ArithmeticOverflowError
from headwater.core.hashing import Hashes, Indices, Mask, equal_rows, identities, null_mask, words_of
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.table.regroup import Evaluate
from headwater.operators.window.window_frames import Frames, Timeline, Weighted, bounds, shifted
from headwater.operators.zset.collation import sort_rows, total_order
from headwater.operators.zset.delta import (
    Delta,
    Weights,
    concat,
    concat_rows,
    consolidate,
    groups_of,
    take_rows,
)
from headwater.operators.zset.exact_sums import Bools, Ints
from headwater.operators.zset.numpy_columns import same
from headwater.operators.zset.ordered_runs import ColumnOrder, arrange_ordered
from headwater.operators.zset.ranges import Spans, spans
from headwater.operators.zset.runs import Key, Matches, Run, locate


@dataclass(frozen=True)
class SlidingFunction:
    """A function over the frame [t + low, t + high] of a row at time t."""

    function: AggregateFunction
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"a frame ends at {self.high}, before it begins at {self.low}")


@dataclass(frozen=True)
class SlideSpec:
    """Rows by key and time, and how far frames reach: `preceding` and `following` are not negative.

    Without functions, the values are computed by the `evaluate` argument of `step`.
    """

    schema: pa.Schema
    key: tuple[int, ...]
    time: int
    preceding: int
    following: int
    framed: tuple[SlidingFunction, ...] = ()

    @property
    def order(self) -> tuple[ColumnOrder, ...]:
        """Order in which the rows of a key are stored."""
        return (ColumnOrder(self.time, descending=False, nulls_first=True),)


def step(
    spec: SlideSpec, runs: Sequence[Run], delta: Delta, output: pa.Schema, evaluate: Evaluate | None = None
) -> tuple[Delta, Run]:
    """Return the consolidated change that a delta makes to the output, and the run that it adds to the state.

    `evaluate` replaces the functions: it receives stretches of the histories of keys, a row of weight n n times, and
    returns rows of the output, each of which must depend on the rows of its frame alone, not on their order. It is
    called once for the old rows and once for the new ones, and not at all without rows. Rows whose net weight is not
    positive are absent.
    """
    run = arrange_ordered(delta, spec.key, spec.order)
    if not len(run):
        return Delta.empty(output), run
    around = _around(spec, runs, run, _stretches(spec, run))
    if evaluate is None:
        return _changes(spec, around, output), run
    old, new = (_evaluated(around.rows, times, evaluate, output) for times in (around.before, around.after))
    # Rows out of reach of the changes, whose frames are incomplete here, are the same before and after and cancel.
    return consolidate(concat([old.negated(), new], output)), run


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Disjoint parts of the histories of keys that changes affect."""

    keys: pa.RecordBatch
    """Key of each stretch."""
    hashes: Hashes
    of: Indices
    """Index of the stretch of each change."""
    first: Ints
    last: Ints
    """Times of the first and the last change in each stretch."""
    bare: Bools
    """Mask of the stretches that consist of the rows of a key without a time."""


@dataclass(frozen=True, eq=False)
class _Around:
    """The distinct rows that a step reads, by stretch and time, with their weights before and after the step."""

    rows: pa.RecordBatch
    line: Timeline
    before: Weights
    after: Weights
    altered: Bools
    """Mask of the rows that may have changed, or whose frame may have changed."""


def _stretches(spec: SlideSpec, run: Run) -> _Stretches:
    order, fresh = _by_key(spec, run)
    times, absent = _times(run.rows, spec.time)
    times, absent = times[order], absent[order]
    apart = min(2 * (spec.preceding + spec.following), 2**64 - 1)
    gaps = times[1:].view(np.uint64) - times[:-1].view(np.uint64)  # times of a key ascend
    fresh[1:] |= (absent[1:] != absent[:-1]) | (~absent[1:] & (gaps > np.uint64(apart)))
    starts = np.flatnonzero(fresh)
    of = np.empty(len(run), dtype=np.int64)
    of[order] = np.cumsum(fresh) - 1
    ends = np.append(starts[1:], len(run)) - 1
    chosen = order[starts]
    keys = take_rows(run.rows.select(list(spec.key)), chosen)
    return _Stretches(keys, run.hashes[chosen], of, times[starts], times[ends], absent[starts])


def _by_key(spec: SlideSpec, run: Run) -> tuple[Indices, Mask]:
    """Return an order of a run in which each key's rows are adjacent, by time, and a mask of where in it a key begins."""
    count = len(run)
    fresh = np.ones(count, dtype=np.bool_)
    fresh[1:] = run.hashes[1:] != run.hashes[:-1]
    columns = [run.rows.column(i) for i in spec.key]
    if count > 1 and not fresh[1:].all():
        alike = equal_rows([c.slice(1) for c in columns], [c.slice(0, count - 1) for c in columns], count - 1)
        if not (alike | fresh[1:]).all():  # keys that share a hash are mixed by time
            groups = groups_of(*identities(columns, count, exact=False))
            if groups is None:
                return np.arange(count), np.ones(count, dtype=np.bool_)
            fresh[:] = False
            fresh[groups.starts] = True
            return groups.order, fresh
    return np.arange(count), fresh


def _around(spec: SlideSpec, runs: Sequence[Run], run: Run, stretches: _Stretches) -> _Around:
    timed, bare = np.flatnonzero(~stretches.bare), np.flatnonzero(stretches.bare)
    reach = spec.preceding + spec.following
    low, high = shifted(stretches.first[timed], -reach), shifted(stretches.last[timed], reach)
    parts = [(timed, spans(runs, spec.time, stretches.hashes[timed], low, high))]
    if len(bare):
        parts.append((bare, _without_time(spec, runs, stretches.hashes[bare])))
    read: list[tuple[Indices, Matches]] = [
        (which, found.read(spec.key, take_rows(stretches.keys, which), run.rows.schema))
        for which, found in parts
    ]
    rows = concat_rows([*(matches.rows for _, matches in read), run.rows], run.rows.schema)
    labels = np.concatenate([*(which[matches.probe] for which, matches in read), stretches.of])
    old = np.concatenate([*(matches.weights for _, matches in read), np.zeros(len(run), dtype=np.int64)])
    new = old.copy()
    new[len(new) - len(run) :] = run.weights
    sort = sort_rows(rows, labels, total_order(spec.order, rows.num_columns), 1)
    starts = np.flatnonzero(sort.rows)
    before, after = (np.maximum(np.add.reduceat(w[sort.order], starts), 0) for w in (old, new))
    there = np.flatnonzero((before > 0) | (after > 0))
    before, after = before[there], after[there]
    places = sort.order[starts[there]]
    rows, label = take_rows(rows, places), labels[places]
    times, absent = _times(rows, spec.time)
    altered = (times >= shifted(stretches.first, -spec.following)[label]) & (
        times <= shifted(stretches.last, spec.preceding)[label]
    )
    return _Around(rows, Timeline(label, times, absent), before, after, altered | absent)


def _without_time(spec: SlideSpec, runs: Sequence[Run], hashes: Hashes) -> Spans:
    """Locate the rows without a time, which precede all others of their key."""
    found = spans(runs, spec.time, hashes, None, None)
    firsts = [locate(run, hashes)[0] for run in found.runs]
    starts = np.array(firsts, dtype=np.int64).reshape(found.starts.shape)
    return replace(found, starts=starts, ends=found.starts)


def _times(rows: pa.RecordBatch, column: int) -> tuple[Ints, Bools]:
    """Return the times of rows, 0 where there is none, and a mask of the rows without a time."""
    lane = rows.column(column)
    words = words_of(lane)
    if words is None or len(words) != 1:
        raise TypeError(f"sliding frames over a column of type {lane.type} are not supported")
    absent = null_mask(lane)
    if absent is None:
        return words[0], np.zeros(len(lane), dtype=np.bool_)
    return np.where(absent, 0, words[0]), absent


def near(
    rows: pa.RecordBatch, wanted: pa.RecordBatch, key: Key, time: int, preceding: int, following: int
) -> Mask:
    """Return a mask of the rows in the frame [t - preceding, t + following] of a wanted row; it includes the row itself."""
    if not rows.num_rows:
        return np.zeros(0, dtype=np.bool_)
    every = [pa.concat_arrays([rows.column(i), wanted.column(i)]) for i in (*key, time)]
    count = rows.num_rows + wanted.num_rows
    labels = np.zeros(count, dtype=np.int64)
    if key and (groups := groups_of(*identities(every[:-1], count, exact=False))) is not None:
        labels[groups.order] = np.repeat(groups.firsts, np.diff(groups.starts, append=count))
    elif key:
        labels = np.arange(count)
    times, absent = _times(pa.RecordBatch.from_arrays(every[-1:], names=["time"]), 0)
    labels = 2 * labels + absent
    order = np.lexsort((times, labels))
    line = Timeline(labels[order], times[order], absent[order])
    asked = (order >= rows.num_rows).astype(np.int64)
    frames = bounds(line, np.flatnonzero(asked == 0), -following, preceding)
    running = np.concatenate(([0], np.cumsum(asked)))
    found = np.zeros(count, dtype=np.bool_)
    found[order[asked == 0]] = running[frames.ends] > running[frames.starts]
    return found[: rows.num_rows]


def _evaluated(rows: pa.RecordBatch, times: Weights, evaluate: Evaluate, output: pa.Schema) -> Delta:
    if not times.any():
        return Delta.empty(output)
    return Delta.of(evaluate(take_rows(rows, np.repeat(np.arange(len(times)), times))))


def _changes(spec: SlideSpec, around: _Around, output: pa.Schema) -> Delta:
    at = np.flatnonzero(around.altered)
    if not len(at):
        return Delta.empty(output)
    before, after = around.before[at], around.after[at]
    _check_reach(spec, around.line.times[at[after > 0]])
    frames = {(f.low, f.high): bounds(around.line, at, f.low, f.high) for f in spec.framed}
    old, new = (_values(spec, around, weights, at, frames) for weights in (around.before, around.after))
    mine, theirs = (
        np.cumsum(before > 0) - 1,
        np.cumsum(after > 0) - 1,
    )  # indices of a row's values in `old` and `new`
    both = np.flatnonzero((before > 0) & (after > 0))
    alike = np.ones(len(both), dtype=np.bool_)
    for one, other in zip(old, new, strict=True):
        alike &= same(one.take(pa.array(mine[both])), other.take(pa.array(theirs[both])))
    unchanged = np.zeros(len(at), dtype=np.bool_)
    unchanged[both] = alike
    gone = np.flatnonzero((before > 0) & ~unchanged)
    come = np.flatnonzero((after > 0) & (~unchanged | (before != after)))
    weights = np.concatenate([-before[gone], (after - np.where(unchanged, before, 0))[come]])
    rows = take_rows(around.rows, at[np.concatenate([gone, come])])
    made = [
        pa.concat_arrays([one.take(pa.array(mine[gone])), other.take(pa.array(theirs[come]))])
        for one, other in zip(old, new, strict=True)
    ]
    columns = [
        c if c.type == f.type else c.cast(f.type) for c, f in zip([*rows.columns, *made], output, strict=True)
    ]
    return Delta(pa.RecordBatch.from_arrays(columns, schema=output), weights, distinct=True)


def _values(
    spec: SlideSpec,
    around: _Around,
    weights: Weights,
    at: Indices,
    frames: Mapping[tuple[int, int], Frames],
) -> list[pa.Array]:
    """Return the buffers of all functions, for the present rows among those at some indices."""
    there = np.flatnonzero(weights[at])

    def overflow(function: AggregateFunction, fits: Bools) -> None:
        if not fits.all():
            raise _overflow(spec, function, around.rows, int(at[there[np.argmin(fits)]]))

    count = len(weights) if len(there) else 0
    weighted = Weighted(around.rows.slice(0, count), weights[:count])
    chosen = {which: some.at(there) for which, some in frames.items()}
    made: list[pa.Array] = []
    for framed in spec.framed:
        made += weighted.buffers(framed.function, chosen[framed.low, framed.high], overflow)
    return made


def _overflow(
    spec: SlideSpec, function: AggregateFunction, rows: pa.RecordBatch, place: int
) -> ArithmeticOverflowError:
    name = f"{function.kind}({spec.schema.field(function.args[0]).name})"
    key = {spec.schema.field(i).name: rows.column(i)[place].as_py() for i in (*spec.key, spec.time)}
    return ArithmeticOverflowError(
        f"{name} does not fit its type",
        detail=f"over the frame of {', '.join(f'{column} = {value!r}' for column, value in key.items())}",
        hint="cast the argument to a wider type, such as DECIMAL(38, 0) or DOUBLE",
        function=name,
        key=key,
    )


def _check_reach(spec: SlideSpec, times: Ints) -> None:
    """Check that frame bounds over an integer column fit its type; raise ArithmeticOverflowError otherwise, as Spark does."""
    kind = spec.schema.field(spec.time).type
    if not pa.types.is_integer(kind) or not len(times):
        return
    least, most = int(times.min()), int(times.max())
    limit = 1 << (kind.bit_width - 1)
    if any(least + f.low < -limit or most + f.high >= limit for f in spec.framed):
        name = spec.schema.field(spec.time).name
        raise ArithmeticOverflowError(
            f"the bounds of a frame exceed the type of {name}",
            hint="order by a wider type, such as BIGINT",
            function="OVER",
            key={},
            reason="frame-bounds",
            column=name,
        )
