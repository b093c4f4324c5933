"""Rows grouped by key, for operators that access their state once per group."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, equal_rows, identities, is_bytes, spread, words_of
from headwater.operators.zset.delta import take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.numpy_columns import normal
from headwater.operators.zset.radix_sort import stable_order
from headwater.operators.zset.runs import key_hashes


@dataclass(frozen=True, eq=False)
class KeyGroups:
    """Rows sorted by the hash of their key, and the index in that order at which each group starts.

    `order` is None if the rows are already in order. `keys` has one row for each group, in the form that SQL shows for
    grouping keys. `hashes` has the key hash of each group, ascending.
    """

    order: Ints | None
    starts: Ints
    sizes: Ints
    keys: pa.RecordBatch
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.starts)


def group(rows: pa.RecordBatch, count: int, key: Sequence[int]) -> KeyGroups:
    """Group `count` > 0 rows by their key columns; without key columns all rows are one group."""
    if not key:
        # A batch without columns has no row count: use the constant hash of the empty key, computed from any one row.
        constant = key_hashes(_ANY_ROW, ())
        keys = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
        return KeyGroups(None, np.zeros(1, dtype=np.int64), np.array([count]), keys, constant)
    columns = [rows.column(i) for i in key]
    if any(
        pa.types.is_nested(column.type) for column in columns
    ):  # the cache key does not cover child offsets
        return _grouped(rows.select(list(key)), count)
    known = _KNOWN.get(columns)
    if known is None:
        known = _grouped(rows.select(list(key)), count)
        _KNOWN.put(columns, known, count)
    return known


def _grouped(keys: pa.RecordBatch, count: int) -> KeyGroups:
    if count >= MANY_ROWS:
        if (starts := _stretches(keys.columns)) is not None:
            return _by_stretches(_sorted(take_rows(keys, starts), len(starts)), starts, count)
        if keys.num_columns == 1 and (values := _few_values(keys.column(0))) is not None:
            dictionary = pa.RecordBatch.from_arrays([values.dictionary], schema=keys.schema)
            return _by_values(_sorted(dictionary, len(values.dictionary)), values)
    return _sorted(keys, count)


def _stretches(columns: Sequence[pa.Array]) -> Indices | None:
    """Return the indices at which the key changes from the previous row, if most rows repeat it, as with times; else None."""
    words: list[Any] = []
    for column in columns:
        parts = column.flatten() if pa.types.is_struct(column.type) else [column]
        for part in (column, *parts):
            if part.null_count:
                return None
        for part in parts:
            if not _is_of_words(part.type):
                return None
            words += words_of(part) or ()
    for count in (
        _SAMPLE_ROWS,
        len(columns[0]),
    ):  # the first rows already rule out most keys without long stretches
        another = np.zeros(count - 1, dtype=np.bool_)
        for word in words:
            another |= word[1:count] != word[: count - 1]
        if np.count_nonzero(another) > count // _STRETCH_ROWS:
            return None
    return np.concatenate((np.zeros(1, dtype=np.int64), np.flatnonzero(another) + 1))


def _by_stretches(firsts: KeyGroups, starts: Indices, count: int) -> KeyGroups:
    """Return the groups of all rows, given the groups of the first rows of all stretches."""
    assert firsts.order is not None
    lengths = np.diff(starts, append=count)[firsts.order]
    order = spread(starts[firsts.order], lengths)
    sizes = np.add.reduceat(lengths, firsts.starts)
    return KeyGroups(order, np.cumsum(sizes) - sizes, sizes, firsts.keys, firsts.hashes)


def _few_values(column: pa.Array) -> pa.DictionaryArray | None:
    """Dictionary-encode a column with few distinct values; None for other columns and types not compared bit by bit."""
    if column.null_count or not (is_bytes(column.type) or _is_of_words(column.type)):
        return None
    sample = column.take(pa.array(np.linspace(0, len(column) - 1, _SAMPLE_ROWS).astype(np.int64)))
    if len(sample.unique()) > _SAMPLE_ROWS // 2:
        return None
    values = column.dictionary_encode()
    return values if len(values.dictionary) <= _VALUES_MAX else None


def _by_values(kinds: KeyGroups, values: pa.DictionaryArray) -> KeyGroups:
    """Return the groups of all rows, given the groups of the distinct values, each of which is its own group."""
    assert kinds.order is not None
    places = np.empty(len(kinds), dtype=np.uint16)
    places[kinds.order] = np.arange(len(kinds))
    codes = places[values.indices.to_numpy()]
    sizes = np.bincount(codes, minlength=len(kinds))
    order = np.argsort(codes, kind="stable")  # numpy sorts 16-bit numbers with a radix sort
    return KeyGroups(order, np.cumsum(sizes) - sizes, sizes, kinds.keys, kinds.hashes)


def _is_of_words(kind: pa.DataType) -> bool:
    """Whether values of a type are fixed-width numbers that are equal exactly if their bits are equal."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_timestamp(kind)
        or types.is_date(kind)
        or types.is_decimal(kind)
    )


