"""Concurrent requests of one process done together: whoever comes first does the work of all who wait by then.

While one batch is being done the next gathers, so the more threads there are, the more share one lock and one sync.
A thread alone finds no one to wait for and pays nothing for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar


class Request:
    """Something to be done, by this thread or by another. `error` is what came of it, if it failed."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.done = False
        self._leads = False
        self._called = threading.Event()


R = TypeVar("R", bound=Request)


class Gathering(Generic[R]):
    """Hands requests in batches to `work`, which sets `error` on those that fail and must not raise for them."""

    def __init__(self, work: Callable[[Sequence[R]], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._waiting: list[R] = []
        self._busy = False

    def submit(self, request: R) -> None:
        """Return once the request is done; raise its error."""
        with self._lock:
            self._waiting.append(request)
            leads, self._busy = not self._busy, True
        if not leads:
            request._called.wait()
            leads = request._leads
        if leads:
            self._lead(request)
        if request.error is not None:
            raise request.error

    def _lead(self, request: R) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        failure: BaseException | None = None
        try:
            self._work(batch)
        except BaseException as error:
            failure = error
            raise
        finally:
            for other in batch:
                if failure is not None and not other.done and other.error is None:
                    other.error = failure
            with self._lock:
                if self._waiting:
                    self._waiting[0]._leads = True
                    self._waiting[0]._called.set()
                else:
                    self._busy = False
            for other in batch:
                if other is not request:
                    other._called.set()
