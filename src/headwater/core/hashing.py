"""The stable 64-bit hash of key columns, which decides the partition of a record and never changes.

Definition. Each column gives a 64-bit lane per row; a row's hash is `h = seed; for lane in lanes: h = mix(h ^ lane)` followed
by `mix(h + number of columns)`, where `mix` is the finaliser of splitmix64. Lanes: NULL is a constant; booleans, integers,
dates and timestamps are their value as int64 (so that widening a column moves no row); floats are the bits of the double, with
-0.0 as 0.0 and one NaN; decimals are the low and high words of the 128-bit value; strings and binaries fold their bytes, eight
at a time, little endian, zero padded, then the length; a struct is the hash of its fields; a list (a map is one of its entries)
is `mix(s ^ length)` with s the sum of `mix(lane ^ mix(place))` over its elements. Keys equal as SQL compares them get equal
hashes; the caller must verify the reverse, with `equal_rows`.

`sum_of_rows` adds up hashes of rows, in any order, for a comparison with the same rows later; the sum is stored, and its
definition never changes. A row's hash is a last `mix` of the sum of its words times odd numbers, one for each position of a
word in the row; the words of a value are as above, except that -0.0 is not 0.0, and that a string is its length and its bytes.

`identities` gives 128 bits that identify a whole row if no comparison follows. Unlike the hashes above, their definition may
change, so they are stored only in files that can be rebuilt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.parallel import side_by_side

_Made = TypeVar("_Made")
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_SEED = 0x243F6A8885A308D3
_IDENTITY_SEEDS = np.array([[0x13198A2E03707344], [0xA4093822299F31D0]], dtype=np.uint64)
_LOW_BYTES = np.array([256**n - 1 for n in range(9)], dtype=np.uint64)
_BLOCK_ROWS = 1 << 15
"""Rows hashed at a time, so that intermediate arrays stay in the processor's cache."""
_LONG_BYTES = 512
"""Longer values are hashed one by one, so that one huge string does not cost a vector step per eight bytes."""


def hash_rows(columns: Sequence[pa.Array], rows: int, seed: int = 0) -> Hashes:
    """Return the hash of each row over its key columns; other seeds give independent hashes."""
    if rows > _BLOCK_ROWS:
        return np.concatenate(_by_blocks(lambda block, count: hash_rows(block, count, seed), columns, rows))
    hashes = np.full(rows, np.uint64((_SEED + seed * 0x9E3779B97F4A7C15) & (2**64 - 1)), dtype=np.uint64)
    for column in columns:
        hashes = _mix(hashes ^ _lanes(column))
    return _mix(hashes + np.uint64(len(columns)))


def identities(columns: Sequence[pa.Array], rows: int, *, exact: bool) -> tuple[Hashes, Hashes]:
    """Return 128 bits for each row that identify its values: NULL equals NULL, and all NaNs are equal.

    With `exact`, -0.0 differs from 0.0, as for rows; without it they are equal, as for keys.
    """
    if rows > _BLOCK_ROWS:
        parts = _by_blocks(lambda block, count: identities(block, count, exact=exact), columns, rows)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    state = np.repeat(_IDENTITY_SEEDS, rows, axis=1)
    for column in columns:
        state = _absorbed(state, column, exact)
    return state[0], state[1]


def sum_of_rows(columns: Sequence[pa.Array], rows: int) -> int:
    """Return 64 bits that identify a multiset of rows: the sum, over the rows, of a hash of each."""
    if rows > _BLOCK_ROWS:
        return sum(_by_blocks(sum_of_rows, columns, rows)) % 2**64
    lanes = np.zeros(rows, dtype=np.uint64)
    for place, column in enumerate(columns):
        _add_column(lanes, plain(column), place)
    return int(_mix(lanes).sum(dtype=np.uint64))


def _add_column(lanes: Hashes, column: pa.Array, place: int) -> None:
    factors = _factors(place)
    added: Hashes
    if is_bytes(column.type):
        added = _bytes_products(column, factors)
    elif pa.types.is_floating(column.type):
        added = doubles_of(column, exact=True).view(np.uint64) * factors[0]
    elif (words := words_of(column)) is not None:
        added = words[0].view(np.uint64) * factors[0]
        for word, factor in zip(words[1:], factors[1:], strict=False):
            added += word.view(np.uint64) * factor
    else:
        low, high = identities([column], len(column), exact=True)
        added = low * factors[0] + high * factors[1]
    if (nulls := null_mask(column)) is not None:
        added[nulls] = factors[-1]
    lanes += added


