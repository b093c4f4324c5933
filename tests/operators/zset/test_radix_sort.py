"""Whichever way rows are sorted by hash, it is the one order that keeps equal ones as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headwater.operators.zset import radix_sort
from headwater.operators.zset.radix_sort import by_digits, by_places, stable_order


@pytest.fixture(params=[by_places, by_digits], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix_sort, "SMALL", 2)
    monkeypatch.setattr(radix_sort, "_faster", lambda: request.param)


def check(hashes: Any) -> None:
    assert (stable_order(hashes) == np.argsort(hashes, kind="stable")).all()


@pytest.mark.parametrize("distinct", [1, 3, 900, 100_000, 2**64 - 1])
@pytest.mark.parametrize("shift", [0, 20, 40])
def test_rows_of_one_hash_keep_their_order(distinct: int, shift: int) -> None:
    hashes = np.random.default_rng(3).integers(0, distinct, 5_000, dtype=np.uint64)
    check(hashes << np.uint64(shift))
    check(hashes >> np.uint64(shift))


@pytest.mark.parametrize("bit", [0, 9, 31, 32])
@pytest.mark.parametrize("twins", [0, 50, 5_000])
def test_hashes_that_differ_in_one_bit_alone_are_in_order_too(twins: int, bit: int) -> None:
    hashes = np.random.default_rng(4).integers(0, 2**64, 10_000, dtype=np.uint64)
    hashes[:twins] = hashes[len(hashes) - twins :] ^ np.uint64(1 << bit)
    hashes[5_000:5_003] = 2**64 - 1, 2**64 - 2, 2**64 - 1
    check(hashes)
    check(hashes[::3])


@pytest.mark.parametrize("count", [2, 3, 16, 17])
def test_few_are_sorted_too(count: int) -> None:
    check(np.random.default_rng(count).integers(0, 4, count, dtype=np.uint64))
