"""The run files of one attempt at a tick: many small runs share a file, large runs have files of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.core.errors import StorageError
from headwater.core.storage import File, Storage
from headwater.operators.zset.runs import Run
from headwater.state.run_files import RunFile, encode, encode_shared
from headwater.state.run_refs import RunRef
from headwater.state.state_files import RUNS, FileOrigin, runs_name

LARGE_BYTES = 64 << 20
"""Minimum size of a run in a file of its own, so that merging the run away frees its disk space at once."""
PENDING_BYTES_MAX = 16 << 20
"""Maximum size of the runs buffered in memory before they are written to the file."""
_GATHER_BYTES = 1 << 20
"""Size below which pieces are combined into one write."""


class Writer:
    """A writer of runs. A manifest may name a run once `flush` has returned.

    Files are not visible to readers before that, and no two writers share a file. After an error the writer cannot be
    used any more: its files are garbage, and the tick is retried with another writer. Created by `StateStore.begin`;
    not thread-safe.
    """

    def __init__(self, storage: Storage, origin: FileOrigin) -> None:
        self.origin = origin
        self.files: set[str] = set()
        """Names, within the runs folder, of the files that the writer has created or will create."""
        self._storage = storage
        self._shared: _Growing | None = None
        self._unsynced: list[_Growing] = []
        self._failure: StorageError | None = None

    def add(self, run: Run, *, ticks: tuple[int, int]) -> RunRef:
        """Add a run with the changes of a range of ticks (first and last, both inclusive).

        The reference is valid once `flush` has returned.
        """
        self._refuse_after_failure()
        segment = encode(run, ticks)
        if segment.size > LARGE_BYTES:
            own = self._grow()
            ref = own.add(segment)
            self._guarded(own.write)
            return ref
        if self._shared is None:
            self._shared = self._grow()
        ref = self._shared.add(segment)
        if self._shared.pending_bytes > PENDING_BYTES_MAX:
            self._guarded(self._shared.write)
        return ref

    def add_shared(self, runs: Sequence[Run], *, ticks: Sequence[tuple[int, int]]) -> list[RunRef]:
        """Add several small, non-empty runs with the same columns, stored as one stream; `ticks` has the tick range of
        each."""
        if len(runs) == 1:
            return [self.add(runs[0], ticks=ticks[0])]
        self._refuse_after_failure()
        segment = encode_shared(runs, ticks)
        if self._shared is None:
            self._shared = self._grow()
        refs = self._shared.add_shared(segment, runs, ticks)
        if self._shared.pending_bytes > PENDING_BYTES_MAX:
            self._guarded(self._shared.write)
        return refs

    def flush(self) -> None:
        """Make all added runs durable; does nothing if there are no new runs."""
        self._refuse_after_failure()
        if self._unsynced:
            self._guarded(self._flush)

    @property
    def flushed(self) -> bool:
        """Whether all added runs are durable."""
        return not self._unsynced

    def _flush(self) -> None:
        self._shared = None
        for growing in self._unsynced:
            growing.finish()
        self._storage.sync_dir(RUNS)
        self._unsynced.clear()

    def _grow(self) -> _Growing:
        name = runs_name(self.origin, len(self.files))
        self.files.add(name)
        growing = _Growing(self._storage, name)
        self._unsynced.append(growing)
        return growing

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StorageError as error:
            self._failure = error
            for growing in self._unsynced:
                growing.close()
            raise

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class _Growing:
    """A file that is being written."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self.pending_bytes = 0
        self._storage = storage
        self._pending: list[RunFile] = []
        self._written = 0
        self._file: File | None = None

    def add(self, segment: RunFile) -> RunRef:
        return segment.at(self.name, self._place(segment))

    def add_shared(
        self, segment: RunFile, runs: Sequence[Run], ticks: Sequence[tuple[int, int]]
    ) -> list[RunRef]:
        return segment.parts_at(self.name, self._place(segment), runs, ticks)

    def _place(self, segment: RunFile) -> int:
        """Reserve space for a segment; return its offset in the file."""
        start = self._written + self.pending_bytes
        self._pending.append(segment)
        self.pending_bytes += segment.size
        return start

    def write(self) -> None:
        if self._file is None:
            self._storage.make_dirs(RUNS)
            self._file = self._storage.open(f"{RUNS}/{self.name}", exclusive=True)
        at, gathered = self._written, bytearray()
        for segment in self._pending:
            for part in (*segment.parts, bytes(segment.padding)):
                if len(part) < _GATHER_BYTES:
                    gathered += part
                    continue
                self._file.write_at(at, gathered)
                at += len(gathered)
                gathered.clear()
                self._file.write_at(at, part)
                at += len(part)
        self._file.write_at(at, gathered)
        self._written += self.pending_bytes
        self._pending.clear()
        self.pending_bytes = 0

    def finish(self) -> None:
        self.write()
        assert self._file is not None
        self._file.sync()
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
