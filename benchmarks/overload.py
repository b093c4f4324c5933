"""What other clients feel while slow clients, idle streams and a flood of posts are at the server, and what memory that costs.

The server runs as `headwater serve` does, with its defaults. The load comes from a process of its own; the clients that are measured are
in this one. All of them share the machine's processors, so that a part of the delay is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import orjson
import uvloop

import headwater as hw
from benchmarks.harness import Bench
from benchmarks.serving import TOPIC, VIEW, _get, _lines, _post, _table, _times, _Took

TITLE = "Serving under more than it can take"

SLOW, STREAMS, FLOOD = 64, 1_000, 64
FLOOD_ROWS = 65_000
"""A post of about 6 MB: as many at once as there are clients are more than the server takes."""
USERS = 100_000
DRIP_S = 0.5
ROW = {"user": 7, "url": "/a/b", "at": "2026-01-31T12:00:00Z", "n": 3, "price": 1.5}


@dataclass
class Load:
    """What is at the server besides the clients that are measured."""

    slow: int = 0
    """Clients of which a third each sends a head, sends a body and reads a large answer a few bytes at a time."""
    streams: int = 0
    """Clients that follow a view, which does not change."""
    flood: int = 0
    """Clients that post large bodies, each the next when the one before is answered."""
    flood_rows: int = FLOOD_ROWS


@dataclass
class Felt:
    """What was measured: the seconds that requests took, in ascending order, and the server's memory in MB."""

    posts: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    before_mb: float = 0.0
    peak_mb: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)
    """How often the flood was answered with which status, and how many streams and slow clients were open in the end."""


def run(bench: Bench) -> None:
    """The delay of a post and of a read by key, and the server's memory: without a load, with each kind of it, and with all."""
    slow, streams, flood = (bench.size(n, 3) for n in (SLOW, STREAMS, FLOOD))
    rows, users = bench.size(FLOOD_ROWS, 100), bench.size(USERS, 100)
    loads = {
        "no other clients": Load(),
        f"{slow} slow clients": Load(slow=slow),
        f"{streams:,} idle streams": Load(streams=streams),
        f"a flood of posts from {flood} clients": Load(flood=flood, flood_rows=rows),
        "all of these": Load(slow, streams, flood, rows),
    }
    found: dict[str, list[Felt]] = {name: [] for name in loads}
    with bench.space() as space:
        make(space / "made", users)
        for _ in range(bench.runs):
            for name, load in loads.items():  # they take turns
                shutil.copytree(space / "made", space / "ws")
                with served(space / "ws") as (port, pid):
                    found[name].append(felt(port, pid, load, requests=bench.size(200, 10), users=users))
                shutil.rmtree(space / "ws")
    for name, each in found.items():
        bench.note(name, "a post of one row, median", "ms", [at(f.posts, 0.5) for f in each])
        bench.note(name, "a post of one row, 99 of 100", "ms", [at(f.posts, 0.99) for f in each])
        bench.note(name, "a row of a view by its key, median", "ms", [at(f.reads, 0.5) for f in each])
        bench.note(name, "a row of a view by its key, 99 of 100", "ms", [at(f.reads, 0.99) for f in each])
        bench.note(name, "memory of the server before", "MB", [f.before_mb for f in each])
        bench.note(name, "memory of the server at most", "MB", [f.peak_mb for f in each])


