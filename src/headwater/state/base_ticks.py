"""The base of views: a whole tick kept apart from the rest, for when records that it was made from are removed.

`state/` can be deleted and is made again from the log; `bases/` can not, because what it holds was made from records that
are there no more. A base is made of second names of the same files, so that it costs no copy. The newest is the one that
counts: it covers everything that was ever removed, because records are let go only once a base has them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from headwater.core.errors import WorkspaceMissingError
from headwater.core.storage import Storage
from headwater.state.garbage import is_garbage
from headwater.state.manifest import Manifest
from headwater.state.state_files import RUNS, runs_origin

FOLDER = "bases"
BASE_RUNS = "bases/runs"

_NAME = re.compile(r"^(\d{12})\.json$")


class Bases:
    """The bases of one workspace. Reading is for anyone; `make` is for the engine that has claimed the workspace."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: Manifest | None = None

    def newest(self) -> Manifest | None:
        """The base that counts; None if no record was ever let go. CorruptionError if it is damaged."""
        ticks = self._ticks()
        if not ticks:
            return None
        if self._read is None or self._read.tick != ticks[-1]:
            name = _name(ticks[-1])
            try:
                self._read = Manifest.decode(self._storage.read(name), name)
            except WorkspaceMissingError:  # a newer one has taken its place meanwhile
                return self.newest()
        return self._read

    def make(self, manifest: Manifest) -> None:
        """Keep a committed tick as the base; durable when it returns, and then those before it are removed."""
        self._storage.make_dirs(BASE_RUNS)
        for file in manifest.files:
            with contextlib.suppress(FileExistsError):
                self._storage.link(f"{RUNS}/{file}", f"{BASE_RUNS}/{file}")
        self._storage.sync_dir(BASE_RUNS)
        name = _name(manifest.tick)
        temporary = f"{name}.tmp"
        with contextlib.closing(self._storage.open(temporary, create=True)) as opened:
            opened.truncate(0)
            opened.write_at(0, manifest.encode())
            opened.sync()
        with contextlib.suppress(FileExistsError):
            self._storage.link(temporary, name)
        self._storage.remove(temporary)
        self._storage.sync_dir(FOLDER)
        self._remove_older(manifest)

    def replace(self, manifest: Manifest) -> None:
        """Put another in the place of the base of that tick, durably, and remove the runs that it does not name."""
        for file in manifest.files:
            with contextlib.suppress(FileExistsError):
                self._storage.link(f"{RUNS}/{file}", f"{BASE_RUNS}/{file}")
        self._storage.sync_dir(BASE_RUNS)
        self._storage.write_atomic(_name(manifest.tick), manifest.encode())
        self._read = None
        self._remove_older(manifest)

    def restore(self, files: Iterable[str]) -> None:
        """Bring files of runs back to where ticks name them."""
        self._storage.make_dirs(RUNS)
        for file in set(files):
            if not self._storage.exists(f"{RUNS}/{file}"):
                with contextlib.suppress(FileExistsError):
                    self._storage.link(f"{BASE_RUNS}/{file}", f"{RUNS}/{file}")
        self._storage.sync_dir(RUNS)

    def size_bytes(self) -> int:
        """What the base takes, shared with `state/` or not."""
        return sum(self._storage.size(f"{BASE_RUNS}/{file}") for file in self._files())

    def _remove_older(self, newest: Manifest) -> None:
        for tick in self._ticks():
            if tick < newest.tick:
                self._storage.remove(_name(tick))
        self._storage.sync_dir(FOLDER)
        for file in self._files():  # this engine may have stood still: another may be making the next base
            if file not in newest.files and is_garbage(runs_origin(file), newest, ()):
                self._storage.remove(f"{BASE_RUNS}/{file}")

    def _files(self) -> list[str]:
        """The files of runs; what others have put beside them is left out."""
        return [file for file in self._storage.files(BASE_RUNS) if runs_origin(file) is not None]

    def _ticks(self) -> list[int]:
        return [int(match[1]) for file in self._storage.list(FOLDER) if (match := _NAME.match(file))]


def _name(tick: int) -> str:
    return f"{FOLDER}/{tick:012d}.json"
