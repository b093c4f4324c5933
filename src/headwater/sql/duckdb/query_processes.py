"""Processes that answer queries which may not be interruptible; they are killed when a query exceeds its time limit.

DuckDB does not check for interrupts while it plans a query, and planning time grows steeply with the number of joins. Such
queries run in separate processes (`headwater.sql.duckdb.query_worker`): a small pool, started on demand and reused. A
process that does not answer in time is killed, and the next query starts another.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

import pyarrow as pa

from headwater.sql.duckdb.query_worker import Channel, QueryDeclined, ReadRequest, Task, TooLarge, TooLong
from headwater.sql.duckdb.serve import ServedRelation, TooLargeError, TooLongError

GRACE_S = 0.25
"""How long after the deadline a process may still report that it has interrupted the query, in seconds, before it is
killed."""
START_S = 30.0
_DIED = "it needs more memory than a query may have, or ends the process that computes it"


class QueryProcesses:
    """A bounded pool of processes that answer queries; thread-safe. `close` kills all of them."""

    def __init__(self, most: int, memory_bytes: int) -> None:
        """`memory_bytes` limits the memory of a worker: the rows that a query reads, intermediate results and the result."""
        self._memory = memory_bytes
        self._free = threading.BoundedSemaphore(most)
        self._guard = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False

    def run(
        self,
        query: str,
        relations: Mapping[str, ServedRelation],
        *,
        rows_max: int,
        bytes_max: int,
        until_s: float,
    ) -> pa.Table | str:
        """Return the answer to one SELECT, or the reason why it is declined, like
        `headwater.sql.duckdb.serve.serve_or_reason`.

        TooLongError at `until_s` of the monotonic clock, also if all processes were busy until then; TooLargeError.
        """
        if not self._free.acquire(timeout=max(0.0, until_s - time.monotonic())):
            raise TooLongError
        try:
            process = self._idle_or_new(until_s)
            try:
                return process.run(query, relations, rows_max, bytes_max, until_s)
            finally:
                self._give_back(process)
        finally:
            self._free.release()

    def pids(self) -> list[int]:
        """Return the process IDs of the live worker processes."""
        with self._guard:
            return [process.pid for process in self._all]

    def close(self) -> None:
        """Kill all processes; running queries are declined."""
        with self._guard:
            self._closed = True
            ended, self._idle = list(self._all), []
            self._all.clear()
        for process in ended:
            process.kill()

    def _idle_or_new(self, until_s: float) -> _Process:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        if until_s <= time.monotonic():  # too late to start a new process
            raise TooLongError
        process = _Process(self._memory)
        with self._guard:
            if not self._closed:
                self._all.add(process)
                return process
        process.kill()
        raise TooLongError

    def _give_back(self, process: _Process) -> None:
        with self._guard:
            if process.is_idle and process in self._all:
                self._idle.append(process)
                return
            self._all.discard(process)
        process.kill()


class _Process:
    """One worker process. It is used by one thread at a time; `kill` may be called from any thread."""

    def __init__(self, memory: int) -> None:
        mine, other = socket.socketpair()
        life, self._life = (
            os.pipe()
        )  # the worker exits when the last writing end of the pipe closes, which only this process holds
        with other:
            call = (
                f"import headwater.sql.duckdb.query_worker as w; w.main({other.fileno()}, {life}, {memory})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", call], pass_fds=(other.fileno(), life), stdin=subprocess.DEVNULL
            )
        os.close(life)
        self._socket = mine
        self._channel = Channel(mine)
        self._killed = threading.Lock()
        self._started = False
        self.is_idle = False
        """Whether the process waits for a query; a process that did not complete its answer cannot be reused."""
        self.pid = self._process.pid

    def run(
        self,
        query: str,
        relations: Mapping[str, ServedRelation],
        rows_max: int,
        bytes_max: int,
        until_s: float,
    ) -> pa.Table | str:
        """Run a query; see `QueryProcesses.run`."""
        self.is_idle = False
        try:
            if not self._started:
                self._wait_until(time.monotonic() + START_S)
                self._channel.receive()
                self._started = True
            left = until_s - time.monotonic()
            if left <= 0:
                self.is_idle = True
                raise TooLongError
            schemas = {name: bytes(r.schema.serialize()) for name, r in relations.items()}
            self._wait_until(until_s + GRACE_S)
            self._channel.send(Task(query, schemas, rows_max, bytes_max, left))
            answer = self._answered(relations, until_s)
        except TimeoutError:
            raise TooLongError from None
        except (EOFError, OSError, pickle.UnpicklingError, pa.ArrowInvalid):
            return _DIED
        self.is_idle = True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        """Kill the process."""
        if self._killed.acquire(blocking=False):
            self._process.kill()
            self._process.wait()
            self._channel.close()
            self._socket.close()
            os.close(self._life)

    def _answered(
        self, relations: Mapping[str, ServedRelation], until_s: float
    ) -> pa.Table | str | Exception:
        """Return the final answer of the process; until then, send it the rows of relations that it requests."""
        failed: Exception | None = None
        while True:
            said = self._channel.receive()
            if isinstance(said, ReadRequest):
                try:
                    equal = None if said.equal is None else dict(said.equal)
                    rows = relations[said.relation].read(said.columns, equal, said.first)
                except Exception as error:  # noqa: BLE001 - raised to the caller, once the worker knows
                    failed = error
                    self._channel.send(QueryDeclined())
                    continue
                self._wait_until(until_s + GRACE_S)
                self._channel.send_table(rows)
                del rows
            elif isinstance(said, QueryDeclined):
                return said.reason if failed is None else failed
            elif isinstance(said, TooLong):
                return TooLongError()
            elif isinstance(said, TooLarge):
                return TooLargeError()
            else:
                return self._channel.receive_table()

    def _wait_until(self, until_s: float) -> None:
        """Set the socket's timeout to the time remaining until then."""
        left = until_s - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
