"""Range joins, maintained incrementally: joins of times that are close, and with the version valid at a time.

A left row has a point and a right row a range. They match if low <= point <= high, their keys are equal and the
condition, if there is one, holds; NULL in any of these matches nothing. With L and R the two sides before a step and dL
and dR their deltas, the matching pairs change by

    d(L x R) = dL x R + (L + dL) x dR        (weights multiply)

and statuses change as in `join`, whose output this operator has. The state of each side is ordered within a key, the
left side by its point, the right side by the start of its range, so that partners are found by bisection: a step costs
what lies in the ranges of the changed rows, regardless of the other rows of their keys. For a row whose partners
change, other partners are searched only until there are provably enough. Pairs are processed in pieces, so that memory
is proportional to the pairs that match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, equal_rows, null_mask, spread
from headwater.operators.join.join import JoinSpec, JoinStep, Kind, Statuses
from headwater.operators.join.pairs import Condition, tally, verdict_on
from headwater.operators.zset.collation import ColumnOrder
from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate, take_rows
from headwater.operators.zset.exact_sums import Bools, Ints
from headwater.operators.zset.numpy_columns import integers
from headwater.operators.zset.numpy_columns import same as same_values
from headwater.operators.zset.ordered_runs import arrange_ordered
from headwater.operators.zset.ranges import Spans, last_upto, spans
from headwater.operators.zset.runs import Probes, Run

_PAIRS_MAX = 1 << 20
"""Maximum number of pairs processed together and passed to a condition in one call."""
_GROWTH = 4
"""Factor by which the number of partners read grows when those read before were not enough."""
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class RangeJoinSpec:
    """A kind of join, the columns of either side that must be equal, pairwise, and the columns of the point and its range.

    `point` is a column of the left side, `low` and `high` of the right side, all int64 or all timestamps; both ends
    belong to the range. `width` is the maximum of high - low. None means that ranges of one key do not overlap: of two
    rows with different starts, the earlier range ends before the later one starts.
    """

    kind: Kind
    left_key: tuple[int, ...]
    right_key: tuple[int, ...]
    point: int
    low: int
    high: int
    width: int | None
    ends: tuple[int, ...] = ()
    """Columns of the right side that determine the end of a range, `high` among them.

    Set only if the condition uses these columns for nothing else and no reader of the output uses them at all. Where
    such a row is replaced by one with another end, only the points between the two ends are searched. Not supported by
    joins that output right rows without partners.
    """

    def __post_init__(self) -> None:
        if self.join.shows_right and self.ends:
            raise ValueError("a right row without a match needs its end")

    @property
    def join(self) -> JoinSpec:
        """The equi-join of the same kind on the keys alone, which has the same output columns."""
        return JoinSpec(self.kind, self.left_key, self.right_key)

    @property
    def left_order(self) -> tuple[ColumnOrder, ...]:
        """Order of the left state within a key."""
        return (ColumnOrder(self.point, descending=False, nulls_first=True),)

    @property
    def right_order(self) -> tuple[ColumnOrder, ...]:
        """Order of the right state within a key."""
        return (ColumnOrder(self.low, descending=False, nulls_first=True),)


def step(
    spec: RangeJoinSpec,
    left: Sequence[Run],
    right: Sequence[Run],
    d_left: Delta,
    d_right: Delta,
    condition: Condition | None = None,
) -> JoinStep:
    """Apply the deltas of both sides; the state consists of runs ordered by `left_order` and `right_order`.

    `condition` is evaluated on a bounded number of pairs at a time, and never without pairs.
    """
    deltas = (
        arrange_ordered(d_left, spec.left_key, spec.left_order),
        arrange_ordered(d_right, spec.right_key, spec.right_order),
    )
    schemas = (d_left.rows.schema, d_right.rows.schema)
    statuses = Statuses(spec.kind, spec.join.output(*schemas), schemas)
    states = (tuple(run for run in left if len(run)), tuple(run for run in right if len(run)))
    output = _Join(spec, states, deltas, statuses, condition).output()
    return JoinStep(output, *deltas)


@dataclass(frozen=True, eq=False)
class _Search:
    """Rows of one side, in any order, and the index ranges of their possible partners in runs of the other side.

    `spans.probes` are indices into `mine`.
    """

    side: int
    mine: Run
    spans: Spans

    def within(self, some: Spans) -> _Search:
        """Restrict the search to other spans of the same rows."""
        return _Search(self.side, self.mine, some)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Searching rows paired with rows found in one run: pair i is mine[i], places[i]."""

    search: _Search
    run: int
    mine: Ints
    places: Ints
    made: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.mine)

    @property
    def theirs(self) -> Run:
        """The run that contains the partners."""
        return self.search.spans.runs[self.run]

    def joined(self) -> pa.RecordBatch:
        """Return the pairs as rows: the left columns, then the right ones."""
        if self.made is not None:
            return self.made
        halves = [take_rows(self.search.mine.rows, self.mine), take_rows(self.theirs.rows, self.places)]
        left, right = reversed(halves) if self.search.side else halves
        schema = pa.schema([*left.schema, *right.schema])
        return pa.RecordBatch.from_arrays([*left.columns, *right.columns], schema=schema)

    def filtered(self, mask: Bools) -> _Pairs:
        """Return the pairs where the mask holds."""
        if mask.all():
            return self
        kept = np.flatnonzero(mask)
        made = None if self.made is None else take_rows(self.made, kept)
        return _Pairs(self.search, self.run, self.mine[kept], self.places[kept], made)

    def delta(self, schema: pa.Schema) -> Delta:
        """Return the pairs with their weights multiplied."""
        weights = self.search.mine.weights[self.mine] * self.theirs.weights[self.places]
        return Delta(pa.RecordBatch.from_arrays(self.joined().columns, schema=schema), weights)


