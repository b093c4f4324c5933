"""TickManifests: the manifests of the ticks that can be read, and the cuts of all ticks, including collected ones."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from itertools import takewhile

from headwater.core.clock import Microseconds, to_us
from headwater.core.errors import CorruptionError, FencedError, TickNotKeptError, WorkspaceMissingError
from headwater.core.positions import Token
from headwater.core.storage import Storage
from headwater.state import state_files
from headwater.state.cut_history import Cuts, TickCut, ViewCut
from headwater.state.manifest import Manifest
from headwater.state.missing_ticks import other_history, tick_not_kept
from headwater.state.ownership import current_epoch, fenced

_MANIFESTS_CACHED = 32


class TickManifests:
    """The manifests of a workspace. Opening them reads and writes nothing; any thread and process may read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cuts = Cuts(storage)
        self._guard = threading.Lock()
        self._read: OrderedDict[int, Manifest] = OrderedDict()

    def ticks(self) -> list[int]:
        """Return the ticks that can be read, ascending."""
        found = map(state_files.manifest_tick, self._storage.list(state_files.MANIFESTS))
        return [tick for tick in found if tick is not None]

    def latest(self) -> Manifest | None:
        """Return the newest tick, or None before the first tick."""
        for tick in self.newest_first():
            with contextlib.suppress(TickNotKeptError):  # collected meanwhile
                return self.get(tick)
        return None

    def latest_whole(self) -> Manifest | None:
        """Return the newest tick whose manifest is not damaged, from which an engine can continue."""
        for tick in self.newest_first():
            with contextlib.suppress(TickNotKeptError, CorruptionError):
                return self.get(tick)
        return None

    def newest_first(self) -> Iterator[int]:
        """Yield the ticks that can be read, newest first; names are parsed lazily."""
        found = map(state_files.manifest_tick, reversed(self._storage.list(state_files.MANIFESTS)))
        return (tick for tick in found if tick is not None)

    def get(self, tick: int) -> Manifest:
        """Return a tick; raises TickNotKeptError if it was collected or not committed yet."""
        with self._guard:
            if (manifest := self._read.get(tick)) is not None:
                self._read.move_to_end(tick)
        name = state_files.manifest_name(tick)
        if manifest is not None and self._storage.exists(name):
            return manifest
        try:
            data = self._storage.read(name)
        except WorkspaceMissingError:
            raise tick_not_kept(tick, self.ticks()) from None
        return self._keep(Manifest.decode(data, name))

    def cut_of(self, tick: int) -> TickCut:
        """Return the cut of a tick, even if it was collected long ago; raises TickNotKeptError if it was never committed."""
        if (cut := self._cuts.of(tick)) is not None:
            return cut
        return _cut(self.get(tick))

    def last_recorded(self) -> int:
        """Return the newest tick whose cut is recorded, which may have been collected; 0 if there is none."""
        return self._cuts.last_tick() or 0

    def check_token(self, token: Token) -> None:
        """Raise OtherHistoryError if the tick has another id than the token; TickNotKeptError if it was never committed."""
        if token.id and token.differs(found := self.cut_of(token.number).id):
            raise other_history(token, found, self.ticks())

    def tick_at(self, moment: datetime | Microseconds) -> int | None:
        """Return the last tick committed at or before a point in time; None if that is before the first tick."""
        at = to_us(moment)
        recorded = self._cuts.last_tick()
        for tick in reversed(self._unrecorded(recorded)):
            with contextlib.suppress(TickNotKeptError):
                if self.get(tick).committed_at <= at:
                    return tick
        return self._cuts.at(at)

    def create(self, manifest: Manifest) -> None:
        """Commit a tick, atomically and durably.

        Raises FencedError if an engine of a newer epoch has taken over, or has committed this tick or a later one; then
        nothing has changed. After a storage error, calling it again with the same manifest completes the commit.
        """
        name, data = state_files.manifest_name(manifest.tick), manifest.encode()
        if not (self._storage.exists(name) and self._storage.read(name) == data):
            self._create(manifest, name, data)
        self._storage.sync_dir(state_files.MANIFESTS)
        self._keep(manifest)

    def _create(self, manifest: Manifest, name: str, data: bytes) -> None:
        temporary = state_files.temporary_name(manifest.tick, manifest.epoch)
        self._storage.make_dirs(state_files.MANIFESTS)
        with contextlib.closing(self._storage.open(temporary, create=True)) as file:
            file.truncate(0)
            file.write_at(0, data)
            file.sync()
        try:
            # Another engine may take over between this check and the link: it then removes the temporary file.
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
        if next(self.newest_first(), -1) >= manifest.tick:
            raise _lost(manifest.tick)

    def _unrecorded(self, recorded: int | None) -> list[int]:
        found = takewhile(lambda tick: recorded is None or tick > recorded, self.newest_first())
        return list(found)[::-1]

    def record_cuts(self) -> None:
        """Record the cuts of ticks, after which their manifests may be removed."""
        for tick in self._unrecorded(self._cuts.last_tick()):
            with contextlib.suppress(CorruptionError):
                self._cuts.extend([_cut(self.get(tick))])

    def _keep(self, manifest: Manifest) -> Manifest:
        with self._guard:
            self._read[manifest.tick] = manifest
            while len(self._read) > _MANIFESTS_CACHED:
                self._read.popitem(last=False)
        return manifest

    def sync_cuts(self) -> None:
        """Make the recorded cuts durable."""
        self._cuts.sync()

    def forget(self) -> None:
        """Clear the cache: every tick was removed."""
        with self._guard:
            self._read.clear()


def _cut(manifest: Manifest) -> TickCut:
    views = {
        name: ViewCut(view.incarnation, view.record.begins)
        for name, view in manifest.views.items()
        if view.status == "live"
    }
    return TickCut(
        manifest.tick, manifest.committed_at, manifest.sequence, manifest.positions, views, manifest.id
    )


def _lost(tick: int) -> FencedError:
    return FencedError(
        f"another engine has already committed tick {tick}",
        detail="nothing of this engine's tick was committed",
        hint="stop this engine; the other continues from the last committed tick",
        tick=tick,
    )
