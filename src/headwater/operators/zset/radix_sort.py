"""Stable sort of rows by hash.

numpy's argsort is slow for many rows. Two alternatives are faster: sorting plain integers that combine the upper bits
of each hash with its index, and sorting by two 16-bit digits one after the other. Which of them is faster depends on
the processor: numpy sorts plain integers with vector instructions, and on some AMD processors these take five times as
long as they should. Both leave hashes that differ only in their lower bits unsorted; these few are sorted afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from headwater.core.hashing import Hashes, Indices, spread

SMALL = 4_096
"""Number of rows below which numpy's argsort is faster."""
_SAMPLE = 1 << 16
_CLEARLY = 0.7
"""Sorting by digits is chosen if it takes less than this share of the time; with far more rows its advantage shrinks."""
_MIXED = 0x9E3779B97F4A7C15
"""An odd number whose multiples are evenly distributed over 64 bits."""

_Sorting = Callable[[Hashes], tuple[Indices, int]]


def stable_order(hashes: Hashes) -> Indices:
    """Return the order that sorts hashes; equal hashes keep their order."""
    if len(hashes) < SMALL:
        return np.argsort(hashes, kind="stable")
    order, unsorted_bits = _faster()(hashes)
    return _fully_sorted(hashes, order, np.uint64(unsorted_bits))


def by_places(hashes: Hashes) -> tuple[Indices, int]:
    """Return an order by all but the lowest bits, and the number of these, by sorting hashes packed with their indices."""
    bits = (len(hashes) - 1).bit_length()
    low = np.uint64(bits)
    packed = (hashes >> low << low) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    return (packed & ((np.uint64(1) << low) - np.uint64(1))).view(np.int64), bits


def by_digits(hashes: Hashes) -> tuple[Indices, int]:
    """Return an order by the upper 32 bits, and the number of bits left out; numpy sorts 16-bit numbers by counting."""
    order = np.argsort((hashes >> np.uint64(32)).astype(np.uint16), kind="stable")
    upper = (hashes >> np.uint64(48)).astype(np.uint16)
    return order[np.argsort(upper[order], kind="stable")], 32


def _fully_sorted(hashes: Hashes, order: Indices, bits: np.uint64) -> Indices:
    """Complete an order by all but the lowest `bits` into an order by all bits."""
    ascending = hashes[order]
    wrong = np.flatnonzero(ascending[1:] < ascending[:-1])
    if len(wrong):
        # Hashes that share their upper bits with a misplaced one are contiguous, so each such range is sorted in place.
        low = np.unique(ascending[wrong] >> bits << bits)
        starts = np.searchsorted(ascending, low)
        ends = np.searchsorted(ascending, low | ((np.uint64(1) << bits) - np.uint64(1)), side="right")
        places = spread(starts, ends - starts)
        order[places] = order[places][np.argsort(ascending[places], kind="stable")]
    return order


@cache
def _faster() -> _Sorting:
    """Return the faster sort on this processor."""
    sample = np.arange(1, _SAMPLE + 1, dtype=np.uint64) * np.uint64(_MIXED)
    return by_digits if _seconds(by_digits, sample) < _CLEARLY * _seconds(by_places, sample) else by_places


def _seconds(sort: _Sorting, sample: Hashes) -> float:
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        sort(sample)
        taken.append(time.perf_counter() - started)
    return min(taken)
