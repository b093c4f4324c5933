"""Request and reply over the log: one reply for each call, whichever side dies, and one effect."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import headwater as hw
from tests.events.accounts import accounts
from tests.events.paying import Paid, Pay, serving

ROOT = Path(__file__).resolve().parents[2]


def test_a_call_is_answered_and_asked_again_gets_the_same(ws: hw.Workspace) -> None:
    service = serving(ws)
    service.start()
    assert ws.call("pay", Pay("a", 5), 20, call_id="1", returns=Paid) == Paid(5, 1)
    assert ws.call("pay", Pay("a", 5), 20, returns=Paid) == Paid(10, 2)
    assert asyncio.run(ws.call_async("pay", Pay("a", 5), 20, call_id="1")) == {"balance": 5, "version": 1}
    service.stop()
    assert ws.call("pay", Pay("a", 5), 0, call_id="1", returns=Paid) == Paid(5, 1)  # nobody needs to be there
    assert ws.store(accounts).load("a").state.balance == 10
    with pytest.raises(hw.UsageError, match="used for another request"):
        ws.call("pay", Pay("a", 6), call_id="1")


def test_nobody_there_is_a_timeout_and_the_reply_comes_later(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        with pytest.raises(hw.LogTimeoutError, match="not answered within") as late:
            ws.call("pay", Pay("a", 5), 0.01)
        assert serving(ws).run() == 1
        assert ws.call("pay", Pay("a", 5), 0, call_id=late.value.call_id, returns=Paid) == Paid(5, 1)


def test_a_failure_is_an_answer_too(ws: hw.Workspace) -> None:
    service = serving(ws)
    service.start()
    with pytest.raises(hw.CallFailedError, match="an amount is positive"):
        ws.call("pay", Pay("a", -1), 20, call_id="n")
    with pytest.raises(hw.CallFailedError, match="pay of 'pay' failed on call 'z': ZeroDivisionError"):
        ws.call("pay", Pay("a", 0), 20, call_id="z")
    service.stop()
    with pytest.raises(hw.CallFailedError, match="an amount is positive"):
        ws.call("pay", Pay("a", -1), 0, call_id="n")
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


SERVER = """
import os, signal, sys
import headwater as hw
from tests.events.paying import serving

folder, die_at = sys.argv[1], int(sys.argv[2])
steps = 0
with hw.open(folder) as ws:
    append = ws.log.append

    def dying(what):
        global steps
        for moment in ("before", "after"):
            steps += 1
            if steps == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if moment == "before":
                receipt = append(what)
        return receipt

    service = serving(ws)
    ws.log.append = dying
    service.run()
"""


@pytest.mark.slow
def test_a_service_that_is_killed_at_any_step_has_one_effect(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        with pytest.raises(hw.LogTimeoutError):
            ws.call("pay", Pay("a", 7), 0, call_id="1")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ended: list[int] = []
    for die_at in range(1, 8):
        command = [sys.executable, "-c", SERVER, str(tmp_path), str(die_at)]
        ended.append(subprocess.run(command, env=environ, timeout=60).returncode)
        if ended[-1] == 0:
            break
    assert ended[-1] == 0
    assert ended[0] == -signal.SIGKILL
    with hw.open(tmp_path) as ws:
        assert ws.store(accounts).load("a").state.balance == 7
        assert ws.call("pay", Pay("a", 7), 0, call_id="1", returns=Paid) == Paid(7, 1)


def test_what_is_no_request_is_refused(ws: hw.Workspace) -> None:
    with pytest.raises(hw.UsageError, match="a request is a dataclass"):
        ws.call("pay", {"amount": 1})
    with pytest.raises(hw.UsageError, match="a call id is a text"):
        ws.call("pay", Pay("a", 1), call_id="")
    with pytest.raises(hw.SchemaError, match="does not say what it takes and gives"):

        @ws.serve("pay")
        def untyped(request):  # type: ignore[no-untyped-def]
            return None
