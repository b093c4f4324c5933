"""The order of values and rows: Spark's comparison, extended to a total order so that equal inputs always sort the same way.

NaN is greatest, -0.0 = 0.0, strings and binaries compare by their bytes, false < true, structs field by field and lists
element by element (a list before longer lists that start with it), NULLs inside nested values first. Rows tied in the
declared order are ordered by all columns ascending with NULLs first, in column order; rows that still compare equal
without being identical (one has 0.0, the other -0.0) are ordered by their identity hash. Types that Spark cannot order
(maps, intervals of months and days) are ordered here by their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import (
    Hashes,
    Indices,
    Mask,
    doubles_of,
    elements_of,
    is_bytes,
    is_list,
    null_mask,
    plain,
    spread,
    words_of,
)
from headwater.operators.zset.delta import row_hashes, take_rows

_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class ColumnOrder:
    """One column of an ORDER BY."""

    column: int
    descending: bool
    nulls_first: bool

    def reversed(self) -> ColumnOrder:
        """Return the reverse order."""
        return ColumnOrder(self.column, not self.descending, not self.nulls_first)


def total_order(order: Sequence[ColumnOrder], columns: int) -> tuple[ColumnOrder, ...]:
    """Return the declared order followed by all columns."""
    return (*order, *(ColumnOrder(i, descending=False, nulls_first=True) for i in range(columns)))


@dataclass(frozen=True, eq=False)
class SortedRows:
    """A sort order of rows, with masks of where in it a new value of the declared order begins and where a new row begins."""

    order: Indices
    values: Mask
    rows: Mask


def sort_rows(
    rows: pa.RecordBatch, labels: Hashes | Indices, total: Sequence[ColumnOrder], declared: int
) -> SortedRows:
    """Sort rows by label, then by `total`; a column is read only for rows that all columns before it leave tied.

    Fast if the rows have long sorted stretches, as concatenated sorted runs do.
    """
    count = len(labels)
    order = _argsort(labels)
    ascending = labels[order]
    fresh = np.ones(count + 1, dtype=np.bool_)
    fresh[1:count] = ascending[1:] != ascending[:-1]
    values = fresh
    for at, by in enumerate(total):
        if at == declared:
            values = fresh.copy()
        tied = _tied(fresh)
        if not len(tied):
            break
        _refine(order, fresh, tied, order_words(pc.take(rows.column(by.column), pa.array(order[tied])), by))
    else:
        tied = _tied(fresh)
        if len(tied):
            _refine(order, fresh, tied, list(row_hashes(take_rows(rows, order[tied]))))
    return SortedRows(order, values[:count], fresh[:count])


def _tied(fresh: Mask) -> Indices:
    """Return the indices that are not a group of their own."""
    return np.flatnonzero(~(fresh[:-1] & fresh[1:]))


def _refine(order: Indices, fresh: Mask, tied: Indices, words: Sequence[Hashes]) -> None:
    """Sort the rows at the tied indices, within their groups, by their words, most significant word first."""
    at = np.arange(len(tied))  # index into `words` of the row at each tied index
    new = np.append(fresh[tied], True)
    pending = list(reversed(words))
    while pending:
        word = pending.pop()
        part = _tied(new)
        if not len(part):
            break
        # One 64-bit sort key: the group number and as many high bits of the word as fit. The other bits become one more word.
        labels = np.cumsum(new[part], dtype=np.uint64) - np.uint64(1)
        values = word[at[part]]
        lowest = values.min()
        values -= lowest
        width = int(values.max()).bit_length()
        beyond = max(width + int(labels[-1]).bit_length() - 64, 0)
        if beyond:
            pending.append((word - lowest) & np.uint64((1 << beyond) - 1))
            values >>= np.uint64(beyond)
        if labels[-1]:
            values |= labels << np.uint64(width - beyond)
        within = _argsort(values)
        at[part] = at[part[within]]
        values = values[within]
        new[part[1:]] |= values[1:] != values[:-1]
    order[tied] = order[tied[at]]
    fresh[tied] = new[:-1]


def _argsort(keys: Hashes | Indices) -> Indices:
    """Return the order that sorts keys; equal keys in any order."""
    falls = np.count_nonzero(keys[1:] < keys[:-1])
    if not falls:
        return np.arange(len(keys))
    # The stable sort detects ascending stretches and merges them; the default sort is faster where there are none.
    return np.argsort(keys, kind="stable" if falls * 4 < len(keys) else None)


def compare_rows(
    left: pa.RecordBatch,
    left_at: Indices,
    right: pa.RecordBatch,
    right_at: Indices,
    total: Sequence[ColumnOrder],
) -> npt.NDArray[np.int8]:
    """Return the sign of comparing each row of `left` with its partner in `right`; 0 if the rows are identical."""
    signs = np.zeros(len(left_at), dtype=np.int8)
    tied = np.arange(len(left_at))
    for by in total:
        mine = pc.take(left.column(by.column), pa.array(left_at[tied]))
        theirs = pc.take(right.column(by.column), pa.array(right_at[tied]))
        sign = _compare_values(mine, theirs, by)
        signs[tied] = sign
        tied = tied[sign == 0]
        if not len(tied):
            return signs
    ours = row_hashes(take_rows(left, left_at[tied]))
    others = row_hashes(take_rows(right, right_at[tied]))
    signs[tied] = _sign(ours, others, len(tied))
    return signs


def _compare_values(left: pa.Array, right: pa.Array, by: ColumnOrder) -> npt.NDArray[np.int8]:
    if is_bytes(left.type) and not left.null_count and not right.null_count:
        # Compared directly: ranks would require a sort.
        less = pc.less(left, right).to_numpy(zero_copy_only=False).astype(np.int8)
        more = pc.greater(left, right).to_numpy(zero_copy_only=False).astype(np.int8)
        signs: npt.NDArray[np.int8] = less - more if by.descending else more - less
        return signs
    words = order_words(pa.concat_arrays([left, right]), by)
    count = len(left)
    return _sign([word[:count] for word in words], [word[count:] for word in words], count)


def _sign(left: Sequence[Hashes], right: Sequence[Hashes], count: int) -> npt.NDArray[np.int8]:
    sign = np.zeros(count, dtype=np.int8)
    for mine, theirs in zip(left, right, strict=True):
        tied = sign == 0
        sign[tied & (mine > theirs)] = 1
        sign[tied & (mine < theirs)] = -1
    return sign


def order_words(column: pa.Array, by: ColumnOrder) -> list[Hashes]:
    """Return unsigned words, most significant first, that compare as the column's values do, within this column only."""
    column = plain(column)
    words = _ascending_words(column)
    nulls = null_mask(column)
    if nulls is not None:
        words = [np.where(nulls, np.uint64(0), word) for word in words]
    if by.descending:
        words = [~word for word in words]
    if nulls is not None:
        words = [np.where(nulls, np.uint64(0 if by.nulls_first else 2), np.uint64(1)), *words]
    return words


