"""Requests of several threads are done together, each with its own outcome."""

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import headwater as hw
from headwater.core.group_commit import GroupCommit, Limits, Request


class Number(Request):
    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value
        self.doubled = 0


def test_one_alone_is_done_by_itself() -> None:
    batches: list[int] = []

    def work(requests: Sequence[Number]) -> None:
        batches.append(len(requests))
        for request in requests:
            request.doubled, request.done = request.value * 2, True

    gathering = GroupCommit(work)
    for value in range(3):
        request = Number(value)
        gathering.submit(request)
        assert request.doubled == value * 2
    assert batches == [1, 1, 1]


def test_those_who_come_meanwhile_are_done_together_each_once_and_with_its_own_error() -> None:
    first_is_at_work, go_on = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def work(requests: Sequence[Number]) -> None:
        batches.append([r.value for r in requests])
        if len(batches) == 1:
            first_is_at_work.set()
            assert go_on.wait(20)
        for request in requests:
            if request.value == 7:
                request.error = ValueError("seven")
            else:
                request.doubled, request.done = request.value * 2, True

    gathering = GroupCommit(work)
    outcomes: dict[int, object] = {}

    def ask(value: int) -> None:
        request = Number(value)
        try:
            gathering.submit(request)
            outcomes[value] = request.doubled
        except ValueError as error:
            outcomes[value] = str(error)

    threads = [threading.Thread(target=ask, args=(0,))]
    threads[0].start()
    assert first_is_at_work.wait(20)
    for value in range(1, 10):
        threads.append(threading.Thread(target=ask, args=(value,)))
        threads[-1].start()
        while len(gathering._waiting) < value:
            pass
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert outcomes == {value: "seven" if value == 7 else value * 2 for value in range(10)}
    assert batches == [[0], list(range(1, 10))]


def test_when_the_work_fails_all_who_were_in_it_hear_of_it() -> None:
    def work(requests: Sequence[Number]) -> None:
        raise OSError("disk")

    gathering = GroupCommit(work)
    with pytest.raises(OSError, match="disk"):
        gathering.submit(Number(1))
    with pytest.raises(OSError, match="disk"):
        gathering.submit(Number(2))


def doubling(requests: Sequence[Number]) -> None:
    for request in requests:
        request.doubled, request.done = request.value * 2, True


def test_event_loops_post_and_share_batches_with_threads() -> None:
    batches: list[int] = []

    def work(requests: Sequence[Number]) -> None:
        batches.append(len(requests))
        for request in requests:
            if request.value == 7:
                request.error = ValueError("seven")
        doubling([r for r in requests if r.error is None])

    gathering = GroupCommit(work, Limits(most=40))

    async def main(threads: ThreadPoolExecutor) -> None:
        requests = [Number(value) for value in range(100)]
        await asyncio.gather(*(gathering.post(request, threads) for request in requests))
        assert [r.doubled for r in requests if r.value != 7] == [2 * v for v in range(100) if v != 7]
        assert [str(r.error) for r in requests if r.error is not None] == ["seven"]

    with ThreadPoolExecutor(1) as threads:
        others = [Number(value) for value in range(200, 260)]
        asking = threading.Thread(target=gathering.submit_all, args=(others,))
        asking.start()
        asyncio.run(main(threads))
        asking.join(20)
    assert all(request.doubled == 2 * request.value for request in others)
    assert sum(batches) == 160
    assert max(batches) <= 40


def test_who_posts_to_threads_that_are_gone_hears_of_it() -> None:
    at_work, go_on = threading.Event(), threading.Event()

    def work(requests: Sequence[Number]) -> None:
        at_work.set()
        assert go_on.wait(20)
        doubling(requests)

    gathering = GroupCommit(work, Limits(most=1))
    threads = ThreadPoolExecutor(1)

    async def main() -> list[Number]:
        requests = [Number(value) for value in range(3)]
        futures = [gathering.post(request, threads) for request in requests]
        assert await asyncio.to_thread(at_work.wait, 20)
        threads.shutdown(wait=False)
        go_on.set()
        await asyncio.gather(*futures)
        return requests

    first, *others = asyncio.run(main())
    assert first.error is None
    assert all(isinstance(one.error, RuntimeError) for one in others)


class Heavy(Number):
    def __init__(self, value: int, weight: int) -> None:
        super().__init__(value)
        self.weight = weight


def test_a_second_batch_begins_beside_the_first_once_enough_waits() -> None:
    release = threading.Semaphore(0)
    batches: list[list[int]] = []
    began = threading.Semaphore(0)

    def work(requests: Sequence[Heavy]) -> None:
        batches.append([request.value for request in requests])
        began.release()
        assert release.acquire(timeout=20)
        doubling(requests)

    gathering = GroupCommit(work, Limits(most=3, weight_max=10, overlap_weight=8))

    async def main(threads: ThreadPoolExecutor) -> None:
        requests = [Heavy(value, weight) for value, weight in enumerate([1, 3, 3, 3, 20, 1, 1, 1, 1])]
        futures = [gathering.post(requests[0], threads)]
        assert await asyncio.to_thread(began.acquire, timeout=20)
        futures += [gathering.post(request, threads) for request in requests[1:3]]
        assert len(batches) == 1  # too little waits
        futures.append(gathering.post(requests[3], threads))
        assert await asyncio.to_thread(began.acquire, timeout=20)
        assert batches == [[0], [1, 2, 3]]
        futures += [gathering.post(request, threads) for request in requests[4:]]
        for _ in range(5):
            release.release()
        await asyncio.gather(*futures)
        assert [request.doubled for request in requests] == [2 * request.value for request in requests]

    with ThreadPoolExecutor(2) as threads:
        asyncio.run(main(threads))
    assert sorted(batches) == [[0], [1, 2, 3], [4], [5, 6, 7], [8]]


