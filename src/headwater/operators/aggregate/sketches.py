"""Sketches: what a group keeps of so many values that it cannot keep them, and how far off an answer from it may be.

A sketch is a value without a column: `Sketched` binds it to one, and to a filter. Sketches merge and never take back, so
that they stand over input that is append-only. All groups are worked on at once: what a group keeps are cells of Arrow
columns, NULL for a group without values, and the kernels see the rows of all cells behind each other, with the number
of the group of each (`owners`, ascending).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.zset.exact_sums import Ints

Lane = npt.NDArray[Any]


class Sketch(Protocol):
    """What is kept of the values of a group. Equal ones are equal as values: functions share what they have in common."""

    @property
    def repeatable(self) -> bool:
        """Whether its answers are the same however values were cut into parts."""
        ...

    @property
    def bound(self) -> str:
        """How far off an answer may be, in words."""
        ...

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the columns in which it is kept."""
        ...

    @property
    def result(self) -> pa.DataType:
        """The type of its answer."""
        ...

    def collect(self, values: pa.Array, weights: Ints, owners: Ints, count: int) -> list[pa.Array]:
        """What `count` groups keep of values, none of which is NULL, each there as often as its weight says."""
        ...

    def merge(self, states: Sequence[pa.Array], owners: Ints, count: int) -> list[pa.Array]:
        """What `count` groups keep of what was collected elsewhere, in any number of parts."""
        ...

    def finish(self, states: Sequence[pa.Array]) -> pa.Array:
        """The answer for each group."""
        ...


@dataclass(frozen=True)
class Sketched:
    """A sketch of a column of the input, of the rows where a filter holds, if there is one."""

    sketch: Sketch
    arg: int
    filter: int | None

    @property
    def retractable(self) -> bool:
        """It never is."""
        return False

    def kinds(self, schema: pa.Schema) -> tuple[pa.DataType, ...]:
        """The types of what it keeps."""
        del schema
        return self.sketch.state

    def collect(self, batch: GroupedRows) -> list[pa.Array]:
        """What a delta brings to each of its groups."""
        weights = batch.weights((self.arg,), self.filter)
        groups = batch.groups
        owners = np.repeat(np.arange(len(groups)), groups.sizes)
        column = batch.rows.column(self.arg)
        if groups.order is not None:
            column = column.take(pa.array(groups.order))
        if weights is None:
            return self.sketch.collect(column, np.ones(len(owners), dtype=np.int64), owners, len(groups))
        if (weights < 0).any():
            raise ValueError("a sketch does not take rows back")
        chosen = np.flatnonzero(weights)
        return self.sketch.collect(
            column.take(pa.array(chosen)), weights[chosen], owners[chosen], len(groups)
        )

    def better(self, one: Sequence[pa.Array], other: Sequence[pa.Array]) -> list[pa.Array]:
        """Both together, group by group."""
        count = len(one[0])
        order = np.arange(2 * count).reshape(2, count).T.ravel()
        taken = [pa.concat_arrays(both).take(pa.array(order)) for both in zip(one, other, strict=True)]
        return self.sketch.merge(taken, np.repeat(np.arange(count), 2), count)

    def pick(self, columns: Sequence[pa.Array], order: Ints, starts: Ints, sizes: Ints) -> list[pa.Array]:
        """All together, for each segment of rows in the given order."""
        taken = [column.take(pa.array(order)) for column in columns]
        return self.sketch.merge(taken, np.repeat(np.arange(len(starts)), sizes), len(starts))


def flattened(cells: pa.Array) -> tuple[Lane, Ints]:
    """The values of a column of lists of numbers, behind each other, and how many each list has; 0 for NULL."""
    sizes = np.asarray(cells.value_lengths().fill_null(0), dtype=np.int64)
    values: Lane = cells.flatten().to_numpy(zero_copy_only=False)
    return values, sizes


def listed(values: Lane, sizes: Ints, present: npt.NDArray[np.bool_]) -> pa.Array:
    """A column of lists, given their values and sizes; NULL where none is present."""
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    mask = None if present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=mask)
