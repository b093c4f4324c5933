"""Processes that react, serve and call, killed (-9) at every step and at any moment: each event, and each call, has one effect."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import headwater as hw
from tests.conftest import LONG
from tests.events.accounts import Deposit, Open, accounts
from tests.events.dying import NEVER
from tests.events.paying import Paid, Pay, serving

ROOT = Path(__file__).resolve().parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
STEPS_MAX = 60


def command(folder: Path, role: str, step: int = NEVER) -> list[str]:
    return [sys.executable, "-m", "tests.events.dying", str(folder), role, str(step)]


def until_it_survives(folder: Path, role: str, steps: range) -> list[int]:
    """Start it again and again, to die one step later each time, until it has done all; how each ended."""
    ended: list[int] = []
    for step in steps:
        ended.append(subprocess.run(command(folder, role, step), env=ENVIRON, timeout=60).returncode)
        if ended[-1] == 0:
            break
    return ended


def check_reacted(ws: hw.Workspace, opened: int, paid: int) -> None:
    """Each event was reacted to once, and says what led to it."""
    store = ws.store(accounts)
    events = [one for name in (*_names(opened), "bank") for one in store.events(name)]
    reacted = [one for one in events if one.actor == "reaction share"]
    causes = {one.id: one for one in events if one.actor != "reaction share"}
    assert len(causes) == opened + paid
    expected = Counter({one.id: 2 if one.command == "Open" else 1 for one in causes.values()})
    assert Counter(one.causation_id for one in reacted) == expected
    assert all(one.correlation_id == causes[str(one.causation_id)].correlation_id for one in reacted)
    assert store.load("bank").state.balance == 100 * opened + 5 * paid


def _names(count: int) -> list[str]:
    return [f"a{number}" for number in range(count)]


def test_a_reaction_that_dies_at_every_step_reacts_to_each_event_once(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        store = ws.store(accounts)
        for name in _names(2):
            store.execute(name, Open(name))
            store.execute(name, Deposit(5), correlation_id=f"salary of {name}")
    ended = until_it_survives(tmp_path, "react", range(1, STEPS_MAX))
    assert ended[-1] == 0
    assert ended[:-1] == [-signal.SIGKILL] * (len(ended) - 1)
    assert len(ended) > 2
    with hw.open(tmp_path) as ws:
        check_reacted(ws, 2, 2)


def test_reactions_of_several_processes_killed_at_any_moment_react_to_each_event_once(tmp_path: Path) -> None:
    chance, count = random.Random(5), 60 if LONG else 24

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(tmp_path, "keep reacting"),
            env=ENVIRON,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    with hw.open(tmp_path) as ws:
        store = ws.store(accounts)
        processes = [start(), start()]
        try:
            for number, name in enumerate(_names(count)):
                store.execute(name, Open(name))
                store.execute(name, Deposit(5))
                if number % (count // 2) == count // 4:
                    ws.log.wait_commit(ws.log.sequence(), chance.random() * 50)
                    victim = processes.pop(chance.randrange(2))
                    victim.kill()
                    victim.communicate()
                    processes.append(start())
            while store.load("bank").version < 2 * count:
                ws.log.wait_commit(ws.log.sequence(), 1_000)
            for process in processes:
                process.communicate(timeout=60)
            assert [process.returncode for process in processes] == [0, 0]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        check_reacted(ws, count, count)


def test_a_caller_that_dies_at_every_step_has_one_effect_and_gets_the_reply(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        service = serving(ws)
        service.start()
        ended = until_it_survives(tmp_path, "call", range(1, 6))
        service.stop()
        assert ended == [
            -signal.SIGKILL,
            -signal.SIGKILL,
            0,
        ]  # before the request was there, after, and not at all
        assert ws.store(accounts).load("a").state.balance == 7
        assert ws.log.partitions("pay")[0].rows == ws.log.partitions("pay_replies")[0].rows == 1


def test_a_service_that_dies_at_every_step_has_one_effect(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        try:
            ws.call("pay", Pay("a", 7), 0, call_id="1")
        except hw.LogTimeoutError:
            pass  # nobody serves yet
    ended = until_it_survives(tmp_path, "serve", range(1, 8))
    assert ended[-1] == 0
    assert ended[0] == -signal.SIGKILL
    with hw.open(tmp_path) as ws:
        assert ws.store(accounts).load("a").state.balance == 7
        assert ws.call("pay", Pay("a", 7), 0, call_id="1", returns=Paid) == Paid(7, 1)
