"""Event sourcing: commands a second with one durable commit for many, and loading a long aggregate; beside `eventsourcing` on SQLite.

The same account on both sides: opened, then paid into. Both keep states in memory and look for newer events before they decide, and
both sync before they acknowledge. The peer is left out where it is not installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks.harness import Bench, Case
from examples.events.bank import Deposit, Open, account
from headwater.events import Store

TITLE = "Event sourcing"
COMMANDS_GOAL = 5_000.0
LOAD_GOAL_MS = 10.0
ACCOUNTS = 1_000
THREADS = 64
TASKS = 1_000
PEER = importlib.util.find_spec("eventsourcing") is not None


def run(bench: Bench) -> None:
    """Commands first, then loading."""
    _commands(bench)
    _loading(bench)


def _commands(bench: Bench) -> None:
    commands = bench.size(20_000, 400)
    few = bench.size(1_000, 50)
    with bench.space() as space, _bank(space / "ws") as store:
        cases = [
            Case(f"{THREADS} threads", lambda _: _by_threads(_ours(store), commands), goal=COMMANDS_GOAL),
            Case(f"{TASKS:,} async callers", lambda _: _by_tasks(store, commands), goal=COMMANDS_GOAL),
            Case("one caller", lambda _: _by_threads(_ours(store), few, threads=1)),
        ]
        with _peer(space / "peer.db") as peer:
            if peer is not None:
                cases.append(
                    Case("eventsourcing, SQLite, one caller", lambda _: _by_threads(peer.deposit, few, 1))
                )
                cases.append(
                    Case(
                        f"eventsourcing, SQLite, {THREADS} threads", lambda _: _by_threads(peer.deposit, few)
                    )
                )
            bench.compare("commands executed, each durable", cases, unit="records/s")


def _loading(bench: Bench) -> None:
    events = bench.size(10_000, 300)
    group = f"an aggregate of {events:,} events, not in memory"
    with bench.space() as space, _bank(space / "ws") as store:
        store.execute("long", Open("ada"))
        for _ in range(events // 100):
            store.execute_all([store.send("long", Deposit(1)) for _ in range(100)])
        figures = [_timed(lambda: store.load("long"), store.forget) for _ in range(bench.runs * 4)]
        bench.note(group, "through a snapshot", "ms", figures, goal=LOAD_GOAL_MS)

        def without() -> None:
            store.forget()
            store.snapshots.clear()

        bench.note(
            group,
            "without snapshots",
            "ms",
            [_timed(lambda: store.load("long"), without) for _ in range(bench.runs)],
        )
        with _peer(space / "peer.db") as peer:
            if peer is None:
                return
            peer.fill("long", events)
            figures = [_timed(lambda: peer.load("long"), peer.forget) for _ in range(bench.runs)]
            bench.note(group, "eventsourcing, SQLite, without snapshots", "ms", figures)
            peer.snapshot("long")
            figures = [_timed(lambda: peer.load("long"), peer.forget) for _ in range(bench.runs * 4)]
            bench.note(group, "eventsourcing, SQLite, through a snapshot", "ms", figures)


@contextmanager
def _bank(folder: Path) -> Iterator[Store[Any, Any, Any]]:
    with hw.open(folder) as ws:
        store = ws.store(account)
        store.execute_all([store.send(str(number), Open("ada")) for number in range(ACCOUNTS)])
        yield store


@contextmanager
def _peer(file: Path) -> Iterator[Any]:
    if not PEER:
        yield None
        return
    from benchmarks.eventsourcing_bank import EventsourcingBank

    bank = EventsourcingBank(file, ACCOUNTS)
    try:
        yield bank
    finally:
        bank.close()


def _ours(store: Store[Any, Any, Any]) -> Callable[[str], object]:
    return lambda name: store.execute(name, Deposit(1))


def _by_threads(deposit: Callable[[str], object], commands: int, threads: int = THREADS) -> float:
    each = max(1, commands // threads)

    def work(number: int) -> None:
        for turn in range(each):
            deposit(str((number * each + turn) % ACCOUNTS))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return float(each * threads)


def _by_tasks(store: Store[Any, Any, Any], commands: int) -> float:
    each = max(1, commands // TASKS)

    async def work(number: int) -> None:
        for _ in range(each):
            await store.execute_async(str(number % ACCOUNTS), Deposit(1))

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(TASKS)))

    asyncio.run(main())
    return float(each * TASKS)


def _timed(work: Callable[[], object], before: Callable[[], None]) -> float:
    before()
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3
