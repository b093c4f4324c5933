"""StatsD over UDP on the same machine: lines parsed, and lines from a sender in another process to the log."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence

import headwater as hw
from benchmarks.harness import Bench, Case
from headwater.core.clock import SystemClock
from headwater.sources.statsd.statsd_lines import Received, parse
from headwater.testing import inspect_workspace

TITLE = "StatsD"

PARSE_GOAL = TAKEN_GOAL = 100_000.0
PER_DATAGRAM = 25
SENDER = """
import socket, sys
datagram, program = sys.stdin.buffer.read(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    program.sendto(datagram, ("127.0.0.1", int(sys.argv[1])))
"""
_LINE = re.compile(rb"([^:|]+):([^|]+)\|(c|g|ms|h|d|s)(?:\|@([0-9.]+))?(?:\|#(.*))?")


def run(bench: Bench) -> None:
    """Lines a second: parsed, and from the port to the log."""
    received = _received(bench.size(200_000, 1_000))
    cases = [
        Case("a regular expression for each line, in Python", lambda _: _one_by_one(received)),
        Case("all at once, in vectors", lambda _: parse(received).lines, goal=PARSE_GOAL),
    ]
    bench.compare("lines parsed", cases)
    _taken(bench, bench.size(400_000, 1_000))


def _lines(count: int) -> list[bytes]:
    kinds = (b"c", b"c|@0.1", b"ms", b"h", b"g")
    return [
        b"app.request.%d:%d|%s|#env:prod,route:/a%d" % (n % 200, n % 97, kinds[n % 5], n % 50)
        for n in range(count)
    ]


def _received(count: int) -> list[Received]:
    lines = _lines(count)
    return [(0, b"\n".join(lines[at : at + 1_000])) for at in range(0, count, 1_000)]


def _one_by_one(received: Sequence[Received]) -> float:
    rows = []
    for at, blob in received:
        for line in blob.split(b"\n"):
            found = _LINE.fullmatch(line)
            assert found is not None
            name, value, kind, rate, tags = found.groups()
            pairs = dict(tag.partition(b":")[::2] for tag in (tags or b"").split(b","))
            rows.append((name.decode(), kind, float(value), float(rate or 1), pairs, at))
    return len(rows)


def _taken(bench: Bench, lines: int) -> None:
    found = []
    datagram, times = b"\n".join(_lines(PER_DATAGRAM)), lines // PER_DATAGRAM
    with bench.space() as space, hw.open(space / "ws") as ws:
        ws.sql("CREATE SOURCE app FROM STATSD WITH (port = 0, topic = 'stats', every = '200 ms')")
        inspect_workspace(ws).reconcile_connectors()
        sources = inspect_workspace(ws).sources
        sources.wait("app", SystemClock().now_us(), 30)
        port = int(ws.source("app").status.state.rpartition(":")[2])
        for _ in range(bench.runs):
            before = sources.facts()["app"]["counts"]["lines"]
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", SENDER, str(port), str(times)], input=datagram, check=True)
            sources.wait("app", SystemClock().now_us(), 60)
            taken = sources.facts()["app"]["counts"]["lines"] - before
            found.append(taken / (time.perf_counter() - started))
    group = f"{lines:,} lines, {PER_DATAGRAM} to a datagram, sent as fast as it goes by another process"
    bench.note(group, "those taken, from its start to the log", "records/s", found, goal=TAKEN_GOAL)