@dataclass(frozen=True, eq=False)
class _SearchResult:
    """The result of a search: the number of matches of each searching row, and the change in matches of the rows found.

    `gained` has for each run of the spans the indices of rows found, possibly repeated, and weights.
    """

    search: _Search
    matches: Ints
    gained: list[list[tuple[Ints, Ints]]]


@dataclass(frozen=True, eq=False)
class _Touched:
    """Rows in the state of one side that gain or lose matches by the other side's delta, and the change in their matches."""

    side: int
    rows: Run
    gained: Ints


@dataclass(frozen=True, eq=False)
class _Join:
    """A step of a join; side 0 is the left side."""

    spec: RangeJoinSpec
    states: tuple[tuple[Run, ...], tuple[Run, ...]]
    deltas: tuple[Run, Run]
    statuses: Statuses
    condition: Condition | None
    parts: list[Delta] = field(default_factory=list)

    def shows(self, side: int) -> bool:
        """Whether the status of rows of a side is part of the output."""
        return self.spec.join.shows_right if side else self.spec.join.shows_left

    def output(self) -> Delta:
        """Return the change of the output."""
        left, right = self.deltas
        searches = [
            self.search(0, left, self.states[1]),
            self.search(1, right, (*self.states[0], left), is_change=True),
        ]
        by_left, by_right = self.found(searches, show=self.spec.join.shows_pairs)
        pairs = bool(self.parts)
        touched = [self.touched(1, by_left), self.touched(0, by_right)]
        for side, mine, others in ((0, by_left, by_right), (1, by_right, by_left)):
            run = self.deltas[side]
            if self.shows(side) and len(run):
                matches = mine.matches + _gained_by(run, others)
                self.parts.append(self.statuses.status(side, run.rows, matches > 0, run.weights))
        self.show_flips([some for some in touched if len(some.gained)])
        output = concat(self.parts, self.statuses.schema)
        return Delta(output.rows, output.weights, True) if self.distinct(pairs) else consolidate(output)

    def search(self, side: int, mine: Run, runs: Sequence[Run], *, is_change: bool = False) -> _Search:
        """Locate possible partners of rows of one side in runs of the other side.

        `is_change`: locate only partners gained or lost by the change, a subset.
        """
        spec = self.spec
        key = spec.right_key if side else spec.left_key
        columns = (spec.low, spec.high) if side else (spec.point,)
        live = _present(mine, (*key, *columns))
        lanes = [integers(mine.rows.column(i))[live] for i in columns]
        if side and is_change and spec.ends:
            lanes[0] = _moved_ends(mine, live, lanes[0], lanes[1], spec.ends)
            some = np.flatnonzero(lanes[0] <= lanes[1])
            live, lanes = live[some], [lane[some] for lane in lanes]
        hashes = mine.hashes[live]
        if side:
            found = spans(runs, spec.point, hashes, lanes[0], lanes[1])
        elif spec.width is not None:
            found = spans(runs, spec.low, hashes, _less(lanes[0], spec.width), lanes[0])
        else:
            keys = take_rows(mine.rows.select(list(key)), live)
            found = self.latest(runs, keys, hashes, lanes[0])
        return _Search(
            side, mine, Spans(found.runs, found.column, live[found.probes], found.starts, found.ends)
        )

    def latest(self, runs: Sequence[Run], keys: pa.RecordBatch, hashes: Hashes, points: Ints) -> Spans:
        """Locate the right rows with the latest start up to each point."""
        chosen, width = [*self.spec.right_key, self.spec.low], len(self.spec.right_key)
        narrow = [Run(run.hashes, run.rows.select(chosen), run.weights) for run in runs]
        schema = pa.schema([self.deltas[1].rows.schema.field(i) for i in chosen])
        last = last_upto(narrow, width, Probes(range(width), keys, hashes), points, schema=schema)
        begins = np.zeros(len(points), dtype=np.int64)
        begins[last.probe] = integers(last.rows.column(width))
        some = np.zeros(len(points), dtype=np.bool_)
        some[last.probe] = True
        probes = np.flatnonzero(some)
        found = spans(runs, self.spec.low, hashes[probes], begins[probes], begins[probes])
        return Spans(found.runs, found.column, probes, found.starts, found.ends)

    def found(self, searches: Sequence[_Search], *, show: bool) -> list[_SearchResult]:
        """Run searches; `show`: the matching pairs are part of the output."""
        results = [
            _SearchResult(search, np.zeros(len(search.mine), dtype=np.int64), [[] for _ in search.spans.runs])
            for search in searches
        ]
        of = {id(result.search): result for result in results}
        for pairs in self.judged(pairs for search in searches for pairs in _pieces(search)):
            result = of[id(pairs.search)]
            if show:
                self.parts.append(pairs.delta(self.statuses.schema))
            side = pairs.search.side
            if self.shows(side):
                weights = pairs.theirs.weights[pairs.places]
                result.matches[:] += tally(pairs.mine, weights, len(result.matches))
            if self.shows(1 - side):
                weights = pairs.search.mine.weights[pairs.mine]
                result.gained[pairs.run].append(_summed(pairs.places, weights))
        return results

    def judged(self, pieces: Iterable[_Pairs]) -> Iterator[_Pairs]:
        """Yield the pairs that match, skipping empty pieces; the condition is evaluated on several pieces at once."""
        waiting: list[_Pairs] = []
        for piece in pieces:
            pairs = piece.filtered(self.candidates(piece))
            if not len(pairs):
                continue
            if self.condition is None:
                yield pairs
                continue
            if sum(map(len, waiting)) + len(pairs) > _PAIRS_MAX:
                yield from _passing(self.condition, waiting)
                waiting = []
            waiting.append(pairs)
        if waiting and self.condition is not None:
            yield from _passing(self.condition, waiting)

    def candidates(self, pairs: _Pairs) -> Bools:
        """Return a mask of the pairs with equal keys, not just equal hashes, and the point in the range."""
        spec, mine, theirs = self.spec, pairs.search.mine.rows, pairs.theirs.rows
        keys = (spec.right_key, spec.left_key) if pairs.search.side else (spec.left_key, spec.right_key)
        ours, others = pa.array(pairs.mine), pa.array(pairs.places)
        mask = equal_rows(
            [mine.column(i).take(ours) for i in keys[0]],
            [theirs.column(i).take(others) for i in keys[1]],
            len(pairs),
        )
        if not pairs.search.side:
            points, ends = mine.column(spec.point).take(ours), theirs.column(spec.high).take(others)
            mask &= integers(points) <= integers(ends)
            if (absent := null_mask(ends)) is not None:
                mask &= ~absent
        return mask

    def touched(self, side: int, found: _SearchResult) -> _Touched:
        """Return the rows in the state of a side that gain or lose matches by a search for the other side's delta."""
        hashes, rows, weights, gains = [self.deltas[side].hashes[:0]], [], [], []
        for run, parts in zip(found.search.spans.runs, found.gained, strict=True):
            if parts and run is not self.deltas[side]:
                places, gained = _summed(*map(np.concatenate, zip(*parts, strict=True)))
                changed = np.flatnonzero(gained)
                places = places[changed]
                hashes.append(run.hashes[places])
                rows.append(take_rows(run.rows, places))
                weights.append(run.weights[places])
                gains.append(gained[changed])
        none = np.zeros(0, dtype=np.int64)
        state = Run(
            np.concatenate(hashes),
            concat_rows(rows, self.deltas[side].rows.schema),
            np.concatenate([none, *weights]),
        )
        return _Touched(side, state, np.concatenate([none, *gains]))

    def show_flips(self, touched: Sequence[_Touched]) -> None:
        """Emit the status changes of unchanged rows that get their first match or lose their last one.

        A row that gains matches has some now: the question is whether it had any before. A row that loses matches had
        some: the question is whether it had more than it loses. So matches before the step are counted only up to that
        number.
        """
        enough = [np.maximum(-some.gained, 0) + 1 for some in touched]
        counts = [np.zeros(len(some.gained), dtype=np.int64) for some in touched]
        searches = [self.search(some.side, some.rows, self.states[1 - some.side]) for some in touched]
        lengths = [needed[search.spans.probes] for search, needed in zip(searches, enough, strict=True)]
        while any(len(search.spans.probes) for search in searches):
            cuts = [search.spans.cut(length) for search, length in zip(searches, lengths, strict=True)]
            near = [search.within(cut[0]) for search, cut in zip(searches, cuts, strict=True)]
            for i, result in enumerate(self.found(near, show=False)):
                counts[i] += result.matches
                rest = cuts[i][1]
                open_ = rest.filled() & (counts[i] < enough[i])[rest.probes]
                searches[i], lengths[i] = searches[i].within(rest.only(open_)), lengths[i][open_] * _GROWTH
        for some, count, needed in zip(touched, counts, enough, strict=True):
            more, gains = (count >= needed).astype(np.int64), some.gained > 0
            before, after = np.where(gains, more, 1), np.where(gains, 1, more)
            self.parts.extend(
                self.statuses.flips(some.side, some.rows.rows, some.rows.weights, before, after)
            )

    def distinct(self, pairs: bool) -> bool:
        """Whether no output row can occur twice: there is only one delta, and none of its rows pairs with the same row
        twice."""
        if all(map(len, self.deltas)):
            return False
        other = 1 if len(self.deltas[0]) else 0
        return not self.shows(other) and (not pairs or len(self.states[other]) < 2)


