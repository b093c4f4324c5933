"""Sketches: bounded state of a group that approximates a function of all its values, with error bounds.

A sketch is not bound to a column: `Sketched` binds it to one, and to a filter. Sketches merge but do not retract, so
they require append-only input. All groups are processed at once: the state of a group is one cell in each of several
Arrow columns, NULL for a group without values, and the kernels see the concatenated elements of all cells, with the
group number of each (`owners`, ascending).
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
    """A sketch of the values of a group. Sketches compare by value, so that functions with equal sketches share state."""

    @property
    def repeatable(self) -> bool:
        """Whether results do not depend on how values were partitioned."""
        ...

    @property
    def bound(self) -> str:
        """Error bound of a result, in words."""
        ...

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """Types of the state columns."""
        ...

    @property
    def result(self) -> pa.DataType:
        """Type of the result."""
        ...

    def collect(self, values: pa.Array, weights: Ints, owners: Ints, count: int) -> list[pa.Array]:
        """Return the state of `count` groups over values, none of which is NULL, each occurring as often as its weight."""
        ...

    def merge(self, states: Sequence[pa.Array], owners: Ints, count: int) -> list[pa.Array]:
        """Merge states that were collected separately, in any number of parts, into the state of `count` groups."""
        ...

    def finish(self, states: Sequence[pa.Array]) -> pa.Array:
        """Return the result for each group."""
        ...


@dataclass(frozen=True)
class Sketched:
    """A sketch of an input column, over the rows where the filter holds, if there is a filter."""

    sketch: Sketch
    arg: int
    filter: int | None

    @property
    def retractable(self) -> bool:
        """Always false: sketches do not support retraction."""
        return False

    def kinds(self, schema: pa.Schema) -> tuple[pa.DataType, ...]:
        """Return the types of the state columns."""
        del schema
        return self.sketch.state

    def collect(self, batch: GroupedRows) -> list[pa.Array]:
        """Aggregate a delta by group, without the stored state."""
        weights = batch.weights((self.arg,), self.filter)
        groups = batch.groups
        owners = np.repeat(np.arange(len(groups)), groups.sizes)
        column = batch.rows.column(self.arg)
        if groups.order is not None:
            column = column.take(pa.array(groups.order))
        if weights is None:
            return self.sketch.collect(column, np.ones(len(owners), dtype=np.int64), owners, len(groups))
        if (weights < 0).any():
            raise ValueError("a sketch cannot retract rows")
        chosen = np.flatnonzero(weights)
        return self.sketch.collect(
            column.take(pa.array(chosen)), weights[chosen], owners[chosen], len(groups)
        )

    def better(self, one: Sequence[pa.Array], other: Sequence[pa.Array]) -> list[pa.Array]:
        """Merge two states, group by group."""
        count = len(one[0])
        order = np.arange(2 * count).reshape(2, count).T.ravel()
        taken = [pa.concat_arrays(both).take(pa.array(order)) for both in zip(one, other, strict=True)]
        return self.sketch.merge(taken, np.repeat(np.arange(count), 2), count)

    def pick(self, columns: Sequence[pa.Array], order: Ints, starts: Ints, sizes: Ints) -> list[pa.Array]:
        """Merge the states of each segment of rows in the given order."""
        taken = [column.take(pa.array(order)) for column in columns]
        return self.sketch.merge(taken, np.repeat(np.arange(len(starts)), sizes), len(starts))


def flattened(cells: pa.Array) -> tuple[Lane, Ints]:
    """Return the concatenated values of a column of lists of numbers, and the size of each list; 0 for NULL."""
    sizes = np.asarray(cells.value_lengths().fill_null(0), dtype=np.int64)
    values: Lane = cells.flatten().to_numpy(zero_copy_only=False)
    return values, sizes


def listed(values: Lane, sizes: Ints, present: npt.NDArray[np.bool_]) -> pa.Array:
    """Build a column of lists from concatenated values and sizes; NULL where `present` is false."""
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    mask = None if present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=mask)
