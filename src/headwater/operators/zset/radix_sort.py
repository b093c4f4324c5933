"""Sorting rows by hash, in the one order that keeps equal ones as they are.

For many rows numpy's argsort is slow, and two ways are faster: to sort plain numbers, the upper bits of each hash together with its
place, or to sort by two digits of 16 bits, one after the other. Which of them is faster depends on the processor: numpy sorts plain
numbers by vectors, and on some AMD processors the instructions for that take five times as long as they should. Both
leave the few hashes that differ in their lower bits alone to be put right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from headwater.core.hashing import Hashes, Indices, spread

SMALL = 4_096
"""Below it, numpy's own argsort is the faster one."""
_SAMPLE = 1 << 16
_CLEARLY = 0.7
"""Digits are taken where they need this share of the time: with far more rows they lose some of their lead."""
_MIXED = 0x9E3779B97F4A7C15
"""An odd number whose multiples are spread evenly."""

_Sorting = Callable[[Hashes], tuple[Indices, int]]


def stable_order(hashes: Hashes) -> Indices:
    """The order that sorts hashes; equal ones stay as they are."""
    if len(hashes) < SMALL:
        return np.argsort(hashes, kind="stable")
    order, unsorted_bits = _faster()(hashes)
    return _settled(hashes, order, np.uint64(unsorted_bits))


def by_places(hashes: Hashes) -> tuple[Indices, int]:
    """An order by all but the lowest bits, and how many these are: hashes and their places, sorted as plain numbers."""
    bits = (len(hashes) - 1).bit_length()
    low = np.uint64(bits)
    packed = (hashes >> low << low) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    return (packed & ((np.uint64(1) << low) - np.uint64(1))).view(np.int64), bits


def by_digits(hashes: Hashes) -> tuple[Indices, int]:
    """The same by the upper half of the bits: numpy sorts so narrow numbers by counting them."""
    order = np.argsort((hashes >> np.uint64(32)).astype(np.uint16), kind="stable")
    upper = (hashes >> np.uint64(48)).astype(np.uint16)
    return order[np.argsort(upper[order], kind="stable")], 32


def _settled(hashes: Hashes, order: Indices, bits: np.uint64) -> Indices:
    """An order by all but the lowest bits, made one by all of them."""
    ascending = hashes[order]
    wrong = np.flatnonzero(ascending[1:] < ascending[:-1])
    if len(wrong):
        # Those that share their upper bits with one that is wrong lie together, and stay where the others leave room for them.
        low = np.unique(ascending[wrong] >> bits << bits)
        starts = np.searchsorted(ascending, low)
        ends = np.searchsorted(ascending, low | ((np.uint64(1) << bits) - np.uint64(1)), side="right")
        places = spread(starts, ends - starts)
        order[places] = order[places][np.argsort(ascending[places], kind="stable")]
    return order


@cache
def _faster() -> _Sorting:
    """What is the faster one here."""
    sample = np.arange(1, _SAMPLE + 1, dtype=np.uint64) * np.uint64(_MIXED)
    return by_digits if _seconds(by_digits, sample) < _CLEARLY * _seconds(by_places, sample) else by_places


def _seconds(sort: _Sorting, sample: Hashes) -> float:
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        sort(sample)
        taken.append(time.perf_counter() - started)
    return min(taken)
