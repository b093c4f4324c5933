"""The ticks of a workspace on disk: written by the one engine that owns it, read by anyone, without waiting.

A tick is its manifest. It is there or it is not: runs are written and synced first, the manifest is created in one
step, and what a crash leaves behind no manifest names, so that nobody sees it and `collect` removes it.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import takewhile

from headwater.clock import Clock, Microseconds, to_us
from headwater.errors import (
    CorruptionError,
    FencedError,
    StorageError,
    TickNotKeptError,
    WorkspaceMissingError,
)
from headwater.operators.runs import Run
from headwater.state import layout
from headwater.state.cache import RunCache
from headwater.state.collection import Collected, NamedFiles, is_garbage, ticks_to_keep
from headwater.state.cuts import Cut, Cuts, Part
from headwater.state.errors import tick_not_kept
from headwater.state.exchange import Exchange
from headwater.state.manifest import Manifest
from headwater.state.ownership import current_epoch, fenced
from headwater.state.refs import RunRef
from headwater.state.segments import check
from headwater.state.writer import Writer
from headwater.storage import Storage

_MANIFESTS_CACHED = 32
_FORGET_EVERY_TICKS = 32


class StateStore:
    """The state of one workspace. Opening it reads and writes nothing. Reading is for any thread and process; `begin`,
    `commit` and `collect` are for the engine that has claimed the workspace."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self.storage = self._storage = storage
        self._clock = clock
        self._cache = RunCache(storage)
        self._cuts = Cuts(storage)
        self._guard = threading.Lock()
        self._manifests: OrderedDict[int, Manifest] = OrderedDict()
        self._named = NamedFiles()
        self._writers: dict[str, Writer] = {}
        self._swept_at = 0
        self._epoch = 0

    # --- ticks -----------------------------------------------------------------------------------------------------

    def ticks(self) -> list[int]:
        """The ticks that can be read, ascending."""
        found = map(layout.manifest_tick, self._storage.list(layout.MANIFESTS))
        return [tick for tick in found if tick is not None]

    def latest(self) -> Manifest | None:
        """The newest tick; None if there is none yet."""
        for tick in self._newest_first():
            with contextlib.suppress(TickNotKeptError):  # collected since
                manifest = self.manifest(tick)
                self._let_go_of_removed_files(tick)
                return manifest
        return None

    def latest_whole(self) -> Manifest | None:
        """The newest tick whose manifest is not damaged: what an engine can go on from."""
        for tick in self._newest_first():
            with contextlib.suppress(TickNotKeptError, CorruptionError):
                return self.manifest(tick)
        return None

    def _newest_first(self) -> Iterator[int]:
        """The ticks that can be read, without a look at the names of those that nobody asks for."""
        found = map(layout.manifest_tick, reversed(self._storage.list(layout.MANIFESTS)))
        return (tick for tick in found if tick is not None)

    def manifest(self, tick: int) -> Manifest:
        """A tick; TickNotKeptError if it was collected, or not made yet."""
        with self._guard:
            if (manifest := self._manifests.get(tick)) is not None:
                self._manifests.move_to_end(tick)
        name = layout.manifest_name(tick)
        if manifest is not None and self._storage.exists(name):
            return manifest
        try:
            data = self._storage.read(name)
        except WorkspaceMissingError:
            raise tick_not_kept(tick, self.ticks()) from None
        return self._keep(Manifest.decode(data, name))

    def cut_of(self, tick: int) -> Cut:
        """What a tick covers, also when it was collected long ago; TickNotKeptError if it was never made."""
        if (cut := self._cuts.of(tick)) is not None:
            return cut
        return _cut(self.manifest(tick))

    def tick_at(self, moment: datetime | Microseconds) -> int | None:
        """The last tick that was committed at or before a moment; None if that was before the first."""
        at = to_us(moment)
        recorded = self._cuts.last_tick()
        for tick in reversed(self._unrecorded(recorded)):
            with contextlib.suppress(TickNotKeptError):
                if self.manifest(tick).committed_at <= at:
                    return tick
        return self._cuts.at(at)

    # --- writing ---------------------------------------------------------------------------------------------------

    def begin(self, tick: int, epoch: int, attempt: str | None = None) -> Writer:
        """A writer for the runs of a tick that is to come.

        Its files are spared by this store's `collect` until a manifest names one of them, or `abandon`. A process other
        than the engine's abandons the writer once it is flushed; if its runs may be for a later tick than `tick`, the
        engine passes `attempt` (letters and digits, never used before) to `collect`.
        """
        self._epoch = max(self._epoch, epoch)
        writer = Writer(self._storage, layout.Origin(tick, epoch, attempt or uuid.uuid4().hex[:12]))
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
        return Exchange(self._storage, layout.exchange_name(writer.origin, number))

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
        name, data = layout.manifest_name(manifest.tick), manifest.encode()
        if not (self._storage.exists(name) and self._storage.read(name) == data):
            self._create(manifest, name, data)
        self._storage.sync_dir(layout.MANIFESTS)
        self._keep(manifest)
        for writer in self._writers_of(manifest):
            self.abandon(writer)
        with contextlib.suppress(StorageError):  # the tick is made; `collect` completes the cuts
            self._record_cuts()

    def _create(self, manifest: Manifest, name: str, data: bytes) -> None:
        temporary = layout.temporary_name(manifest.tick, manifest.epoch)
        self._storage.make_dirs(layout.MANIFESTS)
        with contextlib.closing(self._storage.open(temporary, create=True)) as file:
            file.truncate(0)
            file.write_at(0, data)
            file.sync()
        try:
            # Between this look and the link another engine may take over: it then removes the temporary file.
            self._refuse_if_late(manifest)
            self._storage.link(temporary, name)
        except FileExistsError:
            raise _lost(manifest.tick) from None
        except WorkspaceMissingError:
            raise fenced(manifest.epoch, current_epoch(self._storage)) from None
        finally:
            self._storage.remove(temporary)

    def _refuse_if_late(self, manifest: Manifest) -> None:
        newest = current_epoch(self._storage)
        if newest > manifest.epoch:
            raise fenced(manifest.epoch, newest)
        if next(self._newest_first(), -1) >= manifest.tick:
            raise _lost(manifest.tick)

    def _writers_of(self, manifest: Manifest) -> list[Writer]:
        with self._guard:
            return [writer for writer in self._writers.values() if writer.files & manifest.files]

    # --- runs ------------------------------------------------------------------------------------------------------

    def open_run(self, ref: RunRef) -> Run:
        """A run, as views into its file. TickNotKeptError if no kept tick names it any more and its file is gone."""
        try:
            return self._cache.open(ref)
        except WorkspaceMissingError:
            raise self._missing(ref) from None

    def open_all(self, refs: Sequence[RunRef]) -> list[Run]:
        """The same for several, oldest first."""
        try:
            return self._cache.open_all(refs)
        except WorkspaceMissingError:
            return [self.open_run(ref) for ref in refs]

    def runs(self, manifest: Manifest, arrangement: str) -> list[Run]:
        """The runs of an arrangement at a tick, oldest first; TickNotKeptError if the tick was collected meanwhile."""
        return self.open_runs(manifest, manifest.arrangements[arrangement])

    def touch(self, ref: RunRef) -> None:
        """Have a run that was just written at hand for probes."""
        self._cache.touch(ref)

    def open_runs(self, manifest: Manifest, refs: Sequence[RunRef]) -> list[Run]:
        """Runs that a tick names; TickNotKeptError if it was collected meanwhile."""
        try:
            return self.open_all(refs)
        except TickNotKeptError:
            raise tick_not_kept(manifest.tick, self.ticks()) from None

    def remember(self, ref: RunRef, run: Run) -> None:
        """Spare the reading of a run that is in memory already."""
        self._cache.remember(ref, run)

    def verify(self, ref: RunRef) -> None:
        """Read a run's bytes from its file and hold them against the checksum; CorruptionError names the byte."""
        try:
            check(self._cache.map(ref.file), ref)
        except WorkspaceMissingError:
            raise self._missing(ref) from None

    def size_of(self, file: str) -> int | None:
        """Bytes of a file of runs; None if it is not there."""
        try:
            return self._storage.size(f"{layout.RUNS}/{file}")
        except WorkspaceMissingError:
            return None

    def _missing(self, ref: RunRef) -> CorruptionError | TickNotKeptError:
        """Manifests are removed before files are, so a missing file that a tick still names is damage."""
        ticks = self.ticks()
        for tick in ticks:
            with contextlib.suppress(TickNotKeptError):
                if ref.file in self.manifest(tick).files:
                    name = f"{layout.RUNS}/{ref.file}"
                    return CorruptionError(
                        f"{name} is missing, and tick {tick} names it",
                        hint="`headwater rebuild` makes the views anew from the log",
                        file=name,
                        offset=0,
                    )
        return tick_not_kept(ref.ticks[1], ticks)

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def collect(
        self, keep_ticks: int, protect: Iterable[int] = (), *, spare: Iterable[str] = ()
    ) -> Collected:
        """Remove ticks but the last `keep_ticks` and the protected ones, the runs that no tick left names, and what
        crashed attempts left. The newest tick always stays. `spare` has attempts of other processes under way.

        A crash at any point leaves every tick that was to be kept whole. Readers who hold a run keep it. FencedError
        if another engine has taken over since this store wrote something.
        """
        if self._epoch and (newest := current_epoch(self._storage)) > self._epoch:
            raise fenced(self._epoch, newest)
        latest = self.latest()
        if latest is None:
            return Collected(0, 0)
        ticks = self.ticks()
        kept = ticks_to_keep(ticks, keep_ticks, protect)
        for tick in list(kept):
            if tick not in self._named.seen:
                try:
                    self._named.see(self.manifest(tick))
                except CorruptionError:  # what it named nobody knows: it goes
                    kept.remove(tick)
        self._record_cuts()
        self._cuts.sync()
        with self._guard:
            spared = {*spare, *self._writers}
        dropped = sorted(set(ticks) - set(kept))
        removed = self._remove([layout.manifest_name(tick) for tick in dropped])
        # A tick must not come back after a loss of power when its runs are gone.
        if dropped:
            self._storage.sync_dir(layout.MANIFESTS)
        temporary = [
            f"{layout.MANIFESTS}/{file}"
            for file in self._storage.list(layout.MANIFESTS)
            if is_garbage(layout.temporary_origin(file), latest, spared)
        ]
        files = [
            file
            for file in self._storage.list(layout.RUNS)
            if not self._named.named(file, kept) and is_garbage(layout.runs_origin(file), latest, spared)
        ]
        removed += self._remove(temporary) + self._remove([f"{layout.RUNS}/{file}" for file in files])
        for folder in self._storage.list(layout.EXCHANGE):
            if is_garbage(layout.exchange_origin(folder), latest, spared):
                Exchange(self._storage, folder).remove()
        gone = set(files)
        self._cache.forget(gone.__contains__)
        self._named.forget(files, dropped)
        return Collected(len(dropped) + len(temporary) + len(files), removed)

    def drop(self) -> None:
        """Remove every tick: what views keep is made again from the log, or their base. For who has claimed the workspace."""
        self._record_cuts()
        self._cuts.sync()
        for folder in (layout.MANIFESTS, layout.RUNS, layout.EXCHANGE):
            self._storage.remove_dir(folder)
            with contextlib.suppress(WorkspaceMissingError):
                self._storage.sync_dir(layout.FOLDER)
        self._cache.forget(lambda _: True)
        with self._guard:
            self._manifests.clear()
        self._named = NamedFiles()

    def _remove(self, names: list[str]) -> int:
        freed = 0
        for name in names:
            with contextlib.suppress(WorkspaceMissingError):
                freed += self._storage.size(name)
                self._storage.remove(name)
        return freed

    def _unrecorded(self, recorded: int | None) -> list[int]:
        found = takewhile(lambda tick: recorded is None or tick > recorded, self._newest_first())
        return list(found)[::-1]

    def _record_cuts(self) -> None:
        for tick in self._unrecorded(self._cuts.last_tick()):
            with contextlib.suppress(CorruptionError):
                self._cuts.extend([_cut(self.manifest(tick))])

    def _keep(self, manifest: Manifest) -> Manifest:
        with self._guard:
            self._manifests[manifest.tick] = manifest
            while len(self._manifests) > _MANIFESTS_CACHED:
                self._manifests.popitem(last=False)
        return manifest

    def _let_go_of_removed_files(self, tick: int) -> None:
        """Another process collects: files that it removed take space as long as they are mapped here."""
        if tick - self._swept_at >= _FORGET_EVERY_TICKS:
            self._swept_at = tick
            self._cache.forget(lambda file: not self._storage.exists(f"{layout.RUNS}/{file}"))


def _cut(manifest: Manifest) -> Cut:
    views = {
        name: Part(view.incarnation, view.extra.get("begins", {}))
        for name, view in manifest.views.items()
        if view.status == "live"
    }
    return Cut(manifest.tick, manifest.committed_at, manifest.sequence, manifest.positions, views)


def _lost(tick: int) -> FencedError:
    return FencedError(
        f"another engine has committed tick {tick} already",
        detail="nothing of this engine's tick was committed",
        hint="stop this engine; the other goes on from the last committed tick",
        tick=tick,
    )
