"""Aggregation by session windows over append-only rows, maintained without storing the rows.

The first columns of the input are the group key, one of which is the row's own interval (see `sessions`); the others
are arguments. The output is that of `aggregate`, with the interval of the session in place of the row's. State is the
sessions: the other key columns, start, end, and the columns of the accumulators, ordered by start within a key.

A delta is combined into the sessions of its rows alone. Each of these absorbs the old sessions that it intersects,
which are retracted: accumulators merge across sessions as they do across rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Indices, Mask
from headwater.operators.aggregate import aggregate
from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.aggregate.aggregate import AggregateSpec
from headwater.operators.window.sessions import (
    bounds_of,
    by_start,
    intervals,
    lanes_of,
    session_starts,
    times_of,
)
from headwater.operators.zset import numpy_columns, ranges
from headwater.operators.zset.delta import Delta, concat_rows, empty_rows, take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import KeyGroups, group
from headwater.operators.zset.ordered_runs import arrange_ordered, merge_ordered
from headwater.operators.zset.radix_sort import stable_order
from headwater.operators.zset.runs import Probes, Run, key_hashes


@dataclass(frozen=True)
class SessionAggregateSpec:
    """The aggregation, in which each row's interval takes the role of its session's, and the key column of the interval.

    The aggregate must be combinable.
    """

    aggregate: AggregateSpec
    column: int

    @cached_property
    def key(self) -> tuple[int, ...]:
        """Input columns of the session key: the group key without the interval."""
        return tuple(i for i in range(self.aggregate.width) if i != self.column)

    @property
    def start(self) -> int:
        """State column of the start, by which it is ordered; the key is before it and the end is the next column."""
        return len(self.key)

    @cached_property
    def state(self) -> pa.Schema:
        """Schema of the state: the key, start, end, then the columns of accumulators and extremes."""
        schema = self.aggregate.schema
        keys = [schema.field(i) for i in self.key]
        kept = [self.aggregate.state.field(i) for i in range(self.aggregate.width, len(self.aggregate.state))]
        return pa.schema([*keys, *bounds_of(schema.field(self.column).type), *kept])


@dataclass(frozen=True, eq=False)
class _Sessions:
    """A list of sessions: `labels` are the numbers of their keys, `kept` is the aggregation state of each session."""

    labels: Indices
    starts: Ints
    ends: Ints
    kept: list[pa.Array]

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, mask: Mask) -> _Sessions:
        """Return the sessions where the mask is true."""
        places = np.flatnonzero(mask)
        kept = [column.take(pa.array(places)) for column in self.kept]
        return _Sessions(self.labels[places], self.starts[places], self.ends[places], kept)

    def then(self, other: _Sessions) -> _Sessions:
        """Append other sessions."""
        if not len(self):
            return other
        return _Sessions(
            np.concatenate((self.labels, other.labels)),
            np.concatenate((self.starts, other.starts)),
            np.concatenate((self.ends, other.ends)),
            [pa.concat_arrays(pair) for pair in zip(self.kept, other.kept, strict=True)],
        )


def step(spec: SessionAggregateSpec, state: Sequence[Run], delta: Delta) -> tuple[Delta, Run]:
    """Apply a delta without retractions; return the consolidated change of the output, and the run of the state.

    Raises ArithmeticOverflowError, naming the group, if a sum does not fit its type.
    """
    if (delta.weights <= 0).any():
        if (delta.weights < 0).any():
            raise EvaluationError(
                "rows were retracted under a session window that keeps no rows", reason="retraction"
            )
        delta = delta.filter(delta.weights > 0)
    if not len(delta):
        none = np.zeros(0, dtype=np.int64)
        return Delta.empty(spec.aggregate.output), Run(none.view(np.uint64), empty_rows(spec.state), none)
    groups = group(delta.rows, len(delta), spec.key)
    fresh = _combined(spec, delta, groups)
    old, overlapping = _overlaps(spec, state, groups, fresh)
    new, owners = _together(spec, old, fresh, overlapping)
    both = old.then(new)
    keys = take_rows(groups.keys, both.labels)
    return _output(spec, keys, both, owners), _run(spec, groups, keys, both, len(old))


def shown(spec: SessionAggregateSpec, state: Sequence[Run]) -> Delta:
    """Return the output for all sessions of a state."""
    if not state:
        return Delta.empty(spec.aggregate.output)
    rows = merge_ordered(state, range(len(spec.key)), by_start(spec.start)).rows
    held = _Sessions(np.arange(rows.num_rows), *lanes_of(rows, spec.start), rows.columns[spec.start + 2 :])
    keys = rows.select(range(len(spec.key)))
    return _output(spec, keys, held, np.zeros(0, dtype=np.int64))


def _combined(spec: SessionAggregateSpec, delta: Delta, groups: KeyGroups) -> _Sessions:
    """Return the sessions of the rows of a delta alone."""
    times = times_of(delta.rows.column(spec.column))
    labels = np.repeat(np.arange(len(groups)), groups.sizes)
    order = groups.order
    starts, ends = times if order is None else (np.take(lane, order) for lane in times)
    if ((starts[1:] < starts[:-1]) & (labels[1:] == labels[:-1])).any():
        within = _by_start(labels, starts)
        order = within if order is None else order[within]
        starts, ends = starts[within], ends[within]  # labels are still ascending
    firsts = np.flatnonzero(session_starts(labels, starts, ends))
    owners = labels[firsts]
    sizes = np.diff(firsts, append=len(labels))
    made = KeyGroups(order, firsts, sizes, take_rows(groups.keys, owners), groups.hashes[owners])
    batch = GroupedRows(delta.rows, delta.weights, made)
    kept = aggregate.collected(spec.aggregate, batch)
    return _Sessions(owners, starts[firsts], np.maximum.reduceat(ends, firsts), kept)


def _by_start(labels: Indices, starts: Ints) -> Indices:
    """Return the order by label and start."""
    lowest, highest = int(starts.min()), int(starts.max())
    width = (highest - lowest).bit_length()
    if width + int(labels.max()).bit_length() > 63:
        return np.lexsort((starts, labels))
    return np.argsort((labels << width) | (starts - lowest), kind="stable")


def _overlaps(
    spec: SessionAggregateSpec, state: Sequence[Run], groups: KeyGroups, fresh: _Sessions
) -> tuple[_Sessions, Mask]:
    """Return the distinct old sessions that new sessions intersect, and a mask of these new sessions."""
    key, at = tuple(range(len(spec.key))), spec.start
    some = _reachable(spec, state, groups, fresh)
    labels, starts = fresh.labels[some], fresh.starts[some]
    wanted = Probes(key, take_rows(groups.keys, labels), groups.hashes[labels])
    around = ranges.last_upto(state, at, wanted, starts, schema=spec.state)
    held = np.flatnonzero(lanes_of(around.rows, at)[1] >= starts[around.probe])
    within = ranges.between(state, at, wanted, starts + 1, fresh.ends[some], schema=spec.state)
    rows = concat_rows([take_rows(around.rows, held), within.rows], spec.state)
    probes = some[np.concatenate((around.probe[held], within.probe))]
    overlapping = np.zeros(len(fresh), dtype=np.bool_)
    overlapping[probes] = True
    labels = fresh.labels[probes]
    starts, _ = lanes_of(rows, at)
    if len(labels):
        order = _by_start(labels, starts)
        labels, starts = labels[order], starts[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (labels[1:] != labels[:-1]) | (starts[1:] != starts[:-1])
        rows, labels = take_rows(rows, order[new]), labels[new]
    return _Sessions(labels, *lanes_of(rows, at), rows.columns[at + 2 :]), overlapping


def _reachable(
    spec: SessionAggregateSpec, state: Sequence[Run], groups: KeyGroups, fresh: _Sessions
) -> Indices:
    """Return the new sessions that may intersect old ones: as time usually advances, few start before the last old one
    ends."""
    if len(fresh) < 2 * len(groups):  # checking each one costs less
        return np.arange(len(fresh))
    key, limits = tuple(range(len(spec.key))), np.iinfo(np.int64)
    highest = np.full(len(groups), limits.max)
    wanted = Probes(key, groups.keys, groups.hashes)
    last = ranges.last_upto(state, spec.start, wanted, highest, schema=spec.state)
    reached = np.full(len(groups), limits.min)
    reached[last.probe] = lanes_of(last.rows, spec.start)[1]
    return np.flatnonzero(fresh.starts <= reached[fresh.labels])


def _together(
    spec: SessionAggregateSpec, old: _Sessions, fresh: _Sessions, overlapping: Mask
) -> tuple[_Sessions, Indices]:
    """Merge old and new sessions; return the result, and for each old session the index of the one that absorbs it."""
    if not len(old):
        return fresh, np.zeros(0, dtype=np.int64)
    both = old.then(fresh.where(overlapping))
    order = _by_start(both.labels, both.starts)
    labels, starts, ends = both.labels[order], both.starts[order], both.ends[order]
    first = session_starts(labels, starts, ends)
    firsts = np.flatnonzero(first)
    sizes = np.diff(firsts, append=len(order))
    kept = aggregate.merged(spec.aggregate, both.kept, order, firsts, sizes)
    owners = np.empty(len(order), dtype=np.int64)
    owners[order] = np.cumsum(first) - 1
    new = _Sessions(labels[firsts], starts[firsts], np.maximum.reduceat(ends, firsts), kept)
    return new.then(fresh.where(~overlapping)), owners[: len(old)]


def _output(spec: SessionAggregateSpec, keys: pa.RecordBatch, both: _Sessions, owners: Indices) -> Delta:
    """Retract old sessions and insert new ones, unless they are equal; an old session precedes the one that absorbs it."""
    old, schema = len(owners), spec.aggregate.schema
    columns = keys.columns
    columns.insert(spec.column, intervals(both.starts, both.ends, schema.field(spec.column).type))
    shown = pa.RecordBatch.from_arrays(
        columns, schema=pa.schema([schema.field(i) for i in range(len(columns))])
    )
    values = aggregate.finished(spec.aggregate, both.kept, shown)
    there = np.ones(len(both), dtype=np.bool_)
    became = old + owners
    same = np.flatnonzero((both.starts[:old] == both.starts[became]) & (both.ends[:old] == both.ends[became]))
    for column in values:
        same = same[numpy_columns.same(column.take(pa.array(same)), column.take(pa.array(became[same])))]
    there[same] = there[became[same]] = False
    rows = pa.RecordBatch.from_arrays([*columns, *values], schema=spec.aggregate.output)
    weights = np.ones(len(both), dtype=np.int64)
    weights[:old] = -1
    hashes = key_hashes(shown, range(len(columns)))
    places = stable_order(hashes)
    places = places[there[places]]
    return Delta(take_rows(rows, places), weights[places], distinct=True, hashes=hashes[places])


def _run(
    spec: SessionAggregateSpec, groups: KeyGroups, keys: pa.RecordBatch, both: _Sessions, old: int
) -> Run:
    """Return the run that retracts old sessions from the state and inserts new ones."""
    bounds = intervals(both.starts, both.ends, spec.aggregate.schema.field(spec.column).type).flatten()
    rows = pa.RecordBatch.from_arrays([*keys.columns, *bounds, *both.kept], schema=spec.state)
    weights = np.ones(len(both), dtype=np.int64)
    weights[:old] = -1
    if (groups.hashes[1:] == groups.hashes[:-1]).any():
        return arrange_ordered(Delta(rows, weights), range(len(spec.key)), by_start(spec.start))
    # Of two sessions with the same start the old one comes first: its end or else its number of rows is lower.
    order = _by_start(both.labels, both.starts)
    return Run(groups.hashes[both.labels[order]], take_rows(rows, order), weights[order])
