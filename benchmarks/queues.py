"""Messages received and acknowledged on the same machine, durably: in batches, one by one, in order by key, by several processes.

Beside it is what one would pick instead: streams of Redis with a consumer group (XREADGROUP, XACK) that syncs its file at every
write, and a table of Postgres that workers lock rows of (FOR UPDATE SKIP LOCKED) and delete them from.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import redis

import headwater as hw
from benchmarks.harness import Bench, Case
from tests.postgres import PostgresServer
from tests.redis import RedisServer

TITLE = "Queues"

BATCHES_GOAL, SINGLE_GOAL = 20_000.0, 2_000.0
BATCH, THREADS, KEYS = 1_000, 64, 5_000
BODY = "x" * 100
_TAKE = (
    "DELETE FROM messages WHERE id IN "
    "(SELECT id FROM messages ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING id, body"
)
_WORKER = """
import sys, threading, headwater as hw
folder, count, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with hw.open(folder) as ws:
    queue = ws.queue("work")
    queue.standing()
    print("ready", flush=True)
    sys.stdin.readline()
    def work():
        done = None
        for _ in range(count // threads):
            done = queue.receive(1, 10, ack=done)
        queue.ack(done)
    started = [threading.Thread(target=work) for _ in range(threads)]
    [thread.start() for thread in started]
    [thread.join() for thread in started]
    print("done", flush=True)
"""


def run(bench: Bench) -> None:
    """Every way of working, with all kinds of queues taking turns."""
    postgres = PostgresServer(settings={"fsync": "on", "full_page_writes": "on", "max_connections": "100"})
    cache = RedisServer()
    try:
        url = postgres.make_database()
        with redis.Redis.from_url(cache.url()) as client:
            client.config_set("appendonly", "yes")
            client.config_set("appendfsync", "always")
        many, few = bench.size(100_000, 2_000), bench.size(6_400, 64)
        with bench.space() as folder:
            batches = [
                Case(
                    "Headwater",
                    lambda ws: _batches(ws, many),
                    lambda: _filled(folder, many),
                    _closed,
                    BATCHES_GOAL,
                ),
                Case(
                    "Headwater, in order by key",
                    lambda ws: _batches(ws, many),
                    lambda: _filled(folder, many, key=True),
                    _closed,
                ),
                Case(
                    "Redis streams",
                    lambda made: _redis_batches(made, many),
                    lambda: _stream(cache.url(), many),
                ),
                Case(
                    "Postgres, SKIP LOCKED",
                    lambda made: _postgres(made, many, BATCH, 1),
                    lambda: _table(url, many),
                ),
            ]
            if bench.wants("batches"):
                bench.compare(f"{many:,} messages in batches of {BATCH:,}, one worker", batches)
            single = [
                Case(
                    "Headwater",
                    lambda ws: _singles(ws, few),
                    lambda: _filled(folder, few),
                    _closed,
                    SINGLE_GOAL,
                ),
                Case(
                    "Headwater, in order by key",
                    lambda ws: _singles(ws, few),
                    lambda: _filled(folder, few, key=True),
                    _closed,
                ),
                Case(
                    "Redis streams", lambda made: _redis_singles(made, few), lambda: _stream(cache.url(), few)
                ),
                Case(
                    "Postgres, SKIP LOCKED",
                    lambda made: _postgres(made, few, 1, THREADS),
                    lambda: _table(url, few),
                ),
            ]
            if bench.wants("single"):
                bench.compare(f"{few:,} messages one by one, {THREADS} workers", single)
            if bench.wants("processes"):
                _processes(bench, folder, few)
    finally:
        cache.remove()
        postgres.remove()


# --- Headwater -----------------------------------------------------------------------------------------------------


def _filled(folder: Path, count: int, *, key: bool = False) -> hw.Workspace:
    ws = hw.open(folder / f"ws-{time.monotonic_ns()}")
    outbox = ws.topic("outbox", schema="id BIGINT, customer BIGINT, body STRING")
    ids = np.arange(count)
    outbox.append(pa.table({"id": ids, "customer": ids % KEYS, "body": [BODY] * count}))
    ws.queue("work", topic="outbox", key="customer" if key else None)
    return ws


def _closed(ws: hw.Workspace) -> None:
    ws.close()


def _batches(ws: hw.Workspace, count: int) -> float:
    queue, done, messages = ws.queue("work"), 0, None
    while done < count:
        messages = queue.receive(BATCH, 10, ack=messages)
        assert messages.rows.num_rows
        done += len(messages)
    queue.ack(messages)
    return done


def _singles(ws: hw.Workspace, count: int) -> float:
    queue = ws.queue("work")

    def work() -> None:
        for _ in range(count // THREADS):
            (message,) = queue.receive(1, 10)
            assert message.row
            message.ack()

    return _threads(work, THREADS) * (count // THREADS)


def _threads(work: Callable[[], None], count: int) -> int:
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work) for _ in range(count)]:
            done.result()
    return count


def _processes(bench: Bench, folder: Path, count: int) -> None:
    """The same one by one, acknowledged with asking for the next, by one process and by two."""
    group = f"{count:,} messages one by one, acknowledged with asking for the next"
    for processes in (1, 2):
        found = []
        for _ in range(bench.runs):
            ws = _filled(folder, count)
            assert ws.path is not None
            share, threads = count // processes, THREADS // processes
            words = [sys.executable, "-c", _WORKER, str(ws.path), str(share), str(threads)]
            running = [
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for _ in range(processes)
            ]
            for process in running:
                assert process.stdout is not None
                process.stdout.readline()
            started = time.perf_counter()
            for process in running:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for process in running:
                assert process.stdout is not None
                assert process.stdout.readline() == "done\n"
            found.append(count / (time.perf_counter() - started))
            for process in running:
                process.communicate()
            assert ws.queue("work").standing().acknowledged == count
            ws.close()
        name = "one process" if processes == 1 else f"{processes} processes"
        bench.note(group, f"{name}, {THREADS} workers in all", "records/s", found)


# --- what one would pick instead -----------------------------------------------------------------------------------


def _stream(url: str, count: int) -> str:
    with redis.Redis.from_url(url) as client:
        client.flushall()
        pipe = client.pipeline(transaction=False)
        for number in range(count):
            pipe.xadd("outbox", {"id": number, "body": BODY})
        pipe.xgroup_create("outbox", "work", id="0")
        pipe.execute()
    return url


def _redis_batches(url: str, count: int) -> float:
    done = 0
    with redis.Redis.from_url(url) as client:
        while done < count:
            ((_, found),) = client.xreadgroup("work", "one", {"outbox": ">"}, count=BATCH)
            client.xack("outbox", "work", *(number for number, _ in found))
            done += len(found)
    return done


def _redis_singles(url: str, count: int) -> float:
    def work() -> None:
        with redis.Redis.from_url(url) as client:
            for _ in range(count // THREADS):
                ((_, ((number, _),)),) = client.xreadgroup("work", "one", {"outbox": ">"}, count=1)
                client.xack("outbox", "work", number)

    return _threads(work, THREADS) * (count // THREADS)


def _table(url: str, count: int) -> str:
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS messages")
        connection.execute("CREATE TABLE messages (id bigint PRIMARY KEY, body text)")
        connection.execute("INSERT INTO messages SELECT n, %s FROM generate_series(1, %s) n", (BODY, count))
    return url


def _postgres(url: str, count: int, batch: int, threads: int) -> float:
    def work() -> None:
        with psycopg.connect(url) as connection:
            for _ in range(count // threads // batch):
                assert connection.execute(_TAKE, (batch,)).fetchall()
                connection.commit()

    return _threads(work, threads) * (count // threads // batch) * batch
