"""Runs independent pieces of large work in parallel on the machine's cores; and threads with an interruptible join.

Threads help if most of the time is spent in calls that release the GIL: files, Arrow, checksums, numpy. The threads live no
longer than the work, so that a process may fork at any time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LARGE_BYTES = 8 << 20
"""Size in bytes below which a single thread is faster than starting several."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class WaitedThread(threading.Thread):
    """A background thread whose `join` may be interrupted by Ctrl-C and called again.

    Python's own thread counts as ended once its `join` was interrupted, although it still runs, so that a later graceful stop
    would not wait for it.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._over = threading.Event()
        self._pid = os.getpid()

    def run(self) -> None:
        """See `Thread.run`."""
        try:
            super().run()
        finally:
            self._over.set()

    def is_alive(self) -> bool:
        """Whether the thread runs; never in a forked child, which does not have it."""
        return self.ident is not None and not self._over.is_set() and self._pid == os.getpid()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        if self._pid == os.getpid() and (self.ident is None or self._over.wait(timeout)):
            super().join(timeout)


def side_by_side(act: Callable[[_Item], _Made], items: Sequence[_Item], *, size: int) -> list[_Made]:
    """Return the result of `act` for every item, in their order; computed in parallel if the work is large, by `size` in bytes.

    The first error, in the order of items, is raised after all of them are done.
    """
    if len(items) < 2 or size < LARGE_BYTES:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as threads:
        return list(threads.map(act, items))
