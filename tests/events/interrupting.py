"""A program whose main thread is interrupted again and again while it appends and executes commands, and four threads with it.

Prints what it found as JSON: how often it was interrupted, what the other threads met, and whether what they did is there."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from types import FrameType

import headwater as hw
from tests.events.accounts import Deposit, accounts

THREADS = 4


def main(folder: str, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds + 40, exit=True)
    with hw.open(folder, durability="os") as ws:
        store, topic = ws.store(accounts), ws.topic("t", "n BIGINT")
        stop, met, done = threading.Event(), list[str](), [0] * THREADS

        def work(number: int) -> None:
            while not stop.is_set():
                try:
                    store.execute(f"a{number}", Deposit(1))
                    topic.append([{"n": number}])
                    done[number] += 1
                except BaseException as error:  # noqa: BLE001 - that they meet nothing is the question
                    met.append(repr(error))

        def interrupt() -> None:
            chance = random.Random(7)
            while not stop.wait(chance.uniform(0.002, 0.02)):
                os.kill(os.getpid(), signal.SIGINT)

        def turn() -> None:
            store.execute("main", Deposit(1))
            topic.append([{"n": -1}])

        def in_a_turn(_: int, frame: FrameType | None) -> None:
            """Interrupt the main thread where it is caught, and let what comes between two turns pass."""
            while frame is not None:
                if frame.f_code is turn.__code__:
                    raise KeyboardInterrupt
                frame = frame.f_back

        signal.signal(signal.SIGINT, in_a_turn)
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
        for thread in [*threads, threading.Thread(target=interrupt, daemon=True)]:
            thread.start()
        interrupted, own, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                while time.monotonic() < end:
                    turn()
                    own += 1
            except KeyboardInterrupt:
                interrupted += 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop.set()
        for thread in threads:
            thread.join(20)
        found = {
            "interrupted": interrupted,
            "own": own,
            "met": met,
            "stuck": sum(thread.is_alive() for thread in threads),
            "there": [store.load(f"a{number}").state.balance for number in range(THREADS)] == done,
            "own_there": store.load("main").state.balance >= own,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
