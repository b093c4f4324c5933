"""MATCH_RECOGNIZE maintained incrementally: a change of rows becomes a change of matches.

In a partition that a change touches, matching resumes from a *cut*: a row at which the search starts afresh, whatever
rows arrive at the time of the change or later, because all decisions before it are final by then. The rows from there
on are matched in their old and in their new version; the difference is the change of the output. So a row at the end of
a long partition costs only what is still open there.

State consists of two arrangements: the rows, by time within their partition; and cuts, one every few rows and one near
the end, by the time from which on they can be used. If rows are not ordered by a time there are no cuts, and a
partition is matched as a whole. With WITHIN, rows and cuts may be dropped once they lie `retained_us` before the least time
that can still change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, Mask, null_mask
from headwater.operators.match_recognize.matcher import MatcherResult, running_max
from headwater.operators.match_recognize.partitions import Partitions
from headwater.operators.match_recognize.pattern import has_start
from headwater.operators.match_recognize.reference import final_times, outcome, output
from headwater.operators.match_recognize.spec import (
    NEVER,
    Evaluate,
    Input,
    MatchNumber,
    MatchSpec,
    Navigate,
)
from headwater.operators.zset import ranges
from headwater.operators.zset.collation import ColumnOrder, sort_rows, total_order
from headwater.operators.zset.delta import Delta, Weights, concat, concat_rows, consolidate, take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import group
from headwater.operators.zset.numpy_columns import integers
from headwater.operators.zset.ordered_runs import arrange_ordered
from headwater.operators.zset.runs import Probes, Run, probe

_CUT_ROWS = 16
"""Number of rows between cuts; with WITHIN, cuts may be closer together."""
_LAST_ROWS = 4
"""Minimum distance in rows from the previous cut at which the last possible restart row becomes a cut too."""
_SLICE_KEYS = 1 << 16
"""Number of partitions matched at a time."""

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class MatchStep:
    """The result of a delta: the consolidated change of the output, and a run for each arrangement."""

    output: Delta
    rows: Run
    cuts: Run


def rows_order(spec: MatchSpec) -> tuple[ColumnOrder, ...]:
    """Return the order of the arrangement of rows within a partition; its key is the columns of the partition."""
    return () if spec.time is None else (spec.order[0],)


def cuts_schema(spec: MatchSpec) -> pa.Schema:
    """Return the schema of the arrangement of cuts.

    After the partition columns come: `settled`, the time from which the cut can be used; `at`, the time of the row at
    which the search starts; `since`, the time of the first row that must be read for it; `matched`, the number of
    matches before it; and `apart`, its distance in rows from the previous permanent cut, 0 if the cut is permanent
    itself.
    """
    names = ("settled", "at", "since", "matched", "apart")
    return pa.schema(
        [*(spec.schema.field(i) for i in spec.partition), *(pa.field(n, pa.int64()) for n in names)]
    )


def cuts_key(spec: MatchSpec) -> tuple[int, ...]:
    """Return the partition columns of the arrangement of cuts."""
    return tuple(range(len(spec.partition)))


def cuts_order(spec: MatchSpec) -> tuple[ColumnOrder, ...]:
    """Return the order of the arrangement of cuts within a partition."""
    return (ColumnOrder(len(spec.partition), descending=False, nulls_first=True),)


def retained_us(spec: MatchSpec) -> int | None:
    """Return how long rows and cuts are needed before the least time that can still change, in microseconds; None means
    for ever.

    The time of a cut is `at`. The result is None without WITHIN, and if matches are numbered, the pattern has a start
    anchor, or an expression reads earlier rows (PREV).
    """
    counts = any(isinstance(each, MatchNumber) for each in _inputs(spec))
    if spec.within is None or counts or has_start(spec.pattern) or _rows_back(spec):
        return None
    return 3 * spec.within


def _rows_back(spec: MatchSpec) -> int:
    """Return the greatest number of rows back from a match's row that an expression reads."""
    return max((-each.offset for each in _inputs(spec) if isinstance(each, Navigate)), default=0)


