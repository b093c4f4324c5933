"""Runs as files: opened as memory-mapped views, verified, and checked for damage or replacement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from headwater.core.errors import CorruptionError, TickNotKeptError, WorkspaceMissingError
from headwater.core.storage import Storage
from headwater.operators.zset.runs import Run
from headwater.state import state_files
from headwater.state.cache import RunCache
from headwater.state.manifest import Manifest
from headwater.state.manifests import TickManifests
from headwater.state.missing_ticks import tick_not_kept
from headwater.state.run_files import check
from headwater.state.run_refs import RunRef

_FORGET_EVERY_TICKS = 32


class StoredRuns:
    """The runs of a workspace, for any thread and process."""

    def __init__(self, storage: Storage, manifests: TickManifests) -> None:
        self._storage = storage
        self._manifests = manifests
        self._cache = RunCache(storage)
        self._swept_at = 0

    def open(self, ref: RunRef) -> Run:
        """Return a run as views into its file; raises TickNotKeptError if its file is gone and no kept tick names it."""
        try:
            return self._cache.open(ref)
        except WorkspaceMissingError:
            raise self._missing(ref) from None

    def open_all(self, refs: Sequence[RunRef]) -> list[Run]:
        """Return several runs as views into their files, oldest first."""
        try:
            return self._cache.open_all(refs)
        except WorkspaceMissingError:
            return [self.open(ref) for ref in refs]

    def touch(self, ref: RunRef) -> None:
        """Load a run that was just written into memory, for fast probes."""
        self._cache.touch(ref)

    def open_named(self, manifest: Manifest, refs: Sequence[RunRef]) -> list[Run]:
        """Return runs named by a tick; raises TickNotKeptError if it was collected meanwhile."""
        try:
            return self.open_all(refs)
        except TickNotKeptError:
            raise tick_not_kept(manifest.tick, self._manifests.ticks()) from None

    def remember(self, ref: RunRef, run: Run) -> None:
        """Cache a run that is already in memory, to avoid reading the file."""
        self._cache.remember(ref, run)

    def verify(self, ref: RunRef) -> None:
        """Read a run's bytes from its file and verify the checksum; raises CorruptionError, which names the byte."""
        try:
            check(self._cache.map(ref.file), ref)
        except WorkspaceMissingError:
            raise self._missing(ref) from None

    def suspect(self, file: str) -> None:
        """Mark a file as damaged; `changed` then reports the file."""
        self._cache.suspect(file)

    def changed(self, files: Iterable[str]) -> set[str]:
        """Return the run files that were modified or replaced since this process wrote or first read them, or were
        found damaged.

        Cached contents of these files are dropped, so that the files are read again; a file is intact if it then verifies.
        """
        found = {file for file in files if self._cache.changed(file)}
        if found:
            self._cache.forget(found.__contains__)
        return found

    def size_of(self, file: str) -> int | None:
        """Return the size in bytes of a file of runs; None if it does not exist."""
        try:
            return self._storage.size(f"{state_files.RUNS}/{file}")
        except WorkspaceMissingError:
            return None

    def _missing(self, ref: RunRef) -> CorruptionError | TickNotKeptError:
        """Return the error for a missing file: manifests are removed before files, so a file named by a tick is damage."""
        ticks = self._manifests.ticks()
        for tick in ticks:
            with contextlib.suppress(TickNotKeptError):
                if ref.file in self._manifests.get(tick).files:
                    name = f"{state_files.RUNS}/{ref.file}"
                    return CorruptionError(
                        f"{name} is missing, but tick {tick} needs it",
                        hint="`headwater rebuild` rebuilds the views from the log",
                        file=name,
                        offset=0,
                        tick=tick,
                        reason="missing",
                    )
        return tick_not_kept(ref.ticks[1], ticks)

    def record_stamp(self, file: str) -> None:
        """Record the state of a file that this process wrote, to detect later modification."""
        self._cache.record_stamp(file)

    def forget(self, chosen: Callable[[str], bool]) -> None:
        """Release files that are being removed."""
        self._cache.forget(chosen)

    def release_removed(self, tick: int) -> None:
        """Release files removed by another process's collection: they use disk space as long as they are mapped here."""
        if tick - self._swept_at >= _FORGET_EVERY_TICKS:
            self._swept_at = tick
            self._cache.forget(lambda file: not self._storage.exists(f"{state_files.RUNS}/{file}"))
