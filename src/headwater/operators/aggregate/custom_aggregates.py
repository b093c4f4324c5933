"""Aggregate functions whose code is not ours: what the aggregation kernel asks of them."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.zset.exact_sums import Bools


class CustomAggregate(Protocol):
    """A function with one state per group, of any type, that is kept by `applied` and shown by `finished`."""

    @property
    def state(self) -> pa.DataType:
        """The type of a group's state."""
        ...

    @property
    def result(self) -> pa.DataType:
        """The type of a group's value."""
        ...

    def zeros(self, count: int) -> pa.Array:
        """The states of groups without rows."""
        ...

    def applied(self, states: pa.Array, batch: GroupedRows, there: Bools) -> pa.Array:
        """The state of each group of a delta after it; `there` says which groups then have rows, others are zero."""
        ...

    def finished(self, states: pa.Array, there: Bools) -> pa.Array:
        """The value of each group that is there; NULL for the others."""
        ...
