"""Approximate number of distinct values of a group: HyperLogLog++, with Spark's registers.

A value is represented by its 64-bit hash, which Spark computes. The hash's first `precision` bits select a register,
which holds the maximum, over all values, of one plus the number of leading zeros of the other bits. Because a register
is a maximum, the state depends neither on the order of values nor on how they were partitioned, and results equal those
of Spark's `approx_count_distinct` to the last digit.

A group stores its nonzero registers as numbers `register << 6 | zeros`, ascending, of two bytes each (four from a
precision of 11 on); once that would take more bytes than there are registers, it stores one byte for each register.

The standard error of a result is 1.04 / sqrt(registers), which is at most the requested `rsd`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.operators.zset.exact_sums import Floats, Ints
from headwater.operators.zset.numpy_columns import integers

_BITS = 6
_NEAREST = 6
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class DistinctCount:
    """HyperLogLog++ of a column of hashes.

    `estimates` and `biases` give the bias of a raw estimate, up to 5 times the number of registers; below `threshold`
    the result is derived from the number of zero registers (linear counting). Precisions above 18 have neither.
    """

    precision: int
    threshold: float
    estimates: tuple[float, ...]
    biases: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 4 <= self.precision <= 24:
            raise ValueError(f"{2**self.precision} registers are not supported")

    def __repr__(self) -> str:
        return f"DistinctCount(precision={self.precision})"

    @property
    def registers(self) -> int:
        """Number of registers."""
        return 1 << self.precision

    @property
    def repeatable(self) -> bool:
        return True

    @property
    def bound(self) -> str:
        return f"off by a standard error of {104 / math.sqrt(self.registers):.2g} % at most"

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        return (pa.binary(),)

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def collect(self, values: pa.Array, weights: Ints, owners: Ints, count: int) -> list[pa.Array]:
        """Collect the registers of a column of hashes; weights do not matter."""
        del weights
        hashes = integers(values).view(np.uint64)
        places = (hashes >> np.uint64(64 - self.precision)).astype(np.int64)
        # The bit after the examined bits is set, to limit the count of leading zeros.
        rest = (hashes << np.uint64(self.precision)) | np.uint64(1 << (self.precision - 1))
        zeros = _leading_zeros(rest) + 1
        return [self._packed_state(owners, places, zeros, np.zeros(0, np.int64), self._none(), count)]

    def merge(self, states: Sequence[pa.Array], owners: Ints, count: int) -> list[pa.Array]:
        raw, sizes = _bytes_of(states[0])
        full = sizes == self.registers
        in_full = np.repeat(full, sizes)
        owned, places, zeros = self._entries(raw[~in_full], np.where(full, 0, sizes), owners)
        rows = raw[in_full].reshape(-1, self.registers)
        return [self._packed_state(owned, places, zeros, owners[full], rows, count)]

    def finish(self, states: Sequence[pa.Array]) -> pa.Array:
        raw, sizes = _bytes_of(states[0])
        count = len(sizes)
        full = sizes == self.registers
        in_full = np.repeat(full, sizes)
        # Each zero register contributes a term of 1.
        inverse = np.zeros(count)
        seen = np.zeros(count, dtype=np.int64)
        owned, _, zeros = self._entries(raw[~in_full], np.where(full, 0, sizes), np.arange(count))
        inverse += np.bincount(owned, np.ldexp(1.0, -zeros), minlength=count)
        seen += np.bincount(owned, minlength=count)
        rows = raw[in_full].reshape(-1, self.registers)
        inverse[full] = np.sum(np.where(rows > 0, np.ldexp(1.0, -rows.astype(np.int32)), 0.0), axis=1)
        seen[full] = np.count_nonzero(rows, axis=1)
        unseen = self.registers - seen
        answer = np.floor(self._estimated(inverse + unseen, unseen) + 0.5).astype(np.int64)
        return pa.array(answer)

    def _estimated(self, inverse: Floats, unseen: Ints) -> Floats:
        registers = float(self.registers)
        alpha = {4: 0.673, 5: 0.697, 6: 0.709}.get(self.precision, 0.7213 / (1.0 + 1.079 / registers))
        raw = alpha * registers * registers / inverse
        corrected = raw
        if self.estimates:
            low = np.flatnonzero(raw < 5.0 * registers)
            corrected = raw.copy()
            corrected[low] -= self._bias(raw[low])
        with np.errstate(divide="ignore"):
            counted = registers * np.log(registers / unseen)
        few = (unseen > 0) & (
            ((counted <= self.threshold) if self.estimates else False) | (raw <= 2.5 * registers)
        )
        estimated: Floats = np.where(few, counted, corrected)
        return estimated

    def _bias(self, raw: Floats) -> Floats:
        """Return the mean bias of the tabulated estimates nearest to each raw estimate."""
        estimates, biases = np.array(self.estimates), np.array(self.biases)
        low = np.maximum(np.searchsorted(estimates, raw) - _NEAREST + 1, 0)
        high = np.minimum(low + _NEAREST, len(estimates))
        while True:
            above = np.minimum(high, len(estimates) - 1)
            nearer = (high < len(estimates)) & (
                (raw - estimates[above]) ** 2 < (raw - estimates[np.minimum(low, len(estimates) - 1)]) ** 2
            )
            if not nearer.any():
                break
            low, high = low + nearer, high + nearer
        before = np.concatenate(([0.0], np.cumsum(biases)))
        mean: Floats = (before[high] - before[low]) / (high - low)
        return mean

    def _packed_state(
        self, owners: Ints, places: Ints, zeros: Ints, full: Ints, rows: Bytes, count: int
    ) -> pa.Array:
        """Return the state of `count` groups, the maximum of each register, from single registers and full rows of registers.

        `owners` and `full`, the groups of the two, ascend.
        """
        number = np.int64(self.precision + _BITS)
        packed = np.sort(owners << number | places << _BITS | zeros)
        top = packed >> _BITS  # of equal registers the last one has the most zeros
        packed = packed[np.concatenate((top[1:] != top[:-1], np.ones(min(1, len(top)), dtype=np.bool_)))]
        owned = packed >> number
        width = np.dtype(self._number).itemsize
        sizes = np.bincount(owned, minlength=count) * width
        dense = sizes >= self.registers
        dense[full] = True
        if not dense.any():
            within = packed & np.int64((1 << int(number)) - 1)
            return _cells(within.astype(self._number).view(np.uint8), sizes, sizes > 0)
        made = np.flatnonzero(dense)
        table = np.zeros((len(made), self.registers), dtype=np.uint8)
        if len(full):
            starts = np.flatnonzero(np.diff(full, prepend=-1))
            table[np.searchsorted(made, full[starts])] = np.maximum.reduceat(rows, starts, axis=0)
        inside = dense[owned]
        into = packed[inside]
        row = np.searchsorted(made, into >> number)
        place = (into >> _BITS) & np.int64(self.registers - 1)
        table[row, place] = np.maximum(table[row, place], (into & 63).astype(np.uint8))
        within = packed[~inside] & np.int64((1 << int(number)) - 1)
        sparse = within.astype(self._number).view(np.uint8)
        sizes = np.where(dense, self.registers, sizes)
        raw = np.empty(int(sizes.sum()), dtype=np.uint8)
        is_dense = np.repeat(dense, sizes)
        raw[is_dense] = table.ravel()
        raw[~is_dense] = sparse
        return _cells(raw, sizes, sizes > 0)

    def _entries(self, raw: Bytes, sizes: Ints, owners: Ints) -> tuple[Ints, Ints, Ints]:
        """Decode sparse states into group, register and zeros of each entry."""
        numbers = np.ascontiguousarray(raw).view(self._number).astype(np.int64)
        owned = np.repeat(owners, sizes // np.dtype(self._number).itemsize)
        return owned, numbers >> _BITS, numbers & 63

    def _none(self) -> Bytes:
        return np.zeros((0, self.registers), dtype=np.uint8)

    @property
    def _number(self) -> type[np.unsignedinteger]:
        return np.uint16 if self.precision + _BITS <= 16 else np.uint32


def _leading_zeros(words: npt.NDArray[np.uint64]) -> Ints:
    """Return the number of bits before the first set bit; no word is zero."""
    left = words.copy()
    zeros = np.zeros(len(words), dtype=np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        none = left < np.uint64(1 << (64 - step))
        zeros += np.where(none, step, 0)
        left = np.where(none, left << np.uint64(step), left)
    return zeros


def _bytes_of(cells: pa.Array) -> tuple[Bytes, Ints]:
    """Return the concatenated bytes of all cells, and the size of each; 0 for NULL."""
    if not len(cells):
        return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    if cells.null_count:
        cells = cells.fill_null(b"")
    _, offsets, data = cells.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[cells.offset : cells.offset + len(cells) + 1].astype(
        np.int64
    )
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return raw[bounds[0] : bounds[-1]], np.diff(bounds)


def _cells(raw: Bytes, sizes: Ints, present: npt.NDArray[np.bool_]) -> pa.Array:
    """Build a binary column from concatenated bytes and sizes; NULL where `present` is false."""
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    whole = pa.Array.from_buffers(
        pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(raw))]
    )
    if present.all():
        return whole
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [pa.py_buffer(np.packbits(present, bitorder="little")), *whole.buffers()[1:]]
    )
