"""Evaluation of expressions over matches: resolves the rows that inputs navigate to, for all matches at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import ArithmeticOverflowError, EvaluationError
from headwater.core.hashing import Indices
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.match_recognize.matches import FoundMatches, Selection
from headwater.operators.match_recognize.partitions import Partitions, batch
from headwater.operators.match_recognize.spec import (
    Classify,
    Evaluate,
    Input,
    MatchNumber,
    MatchSpec,
    Navigate,
    PatternAggregate,
    Variables,
)
from headwater.operators.window.window_frames import Frames, Weighted
from headwater.operators.zset.delta import take_rows
from headwater.operators.zset.exact_sums import Bools

LISTED_MAX = 1 << 22
"""Maximum number of list values passed to an expression at a time, unless a single match has more."""


@dataclass(frozen=True, eq=False)
class Points:
    """Evaluation points of expressions: the match, and the number of its rows up to the current one."""

    matches: Indices
    upto: Indices


class Measuring:
    """Evaluates expressions over the matches found."""

    def __init__(
        self, spec: MatchSpec, partitions: Partitions, found: FoundMatches, evaluate: Evaluate
    ) -> None:
        self._spec = spec
        self._partitions = partitions
        self._found = found
        self._evaluate = evaluate
        self._selections: dict[Variables, Selection] = {}
        self._weighted: dict[tuple[Variables, int], Weighted] = {}
        self._values: dict[tuple[Variables, int], pa.Array] = {}
        self._frames: list[Frames] = []

    def column(self, expression: int, points: Points) -> pa.Array:
        """Return the values of an expression at some points.

        Raises EvaluationError if the lists for one match would have more than `work_max` values.
        """
        listed = self._listed(expression, points)
        if int(listed.sum()) <= LISTED_MAX:
            return self._column(expression, points)
        most = np.bincount(points.matches, weights=listed)
        if most.max() > self._spec.work_max:
            raise too_long(self._spec)
        parts = np.searchsorted(
            np.cumsum(listed), np.arange(LISTED_MAX, int(listed.sum()), LISTED_MAX), side="right"
        )
        bounds = np.unique(np.concatenate(([0], parts, [len(listed)])))
        return pa.concat_arrays(
            [
                self._column(expression, Points(points.matches[low:high], points.upto[low:high]))
                for low, high in pairwise(bounds.tolist())
            ]
        )

    def _listed(self, expression: int, points: Points) -> Indices:
        """Return the number of list values of an expression at each point."""
        counts = np.zeros(len(points.matches), dtype=np.int64)
        for each in self._spec.expressions[expression].inputs:
            if isinstance(each, PatternAggregate) and each.kind == "list":
                _, low, high = self._range(each.variables, points, each.final)
                counts += high - low
        return counts

    def _column(self, expression: int, points: Points) -> pa.Array:
        columns = [
            column
            for each in self._spec.expressions[expression].inputs
            for column in self._input(each, points)
        ]
        return self._evaluate(expression, batch(columns), len(points.matches))

    def _input(self, each: Input, points: Points) -> list[pa.Array]:
        found, owners = self._found, points.matches
        match each:
            case MatchNumber():
                return [pa.array(found.numbers[owners])]
            case PatternAggregate():
                return self._aggregate(each, points)
            case Navigate():
                places = self._places(each, points)
                rows = np.where(places < 0, -1, places - found.offsets[owners] + found.starts[owners])
                rows = self._partitions.shifted(rows, found.partitions[owners], each.offset)
                return [self._partitions.column_at(each.column, rows)]
        moved = self._places(each, points)
        if each.offset:
            low = found.offsets[owners]
            there = (
                (moved >= 0)
                & (moved + each.offset >= low)
                & (moved + each.offset < low + found.lengths[owners])
            )
            moved = np.where(there, moved + each.offset, -1)
        labels = (
            found.labels[np.maximum(moved, 0)] if len(found.labels) else np.zeros(len(moved), dtype=np.int64)
        )
        names = pa.array(self._spec.variables, pa.string())
        return [pc.take(names, pa.array(labels, mask=moved < 0))]

    def _selection(self, variables: Variables) -> Selection:
        if variables not in self._selections:
            self._selections[variables] = Selection.of(self._spec, self._found, variables)
        return self._selections[variables]

    def _range(self, variables: Variables, points: Points, final: bool) -> tuple[Selection, Indices, Indices]:
        """Return, for each point, the range of the rows mapped to some variables."""
        found, selection = self._found, self._selection(variables)
        low = found.offsets[points.matches]
        high = low + (found.lengths[points.matches] if final else points.upto)
        return selection, selection.before[low], selection.before[high]

    def _places(self, each: Navigate | Classify, points: Points) -> Indices:
        """Return the target of a navigation, before its offset, as an index into the rows of all matches; -1 if there
        is none."""
        selection, low, high = self._range(each.variables, points, each.final)
        at = low + each.nth if each.side == "first" else high - 1 - each.nth
        there = (at >= low) & (at < high)
        if not len(selection.places):
            return np.full(len(at), -1, dtype=np.int64)
        return np.where(there, selection.places[np.where(there, at, 0)], -1)

    def _aggregate(self, each: PatternAggregate, points: Points) -> list[pa.Array]:
        selection, low, high = self._range(each.variables, points, each.final)
        if each.argument is None:
            return [pa.array(high - low)]
        held = (each.variables, each.argument)
        frames = Frames(low, high)
        if each.kind == "list":
            return [lists(self._argument(held, selection), frames)]
        if held not in self._weighted:
            self._weighted[held] = weighted(self._argument(held, selection))
        self._frames.append(frames)  # values are cached by the identity of their frames
        return aggregated(each, self._weighted[held], frames, self._spec)

    def _argument(self, held: tuple[Variables, int], selection: Selection) -> pa.Array:
        if held not in self._values:
            found, places = self._found, selection.places
            rows = take_rows(self._partitions.rows, found.rows[places])
            rows_of = Mapped(rows, found.labels[places], found.numbers[found.owners[places]])
            self._values[held] = argument_values(self._spec, held[1], rows_of, self._evaluate)
        return self._values[held]


@dataclass(frozen=True, eq=False)
class Mapped:
    """Rows of matches, with the number of the variable that each is mapped to, and the number of its match."""

    rows: pa.RecordBatch
    labels: Indices
    numbers: Indices


def argument_values(spec: MatchSpec, argument: int, mapped: Mapped, evaluate: Evaluate) -> pa.Array:
    """Return the argument of an aggregate for rows of matches."""
    columns = []
    for each in spec.expressions[argument].inputs:
        match each:
            case Navigate():
                columns.append(mapped.rows.column(each.column))
            case Classify():
                columns.append(pc.take(pa.array(spec.variables, pa.string()), pa.array(mapped.labels)))
            case MatchNumber():
                columns.append(pa.array(mapped.numbers, pa.int64()))
            case PatternAggregate():
                raise TypeError("the argument of an aggregate can read only its own row")
    return evaluate(argument, batch(columns), mapped.rows.num_rows)


def weighted(values: pa.Array) -> Weighted:
    """Return values of an aggregate's argument, each with weight 1."""
    return Weighted(batch([values]), np.ones(len(values), dtype=np.int64))