def _inputs(spec: MatchSpec) -> list[Input]:
    """Return the inputs of all conditions and measures."""
    numbers = [*spec.measures, *(number for each in spec.conditions.values() for number in each)]
    read_inputs = [each for number in numbers for each in spec.expressions[number].inputs]
    return read_inputs + [within for each in read_inputs for within in spec.argument_inputs(each)]


def step(
    spec: MatchSpec, rows: Sequence[Run], cuts: Sequence[Run], delta: Delta, evaluate: Evaluate
) -> MatchStep:
    """Apply a delta, given the runs of the two arrangements."""
    change = arrange_ordered(delta, spec.partition, rows_order(spec))
    outputs, made = [], []
    if len(change):
        groups = group(change.rows, len(change), spec.partition)
        numbers = np.repeat(np.arange(len(groups)), groups.sizes)
        order = np.arange(len(change)) if groups.order is None else groups.order
        for first in range(0, len(groups), _SLICE_KEYS):
            chosen = slice(first, first + _SLICE_KEYS)
            keys, hashes = groups.keys.slice(first, _SLICE_KEYS), groups.hashes[chosen]
            within = order[(numbers >= first) & (numbers < first + _SLICE_KEYS)]
            labels = numbers[(numbers >= first) & (numbers < first + _SLICE_KEYS)] - first
            touched = _Touched(take_rows(change.rows, within), change.weights[within], labels, keys, hashes)
            stepping = _Stepping(spec, rows, cuts, touched, evaluate)
            changed, cut = stepping.done()
            outputs.append(changed)
            made.append(cut)
    cut_changes = concat(made, cuts_schema(spec))
    return MatchStep(
        consolidate(concat(outputs, spec.output)),
        change,
        arrange_ordered(cut_changes, cuts_key(spec), cuts_order(spec)),
    )


@dataclass(frozen=True, eq=False)
class _Touched:
    """Changed rows and their partitions; `labels`, the partition of each row, ascend."""

    rows: pa.RecordBatch
    weights: Weights
    labels: Indices
    keys: pa.RecordBatch
    hashes: Hashes


@dataclass(frozen=True, eq=False)
class _Cuts:
    """The cut from which each partition is matched again, as times by partition, and the later cuts, which are retracted."""

    at: Ints
    since: Ints
    matched: Ints
    apart: Ints
    there: Mask
    """Mask of the partitions that have a cut; the others are matched as a whole."""
    rows: pa.RecordBatch
    """Cuts of the partitions that have one, in partition order."""
    gone: Delta


