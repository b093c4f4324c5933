"""Input of pattern matching: rows sorted by partition and order, with the conditions that depend on single rows.

Such a condition is a *symbol*: it is evaluated once, for all rows. Conditions that depend on the rows matched so far
are evaluated in `backtracking`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Indices, Mask, null_mask
from headwater.operators.match_recognize.spec import Evaluate, MatchSpec, Navigate
from headwater.operators.zset.collation import sort_rows, total_order
from headwater.operators.zset.delta import take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import group
from headwater.operators.zset.numpy_columns import booleans, integers

Masks = npt.NDArray[Any]
"""Unsigned integers of any width: one bit for each variable whose symbols a row satisfies."""

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Partitions:
    """Sorted rows, and the half-open index ranges of the partitions in them.

    A partition may be incomplete: then matches are searched from its origin on, and are numbered after those before it.
    """

    rows: pa.RecordBatch
    starts: Indices
    ends: Indices
    origins: Indices
    """Index of the first row at which matches are searched, by partition."""
    matched: Indices
    """Number of matches before the origin, by partition."""
    cut: Mask
    """Mask of the partitions of which earlier rows are not included."""

    @staticmethod
    def whole(rows: pa.RecordBatch, starts: Indices, ends: Indices) -> Partitions:
        """Return complete partitions."""
        count = len(starts)
        return Partitions(
            rows, starts, ends, starts, np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
        )

    def __len__(self) -> int:
        return len(self.starts)

    def slice(self, part: slice) -> Partitions:
        """Return consecutive partitions and their rows."""
        if part == slice(0, len(self)):
            return self
        first, last = int(self.starts[part.start]), int(self.ends[part.stop - 1])
        return Partitions(
            self.rows.slice(first, last - first),
            self.starts[part] - first,
            self.ends[part] - first,
            self.origins[part] - first,
            self.matched[part],
            self.cut[part],
        )

    @cached_property
    def numbers(self) -> Indices:
        """Partition index of each row."""
        return np.repeat(np.arange(len(self.starts)), self.ends - self.starts)

    def column_at(self, column: int, places: Indices) -> pa.Array:
        """Return a column of the rows at some indices; NULL where an index is negative."""
        absent = places < 0
        if absent.any():
            return pc.take(self.rows.column(column), pa.array(np.where(absent, 0, places), mask=absent))
        return pc.take(self.rows.column(column), pa.array(places), boundscheck=False)

    def shifted(self, places: Indices, within: Indices, offset: int) -> Indices:
        """Shift row indices by an offset within their partition; -1 for indices outside the partition."""
        moved = places + offset
        outside = (places < 0) | (moved < self.starts[within]) | (moved >= self.ends[within])
        return np.where(outside, -1, moved)

    def times(self, column: int) -> Ints:
        """Return the times of rows, which ascend in each partition; a NULL is the minimum or maximum, depending on its
        position."""
        values = self.rows.column(column)
        times = integers(values)
        absent = null_mask(values)
        if absent is None:
            return times
        # A NULL at the start of any partition shows that NULLs sort first.
        firsts = absent[self.starts] & ~absent[self.ends - 1]
        return np.where(absent, _EARLIEST if firsts.any() else _LATEST, times)


def partitions_of(spec: MatchSpec, rows: pa.RecordBatch) -> Partitions:
    """Sort rows, in any order, of any number of partitions."""
    count = rows.num_rows
    if not count:
        none = np.zeros(0, dtype=np.int64)
        return Partitions.whole(rows, none, none)
    groups = group(rows, count, spec.partition)
    if groups.order is not None:
        rows = take_rows(rows, groups.order)
    total = total_order(spec.order, len(spec.schema))
    numbers = np.repeat(np.arange(len(groups)), groups.sizes)
    order = sort_rows(rows, numbers, total, len(spec.order)).order
    if (order[1:] < order[:-1]).any():
        rows = take_rows(rows, order)
    ends = np.cumsum(groups.sizes)
    return Partitions.whole(rows, ends - groups.sizes, ends)


def symbols(spec: MatchSpec, partitions: Partitions, evaluate: Evaluate) -> Masks:
    """Return the variables that each row can be mapped to according to its symbols, as bit masks."""
    count = partitions.rows.num_rows
    kinds: tuple[Any, ...] = (np.uint8, np.uint16, np.uint32, np.uint64)
    kind = next((k for k in kinds if np.iinfo(k).bits >= len(spec.variables)), None)
    if kind is None:
        raise EvaluationError(
            f"the pattern {spec.text} has too many variables",
            detail=f"it has {len(spec.variables)}, and the maximum is 64",
            hint="use one variable for rows that no measure distinguishes",
            pattern=spec.text,
            reason="too-many-variables",
        )
    masks = np.zeros(count, dtype=kind)
    known: dict[int, npt.NDArray[np.bool_]] = {}
    for number, name in enumerate(spec.variables):
        holds: npt.NDArray[np.bool_] | None = None
        for expression in spec.conditions.get(name, ()):
            if not spec.is_symbol(name, expression):
                continue
            if expression not in known:
                known[expression] = _evaluated(spec, partitions, expression, evaluate)
            holds = known[expression] if holds is None else holds & known[expression]
        if holds is None:
            masks |= kind(1 << number)
        else:
            masks |= holds.astype(kind) << kind(number)
    return masks


def _evaluated(
    spec: MatchSpec, partitions: Partitions, expression: int, evaluate: Evaluate
) -> npt.NDArray[np.bool_]:
    """Evaluate a symbol for all rows."""
    count = partitions.rows.num_rows
    places = np.arange(count)
    columns = []
    for each in spec.expressions[expression].inputs:
        assert isinstance(each, Navigate)
        if each.offset:
            moved = partitions.shifted(places, partitions.numbers, each.offset)
            columns.append(partitions.column_at(each.column, moved))
        else:
            columns.append(partitions.rows.column(each.column))
    return booleans(evaluate(expression, batch(columns), count))


def batch(columns: list[pa.Array]) -> pa.RecordBatch:
    """Return the input columns of an expression as a batch, in order."""
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])
