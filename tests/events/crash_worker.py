"""A worker of `test_crash_store`: threads that execute a fixed list of commands, and say what each was told."""

from __future__ import annotations

import json
import os
import random
import sys
import threading

import headwater as hw
from tests.events.accounts import Account, Command, Deposit, Event, Open, Touch, Withdraw, accounts

AGGREGATES = "abcd"
THREADS = 3
COMMANDS = 120 if os.environ.get("HEADWATER_LONG") == "1" else 25
SAYING = threading.Lock()


def commands_of(seed: int, worker: int, thread: int) -> list[tuple[str, Command]]:
    """The commands of one thread, the same each time."""
    chance = random.Random(f"{seed}-{worker}-{thread}")
    made: list[tuple[str, Command]] = []
    for _ in range(COMMANDS):
        amount = chance.randint(1, 9)
        command = chance.choice(
            [Open(f"{worker}-{thread}"), Deposit(amount), Withdraw(amount), Withdraw(amount * 2), Touch()]
        )
        made.append((chance.choice(AGGREGATES), command))
    return made


def work(store: hw.events.Store[Account, Command, Event], seed: int, worker: int, thread: int) -> None:
    for number, (aggregate_id, command) in enumerate(commands_of(seed, worker, thread)):
        name = f"{worker}-{thread}-{number}"
        said: int | str
        try:
            said = store.execute(aggregate_id, command, command_id=name).version
        except hw.CommandRefusedError as error:
            said = error.message
        with SAYING:
            print(json.dumps([name, said]), flush=True)


def main(folder: str, seed: int, worker: int) -> None:
    with hw.open(folder) as ws:
        store = ws.store(accounts, partitions=2)
        threads = [threading.Thread(target=work, args=(store, seed, worker, n)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