def _pieces(search: _Search) -> Iterator[_Pairs]:
    """Yield all candidate pairs of a search, a bounded number at a time."""
    found = search.spans
    for run in range(len(found.runs)):
        lengths = found.ends[run] - found.starts[run]
        filled = np.flatnonzero(lengths)
        ends = np.cumsum(lengths[filled])
        total = int(ends[-1]) if len(ends) else 0
        for low in range(0, total, _PAIRS_MAX):
            high = min(low + _PAIRS_MAX, total)
            first, last = np.searchsorted(ends, low, side="right"), np.searchsorted(ends, high)
            part = filled[first : last + 1]
            starts, sizes = found.starts[run, part], lengths[part]
            sizes[-1] -= ends[last] - high
            skipped = low - (ends[first] - lengths[filled[first]])
            starts[0] += skipped
            sizes[0] -= skipped
            yield _Pairs(search, run, np.repeat(found.probes[part], sizes), spread(starts, sizes))


def _passing(condition: Condition, candidates: Sequence[_Pairs]) -> Iterator[_Pairs]:
    made = [pairs.joined() for pairs in candidates]
    weights = np.concatenate([p.search.mine.weights[p.mine] * p.theirs.weights[p.places] for p in candidates])
    verdict = verdict_on(condition, concat_rows(made, made[0].schema), weights)
    start = 0
    for pairs, rows in zip(candidates, made, strict=True):
        mask = verdict[start : start + len(pairs)]
        start += len(pairs)
        if mask.any():
            yield _Pairs(pairs.search, pairs.run, pairs.mine, pairs.places, rows).filtered(mask)


