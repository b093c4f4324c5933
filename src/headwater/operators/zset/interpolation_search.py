"""Interpolation search for hashes in a long run.

Hashes are evenly distributed: a hash's value predicts its index to within some thousandths of a per cent of the run,
and the value found there narrows it to a handful of indices. Binary search instead reads about ten entries of a long
run that are not in a cache, each in a page of its own, which is read from disk if it is not in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.core.hashing import Hashes, Indices

LONG = 1 << 19
"""Number of hashes below which a run is searched by bisection: most entries read are in the processor's cache."""
SPARSE = 1 << 8
"""Minimum number of stored hashes per probe: with more probes, neighbours share a page and bisection is as fast."""
FEW = 64
"""Minimum number of probes: bisection finds fewer before the vectors below are set up."""

_STEPS = 3
_WINDOW = np.arange(16)


def first_places(held: Hashes, sought: Hashes) -> Indices:
    """Return `held.searchsorted(sought)`: for each hash the first index whose entry is equal or greater."""
    if held.size < LONG or not FEW <= sought.size <= held.size // SPARSE:
        return held.searchsorted(sought)
    last = held.size - 1
    # As floats: the difference of two hashes may not fit a signed integer.
    low, high = float(held[0]), float(held[last])
    per_place = last / (high - low) if high > low else 0.0
    places = _within((sought.astype(np.float64) - low) * per_place, last)
    for _ in range(_STEPS):
        # The remaining distance is small, so it is correct as a signed number even where the subtraction wraps.
        left = (sought - held[places]).view(np.int64)
        places = _within(places + left * per_place, last)
    starts = _within(places - _WINDOW.size // 2, held.size - _WINDOW.size)
    less = np.count_nonzero(held[starts[:, None] + _WINDOW] < sought[:, None], axis=1)
    found: Indices = starts + less
    # Where a window lies entirely above or below the hash, the correct index may be outside the window.
    outside = ((less == 0) & (starts > 0)) | ((less == _WINDOW.size) & (found < held.size))
    if outside.any():
        unsettled = outside.nonzero()[0]
        found[unsettled] = held.searchsorted(sought[unsettled])
    return found


def _within(places: npt.NDArray[Any], last: int) -> Indices:
    inside: Indices = np.minimum(np.maximum(places, 0), last).astype(np.int64, copy=False)
    return inside
