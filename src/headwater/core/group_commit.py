"""Group commit: concurrent requests of one process are done together; the first of them does the work of all waiting ones.

While one batch is being done the next one forms, so the more callers there are, the more share one lock and one sync. A single
thread finds no other request to wait for and has no extra cost. Event loops do not wait: they post a request and get a future.
Appends of the log, posts over HTTP and commands to aggregates use this module.

Ctrl-C interrupts the main thread only, at any point. Therefore the main thread leads a batch only if no other thread waits;
else it appoints another thread as the leader. A thread that is interrupted while it waits withdraws its requests if no batch
has them yet, and passes on its leadership. An interrupt occurs between two steps of the interpreter where a call was made, so
statements that must not be separated stand together without a call in between; threads are woken by locks, which do that in one
step.
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
    """A piece of work, done by this thread or by another. `error` is its failure, if any."""

    weight = 1
    """Weight of the request towards the limits of a batch."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.done = False
        self._leads = False
        self._notified = False
        """Whether the batch of the request has ended."""
        self._thread = 0
        """The thread that waits for the request; 0 for an event loop."""
        self._called: threading.Lock | None = None
        """Lock that is held until the waiting thread has to check the request."""
        self._future: asyncio.Future[None] | None = None


R = TypeVar("R", bound=Request)


@dataclass(frozen=True)
class Limits:
    """Limits of a batch: the number of requests and their total weight; a batch always has at least one request."""

    most: int | None = None
    weight_max: int | None = None
    overlap_weight: int | None = None
    """Weight of posted, waiting requests from which a second batch is begun while the first is being done."""


NO_LIMITS = Limits()


class GroupCommit(Generic[R]):
    """Passes requests in batches to `work`, which sets `error` on those that fail and must not raise for them."""

    def __init__(self, work: Callable[[Sequence[R]], None], limits: Limits = NO_LIMITS) -> None:
        self._work = work
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting: list[R] = []
        self._weight = 0
        """Total weight of the waiting requests, if `overlap_weight` is set."""
        self._batches = 0
        """Number of batches that are being done, or are about to be."""
        self._threads: Executor | None = None

    def submit(self, request: R) -> None:
        """Return once the request is done; raise its error."""
        self.submit_all([request])
        if request.error is not None:
            raise request.error

    def submit_all(self, requests: Sequence[R]) -> None:
        """Return once all requests are done; they join batches as if each came from a thread of its own."""
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
                while not request._notified:
                    request._called.acquire()
                    if request._leads:
                        self._lead(request)
        except BaseException:
            self._leave(requests)
            raise

    def _leave(self, requests: Sequence[R]) -> None:
        """Withdraw the requests that no batch has yet, and pass on a leadership that one of them had."""
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
        """Submit a request of an event loop, which must not block: a thread of `threads` does the work if no other does.

        The returned future is done when the request is, whatever its outcome, also if the caller has gone meanwhile.
        """
        request._future = asyncio.get_running_loop().create_future()
        self._threads = threads
        if self._add([request]):
            threads.submit(self._lead, None)
        return request._future

    def _add(self, requests: Sequence[R]) -> bool:
        """Add requests to the waiting ones; return whether the caller has to lead a batch."""
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
        """Do a batch of the waiting requests, or appoint another thread. A `leader` is the first of its batch; event loops have
        none."""
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
                except KeyboardInterrupt as error:  # the waiting threads must be woken: try again
                    again = error
            if again is not None:
                raise again

    def _end(self, turn: _Turn, batch: Sequence[R], leader: R | None, failure: BaseException | None) -> None:
        """Pass on the leadership, and wake the callers whose requests are done. Can be repeated if it was interrupted."""
        for other in batch:
            if failure is not None and not other.done and other.error is None:
                other.error = failure if other is leader else _shared_error(failure)
        self._hand_over(turn)
        _notify(batch, leader)

    def _deputy(self, leader: R) -> R | None:
        """Return a waiting request of another thread to lead in place of the main thread, which may be interrupted; None if
        there is none."""
        if leader._thread != threading.main_thread().ident:
            return None
        others = (r for r in self._waiting if r._called is not None and r._thread != leader._thread)
        return next(others, None)

    def _appoint(self, heir: R, in_place_of: R | None) -> None:
        """Make a waiting thread the leader of an additional batch, or of one that another was to lead. No call separates the
        assignments."""
        assert heir._called is not None
        if in_place_of is None:
            self._batches += 1
        else:
            in_place_of._leads = False
        heir._leads = True
        try:
            heir._called.release()
        except RuntimeError:
            pass  # it is about to check

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
        except RuntimeError as error:  # the threads were shut down: no thread is left to do the work
            with self._lock:
                left, self._waiting, self._weight = self._waiting, [], 0
                self._batches -= begun
            for request in left:
                request.error = error
            _notify(left, None)


class _Turn:
    """A batch in progress; `over` once it no longer counts."""

    over = False


def _wake_up(called: threading.Lock) -> None:
    try:
        called.release()
    except RuntimeError:
        pass  # it is about to check


def _shared_error(failure: BaseException) -> BaseException:
    """Return the error for requests of other threads in a batch: an interrupt of the leader becomes CommitInterruptedError."""
    if isinstance(failure, Exception):
        return failure
    return CommitInterruptedError(
        "the thread that wrote this in a group commit was interrupted",
        detail="it is not known whether this was written",
        hint="read what is there, or repeat it idempotently: append(..., producer=, sequence=), execute(..., command_id=)",
    )


def _notify(batch: Sequence[Request], leader: Request | None) -> None:
    """Wake the callers whose requests are done: threads, and event loops, each of them once."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for other in batch:
        other._notified = True
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
