"""Places of hashes in long runs, against halving: what is spread evenly, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headwater.core.hashing import Hashes
from headwater.operators.zset import interpolation_search
from headwater.operators.zset.interpolation_search import first_places

LAST = 2**64 - 1


@pytest.fixture(autouse=True)
def long_runs_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that runs of some thousand hashes are searched as long ones are."""
    monkeypatch.setattr(interpolation_search, "LONG", 16)
    monkeypatch.setattr(interpolation_search, "SPARSE", 1)
    monkeypatch.setattr(interpolation_search, "FEW", 1)


def hashes(values: object) -> Hashes:
    return np.sort(np.array(values, dtype=np.uint64))


def spread_evenly(random: np.random.Generator, count: int) -> Hashes:
    return np.sort(random.integers(0, LAST, count, dtype=np.uint64, endpoint=True))


SHAPES: dict[str, Callable[[np.random.Generator, int], Hashes]] = {
    "evenly": spread_evenly,
    "each some times": lambda random, count: np.sort(np.repeat(spread_evenly(random, count // 20 + 1), 20)),
    "one key has most": lambda random, count: hashes([*spread_evenly(random, 100), *[2**63] * count]),
    "near each other": lambda random, count: hashes(
        np.uint64(2**63) + random.integers(0, 1_000, count).astype(np.uint64)
    ),
    "at both ends": lambda random, count: hashes([*range(count), *range(LAST - count, LAST + 1)]),
    "all the same": lambda random, count: hashes([7] * count),
    "all zero": lambda random, count: hashes([0] * count),
    "ever denser": lambda random, count: hashes([2**64 - 2 ** (n * 63 // count) for n in range(count)]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [16, 17, 500, 20_000])
def test_hashes_are_found_where_halving_finds_them(shape: str, count: int) -> None:
    random = np.random.default_rng(count)
    held = SHAPES[shape](random, count)
    around = np.concatenate([held[:: max(1, len(held) // 300)], spread_evenly(random, 200)])
    sought = np.concatenate([around, around + np.uint64(1), around - np.uint64(1), hashes([0, 1, LAST])])
    for asked in (sought, np.sort(sought)):
        asked = asked[: len(held)]
        assert (first_places(held, asked) == held.searchsorted(asked)).all()


def test_few_pages_of_a_long_run_are_looked_at() -> None:
    held = spread_evenly(np.random.default_rng(1), 1_000_000)
    looked: Any = _Watched(held)
    sought = held[::10_000]
    assert (first_places(looked, sought) == held.searchsorted(sought)).all()
    assert looked.halved < len(sought) // 10


class _Watched:
    """Hashes that count how many were looked for by halving."""

    def __init__(self, held: Hashes) -> None:
        self._held, self.size, self.halved = held, held.size, 0

    def __getitem__(self, place: Any) -> Any:
        return self._held[place]

    def searchsorted(self, sought: Hashes) -> Any:
        self.halved += len(sought)
        return self._held.searchsorted(sought)
