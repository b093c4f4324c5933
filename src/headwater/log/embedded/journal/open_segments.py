"""Segments that a process has open for appending."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable

from headwater.core.errors import WorkspaceMissingError
from headwater.core.storage import File, Storage
from headwater.log.embedded.journal.journal_file import FOLDER

OPEN_FILES_MAX = 256
"""Maximum number of segments kept open for appending."""


class OpenSegments:
    """The open segments of one process; `mutex` is the lock of its journal."""

    def __init__(self, storage: Storage, mutex: threading.RLock) -> None:
        self._storage = storage
        self._mutex = mutex
        self._files: dict[str, File] = {}

    def writable(self, name: str, size: int) -> File:
        """Under the mutex: return a segment opened for appending at byte `size`; bytes of a dead writer after it are cut."""
        file = self._files.get(name)
        if file is None:
            if len(self._files) >= OPEN_FILES_MAX:
                self._files.pop(next(iter(self._files))).close()
            if size == 0:
                self._storage.make_dirs(os.path.dirname(name))
            file = self._files[name] = self._storage.open(name, create=size == 0)
            if file.size() > size:
                file.truncate(size)
        return file

    def release(self, names: Iterable[str]) -> None:
        """Close segments that take no more appends."""
        with self._mutex:
            for name in names:
                if file := self._files.pop(name, None):
                    file.close()

    def sync(self, name: str) -> None:
        """Sync a segment, open or not; nothing if it was sealed or removed meanwhile."""
        file = self._files.get(name)
        if file is not None:
            file.sync()
            return
        try:
            other = self._storage.open(name)
        except WorkspaceMissingError:
            if self._storage.exists(FOLDER):
                return  # sealed or removed meanwhile, by a commit that came after a sync
            raise
        with contextlib.closing(other):
            other.sync()

    def close(self) -> None:
        """Close every segment; each is opened again when it is written."""
        for file in self._files.values():
            file.close()
        self._files.clear()
