"""Tracks the files of a source: the existing files, the state of each in the log, and the offset read so far.

A file is identified by its number (device and inode) and by the beginning of the content that was read, so that a renamed file
is the same file, and a file with a reused inode number is another one. If a file was copied and then truncated, as logrotate
does with `copytruncate`, the copy is recognized by all content that was read of the original, and reading continues in the
copy.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headwater.core.clock import Microseconds
from headwater.sources.base import Position
from headwater.sources.files.contents import (
    HEAD_BYTES,
    UNREADABLE,
    crc_of,
    hashed,
    head_of,
    is_compressed,
    is_same_so_far,
    is_whole_gzip,
    is_whole_parquet,
    open_content,
    read_exactly,
    stem_of,
)
from headwater.sources.files.options import FilesOptions

FORGET_AFTER_US = 86_400_000_000
"""Time for which a file that is gone is remembered: it may return under another name."""
FORMER_MAX = 1_000
"""Maximum number of files that are gone and remembered."""
OPEN_DESCRIPTORS_MAX = 64
"""Maximum number of growing files kept open, so that the rest of a file can be read after it was removed."""

Number = tuple[int, int]


@dataclass(frozen=True)
class KnownFile:
    """State of a file in the log: how much of it was read."""

    path: str
    offset: int
    """Number of bytes of the content that were read."""
    head: str
    crc: int
    """Checksum of everything that was read; for a Parquet file, of its end."""
    size: int = -1
    """Size on disk of a file that is processed as a whole; -1 for others."""
    gone_us: Microseconds | None = None
    """Time at which the file was found to be gone; None while it exists."""


@dataclass(frozen=True)
class ChangedFile:
    """A file that may have content which the log does not have."""

    path: str
    number: Number
    size: int
    mtime_us: Microseconds
    known: KnownFile | None
    is_rotated: bool = False
    """Whether the name of the file no longer matches the path of the source."""
    open_descriptor: int | None = None

    @property
    def offset(self) -> int:
        """Number of bytes of the content that were read."""
        return 0 if self.known is None else self.known.offset


class _Names:
    """The files of one scan, by the part of the name that rotated versions share."""

    def __init__(self, there: Mapping[Number, tuple[str, os.stat_result]]) -> None:
        self._there = there
        self._by_stem: dict[str, list[tuple[str, Number]]] | None = None

    def related(self, stem: str, known: Mapping[Number, KnownFile]) -> list[tuple[str, Number]]:
        """Return the related files that are known, and of the other ones the possible original of copies: the one with the
        shortest name."""
        if self._by_stem is None:
            self._by_stem = {}
            listed = [(path, number) for number, (path, status) in self._there.items() if status.st_size]
            moved = [(one.path, number) for number, one in known.items() if number not in self._there]
            for path, number in sorted(listed + moved, key=lambda name: (len(name[0]), name)):
                found = self._by_stem.setdefault(stem_of(path), [])
                if number in known or not any(other not in known for _, other in found):
                    found.append((path, number))
        return self._by_stem.get(stem, [])


class Tracker:
    """Tracks the files of one source during one run."""

    def __init__(self, options: FilesOptions, position: Position | None) -> None:
        self._options = options
        self._is_parquet = options.format == "parquet"
        self._known: dict[Number, KnownFile] = {}
        self._former: list[KnownFile] = []
        """State of files that are gone, or whose number now belongs to other content."""
        self._unchanged: dict[Number, tuple[int, int]] = {}
        """Size and modification time of files without new content."""
        self._open_descriptors: dict[Number, int] = {}
        self._unwhole: dict[Number, tuple[int, int]] = {}
        """Size and modification time of files that were incomplete."""
        self.unfit: list[ChangedFile] = []
        """Files found incomplete by the last scan although they have been unchanged for the option `settle`."""
        for number, *facts in (position or {}).get("files", []):
            known = KnownFile(*facts)
            if number is None:
                self._former.append(known)
            else:
                self._known[tuple(number)] = known

    def position(self) -> Position:
        """Return the position as plain JSON, from which the next run resumes."""
        files = [[list(number), *_plain(known)] for number, known in self._known.items()]
        return {"files": files + [[None, *_plain(known)] for known in self._former]}

    def scan(self, now_us: Microseconds) -> list[ChangedFile]:
        """Return the files that may have changed, the one modified longest ago first."""
        there = self._listed()
        self.unfit = []
        found = [*self._of_known(there, now_us)]
        names = _Names(there)
        for number, (path, status) in there.items():
            if number not in self._known and self._has_changed(number, status):
                fresh = self._of_new(path, number, status, now_us, names)
                if fresh is not None:
                    found.append(fresh)
        self._forget(now_us)
        return sorted(found, key=lambda file: (file.mtime_us, file.path))

    def took(self, file: ChangedFile, known: KnownFile) -> ChangedFile:
        """Record that content was read; returns the file with its new state."""
        self._known[file.number] = known
        if (
            file.open_descriptor is None
            and not is_compressed(file.path)
            and file.number not in self._open_descriptors
        ):
            self._hold(file)
        return replace(file, known=known)

    def exhausted(self, file: ChangedFile) -> None:
        """Record that a file has no new content until it changes."""
        with contextlib.suppress(OSError):
            status = os.stat(file.path) if file.open_descriptor is None else os.fstat(file.open_descriptor)
            if (status.st_size, status.st_mtime_ns // 1000) == (file.size, file.mtime_us):
                self._unchanged[file.number] = (status.st_size, status.st_mtime_ns)

    def offset(self, number: Number) -> int:
        """Return the number of bytes that were read of a file."""
        known = self._known.get(number)
        return 0 if known is None else known.offset

    def close(self) -> None:
        """Close the files that are kept open."""
        while self._open_descriptors:
            os.close(self._open_descriptors.popitem()[1])

    # --- finding ---------------------------------------------------------------------------------------------------

    def _listed(self) -> dict[Number, tuple[str, os.stat_result]]:
        path = self._options.path
        if os.path.isdir(path):
            path = os.path.join(glob.escape(path), "*")
        found: dict[Number, tuple[str, os.stat_result]] = {}
        for name in sorted(glob.iglob(path, recursive=True)):
            with contextlib.suppress(OSError):
                status = os.stat(name)
                if stat.S_ISREG(status.st_mode):
                    found.setdefault((status.st_dev, status.st_ino), (name, status))
        return found

    def _of_known(
        self, there: dict[Number, tuple[str, os.stat_result]], now_us: Microseconds
    ) -> Iterator[ChangedFile]:
        folders: dict[str, dict[int, str]] = {}
        for number, known in list(self._known.items()):
            open_descriptor = None
            if number in there:
                path, status = there[number]
            elif self._is_parquet or is_compressed(known.path):
                self._lose(number, known, now_us)
                continue
            else:
                moved = self._moved(number, known, folders)
                if moved is None:
                    self._lose(number, known, now_us)
                    continue
                path, status, open_descriptor = moved
            if path != known.path and open_descriptor is None:
                self._known[number] = known = replace(known, path=path)
            is_rotated = number not in there
            if not self._has_changed(number, status):
                if is_rotated and now_us - status.st_mtime_ns // 1000 >= self._options.settle_us:
                    self._lose(number, known, now_us)
                continue
            file = ChangedFile(
                path, number, status.st_size, status.st_mtime_ns // 1000, known, is_rotated, open_descriptor
            )
            try:
                if self._is_same(file, known):
                    yield file
                else:
                    self._lose(number, known, now_us)
            except FileNotFoundError:
                continue  # renamed just now: the next scan finds it

    def _moved(
        self, number: Number, known: KnownFile, folders: dict[str, dict[int, str]]
    ) -> tuple[str, os.stat_result, int | None] | None:
        """Find a file whose name no longer matches: by its number in its folder, or through its open descriptor."""
        folder = os.path.dirname(known.path) or "."
        if folder not in folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                folders[folder] = {entry.inode(): entry.path for entry in entries}
        path = folders.get(folder, {}).get(number[1])
        if path is not None:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                if (status.st_dev, status.st_ino) == number:
                    return os.path.normpath(path), status, None
        open_descriptor = self._open_descriptors.get(number)
        return None if open_descriptor is None else (known.path, os.fstat(open_descriptor), open_descriptor)

    def _has_changed(self, number: Number, status: os.stat_result) -> bool:
        return self._unchanged.get(number) != (status.st_size, status.st_mtime_ns)

    def _is_same(self, file: ChangedFile, known: KnownFile) -> bool:
        """Whether a file still begins with the content that was read, judging by the hash of its beginning and its size."""
        with open_content(file.path, file.number, file.open_descriptor) as content:
            if self._is_parquet:
                return file.size == known.size and known.crc == _footer(content, file.size)
            try:
                if not is_compressed(file.path) and content.seek(0, os.SEEK_END) < known.offset:
                    return False
                return head_of(content, known.offset) == known.head
            except UNREADABLE:
                return False

    def _of_new(
        self,
        path: str,
        number: Number,
        status: os.stat_result,
        now_us: Microseconds,
        names: _Names,
    ) -> ChangedFile | None:
        """Return a file with an unknown number if it is ready to be read; None otherwise."""
        file = ChangedFile(path, number, status.st_size, status.st_mtime_ns // 1000, None)
        if not status.st_size:
            return None
        if not self._is_parquet and not is_compressed(path):
            return self._if_no_copy(file, status, now_us, names)
        state = (status.st_size, status.st_mtime_ns)
        if self._unwhole.get(number) != state:
            is_whole = is_whole_parquet if self._is_parquet else is_whole_gzip
            if is_whole(path):
                return file if self._is_parquet else self._if_no_copy(file, status, now_us, names)
            self._unwhole[number] = state
        if now_us - file.mtime_us >= self._options.settle_us:
            self.unfit.append(file)
        return None

    def _if_no_copy(
        self, file: ChangedFile, status: os.stat_result, now_us: Microseconds, names: _Names
    ) -> ChangedFile | None:
        """Return the file, with the state of the original if the file is a copy of it; None while this is undecided."""
        stem = stem_of(file.path)
        for known in self._former:
            if stem_of(known.path) == stem and _begins_with(file, known):
                self._former.remove(known)
                self._known[file.number] = mine = replace(known, path=file.path, size=-1, gone_us=None)
                return replace(file, known=mine)
        is_new = now_us - status.st_ctime_ns // 1000 < self._options.settle_us
        originals = names.related(stem, self._known) if is_new else ()
        return None if originals and self._may_be_copied(file, originals) else file

    def _may_be_copied(self, file: ChangedFile, originals: Iterable[tuple[str, Number]]) -> bool:
        """Whether a file may be a copy, complete or in progress, of a file that is about to be truncated or removed."""
        try:
            with open_content(file.path, file.number) as copy:
                head = read_exactly(copy, HEAD_BYTES)
                for path, number in originals:
                    known = self._known.get(number)
                    if number == file.number or (known is None and len(path) >= len(file.path)):
                        continue
                    length = HEAD_BYTES if known is None else min(known.offset, HEAD_BYTES)
                    if known is not None and len(head) >= length and hashed(head[:length]) != known.head:
                        continue
                    with open_content(path, number) as original:
                        if is_same_so_far(copy, original):
                            return True
                    if known is not None and not self._is_same(
                        replace(file, path=path, number=number), known
                    ):
                        return True
        except (OSError, *UNREADABLE):
            return True  # one of the files has just gone
        return False

    # --- forgetting ------------------------------------------------------------------------------------------------

    def _lose(self, number: Number, known: KnownFile, now_us: Microseconds) -> None:
        del self._known[number]
        self._unchanged.pop(number, None)
        open_descriptor = self._open_descriptors.pop(number, None)
        if open_descriptor is not None:
            os.close(open_descriptor)
        self._former.append(replace(known, gone_us=now_us))

    def _forget(self, now_us: Microseconds) -> None:
        kept = [known for known in self._former if now_us - (known.gone_us or 0) < FORGET_AFTER_US]
        self._former = kept[-FORMER_MAX:]

    def _hold(self, file: ChangedFile) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(file.path, os.O_RDONLY)
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != file.number:
                os.close(descriptor)
                return
            self._open_descriptors[file.number] = descriptor
            if len(self._open_descriptors) > OPEN_DESCRIPTORS_MAX:
                os.close(self._open_descriptors.pop(next(iter(self._open_descriptors))))


def parquet_known(file: ChangedFile) -> KnownFile:
    """Return the state of a Parquet file that was read."""
    with open(file.path, "rb") as content:
        return KnownFile(file.path, file.size, "", _footer(content, file.size) or 0, file.size)


def _footer(content: Any, size: int) -> int | None:
    """Return the checksum of the end of a Parquet file, which contains its metadata."""
    length = min(size, 1 << 16)
    return crc_of(content, size - length, length)


def _begins_with(file: ChangedFile, known: KnownFile) -> bool:
    """Whether a file begins with everything that was read of another."""
    try:
        with open_content(file.path, file.number) as content:
            return head_of(content, known.offset) == known.head and (
                crc_of(content, 0, known.offset) == known.crc
            )
    except (OSError, *UNREADABLE):
        return False


def _plain(known: KnownFile) -> list[Any]:
    return [known.path, known.offset, known.head, known.crc, known.size, known.gone_us]
