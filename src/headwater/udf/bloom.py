"""Whether a group has a value, in a few bits for each: Bloom filters, as an aggregate and a function for views.

A filter is a row of bits. A value sets `hashes` of them, which two 64-bit hashes, the same for ever, tell; a filter may
contain what has all of its bits set. So what was added is always found. Of n values in m bits by k hashes another one is
found by a chance of (1 - exp(-k * n / m)) ** k; a filter has a tenth more bits than that asks for, since places are told
by two hashes and not by k.
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
    """Filters for values of type `of`: with up to `items` different ones, a share of `rate` of all others is taken for one of
    them at most. More than `items` raise that share, and never lose a value.

    `ws.aggregate("seen", **filters.aggregate)` declares the aggregate, which gives a BINARY for each group, and
    `ws.function("may_have", **filters.predicate)` the function `may_have(filter, value)` that asks it.
    """

    of: str
    items: int = 10_000
    rate: float = 0.01
    bits: int = field(init=False)
    hashes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.items < 1 or not 0 < self.rate < 1:
            raise UsageError(
                f"no filter is for {self.items} values at a rate of {self.rate}",
                hint="items from 1, and a rate between 0 and 1, such as 0.01",
            )
        needed = -_SPARE * self.items * math.log(self.rate) / math.log(2) ** 2
        bits = 64 * math.ceil(needed / 64)
        if bits > 8 * _BYTES_MAX:
            raise UsageError(
                f"a filter for {self.items} values at a rate of {self.rate} takes {bits // 8:,} bytes",
                detail=f"a group keeps {_BYTES_MAX:,} at most",
                hint="ask for fewer items or a greater rate, or group by one more column",
            )
        object.__setattr__(self, "of", format_type(parse_type(self.of)))
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "hashes", max(1, round(-math.log2(self.rate))))

    @property
    def aggregate(self) -> dict[str, Any]:
        """What `ws.aggregate` is to be called with."""
        parts = {"zero": bytes(self.bits // 8), "add": self.add, "merge": self.merge}
        return {**parts, "returns": "BINARY", "version": self._version}

    @property
    def predicate(self) -> dict[str, Any]:
        """What `ws.function` is to be called with."""
        return {"fn": self.may_have, "returns": "BOOLEAN", "version": self._version}

    @property
    def _version(self) -> str:
        return f"1: {self.of}, {self.bits} bits, {self.hashes} hashes"

    def add(self, state: bytes, values: pa.Array) -> bytes:
        """A filter with values in it; NULL is none."""
        values = self._typed(values).drop_null()
        held = np.zeros(self.bits, dtype=np.bool_)
        held[self._places(values)] = True
        return self.merge(state, np.packbits(held, bitorder="little").tobytes())

    def add_by_group(self, filters: pa.Array, owners: npt.NDArray[np.int64], values: pa.Array) -> pa.Array:
        """Many filters, each with the values in it of which it is the owner. It is `add` for all groups of a view at once."""
        count, size = len(filters), self.bits // 8
        known = np.flatnonzero(np.asarray(values.is_valid()))
        places = self._places(self._typed(values).take(pa.array(known)))
        held = self._bytes_of(filters)[0].copy()
        bits, bytes_of = (places & 7).ravel(), ((places >> 3) + owners[known] * size).ravel()
        for bit in range(8):  # one at a time, so that it does not matter if a byte is met twice
            held[bytes_of[bits == bit]] |= np.uint8(1 << bit)
        offsets = np.arange(count + 1, dtype=np.int64) * size
        made = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(held)]
        )
        return made.cast(filters.type)

    def merge(self, one: bytes, other: bytes) -> bytes:
        """A filter with the values of both."""
        both: bytes = (np.frombuffer(one, np.uint8) | np.frombuffer(other, np.uint8)).tobytes()
        return both

    def may_have(self, filters: pa.Array, values: pa.Array) -> pa.Array:
        """Whether each filter may contain its value: always if it does. NULL where either is."""
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
        """The bytes of all filters behind each other, none of which is NULL, and where each begins."""
        cells, size = filters.cast(pa.large_binary()), self.bits // 8
        if not len(cells):
            return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
        starts = np.frombuffer(cells.buffers()[1], np.int64)[cells.offset : cells.offset + len(cells) + 1]
        if (np.diff(starts) != size).any():
            raise ValueError(
                f"a filter of {int(np.diff(starts).max())} bytes was made by another declaration, not {self}"
            )
        held = np.frombuffer(cells.buffers()[2], np.uint8)[starts[0] : starts[-1]]
        return held, starts[:-1] - starts[0]

    def _typed(self, values: pa.Array) -> pa.Array:
        return values.cast(parse_type(self.of))

    def _places(self, values: pa.Array) -> npt.NDArray[np.int64]:
        """The bits of values, a row for each hash."""
        first, second = (hash_rows([values], len(values), seed) for seed in _SEEDS)
        steps = np.arange(self.hashes, dtype=np.uint64)[:, None]
        places: npt.NDArray[np.uint64] = (first + steps * second + steps * steps * steps) % np.uint64(
            self.bits
        )
        return places.astype(np.int64)
