"""The threads of the server: every request gets its answer in time, and a thread that is stuck is replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headwater.web.problems import Problem
from headwater.web.worker_threads import WorkerPool


@contextmanager
def held() -> Iterator[threading.Event]:
    """An event that functions wait for, and that is set at the end, so that no thread stays."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def pool(threads: int = 1, waiting_max: int = 8, seconds: float = 60.0, spare: int = 1) -> WorkerPool:
    """A small pool."""
    return WorkerPool("test", threads, waiting_max, seconds, 1, spare)


def test_results_and_errors_reach_the_request() -> None:
    async def script() -> None:
        work = pool()
        assert await work.run(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await work.run(lambda: 1 // 0)
        assert await asyncio.gather(*(work.run(lambda n=n: n) for n in range(8))) == list(range(8))  # type: ignore[misc]
        await work.close()

    asyncio.run(script())


def test_one_request_too_many_is_rejected_at_once() -> None:
    async def script() -> None:
        work = pool(waiting_max=2)
        with held() as event:
            waiting = [asyncio.create_task(work.run(event.wait)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(Problem) as caught:
                await work.run(lambda: 7)
            assert caught.value.status == 429
            event.set()
            assert await asyncio.gather(*waiting) == [True, True]
        await work.close()

    asyncio.run(script())


def test_a_stuck_thread_is_replaced_while_spare_ones_are_left() -> None:
    async def script() -> None:
        work = pool(spare=1)
        with held() as event:
            with pytest.raises(Problem) as caught:
                await work.run(event.wait, 0.01)
            assert caught.value.status == 504
            assert await work.run(lambda: 7) == 7  # on the spare thread
            with pytest.raises(Problem):
                await work.run(event.wait, 0.01)
            with pytest.raises(Problem) as caught:  # none is left: the time for the wait is over
                await work.run(lambda: 7, 0.01)
            assert caught.value.status == 504
            event.set()
            assert await work.run(lambda: 8) == 8
        await work.close()

    asyncio.run(script())


def test_a_request_that_is_cancelled_while_it_waits_is_never_run() -> None:
    async def script() -> None:
        work = pool()
        ran: list[int] = []
        with held() as event:
            first = asyncio.create_task(work.run(event.wait))
            await asyncio.sleep(0)
            second = asyncio.create_task(work.run(lambda: ran.append(2)))
            await asyncio.sleep(0)
            second.cancel()
            event.set()
            assert await first
        assert await work.run(lambda: 3) == 3
        assert ran == []
        await work.close()

    asyncio.run(script())


def test_closing_ends_requests_that_wait() -> None:
    async def script() -> None:
        work = pool()
        with held() as event:
            first = asyncio.create_task(work.run(event.wait))
            await asyncio.sleep(0)
            second = asyncio.create_task(work.run(lambda: 2))
            await asyncio.sleep(0)
            closing = asyncio.create_task(work.close())
            with pytest.raises(asyncio.CancelledError):
                await second
            event.set()
            assert await first
            await closing

    asyncio.run(script())


def test_a_thread_that_becomes_free_replaces_one_that_is_stuck() -> None:
    async def script() -> None:
        work = pool(threads=1, spare=1)
        with held() as first, held() as second:
            for event in (first, second):  # both threads are stuck, and only one of them is replaced
                with pytest.raises(Problem):
                    await work.run(event.wait, 0.01)
            first.set()
            assert await work.run(lambda: 7, 5.0) == 7
            second.set()
        await work.close()

    asyncio.run(script())


def test_a_client_that_leaves_is_replaced_like_one_that_is_late() -> None:
    async def script() -> None:
        work = pool(threads=1, spare=1)
        with held() as event:
            leaving = asyncio.create_task(work.run(event.wait))
            await asyncio.sleep(0.01)
            leaving.cancel()
            assert await work.run(lambda: 7, 5.0) == 7
        await work.close()

    asyncio.run(script())


def test_stop_iteration_is_an_error_like_others() -> None:
    async def script() -> None:
        work = pool(spare=0)
        with pytest.raises(RuntimeError):
            await work.run(lambda: next(iter(())), 5.0)
        assert await work.run(lambda: 7, 5.0) == 7
        await work.close()

    asyncio.run(script())
