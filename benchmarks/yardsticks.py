"""What Headwater is measured beside: SQLite in WAL mode, and a plain file with fsync. Neither does what it does."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import data


class Sqlite:
    """A table of clicks; `synchronous` FULL is as safe as 'fsync', NORMAL may lose the last appends with the power."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS clicks (id INTEGER PRIMARY KEY, user INTEGER, at INTEGER, url TEXT)"
        )

    def append(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows in one transaction."""
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO clicks (user, at, url) VALUES (?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def read(self) -> int:
        """Fetch every row; how many there were."""
        cursor, rows = self._connection.execute("SELECT * FROM clicks ORDER BY id"), 0
        while found := cursor.fetchmany(10_000):
            rows += len(found)
        return rows

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class PlainFile:
    """Bytes at the end of a file, synced: what the disk itself costs."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def append(self, payload: bytes) -> None:
        """Write and sync."""
        os.write(self._fd, payload)
        os.fsync(self._fd)

    def read(self) -> int:
        """Read every byte; how many records that is."""
        size, at = os.fstat(self._fd).st_size, 0
        while at < size:
            at += len(os.pread(self._fd, 1 << 20, at))
        return size // data.RECORD_BYTES

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
