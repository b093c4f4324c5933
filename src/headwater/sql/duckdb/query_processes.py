"""Processes that answer queries which may not be interruptible, and that are killed when the time of a query is over.

DuckDB plans a query without looking whether it is interrupted, and the time grows steeply with the number of joins. Such a query
runs in a process of its own (`headwater.sql.duckdb.query_worker`): a handful of them, started when they are first needed and kept
for the next query. A process that does not answer in time is killed, and the next query starts another.
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
"""How long after its time a process may still say that it has broken the query off, before it is killed."""
START_S = 30.0
_DIED = "it needs more memory than a query may have, or ends the process that computes it"


class QueryProcesses:
    """A bounded number of processes that answer queries; thread-safe. `close` ends all of them."""

    def __init__(self, most: int, memory_bytes: int) -> None:
        """`memory_bytes` is what the rows that a query reads, its work and its answer may take."""
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
        """The answer to one SELECT, or why it is declined, as `headwater.sql.duckdb.serve.serve_or_reason` has it.

        TooLongError at `until_s` of the monotonic clock, also if all processes were busy until then; TooLargeError.
        """
        if not self._free.acquire(timeout=max(0.0, until_s - time.monotonic())):
            raise TooLongError
        try:
            process = self._taken(until_s)
            try:
                return process.run(query, relations, rows_max, bytes_max, until_s)
            finally:
                self._give_back(process)
        finally:
            self._free.release()

    def pids(self) -> list[int]:
        """The ids of the worker processes that are alive."""
        with self._guard:
            return [process.pid for process in self._all]

    def close(self) -> None:
        """Kill every process; queries that run are declined."""
        with self._guard:
            self._closed = True
            ended, self._idle = list(self._all), []
            self._all.clear()
        for process in ended:
            process.kill()

    def _taken(self, until_s: float) -> _Process:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        if until_s <= time.monotonic():  # not worth a new process
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
    """One worker process. It is used by one thread at a time; `kill` may come from any."""

    def __init__(self, memory: int) -> None:
        mine, other = socket.socketpair()
        life, self._life = (
            os.pipe()
        )  # the worker ends with the last process that has the writing end, which is this one
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
        """Whether the process waits for a query; one that did not answer to the end is of no use any more."""
        self.pid = self._process.pid

    def run(
        self,
        query: str,
        relations: Mapping[str, ServedRelation],
        rows_max: int,
        bytes_max: int,
        until_s: float,
    ) -> pa.Table | str:
        """See `QueryProcesses.run`."""
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
        """End the process."""
        if self._killed.acquire(blocking=False):
            self._process.kill()
            self._process.wait()
            self._channel.close()
            self._socket.close()
            os.close(self._life)

    def _answered(
        self, relations: Mapping[str, ServedRelation], until_s: float
    ) -> pa.Table | str | Exception:
        """What the process says in the end; while it reads, it is given the rows of the relations."""
        failed: Exception | None = None
        while True:
            said = self._channel.receive()
            if isinstance(said, ReadRequest):
                try:
                    equal = None if said.equal is None else dict(said.equal)
                    rows = relations[said.relation].read(said.columns, equal, said.first)
                except Exception as error:  # noqa: BLE001 - given to who asks, once the worker knows
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
        """Let the socket wait no longer than until then."""
        left = until_s - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
