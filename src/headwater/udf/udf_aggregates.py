"""User-defined aggregates in views: a state per group, updated by adding inserted rows and removing retracted ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.operators.aggregate.accumulators import GroupedRows
from headwater.operators.zset.exact_sums import Bools, Ints
from headwater.udf.udf_calls import plain
from headwater.udf.udf_definitions import FunctionDefinition
from headwater.udf.udf_registry import Functions
from headwater.udf.udf_states import AggregateCode, all_rows


@dataclass(frozen=True)
class UserAggregate:
    """A user-defined aggregate in an operator graph, called by the aggregation kernel
    (`custom_aggregates.CustomAggregate`)."""

    functions: Functions
    definition: FunctionDefinition
    args: tuple[int, ...]
    texts: tuple[str, ...]

    @property
    def state(self) -> pa.DataType:
        """Type of a group's state."""
        return self.definition.state

    @property
    def result(self) -> pa.DataType:
        """Type of a group's value."""
        return self.definition.returns

    def zeros(self, count: int) -> pa.Array:
        """Return the states of `count` groups without rows."""
        zero = self._code().zero
        return zero.take(pa.array(np.zeros(count, dtype=np.int64)))

    def applied(self, states: pa.Array, batch: GroupedRows, there: Bools) -> pa.Array:
        """Return the states after a change; those of groups that have no more rows are reset to zero."""
        code = self._code()
        groups = batch.groups
        columns = [batch.rows.column(i) for i in self.args]
        if groups.order is not None:
            places = pa.array(groups.order)
            columns = [c.take(places) for c in columns]
        weights = batch.weights((), None)
        if there.all() and (weights is None or (weights > 0).all()):
            owners = np.repeat(np.arange(len(groups)), groups.sizes)
            rows = columns
            if weights is not None:
                owners, places = np.repeat(owners, weights), np.repeat(np.arange(len(owners)), weights)
                rows = [c.take(pa.array(places)) for c in columns]
            if (all_at_once := code.added_by_group(states, owners, rows)) is not None:
                return all_at_once
        made = plain(states)
        zero = code.zero
        for number in range(len(groups)):
            if not there[number]:
                made[number] = plain(zero)[0]
                continue
            start, size = int(groups.starts[number]), int(groups.sizes[number])
            where = functools.partial(_key, groups.keys, number)
            rows = [c.slice(start, size) for c in columns]
            coming, going = _split(rows, None if weights is None else weights[start : start + size])
            state = made[number]
            if coming is not None:
                state = code.merged(state, code.added(coming, where, self.texts), where)
            if going is not None:
                state = code.removed(state, going, where, self.texts)
            made[number] = state
        return code.states(made)

    def finished(self, states: pa.Array, there: Bools) -> pa.Array:
        """Return the values of states; NULL for groups without rows."""
        code = self._code()
        if code.result is None and there.all():
            return states
        found = zip(plain(states), there, strict=True)
        return code.values([code.finished(state, all_rows) if present else None for state, present in found])

    def _code(self) -> AggregateCode:
        code: AggregateCode = self.functions.code(self.definition)
        return code


def _key(keys: pa.RecordBatch, number: int) -> dict[str, Any]:
    return {f.name: plain(keys.column(i).slice(number, 1))[0] for i, f in enumerate(keys.schema)}


def _split(rows: list[pa.Array], weights: Ints | None) -> tuple[list[pa.Array] | None, list[pa.Array] | None]:
    """Split rows into inserted and retracted rows, repeated by weight; an empty part is None."""
    if weights is None:
        return rows, None
    places = np.arange(len(weights))
    coming = np.repeat(places, np.maximum(weights, 0))
    going = np.repeat(places, np.maximum(-weights, 0))

    def taken(chosen: Ints) -> list[pa.Array] | None:
        return [c.take(pa.array(chosen)) for c in rows] if len(chosen) else None

    return taken(coming), taken(going)
