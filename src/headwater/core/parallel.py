"""Independent pieces of large work, side by side on the machine's cores; and threads that are waited for.

It pays where most of the time goes into calls that let other threads run meanwhile: files, Arrow, checksums, numpy. The
threads live no longer than the work, so that a process may fork at any time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LARGE_BYTES = 8 << 20
"""Less than this is done sooner by one thread than others can be started."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class WaitedThread(threading.Thread):
    """A thread in the background whose `join` may be interrupted by Ctrl-C and called again. Python's own takes a thread for ended whose
    `join` was interrupted, though it goes on, so that whoever then waits for it to stop gracefully does not wait at all."""

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
        """Whether it goes on; never in a forked child, where there is no such thread."""
        return self.ident is not None and not self._over.is_set() and self._pid == os.getpid()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        if self._pid == os.getpid() and (self.ident is None or self._over.wait(timeout)):
            super().join(timeout)


def side_by_side(act: Callable[[_Item], _Made], items: Sequence[_Item], *, size: int) -> list[_Made]:
    """What `act` makes of every item, in their order; side by side if the work is large, by its size in bytes.

    The first error, in the order of items, is raised after all of them are done.
    """
    if len(items) < 2 or size < LARGE_BYTES:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as threads:
        return list(threads.map(act, items))
