"""A file system that fails on demand: the real one, with crashes, power loss, I/O errors and flipped bits.

Pass a `FaultyStorage` to `EmbeddedLog.open(..., storage=...)` and run a program on it. All faults are deterministic:
the same program with the same seed gets the same faults.

The model of the disk: a write is durable after the file's `sync`, a name (creation, rename, removal) after `sync_dir`
of its folder, a folder when it is created. Until then a power loss may keep the change, lose it, or keep some of its
pages. A failed sync drops the writes that it should have made durable: no later sync restores them. Not modelled:
hardware that reports a sync that it did not do, and damage to synced bytes (use `flip`).
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headwater.core.storage import Bytes, File, Storage, translated

PAGE_BYTES = 512
"""Unit that a disk keeps or loses as a whole: a sector, the smallest size in use."""

Operation = Literal[
    "create", "write_at", "sync", "truncate", "rename", "link", "remove", "make_dirs", "sync_dir"
]
When = Literal["before", "torn", "after"]


class Crash(BaseException):
    """The death of the process under test. Not an Exception, so that none of the program's handlers catches it."""


@dataclass(frozen=True)
class StorageCall:
    """A call that changes the disk; `number` counts from 1."""

    number: int
    operation: Operation
    name: str
    offset: int = 0
    data: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        size = f" [{self.offset}, {self.offset + len(self.data)})" if self.operation == "write_at" else ""
        return f"call {self.number}: {self.operation} {self.name}{size}"


@dataclass
class InjectedFault:
    """An error injected into calls by `FaultyStorage.fail`; ends after `times` failures, or when lifted."""

    error: int
    operation: Operation
    name: str
    skip: int
    times: int | None
    met: int = 0
    """Number of calls that the fault has failed so far."""

    def lift(self) -> None:
        """End the fault."""
        self.times = 0

    def strikes(self, operation: Operation, name: str) -> bool:
        """Whether this call fails; a failure is counted."""
        if self.operation != operation or not fnmatch.fnmatch(name, self.name):
            return False
        if self.times is not None and self.met >= self.times:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.met += 1
        return True


@dataclass
class _Change:
    """A write, or (without data) a truncation, that no sync has covered; `dropped` by a failed sync."""

    at: int
    data: bytes | None
    dropped: bool = False

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            if self.at < len(content):
                del content[self.at :]
            else:
                content.extend(bytes(self.at - len(content)))
            return
        if len(content) < self.at:
            content.extend(bytes(self.at - len(content)))
        content[self.at : self.at + len(self.data)] = self.data


