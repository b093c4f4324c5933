"""Matching where conditions depend on the rows matched so far: backtracking with batched evaluation of conditions.

The result of such a condition depends only on the values to which its inputs navigate: these are its *question*.
Attempts to match run concurrently, one for each partition and some for later rows of it, each until it needs an answer;
then all open questions are evaluated at once. An attempt in a loop also asks in advance the questions for the case that
the next rows are taken; after a negative answer, it also asks those for the case of further negative answers. Answers
are cached, so that superfluous questions cost time and change nothing.

A branch is not entered if the symbols of its rows rule out a match (see `reachability`), or if a branch with the same
position, row and navigation has failed before. The remaining work is bounded for each partition. Where the output
includes when a match is final, symbols do not rule out branches: future rows could change their result, but not that of
the conditions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import EvaluationError
from headwater.operators.match_recognize.automaton import ACCEPT
from headwater.operators.match_recognize.matcher import (
    Cursors,
    Failure,
    Ground,
    MatcherResult,
    finished,
    next_start,
)
from headwater.operators.match_recognize.matches import MatchCollector
from headwater.operators.match_recognize.measures import (
    Mapped,
    aggregated,
    argument_values,
    lists,
    weighted,
)
from headwater.operators.match_recognize.partitions import batch
from headwater.operators.match_recognize.reachability import OPEN
from headwater.operators.match_recognize.spec import (
    WORK_ROW_MAX,
    Classify,
    Evaluate,
    Input,
    MatchNumber,
    Navigate,
    PatternAggregate,
    Variables,
)
from headwater.operators.window.window_frames import Frames
from headwater.operators.zset.delta import take_rows
from headwater.operators.zset.numpy_columns import booleans


class _Rows(NamedTuple):
    """The rows of an aggregate: all row numbers, or the first one if they are consecutive.

    If the aggregate's argument reads variables, all row numbers are listed with the variables they are mapped to; if it
    reads the match number, that is included.
    """

    key: tuple[int, ...]
    size: int
    labels: tuple[int, ...] = ()
    number: int = 0


Question = tuple[object, ...]
"""The number of an expression, then for each of its inputs: a row, a variable, a number, or the rows of an aggregate."""
Asking = Generator[list[Question], None, None]

_SIDE_BY_SIDE = 4_096
"""Number of partitions searched concurrently."""
_AHEAD_MAX = 1_024
"""Maximum number of rows for which a loop asks in advance."""
_SUPPOSED_MAX = 1_024
"""Maximum number of questions asked for the case that earlier ones are answered negatively."""
_SUPPOSED_MIN = 16
"""Minimum number of such questions, so that a single negative answer does not trigger more questions."""
_ATTEMPTS_MAX = 256
"""Maximum number of rows of a partition at which matches are attempted concurrently."""
_ANSWERS_MAX = 500_000
"""Maximum number of cached answers."""
_FAILED_MAX = 200_000
"""Maximum number of failed branches recorded for an attempt."""


@dataclass(frozen=True, eq=False)
class _Conditions:
    """The dependencies of conditions on the rows matched so far."""

    by_label: tuple[tuple[int, ...], ...]
    """Expressions of each variable, by variable number."""
    tracked: tuple[Variables, ...]
    """Sets of variables whose rows are tracked."""
    tracks: tuple[tuple[int, ...], ...]
    """Indices of the tracked sets to which rows of each position belong."""
    firsts: tuple[int, ...]
    """Number of rows, counted from the first, that conditions read in each tracked set; -1 for all rows."""
    lasts: tuple[int, ...]
    whole: bool
    """Whether conditions depend on the path itself, not only on the rows to which it led."""
    numbered: bool
    """Whether conditions depend on the number of the match."""
    arguments: dict[int, tuple[bool, bool]]
    """For each argument of an aggregate: whether it reads the variables of rows, and the number of the match."""

    @staticmethod
    def of(ground: Ground) -> _Conditions:
        spec, automaton = ground.spec, ground.automaton
        by_label = tuple(
            tuple(e for e in spec.conditions.get(name, ()) if not spec.is_symbol(name, e))
            for name in spec.variables
        )
        inputs = [
            each for numbers in by_label for number in numbers for each in spec.expressions[number].inputs
        ]
        arguments = [within for each in inputs for within in spec.argument_inputs(each)]
        sets = list(dict.fromkeys(each.variables for each in inputs if not isinstance(each, MatchNumber)))
        firsts, lasts = [0] * len(sets), [0] * len(sets)
        for each in inputs:
            if isinstance(each, MatchNumber):
                continue
            at = sets.index(each.variables)
            if isinstance(each, PatternAggregate):
                firsts[at] = -1
            elif each.side == "first" and firsts[at] >= 0:
                firsts[at] = max(firsts[at], each.nth + 1)
            elif each.side == "last":
                lasts[at] = max(lasts[at], each.nth + 1)
        names = [spec.variables[label] for label in automaton.labels]
        return _Conditions(
            by_label,
            tuple(sets),
            tuple(tuple(i for i, s in enumerate(sets) if s is None or name in s) for name in names),
            tuple(firsts),
            tuple(lasts),
            any(isinstance(each, Classify) for each in (*inputs, *arguments)),
            any(isinstance(each, MatchNumber) for each in (*inputs, *arguments)),
            {
                each.argument: (
                    any(isinstance(i, Classify) for i in spec.argument_inputs(each)),
                    any(isinstance(i, MatchNumber) for i in spec.argument_inputs(each)),
                )
                for each in inputs
                if isinstance(each, PatternAggregate) and each.argument is not None
            },
        )


def needs_search(ground: Ground) -> bool:
    """Whether some condition depends on the rows matched so far."""
    spec = ground.spec
    return not all(spec.is_symbol(name, e) for name in spec.variables for e in spec.conditions.get(name, ()))


def search(ground: Ground, evaluate: Evaluate) -> MatcherResult:
    """Return all matches."""
    return _Search(ground, evaluate).done()


class _Search:
    def __init__(self, ground: Ground, evaluate: Evaluate) -> None:
        self.ground = ground
        self.conditions = _Conditions.of(ground)
        self.answers: dict[Question, bool] = {}
        self._answering = _Answering(ground, evaluate)
        self._finding = MatchCollector(ground.automaton)
        self._failures: list[Failure] = []
        candidates = ground.startable
        if ground.spec.closing:  # results of symbols alone may change after a match is final
            candidates = candidates | (ground.examined > np.arange(1, len(candidates) + 1))
        elif ground.spec.timeouts:
            candidates = candidates | ground.beyond(ground.examined)
        self._cursors = Cursors(ground.partitions, candidates)

    def done(self) -> MatcherResult:
        drivers = (self._partition(partition) for partition in self._cursors.partitions)
        active: list[Asking] = []
        while True:
            active += islice(drivers, _SIDE_BY_SIDE - len(active))
            if not active:
                return finished(self.ground, self._finding, self._cursors.skipped, self._failures)
            going, questions = [], []
            for driver in active:
                asked = next(driver, None)
                if asked is not None:
                    going.append(driver)
                    questions += asked
            active = going
            if len(self.answers) > _ANSWERS_MAX:
                self.answers.clear()
            self._answering.answer(questions, self.answers)

    def _partition(self, partition: int) -> Asking:
        """Find all matches of a partition; yields the questions to be answered before it can continue."""
        ground, partitions = self.ground, self.ground.partitions
        row, end = partitions.origins.item(partition), partitions.ends.item(partition)
        number, work, width = partitions.matched.item(partition) + 1, 0, 1
        attempts: dict[int, _Attempt] = {}
        while (row := self._cursors.upfrom(row, end)) < end:
            first = self._attempt(attempts, partition, row, number)
            questions = first.ask()
            if work + first.steps > self.work_max(partition):
                raise self._too_much(partition)
            if not first.over:
                for at in self._following(row + 1, end, 0 if self.conditions.numbered else width):
                    questions = questions + self._attempt(attempts, partition, at, number).ask()
                yield questions
                continue
            work += first.steps
            del attempts[row]
            if first.path is None:
                self._failures.append(Failure(row, first.seen, first.open))
                row += 1
                width = min(2 * width, _ATTEMPTS_MAX)
                continue
            self._finding.add(partition, row, first.path, number, first.seen)
            number += 1
            after = next_start(ground, row, first.path)
            self._cursors.skipped[row + 1 : after] = True
            row, width = after, max(width // 2, 1)
            attempts = {at: each for at, each in attempts.items() if at >= row}

    def work_max(self, partition: int) -> int:
        """Return the maximum number of steps for a partition."""
        partitions = self.ground.partitions
        rows = partitions.ends.item(partition) - partitions.starts.item(partition)
        return self.ground.spec.work_max + WORK_ROW_MAX * rows

    def _attempt(self, attempts: dict[int, _Attempt], partition: int, row: int, number: int) -> _Attempt:
        if row not in attempts:
            attempts[row] = _Attempt(self, partition, row, number)
        return attempts[row]

    def _following(self, row: int, end: int, count: int) -> Iterator[int]:
        for _ in range(count):
            if (row := self._cursors.upfrom(row, end)) >= end:
                return
            yield row
            row += 1

    def _too_much(self, partition: int) -> EvaluationError:
        ground = self.ground
        row = int(ground.partitions.starts[partition])
        key = {
            ground.spec.schema.field(i).name: ground.partitions.rows.column(i)[row].as_py()
            for i in ground.spec.partition
        }
        shown = ", ".join(f"{name} = {value!r}" for name, value in key.items())
        return EvaluationError(
            f"matching the pattern {ground.spec.text} takes too many steps",
            detail=f"more than {self.work_max(partition):,} in one partition{': ' + shown if shown else ''}",
            hint="make its alternatives exclude each other, bound its quantifiers, or add WITHIN",
            pattern=ground.spec.text,
            key=key,
            reason="too-many-steps",
        )


class _Attempt:
    """An attempt to match from one row on."""

    def __init__(self, search: _Search, partition: int, row: int, number: int) -> None:
        self._search = search
        self._ground = search.ground
        self._partition = partition
        self._row = row
        self._number = number
        partitions = search.ground.partitions
        self._begin, self._end = int(partitions.starts[partition]), int(partitions.ends[partition])
        self._limit = search.ground.limit(row, self._end)
        self._lane = int(search.ground.reach.lanes[partition])
        self._mapped: list[list[int]] = [[] for _ in search.conditions.tracked]
        self._ahead = self._supposing = 1
        self._path: list[int] = []
        self._failed: set[Question] = set()
        self._work_max = search.work_max(partition)
        self._run = self._search_on()
        self._waiting: list[Question] = []
        self.path: list[int] | None = None
        self.open: list[int] | None = None
        """Most preferred path that could have continued when no further row was in time."""
        self.seen = row + 1
        self.over = False
        self.steps = 0

    def ask(self) -> list[Question]:
        """Continue until the attempt is over or needs answers; return the open questions."""
        answers = self._search.answers
        if not self.over and all(question in answers for question in self._waiting):
            asked = next(self._run, None)
            self.over = asked is None
            self._waiting = asked or []
        return self._waiting

    def _search_on(self) -> Asking:
        ground, conditions, path = self._ground, self._search.conditions, self._path
        automaton, reach = ground.automaton, ground.reach
        ends, examined, limit = reach.ends, reach.examined, self._limit
        failed = self._failed
        stack = [iter(ground.begins(self._row, self._partition))]
        while stack:
            self.steps += 1
            if self.steps > self._work_max:
                return
            place = next(stack[-1], None)
            if place is None:
                stack.pop()
                if stack:
                    if len(failed) < _FAILED_MAX:
                        failed.add(self._standing())
                    self._leave()
                continue
            if place == ACCEPT:
                self.path = path
                return
            at = self._row + len(path)
            if at >= limit:
                # The time limit or the end of the partition is reached.
                self.seen = OPEN if at >= self._end else max(self.seen, at + 1)
                if self.open is None and path:
                    self.open = path.copy()
                continue
            cell = reach.offsets.item(self._end - 1 - at) + self._lane
            if ends.item(place, cell) > limit and not ground.spec.closing:
                if examined is None:
                    continue
                if not (ground.spec.timeouts and examined.item(place, cell) > limit and self.open is None):
                    self.seen = max(self.seen, examined.item(place, cell))
                    continue
            self.seen = max(self.seen, at + 1)
            if not ground.masks.item(at) >> automaton.labels[place] & 1:
                continue
            self._enter(place, at)
            expressions = conditions.by_label[automaton.labels[place]]
            if expressions:
                answers = self._search.answers
                questions = [self._question(each) for each in expressions]
                if any(question not in answers for question in questions):
                    while any(question not in answers for question in questions):
                        yield self._in_advance(place, at, questions) + self._supposed(stack)
                    was_no = not all(answers[question] for question in questions)
                    self._supposing = min(4 * self._supposing, _SUPPOSED_MAX) if was_no else 1
                if not all(answers[question] for question in questions):
                    self._leave()
                    continue
            if self._standing() in failed:
                self._leave()
                continue
            stack.append(iter(automaton.follow[place][at + 1 == self._end]))

    def _supposed(self, stack: Sequence[Iterator[int]]) -> list[Question]:
        """Return the questions that follow if those about the row entered last, and the ones after them, are answered
        negatively."""
        if self._supposing < _SUPPOSED_MIN:
            return []
        ground, search = self._ground, self._search
        labels, answers = ground.automaton.labels, search.answers
        path, mapped = self._path.copy(), [rows.copy() for rows in self._mapped]
        ahead = [copy(each) for each in stack]
        asked: dict[Question, None] = {}
        failed: set[Question] = set()
        self._leave()
        steps = 0
        while ahead and len(asked) < self._supposing and steps < 8 * self._supposing:
            steps += 1
            place = next(ahead[-1], None)
            if place is None:
                ahead.pop()
                if ahead:
                    failed.add(self._standing())
                    self._leave()
                continue
            at = self._row + len(self._path)
            if place == ACCEPT:
                break
            if (
                at >= self._limit
                or not self._reaches(place, at)
                or not ground.masks.item(at) >> labels[place] & 1
            ):
                continue
            self._enter(place, at)
            questions = [self._question(each) for each in search.conditions.by_label[labels[place]]]
            unknown = [question for question in questions if question not in answers]
            asked.update(dict.fromkeys(unknown))
            standing = self._standing()
            if (
                unknown
                or not all(answers[q] for q in questions)
                or standing in failed
                or standing in self._failed
            ):
                self._leave()
                continue
            ahead.append(iter(ground.automaton.follow[place][at + 1 == self._end]))
        self.steps += steps
        self._path[:] = path
        for rows, before in zip(self._mapped, mapped, strict=True):
            rows[:] = before
        return list(asked)

    def _reaches(self, place: int, at: int) -> bool:
        """Whether symbols allow a match through this position at this row."""
        ground, reach = self._ground, self._ground.reach
        cell = reach.offsets.item(self._end - 1 - at) + self._lane
        return ground.spec.closing or reach.ends.item(place, cell) <= self._limit

    def _enter(self, place: int, row: int) -> None:
        self._path.append(place)
        for track in self._search.conditions.tracks[place]:
            self._mapped[track].append(row)

    def _leave(self) -> None:
        for track in self._search.conditions.tracks[self._path.pop()]:
            self._mapped[track].pop()

    def _standing(self) -> Question:
        """Return a key of everything on which the rest of the attempt depends."""
        conditions, path = self._search.conditions, self._path
        parts: list[object] = [path[-1], len(path)]
        if conditions.whole:
            parts.append(tuple(path))
        for rows, first, last in zip(self._mapped, conditions.firsts, conditions.lasts, strict=True):
            if first < 0:
                parts.append(tuple(rows))
                continue
            if first:
                parts.append(tuple(rows[:first]))
            if last:
                parts.append(tuple(rows[-last:]))
        return tuple(parts)

    def _question(self, expression: int) -> Question:
        """Return the question of a condition for the row entered last."""
        inputs = self._ground.spec.expressions[expression].inputs
        return (expression, *(self._navigated(each) for each in inputs))

    def _navigated(self, each: Input) -> object:
        if isinstance(each, MatchNumber):
            return self._number
        rows = self._mapped[self._search.conditions.tracked.index(each.variables)]
        if isinstance(each, PatternAggregate):
            return len(rows) if each.argument is None else self._rows_of(each, each.argument, rows)
        if each.nth >= len(rows):
            return -1
        row = (rows[each.nth] if each.side == "first" else rows[-1 - each.nth]) + each.offset
        if isinstance(each, Classify):
            at = row - self._row
            return self._ground.automaton.labels[self._path[at]] if 0 <= at < len(self._path) else -1
        return row if self._begin <= row < self._end else -1

    def _rows_of(self, each: PatternAggregate, argument: int, rows: list[int]) -> _Rows:
        if each.kind == "list":
            self.steps += len(rows)
        is_labelled, is_numbered = self._search.conditions.arguments[argument]
        number = self._number if is_numbered else 0
        if not rows:
            return _Rows((0,), 0, (), number)
        if is_labelled:
            labels = self._ground.automaton.labels
            mapped = tuple(labels[self._path[row - self._row]] for row in rows)
            return _Rows(tuple(rows), len(rows), mapped, number)
        is_range = rows[-1] - rows[0] + 1 == len(rows)
        return _Rows((rows[0],) if is_range else tuple(rows), len(rows), (), number)

    def _in_advance(self, place: int, row: int, questions: Sequence[Question]) -> list[Question]:
        """Return the unanswered questions, and those that follow if a loop continues."""
        ground = self._ground
        asked = list(questions)
        if place in ground.automaton.follow[place][False]:
            label = ground.automaton.labels[place]
            entered = 0
            for at in range(row + 1, min(row + self._ahead, self._limit)):
                if not ground.masks.item(at) >> label & 1:
                    break
                self._enter(place, at)
                entered += 1
                asked += [self._question(each) for each in self._search.conditions.by_label[label]]
            for _ in range(entered):
                self._leave()
            self._ahead = min(self._ahead * 4, _AHEAD_MAX)
        answers = self._search.answers
        return [question for question in asked if question not in answers]


@dataclass(eq=False)
class _Answering:
    """Evaluates the conditions that attempts ask for."""

    ground: Ground
    evaluate: Evaluate
    names: pa.Array = field(init=False)
    values: dict[int, pa.Array] = field(default_factory=dict)
    """Values of aggregate arguments, for all rows."""

    def __post_init__(self) -> None:
        self.names = pa.array(self.ground.spec.variables, pa.string())

    def answer(self, questions: Sequence[Question], answers: dict[Question, bool]) -> None:
        """Add the answers to questions."""
        by_expression: dict[int, dict[Question, None]] = {}
        for question in questions:
            if question not in answers:
                by_expression.setdefault(int(question[0]), {})[question] = None  # type: ignore[call-overload]
        for expression, asked in by_expression.items():
            inputs = self.ground.spec.expressions[expression].inputs
            lanes = list(zip(*asked, strict=True))[1:]
            columns = [c for each, lane in zip(inputs, lanes, strict=True) for c in self._columns(each, lane)]
            values = self.evaluate(expression, batch(columns), len(asked))
            answers.update(zip(asked, booleans(values).tolist(), strict=True))

    def _columns(self, each: Input, lane: Sequence[object]) -> list[pa.Array]:
        match each:
            case PatternAggregate() if each.argument is not None:
                return self._aggregated(each, each.argument, lane)
            case MatchNumber() | PatternAggregate():
                return [pa.array(lane, pa.int64())]
        places = np.array(lane, dtype=np.int64)
        if isinstance(each, Navigate):
            return [self.ground.partitions.column_at(each.column, places)]
        return [pc.take(self.names, pa.array(np.maximum(places, 0), mask=places < 0))]

    def _aggregated(self, each: PatternAggregate, argument: int, lane: Sequence[object]) -> list[pa.Array]:
        """Return an aggregate over sets of rows, given as ranges or as lists of rows."""
        asked = [rows for rows in lane if isinstance(rows, _Rows)]
        longest: dict[_Rows, int] = {}
        for rows in asked:
            alike = rows._replace(size=0)
            longest[alike] = max(longest.get(alike, 0), rows.size)
        begins: dict[_Rows, int] = {}
        parts, labels, offset = [], [], 0
        for alike, count in longest.items():
            begins[alike] = offset
            offset += count
            key = alike.key
            parts.append(np.array(key) if len(key) > 1 else np.arange(key[0], key[0] + count))
            labels.append(np.array(alike.labels or [0] * count, dtype=np.int64))
        low = np.array([begins[rows._replace(size=0)] for rows in asked], dtype=np.int64)
        high = low + np.array([rows.size for rows in asked], dtype=np.int64)
        spec, places = self.ground.spec, np.concatenate(parts).astype(np.int64)
        frames = Frames(low, high)
        if all(isinstance(argument, Navigate) for argument in spec.argument_inputs(each)):
            values = pc.take(self._of_rows(argument), pa.array(places))
        else:
            numbers = np.repeat([alike.number for alike in longest], list(longest.values()))
            mapped = Mapped(take_rows(self.ground.partitions.rows, places), np.concatenate(labels), numbers)
            values = argument_values(spec, argument, mapped, self.evaluate)
        if each.kind == "list":
            return [lists(values, frames)]
        return aggregated(each, weighted(values), frames, spec)

    def _of_rows(self, argument: int) -> pa.Array:
        """Return the values of an argument that depends on single rows, for all rows."""
        if argument not in self.values:
            rows = self.ground.partitions.rows
            none = np.zeros(rows.num_rows, dtype=np.int64)
            mapped = Mapped(rows, none, none)
            self.values[argument] = argument_values(self.ground.spec, argument, mapped, self.evaluate)
        return self.values[argument]
