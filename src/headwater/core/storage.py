"""The only access to the disk: every read and write of Headwater passes here, and so do locks and syncs.

Names are relative to a root. Errors of the operating system become Headwater's own, with a hint. A replacement that tears
writes, loses unsynced data and stops at the n-th call is `headwater.testing.faults.FaultyStorage`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from headwater.core.errors import (
    DiskFullError,
    PermissionDeniedError,
    StorageError,
    SyncFailedError,
    WorkspaceMissingError,
)

Bytes = bytes | bytearray | memoryview
Stamp = tuple[int, int, int]
"""A file's length, time of last write, and inode."""

TEMPORARY = r"\.(\d+)-[0-9a-f]+\.tmp"
"""Regular expression of the suffix of a file while a process writes it; the group is the process id."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


class File:
    """An open file, read and written at explicit positions; the file's own position is never used."""

    def __init__(self, storage: Storage, name: str, fd: int) -> None:
        self.storage = storage
        self.name = name
        self._fd = fd

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        try:
            piece = os.pread(self._fd, size, offset)
            if len(piece) == size or not piece:
                return piece
            pieces = [piece]
            while piece and (got := sum(map(len, pieces))) < size:
                piece = os.pread(self._fd, size - got, offset + got)
                pieces.append(piece)
        except OSError as error:
            raise _storage_error(error, self.name) from error
        return b"".join(pieces)

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write all of `data`. Not durable before `sync`; may be torn by a crash."""
        try:
            done = os.pwrite(self._fd, data, offset)
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)
        except OSError as error:
            raise _storage_error(error, self.name) from error

    def sync(self) -> None:
        """Make everything written so far durable, or raise SyncFailedError, after which the file's content is undefined until
        recovery."""
        try:
            self._sync()
        except OSError as error:
            if error.errno in _FULL:
                raise _storage_error(error, self.name) from error
            raise SyncFailedError(
                f"{self.name} could not be synced to disk: {error.strerror}",
                hint="appends that were not acknowledged may be lost; the next append recovers from what is on disk",
                file=self.name,
            ) from error

    def _sync(self) -> None:
        if sys.platform == "darwin":
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        with translated(self.name):
            os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Return the present length in bytes."""
        return self._stat().st_size

    def linked(self) -> bool:
        """Whether the file still has a name: False once it was removed, also with its folder."""
        return self._stat().st_nlink > 0

    def _stat(self) -> os.stat_result:
        try:
            return os.fstat(self._fd)
        except OSError as error:
            raise _storage_error(error, self.name) from error

    def try_lock(self) -> bool:
        """Take the file's exclusive lock if it is free. The lock is released when the last copy of this handle is closed, at
        the latest with the process. A forked child has a copy, so a child must open its own handle."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def locked(self) -> bool:
        """Whether another handle holds the lock. Concurrent calls do not affect each other."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        self.unlock()
        return False

    def unlock(self) -> None:
        """Release the lock."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the handle and release its lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # Like Python's own files: if an error ends the owner without closing, the descriptor is not leaked.
        self.close()


Names = list[str]
"""Names of files or folders; an alias, because inside `Storage` the name `list` is a method."""


class Storage:
    """A folder on a local file system. With `secret`, it and everything created in it are accessible to the owner alone."""

    def __init__(self, root: str | Path, *, secret: bool = False) -> None:
        self.root = Path(root)
        self._prefix = f"{root}/"
        self._file_mode, self._folder_mode = (0o600, 0o700) if secret else (0o644, 0o777)

    def path(self, name: str) -> str:
        """Return the path of a file, for libraries that read by path. They must not write."""
        return self._prefix + name

    def open(
        self, name: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False
    ) -> File:
        """Return a handle. `exclusive` creates the file and raises FileExistsError if it exists."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        flags |= os.O_CLOEXEC | (os.O_CREAT if create or exclusive else 0) | (os.O_EXCL if exclusive else 0)
        with translated(name):
            return self._file(name, os.open(self.path(name), flags, self._file_mode))

    def _file(self, name: str, fd: int) -> File:
        return File(self, name, fd)

    def exists(self, name: str) -> bool:
        """Whether a file or folder of that name exists."""
        return os.path.lexists(self.path(name))

    def size(self, name: str) -> int:
        """Return the length of a file."""
        with translated(name):
            return os.stat(self.path(name)).st_size

    def stamp(self, name: str) -> Stamp | None:
        """Return a stamp that changes when a file is written or replaced: length, time of last write, inode; None if there is
        no file."""
        with translated(name):
            try:
                found = os.stat(self.path(name))
            except FileNotFoundError:
                return None
        return found.st_size, found.st_mtime_ns, found.st_ino

    def inode(self, name: str) -> int:
        """Return the inode of a file, which changes when the file is replaced; 0 if it is missing, or may not be accessed."""
        with translated(name):
            try:
                return os.stat(self.path(name)).st_ino
            except (FileNotFoundError, PermissionError):
                return 0

    def list(self, name: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no such folder."""
        with translated(name):
            try:
                return sorted(os.listdir(self.path(name)))
            except FileNotFoundError:
                return []

    def files(self, name: str) -> Names:
        """Return the names of the files in a folder, sorted: no folders, no links."""
        return self._names_in(name, folders=False)

    def folders(self, name: str) -> Names:
        """Return the names of the folders in a folder, sorted: no files, no links."""
        return self._names_in(name, folders=True)

    def _names_in(self, name: str, *, folders: bool) -> Names:
        with translated(name):
            try:
                with os.scandir(self.path(name)) as entries:
                    found = [
                        entry.name
                        for entry in entries
                        if (entry.is_dir if folders else entry.is_file)(follow_symlinks=False)
                    ]
            except FileNotFoundError:
                return []
        return sorted(found)

    def make_dirs(self, name: str) -> None:
        """Create a folder and its missing parents durably."""
        path = self.root / name
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        with translated(name):
            for folder in reversed(missing):
                folder.mkdir(self._folder_mode, exist_ok=True)
                _sync_folder(folder.parent)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, atomically replacing an existing one. Durable after `sync_dir`."""
        with translated(old):
            os.replace(self.path(old), self.path(new))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name atomically; FileExistsError if that name is taken. Durable after `sync_dir`."""
        with translated(old):
            os.link(self.path(old), self.path(new))

    def remove(self, name: str) -> None:
        """Delete a file; a missing file is no error."""
        with translated(name), contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def remove_dir(self, name: str, own: re.Pattern[str]) -> None:
        """Delete the files below a folder whose relative path matches `own`, and the folders that are then empty. Foreign files
        stay, and with them their folders."""
        self._remove_below(name, "", own)

    def _remove_below(self, name: str, within: str, own: re.Pattern[str]) -> None:
        for entry in self.files(name):
            if own.fullmatch(within + entry):
                self.remove(f"{name}/{entry}")
        for entry in self.folders(name):
            self._remove_below(f"{name}/{entry}", f"{within}{entry}/", own)
        with translated(name):
            try:
                os.rmdir(self.path(name))
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    def sync_dir(self, name: str) -> None:
        """Make the names in a folder durable: creations, renames and removals."""
        with translated(name):
            _sync_folder(self.root / name)

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        with contextlib.closing(self.open(name, read_only=True)) as file:
            return file.read_at(0, file.size())

    def write_atomic(self, name: str, data: Bytes) -> None:
        """Write a whole small file durably: after a crash either the old or the new content is there."""
        self._replace(name, data, sync=True)
        self.sync_dir(os.path.dirname(name) or ".")

    def put(self, name: str, data: Bytes) -> None:
        """Write a whole small file without syncing: other processes see the old or the new content, but it may be lost or torn
        by a loss of power."""
        self._replace(name, data, sync=False)

    def _replace(self, name: str, data: Bytes, *, sync: bool) -> None:
        temporary = f"{name}.{os.getpid()}-{threading.get_ident():x}.tmp"
        try:
            with contextlib.closing(self.open(temporary, create=True)) as file:
                file.truncate(0)
                file.write_at(0, data)
                if sync:
                    file.sync()
            self.rename(temporary, name)
        except StorageError:  # repeated failures must not fill the disk
            with contextlib.suppress(StorageError):
                self.remove(temporary)
            raise

    def free_bytes(self) -> int:
        """Return the space left on the file system in bytes."""
        with translated("."):
            stat = os.statvfs(self.root)
            return stat.f_bavail * stat.f_frsize

    def boot_id(self) -> str:
        """Return an id that changes when the machine boots: only then may written but unsynced data be lost."""
        return _boot_id()


def is_running(pid: int) -> bool:
    """Whether a process with this id exists, of any user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


class SequentialWriter(io.RawIOBase):
    """A file object for libraries that write a stream, such as pyarrow's Parquet writer."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Append to the file."""
        self._file.write_at(self._at, data)
        size = memoryview(data).nbytes
        self._at += size
        return size

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._at


def translated(name: str) -> _Translation:
    """Translate errors of the operating system to Headwater's. FileExistsError and BlockingIOError pass, because callers handle
    them."""
    return _Translation(name)


class _Translation:
    """The context manager of `translated`. A class, because a generator costs more than some of the calls in it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileExistsError | BlockingIOError):
            raise _storage_error(error, self._name) from error


def _storage_error(error: OSError, name: str) -> StorageError:
    said = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFullError(
            f"no space left while writing {name}",
            hint="free some space and try again; no restart is needed",
            file=name,
        )
    if error.errno in _DENIED:
        return PermissionDeniedError(
            f"access to {name} was denied: {said}",
            hint="check the owner and permissions of the workspace's folder",
            file=name,
        )
    if error.errno in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR):
        return WorkspaceMissingError(
            f"{name} does not exist",
            hint="was the workspace's folder moved or deleted? open it again",
            file=name,
        )
    return StorageError(f"{name} could not be accessed: {said}", hint="run `headwater doctor`", file=name)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if sys.platform == "darwin":
        # not kern.boottime, which changes when the clock is set
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        shown = subprocess.run(command, capture_output=True, check=False).stdout
        return hashlib.blake2b(shown, digest_size=8).hexdigest()
    return "unknown"