def _ascending_words(column: pa.Array) -> list[Hashes]:
    kind = column.type
    if is_bytes(kind):
        return [_byte_ranks(column)]
    if pa.types.is_floating(kind):
        bits = doubles_of(column).view(np.uint64)
        return [np.where(bits >= _SIGN, ~bits, bits | _SIGN)]
    if pa.types.is_struct(kind):
        inner = ColumnOrder(0, descending=False, nulls_first=True)
        return [word for i in range(kind.num_fields) for word in order_words(column.field(i), inner)]
    if is_list(kind):
        return [_list_ranks(column)]
    words = words_of(column)
    if words is None:
        raise TypeError(f"columns of type {kind} have no order")
    if kind == pa.month_day_nano_interval():
        days_months, nanoseconds = (word.view(np.uint64) for word in words)
        months_days = (days_months << np.uint64(32)) | (days_months >> np.uint64(32))
        return [months_days ^ np.uint64(0x8000000080000000), nanoseconds ^ _SIGN]
    highest, *lower = [word.view(np.uint64) for word in reversed(words)]
    return [highest if pa.types.is_unsigned_integer(kind) else highest ^ _SIGN, *lower]


def _byte_ranks(column: pa.Array) -> Hashes:
    ranks: Hashes = pc.rank(column, "ascending", tiebreaker="dense").to_numpy()
    return ranks


def _list_ranks(column: pa.Array) -> Hashes:
    """Return ranks of lists: the ranks of the elements, concatenated as big-endian bytes, compare as the lists do."""
    starts, lengths, values = elements_of(column)
    words = order_words(values, ColumnOrder(0, descending=False, nulls_first=True)) or [
        np.zeros(len(values), dtype=np.uint64)
    ]
    order = np.lexsort(words[::-1])
    new = np.zeros(len(values), dtype=np.bool_)
    for word in words:
        new[1:] |= word[order][1:] != word[order][:-1]
    ranks = np.empty(len(values), dtype=">u8")
    ranks[order] = np.cumsum(new)
    data = ranks[spread(starts, lengths)]
    offsets = np.concatenate(([0], np.cumsum(lengths))) * 8
    sequences = pa.Array.from_buffers(
        pa.large_binary(), len(column), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
    )
    return _byte_ranks(sequences)