class _Stepping:
    def __init__(
        self, spec: MatchSpec, rows: Sequence[Run], cuts: Sequence[Run], touched: _Touched, evaluate: Evaluate
    ) -> None:
        self._spec = spec
        self._rows = rows
        self._cuts = cuts
        self._touched = touched
        self._evaluate = evaluate

    def done(self) -> tuple[Delta, Delta]:
        """Return the change of the output, and of the cuts."""
        spec, touched = self._spec, self._touched
        cuts = self._chosen()
        old = self._read(cuts)
        count = len(touched.labels)
        rows = concat_rows([old[0], touched.rows], spec.schema)
        labels = np.concatenate((old[1], touched.labels))
        before = np.concatenate((old[2], np.zeros(count, dtype=np.int64)))
        after = np.concatenate((old[2], touched.weights))
        sort = sort_rows(rows, labels, total_order(spec.order, len(spec.schema)), len(spec.order))
        firsts = np.flatnonzero(sort.rows)
        places = sort.order[firsts]
        was, becomes = (np.maximum(np.add.reduceat(w[sort.order], firsts), 0) for w in (before, after))
        rows, labels = take_rows(rows, places), labels[places]
        went, _ = self._matched(rows, labels, was, cuts)
        came, added = self._matched(rows, labels, becomes, cuts, cutting=True)
        return concat([went.negated(), came], spec.output), concat(
            [cuts.gone.negated(), added], cuts_schema(spec)
        )

    def _chosen(self) -> _Cuts:
        """Return the last cut of each partition that can be used for its first change."""
        spec, touched = self._spec, self._touched
        count, schema = len(touched.hashes), cuts_schema(spec)
        none = np.full(count, _EARLIEST, dtype=np.int64)
        if spec.time is None:
            nothing = Delta.empty(schema)
            return _Cuts(
                none, none, none * 0, none * 0, np.zeros(count, dtype=np.bool_), nothing.rows, nothing
            )
        key, column = cuts_key(spec), len(spec.partition)
        starts = np.flatnonzero(np.diff(touched.labels, prepend=-1))
        lane = touched.rows.column(spec.time)
        absent = null_mask(lane)
        times = integers(lane) if absent is None else np.where(absent, _EARLIEST, integers(lane))
        first = np.minimum.reduceat(times, starts)
        wanted = Probes(key, touched.keys, touched.hashes)
        found = ranges.last_upto(self._cuts, column, wanted, first, schema=schema)
        # Of several cuts usable from the same time on, take the last.
        order = np.lexsort((integers(found.rows.column(column + 1)), found.probe))
        probes = found.probe[order]
        last = np.flatnonzero(np.diff(probes, append=-1))
        chosen, probes = take_rows(found.rows, order[last]), probes[last]
        low, at, since, matched, apart = (none.copy() for _ in range(5))
        for i, target in enumerate((low, at, since, matched, apart)):
            target[probes] = integers(chosen.column(column + i))
        there = np.zeros(count, dtype=np.bool_)
        there[probes] = True
        matched[~there] = apart[~there] = 0
        later = ranges.between(self._cuts, column, wanted, low, np.full(count, _LATEST), schema=schema)
        beyond = np.flatnonzero(integers(later.rows.column(column + 1)) > at[later.probe])
        gone = Delta(take_rows(later.rows, beyond), later.weights[beyond])
        return _Cuts(at, since, matched, apart, there, chosen, gone)

    def _read(self, cuts: _Cuts) -> tuple[pa.RecordBatch, Indices, Weights]:
        """Read the stored rows of partitions from their cuts on; return them with their partitions and weights."""
        spec, touched = self._spec, self._touched
        some, all_ = np.flatnonzero(cuts.there), np.flatnonzero(~cuts.there)
        found = [
            (
                all_,
                probe(
                    self._rows,
                    spec.partition,
                    take_rows(touched.keys, all_),
                    touched.hashes[all_],
                    schema=spec.schema,
                ),
            )
        ]
        if len(some):
            assert spec.time is not None
            keys, hashes = take_rows(touched.keys, some), touched.hashes[some]
            spans = ranges.spans(self._rows, spec.time, hashes, cuts.since[some], None)
            found.append((some, spans.read(spec.partition, keys, spec.schema)))
        return (
            concat_rows([each.rows for _, each in found], spec.schema),
            np.concatenate([which[each.probe] for which, each in found]),
            np.concatenate([each.weights for _, each in found]),
        )

    def _matched(
        self, rows: pa.RecordBatch, labels: Indices, weights: Weights, cuts: _Cuts, *, cutting: bool = False
    ) -> tuple[Delta, Delta]:
        """Return the output for sorted rows with these weights, and with `cutting` the change of cuts in them."""
        spec = self._spec
        no_cuts = Delta.empty(cuts_schema(spec))
        places = np.repeat(np.arange(len(weights)), weights)
        if not len(places):
            return Delta.empty(spec.output), no_cuts
        rows, labels = take_rows(rows, places), labels[places]
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        ends = np.append(starts[1:], len(labels))
        which = labels[starts]
        origins = starts
        if spec.time is not None:
            partitions = Partitions.whole(rows, starts, ends)
            early = partitions.times(spec.time) < cuts.at[labels]
            origins = starts + np.add.reduceat(early, starts)
        partitions = Partitions(rows, starts, ends, origins, cuts.matched[which], cuts.there[which])
        found = outcome(spec, partitions, self._evaluate, settling=cutting and spec.time is not None)
        made = Delta.of(output(spec, partitions, found, self._evaluate))
        if not cutting or spec.time is None:
            return made, no_cuts
        return made, self._cut(partitions, which, found, cuts)

    def _cut(self, partitions: Partitions, which: Indices, matched: MatcherResult, cuts: _Cuts) -> Delta:
        """Return the change of cuts in matched rows."""
        spec, found = self._spec, matched.found
        assert spec.time is not None
        times, numbers = partitions.times(spec.time), partitions.numbers
        usable = self._usable(partitions, matched, times)
        chosen = np.flatnonzero(usable < NEVER)
        owners = numbers[chosen]
        origins = partitions.origins[owners]
        apart = chosen - origins + cuts.apart[which[owners]]
        last = np.flatnonzero(np.diff(owners, append=-1))
        kept = np.zeros(len(chosen), dtype=np.bool_)
        kept[self._fresh(owners, apart // _CUT_ROWS, np.zeros(len(chosen), dtype=np.int64))] = True
        if spec.within is not None:
            part = max(spec.within // 4, 1)
            kept[self._fresh(owners, times[chosen] // part, times[origins] // part)] = True
        last = last[(chosen - origins)[last] >= _LAST_ROWS]
        apart = np.where(kept, 0, np.maximum(apart % _CUT_ROWS, 1))
        kept[last] = True
        # A used cut that is not permanent is replaced by one after it.
        replaced = np.zeros(len(cuts.there), dtype=np.bool_)
        replaced[which[owners[kept]]] = True
        replaced &= cuts.there & (cuts.apart > 0)
        gone = take_rows(cuts.rows, np.flatnonzero(replaced[np.flatnonzero(cuts.there)]))
        chosen, apart = chosen[kept], apart[kept]
        owners = numbers[chosen]
        began = np.zeros(len(times) + 1, dtype=np.int64)
        np.add.at(began, found.starts[~found.timed_out] + 1, 1)
        began = np.cumsum(began)
        before = partitions.matched[owners] + began[chosen] - began[partitions.starts[owners]]
        since = times[np.maximum(chosen - _rows_back(spec), partitions.starts[owners])]
        keys = take_rows(self._touched.keys, which[owners])
        lanes = [pa.array(lane) for lane in (usable[chosen], times[chosen], since, before, apart)]
        added = pa.RecordBatch.from_arrays([*keys.columns, *lanes], schema=cuts_schema(spec))
        return concat([Delta.of(gone).negated(), Delta.of(added)], cuts_schema(spec))

    def _usable(self, partitions: Partitions, matched: MatcherResult, times: Ints) -> Ints:
        """Return the time from which each row can be used as a cut.

        It is NEVER if the search did not start afresh at the row, or the row before it has the same time.
        """
        spec, found = self._spec, matched.found
        assert spec.time is not None
        final = matched.settled.copy()
        np.maximum.at(final, found.starts, final_times(spec, partitions, matched))
        usable = np.full(len(times), NEVER, dtype=np.int64)
        usable[1:] = np.maximum(running_max(final, partitions)[:-1], times[1:])
        able = matched.visited & (np.arange(len(times)) > partitions.origins[partitions.numbers])
        able[1:] &= times[1:] > times[:-1]
        if (absent := null_mask(partitions.rows.column(spec.time))) is not None:
            able &= ~np.logical_or.reduceat(absent, partitions.starts)[partitions.numbers]
        return np.where(able, usable, NEVER)

    @staticmethod
    def _fresh(owners: Indices, buckets: Ints, firsts: Ints) -> Mask:
        """Return a mask of the rows that are the first of their bucket, given the bucket in which each partition begins."""
        before = np.roll(buckets, 1)
        begins = np.ones(len(owners), dtype=np.bool_)
        begins[1:] = owners[1:] != owners[:-1]
        fresh: Mask = buckets != np.where(begins, firsts, before)
        return fresh
