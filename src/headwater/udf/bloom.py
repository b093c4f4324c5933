"""Bloom filters as an aggregate and a function for views: approximate set membership in a few bits per value.

A filter is an array of bits. A value sets `hashes` of them, derived from two 64-bit hashes that never change; a filter
may contain a value if all of the value's bits are set, so there are no false negatives. With n values in m bits and k
hashes, the false positive rate is (1 - exp(-k * n / m)) ** k; a filter has a tenth more bits than this requires,
because bits are derived from two hashes instead of k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.errors import UsageError
from headwater.core.hashing import hash_rows
from headwater.core.types import format_type, parse_type

_SPARE = 1.1
_BYTES_MAX = 1 << 24
_SEEDS = (1, 2)


@dataclass(frozen=True)
class BloomFilter:
    """Filters for values of type `of`: with up to `items` distinct values, the false positive rate is at most `rate`.

    More than `items` values increase the false positive rate, but never cause false negatives.

    `ws.aggregate("seen", **filters.aggregate)` declares the aggregate, which returns a BINARY for each group, and
    `ws.function("may_have", **filters.predicate)` declares the function `may_have(filter, value)` that tests
    membership.
    """

    of: str
    items: int = 10_000
    rate: float = 0.01
    bits: int = field(init=False)
    hashes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.items < 1 or not 0 < self.rate < 1:
            raise UsageError(
                f"a Bloom filter cannot have {self.items} items and a false-positive rate of {self.rate}",
                hint="use at least 1 item, and a rate between 0 and 1, such as 0.01",
                items=self.items,
                rate=self.rate,
            )
        needed = -_SPARE * self.items * math.log(self.rate) / math.log(2) ** 2
        bits = 64 * math.ceil(needed / 64)
        if bits > 8 * _BYTES_MAX:
            raise UsageError(
                f"a Bloom filter for {self.items} items at a false-positive rate of {self.rate} takes {bits // 8:,} bytes",
                detail=f"the limit is {_BYTES_MAX:,} bytes for a group",
                hint="use fewer items or a higher rate, or group by one more column",
                items=self.items,
                rate=self.rate,
                bytes_needed=bits // 8,
            )
        object.__setattr__(self, "of", format_type(parse_type(self.of)))
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "hashes", max(1, round(-math.log2(self.rate))))

    @property
    def aggregate(self) -> dict[str, Any]:
        """Keyword arguments for `ws.aggregate`."""
        parts = {"zero": bytes(self.bits // 8), "add": self.add, "merge": self.merge}
        return {**parts, "returns": "BINARY", "version": self._version}

    @property
    def predicate(self) -> dict[str, Any]:
        """Keyword arguments for `ws.function`."""
        return {"fn": self.may_have, "returns": "BOOLEAN", "version": self._version}

    @property
    def _version(self) -> str:
        return f"1: {self.of}, {self.bits} bits, {self.hashes} hashes"

    def add(self, state: bytes, values: pa.Array) -> bytes:
        """Add values to a filter; NULLs are ignored."""
        values = self._typed(values).drop_null()
        held = np.zeros(self.bits, dtype=np.bool_)
        held[self._places(values)] = True
        return self.merge(state, np.packbits(held, bitorder="little").tobytes())

    def add_by_group(self, filters: pa.Array, owners: npt.NDArray[np.int64], values: pa.Array) -> pa.Array:
        """Add each value to the filter of its owner: `add` for all groups of a view at once."""
        count, size = len(filters), self.bits // 8
        known = np.flatnonzero(np.asarray(values.is_valid()))
        places = self._places(self._typed(values).take(pa.array(known)))
        held = self._bytes_of(filters)[0].copy()
        bits, bytes_of = (places & 7).ravel(), ((places >> 3) + owners[known] * size).ravel()
        for bit in range(8):  # one bit at a time, because a byte may occur several times
            held[bytes_of[bits == bit]] |= np.uint8(1 << bit)
        offsets = np.arange(count + 1, dtype=np.int64) * size
        made = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(held)]
        )
        return made.cast(filters.type)

    def merge(self, one: bytes, other: bytes) -> bytes:
        """Return the union of two filters."""
        both: bytes = (np.frombuffer(one, np.uint8) | np.frombuffer(other, np.uint8)).tobytes()
        return both

    def may_have(self, filters: pa.Array, values: pa.Array) -> pa.Array:
        """Whether each filter may contain its value: always true if it does. NULL if the filter or the value is NULL."""
        known = np.asarray(filters.is_valid()) & np.asarray(values.is_valid())
        chosen = pa.array(np.flatnonzero(known))
        held, starts = self._bytes_of(filters.take(chosen))
        found = np.zeros(len(values), dtype=np.bool_)
        if len(chosen):
            places = self._places(self._typed(values).take(chosen))
            of_bits = held[starts + (places >> 3)] >> (places & 7).astype(np.uint8)
            found[known] = (of_bits & 1).all(axis=0)
        return pa.array(found, mask=~known)

    def _bytes_of(self, filters: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the concatenated bytes of filters, none of which is NULL, and the start of each."""
        cells, size = filters.cast(pa.large_binary()), self.bits // 8
        if not len(cells):
            return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
        starts = np.frombuffer(cells.buffers()[1], np.int64)[cells.offset : cells.offset + len(cells) + 1]
        if (np.diff(starts) != size).any():
            raise ValueError(
                f"a filter of {int(np.diff(starts).max())} bytes belongs to another declaration than {self}"
            )
        held = np.frombuffer(cells.buffers()[2], np.uint8)[starts[0] : starts[-1]]
        return held, starts[:-1] - starts[0]

    def _typed(self, values: pa.Array) -> pa.Array:
        return values.cast(parse_type(self.of))

    def _places(self, values: pa.Array) -> npt.NDArray[np.int64]:
        """Return the bit indices of values, one row for each hash."""
        first, second = (hash_rows([values], len(values), seed) for seed in _SEEDS)
        steps = np.arange(self.hashes, dtype=np.uint64)[:, None]
        places: npt.NDArray[np.uint64] = (first + steps * second + steps * steps * steps) % np.uint64(
            self.bits
        )
        return places.astype(np.int64)