@dataclass
class _Content:
    """The content of one file: the durable part, and the pending changes."""

    durable: bytearray
    pending: list[_Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            if not change.dropped:
                change.apply(self.durable)
        self.pending = [c for c in self.pending if c.dropped]

    def after_power_loss(self, chance: float, chooser: random.Random) -> bytes:
        content = bytearray(self.durable)
        size = len(content)
        for change in self.pending:
            if change.data is None:
                if chooser.random() < chance:
                    change.apply(content)
                continue
            size = max(size, change.at + len(change.data))
            start, stop = change.at, change.at + len(change.data)
            while start < stop:
                end = min(stop, (start // PAGE_BYTES + 1) * PAGE_BYTES)
                if chooser.random() < chance:
                    _Change(start, change.data[start - change.at : end - change.at]).apply(content)
                start = end
        if self.pending and len(content) < size and chooser.random() < chance / 2:
            content.extend(bytes(size - len(content)))  # the length was kept, but not the data
        return bytes(content)


class FaultyFile(File):
    """A file on the simulated disk of a `FaultyStorage`."""

    storage: FaultyStorage

    def __init__(self, storage: FaultyStorage, name: str, fd: int, content: _Content | None) -> None:
        super().__init__(storage, name, fd)
        self._content = content

    def read_at(self, offset: int, size: int) -> bytes:
        """Read bytes as `File.read_at` does; raises `Crash` in a dead process."""
        self.storage.refuse_if_dead()
        return super().read_at(offset, size)

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write bytes as `File.write_at` does. Counted as a call, may be torn, and not durable before `sync`."""
        whole = bytes(data)
        with translated(self.name):
            self.storage.call("write_at", self.name, lambda: self._write(offset, whole), offset, whole, self)

    def tear(self, offset: int, data: bytes) -> None:
        """Write a part of a write's bytes, as a process does that dies during the write."""
        self._write(offset, data)

    def _write(self, offset: int, data: bytes) -> None:
        super().write_at(offset, data)
        if self._content is not None:
            self._content.pending.append(_Change(offset, data))

    def truncate(self, size: int) -> None:
        """Resize the file as `File.truncate` does. Counted as a call, and not durable before `sync`."""

        def act() -> None:
            super(FaultyFile, self).truncate(size)
            if self._content is not None:
                self._content.pending.append(_Change(size, None))

        with translated(self.name):
            self.storage.call("truncate", self.name, act, size)

    def _sync(self) -> None:
        def act() -> None:
            if self.storage.really_sync:
                super(FaultyFile, self)._sync()
            if self._content is not None:
                self._content.sync()

        try:
            self.storage.call("sync", self.name, act)
        except OSError:
            for change in self._content.pending if self._content is not None else ():
                change.dropped = True
            raise

    def try_lock(self) -> bool:
        """Lock the file as `File.try_lock` does; raises `Crash` in a dead process."""
        self.storage.refuse_if_dead()
        return super().try_lock()


class FaultyStorage(Storage):
    """A folder on a disk that fails on demand.

    Without injected crashes, faults or power loss it behaves as `Storage` does. Files are synced on the real disk only
    with `really_sync`; otherwise syncs are only recorded.
    """

    def __init__(
        self, root: str | Path, *, seed: int = 0, boot: str = "boot-1", really_sync: bool = False
    ) -> None:
        super().__init__(root)
        self.really_sync = really_sync
        self.seed = seed
        self.calls: list[StorageCall] = []
        """Every call so far that changed the disk, or tried to."""
        self.on_call: Callable[[StorageCall], None] | None = None
        """Called before each of these calls, when the disk is as a crash at this moment would leave it."""
        self._boot = boot
        self._dead = False
        self._stop: tuple[int, When] | None = None
        self._faults: list[InjectedFault] = []
        self._contents: dict[str, _Content] = {}
        self._durable: dict[str, _Content | None] = {}
        """Content on the disk of names whose entry there differs from the current one; None for a missing entry."""
        self._entries: list[dict[str, _Content | None]] = []
        """Changes of names that no `sync_dir` has covered, in order: name -> content, None if removed."""

    # --- what a test asks for ------------------------------------------------------------------------------------

    def crash_at(self, call: int, when: When = "before") -> None:
        """Die at the call of that number: before it, after it, or (for a write) in the middle of it.

        `Crash` is raised there and by every later call, including reads.
        """
        self._stop = (call, when)

    def fail(
        self, error: int, *, on: Operation = "write_at", name: str = "*", skip: int = 0, times: int | None = 1
    ) -> InjectedFault:
        """Make calls raise an OSError: the operation `on`, on files whose name matches, after the first `skip` calls, `times`
        times or (None) until lifted. A failed call changes nothing on the disk; a failed sync drops the unsynced writes."""
        fault = InjectedFault(error, on, name, skip, times)
        self._faults.append(fault)
        return fault

    def full(self, *, skip: int = 0, times: int | None = None) -> InjectedFault:
        """Make writes fail with no space left, by default until lifted."""
        return self.fail(errno.ENOSPC, skip=skip, times=times)

    def image(self, to: str | Path, *, lose_power: int | None = None, torn: bool = False) -> FaultyStorage:
        """Return a copy of the folder as a crash at this moment would leave it, for the next process to open.

        `lose_power` is the seed that decides which unsynced changes are kept; None is a crash of the process alone.
        `torn`, for use within `on_call`, writes half of the current write to the copy.
        """
        call = self.calls[-1] if torn else None
        half = (call.name, _Change(call.offset, call.data[: len(call.data) // 2])) if call else None
        target = Path(to)
        if lose_power is None:
            target.mkdir(parents=True)
            if self.root.exists():
                shutil.copytree(self.root, target, dirs_exist_ok=True)
            if half is not None:
                content = bytearray((target / half[0]).read_bytes())
                half[1].apply(content)
                (target / half[0]).write_bytes(content)
            return FaultyStorage(target, seed=self.seed, boot=self._boot)
        files = self._after_power_loss(lose_power, half)
        self._lay_out(target, files)
        return FaultyStorage(target, seed=self.seed, boot=f"{self._boot}'")

    def power_loss(self, seed: int) -> FaultyStorage:
        """Lose power now: the folder keeps what a disk could have kept, and this process is dead. Returns the folder
        after the machine has restarted, with another `boot_id`."""
        files = self._after_power_loss(seed, None)
        self._dead = True
        shutil.rmtree(self.root)
        self._lay_out(self.root, files)
        return FaultyStorage(self.root, seed=self.seed, boot=f"{self._boot}'")

    def restart(self) -> FaultyStorage:
        """Return the folder for the next process of the same boot: all writes are there."""
        self._dead = True
        return FaultyStorage(self.root, seed=self.seed, boot=self._boot)

    def flip(self, name: str, byte: int, bit: int = 0) -> None:
        """Flip one bit of a file, as a decaying disk does; a negative `byte` counts from the end."""
        path = self.root / name
        data = bytearray(path.read_bytes())
        data[byte] ^= 1 << bit
        with path.open("r+b") as file:
            file.write(data)

    # --- durable state -------------------------------------------------------------------------------------------

    def call(
        self,
        operation: Operation,
        name: str,
        act: Callable[[], None],
        offset: int = 0,
        data: bytes = b"",
        file: FaultyFile | None = None,
    ) -> None:
        """Count a call, apply the faults for it, and carry it out."""
        self.refuse_if_dead()
        call = StorageCall(len(self.calls) + 1, operation, name, offset, data)
        self.calls.append(call)
        for fault in self._faults:
            if fault.strikes(operation, name):
                raise OSError(fault.error, os.strerror(fault.error), name)
        if self.on_call is not None:
            self.on_call(call)
        when = self._stop[1] if self._stop is not None and self._stop[0] == call.number else None
        if when == "before":
            self._die(call)
        if when == "torn" and file is not None and len(data) > 1:
            cut = random.Random(f"{self.seed} {call.number}").randrange(1, len(data))
            file.tear(offset, data[:cut])
            self._die(call)
        act()
        if when is not None:
            self._die(call)

    def _die(self, call: StorageCall) -> None:
        self._dead = True
        raise Crash(f"the process died at {call}")

    def refuse_if_dead(self) -> None:
        """Raise `Crash` if this process is dead."""
        if self._dead:
            raise Crash("the process is dead")

    def _content(self, name: str) -> _Content:
        found = self._contents.get(name)
        if found is None:
            found = self._contents[name] = _Content(bytearray(Path(self.path(name)).read_bytes()))
        return found

    def _note(self, entries: dict[str, _Content | None]) -> None:
        for name in entries:
            if name not in self._durable:
                there = name in self._contents or os.path.lexists(self.path(name))
                self._durable[name] = self._content(name) if there else None
        self._entries.append(entries)

    def _after_power_loss(self, seed: int, half: tuple[str, _Change] | None) -> dict[str, bytes]:
        chooser = random.Random(seed)
        names = chooser.choice((0.0, 0.5, 0.9, 1.0))
        pages = chooser.choice((0.0, 0.5, 0.9, 1.0))
        found: dict[str, _Content | None] = {n: self._contents.get(n) for n in self._all_names()}
        on_disk = {n: c for n, c in found.items() if n not in self._durable}
        on_disk |= {n: c for n, c in self._durable.items() if c is not None}
        stuck: set[str] = set()
        for entries in self._entries:
            if stuck.intersection(entries) or chooser.random() >= names:
                stuck |= set(entries)  # a later change of the same name cannot have been kept
                continue
            for name, content in entries.items():
                if content is None:
                    on_disk.pop(name, None)
                else:
                    on_disk[name] = content
        laid: dict[str, bytes] = {}
        for name, content in sorted(on_disk.items()):
            if content is None:
                laid[name] = Path(self.path(name)).read_bytes()
                continue
            if half is not None and half[0] == name:
                content = _Content(content.durable, [*content.pending, half[1]])
            laid[name] = content.after_power_loss(pages, chooser)
        return laid

    def _all_names(self) -> Iterator[str]:
        for folder, _, files in os.walk(self.root):
            for file in files:
                yield os.path.relpath(os.path.join(folder, file), self.root)

    def _lay_out(self, target: Path, files: dict[str, bytes]) -> None:
        folders = (
            {os.path.relpath(f, self.root) for f, _, _ in os.walk(self.root)} if self.root.exists() else set()
        )
        for folder in {".", *folders, *(os.path.dirname(name) for name in files)}:
            (target / folder).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (target / name).write_bytes(data)

    # --- the calls -----------------------------------------------------------------------------------------------

    def open(
        self, name: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False
    ) -> File:
        """Open a file as `Storage.open` does; the creation of a file counts as a call."""
        self.refuse_if_dead()
        name = os.path.normpath(name)
        if (create or exclusive) and not os.path.lexists(self.path(name)):
            made: list[File] = []

            def act() -> None:
                made.append(Storage.open(self, name, create=create, exclusive=exclusive, read_only=read_only))
                self._durable.setdefault(name, None)
                self._contents[name] = content = _Content(bytearray())
                self._entries.append({name: content})

            with translated(name):
                self.call("create", name, act)
            made[0].close()
            create = exclusive = False
        return super().open(name, create=create, exclusive=exclusive, read_only=read_only)

    def _file(self, name: str, fd: int) -> File:
        return FaultyFile(self, name, fd, None if not _writes(fd) else self._content(name))

    def exists(self, name: str) -> bool:
        """Whether a file exists, as `Storage.exists` says; raises `Crash` in a dead process."""
        self.refuse_if_dead()
        return super().exists(name)

    def list(self, name: str) -> list[str]:
        """List a folder as `Storage.list` does; raises `Crash` in a dead process."""
        self.refuse_if_dead()
        return super().list(name)

    def make_dirs(self, name: str) -> None:
        """Create folders as `Storage.make_dirs` does; durable at once. Counts as a call only if a folder is missing."""
        self.refuse_if_dead()
        if not os.path.isdir(self.path(name)):
            with translated(name):
                self.call("make_dirs", name, lambda: os.makedirs(self.path(name), exist_ok=True))

    def rename(self, old: str, new: str) -> None:
        """Rename a file as `Storage.rename` does: atomic, and durable after `sync_dir`."""
        old, new = os.path.normpath(old), os.path.normpath(new)

        def act() -> None:
            content = self._content(old)
            self._note({old: None, new: content})
            Storage.rename(self, old, new)
            del self._contents[old]
            self._contents[new] = content

        with translated(old):
            self.call("rename", new, act)

    def link(self, old: str, new: str) -> None:
        """Link a file as `Storage.link` does: durable after `sync_dir`."""
        old, new = os.path.normpath(old), os.path.normpath(new)

        def act() -> None:
            content = self._content(old)
            if not os.path.lexists(self.path(new)):
                self._note({new: content})
            Storage.link(self, old, new)
            self._contents[new] = content

        with translated(old):
            self.call("link", new, act)

    def remove(self, name: str) -> None:
        """Remove a file as `Storage.remove` does. Counts as a call only if the file exists."""
        self.refuse_if_dead()
        name = os.path.normpath(name)
        if not os.path.lexists(self.path(name)):
            return

        def act() -> None:
            self._note({name: None})
            Storage.remove(self, name)
            self._contents.pop(name, None)

        with translated(name):
            self.call("remove", name, act)

    def sync_dir(self, name: str) -> None:
        """Make the names in a folder durable, as `Storage.sync_dir` does."""
        folder = os.path.normpath(name)

        def act() -> None:
            left = []
            for entries in self._entries:
                if any(os.path.normpath(os.path.dirname(n) or ".") == folder for n in entries):
                    self._durable.update(entries)
                else:
                    left.append(entries)
            self._entries = left
            for known in [n for n in self._durable if not any(n in e for e in left)]:
                del self._durable[known]

        with translated(name):
            if not os.path.isdir(self.path(name)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            self.call("sync_dir", name, act)

    def boot_id(self) -> str:
        """Return the id of the simulated boot; `power_loss` starts another."""
        return self._boot


def _writes(fd: int) -> bool:
    with contextlib.suppress(ImportError):
        import fcntl

        return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return True
