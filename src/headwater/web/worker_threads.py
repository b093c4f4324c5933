"""Threads for blocking work, with limits on the number of waiting requests and on the time of a request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar, cast

from headwater.web.problems import Problem, retry_after

T = TypeVar("T")

SPARE = 4
"""Extra threads for each thread, to replace threads that still work on requests that were already answered."""


class WorkerPool:
    """Threads for one kind of work. A request that takes too long is answered with 504; its thread goes on until its work
    ends, and until then an extra thread replaces it, up to a limit. Created, used and closed within one event loop."""

    def __init__(
        self,
        name: str,
        threads: int,
        waiting_max: int,
        seconds: float,
        retry_after_s: int,
        spare: int = SPARE,
    ) -> None:
        self._threads = ThreadPoolExecutor(threads * (1 + spare), f"headwater-web-{name}")
        self._free = threads
        self._spare = threads * spare
        self._waiting: deque[_Job] = deque()
        self._left: deque[_Job] = deque()
        """Jobs that occupy a thread though nobody waits for them, until an extra thread is free."""
        self._most = waiting_max
        self._seconds = seconds
        self._retry_after_s = retry_after_s
        self._count = 0

    async def run(
        self,
        act: Callable[[], T],
        seconds: float | None = None,
        late: Callable[[float], Problem] | None = None,
    ) -> T:
        """Run a function in a thread; Problem 429 if too many requests wait, 504 (or the problem of `late`) if it takes
        longer than `seconds`, including the wait for a thread."""
        if self._count >= self._most:
            raise Problem(
                429,
                "too-busy",
                "all threads that read are busy",
                hint="retry later",
                headers=retry_after(self._retry_after_s),
            )
        loop = asyncio.get_running_loop()
        job = _Job(act, loop.create_future())
        bound = self._seconds if seconds is None else seconds
        limit = loop.call_later(bound, self._expire, job, late or too_slow, bound)
        self._count += 1
        try:
            if self._free:
                self._start(job)
            else:
                self._waiting.append(job)
            return cast(T, await job.answer)
        except asyncio.CancelledError:
            self._leave(job)
            raise
        finally:
            limit.cancel()
            self._count -= 1

    async def close(self) -> None:
        """Cancel waiting requests, and wait for running ones to end."""
        while self._waiting:
            self._waiting.popleft().answer.cancel()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _start(self, job: _Job) -> None:
        self._threads.submit(job.work, self._finish)
        self._free -= 1
        job.has_thread = True

    def _expire(self, job: _Job, late: Callable[[float], Problem], bound: float) -> None:
        """Answer a request whose time is over, and let an extra thread replace the one that still works on it."""
        if job.answer.done():
            return
        job.answer.set_exception(late(bound))
        self._leave(job)

    def _leave(self, job: _Job) -> None:
        """Let an extra thread replace the one of a job that nobody waits for any more, as soon as there is one."""
        if not job.has_thread:
            with suppress(ValueError):  # the pool was closed
                self._waiting.remove(job)
        elif not job.has_ended:
            self._left.append(job)
            self._replace()

    def _replace(self) -> None:
        while self._spare > 0 and self._left:
            self._left.popleft().is_replaced = True
            self._spare -= 1
            self._freed()

    def _finish(self, job: _Job, result: object, error: BaseException | None) -> None:
        """Pass on what a thread returned, unless the request was answered already, and give the thread to the next."""
        job.has_ended = True
        if not job.answer.done():
            if error is None:
                job.answer.set_result(result)
            else:
                job.answer.set_exception(error)
        if job.is_replaced:
            self._spare += 1
            self._replace()
        else:
            if job in self._left:
                self._left.remove(job)
            self._freed()

    def _freed(self) -> None:
        self._free += 1
        while self._waiting:
            job = self._waiting.popleft()
            if not job.answer.done():  # its client is gone, or its time was over
                self._start(job)
                return


class _Job:
    """A function that a request waits for, and the future of its result."""

    def __init__(self, act: Callable[[], object], answer: asyncio.Future[object]) -> None:
        self._act = act
        self.answer = answer
        self.has_thread = False
        self.has_ended = False
        self.is_replaced = False
        """Whether the request was answered before its work ended, and an extra thread took the place of this one."""

    def work(self, ended: Callable[[_Job, object, BaseException | None], None]) -> None:
        """Call the function, in a thread, and pass its result or error to `ended`, in the event loop."""
        result: object = None
        error: BaseException | None = None
        try:
            result = self._act()
        except StopIteration as raised:  # no future can have it as its error
            error = RuntimeError("the function raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 - raised again where the result is awaited
            error = raised
        with suppress(RuntimeError):  # the event loop was closed while the function ran
            self.answer.get_loop().call_soon_threadsafe(ended, self, result, error)


def query_too_slow(seconds: float) -> Problem:
    """Return the problem for a query that exceeds its time."""
    return Problem(
        504,
        "query-too-slow",
        f"this query took longer than {seconds:g} s, and was cancelled",
        hint="create a view of it, and read the view; or raise the limit: headwater serve --query-timeout '2 minutes'",
        facts={"seconds_max": seconds},
    )


def too_slow(seconds: float) -> Problem:
    """Return the problem for a request that exceeds its time."""
    return Problem(
        504,
        "too-slow",
        f"this request took longer than {seconds:g} s",
        hint="request less, or raise the limit: headwater serve --query-timeout '2 minutes'",
        facts={"seconds_max": seconds},
    )