def _gained_by(run: Run, found: _SearchResult) -> Ints:
    """Return the change in matches of each row of a run, if it is among the runs searched."""
    total = np.zeros(len(run), dtype=np.int64)
    for searched, parts in zip(found.search.spans.runs, found.gained, strict=True):
        if searched is run:
            for places, gained in parts:
                total[places] += gained
    return total


def _summed(places: Ints, weights: Ints) -> tuple[Ints, Ints]:
    """Return the distinct indices, ascending, with the sum of the weights of each."""
    first = int(places.min())
    extent = int(places.max()) - first + 1
    if extent <= 4 * len(places):  # counting costs less than sorting
        counts = np.bincount(places - first, minlength=extent)
        some = np.flatnonzero(counts)
        return some + first, tally(places - first, weights, extent)[some]
    distinct, which = np.unique(places, return_inverse=True)
    return distinct, tally(which, weights, len(distinct))


def _moved_ends(run: Run, live: Ints, low: Ints, high: Ints, ends: Sequence[int]) -> Ints:
    """Return the starts of the ranges of rows, for a search restricted to the points where matches change.

    Where a row is replaced by one that differs only in its end, both starts are advanced past the earlier end. Such
    rows are adjacent.
    """
    some, rows = live[1:], run.rows
    same = (run.hashes[live[1:]] == run.hashes[live[:-1]]) & (
        run.weights[live[1:]] == -run.weights[live[:-1]]
    )
    same &= low[1:] == low[:-1]
    for place in (i for i in range(rows.num_columns) if i not in ends):
        pairs = np.flatnonzero(same)
        if not len(pairs):
            return low
        column = rows.column(place)
        same[pairs] = same_values(column.take(pa.array(some[pairs])), column.take(pa.array(live[pairs])))
    same[1:] &= ~same[:-1]  # of three such rows, only the first two are paired
    pairs = np.flatnonzero(same)
    earlier = np.minimum(high[pairs], high[pairs + 1])
    pairs, earlier = pairs[earlier < _MOST], earlier[earlier < _MOST]
    moved = low.copy()
    for both in (pairs, pairs + 1):
        moved[both] = np.maximum(low[both], earlier + 1)
    return moved


def _present(run: Run, columns: Sequence[int]) -> Ints:
    """Return the indices of rows without NULL in these columns."""
    live = np.ones(len(run), dtype=np.bool_)
    for column in columns:
        if (absent := null_mask(run.rows.column(column))) is not None:
            live &= ~absent
    return np.flatnonzero(live)


def _less(points: Ints, width: int) -> Ints:
    """Subtract a width from points, saturating at the minimum."""
    room = np.maximum(points, _LEAST + width) if width >= 0 else points
    return room - width
