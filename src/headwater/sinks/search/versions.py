"""Versions of a SEARCH sink's index: folders within its folder, and one small file that names the active one.

Without the file `CURRENT` the active index is the folder itself. A staging version is built in a folder of its own, and
becomes active when `CURRENT` names it, by one rename; writers and readers check the file at every change and every search.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from headwater.core.errors import CheckpointConflictError, StorageError, TargetDownError
from headwater.core.storage import Storage
from headwater.sinks.base.blue_green import Version, refuse_kept, refuse_moved
from headwater.sinks.base.folder_swap import remove_own
from headwater.sinks.base.target import SinkCheckpoint, Target

CURRENT = "CURRENT"
_LOCK = ".headwater.lock"
_FOLDER = "version-"
_GONE = ".gone"
"""Suffix of the name of a folder that is being removed."""
_LEFT = re.compile(rf"{_FOLDER}\d+{re.escape(_GONE)}")
_INDEX = re.compile(
    rf"[0-9a-f]{{32}}\.[a-z0-9.]+|meta\.json|\.managed\.json|\.tantivy-[a-z-]+\.lock|\.tmp\w+|{re.escape(_LOCK)}"
)
"""Names of the files of an index: tantivy's, and the lock."""


def active_folder(path: str | Path) -> Path:
    """Return the folder of the active index."""
    return Path(path) / _read_current(Path(path)).current


def folder_of(path: Path, version: Version | None) -> Path:
    """Return the folder of a version, which may not exist."""
    said = _read_current(path)
    if version is None:
        return path / said.current
    if version == "old" and said.old is not None:
        return path / said.old
    number = 1
    while f"{_FOLDER}{number}" in (said.current, said.old):
        number += 1
    return path / f"{_FOLDER}{number}"


def of_versions(name: str) -> bool:
    """Whether a name in the folder of a sink belongs to this module, and not to an index."""
    return name in (CURRENT, _LOCK) or name.startswith((_FOLDER, f"{CURRENT}."))


@contextlib.contextmanager
def lock_folders(*folders: Path) -> Iterator[None]:
    """Exclude other processes from changing the index in any of these folders or, if one of them is active, from switching.
    Each folder has a lock of its own, so that a version is filled while the active one continues; several locks are taken in
    the same order by all processes."""
    with contextlib.ExitStack() as stack:
        for folder in sorted(set(folders)):
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class SearchVersions:
    """The versions of one index. `make` creates the target of a version, `checkpoint` reads the checkpoint in a folder."""

    sink: str
    path: Path
    make: Callable[[Version], Target]
    checkpoint: Callable[[Path], SinkCheckpoint | None]

    def existing(self) -> Collection[Version]:
        """See `TargetVersions`."""
        found: list[Version] = []
        if folder_of(self.path, "new").is_dir():
            found.append("new")
        if _read_current(self.path).old is not None:
            found.append("old")
        return found

    def target(self, version: Version) -> Target:
        """See `TargetVersions`."""
        return self.make(version)

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """Switch by one rename of `CURRENT`, while no process changes either index."""
        said, chosen = _read_current(self.path), folder_of(self.path, version)
        try:
            with lock_folders(self.path / said.current, chosen):
                self._refuse_changed(said)
                if version == "new" and said.old is not None:
                    refuse_kept(self.sink, self.named("old"))
                refuse_moved(
                    self.sink, checkpoint, self.checkpoint(chosen), self.checkpoint(self.path / said.current)
                )
                _write_current(self.path, _Current("." if chosen == self.path else chosen.name, said.current))
        except OSError as error:
            raise TargetDownError(f"{self.path} could not be written", detail=str(error)) from error

    def drop(self, version: Version) -> None:
        """Remove the files, then their entry in `CURRENT`. A folder is renamed first, so that leftovers do not count as a
        version."""
        said, folder = _read_current(self.path), folder_of(self.path, version)
        places = [place for place in (self.path / said.current, folder) if place.is_dir()]
        try:
            with lock_folders(*places):
                self._refuse_changed(said)
                if folder == self.path:
                    for name in Storage(self.path).files("."):
                        if _INDEX.fullmatch(name) and not of_versions(name):
                            (self.path / name).unlink()
                elif folder.is_dir():
                    aside = folder.with_name(f"{folder.name}{_GONE}")
                    if aside.is_dir():
                        remove_own(aside, _INDEX, self.path)
                    folder.rename(aside)
                if version == "old" and said.old is not None:
                    _write_current(self.path, _Current(said.current))
            for left in Storage(self.path).folders("."):
                if _LEFT.fullmatch(left):
                    with contextlib.suppress(OSError, StorageError):
                        remove_own(self.path / left, _INDEX, self.path)
        except OSError as error:
            raise TargetDownError(f"{folder} could not be removed", detail=str(error)) from error

    def _refuse_changed(self, said: _Current) -> None:
        if _read_current(self.path) != said:
            raise CheckpointConflictError(
                f"another version of sink {self.sink!r} has become active", found=None
            )

    def named(self, version: Version) -> str:
        """See `TargetVersions`."""
        return f"folder {folder_of(self.path, version)}"


@dataclass(frozen=True)
class _Current:
    """The contents of `CURRENT`: names of folders."""

    current: str = "."
    old: str | None = None


def _read_current(path: Path) -> _Current:
    try:
        return _Current(**orjson.loads((path / CURRENT).read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return _Current()


def _write_current(path: Path, said: _Current) -> None:
    Storage(path).write_atomic(CURRENT, orjson.dumps(said))
