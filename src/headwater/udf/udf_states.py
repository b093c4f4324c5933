"""The code of user-defined aggregates, called with the rows of a group. Has few imports, because Spark workers load it too.

An aggregate must obey these laws: `merge` is associative and commutative with `zero` as its neutral element, and
`add(state, rows)` equals `merge(state, add(zero, rows))`, however rows are split and ordered; `remove` undoes `add`.
Views are maintained by `merge` and `remove`; in batch, all rows of a group go through one `add`. So `verify` tests the
laws.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.operators.zset.exact_sums import Ints
from headwater.udf.udf_calls import Code, failure, fitted, plain

Where = Callable[[], Mapping[str, Any]]
"""Returns the key of the group of a call; evaluated only if the call fails."""


def all_rows() -> Mapping[str, Any]:
    """Return an empty key: the group is unknown, or there is only one."""
    return {}


@dataclass(frozen=True)
class AggregateCode:
    """The functions of an aggregate. `zero` is an array of one value of the state's type."""

    name: str
    state: pa.DataType
    returns: pa.DataType
    zero: pa.Array
    add: Code
    merge: Code
    remove: Code | None
    result: Code | None

    def added(self, columns: Sequence[pa.Array], where: Where, texts: Sequence[str]) -> Any:
        """Return the state of some rows alone."""
        return self._called("add", self.add, plain(self.zero)[0], columns, where, texts)

    def added_by_group(self, states: pa.Array, owners: Ints, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Add each row to the state of its owner in a single call of `add_by_group(states, owners, *columns)`.

        That is an optional method of the object whose method `add` is. Returns None if there is no such method, or if
        it fails: group by group, the caller then finds the failing one.
        """
        by_group: Code | None = getattr(getattr(self.add, "__self__", None), "add_by_group", None)
        if by_group is None:
            return None
        with contextlib.suppress(Exception):
            return by_group(states, owners, *columns)
        return None

    def merged(self, one: Any, other: Any, where: Where) -> Any:
        """Return the state of the rows of two states."""
        try:
            return self.merge(one, other)
        except Exception as error:
            raise self._failure("merge", where, {"state": one, "other": other}, error) from error

    def removed(self, state: Any, columns: Sequence[pa.Array], where: Where, texts: Sequence[str]) -> Any:
        """Return the state after removing rows."""
        assert self.remove is not None
        return self._called("remove", self.remove, state, columns, where, texts)

    def finished(self, state: Any, where: Where) -> Any:
        """Return the value of a state."""
        if self.result is None:
            return state
        try:
            return self.result(state)
        except Exception as error:
            raise self._failure("result", where, {"state": state}, error) from error

    def states(self, values: list[Any]) -> pa.Array:
        """Convert states to a column."""
        return self._column("the state", values, self.state)

    def values(self, values: list[Any]) -> pa.Array:
        """Convert results to a column."""
        return self._column("the result", values, self.returns)

    def _column(self, what: str, values: list[Any], kind: pa.DataType) -> pa.Array:
        try:
            return fitted(values, kind, len(values))
        except Exception as error:
            for value in values:
                try:
                    fitted([value], kind, 1)
                except Exception as single:
                    raise failure(f"function {self.name!r}", f"{what} of a group", {}, single) from single
            raise failure(f"function {self.name!r}", f"{what} of several groups", {}, error) from error

    def _called(
        self,
        part: str,
        code: Code,
        state: Any,
        columns: Sequence[pa.Array],
        where: Where,
        texts: Sequence[str],
    ) -> Any:
        try:
            return code(state, *columns)
        except Exception as error:
            for place in range(len(columns[0]) if len(columns[0]) > 1 else 0):
                row = [c.slice(place, 1) for c in columns]
                try:
                    code(plain(self.zero)[0] if part == "add" else state, *row)
                except Exception as single:
                    raise self._failure(part, where, _row(texts, row), single) from single
            shown = _row(texts, columns) if len(columns[0]) == 1 else {}
            raise self._failure(part, where, shown, error) from error

    def _failure(self, part: str, where: Where, row: Mapping[str, Any], error: Exception) -> Exception:
        group = where()
        key = ", ".join(f"{name} = {value!r}" for name, value in group.items())
        place = (f"the group {key}" if key else "all rows") + (", the row" if row else "")
        return failure(f"{part} of function {self.name!r}", place, row, error, more={"group": dict(group)})


def _row(texts: Sequence[str], row: Sequence[pa.Array]) -> dict[str, Any]:
    return {name: plain(c)[0] for name, c in zip(texts, row, strict=True)}


@dataclass(frozen=True)
class CollectedCalls:
    """An aggregate in batch, as a function of the list of its group's rows."""

    name: str
    code: AggregateCode

    def __call__(self, arguments: Sequence[pa.Array]) -> pa.Array:
        """Return the value of each list."""
        (lists,) = arguments
        rows = lists.values
        columns = [rows.field(i) for i in range(rows.type.num_fields)]
        texts = [rows.type.field(i).name for i in range(rows.type.num_fields)]
        offsets = lists.offsets.to_numpy()
        if self.code.result is None:
            owners = np.repeat(np.arange(len(lists)), np.diff(offsets))
            rows_of = [c.slice(int(offsets[0]), len(owners)) for c in columns]
            zeros = self.code.zero.take(pa.array(np.zeros(len(lists), dtype=np.int64)))
            if (all_at_once := self.code.added_by_group(zeros, owners, rows_of)) is not None:
                return all_at_once
        values = []
        for start, end in itertools.pairwise(offsets):
            given = [c.slice(int(start), int(end - start)) for c in columns]
            state = self.code.added(given, all_rows, texts) if end > start else plain(self.code.zero)[0]
            (settled,) = plain(self.code.states([state]))
            values.append(self.code.finished(settled, all_rows))
        return self.code.values(values)
