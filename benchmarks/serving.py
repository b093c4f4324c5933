"""The server on the loopback of the same machine, as `headwater serve` runs it, with clients in another process.

A post is answered when its rows are synced. The clients write bytes that were made before and read the answers: their share
of the machine is what any client would need at least. Server and clients share the processor.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import orjson
import pyarrow as pa
import uvloop

import headwater as hw
from benchmarks.harness import Bench

TITLE = "Serving over HTTP"

ARROW_GOAL, NDJSON_GOAL, POSTS_GOAL, KEY_GOAL_MS = 100_000.0, 30_000.0, 2_000.0, 5.0
TOPIC = "CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, n INT, price DOUBLE)"
VIEW = (
    "CREATE MATERIALIZED VIEW spent AS SELECT user, count(*) AS clicks, sum(n) AS n FROM clicks GROUP BY user"
)
AT_US = 1_767_225_600_000_000
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


def run(bench: Bench) -> None:
    """Rows a second as Arrow and as JSON lines, posts of one row a second, and a look at a view by its key."""
    if bench.wants("arrow"):
        _ingest(bench, "arrow", rows=10_000, posts=bench.size(200, 2), clients=4, goal=ARROW_GOAL)
    if bench.wants("ndjson"):
        _ingest(bench, "ndjson", rows=1_000, posts=bench.size(300, 2), clients=4, goal=NDJSON_GOAL)
    if bench.wants("single"):
        _posts(bench, posts=bench.size(20_000, 50), clients=64)
    if bench.wants("key"):
        _by_key(bench)


def _ingest(bench: Bench, kind: str, *, rows: int, posts: int, clients: int, goal: float) -> None:
    found = []
    media = {"arrow": "application/vnd.apache.arrow.stream", "ndjson": "application/x-ndjson"}[kind]
    request = _post("/topics/clicks", media, _arrow(rows) if kind == "arrow" else _lines(rows))
    for _ in range(bench.runs):
        with _served(bench) as (workspace, port):
            _times(port, [request], clients, clients)  # connections, and the first segment
            took = _times(port, [request], posts, clients)
            found.append(rows * posts / took.seconds)
            with hw.open(workspace) as ws:
                assert ws.topic("clicks").partitions()[0].rows == rows * (posts + clients)
    name = {"arrow": "Arrow streams", "ndjson": "JSON lines"}[kind]
    bench.note("ingest", f"{name}, {rows:,} rows in a post, {clients} clients", "records/s", found, goal=goal)


def _posts(bench: Bench, *, posts: int, clients: int) -> None:
    found, delays = [], []
    row = {"user": 7, "url": "/a/b", "at": "2026-01-31T12:00:00Z", "n": 3, "price": 1.5}
    request = _post("/topics/clicks", "application/json", orjson.dumps(row))
    for _ in range(bench.runs):
        with _served(bench) as (_, port):
            _times(port, [request], clients, clients)
            took = _times(port, [request], posts, clients)
            found.append(posts / took.seconds)
            delays.append(statistics.median(took.each) * 1_000)
    group = f"posts of one row, {clients} clients"
    bench.note(group, "posts", "records/s", found, goal=POSTS_GOAL)
    bench.note(group, "delay of one, median", "ms", delays)


def _by_key(bench: Bench) -> None:
    users, looks = bench.size(100_000, 100), bench.size(3_000, 20)
    found, last = [], []
    with _served(bench, users) as (_, port):
        requests = [_get(f"/views/spent?user={(i * 7919) % users}") for i in range(looks)]
        _times(port, requests[:50], min(50, looks), 1)
        for _ in range(bench.runs):
            each = sorted(_times(port, requests, looks, 1).each)
            found.append(statistics.median(each) * 1_000)
            last.append(each[int(len(each) * 0.99)] * 1_000)
    group = f"a row of a view by its key, {users:,} keys"
    bench.note(group, "median", "ms", found, goal=KEY_GOAL_MS)
    bench.note(group, "99 of 100", "ms", last)


@contextmanager
def _served(bench: Bench, users: int = 0) -> Iterator[tuple[Path, int]]:
    """A server of a new workspace, with a view over so many rows if there are some; its port."""
    with bench.space() as space:
        workspace = space / "ws"
        with hw.open(workspace) as ws:
            ws.sql(TOPIC)
            if users:
                ws.sql(VIEW)
                ws.topic("clicks").append(_table(users))
                ws.run()
        command = [sys.executable, "-m", "headwater", "-w", str(workspace), "serve", "--port", "0"]
        server = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
        )
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            address = re.search(r":(\d+)/", said)
            assert address is not None, said
            yield workspace, int(address[1])
        finally:
            server.terminate()
            server.wait(30)


class _Took:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.each: list[float] = []


class _Client(asyncio.Protocol):
    """One connection that sends a request when the one before it was answered."""

    def __init__(self, requests: Iterator[bytes], took: _Took, done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._took = took
        self._done = done
        self._answer = bytearray()
        self._sent = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        """A client that is cut off has failed."""
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._answer[:head])
        assert length is not None
        if len(self._answer) < head + 4 + int(length[1]):
            return
        if not self._answer.startswith(b"HTTP/1.1 200"):
            self._done.set_exception(AssertionError(bytes(self._answer).decode()))
            return
        self._took.each.append(time.perf_counter() - self._sent)
        self._answer.clear()
        self._next()

    def _next(self) -> None:
        assert self._transport is not None
        request = next(self._requests, None)
        if request is None:
            self._done.set_result(None)
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)


def _times(port: int, requests: Sequence[bytes], count: int, clients: int) -> _Took:
    """Send so many requests over so many connections, and see how long that takes."""
    took = _Took()

    async def all_of_them() -> None:
        loop = asyncio.get_running_loop()
        left = iter([requests[i % len(requests)] for i in range(count)])
        ends = [loop.create_future() for _ in range(clients)]
        started = time.perf_counter()
        for end in ends:
            await loop.create_connection(lambda end=end: _Client(left, took, end), "127.0.0.1", port)  # type: ignore[misc]
        await asyncio.gather(*ends)
        took.seconds = time.perf_counter() - started

    uvloop.run(all_of_them())
    return took


def _post(path: str, media: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _table(rows: int) -> pa.Table:
    number = pa.array(range(rows), pa.int64())
    return pa.table(
        {
            "user": number,
            "url": pa.array([f"/product/{i % 500}" for i in range(rows)]),
            "at": pa.array(range(AT_US, AT_US + rows), pa.int64()).cast(pa.timestamp("us", "UTC")),
            "n": pa.array([i % 10 for i in range(rows)], pa.int32()),
            "price": pa.array([i / 7 for i in range(rows)]),
        }
    )


def _arrow(rows: int) -> bytes:
    sink = io.BytesIO()
    table = _table(rows)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _lines(rows: int) -> bytes:
    return b"\n".join(
        orjson.dumps(
            {
                "user": i,
                "url": f"/product/{i % 500}",
                "at": "2026-01-31T12:00:00.123456Z",
                "n": i % 10,
                "price": i / 7,
            }
        )
        for i in range(rows)
    )
