"""Request and reply over the log: one reply for each call, whichever side dies, and one effect."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.events import Call
from tests.events.accounts import Deposit, accounts
from tests.events.paying import Paid, Pay, serving
from tests.raising import raises


@dataclass(frozen=True)
class Ask:
    number: int

    def __post_init__(self) -> None:
        if self.number > 100:
            raise ValueError("too large a number")


@dataclass(frozen=True)
class LooseAsk:
    """What a caller with other code sends."""

    number: int


@dataclass(frozen=True)
class Told:
    number: int


def test_a_call_is_answered_and_asked_again_gets_the_same(ws: hw.Workspace) -> None:
    service = serving(ws)
    service.start()
    assert ws.call("pay", Pay("a", 5), 20, call_id="1", returns=Paid) == Paid(5, 1)
    assert ws.call("pay", Pay("a", 5), 20, returns=Paid) == Paid(10, 2)
    assert asyncio.run(ws.call_async("pay", Pay("a", 5), 20, call_id="1")) == {"balance": 5, "version": 1}
    service.stop()
    assert ws.call("pay", Pay("a", 5), 0, call_id="1", returns=Paid) == Paid(5, 1)  # nobody needs to be there
    assert ws.store(accounts).load("a").state.balance == 10
    with raises(hw.UsageError, topic="pay", call_id="1"):
        ws.call("pay", Pay("a", 6), call_id="1")


def test_nobody_there_is_a_timeout_and_the_reply_comes_later(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        with raises(hw.LogTimeoutError, topic="pay", timeout_ms=10.0) as late:
            ws.call("pay", Pay("a", 5), 0.01)
        assert serving(ws).run() == 1
        assert ws.call("pay", Pay("a", 5), 0, call_id=late.value.call_id, returns=Paid) == Paid(5, 1)


def test_a_failure_is_an_answer_too(ws: hw.Workspace) -> None:
    service = serving(ws)
    service.start()
    with raises(hw.CallFailedError, topic="pay", call_id="n") as refused:
        ws.call("pay", Pay("a", -1), 20, call_id="n")
    with raises(hw.CallFailedError, topic="pay", call_id="z") as failed:
        ws.call("pay", Pay("a", 0), 20, call_id="z")
    assert "ZeroDivisionError" in failed.value.message
    service.stop()
    with raises(hw.CallFailedError, topic="pay", call_id="n") as again:
        ws.call("pay", Pay("a", -1), 0, call_id="n")
    assert again.value.message == refused.value.message == "an amount is positive"
    assert "a" not in ws.store(accounts)


def test_two_services_answer_each_call_once(tmp_path: Path) -> None:
    with hw.open(tmp_path) as one, hw.open(tmp_path) as two, hw.open(tmp_path) as asking:
        services = [serving(one), serving(two)]
        for service in services:
            service.start()
        replies: list[Paid] = []

        def ask(number: int) -> None:
            replies.append(asking.call("pay", Pay("a", 1), 60, call_id=str(number), returns=Paid))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for service in services:
            service.stop()
        assert sorted(reply.version for reply in replies) == list(range(1, 21))
        assert asking.log.partitions("pay_replies")[0].rows == 20


def test_an_invalid_request_is_refused(ws: hw.Workspace) -> None:
    with raises(hw.UsageError, argument="request", value={"amount": 1}):
        ws.call("pay", {"amount": 1})
    with raises(hw.UsageError, argument="call_id", value=""):
        ws.call("pay", Pay("a", 1), call_id="")
    for wrong in (-1, "5", float("nan")):
        with raises(hw.UsageError, argument="timeout", value=wrong):
            ws.call("pay", Pay("a", 1), wrong)  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="topic", value=5):
        ws.call(5, Pay("a", 1))  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="returns", value=int):
        ws.call("pay", Pay("a", 1), returns=int)
    assert "pay" not in ws.log.topics(), "nothing was sent"
    with raises(hw.UsageError, argument="topic", value=5):
        ws.serve(5)  # type: ignore[arg-type]
    with raises(hw.SchemaError, function="untyped", reason="not-annotated"):

        @ws.serve("pay")
        def untyped(request):  # type: ignore[no-untyped-def]
            return None


def test_a_request_that_its_class_refuses_is_answered_and_holds_nobody_up(ws: hw.Workspace) -> None:
    @ws.serve("ask")
    def double(request: Ask) -> Told:
        return Told(2 * request.number)

    double.start()
    with raises(hw.CallFailedError, topic="ask") as failed:
        ws.call("ask", LooseAsk(101), 20)
    assert failed.value.message.endswith("ValueError: too large a number")
    assert ws.call("ask", LooseAsk(21), 20, returns=Told) == Told(42)
    double.stop()


def test_a_reply_of_another_form_is_answered_as_a_failure(ws: hw.Workspace) -> None:
    @ws.serve("ask")
    def wrong(request: Ask) -> Told:
        return {1: None, 2: Told("text")}[request.number]  # type: ignore[arg-type, return-value]

    wrong.start()
    for number in (1, 2):
        with pytest.raises(hw.CallFailedError):
            ws.call("ask", Ask(number), 20)
    wrong.stop()


def test_a_conflict_is_the_answer_of_a_service_that_named_a_version(ws: hw.Workspace) -> None:
    store = ws.store(accounts)

    @ws.serve("ask")
    def at_version(request: Ask, call: Call) -> Told:
        return Told(store.execute("a", Deposit(1), command_id=call.id, version=request.number).version)

    at_version.start()
    with raises(hw.CallFailedError, topic="ask") as failed:
        ws.call("ask", Ask(3), 20)
    assert "at version 0, not 3" in failed.value.message
    assert ws.call("ask", Ask(0), 20, returns=Told) == Told(1)
    at_version.stop()


def test_a_slow_call_does_not_keep_the_replies_before_it(ws: hw.Workspace, clock: ManualClock) -> None:
    for number in range(3):
        with pytest.raises(hw.LogTimeoutError):
            ws.call("ask", Ask(number), 0, call_id=str(number))
    seen: list[int] = []

    @ws.serve("ask")
    def slowly(request: Ask) -> Told:
        seen.append(ws.log.partitions("ask_replies")[0].rows)
        clock.advance("50 ms")
        return Told(request.number)

    assert slowly.run() == 3
    assert seen == [0, 1, 2], "each is written before the next is served"


def test_what_may_pass_keeps_neither_the_replies_before_it_nor_the_call(ws: hw.Workspace) -> None:
    for number in range(3):
        with pytest.raises(hw.LogTimeoutError):
            ws.call("ask", Ask(number), 0, call_id=str(number))
    served: list[int] = []

    @ws.serve("ask")
    def at_times(request: Ask) -> Told:
        served.append(request.number)
        if request.number == 1 and served.count(1) < 3:
            raise hw.DiskFullError("no space")
        return Told(request.number)

    at_times.start()
    assert ws.call("ask", Ask(2), 20, call_id="2", returns=Told) == Told(2)
    at_times.stop()
    assert served == [0, 1, 1, 1, 2]


def test_a_reply_that_does_not_fit_its_class_is_an_error(ws: hw.Workspace) -> None:
    service = serving(ws)
    with pytest.raises(hw.LogTimeoutError):
        ws.call("pay", Pay("a", 1), 0, call_id="1")
    service.run()
    with raises(hw.UsageError, call_id="1", returns="Pay"):
        ws.call("pay", Pay("a", 1), 0, call_id="1", returns=Pay)


def test_a_cancelled_call_leaves_no_thread_behind_and_its_reply_is_there_later(tmp_path: Path) -> None:
    async def main(ws: hw.Workspace) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ws.call_async("pay", Pay("a", 5), 600, call_id="1")
        with raises(hw.LogTimeoutError, call_id="1", timeout_ms=600.0):
            await ws.call_async("pay", Pay("a", 5), 0.6, call_id="1")

    with hw.open(tmp_path) as ws:
        asyncio.run(main(ws))  # which waits for its threads
        assert serving(ws).run() == 1
        assert ws.call("pay", Pay("a", 5), None, call_id="1", returns=Paid) == Paid(5, 1)


def test_a_service_is_collected_while_another_loop_runs(ws: hw.Workspace) -> None:
    @ws.serve("ask")
    async def double(request: Ask) -> Told:
        return Told(2 * request.number)

    with pytest.raises(hw.LogTimeoutError):
        ws.call("ask", Ask(4), 0)
    assert double.run() == 1
    del double

    async def collect() -> None:
        gc.collect()

    asyncio.run(collect())


def test_a_service_may_be_a_coroutine_function(ws: hw.Workspace) -> None:
    loops = set()

    @ws.serve("ask")
    async def double(request: Ask) -> Told:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return Told(2 * request.number)

    async def main() -> None:
        with pytest.raises(hw.LogTimeoutError):
            await ws.call_async("ask", Ask(4), 0, call_id="1")
        assert await double.run_async() == 1
        assert await ws.call_async("ask", Ask(4), 0, call_id="1", returns=Told) == Told(8)

    asyncio.run(main())
    double.start()
    assert ws.call("ask", Ask(5), 20, returns=Told) == Told(10)
    double.stop()
    assert len(loops) == 1