def at(ascending: list[float], share: float) -> float:
    """A percentile, in milliseconds."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))] * 1_000


def make(workspace: Path, users: int) -> None:
    """A workspace with a view of so many rows."""
    with hw.open(workspace) as ws:
        ws.sql(TOPIC)
        ws.sql(VIEW)
        ws.topic("clicks").append(_table(users))
        ws.run()


@contextmanager
def served(workspace: Path) -> Iterator[tuple[int, int]]:
    """A server of a workspace; its port, and its process."""
    command = [sys.executable, "-m", "headwater", "-w", str(workspace), "serve", "--port", "0"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
    ) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            address = re.search(r":(\d+)/", said)
            assert address is not None, said
            yield int(address[1]), server.pid
        finally:
            server.kill()


def felt(port: int, pid: int, load: Load, *, requests: int, users: int) -> Felt:
    """Measure other clients while the load is there."""
    found = Felt()
    _asked(port, max(10, requests // 10), users)  # the server is warm
    found.before_mb = memory_mb(pid)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_load, args=(port, load, there), daemon=True
    )
    process.start()
    try:
        assert here.recv() == "there"
        with _watched(pid) as peak:
            found.posts, found.reads = _asked(port, requests, users)
            here.send("enough")
            found.answers = here.recv()
        found.peak_mb = max(peak)
    finally:
        process.terminate()
        process.join()
        process.close()
        here.close()
        there.close()
    return found


def _asked(port: int, requests: int, users: int) -> tuple[list[float], list[float]]:
    """Posts of one row and reads by key, from four clients each: what each took, ascending."""
    post = _post("/topics/clicks", "application/json", orjson.dumps(ROW))
    gets = [_get(f"/views/spent?user={(i * 7919) % users}") for i in range(requests)]
    posted: _Took = _times(port, [post], requests, 4)
    read: _Took = _times(port, gets, requests, 4)
    return sorted(posted.each), sorted(read.each)


def memory_mb(pid: int) -> float:
    """What a process holds in memory now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def _watched(pid: int) -> Iterator[list[float]]:
    seen, stop = [memory_mb(pid)], threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            seen.append(memory_mb(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


# --- the load --------------------------------------------------------------------------------------------------------


def _load(port: int, load: Load, told: Connection) -> None:
    """The process of the load: says when all of it is there, and in the end what became of it."""
    uvloop.run(_all(port, load, told))


async def _all(port: int, load: Load, told: Connection) -> None:
    counts: Counter[str] = Counter()
    ready: list[asyncio.Event] = []
    body = _lines(load.flood_rows) if load.flood else b""
    for i in range(load.slow):
        ready.append(asyncio.Event())
        _begin(_slow(port, ("head", "body", "answer")[i % 3], ready[-1], counts))
    for _ in range(load.streams):
        ready.append(asyncio.Event())
        _begin(_stream(port, ready[-1], counts))
    for one in ready:
        await one.wait()
    begun = [asyncio.Event() for _ in range(load.flood)]
    for one in begun:
        _begin(_flood(port, _post("/topics/clicks", "application/x-ndjson", body), one, counts))
    for one in begun:
        await one.wait()
    told.send("there")
    await asyncio.to_thread(told.recv)
    told.send(dict(counts))


_tasks: set[asyncio.Task[None]] = set()


def _begin(client: asyncio._CoroutineLike[None]) -> None:
    task = asyncio.ensure_future(client)
    _tasks.add(task)


async def _slow(port: int, kind: str, ready: asyncio.Event, counts: Counter[str]) -> None:
    """A client that is slow for ever: cut off, it comes again."""
    begun = {
        "head": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        "body": b"POST /topics/clicks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        b"Content-Length: 1000000\r\n\r\n",
        "answer": _get("/topics/clicks?limit=100000"),
    }[kind]
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_096)
            with contextlib.closing(writer):
                counts[f"slow {kind}"] += 1
                writer.write(begun)
                ready.set()
                while not reader.at_eof():
                    if kind == "answer":
                        await reader.read(1_024)
                    else:
                        writer.write(b" ")
                        await writer.drain()
                    await asyncio.sleep(DRIP_S)
        await asyncio.sleep(DRIP_S)


async def _stream(port: int, ready: asyncio.Event, counts: Counter[str]) -> None:
    """A client that follows a view."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET /views/spent/changes?since=latest HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    )
    answer = await reader.readline()
    counts[f"streams {answer.split()[1].decode()}"] += 1
    ready.set()
    while await reader.read(65_536):
        pass
    counts["streams ended"] += 1


async def _flood(port: int, request: bytes, ready: asyncio.Event, counts: Counter[str]) -> None:
    """A client that posts again and again, and does not heed what it is told."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                while True:
                    writer.write(request)
                    ready.set()
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: *(\d+)", head)
                    await reader.readexactly(int(length[1]) if length else 0)
                    counts[f"posts {head.split()[1].decode()}"] += 1
        except (OSError, asyncio.IncompleteReadError):
            counts["posts cut off"] += 1
            await asyncio.sleep(0.01)
