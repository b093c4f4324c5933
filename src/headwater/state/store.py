"""The ticks of a workspace on disk: written by the one engine that owns it, read by anyone, without waiting.

A tick is its manifest. It is there or it is not: runs are written and synced first, the manifest is created in one
step, and what a crash leaves behind no manifest names, so that nobody sees it and `collect` removes it.
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
    """The state of one workspace. Opening it reads and writes nothing. Reading is for any thread and process; `begin`,
    `commit` and `collect` are for the engine that has claimed the workspace."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self.storage = self._storage = storage
        self._clock = clock
        self._manifests = TickManifests(storage)
        self.stored_runs = StoredRuns(storage, self._manifests)
        """The files of runs, and what is wrong with them."""
        self._guard = threading.Lock()
        self._named = NamedFiles()
        self._writers: dict[str, Writer] = {}
        self._epoch = 0

    # --- ticks -----------------------------------------------------------------------------------------------------

    def ticks(self) -> list[int]:
        """The ticks that can be read, ascending."""
        return self._manifests.ticks()

    def latest(self) -> Manifest | None:
        """The newest tick; None if there is none yet."""
        manifest = self._manifests.latest()
        if manifest is not None:
            self.stored_runs.let_go_of_removed(manifest.tick)
        return manifest

    def latest_whole(self) -> Manifest | None:
        """The newest tick whose manifest is not damaged: what an engine can go on from."""
        return self._manifests.latest_whole()

    def manifest(self, tick: int) -> Manifest:
        """A tick; TickNotKeptError if it was collected, or not made yet."""
        return self._manifests.get(tick)

    def cut_of(self, tick: int) -> TickCut:
        """What a tick covers, also when it was collected long ago; TickNotKeptError if it was never made."""
        return self._manifests.cut_of(tick)

    def last_recorded(self) -> int:
        """The newest tick whose cut is recorded, which may be there no more; 0 if there is none."""
        return self._manifests.last_recorded()

    def check_token(self, token: Token) -> None:
        """OtherHistoryError if the tick of the token's number is another one; TickNotKeptError if it was never made."""
        self._manifests.check_token(token)

    def tick_at(self, moment: datetime | Microseconds) -> int | None:
        """The last tick that was committed at or before a moment; None if that was before the first."""
        return self._manifests.tick_at(moment)

    # --- writing ---------------------------------------------------------------------------------------------------

    def begin(self, tick: int, epoch: int, attempt: str | None = None) -> Writer:
        """A writer for the runs of a tick that is to come.

        Its files are spared by this store's `collect` until a manifest names one of them, or `abandon`. A process other
        than the engine's abandons the writer once it is flushed; if its runs may be for a later tick than `tick`, the
        engine passes `attempt` (letters and digits, never used before) to `collect`.
        """
        self._epoch = max(self._epoch, epoch)
        writer = Writer(self._storage, state_files.FileOrigin(tick, epoch, attempt or uuid.uuid4().hex[:12]))
        with self._guard:
            self._writers[writer.origin.attempt] = writer
        return writer

    def abandon(self, writer: Writer) -> None:
        """Spare the writer's files no longer: what no manifest names by the next tick is garbage."""
        with self._guard:
            self._writers.pop(writer.origin.attempt, None)

    def exchange(self, writer: Writer, number: int) -> Exchange:
        """A folder for what a writer's tick hands to tasks in its step number `number`; not made yet.

        It is spared as the writer's files are. Tasks write runs under the origin of that writer with an attempt of their
        own, flush them, and say what they wrote: what is not named then is garbage once the tick is made.
        """
        return Exchange(self._storage, state_files.exchange_name(writer.origin, number))

    def commit_time(self) -> Microseconds:
        """The time to give to the next tick: now, but never before the last."""
        latest = self.latest_whole()
        now = self._clock.now_us()
        return max(now, latest.committed_at) if latest else now

    def commit(self, manifest: Manifest) -> None:
        """Make a tick, in one step and durably, with all runs that it names.

        FencedError if an engine of a newer epoch has taken over, or has made that tick or a later one; then nothing
        was changed. After an error of the disk the tick may or may not be there: the same again completes it.
        """
        self._epoch = max(self._epoch, manifest.epoch)
        for writer in self._writers_of(manifest):
            writer.flush()
        self._manifests.create(manifest)
        for writer in self._writers_of(manifest):
            for file in writer.files & manifest.files:
                self.stored_runs.known(file)
            self.abandon(writer)
        with contextlib.suppress(StorageError):  # the tick is made; `collect` completes the cuts
            self._manifests.record_cuts()

    def _writers_of(self, manifest: Manifest) -> list[Writer]:
        with self._guard:
            return [writer for writer in self._writers.values() if writer.files & manifest.files]

    # --- runs ------------------------------------------------------------------------------------------------------

    def open_run(self, ref: RunRef) -> Run:
        """A run, as views into its file. TickNotKeptError if no kept tick names it any more and its file is gone."""
        return self.stored_runs.open(ref)

    def open_all(self, refs: Sequence[RunRef]) -> list[Run]:
        """The same for several, oldest first."""
        return self.stored_runs.open_all(refs)

    def runs(self, manifest: Manifest, arrangement: str) -> list[Run]:
        """The runs of an arrangement at a tick, oldest first; TickNotKeptError if the tick was collected meanwhile."""
        return self.open_runs(manifest, manifest.arrangements[arrangement])

    def open_runs(self, manifest: Manifest, refs: Sequence[RunRef]) -> list[Run]:
        """Runs that a tick names; TickNotKeptError if it was collected meanwhile."""
        return self.stored_runs.open_named(manifest, refs)

    def touch(self, ref: RunRef) -> None:
        """Have a run that was just written at hand for probes."""
        self.stored_runs.touch(ref)

    def remember(self, ref: RunRef, run: Run) -> None:
        """Spare the reading of a run that is in memory already."""
        self.stored_runs.remember(ref, run)

    def verify(self, ref: RunRef) -> None:
        """Read a run's bytes from its file and hold them against the checksum; CorruptionError names the byte."""
        self.stored_runs.verify(ref)

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def collect(
        self, keep_ticks: int, protect: Iterable[int] = (), *, spare: Iterable[str] = ()
    ) -> RemovedFiles:
        """Remove ticks but the last `keep_ticks` and the protected ones, the runs that no tick left names, and what
        crashed attempts left. The newest tick always stays. `spare` has attempts of other processes under way.

        A crash at any point leaves every tick that was to be kept whole. Readers who hold a run keep it. FencedError
        if another engine has taken over since this store wrote something.
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
                except CorruptionError:  # what it named nobody knows: it goes
                    kept.remove(tick)
        self._manifests.record_cuts()
        self._manifests.sync_cuts()
        with self._guard:
            spared = {*spare, *self._writers}
        dropped = sorted(set(ticks) - set(kept))
        removed = self._remove([state_files.manifest_name(tick) for tick in dropped])
        # A tick must not come back after a loss of power when its runs are gone.
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
        """Remove every tick: what views keep is made again from the log, or their base. For who has claimed the workspace."""
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
