"""The process that answers queries which may not be interruptible: `headwater.sql.duckdb.query_processes` starts, asks and kills it.

It opens no workspace: the rows of a relation come from the process that asks, by the same socket, when the query reads them. It ends
when that process does, and its memory is bounded.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from headwater.sql.duckdb.serve import TooLargeError, TooLongError, serve_or_reason

NICE = 10
"""What takes long may take longer: it leaves the processor to the server."""
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Task:
    """A query with what it may cost, and the schemas of the relations that it may read, as Arrow writes them."""

    query: str
    schemas: Mapping[str, bytes]
    rows_max: int
    bytes_max: int
    seconds: float


@dataclass(frozen=True)
class ReadRequest:
    """What the worker asks for while it answers: rows of a relation, in the terms of `headwater.sql.duckdb.serve.Relation.read`."""

    relation: str
    columns: tuple[str, ...] | None
    equal: tuple[tuple[str, Any], ...] | None
    first: int | None


@dataclass(frozen=True)
class TableMessage:
    """A table follows, as an Arrow stream: what was asked for, or the answer."""


@dataclass(frozen=True)
class QueryDeclined:
    """There is no table: why a query is declined; '' if reading a relation has failed."""

    reason: str = ""


class TooLong:
    """The time is over."""


class TooLarge:
    """The answer is too large."""


class _ReadFailedError(Exception):
    """The other process could not read a relation; it knows why."""


class Channel:
    """Messages and tables over a socket. Both ends are this package: what is unpickled was pickled by it."""

    def __init__(self, end: socket.socket) -> None:
        self._reads: BinaryIO = end.makefile("rb")
        self._writes: BinaryIO = end.makefile("wb")

    def send(self, message: object) -> None:
        """Send a message."""
        pickle.dump(message, self._writes)
        self._writes.flush()

    def receive(self) -> Any:
        """The next message; EOFError if the other end is gone."""
        return pickle.load(self._reads)

    def send_table(self, table: pa.Table) -> None:
        """Send `TableMessage` and a table."""
        pickle.dump(TableMessage(), self._writes)
        with pa.ipc.new_stream(self._writes, table.schema) as writer:
            writer.write_table(table)
        self._writes.flush()

    def close(self) -> None:
        """Close this end."""
        for file in (self._reads, self._writes):
            with suppress(OSError, ValueError):
                file.close()

    def receive_table(self) -> pa.Table:
        """The table that follows `TableMessage`."""
        with pa.ipc.open_stream(self._reads) as reader:
            return reader.read_all()


@dataclass(frozen=True)
class _Remote:
    """A relation of the other process. What a query names several times is sent once."""

    name: str
    schema: pa.Schema
    channel: Channel
    known: dict[ReadRequest, pa.Table] = field(default_factory=dict)

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """See `Relation`."""
        wanted = None if columns is None else tuple(columns)
        asked = ReadRequest(self.name, wanted, None if equal is None else tuple(sorted(equal.items())), first)
        if asked not in self.known:
            self.channel.send(asked)
            if isinstance(self.channel.receive(), QueryDeclined):
                raise _ReadFailedError
            self.known[asked] = self.channel.receive_table()
        return self.known[asked]


def _answer(task: Task, channel: Channel) -> None:
    relations = {
        name: _Remote(name, pa.ipc.read_schema(pa.py_buffer(schema)), channel)
        for name, schema in task.schemas.items()
    }
    try:
        answer = serve_or_reason(
            task.query,
            relations,
            rows_max=task.rows_max,
            bytes_max=task.bytes_max,
            seconds=task.seconds,
        )
    except TooLongError:
        channel.send(TooLong())
    except TooLargeError:
        channel.send(TooLarge())
    except _ReadFailedError:
        channel.send(QueryDeclined())
    except (MemoryError, pa.ArrowMemoryError):
        channel.send(QueryDeclined("it needs more memory than a query may have"))
    else:
        if isinstance(answer, str):
            channel.send(QueryDeclined(answer))
        else:
            channel.send_table(answer)


def _end_with(life: int) -> None:
    """End this process when the pipe ends whose other end is the asking process's, however that one ends."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _bound_memory(size: int) -> None:
    """Let this process have so many bytes more than now, where the system can say and hold that."""
    with suppress(OSError, ValueError):
        used = int(_STATM.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + size, used + size))


def main(end: int, life: int, memory: int) -> None:
    """Answer queries until the asking process ends."""
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    serve_or_reason(
        "SELECT 1 + 1 AS two FROM (SELECT 1 AS one) AS x", {}
    )  # DuckDB is open, and its threads are there
    _bound_memory(memory)
    with socket.socket(fileno=end) as made:
        channel = Channel(made)
        channel.send(os.getpid())
        with suppress(EOFError):
            while True:
                _answer(channel.receive(), channel)
