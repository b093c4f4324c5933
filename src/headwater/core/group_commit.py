"""Concurrent requests of one process done together: whoever comes first does the work of all who wait by then.

While one batch is being done the next gathers, so the more callers there are, the more share one lock and one sync.
A thread alone finds no one to wait for and pays nothing for it. Event loops do not wait: they post, and are told. Appends of
the log, posts over HTTP and commands to aggregates all gather here.

Ctrl-C is one thread's: it comes in the main thread, wherever that is. So the main thread leads what is its own alone, and has another thread lead
where several wait; whoever is interrupted while it waits takes its requests back, if nobody has begun with them, and
leaves no place in the line empty. An interrupt comes between two steps of the interpreter where something was called, so what must not be torn apart
here stands together without a call between; threads are woken by locks, which do that in one step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from headwater.core.errors import CommitInterruptedError


class Request:
    """Something to be done, by this thread or by another. `error` is what came of it, if it failed."""

    weight = 1
    """What it counts towards the limits of a batch."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.done = False
        self._leads = False
        self._told = False
        """Whether a batch with it is over."""
        self._thread = 0
        """Whose it is, where a thread waits for it."""
        self._called: threading.Lock | None = None
        """Held until the thread that waits for it is to look."""
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


class GroupCommit(Generic[R]):
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
        mine = threading.get_ident()
        for request in requests:
            request._thread, request._called = mine, threading.Lock()
            request._called.acquire()
        try:
            if self._add(requests):
                self._lead(requests[0])
            for request in requests:
                assert request._called is not None
                while not request._told:
                    request._called.acquire()
                    if request._leads:
                        self._lead(request)
        except BaseException:
            self._leave(requests)
            raise

    def _leave(self, requests: Sequence[R]) -> None:
        """Take back what nobody has begun with, and let another lead what one of these was to lead."""
        gone = set(map(id, requests))
        with self._lock:
            led = any(request._leads for request in requests)
            left = [request for request in self._waiting if id(request) in gone]
            if left:
                self._waiting = [request for request in self._waiting if id(request) not in gone]
                if self._limits.overlap_weight is not None:
                    self._weight -= sum(request.weight for request in left)
        if led:
            self._hand_over(_Turn())

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
            requests[0]._leads = leads and requests[0]._called is not None
            return leads

    def _may_begin(self) -> bool:
        overlap = self._limits.overlap_weight
        return self._batches == 0 or (self._batches == 1 and overlap is not None and self._weight >= overlap)

    def _lead(self, leader: R | None) -> None:
        """Do what waits, or have another thread do it; a leader that is no thread of an event loop's is the first of it."""
        batch: list[R] = []
        turn: _Turn | None = None
        failure: BaseException | None = None
        try:
            with self._lock:
                deputy = None if leader is None else self._deputy(leader)
                if deputy is not None:
                    self._appoint(deputy, leader)
                    return
                mine = _Turn()
                batch = self._taken()
                turn = mine
                if leader is not None:
                    leader._leads = False
            if batch:  # another batch may have taken all of it
                self._work(batch)
        except BaseException as error:
            failure = error
            if leader is not None or turn is None:
                raise
        finally:
            again: BaseException | None = None
            while turn is not None:
                try:
                    self._end(turn, batch, leader, failure)
                    turn = None
                except KeyboardInterrupt as error:  # whoever waits must not: once more
                    again = error
            if again is not None:
                raise again

    def _end(self, turn: _Turn, batch: Sequence[R], leader: R | None, failure: BaseException | None) -> None:
        """Let the next lead, and tell those whose requests are done. It may be begun again if it was interrupted."""
        for other in batch:
            if failure is not None and not other.done and other.error is None:
                other.error = failure if other is leader else _told(failure)
        self._hand_over(turn)
        _tell(batch, leader)

    def _deputy(self, leader: R) -> R | None:
        """Who leads in the place of the main thread, which may be interrupted: the first of another thread's that waits."""
        if leader._thread != threading.main_thread().ident:
            return None
        others = (r for r in self._waiting if r._called is not None and r._thread != leader._thread)
        return next(others, None)

    def _appoint(self, heir: R, in_place_of: R | None) -> None:
        """Have a thread lead that waits: a batch more, or one that another was to lead. No call stands between these."""
        assert heir._called is not None
        if in_place_of is None:
            self._batches += 1
        else:
            in_place_of._leads = False
        heir._leads = True
        try:
            heir._called.release()
        except RuntimeError:
            pass  # it is about to look

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

    def _hand_over(self, turn: _Turn) -> None:
        with self._lock:
            if not turn.over:
                turn.over = True
                self._batches -= 1
            if not self._waiting or not self._may_begin():
                return
            heir = self._waiting[0]
            if heir._called is not None:
                self._appoint(heir, None)
                return
            self._batches += 1
            begun = 1 + self._may_begin()
            self._batches += begun - 1
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


class _Turn:
    """That a batch is being done; `over` once it does not count any more."""

    over = False


def _wake_up(called: threading.Lock) -> None:
    try:
        called.release()
    except RuntimeError:
        pass  # it is about to look


def _told(failure: BaseException) -> BaseException:
    """What those hear who only waited: not that they were interrupted, who were not."""
    if isinstance(failure, Exception):
        return failure
    return CommitInterruptedError(
        "the thread that wrote this together with others was interrupted",
        detail="whether it was written is not known",
        hint="look what is there, or do it again in a way that can be repeated: append(..., producer=, sequence=), execute(..., command_id=)",
    )


def _tell(batch: Sequence[Request], leader: Request | None) -> None:
    """Let those go on whose requests are done: threads, and event loops, each woken once."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for other in batch:
        other._told = True
        if other._called is not None:
            if other is not leader:
                _wake_up(other._called)
        elif other._future is not None:
            loops.setdefault(other._future.get_loop(), []).append(other._future)
    for loop, futures in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(partial(_wake, futures))


def _wake(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
