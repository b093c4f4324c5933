"""Search for matches in sorted rows: from left to right, the most preferred match at each row, then on as the skip rule says.

The possible outcomes at each row are precomputed (see `reachability`), so that a match is followed straight to its end:
among the possible next positions it takes the first that leads to a match in time. If conditions depend on the rows
matched so far, this only rules out rows without a match; the others are searched in `backtracking`.

A match is *final* at a time if rows from then on cannot change it: every decision in its partition up to the match was
determined by rows before that time, or timed out before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Indices, Mask, null_mask
from headwater.operators.match_recognize.automaton import ACCEPT, Automaton, Options
from headwater.operators.match_recognize.matches import FoundMatches, MatchCollector
from headwater.operators.match_recognize.partitions import Masks, Partitions
from headwater.operators.match_recognize.reachability import NOWHERE, OPEN, Boundaries, Reach, reach
from headwater.operators.match_recognize.spec import NEVER, MatchSpec, Navigate
from headwater.operators.window.window_frames import shifted
from headwater.operators.zset.exact_sums import Bools, Ints


@dataclass(frozen=True)
class Failure:
    """A failed search for a match from a row.

    `seen` is the boundary up to which rows were examined, `open` the most preferred path that could have continued when
    its time limit passed, None if there is none.
    """

    row: int
    seen: int
    open: Sequence[int] | None


@dataclass(frozen=True, eq=False)
class MatcherResult:
    """The result of matching."""

    found: FoundMatches
    settled: Ints
    """Time from which the decisions at each row and at all earlier rows are final; zeros if not requested."""
    visited: Bools
    """Mask of the rows at which a match was searched."""


def joined(parts: Sequence[tuple[MatcherResult, int]]) -> MatcherResult:
    """Concatenate the results for consecutive partitions; each part comes with its number of partitions."""
    if len(parts) == 1:
        return parts[0][0]
    partitions, rows, founds = 0, 0, []
    for part, count in parts:
        found = part.found
        founds.append(replace(found, partitions=found.partitions + partitions, starts=found.starts + rows))
        partitions += count
        rows += len(part.settled)
    lanes = {
        f.name: np.concatenate([getattr(found, f.name) for found in founds]) for f in fields(FoundMatches)
    }
    return MatcherResult(
        FoundMatches(**lanes),
        np.concatenate([part.settled for part, _ in parts]),
        np.concatenate([part.visited for part, _ in parts]),
    )


@dataclass(frozen=True, eq=False)
class Ground:
    """Precomputed properties of all rows, before matches are searched."""

    spec: MatchSpec
    automaton: Automaton
    partitions: Partitions
    masks: Masks
    reach: Reach

    @staticmethod
    def of(
        spec: MatchSpec, automaton: Automaton, partitions: Partitions, masks: Masks, *, settling: bool = False
    ) -> Ground:
        """Compute the possible outcomes of each pattern position at each row; `settling` computes when results are final."""
        wanted = spec.closing or spec.timeouts or settling
        found = reach(automaton, masks, partitions.starts, partitions.ends, examined=wanted)
        return Ground(spec, automaton, partitions, masks, found)

    @cached_property
    def times(self) -> Ints:
        """Time of each row."""
        assert self.spec.time is not None
        return self.partitions.times(self.spec.time)

    @cached_property
    def _untimed(self) -> Mask | None:
        """Mask of the rows without a time, at which no match with a time limit starts."""
        assert self.spec.time is not None
        return null_mask(self.partitions.rows.column(self.spec.time))

    def limit(self, row: int, end: int) -> int:
        """Return the first row that cannot belong to a match that starts at a row, given the end of its partition."""
        within = self.spec.within
        if within is None:
            return end
        if self._untimed is not None and self._untimed[row]:
            return row
        until = min(self.times.item(row) + within, NEVER)
        return row + int(np.searchsorted(self.times[row:end], until))

    def beyond(self, boundaries: Boundaries) -> Bools:
        """Whether a match that starts at each row and ends at a boundary would exceed the time limit, or has no such
        boundary."""
        nowhere: Bools = boundaries == NOWHERE
        if self.spec.within is None:
            return nowhere
        last = self.times[np.where(nowhere, 1, boundaries) - 1]
        found: Bools = nowhere | (last >= shifted(self.times, self.spec.within))
        return found if self._untimed is None else found | self._untimed

    @cached_property
    def cells(self) -> Indices:
        """Cell of each row."""
        numbers = self.partitions.numbers
        from_end = self.partitions.ends[numbers] - 1 - np.arange(len(numbers))
        return self.reach.cells(numbers, from_end)

    def begins(self, row: int, partition: int) -> Options:
        """Return the options at the start of a match at a row."""
        is_first = row == self.partitions.starts.item(partition) and not self.partitions.cut.item(partition)
        return self.automaton.first[is_first][False]

    @cached_property
    def _firsts(self) -> Indices:
        """First rows of partitions."""
        return self.partitions.starts[~self.partitions.cut]

    @cached_property
    def startable(self) -> Bools:
        """Mask of the rows at which a match can start according to symbols."""
        ends = self._over_first(self.reach.ends, np.minimum, NOWHERE)
        inner, outer = (bool(options and options[-1] == ACCEPT) for options in self._first)
        found = ~self.beyond(ends)
        if inner:
            found[:] = True
        if outer:
            found[self._firsts] = True
        return found

    @cached_property
    def examined(self) -> Boundaries:
        """Boundary up to which rows must be examined to determine that no match starts at a row."""
        assert self.reach.examined is not None
        rows = np.arange(1, len(self.cells) + 1, dtype=np.int32)
        return np.maximum(self._over_first(self.reach.examined, np.maximum, 0), rows)

    @property
    def _first(self) -> tuple[Options, Options]:
        return self.automaton.first[False][False], self.automaton.first[True][False]

    def _over_first(self, lanes: Boundaries, merge: np.ufunc, nothing: int) -> Boundaries:
        """Return the least or greatest boundary over the options at the start of a match, at each row."""
        inner, outer = self._first

        def over(options: Options, cells: Indices) -> Boundaries:
            found = np.full(len(cells), nothing, dtype=np.int32)
            for option in options:
                if option != ACCEPT:
                    found = merge(found, lanes[option, cells])
            return found

        made = over(inner, self.cells)
        if outer != inner:
            made[self._firsts] = over(outer, self.cells[self._firsts])
        return made

    def walk(self, partition: int, row: int) -> tuple[Sequence[int], int]:
        """Return the match at a row where one starts, and the boundary up to which rows were examined."""
        end = self.partitions.ends.item(partition)
        limit, lane = self.limit(row, end), self.reach.lanes.item(partition)
        offsets, ends, examined = self.reach.offsets, self.reach.ends, self.reach.examined
        options, path = self.begins(row, partition), list[int]()
        at, seen = row, row + 1
        while at < end:
            cell = offsets.item(end - 1 - at) + lane
            for option in options:
                if option == ACCEPT:
                    return path, seen
                if ends.item(option, cell) <= limit:
                    break
                if examined is not None:
                    seen = max(seen, examined.item(option, cell))
            path.append(option)
            at += 1
            seen = max(seen, at)
            options = self.automaton.follow[option][at == end]
        # A future row might be taken instead.
        return path, seen if options[0] == ACCEPT else OPEN

    def walk_open(self, partition: int, row: int) -> Sequence[int]:
        """Return the most preferred incomplete match that takes all rows until its time limit."""
        end = self.partitions.ends.item(partition)
        limit, lane = self.limit(row, end), self.reach.lanes.item(partition)
        offsets, examined = self.reach.offsets, self.reach.examined
        assert examined is not None
        options, path = self.begins(row, partition), list[int]()
        for at in range(row, limit):
            cell = offsets.item(end - 1 - at) + lane
            place = next(o for o in options if o != ACCEPT and examined.item(o, cell) > limit)
            path.append(place)
            options = self.automaton.follow[place][False]
        return path


def match_symbols(ground: Ground) -> MatcherResult:
    """Find the matches of a pattern without conditions on earlier rows (only symbols)."""
    finding = MatchCollector(ground.automaton)
    partitions = ground.partitions
    cursors = Cursors(partitions, ground.startable)
    for partition in cursors.partitions:
        row, end = partitions.origins.item(partition), partitions.ends.item(partition)
        number = partitions.matched.item(partition)
        while (row := cursors.upfrom(row, end)) < end:
            number += 1
            path, seen = ground.walk(partition, row)
            finding.add(partition, row, path, number, seen)
            after = next_start(ground, row, path)
            cursors.skipped[row + 1 : after] = True
            row = after
    return finished(ground, finding, cursors.skipped, None)


class Cursors:
    """Iterates over rows at which matches may start, and records rows skipped by earlier matches."""

    def __init__(self, partitions: Partitions, candidates: Bools) -> None:
        count = len(candidates)
        places = np.where(candidates, np.arange(count), count)
        self._next = np.minimum.accumulate(places[::-1])[::-1]
        origins = partitions.origins
        inside = np.minimum(origins, max(count - 1, 0))
        self.partitions: list[int] = []
        if count:
            self.partitions = np.flatnonzero(
                (origins < partitions.ends) & (self._next[inside] < partitions.ends)
            ).tolist()
        # Rows before the origin of their partition are only context.
        self.skipped: Bools = np.arange(count) < origins[partitions.numbers]

    def upfrom(self, row: int, end: int) -> int:
        """Return the next row from `row` on at which a match may start, or `end`."""
        return min(self._next.item(row), end) if row < end else end


def next_start(ground: Ground, row: int, path: Sequence[int]) -> int:
    """Return the row at which the search continues after a match.

    Raises EvaluationError if the skip target is missing, or is the first row of the match.
    """
    skip = ground.spec.skip
    if not path or skip.kind == "to next row":
        return row + 1
    if skip.kind == "past last row":
        return row + len(path)
    names, labels = ground.spec.variables, ground.automaton.labels
    wanted = skip.variables
    mapped = [i for i, place in enumerate(path) if wanted is None or names[labels[place]] in wanted]
    target = " or ".join(sorted(wanted or ()))
    side = "FIRST" if skip.kind == "to first" else "LAST"
    if not mapped:
        raise EvaluationError(
            f"AFTER MATCH SKIP TO {side} {target} has no row to skip to",
            detail=f"no row of a match of {ground.spec.text} is mapped to it",
            hint="skip to a variable that every match has, or PAST LAST ROW",
            reason="skip-no-row",
            pattern=ground.spec.text,
        )
    if (after := mapped[0] if skip.kind == "to first" else mapped[-1]) == 0:
        raise EvaluationError(
            f"AFTER MATCH SKIP TO {side} {target} would find the same match again",
            detail=f"the first row of a match of {ground.spec.text} is mapped to it",
            hint="skip to a variable that no match begins with, or TO NEXT ROW",
            reason="skip-same-match",
            pattern=ground.spec.text,
        )
    return row + after


def finished(
    ground: Ground, finding: MatchCollector, skipped: Bools, failures: Sequence[Failure] | None
) -> MatcherResult:
    """Return the result, including matches that timed out. `failures` are the failed searches, if conditions required
    searches."""
    if ground.reach.examined is None:
        return MatcherResult(finding.found(), np.zeros(len(skipped), dtype=np.int64), ~skipped)
    seen = ground.examined.astype(np.int64)
    matched = finding.starts
    seen[matched] = np.array(finding.seen, dtype=np.int64)
    for failure in failures or ():
        seen[failure.row] = failure.seen
    if ground.spec.timeouts:
        for partition, row, path, number in list(_timeouts(ground, matched, skipped, failures)):
            finding.add(partition, row, path, number, 0, timed_out=True)
    return MatcherResult(finding.found(), closing_times(ground, seen, ~skipped), ~skipped)


def _timeouts(
    ground: Ground, matched: Indices, skipped: Bools, failures: Sequence[Failure] | None
) -> Iterator[tuple[int, int, Sequence[int], int]]:
    """Yield the matches that had begun when they timed out: partition, row, path, and the number that they would have had."""
    partitions = ground.partitions
    began = np.zeros(len(skipped) + 1, dtype=np.int64)
    began[matched + 1] = 1
    began = np.cumsum(began)
    paths = {failure.row: failure.open for failure in failures or ()}
    failed = ~skipped & ground.beyond(ground.examined)
    failed[matched] = False
    for row in np.flatnonzero(failed).tolist():
        partition = partitions.numbers.item(row)
        path = ground.walk_open(partition, row) if failures is None else paths.get(row)
        if path is not None:
            before = began.item(row) - began.item(partitions.starts.item(partition))
            yield partition, row, path, partitions.matched.item(partition) + before + 1


def closing_times(ground: Ground, seen: Indices, visited: Bools) -> Ints:
    """Return when the decisions at each row, and at all rows before it in its partition, are final.

    `seen` has the boundary up to which rows were examined; rows that are not `visited` decide nothing.
    """
    spec, partitions = ground.spec, ground.partitions
    count = len(seen)
    times = ground.times
    if ground.automaton.has_end:
        return np.full(count, NEVER, dtype=np.int64)
    far = seen >= OPEN
    closes = np.where(far, NEVER, times[np.where(far, 1, seen) - 1] + 1) if count else times
    if spec.within is not None:
        closes = np.minimum(closes, shifted(times, spec.within))
    ahead = rows_ahead(spec, [e for name in spec.variables for e in spec.conditions.get(name, ())])
    if ahead:
        last = seen - 1 + ahead
        beyond = last >= partitions.ends[partitions.numbers]
        closes = np.maximum(closes, np.where(beyond, NEVER, times[np.where(beyond, 0, last)] + 1))
    closes = np.where(visited, closes, np.iinfo(np.int64).min)
    return running_max(closes, partitions)


def rows_ahead(spec: MatchSpec, expressions: Sequence[int]) -> int:
    """Return the greatest number of rows ahead that some expressions read."""
    inputs = [each for number in expressions for each in spec.expressions[number].inputs]
    return max((each.offset for each in inputs if isinstance(each, Navigate)), default=0)


def running_max(values: Ints, partitions: Partitions) -> Ints:
    """Return the running maximum within each partition."""
    found = values.copy()
    since = np.arange(len(values)) - partitions.starts[partitions.numbers] if len(values) else values
    longest = int(since.max(initial=0))
    shift = 1
    while shift <= longest:
        late = np.flatnonzero(since >= shift)
        found[late] = np.maximum(found[late], found[late - shift])
        shift *= 2
    return found
