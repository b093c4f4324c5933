"""Z-sets as plain Python has them: rows are tuples, contents a Counter. The kernels are compared with these."""

import math
import struct
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from headwater.operators.zset import runs as runs_module
from headwater.operators.zset.delta import Delta, row_hashes
from headwater.operators.zset.ordered_runs import ColumnOrder
from headwater.operators.zset.runs import Run

Row = tuple[Any, ...]

PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
FLOATS = [0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf]
TEXTS = ["", "a", "ab", "b", "é", "\U0001f600", "\uffff", "a" * 9]

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 1, 2, 2**63 - 1]),
    pa.int8(): st.integers(-2, 2),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from(FLOATS),
    pa.float32(): st.sampled_from(FLOATS),
    pa.string(): st.sampled_from(TEXTS),
    pa.binary(): st.sampled_from([b"", b"\0", b"\0\0", b"\xff", b"a"]),
    pa.decimal128(38, 2): st.sampled_from(
        [Decimal(n).scaleb(-2) for n in (0, 1, -1, 10**30, -(10**30), 2**64)]
    ),
    pa.date32(): st.sampled_from([date(1969, 12, 31), date(1970, 1, 1), date(2026, 3, 1)]),
    pa.timestamp("us", tz="UTC"): st.sampled_from(
        [datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]
    ),
    pa.duration("us"): st.sampled_from([timedelta(0), timedelta(days=-1), timedelta(microseconds=1)]),
    pa.month_day_nano_interval(): st.sampled_from([(0, 0, 0), (1, 0, 0), (0, 30, 0), (0, 0, 1), (-1, 0, 5)]),
    pa.null(): st.none(),
    PAIR: st.fixed_dictionaries({"a": st.sampled_from([None, 0, 1]), "b": st.sampled_from([None, "", "x"])}),
    pa.list_(pa.float64()): st.lists(st.sampled_from([None, 0.0, -0.0, math.nan, 1.0]), max_size=3),
    pa.list_(PAIR): st.lists(st.sampled_from([None, {"a": 1, "b": None}, {"a": None, "b": "x"}]), max_size=2),
    pa.map_(pa.string(), pa.int64()): st.lists(
        st.tuples(st.sampled_from("xy"), st.sampled_from([None, 1])), max_size=2
    ),
}
KINDS = list(VALUES)
KEYS = [kind for kind in KINDS if not pa.types.is_map(kind)]


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Few values of a type, so that they meet again; NULL is one of them."""
    return st.one_of(st.none(), VALUES[kind])


def rows_of(kinds: Sequence[pa.DataType]) -> st.SearchStrategy[Row]:
    return st.tuples(*[values(kind) for kind in kinds])


def changes_of(kinds: Sequence[pa.DataType], max_size: int = 12) -> st.SearchStrategy[list[tuple[Row, int]]]:
    """Rows with weights that come and go at random, 0 among them."""
    return st.lists(st.tuples(rows_of(kinds), st.integers(-2, 3)), max_size=max_size)


def orders(columns: int) -> st.SearchStrategy[list[ColumnOrder]]:
    """Up to two columns of an ORDER BY."""
    one = st.builds(ColumnOrder, st.integers(0, columns - 1), st.booleans(), st.booleans())
    return st.lists(one, max_size=2)


def schema_of(kinds: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)])


def batch(rows: Iterable[Row], kinds: Sequence[pa.DataType]) -> pa.RecordBatch:
    """The rows as a batch that begins in the middle of its buffers, as a slice of a file does."""
    rows = list(rows)
    padded = [*rows[:1], *rows]
    arrays = [pa.array([row[i] for row in padded], kind) for i, kind in enumerate(kinds)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema_of(kinds))
    return whole.slice(len(padded) - len(rows))


def delta(changes: Sequence[tuple[Row, int]], kinds: Sequence[pa.DataType]) -> Delta:
    return Delta(batch([row for row, _ in changes], kinds), np.array([w for _, w in changes], dtype=np.int64))


def tuples(rows: pa.RecordBatch) -> list[Row]:
    columns = [column.to_pylist() for column in rows.columns]
    return list(zip(*columns, strict=True))


def identity(value: Any) -> Hashable:
    """What two values share if and only if they are the same in a row."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, dict):
        return tuple(identity(item) for _, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(identity(item) for item in value)
    return value


def key_identity(value: Any) -> Hashable:
    """The same for keys: there is one zero."""
    if isinstance(value, float):
        return identity(value + 0.0)
    if isinstance(value, dict):
        return tuple(key_identity(item) for _, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(key_identity(item) for item in value)
    return value


def ordinal(value: Any) -> Any:
    """What compares as Spark compares values, ascending with NULLs first."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, dict):
        return (1, tuple(ordinal(item) for _, item in sorted(value.items())))
    if isinstance(value, list | tuple):
        return (1, tuple(ordinal(item) for item in value))
    return (1, value)


def compare_declared(one: Row, two: Row, order: Sequence[ColumnOrder]) -> int:
    for by in order:
        a, b = one[by.column], two[by.column]
        if (a is None) != (b is None):
            return -1 if (a is None) == by.nulls_first else 1
        sign = (ordinal(a) > ordinal(b)) - (ordinal(a) < ordinal(b))
        if sign:
            return -sign if by.descending else sign
    return 0


def in_order(rows: Iterable[Row], order: Sequence[ColumnOrder], kinds: Sequence[pa.DataType]) -> list[Row]:
    """Rows by the declared order, then by all columns, then (where but zeros differ) as the kernels decide."""

    def compare(one: Row, two: Row) -> int:
        declared = compare_declared(one, two, order)
        if declared:
            return declared
        whole = [ordinal(row) for row in (one, two)]
        if whole[0] == whole[1]:
            high, low = row_hashes(batch([one, two], kinds))
            whole = [(int(high[i]), int(low[i])) for i in range(2)]
        return (whole[0] > whole[1]) - (whole[0] < whole[1])

    return sorted(rows, key=cmp_to_key(compare))


def present(changes: Iterable[tuple[Row, int]]) -> list[tuple[Row, int]]:
    """The rows that changes leave, each once, with their weight."""
    weights = count(changes)
    rows = {identity(row): row for row, _ in changes}
    return [(rows[row], weight) for row, weight in weights.items() if weight > 0]


def count(changes: Iterable[tuple[Row, int]]) -> Counter[Hashable]:
    """The consolidated contents of changes, by identity."""
    counter: Counter[Hashable] = Counter()
    for row, weight in changes:
        counter[identity(row)] += weight
    return Counter({row: weight for row, weight in counter.items() if weight})


def counted(changes: Delta | Run) -> Counter[Hashable]:
    return count(zip(tuples(changes.rows), changes.weights.tolist(), strict=True))


def is_consolidated(changes: Delta | Run) -> bool:
    rows = [identity(row) for row in tuples(changes.rows)]
    return len(set(rows)) == len(rows) and bool((changes.weights != 0).all())


@pytest.fixture(params=["good", "bad"])
def hashing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tests that ask for it run twice: with the hash that is, and with one of three values only."""
    if request.param == "bad":
        good = runs_module.hash_rows

        def bad(columns: Sequence[pa.Array], rows: int, seed: int = 0) -> npt.NDArray[np.uint64]:
            return good(columns, rows, seed) % np.uint64(3)

        monkeypatch.setattr(runs_module, "hash_rows", bad)
    return str(request.param)
