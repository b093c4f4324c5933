"""Independent pieces of large work, side by side on the machine's cores.

It pays where most of the time goes into calls that let other threads run meanwhile: files, Arrow, checksums, numpy. The
threads live no longer than the work, so that a process may fork at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LARGE_BYTES = 8 << 20
"""Less than this is done sooner by one thread than others can be started."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def side_by_side(act: Callable[[_Item], _Made], items: Sequence[_Item], *, size: int) -> list[_Made]:
    """What `act` makes of every item, in their order; side by side if the work is large, by its size in bytes.

    The first error, in the order of items, is raised after all of them are done.
    """
    if len(items) < 2 or size < LARGE_BYTES:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as threads:
        return list(threads.map(act, items))