def lists(values: pa.Array, frames: Frames) -> pa.Array:
    """Return the values of each range as a list."""
    sizes = frames.ends - frames.starts
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    if offsets[-1] >= np.iinfo(np.int32).max:
        raise OverflowError("the lists have too many values for one array")
    places = np.arange(offsets[-1]) + np.repeat(frames.starts - offsets[:-1], sizes)
    taken = pc.take(values, pa.array(places))
    kind = pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), taken, type=kind)


def too_long(spec: MatchSpec) -> EvaluationError:
    """Return the error for a match whose lists of rows would be too long."""
    return EvaluationError(
        f"a match of the pattern {spec.text} is too long for an aggregate over its rows",
        detail=f"for each row of the match, an aggregate reads all of them: more than {spec.work_max:,} values",
        hint="use ONE ROW PER MATCH, or bound the pattern's quantifiers",
        pattern=spec.text,
        reason="match-too-long",
    )


def aggregated(each: PatternAggregate, values: Weighted, frames: Frames, spec: MatchSpec) -> list[pa.Array]:
    """Return the buffer columns of an aggregate over ranges of rows."""

    def overflow(function: AggregateFunction, fits: Bools) -> None:
        if not fits.all():
            name = f"{function.kind} over the rows of a match of {spec.text}"
            raise ArithmeticOverflowError(
                f"{name} does not fit its type",
                hint="cast the argument to a wider type, such as DECIMAL(38, 0) or DOUBLE",
                function=function.kind,
                key={},
                pattern=spec.text,
            )

    assert each.kind != "list"
    return values.buffers(AggregateFunction(each.kind, (0,)), frames, overflow)
