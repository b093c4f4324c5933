"""Versions of a folder: `<folder>~new` is filled, and swapped with the folder in one file system operation."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from headwater.core.errors import StorageError
from headwater.core.storage import Storage
from headwater.sinks.base.blue_green import Version, refuse_kept, refuse_moved
from headwater.sinks.base.target import SinkCheckpoint, SinkError, Target, TargetDownError

MARK = "_new"
"""Name of the file that marks a folder as a staging version."""
_AT_CWD, _EXCHANGE = -100, 2


def sibling(path: Path, version: Version | None) -> Path:
    """Return the folder of a version; None is the active version."""
    return path if version is None else path.with_name(f"{path.name}~{version}")


def make_new(path: Path) -> None:
    """Create the folder of the staging version. The folder has its mark from the moment it appears under its name."""
    made = sibling(path, "new")
    if not made.is_dir():
        aside = made.with_name(f"{made.name}.making")
        aside.mkdir(parents=True, exist_ok=True)
        (aside / MARK).touch()
        aside.rename(made)


def remove_own(folder: Path, own: re.Pattern[str], kept: Path) -> None:
    """Remove a folder with the files that a sink writes. Files of other programs are moved to the folder `kept`."""
    Storage(folder.parent).remove_dir(folder.name, own)
    if not folder.is_dir():
        return
    for stranger in sorted(folder.iterdir()):
        place, number = kept / stranger.name, 0
        while os.path.lexists(place):
            number += 1
            place = kept / f"{stranger.name}.{number}"
        stranger.rename(place)
    folder.rmdir()


def exchange(one: Path, other: Path) -> None:
    """Swap two folders in one step (`renameat2`). OSError if the file system does not support it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, "renameat2 is not available")
    if rename(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    Storage(one.parent).sync_dir(".")


@dataclass(frozen=True)
class FolderVersions:
    """The versions of a folder. `make` creates the target of a version, `checkpoint` reads the checkpoint of a version, and
    `locked` excludes other writers of a version."""

    sink: str
    path: Path
    own: re.Pattern[str]
    """Names of the files that the sink writes."""
    make: Callable[[Version], Target]
    checkpoint: Callable[[Version | None], SinkCheckpoint | None]
    locked: Callable[[Version | None], AbstractContextManager[None]]

    def existing(self) -> Collection[Version]:
        """See `TargetVersions`. A crash between the swap and the rename leaves the previous version under the name of the
        staging version; it is renamed here."""
        new, old = sibling(self.path, "new"), sibling(self.path, "old")
        try:
            if new.is_dir() and not (new / MARK).exists():
                new.rename(old)
        except OSError as error:
            raise TargetDownError(f"{new} could not be renamed", detail=str(error)) from error
        both: tuple[Version, Version] = ("new", "old")
        return [version for version in both if sibling(self.path, version).is_dir()]

    def target(self, version: Version) -> Target:
        """See `TargetVersions`."""
        return self.make(version)

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """Swap the folders while locks exclude writers of both. Readers do not depend on the steps after the swap."""
        chosen, old = sibling(self.path, version), sibling(self.path, "old")
        try:
            with self.locked(None), self.locked(version):
                if version == "new" and (old.is_dir() or not (chosen / MARK).exists()):
                    refuse_kept(self.sink, self.named("old"))
                refuse_moved(self.sink, checkpoint, self.checkpoint(version), self.checkpoint(None))
                if version == "new":
                    (self.path / MARK).unlink(missing_ok=True)
                exchange(self.path, chosen)
                (self.path / MARK).unlink(missing_ok=True)
                if version == "new":
                    chosen.rename(old)
        except StorageError as error:
            raise TargetDownError(f"{self.path} could not be written", detail=str(error)) from error
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV):
                raise SinkError(
                    f"the file system of {self.path} cannot exchange two folders atomically: {error.strerror}",
                    hint="move the path of the sink to a local Linux file system such as ext4, xfs or btrfs",
                    sink=self.sink,
                    path=str(self.path),
                ) from error
            raise TargetDownError(f"{self.path} could not be switched", detail=str(error)) from error

    def drop(self, version: Version) -> None:
        """See `TargetVersions`."""
        folder = sibling(self.path, version)
        try:
            if folder.is_dir():
                remove_own(folder, self.own, self.path)
        except (OSError, StorageError) as error:
            raise TargetDownError(f"{folder} could not be removed", detail=str(error)) from error

    def named(self, version: Version) -> str:
        """See `TargetVersions`."""
        return f"folder {sibling(self.path, version)}"
