"""The fuzzer: requests from a grammar of every route against a server in a process of its own.

It fails if the process dies, hangs, takes too much memory, or answers with a 5xx that is not among those that `expected` lists.
`python -m tests.web.fuzzing SEED` prints the request of a seed as it is sent.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

import headwater as hw
from tests.web.fuzz_routes import HOOK_COLUMNS, SECRET, Request, request_of
from tests.web.fuzz_values import COLUMNS
from tests.web.serving import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_S = 30.0
"""A request that is not answered for so long has hung."""
STREAM_S = 0.05
"""How long a stream is listened to."""
MEMORY_KB_MAX = 1_500_000
"""The server has about 200 MB; a body of the fuzzer is worth a few kilobytes, and rows stay in the log."""
HUNG = "no answer for"
QUERY_TIMEOUT = "5 seconds"

WORKSPACE = f"""
  CREATE TOPIC typed ({", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())});
  CREATE TOPIC latest (id BIGINT, name STRING, at TIMESTAMP, day DATE, price DECIMAL(10, 2), PRIMARY KEY (id));
  CREATE TOPIC parted (id BIGINT, name STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute')
    WITH (partitions = 3, partition_by = 'id');
  CREATE TOPIC orders (id BIGINT, amount STRING);
  CREATE MATERIALIZED VIEW priced WITH (on_error = 'divert') AS SELECT id, CAST(amount AS INT) AS amount FROM orders;
  CREATE MATERIALIZED VIEW strict AS SELECT id, CAST(amount AS INT) AS amount FROM orders;
  CREATE MATERIALIZED VIEW newest AS SELECT {", ".join(COLUMNS)} FROM typed;
  CREATE MATERIALIZED VIEW per_name AS SELECT name, count(*) AS n, sum(price) AS total FROM latest GROUP BY name;
  CREATE MATERIALIZED VIEW catalogue AS SELECT id, name, at, day, price FROM latest;
  CREATE SINK found FROM catalogue INTO SEARCH WITH (text = 'name');
  CREATE SINK copy FROM per_name INTO TOPIC WITH (topic = 'copied', key = 'name');
  CREATE SOURCE hooked FROM WEBHOOK WITH (secret = env('FUZZ_SECRET'), topic = 'hooked',
    columns = '{", ".join(f"{name} {kind}" for name, kind in HOOK_COLUMNS.items())}, price DECIMAL(10, 2)',
    paths = '{{"price": "header:X-Price"}}');
  CREATE SOURCE unready FROM WEBHOOK WITH (secret = env('FUZZ_NO_SECRET'), topic = 'unready_rows');
"""
LAST_US = 2**63 - 1
"""The last moment that a TIMESTAMP has: year 294247."""


def prepare(place: Path, spark: SparkSession) -> None:
    """A workspace with something for every route, and values at the ends of their ranges."""
    os.environ["FUZZ_NO_SECRET"] = "soon gone"
    with hw.open(place, spark=spark) as ws:
        ws.sql(WORKSPACE)
        ends = pa.array([LAST_US, -LAST_US, 0, None], pa.timestamp("us", "UTC"))
        table = {
            "id": pa.array([1, 2, 3, 4]),
            "name": pa.array(["a red shoe", "", 'q"\n', None]),
            "at": ends,
            "plain": ends.cast(pa.timestamp("us")),
            "day": pa.array([2**31 - 1, -(2**31), 0, None], pa.int32()).cast(pa.date32()),
            "times": pa.ListArray.from_arrays([0, 2, 3, 4, 4], ends),
            "ratio": pa.array([float("nan"), float("inf"), -0.0, None]),
        }
        ws.topic("typed").append(pa.table(table))
        ws.topic("latest").append([{"id": n, "name": "abc"[n % 3], "price": n} for n in range(20)])
        ws.topic("parted").append(pa.table({"id": [1, 2], "name": ["a", "b"], "at": ends[2:3].take([0, 0])}))
        ws.topic("orders").append(
            [{"id": 1, "amount": "5"}, {"id": 2, "amount": "five"}, {"id": 3, "amount": "six"}]
        )
        ws.run()
        ws.topic("latest").append([{"id": 1, "name": "z"}, {"id": 2, "_op": "delete"}])
        ws.run()
    del os.environ["FUZZ_NO_SECRET"]


KINDS = ("no-engine", "hook-not-ready", "view-unavailable", "query-too-slow")


def expected(request: Request, status: int, kind: str) -> bool:
    """Whether an answer of 5xx is one that the documentation promises, for what it promises it."""
    match status, kind:
        case 503, "no-engine":  # a read after a write waits for views that nobody moves
            return b"after" in request.target or b'"after"' in (request.body or b"")
        case 503, "hook-not-ready":  # its secret is not in the environment of this server
            return b"unready" in request.target.lower()
        case 503, "view-unavailable":  # it has stopped at a row, and its last tick is not asked for
            return b"strict" in request.target or b"strict" in (request.body or b"")
        case 504, "query-too-slow":
            return request.target.startswith(b"/query")
    return False


class Failure(AssertionError):
    """A request that the server did not survive, or answered for itself."""


@dataclass
class Fuzzer:
    """Sends the requests of a seed to a server, and judges the answers."""

    server: ServerProcess
    seed: str
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    """What the server wrote to its log."""

    def __post_init__(self) -> None:
        self._address = self.server.url.removeprefix("http://")
        host, _, port = self._address.partition(":")
        self._where = (host, int(port))
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def run(self, seconds: float, workers: int = 2) -> int:
        """Send requests for so long; how many there were. Failure is raised for the first that fails."""
        end = time.monotonic() + seconds
        failures: list[Failure] = []
        counts = [0] * workers

        def work(worker: int) -> None:
            connection: socket.socket | None = None
            while time.monotonic() < end and not failures:
                seed = f"{self.seed}-{worker}-{counts[worker]}"
                counts[worker] += 1
                try:
                    connection = self.send(request_of(seed), connection, seed)
                except Failure as failure:
                    failures.append(failure)
            if connection is not None:
                connection.close()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:  # a server that hung was ended by who found that out: what others saw of it says less
            raise next((failure for failure in failures if HUNG in str(failure)), failures[0])
        self._check_process("the end")
        return sum(counts)

    def send(self, request: Request, connection: socket.socket | None, seed: str) -> socket.socket | None:
        """Send one request and judge its answer; the connection, if it can be used again."""
        fresh = connection is None
        try:
            if connection is None:
                connection = socket.create_connection(self._where, ANSWER_S)
            connection.sendall(request.encoded(self._address))
            answer = http.client.HTTPResponse(connection, method=request.method)
            answer.begin()
            body = self._stream(connection, answer) if _is_stream(answer) else answer.read()
        except TimeoutError as error:
            self.server.process.send_signal(signal.SIGABRT)  # it writes what its threads are doing, and ends
            self.server.process.wait(ANSWER_S)
            raise self._failure(seed, request, f"{HUNG} {ANSWER_S:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            if connection is not None:
                connection.close()
            if not fresh:  # a server may close a connection that waits
                return self.send(request, None, seed)
            self._check_process(seed, request)
            if isinstance(error, ConnectionError | http.client.RemoteDisconnected):
                return None  # it does not answer what is no HTTP
            raise self._failure(seed, request, f"{type(error).__name__}: {error}") from error
        self._judge(seed, request, answer.status, body)
        if _is_stream(answer) or answer.will_close or answer.status == 101:
            connection.close()
            return None
        return connection

    def _judge(self, seed: str, request: Request, status: int, body: bytes) -> None:
        self.statuses[request.route, status] += 1
        if sum(self.statuses.values()) % 200 == 0:
            self._check_process(seed, request)
        if b"urn:headwater:problem:internal-error" in body:  # also as the last event of a stream
            raise self._failure(seed, request, f"{status} {body[:500]!r}")
        if status < 500 or request.target.startswith(b"/health"):
            return
        if request.method == "HEAD" and any(expected(request, status, kind) for kind in KINDS):
            return  # the answer has no body that would say which
        with contextlib.suppress(ValueError, AttributeError):
            kind = str(orjson.loads(body).get("type", "")).rpartition(":")[2]
            if expected(request, status, kind):
                return
        raise self._failure(seed, request, f"{status} {body[:500]!r}")

    def _stream(self, connection: socket.socket, answer: http.client.HTTPResponse) -> bytes:
        found = b""
        until = time.monotonic() + STREAM_S
        while (left := until - time.monotonic()) > 0 and select.select([connection], [], [], left)[0]:
            piece = connection.recv(65_536)
            if not piece:
                break
            found += piece
        return found

    def _check_process(self, seed: str, request: Request | None = None) -> None:
        time.sleep(0)  # let a process that dies be seen
        status = self.server.process.poll()
        if status is None and request is not None and not self._answers():
            with contextlib.suppress(Exception):
                self.server.process.wait(5)
            status = self.server.process.poll()
        if status is not None:
            raise self._failure(seed, request, f"the server ended with status {status}")
        peak = peak_kb(self.server.process.pid)
        if peak > MEMORY_KB_MAX:
            raise self._failure(seed, request, f"the server took {peak:,} kB of memory")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(self._where, ANSWER_S):
                return True
        except OSError:
            return False

    def _failure(self, seed: str, request: Request | None, what: str) -> Failure:
        time.sleep(0.2)  # for the log to arrive
        sent = b"" if request is None else request.encoded(self._address)
        return Failure(
            f"{what}\nseed {seed!r}: python -m tests.web.fuzzing {seed}\n{sent[:3_000]!r}\n"
            + "".join(self.said[-200:])
        )

    def _listen(self) -> None:
        assert self.server.process.stderr is not None
        for line in self.server.process.stderr:
            self.said.append(line)
            del self.said[:-500]


def peak_kb(process: int) -> int:
    """The most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


def _is_stream(answer: http.client.HTTPResponse) -> bool:
    """Whether an answer may have no end. Its length is not known beforehand; to HEAD there is nothing that could have one."""
    return answer.status == 200 and answer.length is None and answer.chunked


@contextlib.contextmanager
def fuzzed(place: Path, seed: str) -> Iterator[Fuzzer]:
    """A fuzzer with a server of its own over a workspace."""
    os.environ |= {"FUZZ_SECRET": SECRET.decode(), "PYTHONFAULTHANDLER": "1"}
    command = ("serve", "--port", "0", "--query-timeout", QUERY_TIMEOUT)
    with ServerProcess(place, command=command) as server:
        yield Fuzzer(server, seed)


if __name__ == "__main__":
    sys.stdout.buffer.write(request_of(sys.argv[1]).encoded("127.0.0.1") + b"\n")
