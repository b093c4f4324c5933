"""Threads for blocking work, with limits on the number of waiting requests and on the time of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
        self._places = asyncio.Semaphore(threads)
        self._spare = threads * spare
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
                "more is being read than there are threads for",
                hint="come again a little later",
                headers=retry_after(self._retry_after_s),
            )
        bound = self._seconds if seconds is None else seconds
        place: _Place | None = None
        self._count += 1
        try:
            async with asyncio.timeout(bound) as limit:
                await self._places.acquire()
                work = asyncio.get_running_loop().run_in_executor(self._threads, act)
                place = _Place(self, work)
                return await asyncio.shield(work)
        except TimeoutError:
            if not limit.expired():
                raise
            if place is not None:
                place.leave()
            raise (late or too_slow)(bound) from None
        finally:
            self._count -= 1

    async def close(self) -> None:
        """Cancel waiting requests, and wait for running ones to end."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


class _Place:
    """The use of a thread by a request, until its work ends, or until the request was answered and an extra thread
    replaces it."""

    def __init__(self, work: WorkerPool, future: asyncio.Future[T]) -> None:
        self._work = work
        self._left = False
        future.add_done_callback(self._ended)

    def leave(self) -> None:
        """Free the place for another request, while the thread continues."""
        if self._work._spare > 0 and not self._left:
            self._left = True
            self._work._spare -= 1
            self._work._places.release()

    def _ended(self, future: asyncio.Future[T]) -> None:
        if not future.cancelled():
            future.exception()  # marks the exception as retrieved: the request may have been answered already
        if self._left:
            self._work._spare += 1
        else:
            self._left = True
            self._work._places.release()


def query_too_slow(seconds: float) -> Problem:
    """Return the problem for a query that exceeds its time."""
    return Problem(
        504,
        "query-too-slow",
        f"this query took longer than {seconds:g} s, and was broken off",
        hint="make it a view and read that; or let queries take longer: headwater serve --query-timeout '2 minutes'",
        facts={"seconds_max": seconds},
    )


def too_slow(seconds: float) -> Problem:
    """Return the problem for a request that exceeds its time."""
    return Problem(
        504,
        "too-slow",
        f"this request took longer than {seconds:g} s",
        hint="ask for less, or let requests take longer: headwater serve --query-timeout '2 minutes'",
        facts={"seconds_max": seconds},
    )
