"""Random commands from threads of several processes, killed (-9) in between: what is there is what decide and fold say in memory.

Every worker has a fixed list of commands with ids, and begins from the first each time it is started. Whatever was acknowledged
before a kill must be what the same command is told afterwards; the events of the log, read in order, must be what an oracle in
memory decides for the same commands on the same states, each command once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from tests.conftest import LONG
from tests.events.accounts import Account, Command, accounts
from tests.events.crash_worker import AGGREGATES, COMMANDS, THREADS, commands_of

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
SEEDS = range(20 if LONG else 1)


def started(folder: Path, seed: int, worker: int) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.events.crash_worker", str(folder), str(seed), str(worker)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def acknowledged(process: subprocess.Popen[str], count: int | None) -> list[Any]:
    """What a worker was told; after so many answers it is killed, while it goes on."""
    found = []
    with process:
        for line in process.stdout or ():
            if not line.endswith("\n"):
                break  # cut off by the kill
            found.append(json.loads(line))
            if count is not None and len(found) == count:
                process.send_signal(signal.SIGKILL)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_there_is_what_an_oracle_in_memory_decides(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    told: dict[str, set[Any]] = defaultdict(set)
    for round_ in range(3):
        workers = [started(tmp_path, seed, number) for number in range(WORKERS)]
        limits = [chance.randint(5, COMMANDS * 2) if round_ < 2 else None for _ in workers]
        with ThreadPoolExecutor() as readers:
            for answers in readers.map(acknowledged, workers, limits):
                for name, said in answers:
                    told[name].add(said)
        assert [process.returncode for process in workers] == [
            0 if one is None else -signal.SIGKILL for one in limits
        ]
    names = {f"{w}-{t}-{n}" for w in range(WORKERS) for t in range(THREADS) for n in range(COMMANDS)}
    assert set(told) == names
    assert all(len(said) == 1 for said in told.values()), "an answer was another the second time"
    with hw.open(tmp_path) as ws:
        store = ws.store(accounts, partitions=2)
        versions = {one: _replayed(store, one, seed, told) for one in AGGREGATES}
        rows = [row for batch in ws.topic("_answers").read() for row in batch.to_pylist()]
        for (
            row
        ) in rows:  # what left no event was decided on a state that was there, and told as it is written
            state = versions[row["aggregate_id"]][row["version"]]
            aggregate_id, command = _command(seed, row["command_id"])
            assert aggregate_id == row["aggregate_id"]
            assert told[row["command_id"]] == {_answer(state, row["version"], command)}
        silent = {
            name for name in names if name not in {r.command_id for a in AGGREGATES for r in store.events(a)}
        }
        assert {row["command_id"] for row in rows} == silent


def test_the_same_ids_from_two_processes_at_once_have_one_effect_and_the_same_answers(tmp_path: Path) -> None:
    twins = [started(tmp_path, 3, 0) for _ in range(2)]
    with ThreadPoolExecutor() as readers:
        first, second = readers.map(acknowledged, twins, [None, None])
    assert sorted(first) == sorted(second)
    told: dict[str, set[Any]] = {name: {said} for name, said in first}
    assert len(told) == THREADS * COMMANDS
    with hw.open(tmp_path) as ws:
        store = ws.store(accounts, partitions=2)
        for one in AGGREGATES:
            _replayed(store, one, 3, told)


def _replayed(store: Any, aggregate_id: str, seed: int, told: dict[str, set[Any]]) -> dict[int, Account]:
    """The states of an aggregate by version, decided and folded in memory from the commands that its events name."""
    states, state, done = {0: Account()}, Account(), set()
    for recorded in store.events(aggregate_id):
        assert recorded.command_id not in done, "a command had two effects"
        done.add(recorded.command_id)
        whose, command = _command(seed, recorded.command_id)
        assert whose == aggregate_id
        assert accounts.decide(state, command).events == (recorded.event,)
        state = accounts.fold(state, recorded.event)
        states[recorded.version] = state
        assert told[recorded.command_id] == {recorded.version}
    if states.keys() != {0}:
        assert store.load(aggregate_id).state == state
    return states


def _command(seed: int, name: str) -> tuple[str, Command]:
    worker, thread, number = map(int, name.split("-"))
    return commands_of(seed, worker, thread)[number]


def _answer(state: Account, version: int, command: Command) -> Any:
    try:
        assert not accounts.decide(state, command).events
    except hw.CommandRefusedError as refused:
        return refused.message
    return version