def _bytes_products(column: pa.Array, factors: Hashes) -> Hashes:
    """Return, for each value, the sum of its words times the factors, and of its length times the first."""
    data, starts, lengths = _bytes_of(column)
    added: Hashes = lengths.view(np.uint64) * factors[0]
    longest = int(lengths.max(initial=0))
    words = np.ndarray(shape=(len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    for number in range(1, (min(longest, _LONG_BYTES) + 7) // 8 + 1):
        rows = np.flatnonzero((lengths > 8 * number - 8) & (lengths <= _LONG_BYTES))
        if len(rows) == len(added):  # every value has this word: no selection is needed
            left = lengths - (8 * number - 8)
            added += (words[starts + (8 * number - 8)] & _LOW_BYTES[np.minimum(left, 8)]) * factors[number]
            continue
        left = lengths[rows] - (8 * number - 8)
        word = words[starts[rows] + (8 * number - 8)] & _LOW_BYTES[np.minimum(left, 8)]
        added[rows] += word * factors[number]
    if longest > _LONG_BYTES:
        rows = np.flatnonzero(lengths > _LONG_BYTES)
        values = (data[starts[row] : starts[row] + lengths[row]].tobytes() for row in rows)
        digests = b"".join(hashlib.blake2b(value, digest_size=8).digest() for value in values)
        added[rows] += np.frombuffer(digests, dtype="<u8") * factors[1]
    return added


@cache
def _factors(place: int) -> Hashes:
    """Return the odd factors of a column: for the words of a value, and the last one for NULL."""
    count = _LONG_BYTES // 8 + 2
    factors: Hashes = _mix(np.arange(place * count, (place + 1) * count, dtype=np.uint64)) | np.uint64(1)
    return factors


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array], rows: int) -> Mask:
    """Return whether row i of `left` and row i of `right` are the same key: NULL = NULL, NaN = NaN, -0.0 = 0.0."""
    equal = np.ones(rows, dtype=np.bool_)
    for mine, theirs in zip(left, right, strict=True):
        equal &= _equal(mine, theirs)
    return equal


def partition_of(hashes: Hashes, partitions: int) -> npt.NDArray[np.int64]:
    """Return the partition of each hash: equal ranges of its upper 32 bits."""
    return (((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)).astype(np.int64)


def spread(starts: Indices, lengths: Indices) -> Indices:
    """Return the indices of the ranges [start, start + length), one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + lengths, lengths) + np.arange(total, dtype=np.int64)


def null_mask(column: pa.Array) -> Mask | None:
    """Return the mask of NULLs in a column, or None if there are none."""
    if not column.null_count:
        return None
    if pa.types.is_null(column.type):
        return np.ones(len(column), dtype=np.bool_)
    return ~_bits(column.buffers()[0], column.offset, len(column))


def words_of(column: pa.Array) -> list[npt.NDArray[np.int64]] | None:
    """Return the values of a fixed-width column that is not floating, as int64 words, the lowest first; None for other types.

    Words at NULLs are undefined.
    """
    kind = column.type
    if pa.types.is_boolean(kind):
        return [_bits(column.buffers()[1], column.offset, len(column)).astype(np.int64)]
    if pa.types.is_null(kind):
        return [np.zeros(len(column), dtype=np.int64)]
    if pa.types.is_nested(kind) or is_bytes(kind) or pa.types.is_floating(kind):
        return None
    width: int = kind.bit_width
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    if width <= 64:
        values = _data(column, f"<{sign}{width // 8}")
        return [values.astype(np.int64, copy=False)]
    count = width // 64
    if not len(column):
        return [np.zeros(0, dtype=np.int64)] * count
    words = np.frombuffer(column.buffers()[1], dtype="<i8")
    words = words[column.offset * count : (column.offset + len(column)) * count]
    return [words[i::count] for i in range(count)]


def doubles_of(column: pa.Array, *, exact: bool = False) -> npt.NDArray[np.float64]:
    """Return the values of a floating column as doubles with one NaN and, unless `exact`, one zero."""
    values = _data(column, f"<f{column.type.bit_width // 8}").astype(np.float64)
    if not exact:
        values += 0.0
    values[np.isnan(values)] = np.nan
    return values


def elements_of(column: pa.Array) -> tuple[Indices, Indices, pa.Array]:
    """Return the starts and lengths of the lists (or maps) of a column, and the elements that they refer to."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        starts = np.arange(column.offset, column.offset + len(column), dtype=np.int64) * size
        return starts, np.full(len(column), size, dtype=np.int64), column.values
    offsets = column.offsets.to_numpy().astype(np.int64)
    if not len(offsets):
        offsets = np.zeros(1, dtype=np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if (nulls := null_mask(column)) is not None:
        lengths = np.where(nulls, 0, lengths)
    base = int(offsets[0])
    return starts - base, lengths, column.values.slice(base, int(offsets[-1]) - base)


def plain(column: pa.Array) -> pa.Array:
    """Return the same values in a layout that this module reads: no dictionaries, no views, no fixed-size binaries."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return column.cast(pa.binary())
    if kind == pa.string_view():
        return column.cast(pa.string())
    return column


def _by_blocks(
    act: Callable[[list[pa.Array], int], _Made], columns: Sequence[pa.Array], rows: int
) -> list[_Made]:
    """Return the results of `act` for each block of rows."""

    def one(start: int) -> _Made:
        count = min(_BLOCK_ROWS, rows - start)
        return act([column.slice(start, count) for column in columns], count)

    return side_by_side(one, range(0, rows, _BLOCK_ROWS), size=rows * 8 * len(columns))


def _mix(h: Hashes) -> Hashes:
    h = h + np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are strings or binaries, stored as offsets and bytes."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether values are sequences of elements; a map is one of its entries."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_map(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def _unreadable(kind: pa.DataType) -> TypeError:
    return TypeError(f"columns of type {kind} are not hashed")


def _bits(buffer: pa.Buffer, offset: int, count: int) -> Mask:
    if not count:
        return np.zeros(0, dtype=np.bool_)
    packed = np.frombuffer(buffer, dtype=np.uint8)[offset // 8 : (offset + count + 7) // 8]
    first = offset % 8
    return np.unpackbits(packed, bitorder="little")[first : first + count].view(np.bool_)


def _data(column: pa.Array, dtype: str) -> npt.NDArray[np.generic]:
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column), dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype)[column.offset : column.offset + len(column)]


def _fields(column: pa.Array) -> list[pa.Array]:
    return [column.field(i) for i in range(column.type.num_fields)]


def _lanes(column: pa.Array) -> Hashes:
    column = plain(column)
    kind = column.type
    lanes: Hashes
    if is_bytes(kind):
        lanes = _bytes_lanes(column)
    elif pa.types.is_floating(kind):
        lanes = doubles_of(column).view(np.uint64)
    elif pa.types.is_struct(kind):
        lanes = hash_rows(_fields(column), len(column))
    elif is_list(kind):
        starts, lengths, values = elements_of(column)
        places = spread(starts, lengths)
        ranks = spread(np.zeros_like(starts), lengths).view(np.uint64)
        lanes = _mix(_sums(_mix(_lanes(values)[places] ^ _mix(ranks)), lengths) ^ lengths.view(np.uint64))
    elif (words := words_of(column)) is not None:
        lanes = words[-1].view(np.uint64)
        for word in words[:-1]:
            lanes = _mix(word.view(np.uint64)) ^ lanes
    else:
        raise _unreadable(kind)
    if (nulls := null_mask(column)) is not None:
        lanes = np.where(nulls, _NULL, lanes)
    return lanes


def _absorbed(state: Hashes, column: pa.Array, exact: bool) -> Hashes:
    """Return the state of each row after its value in one more column; both halves, as two rows of an array."""
    column = plain(column)
    kind = column.type
    if is_bytes(kind):
        after = _absorbed_bytes(state, column)
    elif pa.types.is_floating(kind):
        after = _mix(state ^ doubles_of(column, exact=exact).view(np.uint64))
    elif pa.types.is_struct(kind):
        after = _mix(state ^ np.uint64(1))  # a struct of NULLs is not NULL
        for field in _fields(column):
            after = _absorbed(after, field, exact)
    elif is_list(kind):
        starts, lengths, values = elements_of(column)
        ranks = spread(np.zeros_like(starts), lengths).view(np.uint64)
        inner = _absorbed(np.repeat(_IDENTITY_SEEDS, len(values), axis=1), values, exact)
        inner = _mix(inner[:, spread(starts, lengths)] ^ _mix(ranks))
        after = _mix(_mix(state ^ lengths.view(np.uint64)) ^ _sums(inner, lengths))
    elif (words := words_of(column)) is not None:
        after = state
        for word in words:
            after = _mix(after ^ word.view(np.uint64))
    else:
        raise _unreadable(kind)
    if (nulls := null_mask(column)) is not None:
        after = np.where(nulls, _mix(state + _NULL), after)
    return after


def _sums(elements: Hashes, lengths: Indices) -> Hashes:
    """Return the sum of each list's elements, which are adjacent along the last axis."""
    sums = np.zeros((*elements.shape[:-1], elements.shape[-1] + 1), dtype=np.uint64)
    np.cumsum(elements, axis=-1, out=sums[..., 1:])
    ends = np.cumsum(lengths)
    total: Hashes = sums[..., ends] - sums[..., ends - lengths]
    return total


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Indices, Indices]:
    """Return the bytes of a column followed by eight zeros, and the starts and lengths of its values in them."""
    _, offsets_buffer, data_buffer = column.buffers()
    if offsets_buffer is None or not len(column):
        nothing = np.zeros(len(column), dtype=np.int64)
        return np.zeros(8, dtype=np.uint8), nothing, nothing
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64 if wide else np.int32)
    bounds: Indices = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    base, end = int(bounds[0]), int(bounds[-1])
    data = np.zeros(end - base + 8, dtype=np.uint8)
    if end > base:
        data[:-8] = np.frombuffer(data_buffer, dtype=np.uint8)[base:end]
    return data, bounds[:-1] - base, np.diff(bounds)


def _bytes_lanes(column: pa.Array) -> Hashes:
    data, starts, lengths = _bytes_of(column)
    lanes = np.zeros(len(column), dtype=np.uint64)
    if len(data) > 8:
        _fold_words(lanes, data, starts, lengths)
        for row in np.flatnonzero(lengths > _LONG_BYTES):
            value = data[starts[row] : starts[row] + lengths[row]].tobytes()
            lanes[row] = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
    return _mix(lanes ^ lengths.view(np.uint64))


def _absorbed_bytes(state: Hashes, column: pa.Array) -> Hashes:
    data, starts, lengths = _bytes_of(column)
    after = _mix(state ^ lengths.view(np.uint64))
    if len(data) > 8:
        _fold_words(after, data, starts, lengths)
        for row in np.flatnonzero(lengths > _LONG_BYTES):
            value = data[starts[row] : starts[row] + lengths[row]].tobytes()
            digest = hashlib.blake2b(value, digest_size=16).digest()
            after[:, row] = _mix(after[:, row] ^ np.frombuffer(digest, dtype="<u8"))
    return after


def _fold_words(lanes: Hashes, data: npt.NDArray[np.uint8], starts: Indices, lengths: Indices) -> None:
    """Fold the bytes of each short value into its lanes, one 8-byte word of every value per step."""
    words = np.ndarray(shape=(len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    rows = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
    folded, at, left = lanes[..., rows], starts[rows], lengths[rows]
    while len(rows):
        folded = _mix(folded ^ (words[at] & _LOW_BYTES[np.minimum(left, 8)]))
        longer = left > 8
        if longer.all():
            at, left = at + 8, left - 8
            continue
        ended = ~longer
        lanes[..., rows[ended]] = folded[..., ended]
        rows, folded, at, left = rows[longer], folded[..., longer], at[longer] + 8, left[longer] - 8


def _equal(left: pa.Array, right: pa.Array) -> Mask:
    left, right = plain(left), plain(right)
    kind = left.type
    equal: Mask
    if is_bytes(kind):
        equal = pc.equal(left, right).fill_null(False).to_numpy(zero_copy_only=False)
    elif pa.types.is_floating(kind):
        equal = doubles_of(left).view(np.uint64) == doubles_of(right).view(np.uint64)
    elif pa.types.is_struct(kind):
        equal = equal_rows(_fields(left), _fields(right), len(left))
    elif is_list(kind):
        equal = _equal_lists(left, right)
    else:
        mine, theirs = words_of(left), words_of(right)
        if mine is None or theirs is None:
            raise _unreadable(kind)
        equal = np.ones(len(left), dtype=np.bool_)
        for a, b in zip(mine, theirs, strict=True):
            equal &= a == b
    left_nulls, right_nulls = null_mask(left), null_mask(right)
    if left_nulls is None and right_nulls is None:
        return equal
    nothing = np.zeros(len(left), dtype=np.bool_)
    left_nulls = nothing if left_nulls is None else left_nulls
    right_nulls = nothing if right_nulls is None else right_nulls
    return (equal & ~left_nulls & ~right_nulls) | (left_nulls & right_nulls)


def _equal_lists(left: pa.Array, right: pa.Array) -> Mask:
    left_starts, left_lengths, left_values = elements_of(left)
    right_starts, right_lengths, right_values = elements_of(right)
    equal: Mask = left_lengths == right_lengths
    lengths = np.where(equal, left_lengths, 0)
    mine = left_values.take(pa.array(spread(left_starts, lengths)))
    theirs = right_values.take(pa.array(spread(right_starts, lengths)))
    differences = np.concatenate(([0], np.cumsum(~_equal(mine, theirs))))
    ends = np.cumsum(lengths)
    equal &= differences[ends] == differences[ends - lengths]
    return equal
