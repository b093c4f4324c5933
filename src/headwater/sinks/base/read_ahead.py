"""Prefetching from a server: the next items are fetched while the caller processes the last one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

_Item = TypeVar("_Item")

_AHEAD = 2
_WAIT_S = 0.1


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the same items, with up to `_AHEAD` items prefetched by a thread that ends with the iteration. An error of the
    source is raised at its position."""
    made: queue.Queue[tuple[_Item | None, BaseException | None]] = queue.Queue(_AHEAD)
    ending = threading.Event()

    def put(item: _Item | None, error: BaseException | None) -> bool:
        while not ending.is_set():
            try:
                made.put((item, error), timeout=_WAIT_S)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
            put(None, None)
        except BaseException as error:  # noqa: BLE001 - raised where items are taken
            put(None, error)

    thread = threading.Thread(target=make, name="reading ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        ending.set()
        thread.join()
