"""One 64-bit hash of key columns, the same for ever: it decides the partition of a record.

Definition. Each column gives a 64-bit lane per row; a row's hash is `h = seed; for lane in lanes: h = mix(h ^ lane)`
followed by `mix(h + number of columns)`, where `mix` is the finaliser of splitmix64.
Lanes: NULL is a constant; booleans, integers, dates and timestamps are their value as int64 (so that widening a column
moves no row); floats are the bits of the double, with -0.0 as 0.0 and one NaN; decimals are the low and high words of
the 128-bit value; strings and binaries fold their bytes, eight at a time, little endian, zero padded, then the length.
Keys equal as SQL compares them get equal hashes; the reverse is for the caller to verify.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_SEED = 0x243F6A8885A308D3
_LONG_BYTES = 512
"""Longer values are hashed one by one, so that one huge string does not cost a vector step per eight bytes."""


def hash_rows(columns: Sequence[pa.Array], rows: int, seed: int = 0) -> Hashes:
    """The hash of each row over its key columns; other seeds give independent hashes."""
    hashes = np.full(rows, np.uint64((_SEED + seed * 0x9E3779B97F4A7C15) & (2**64 - 1)), dtype=np.uint64)
    for column in columns:
        hashes = _mix(hashes ^ _lanes(column))
    return _mix(hashes + np.uint64(len(columns)))


def partition_of(hashes: Hashes, partitions: int) -> npt.NDArray[np.int64]:
    """The partition of each hash: equal ranges of its upper 32 bits."""
    return (((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)).astype(np.int64)


def _mix(h: Hashes) -> Hashes:
    h = h + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = h ^ (h >> np.uint64(31))
    return mixed


def _lanes(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        lanes = _bytes_lanes(column)
    elif pa.types.is_decimal128(kind):
        words = np.frombuffer(column.buffers()[1], dtype="<u8").reshape(-1, 2)
        words = words[column.offset : column.offset + len(column)]
        lanes = _mix(words[:, 0]) ^ words[:, 1]
    elif pa.types.is_floating(kind):
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
        lanes = np.where(np.isnan(values), np.nan, values).view(np.uint64)
    else:
        lanes = _integers(column).view(np.uint64)
    if column.null_count:
        lanes = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, lanes)
    return lanes


def _integers(column: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    values: npt.NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values)


def _bytes_lanes(column: pa.Array) -> Hashes:
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    lanes = np.zeros(len(column), dtype=np.uint64)
    if len(column) and data_buffer is not None and offsets[-1] > offsets[0]:
        base = int(offsets[0])
        data = np.zeros(int(offsets[-1]) - base + 8, dtype=np.uint8)
        data[:-8] = np.frombuffer(data_buffer, dtype=np.uint8)[base : int(offsets[-1])]
        _fold_words(lanes, data, starts - base, lengths)
        for row in np.flatnonzero(lengths > _LONG_BYTES):
            value = data[starts[row] - base : starts[row] - base + lengths[row]].tobytes()
            lanes[row] = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
    return _mix(lanes ^ lengths.view(np.uint64))


def _fold_words(
    lanes: Hashes, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> None:
    """Fold the bytes of each short value into its lane, one 8-byte word of every value per step."""
    words = np.ndarray(shape=(len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    rows = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
    done = 0
    while len(rows):
        word = words[starts[rows] + done]
        left = lengths[rows] - done
        short = left < 8
        if short.any():
            word = np.where(
                short,
                word & ((np.uint64(1) << (np.minimum(left, 7) * 8).astype(np.uint64)) - np.uint64(1)),
                word,
            )
        lanes[rows] = _mix(lanes[rows] ^ word)
        done += 8
        rows = rows[left > 8]
