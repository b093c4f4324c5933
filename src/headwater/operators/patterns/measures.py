"""Evaluates expressions over matches: finds the rows that their inputs navigate to, for all matches at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ArithmeticOverflowError
from headwater.hashing import Indices
from headwater.operators.delta import take_rows
from headwater.operators.frames import Frames, Weighted
from headwater.operators.functions import Function
from headwater.operators.patterns.found import Found, Selection
from headwater.operators.patterns.partitions import Partitions, batch
from headwater.operators.patterns.spec import (
    Aggregate,
    Classify,
    Evaluate,
    Input,
    MatchNumber,
    MatchSpec,
    Navigate,
    Variables,
)
from headwater.operators.sums import Bools


@dataclass(frozen=True, eq=False)
class Points:
    """Where expressions are evaluated: in which match, and after how many of its rows."""

    matches: Indices
    upto: Indices


class Measuring:
    """Evaluates expressions over the matches that were found."""

    def __init__(self, spec: MatchSpec, partitions: Partitions, found: Found, evaluate: Evaluate) -> None:
        self._spec = spec
        self._partitions = partitions
        self._found = found
        self._evaluate = evaluate
        self._selections: dict[Variables, Selection] = {}
        self._weighted: dict[tuple[Variables, int], Weighted] = {}
        self._frames: list[Frames] = []

    def column(self, expression: int, points: Points) -> pa.Array:
        """An expression at some points."""
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
            case Aggregate():
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
        """Which of the rows mapped to some variables belong to each point."""
        found, selection = self._found, self._selection(variables)
        low = found.offsets[points.matches]
        high = low + (found.lengths[points.matches] if final else points.upto)
        return selection, selection.before[low], selection.before[high]

    def _places(self, each: Navigate | Classify, points: Points) -> Indices:
        """Where among the rows of all matches a navigation ends, before its offset; -1 if nowhere."""
        selection, low, high = self._range(each.variables, points, each.final)
        at = low + each.nth if each.side == "first" else high - 1 - each.nth
        there = (at >= low) & (at < high)
        if not len(selection.places):
            return np.full(len(at), -1, dtype=np.int64)
        return np.where(there, selection.places[np.where(there, at, 0)], -1)

    def _aggregate(self, each: Aggregate, points: Points) -> list[pa.Array]:
        selection, low, high = self._range(each.variables, points, each.final)
        if each.argument is None:
            return [pa.array(high - low)]
        held = (each.variables, each.argument)
        if held not in self._weighted:
            rows = take_rows(self._partitions.rows, self._found.rows[selection.places])
            self._weighted[held] = weighted(self._spec, each.argument, rows, self._evaluate)
        frames = Frames(low, high)
        self._frames.append(frames)  # the values know frames by their identity
        return aggregated(each, self._weighted[held], frames, self._spec)


def weighted(spec: MatchSpec, argument: int, rows: pa.RecordBatch, evaluate: Evaluate) -> Weighted:
    """The values of an aggregate's argument for rows, each of which counts once."""
    columns = []
    for each in spec.expressions[argument].inputs:
        if not isinstance(each, Navigate):
            raise TypeError("the argument of an aggregate looks at columns of a row alone")
        columns.append(rows.column(each.column))
    values = evaluate(argument, batch(columns), rows.num_rows)
    return Weighted(batch([values]), np.ones(rows.num_rows, dtype=np.int64))


def aggregated(each: Aggregate, values: Weighted, frames: Frames, spec: MatchSpec) -> list[pa.Array]:
    """The buffer columns of an aggregate over ranges of rows."""

    def overflow(function: Function, fits: Bools) -> None:
        if not fits.all():
            name = f"{function.kind} over the rows of a match of {spec.text}"
            raise ArithmeticOverflowError(
                f"{name} does not fit its type",
                hint="cast the argument to a wider type, such as DECIMAL(38, 0) or DOUBLE",
                function=function.kind,
                key={},
            )

    return values.buffers(Function(each.kind, (0,)), frames, overflow)
