"""The ticks of a workspace on disk: written by the one engine that owns it, read by any process without blocking.

A tick exists if and only if its manifest does: runs are written and synced first, then the manifest is created
atomically. No manifest names the leftovers of a crash, so that readers never see them and `collect` removes them.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime

from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import CorruptionError, StorageError, WorkspaceMissingError
from headwater.core.positions import Token
from headwater.core.storage import Storage
from headwater.operators.zset.runs import Run
from headwater.state import state_files
from headwater.state.cut_history import TickCut
from headwater.state.garbage import NamedFiles, RemovedFiles, is_garbage, ticks_to_keep
from headwater.state.manifest import Manifest
from headwater.state.manifests import TickManifests
from headwater.state.ownership import current_epoch, fenced
from headwater.state.run_refs import RunRef
from headwater.state.stored_runs import StoredRuns
from headwater.state.task_exchange import Exchange
from headwater.state.writer import Writer


class StateStore:
    """The state of one workspace. Opening the store performs no I/O.

    Any thread and process may read; `begin`, `commit` and `collect` are reserved for the engine that owns the workspace.
    """

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self.storage = self._storage = storage
        self._clock = clock
        self._manifests = TickManifests(storage)
        self.stored_runs = StoredRuns(storage, self._manifests)
        """The files of runs, and detection of damage in them."""
        self._guard = threading.Lock()
        self._named = NamedFiles()
        self._writers: dict[str, Writer] = {}
        self._epoch = 0

    # --- ticks -----------------------------------------------------------------------------------------------------

    def ticks(self) -> list[int]:
        """Return the ticks that can be read, ascending."""
        return self._manifests.ticks()

    def latest(self) -> Manifest | None:
        """Return the newest tick, or None before the first tick."""
        manifest = self._manifests.latest()
        if manifest is not None:
            self.stored_runs.release_removed(manifest.tick)
        return manifest

    def latest_whole(self) -> Manifest | None:
        """Return the newest tick whose manifest is not damaged, from which an engine can continue."""
        return self._manifests.latest_whole()

    def manifest(self, tick: int) -> Manifest:
        """Return a tick; raises TickNotKeptError if it was collected or not committed yet."""
        return self._manifests.get(tick)

    def cut_of(self, tick: int) -> TickCut:
        """Return the cut of a tick, even if it was collected long ago; raises TickNotKeptError if it was never committed."""
        return self._manifests.cut_of(tick)

    def last_recorded(self) -> int:
        """Return the newest tick whose cut is recorded, which may have been collected; 0 if there is none."""
        return self._manifests.last_recorded()

    def check_token(self, token: Token) -> None:
        """Raise OtherHistoryError if the tick has another id than the token; TickNotKeptError if it was never committed."""
        self._manifests.check_token(token)

    def tick_at(self, moment: datetime | Microseconds) -> int | None:
        """Return the last tick committed at or before a point in time; None if that is before the first tick."""
        return self._manifests.tick_at(moment)

    # --- writing ---------------------------------------------------------------------------------------------------

    def begin(self, tick: int, epoch: int, attempt: str | None = None) -> Writer:
        """Return a writer for the runs of a future tick.

        `collect` of this store does not remove its files until a manifest names one of them, or until `abandon`. A
        process other than the engine's abandons the writer once it is flushed; if its runs may be for a later tick than
        `tick`, the engine passes `attempt` (letters and digits, never used before) to `collect`.
        """
        self._epoch = max(self._epoch, epoch)
        writer = Writer(self._storage, state_files.FileOrigin(tick, epoch, attempt or uuid.uuid4().hex[:12]))
        with self._guard:
            self._writers[writer.origin.attempt] = writer
        return writer

    def abandon(self, writer: Writer) -> None:
        """Stop protecting the writer's files: those that no manifest names by the next tick are garbage."""
        with self._guard:
            self._writers.pop(writer.origin.attempt, None)

    def exchange(self, writer: Writer, number: int) -> Exchange:
        """Return a folder for the data that a writer's tick passes to tasks in step number `number`; it is not created yet.

        It is protected from `collect` like the writer's files. Tasks write runs under the origin of that writer with an
        attempt of their own, flush them, and report what they wrote: files that no manifest names are garbage once the
        tick is committed.
        """
        return Exchange(self._storage, state_files.exchange_name(writer.origin, number))

    def commit_time(self, last: Manifest | None) -> Microseconds:
        """Return the commit time for the tick after `last`: now, but never before that of the last tick."""
        now = self._clock.now_us()
        return max(now, last.committed_at) if last else now

    def commit(self, manifest: Manifest) -> None:
        """Commit a tick, atomically and durably, including the named runs.

        Raises FencedError if an engine of a newer epoch has taken over, or has committed this tick or a later one; then
        nothing has changed. After a storage error the tick may or may not exist: calling it again with the same
        manifest completes the commit.
        """
        self._epoch = max(self._epoch, manifest.epoch)
        for writer in self._writers_of(manifest):
            writer.flush()
        self._manifests.create(manifest)
        for writer in self._writers_of(manifest):
            for file in writer.files & manifest.files:
                self.stored_runs.record_stamp(file)
            self.abandon(writer)
        with contextlib.suppress(StorageError):  # the tick is committed; `collect` completes the cuts
            self._manifests.record_cuts()

    def _writers_of(self, manifest: Manifest) -> list[Writer]:
        with self._guard:
            return [writer for writer in self._writers.values() if writer.files & manifest.files]

    # --- runs ------------------------------------------------------------------------------------------------------

    def open_run(self, ref: RunRef) -> Run:
        """Return a run as views into its file; raises TickNotKeptError if its file is gone and no kept tick names it."""
        return self.stored_runs.open(ref)

    def open_all(self, refs: Sequence[RunRef]) -> list[Run]:
        """Return several runs as views into their files, oldest first."""
        return self.stored_runs.open_all(refs)

    def runs(self, manifest: Manifest, arrangement: str) -> list[Run]:
        """Return the runs of an arrangement at a tick, oldest first; raises TickNotKeptError if the tick was collected
        meanwhile."""
        return self.open_runs(manifest, manifest.arrangements[arrangement])

    def open_runs(self, manifest: Manifest, refs: Sequence[RunRef]) -> list[Run]:
        """Return runs named by a tick; raises TickNotKeptError if it was collected meanwhile."""
        return self.stored_runs.open_named(manifest, refs)

    def touch(self, ref: RunRef) -> None:
        """Load a run that was just written into memory, for fast probes."""
        self.stored_runs.touch(ref)

    def remember(self, ref: RunRef, run: Run) -> None:
        """Cache a run that is already in memory, to avoid reading the file."""
        self.stored_runs.remember(ref, run)

    def verify(self, ref: RunRef) -> None:
        """Read a run's bytes from its file and verify the checksum; raises CorruptionError, which names the byte."""
        self.stored_runs.verify(ref)

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def collect(
        self, keep_ticks: int, protect: Iterable[int] = (), *, spare: Iterable[str] = ()
    ) -> RemovedFiles:
        """Remove all ticks but the last `keep_ticks` and the protected ones, the runs that no remaining tick names, and
        leftovers of crashed attempts.

        The newest tick always stays. `spare` has the attempts of other processes in progress. A crash at any point
        leaves every tick that was to be kept intact. Readers that have a run open can continue to use it. Raises
        FencedError if another engine has taken over since this store wrote something.
        """
        if self._epoch and (newest := current_epoch(self._storage)) > self._epoch:
            raise fenced(self._epoch, newest)
        latest = self.latest()
        if latest is None:
            return RemovedFiles(0, 0)
        ticks = self.ticks()
        kept = ticks_to_keep(ticks, keep_ticks, protect)
        for tick in list(kept):
            if tick not in self._named.seen:
                try:
                    self._named.see(self.manifest(tick))
                except CorruptionError:  # the files that it named are unknown: remove it
                    kept.remove(tick)
        self._manifests.record_cuts()
        self._manifests.sync_cuts()
        with self._guard:
            spared = {*spare, *self._writers}
        dropped = sorted(set(ticks) - set(kept))
        removed = self._remove([state_files.manifest_name(tick) for tick in dropped])
        # A removed tick must not reappear after a power failure when its runs are gone.
        if dropped:
            self._storage.sync_dir(state_files.MANIFESTS)
        temporary = [
            f"{state_files.MANIFESTS}/{file}"
            for file in self._storage.files(state_files.MANIFESTS)
            if is_garbage(state_files.temporary_origin(file), latest, spared)
        ]
        files = [
            file
            for file in self._storage.files(state_files.RUNS)
            if not self._named.named(file, kept) and is_garbage(state_files.runs_origin(file), latest, spared)
        ]
        removed += self._remove(temporary) + self._remove([f"{state_files.RUNS}/{file}" for file in files])
        for folder in self._storage.folders(state_files.EXCHANGE):
            if is_garbage(state_files.exchange_origin(folder), latest, spared):
                Exchange(self._storage, folder).remove()
        gone = set(files)
        self.stored_runs.forget(gone.__contains__)
        self._named.forget(files, dropped)
        return RemovedFiles(len(dropped) + len(temporary) + len(files), removed)

    def drop(self) -> None:
        """Remove every tick; views are then rebuilt from the log or their base. Requires ownership of the workspace."""
        self._manifests.record_cuts()
        self._manifests.sync_cuts()
        for folder in (state_files.MANIFESTS, state_files.RUNS, state_files.EXCHANGE):
            self._storage.remove_dir(folder, state_files.OWN[folder])
            with contextlib.suppress(WorkspaceMissingError):
                self._storage.sync_dir(state_files.FOLDER)
        self.stored_runs.forget(lambda _: True)
        self._manifests.forget()
        self._named = NamedFiles()

    def _remove(self, names: list[str]) -> int:
        freed = 0
        for name in names:
            with contextlib.suppress(WorkspaceMissingError):
                freed += self._storage.size(name)
                self._storage.remove(name)
        return freed