class Stage:
    """Work that waits to be let on, and by which threads it was done."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.batches: list[tuple[bool, list[int]]] = []

    def work(self, requests: Sequence[Number]) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self.batches.append((in_main, [request.value for request in requests]))
        self.begun.release()
        assert self.go_on.acquire(timeout=20)
        doubling(requests)


def in_thread(gathering: GroupCommit[Number], value: int) -> tuple[threading.Thread, Number]:
    request = Number(value)
    thread = threading.Thread(target=gathering.submit, args=(request,), daemon=True)
    thread.start()
    return thread, request


def waiting(gathering: GroupCommit[Number], count: int) -> None:
    while len(gathering._waiting) < count:
        time.sleep(0.001)


def test_the_main_thread_leads_nobody_but_itself() -> None:
    stage = Stage()
    gathering = GroupCommit(stage.work)
    others = [in_thread(gathering, 1)]
    assert stage.begun.acquire(timeout=20)

    def meanwhile() -> None:
        waiting(gathering, 1)  # the main thread's own
        others.extend(in_thread(gathering, value) for value in (3, 4))
        waiting(gathering, 3)
        for _ in range(2):
            stage.go_on.release()

    director = threading.Thread(target=meanwhile)
    director.start()
    own = Number(2)
    gathering.submit(own)
    director.join(20)
    for thread, request in others:
        thread.join(20)
        assert request.doubled == request.value * 2
    assert own.doubled == 4
    assert [in_main for in_main, _ in stage.batches] == [False, False]
    assert sorted(value for _, values in stage.batches for value in values) == [1, 2, 3, 4]


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]


def test_who_is_interrupted_while_it_waits_takes_its_request_back_and_holds_up_nobody() -> None:
    stage = Stage()
    gathering = GroupCommit(stage.work)
    first = in_thread(gathering, 1)
    assert stage.begun.acquire(timeout=20)

    def meanwhile() -> None:
        waiting(gathering, 1)
        interrupt_main()

    threading.Thread(target=meanwhile, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        gathering.submit(Number(2))
    assert not gathering._waiting
    later = in_thread(gathering, 3)
    waiting(gathering, 1)
    for _ in range(2):
        stage.go_on.release()
    for thread, request in (first, later):
        thread.join(20)
        assert request.done
    assert [values for _, values in stage.batches] == [[1], [3]]


def test_those_who_come_while_one_is_interrupted_at_work_are_done_by_one_of_them() -> None:
    stage = Stage()
    gathering = GroupCommit(stage.work)
    others: list[tuple[threading.Thread, Number]] = []

    def meanwhile() -> None:
        assert stage.begun.acquire(timeout=20)  # the main thread, for itself alone
        others.extend(in_thread(gathering, value) for value in (2, 3))
        waiting(gathering, 2)
        interrupt_main()
        stage.go_on.release()

    director = threading.Thread(target=meanwhile)
    director.start()
    with pytest.raises(KeyboardInterrupt):
        gathering.submit(Number(1))
    director.join(20)
    stage.go_on.release()
    for thread, request in others:
        thread.join(20)
        assert (request.done, request.error) == (True, None)
    assert stage.batches[0] == (True, [1])
    assert sorted(stage.batches[1][1]) == [2, 3]


def test_who_waited_for_a_thread_that_was_interrupted_is_told_so_and_not_interrupted() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def work(requests: Sequence[Number]) -> None:
        begun.release()
        assert go_on.acquire(timeout=20)
        if len(requests) > 1:
            requests[0].done = True
            raise SystemExit(1)
        doubling(requests)

    gathering = GroupCommit(work)
    outcomes: dict[int, BaseException | None] = {}

    def ask(value: int) -> None:
        try:
            gathering.submit(Number(value))
            outcomes[value] = None
        except BaseException as error:  # noqa: BLE001 - what each of them hears is the question
            outcomes[value] = error

    threads = [threading.Thread(target=ask, args=(0,))]
    threads[0].start()
    assert begun.acquire(timeout=20)
    for value in (1, 2, 3):
        threads.append(threading.Thread(target=ask, args=(value,)))
        threads[-1].start()
        waiting(gathering, value)
    for _ in range(2):
        go_on.release()
    for thread in threads:
        thread.join(20)
    assert outcomes[0] is None
    assert isinstance(outcomes[1], SystemExit), "it led, and it was interrupted"
    assert [type(outcomes[value]) for value in (2, 3)] == [hw.CommitInterruptedError] * 2
