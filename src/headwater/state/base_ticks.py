"""Base ticks: a whole tick stored separately, because records that it was built from are removed from the log.

`state/` can be deleted and rebuilt from the log; `bases/` cannot, because its contents were built from records that no
longer exist. A base consists of hard links to the same run files, so it needs no copy. Only the newest base is used: it
covers all records ever removed, because records are removed only once a base contains their effect.
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
    """The bases of one workspace. Any process may read; `make` is reserved for the engine that owns the workspace."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: Manifest | None = None

    def newest(self) -> Manifest | None:
        """Return the newest base; None if no record was ever removed. Raises CorruptionError if it is damaged."""
        ticks = self._ticks()
        if not ticks:
            return None
        if self._read is None or self._read.tick != ticks[-1]:
            name = _name(ticks[-1])
            try:
                self._read = Manifest.decode(self._storage.read(name), name)
            except WorkspaceMissingError:  # replaced by a newer base meanwhile
                return self.newest()
        return self._read

    def make(self, manifest: Manifest) -> None:
        """Store a committed tick as the base; it is durable on return, and earlier bases are removed."""
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
        """Replace the base of the same tick, durably, and remove the runs that the new manifest does not name."""
        for file in manifest.files:
            with contextlib.suppress(FileExistsError):
                self._storage.link(f"{RUNS}/{file}", f"{BASE_RUNS}/{file}")
        self._storage.sync_dir(BASE_RUNS)
        self._storage.write_atomic(_name(manifest.tick), manifest.encode())
        self._read = None
        self._remove_older(manifest)

    def restore(self, files: Iterable[str]) -> None:
        """Link run files of the base back to the runs folder."""
        self._storage.make_dirs(RUNS)
        for file in set(files):
            if not self._storage.exists(f"{RUNS}/{file}"):
                with contextlib.suppress(FileExistsError):
                    self._storage.link(f"{BASE_RUNS}/{file}", f"{RUNS}/{file}")
        self._storage.sync_dir(RUNS)

    def size_bytes(self) -> int:
        """Return the size of the base in bytes, including files shared with `state/`."""
        return sum(self._storage.size(f"{BASE_RUNS}/{file}") for file in self._files())

    def _remove_older(self, newest: Manifest) -> None:
        for tick in self._ticks():
            if tick < newest.tick:
                self._storage.remove(_name(tick))
        self._storage.sync_dir(FOLDER)
        for file in self._files():  # this engine may have been frozen while another creates the next base
            if file not in newest.files and is_garbage(runs_origin(file), newest, ()):
                self._storage.remove(f"{BASE_RUNS}/{file}")

    def _files(self) -> list[str]:
        """Return the files of runs, ignoring foreign files."""
        return [file for file in self._storage.files(BASE_RUNS) if runs_origin(file) is not None]

    def _ticks(self) -> list[int]:
        return [int(match[1]) for file in self._storage.list(FOLDER) if (match := _NAME.match(file))]


def _name(tick: int) -> str:
    return f"{FOLDER}/{tick:012d}.json"
