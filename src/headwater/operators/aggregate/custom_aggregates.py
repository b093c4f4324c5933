"""The interface of user-defined aggregate functions, as the aggregation kernel calls it."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.zset.exact_sums import Bools


class CustomAggregate(Protocol):
    """A function with one state per group, of any type: `applied` updates the state, `finished` computes the result."""

    @property
    def state(self) -> pa.DataType:
        """The type of a group's state."""
        ...

    @property
    def result(self) -> pa.DataType:
        """The type of a group's value."""
        ...

    def zeros(self, count: int) -> pa.Array:
        """Return the states of `count` groups without rows."""
        ...

    def applied(self, states: pa.Array, batch: GroupedRows, there: Bools) -> pa.Array:
        """Return the state of each group after a delta; `there` is a mask of the groups that then have rows, others are
        zero."""
        ...

    def finished(self, states: pa.Array, there: Bools) -> pa.Array:
        """Return the value of each group, or NULL if `there` is false for the group."""
        ...
