"""Finding hashes in a long run, by where they should lie.

Hashes are spread evenly: the place of one follows from its value but for some thousandths of a per cent, and from the value found
there but for a handful. Halving the run instead looks at ten places of a long run that nobody looked at lately, each in a page
of its own, which comes from the disk if it is not in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.core.hashing import Hashes, Indices

LONG = 1 << 19
"""Shorter runs are halved: most of what is looked at is in the processor's cache."""
SPARSE = 1 << 8
"""Where more than one in so many is asked for, neighbours are in the same page, and halving is as fast."""
FEW = 64
"""Fewer are found by halving before the vectors below are made."""

_STEPS = 3
_WINDOW = np.arange(16)


def first_places(held: Hashes, sought: Hashes) -> Indices:
    """What `held.searchsorted(sought)` says: of each hash the first place that has it, or has a greater one."""
    if held.size < LONG or not FEW <= sought.size <= held.size // SPARSE:
        return held.searchsorted(sought)
    last = held.size - 1
    # As floats: the difference of two hashes may not fit a signed integer.
    low, high = float(held[0]), float(held[last])
    per_place = last / (high - low) if high > low else 0.0
    places = _within((sought.astype(np.float64) - low) * per_place, last)
    for _ in range(_STEPS):
        # What is left is small, and right as a signed number also where the subtraction wraps.
        left = (sought - held[places]).view(np.int64)
        places = _within(places + left * per_place, last)
    starts = _within(places - _WINDOW.size // 2, held.size - _WINDOW.size)
    less = np.count_nonzero(held[starts[:, None] + _WINDOW] < sought[:, None], axis=1)
    found: Indices = starts + less
    # Where a window is all above or all below what is sought, its place may be outside of it.
    outside = ((less == 0) & (starts > 0)) | ((less == _WINDOW.size) & (found < held.size))
    if outside.any():
        unsettled = outside.nonzero()[0]
        found[unsettled] = held.searchsorted(sought[unsettled])
    return found


def _within(places: npt.NDArray[Any], last: int) -> Indices:
    inside: Indices = np.minimum(np.maximum(places, 0), last).astype(np.int64, copy=False)
    return inside
