"""Session windows: rows with an interval each; a chain of intersecting intervals is one session.

A row's interval is a column of its own, a struct of start and end: its time, and its time plus the gap. Two intervals
of a key intersect if neither begins after the other ends; touching is enough. A session is a maximal chain of
intersecting rows, from the first start to the last end. So the sessions of a key are disjoint, and the rows of a
session are those that start within it.

`step` replaces the interval of each row by that of its session, and maintains this incrementally: inserted rows extend
and merge sessions, retracted rows shorten and split them. Aggregation without storing the rows is in
`session_aggregate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Indices, Mask
from headwater.operators.zset import ranges
from headwater.operators.zset.collation import ColumnOrder, sort_rows, total_order
from headwater.operators.zset.delta import Delta, concat_rows, empty_rows, take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import KeyGroups, group
from headwater.operators.zset.numpy_columns import integers
from headwater.operators.zset.ordered_runs import arrange_ordered
from headwater.operators.zset.runs import Matches, Probes, Run


@dataclass(frozen=True)
class SessionSpec:
    """The rows of session windows: their schema, the columns of the key, and the column of each row's interval.

    Intervals are structs of two times, or of two 64-bit integers, neither of which is NULL.
    """

    schema: pa.Schema
    key: tuple[int, ...]
    column: int

    @cached_property
    def flat(self) -> pa.Schema:
        """Schema of flat rows: start and end are separate columns after all others."""
        return pa.schema([*(self.schema.field(i) for i in self._others), *self._bounds])

    @cached_property
    def rows(self) -> pa.Schema:
        """Schema of the arrangement of rows: flat rows, then `until`, the end of their session, until which they are
        needed."""
        return self.flat.append(self._bounds[1].with_name("until"))

    @cached_property
    def rows_key(self) -> tuple[int, ...]:
        """Key columns of the arrangement of rows."""
        return tuple(self._others.index(i) for i in self.key)

    @property
    def rows_start(self) -> int:
        """Start column of the arrangement of rows, by which it is ordered; the end is the next column."""
        return len(self._others)

    @cached_property
    def sessions(self) -> pa.Schema:
        """Schema of the arrangement of sessions: the key, then start and end."""
        return pa.schema([*(self.schema.field(i) for i in self.key), *self._bounds])

    @property
    def sessions_key(self) -> tuple[int, ...]:
        """Key columns of the arrangement of sessions."""
        return tuple(range(len(self.key)))

    @property
    def sessions_start(self) -> int:
        """Start column of the arrangement of sessions, by which it is ordered; the end is the next column."""
        return len(self.key)

    @property
    def _others(self) -> list[int]:
        return [i for i in range(len(self.schema)) if i != self.column]

    @property
    def _bounds(self) -> list[pa.Field]:
        return bounds_of(self.schema.field(self.column).type)

    def flattened(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with start and end as columns."""
        others = [rows.column(i) for i in self._others]
        return pa.RecordBatch.from_arrays([*others, *rows.column(self.column).flatten()], schema=self.flat)

    def held(self, flat: pa.RecordBatch, until: Ints) -> pa.RecordBatch:
        """Return flat rows in the schema of the arrangement, with the end of their session appended."""
        end = pa.array(until).view(self.rows.field(len(self.flat)).type)
        return pa.RecordBatch.from_arrays([*flat.columns, end], schema=self.rows)

    def shown(self, rows: pa.RecordBatch, starts: Ints, ends: Ints) -> pa.RecordBatch:
        """Return flat or arranged rows in the input schema, with these intervals."""
        columns = rows.columns[: self.rows_start]
        columns.insert(self.column, intervals(starts, ends, self.schema.field(self.column).type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, eq=False)
class SessionStep:
    """The result of a delta: the change of the output, and a run for each arrangement."""

    output: Delta
    rows: Run
    sessions: Run


def by_start(start: int) -> tuple[ColumnOrder, ...]:
    """Return the order within a key of an arrangement whose start is in this column."""
    return (ColumnOrder(start, descending=False, nulls_first=True),)


def bounds_of(kind: pa.DataType) -> list[pa.Field]:
    """Return start and end of an interval type as columns of an arrangement."""
    return [kind.field(0).with_name("start"), kind.field(1).with_name("end")]


def intervals(starts: Ints, ends: Ints, kind: pa.DataType) -> pa.Array:
    """Build a column of intervals from starts and ends."""
    fields = [kind.field(0), kind.field(1)]
    values = [pa.array(lane).view(f.type) for lane, f in zip((starts, ends), fields, strict=True)]
    return pa.StructArray.from_arrays(values, fields=fields)


def lanes_of(rows: pa.RecordBatch, start: int) -> tuple[Ints, Ints]:
    """Return the starts and ends of the rows of an arrangement."""
    return integers(rows.column(start)), integers(rows.column(start + 1))


def times_of(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the starts and ends of intervals.

    Raises EvaluationError if an interval is NULL or ends before it starts, as with a gap of one month less some days:
    such a row has no session.
    """
    first, last = column.flatten()
    starts, ends = integers(first), integers(last)
    if first.null_count or last.null_count or (ends < starts).any():
        raise EvaluationError(
            "the session of a row is NULL, or ends before it starts",
            hint="the gap of session_window must be positive",
            reason="session-interval",
        )
    return starts, ends


def session_starts(groups: Indices, starts: Ints, ends: Ints) -> Mask:
    """Return a mask of intervals, sorted by group and start, that begin a session: all earlier ones of the group have
    ended."""
    fresh = np.ones(len(groups), dtype=np.bool_)
    same = groups[1:] == groups[:-1]
    fresh[1:] = ~same | (starts[1:] > _reached(same, ends)[:-1])
    return fresh


def _labels(groups: KeyGroups) -> Indices:
    """Return the group number of each row."""
    numbers = np.repeat(np.arange(len(groups)), groups.sizes)
    if groups.order is None:
        return numbers
    labels = np.empty(len(numbers), dtype=np.int64)
    labels[groups.order] = numbers
    return labels


def _reached(same: Mask, ends: Ints) -> Ints:
    """Return the running maximum of ends within each group; `same` marks rows in the same group as the previous row."""
    if not (same & (ends[1:] < ends[:-1])).any():
        return ends
    count = len(ends)
    order = np.argsort(ends, kind="stable")
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.arange(count)
    # The ranks of each group are above those of the groups before it, so that one running maximum serves all groups.
    base = np.zeros(count, dtype=np.int64)
    base[1:] = np.cumsum(~same) * count
    reached: Ints = ends[order][np.maximum.accumulate(ranks + base) - base]
    return reached


def sessions_of(rows: pa.RecordBatch, key: Sequence[int], column: int) -> pa.Array:
    """Return the interval of the session of each row, computed from these rows alone."""
    count = rows.num_rows
    if not count:
        return rows.column(column)
    starts, ends = times_of(rows.column(column))
    labels = _labels(group(rows, count, key))
    order = np.lexsort((starts, labels))
    fresh = session_starts(labels[order], starts[order], ends[order])
    firsts = np.flatnonzero(fresh)
    numbers = np.empty(count, dtype=np.int64)
    numbers[order] = np.cumsum(fresh) - 1
    last = np.maximum.reduceat(ends[order], firsts)
    return intervals(starts[order][firsts][numbers], last[numbers], rows.schema.field(column).type)


def step(spec: SessionSpec, rows: Sequence[Run], sessions: Sequence[Run], delta: Delta) -> SessionStep:
    """Apply a delta, given the runs of the two arrangements. The change of the output is not consolidated.

    The cost is proportional to the rows of the sessions whose interval changes; of other sessions, only to the rows of
    the delta.
    """
    times_of(delta.rows.column(spec.column))
    flat = Delta(spec.flattened(delta.rows), delta.weights)
    change = arrange_ordered(flat, spec.rows_key, by_start(spec.rows_start))
    if not len(change):
        none = np.zeros(0, dtype=np.int64)
        rows_run, run = (Run(change.hashes, empty_rows(s), none) for s in (spec.rows, spec.sessions))
        return SessionStep(Delta.empty(spec.schema), rows_run, run)
    return _Stepping(spec, rows, sessions, change).done()


class _Stepping:
    """One step over a change; `labels` are the numbers of the rows' keys."""

    def __init__(self, spec: SessionSpec, rows: Sequence[Run], sessions: Sequence[Run], change: Run) -> None:
        self._spec = spec
        self._rows = rows
        self._sessions = sessions
        self._change = change
        self._starts, self._ends = lanes_of(change.rows, spec.rows_start)
        groups = group(change.rows, len(change), spec.rows_key)
        self._keys, self._hashes = groups.keys, groups.hashes
        self._labels = _labels(groups)

    def done(self) -> SessionStep:
        spec, change = self._spec, self._change
        old = self._old_sessions()
        moving = old.touched[old.owners] | (old.owners < 0)

        changed = np.flatnonzero(old.touched[:-1])
        before = self._read(old, changed)
        after, labels = self._after(before, old.labels[changed], np.flatnonzero(moving))
        starts, ends = lanes_of(after.rows, spec.rows_start)
        fresh = np.flatnonzero(session_starts(labels, starts, ends))
        sizes = np.diff(fresh, append=len(after))
        first = starts[fresh]
        last = np.maximum.reduceat(ends, fresh) if len(fresh) else first

        still = np.flatnonzero(~moving)
        was, stays = changed[before.probe], old.owners[still]
        until, quiet = np.repeat(last, sizes), take_rows(change.rows, still)
        output = concat_rows(
            [
                spec.shown(before.rows, old.starts[was], old.ends[was]),
                spec.shown(after.rows, np.repeat(first, sizes), until),
                spec.shown(quiet, old.starts[stays], old.ends[stays]),
            ],
            spec.schema,
        )
        held = [before.rows, spec.held(after.rows, until), spec.held(quiet, old.ends[stays])]
        weights = np.concatenate((-before.weights, after.weights, change.weights[still]))
        keys = take_rows(self._keys, labels[fresh])
        bounds = intervals(first, last, self._spec.schema.field(spec.column).type).flatten()
        new = pa.RecordBatch.from_arrays([*keys.columns, *bounds], schema=spec.sessions)
        made = concat_rows([take_rows(old.rows, changed), new], spec.sessions)
        signs = np.repeat(np.array([-1, 1]), [len(changed), len(fresh)])
        run = arrange_ordered(Delta(made, signs), spec.sessions_key, by_start(spec.sessions_start))
        rows = Delta(concat_rows(held, spec.rows), weights)
        return SessionStep(
            Delta(output, weights), arrange_ordered(rows, spec.rows_key, by_start(spec.rows_start)), run
        )

    def _old_sessions(self) -> _Old:
        """Return the sessions that contain or intersect rows of the change."""
        spec, at, change = self._spec, self._spec.sessions_start, self._change
        keys = take_rows(self._keys, self._labels)
        key, hashes = spec.sessions_key, change.hashes
        wanted = Probes(key, keys, hashes)
        around = ranges.last_upto(self._sessions, at, wanted, self._starts, schema=spec.sessions)
        until = lanes_of(around.rows, at)[1]
        held = np.flatnonzero(until >= self._starts[around.probe])
        owned = around.probe[held]
        # A change is quiet if it leaves the interval of its session unchanged.
        quiet = np.zeros(len(change), dtype=np.bool_)
        quiet[owned] = (self._ends[owned] <= until[held]) | (change.weights[owned] < 0)
        gone = np.flatnonzero(change.weights < 0)
        ends = self._ends.copy()
        ends[owned] = until[held]
        quiet[gone] &= self._covered(gone, ends)
        loud = np.flatnonzero(~quiet & (change.weights > 0))
        low, high = self._starts[loud] + 1, self._ends[loud]
        met = ranges.between(
            self._sessions,
            at,
            Probes(key, take_rows(keys, loud), hashes[loud]),
            low,
            high,
            schema=spec.sessions,
        )

        rows = concat_rows([take_rows(around.rows, held), met.rows], spec.sessions)
        probes = np.concatenate((owned, loud[met.probe]))
        labels, starts = self._labels[probes], lanes_of(rows, at)[0]
        order = np.lexsort((starts, labels))
        labels, starts = labels[order], starts[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (labels[1:] != labels[:-1]) | (starts[1:] != starts[:-1])
        numbers = np.empty(len(order), dtype=np.int64)
        numbers[order] = np.cumsum(new) - 1
        rows = take_rows(rows, order[new])
        owners = np.full(len(change), -1, dtype=np.int64)
        owners[owned] = numbers[: len(owned)]
        touched = np.zeros(rows.num_rows + 1, dtype=np.bool_)
        touched[numbers[~quiet[probes]]] = True
        return _Old(rows, labels[new], *lanes_of(rows, at), owners, touched)

    def _covered(self, gone: Indices, until: Ints) -> Mask:
        """Return a mask of the retracted rows whose interval is covered by the rows just before and after them.

        False positives do not occur. If all gaps are equal, every covered row is detected, except at the ends of a
        session. `until` has the ends of the sessions that contain rows of the change.
        """
        spec, at = self._spec, self._spec.rows_start
        if not len(gone):
            return np.zeros(0, dtype=np.bool_)
        starts, ends = self._starts[gone], self._ends[gone]
        keys, hashes = take_rows(self._keys, self._labels[gone]), self._change.hashes[gone]
        change = Run(self._change.hashes, spec.held(self._change.rows, until), self._change.weights)
        runs, probes = [*self._rows, change], Probes(spec.rows_key, keys, hashes)
        before = ranges.last_upto(runs, at, probes, starts, schema=spec.rows)
        after = ranges.first_from(runs, at, probes, starts + 1, schema=spec.rows)
        lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        reached, far = np.full(len(gone), lowest), np.full(len(gone), lowest)
        next_start = np.full(len(gone), highest)
        np.maximum.at(reached, before.probe, lanes_of(before.rows, at)[1])
        np.maximum.at(far, after.probe, lanes_of(after.rows, at)[1])
        next_start[after.probe] = lanes_of(after.rows, at)[0]
        covered: Mask = (reached >= ends) | ((reached >= next_start) & (far >= ends))
        return covered

    def _read(self, old: _Old, changed: Indices) -> Matches:
        """Read the rows of old sessions."""
        spec = self._spec
        keys, hashes = take_rows(self._keys, old.labels[changed]), self._hashes[old.labels[changed]]
        low, high = old.starts[changed], old.ends[changed]
        probes = Probes(spec.rows_key, keys, hashes)
        return ranges.between(self._rows, spec.rows_start, probes, low, high, schema=spec.rows)

    def _after(self, before: Matches, labels: Indices, moving: Indices) -> tuple[Delta, Indices]:
        """Apply the changed rows to the old ones; return the new rows by key and start, and the labels of their keys."""
        spec, change = self._spec, self._change
        own = before.rows.select(range(len(spec.flat)))
        rows = concat_rows([own, take_rows(change.rows, moving)], spec.flat)
        weights = np.concatenate((before.weights, change.weights[moving]))
        labels = np.concatenate((labels[before.probe], self._labels[moving]))
        if not len(labels):
            return Delta(rows, weights), labels
        total = total_order(by_start(spec.rows_start), len(spec.flat))
        sort = sort_rows(rows, labels, total, 1)
        firsts = np.flatnonzero(sort.rows)
        net = np.add.reduceat(weights[sort.order], firsts)
        there = np.flatnonzero(net > 0)
        places = sort.order[firsts[there]]
        return Delta(take_rows(rows, places), net[there]), labels[places]


@dataclass(frozen=True, eq=False)
class _Old:
    """Distinct sessions before the step, by key and start."""

    rows: pa.RecordBatch
    labels: Indices
    starts: Ints
    ends: Ints
    owners: Indices
    """Index of the session in which each row of the change starts; -1 if there is none."""
    touched: Mask
    """Mask of the sessions whose interval may change; the extra last element, for rows without a session, is False."""
