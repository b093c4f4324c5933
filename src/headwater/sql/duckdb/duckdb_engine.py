"""The DuckDB database of the process, locked down: in memory, no files, no network, no extensions, no changes of settings.

It receives Arrow tables and SQL that `headwater.sql.duckdb.selects` generated, never a user's text.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "memory_limit": "2GB",  # larger queries are left to Spark
    # it would turn i + 1 > 5 into i > 4, which never overflows
    "disabled_optimizers": "expression_rewriter",
    "threads": "2",
    "lock_configuration": "true",
}

Failed = duckdb.Error
"""Raised by `run` when a query fails, for any reason."""

_lock = threading.Lock()
_database: duckdb.DuckDBPyConnection | None = None
_local = threading.local()
_cursors: weakref.WeakValueDictionary[int, duckdb.DuckDBPyConnection] = weakref.WeakValueDictionary()
"""The connections of all live threads."""


AGAIN_S, IDLE_S = 0.05, 60.0
BATCH_ROWS = 8_192
"""Rows fetched at once from a result that may be truncated."""


class TooLongError(Exception):
    """A query exceeded its time limit and was interrupted."""


class ResultTooLargeError(Exception):
    """A query result exceeded its size limit."""


@dataclass(frozen=True)
class QueryBounds:
    """Limits of a query: result rows, beyond which nothing is computed; the deadline in seconds of the monotonic clock; and
    bytes of the result."""

    rows_max: int | None = None
    until_s: float | None = None
    bytes_max: int | None = None

    @staticmethod
    def of(rows_max: int | None, seconds: float | None, bytes_max: int | None = None) -> QueryBounds:
        """Return limits with the time measured from now."""
        return QueryBounds(rows_max, None if seconds is None else time.monotonic() + seconds, bytes_max)


def run(sql: str, tables: Mapping[str, pa.Table], bounds: QueryBounds | None = None) -> pa.Table:
    """Return the result of a query over tables with these names, each of which may be scanned once. Thread-safe."""
    cursor = _cursor()
    bounds = bounds or QueryBounds()
    try:
        for name, table in tables.items():
            # DuckDB scans a stream as it is; for a pyarrow table it pushes filters to pyarrow, for which NaN > 1 is false.
            cursor.register(name, table.__arrow_c_stream__())
        with _limited(cursor, bounds.until_s):
            result = cursor.sql(sql)
            if bounds.rows_max is None:
                answer = result.to_arrow_table()
            else:
                answer = _first(result.to_arrow_reader(BATCH_ROWS), bounds.rows_max, bounds.bytes_max)
    except duckdb.InterruptException:
        raise TooLongError from None
    except (duckdb.FatalException, duckdb.InternalException):
        _forget()  # the database is unusable after these errors
        raise
    finally:
        with contextlib.suppress(duckdb.Error):
            for name in tables:
                cursor.unregister(name)
    return answer


def _first(reader: pa.RecordBatchReader, rows_max: int, bytes_max: int | None) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    count = size = 0
    for batch in reader:
        batches.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if bytes_max is not None and size > bytes_max:
            raise ResultTooLargeError
        if count >= rows_max:
            break
    return pa.Table.from_batches(batches, reader.schema).slice(0, rows_max)


def _limited(cursor: duckdb.DuckDBPyConnection, until_s: float | None) -> AbstractContextManager[None]:
    if until_s is None:
        return contextlib.nullcontext()
    if until_s <= time.monotonic():
        raise TooLongError
    return _watchdog.over(cursor, until_s)


class _Watchdog:
    """Interrupts queries that exceed their time limit: one thread for all queries, not woken by queries that end in time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[object, tuple[float, duckdb.DuckDBPyConnection]] = {}
        self._wakes_s: float | None = None
        """Time of the next check; None before the thread is started."""

    @contextlib.contextmanager
    def over(self, cursor: duckdb.DuckDBPyConnection, until_s: float) -> Iterator[None]:
        """Interrupt the cursor's query at that time if the block still runs; queries after the block are not affected."""
        mark = object()
        with self._changed:
            self._running[mark] = (until_s, cursor)
            if self._wakes_s is None:
                threading.Thread(target=self._watch, name="headwater-query-limit", daemon=True).start()
            elif until_s < self._wakes_s:
                self._changed.notify()
            self._wakes_s = min(until_s, self._wakes_s or until_s)
        try:
            yield
        finally:
            with self._changed:
                del self._running[mark]

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                self._break_off(now)
                later = [until_s for until_s, _ in self._running.values() if until_s > now]
                # an interrupt may miss a query that is just starting or ending: it is checked again soon
                overdue = [now + AGAIN_S] if len(later) < len(self._running) else []
                self._wakes_s = min(later + overdue, default=now + IDLE_S)
                self._changed.wait(self._wakes_s - now)

    def _break_off(self, now: float) -> None:
        """Interrupt overdue queries. A separate function, because the frame of the endless loop must not keep references to
        connections."""
        for until_s, cursor in self._running.values():
            if until_s <= now:
                cursor.interrupt()


def _cursor() -> duckdb.DuckDBPyConnection:
    """Return this thread's connection to the database of the process."""
    local = _local
    cursor: duckdb.DuckDBPyConnection | None = getattr(local, "cursor", None)
    if cursor is None:
        cursor = local.cursor = _shared_database().cursor()
        _cursors[id(cursor)] = cursor
    return cursor


def _shared_database() -> duckdb.DuckDBPyConnection:
    global _database
    with _lock:
        if _database is None:
            _database = duckdb.connect(":memory:", config=_SETTINGS)
        return _database


_watchdog = _Watchdog()


def _forget() -> None:
    """Discard the database; the next query opens a new one."""
    global _database, _local, _lock
    _database, _local, _lock = None, threading.local(), threading.Lock()


# A forked child has the memory of DuckDB's threads but not the threads: closing the database there ends the process. Python
# runs these handlers in every child with a `preexec_fn`, which is how Spark's JVM is started.

_held: list[list[duckdb.DuckDBPyConnection]] = []
"""Connections that must not be closed during a fork, one list per fork in progress."""


def _hold_all() -> None:
    """Before a fork: keep the connections of all threads alive, since the child drops those of its parent's other threads."""
    known = [_database, *(cursor() for cursor in _cursors.valuerefs())]
    _held.append([connection for connection in known if connection is not None])


def _release_all() -> None:
    _held.pop()


def _leave_all() -> None:
    """In a forked child: start with a new database, and never close the parent's, not even at interpreter exit."""
    global _watchdog
    for connection in (each for held in _held for each in held):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _held.clear()
    _forget()
    _watchdog = _Watchdog()


# From DuckDB 2.0 on, a connection that is open at interpreter exit is reported on stderr.
atexit.register(_forget)
os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_leave_all)