def _sorted(keys: pa.RecordBatch, count: int) -> KeyGroups:
    hashes = key_hashes(keys, range(keys.num_columns))
    order = stable_order(hashes)
    ascending = hashes[order]
    same = ascending[1:] == ascending[:-1]
    if same.any():
        columns = take_rows(keys, order).columns
        upper, lower = [c.slice(1) for c in columns], [c.slice(0, count - 1) for c in columns]
        if (same & ~equal_rows(upper, lower, count - 1)).any():
            high, low = identities(keys.columns, count, exact=False)
            order = np.lexsort((low, high, hashes))
            high, low, ascending = high[order], low[order], hashes[order]
            same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    starts = np.flatnonzero(np.concatenate(([True], ~same)))
    firsts = take_rows(keys, order[starts])
    keys = pa.RecordBatch.from_arrays([normal(column) for column in firsts.columns], schema=keys.schema)
    return KeyGroups(order, starts, np.diff(starts, append=count), keys, ascending[starts])


class _Known:
    """Cache of the groups of recent columns: views that group the same change by the same key share the work.

    The cache key is the memory addresses of the column buffers. An entry references its columns, so that their memory
    is not reused while the entry exists.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: OrderedDict[tuple[Any, ...], tuple[Sequence[pa.Array], KeyGroups, int]] = OrderedDict()
        self._rows = 0

    def get(self, columns: Sequence[pa.Array]) -> KeyGroups | None:
        with self._guard:
            found = self._held.get(_where(columns))
        return None if found is None else found[1]

    def put(self, columns: Sequence[pa.Array], groups: KeyGroups, count: int) -> None:
        if count > _HELD_ROWS_MAX:
            return
        with self._guard:
            self._held[_where(columns)] = (columns, groups, count)
            self._rows = sum(rows for _, _, rows in self._held.values())
            while self._rows > _HELD_ROWS_MAX or len(self._held) > _HELD_MAX:
                self._rows -= self._held.popitem(last=False)[1][2]


def _where(columns: Sequence[pa.Array]) -> tuple[Any, ...]:
    return tuple(
        (
            column.type,
            column.offset,
            len(column),
            *(b.address if b is not None else 0 for b in column.buffers()),
        )
        for column in columns
    )


MANY_ROWS = 1 << 13
"""Minimum number of rows for which inspecting the distribution of the keys pays off."""
_SAMPLE_ROWS = 1 << 10
_STRETCH_ROWS = 8
"""Minimum average number of rows per stretch of equal adjacent keys for `_stretches` to apply."""
_VALUES_MAX = 1 << 16
_HELD_MAX = 8
_HELD_ROWS_MAX = 1_000_000
_KNOWN = _Known()


_ANY_ROW = pa.RecordBatch.from_arrays([pa.array([0])], names=["any"])
