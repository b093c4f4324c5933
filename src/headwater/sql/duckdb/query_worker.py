"""Worker process for queries that may not be interruptible; started, queried and killed by
`headwater.sql.duckdb.query_processes`.

It opens no workspace: it requests the rows of a relation from the parent process, over the same socket, when the query
reads them. It exits with the parent process, and its memory is bounded.
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
"""Niceness of the worker: long queries yield the processor to the server."""
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Task:
    """A query with its limits, and the serialized Arrow schemas of the relations that it may read."""

    query: str
    schemas: Mapping[str, bytes]
    rows_max: int
    bytes_max: int
    seconds: float


@dataclass(frozen=True)
class ReadRequest:
    """A worker's request for rows of a relation, with the parameters of `headwater.sql.duckdb.serve.ServedRelation.read`."""

    relation: str
    columns: tuple[str, ...] | None
    equal: tuple[tuple[str, Any], ...] | None
    first: int | None


@dataclass(frozen=True)
class TableMessage:
    """Announces a table, as an Arrow stream: requested rows, or the answer."""


@dataclass(frozen=True)
class QueryDeclined:
    """Sent instead of a table: the reason why a query is declined; '' if reading a relation has failed."""

    reason: str = ""


class TooLong:
    """The time limit is exceeded."""


class TooLarge:
    """The answer is too large."""


class _ReadFailedError(Exception):
    """The parent process failed to read a relation, and has the error."""


class Channel:
    """Messages and tables over a socket. Both ends are this package, so that only data pickled by it is unpickled."""

    def __init__(self, end: socket.socket) -> None:
        self._reads: BinaryIO = end.makefile("rb")
        self._writes: BinaryIO = end.makefile("wb")

    def send(self, message: object) -> None:
        """Send a message."""
        pickle.dump(message, self._writes)
        self._writes.flush()

    def receive(self) -> Any:
        """Return the next message; EOFError if the other end is closed."""
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
        """Receive the table that follows `TableMessage`."""
        with pa.ipc.open_stream(self._reads) as reader:
            return reader.read_all()


@dataclass(frozen=True)
class _Remote:
    """A relation of the parent process. Each distinct read of a query is requested once."""

    name: str
    schema: pa.Schema
    channel: Channel
    known: dict[ReadRequest, pa.Table] = field(default_factory=dict)

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """Read rows; see `headwater.sql.duckdb.serve.ServedRelation`."""
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
    """Kill this process when the pipe closes whose other end the parent process holds, however the parent exits."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _bound_memory(size: int) -> None:
    """Limit this process to that many more bytes of memory than it uses now, where the system supports it."""
    with suppress(OSError, ValueError):
        used = int(_STATM.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + size, used + size))


def main(end: int, life: int, memory: int) -> None:
    """Answer queries until the parent process exits."""
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    serve_or_reason(
        "SELECT 1 + 1 AS two FROM (SELECT 1 AS one) AS x", {}
    )  # opens DuckDB and starts its threads
    _bound_memory(memory)
    with socket.socket(fileno=end) as made:
        channel = Channel(made)
        channel.send(os.getpid())
        with suppress(EOFError):
            while True:
                _answer(channel.receive(), channel)
