"""Concurrent requests of one process done together: whoever comes first does the work of all who wait by then.

While one batch is being done the next gathers, so the more callers there are, the more share one lock and one sync.
A thread alone finds no one to wait for and pays nothing for it. Event loops do not wait: they post, and are told. Appends of
the log, posts over HTTP and commands to aggregates all gather here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar


class Request:
    """Something to be done, by this thread or by another. `error` is what came of it, if it failed."""

    weight = 1
    """What it counts towards the limits of a batch."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.done = False
        self._leads = False
        self._called: threading.Event | None = None
        self._future: asyncio.Future[None] | None = None


R = TypeVar("R", bound=Request)


@dataclass(frozen=True)
class Limits:
    """How large a batch may be: so many requests, of so much weight, but one at least."""

    most: int | None = None
    weight_max: int | None = None
    overlap_weight: int | None = None
    """If requests that were posted and wait weigh so much, a second batch is begun while the first is being done."""


NO_LIMITS = Limits()


class Gathering(Generic[R]):
    """Hands requests in batches to `work`, which sets `error` on those that fail and must not raise for them."""

    def __init__(self, work: Callable[[Sequence[R]], None], limits: Limits = NO_LIMITS) -> None:
        self._work = work
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting: list[R] = []
        self._weight = 0
        """Of those that wait, if that matters."""
        self._batches = 0
        """That are being done, or are about to be."""
        self._threads: Executor | None = None

    def submit(self, request: R) -> None:
        """Return once the request is done; raise its error."""
        self.submit_all([request])
        if request.error is not None:
            raise request.error

    def submit_all(self, requests: Sequence[R]) -> None:
        """Return once all of several requests are done, which gather as if they came from so many threads."""
        if not requests:
            return
        for request in requests:
            request._called = threading.Event()
        if leads := self._add(requests):
            self._lead(requests[0])
        for request in requests[leads:]:
            assert request._called is not None
            request._called.wait()
            if request._leads:
                self._lead(request)

    def post(self, request: R, threads: Executor) -> asyncio.Future[None]:
        """The same for an event loop, which is not to wait: one of `threads` does the work if nobody does it already, and what is
        returned is done when the request is, whatever came of it. It is done also if whoever asked is gone meanwhile."""
        request._future = asyncio.get_running_loop().create_future()
        self._threads = threads
        if self._add([request]):
            threads.submit(self._lead, None)
        return request._future

    def _add(self, requests: Sequence[R]) -> bool:
        """Let requests wait; whether whoever asks is to lead a batch."""
        with self._lock:
            self._waiting += requests
            if self._limits.overlap_weight is not None:
                self._weight += sum(request.weight for request in requests)
            leads = self._may_begin()
            self._batches += leads
            return leads

    def _may_begin(self) -> bool:
        overlap = self._limits.overlap_weight
        return self._batches == 0 or (self._batches == 1 and overlap is not None and self._weight >= overlap)

    def _lead(self, leader: R | None) -> None:
        """Do what waits; a leader that is no thread of an event loop's is the first of it."""
        with self._lock:
            batch = self._taken()
        failure: BaseException | None = None
        try:
            if batch:  # another batch may have taken all of it
                self._work(batch)
        except BaseException as error:
            failure = error
            if leader is not None:
                raise
        finally:
            for other in batch:
                if failure is not None and not other.done and other.error is None:
                    other.error = failure
            self._hand_over()
            _tell(batch, leader)

    def _taken(self) -> list[R]:
        limits, count = self._limits, len(self._waiting)
        if limits.most is not None:
            count = min(count, limits.most)
        if limits.weight_max is not None:
            weight = 0
            for place in range(count):
                weight += self._waiting[place].weight
                if weight > limits.weight_max and place:
                    count = place
                    break
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if limits.overlap_weight is not None:
            self._weight -= sum(request.weight for request in batch)
        return batch

    def _hand_over(self) -> None:
        with self._lock:
            self._batches -= 1
            heir = self._waiting[0] if self._waiting and self._may_begin() else None
            before = self._batches
            if heir is not None:
                self._batches += 1
                self._batches += heir._called is None and self._may_begin()
            begun = self._batches - before
        if heir is None:
            return
        if heir._called is not None:
            heir._leads = True
            heir._called.set()
            return
        assert self._threads is not None
        try:
            for _ in range(begun):
                self._threads.submit(self._lead, None)
        except RuntimeError as error:  # the threads were shut down: nobody is left to do it
            with self._lock:
                left, self._waiting, self._weight = self._waiting, [], 0
                self._batches -= begun
            for request in left:
                request.error = error
            _tell(left, None)


def _tell(batch: Sequence[Request], leader: Request | None) -> None:
    """Let those go on whose requests are done: threads, and event loops, each woken once."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for other in batch:
        if other._called is not None:
            if other is not leader:
                other._called.set()
        elif other._future is not None:
            loops.setdefault(other._future.get_loop(), []).append(other._future)
    for loop, futures in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(partial(_wake, futures))


def _wake(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
