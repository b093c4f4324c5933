"""Requests of several threads are done together, each with its own outcome."""

import threading
from collections.abc import Sequence

import pytest

from headwater.log.embedded.gathering import Gathering, Request


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

    gathering = Gathering(work)
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

    gathering = Gathering(work)
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

    gathering = Gathering(work)
    with pytest.raises(OSError, match="disk"):
        gathering.submit(Number(1))
    with pytest.raises(OSError, match="disk"):
        gathering.submit(Number(2))
