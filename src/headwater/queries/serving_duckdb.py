"""DuckDB, kept small and closed: in memory, no files, no network, no extensions, no settings to change.

One database per process. It is given Arrow tables and SQL that `headwater.queries.serving_selects` wrote, never a
user's text.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping

import duckdb
import pyarrow as pa

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "memory_limit": "2GB",  # what does not fit is Spark's
    # It would turn i + 1 > 5 into i > 4, which never overflows.
    "disabled_optimizers": "expression_rewriter",
    "threads": "2",
    "lock_configuration": "true",
}

Failed = duckdb.Error
"""What `run` raises when a query fails, for whatever reason."""

_lock = threading.Lock()
_database: duckdb.DuckDBPyConnection | None = None
_local = threading.local()


def run(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """The result of a query over tables that it knows by these names; each may be scanned once. Thread-safe."""
    cursor = _cursor()
    try:
        for name, table in tables.items():
            # A bare stream is scanned as it is. Of a pyarrow table DuckDB lets pyarrow filter, to whom NaN > 1 is false.
            cursor.register(name, table.__arrow_c_stream__())
        answer = cursor.execute(sql).to_arrow_table()
    except (duckdb.FatalException, duckdb.InternalException):
        _forget()  # the database answers nothing any more
        raise
    finally:
        with contextlib.suppress(duckdb.Error):
            for name in tables:
                cursor.unregister(name)
    return answer


def _cursor() -> duckdb.DuckDBPyConnection:
    """This thread's own connection to the database of the process."""
    local = _local
    cursor: duckdb.DuckDBPyConnection | None = getattr(local, "cursor", None)
    if cursor is None:
        cursor = local.cursor = _opened().cursor()
    return cursor


def _opened() -> duckdb.DuckDBPyConnection:
    global _database
    with _lock:
        if _database is None:
            _database = duckdb.connect(":memory:", config=_SETTINGS)
        return _database


def _forget() -> None:
    """Start anew with the next query: a forked child has none of the parent's threads."""
    global _database, _local, _lock
    _database, _local, _lock = None, threading.local(), threading.Lock()


os.register_at_fork(after_in_child=_forget)
