"""The files of subject keys: slots of wrapped keys, and the list of forgotten subjects. What a slot wraps is not read here.

The formats and invariants are described in `subject_keys`.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import xxhash

from headwater.core.clock import Microseconds
from headwater.core.errors import KeyStoreError
from headwater.core.storage import TEMPORARY, File, Storage
from headwater.privacy.master_keys import MASTER

SLOT = struct.Struct("<4sB3xqqq16s12s48s12xQ")
KEYS, FORGOTTEN, LOCK = "keys", "forgotten", "lock"
MAGIC, LIVE, DESTROYED = b"HWKY", 1, 2
_UNFINISHED = re.compile(rf"(?:{KEYS}|{FORGOTTEN}|{MASTER}){TEMPORARY}")
"""Temporary files of a process that died while it wrote one of the files."""
_LOCK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Forgetting:
    """The deletion of a subject's key: `number` counts from 1, `ids` are the keys that were destroyed."""

    number: int
    subject: str
    at: Microseconds
    ids: tuple[int, ...]
    who: str | None = None
    reason: str | None = None


class KeyFiles:
    """The slots and lines in a folder, as far as this process has read them. Not thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._file: File | None = None
        self.readings = 0
        """Number of times that the files were read from their beginning, as after keys were rewrapped."""
        self.begin()

    @property
    def root(self) -> Path:
        """The folder of the files."""
        return self._storage.root

    def begin(self) -> None:
        """Discard everything read from the files, so that the next `read` starts at their beginning."""
        self.close()
        self._version: tuple[int, int, int] = (0, 0, 0)
        self._lines = 0
        self.readings += 1
        self.numbers: dict[bytes, int] = {}
        """By digest of a subject, the number of its key."""
        self.count = 0
        """Number of slots."""
        self.forgotten: list[Forgetting] = []
        self.destroyed: frozenset[int] = frozenset()

    def close(self) -> None:
        """Close the file of keys; it is opened again when needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which the files are changed, and remove what dead processes left unfinished."""
        self._storage.make_dirs(".")
        with contextlib.closing(self._storage.open(LOCK, create=True)) as file:
            _wait_for(file, lambda: self._storage.root)
            for name in self._storage.files("."):
                if _UNFINISHED.fullmatch(name):
                    self._storage.remove(name)
            yield

    # --- reading ---------------------------------------------------------------------------------------------------

    def exist(self) -> bool:
        """Whether any key was ever stored."""
        return self._storage.exists(KEYS)

    def is_current(self) -> bool:
        """Whether no process has changed anything since the last `read`. Costs a stat of two files."""
        return self._stamp() == self._version

    def _stamp(self) -> tuple[int, int, int]:
        """Return a stamp of the files that differs whenever another process has changed something."""
        return (self._storage.inode(KEYS), self._size(KEYS), self._size(FORGOTTEN))

    def _size(self, name: str) -> int:
        return self._storage.size(name) if self._storage.exists(name) else 0

    def read(self) -> None:
        """Under the lock: read new slots and lines, or all if keys were rewrapped. KeyStoreError if they are damaged."""
        now = self._stamp()
        if now[0] != self._version[0]:
            self.begin()  # keys were rewrapped
        self._read_lines(now[2])
        self._read_slots(now[1] // SLOT.size)
        self._version = now

    def _read_slots(self, count: int) -> None:
        if count <= self.count:
            return
        with contextlib.closing(self._storage.open(KEYS, read_only=True)) as file:
            data = file.read_at(self.count * SLOT.size, (count - self.count) * SLOT.size)
        bad: int | None = None
        for place, slot in enumerate(SLOT.iter_unpack(data)):
            magic, state, number, _, _, digest, _, _, _ = slot
            at = place * SLOT.size
            if self.count + place + 1 in self.destroyed:
                continue  # destroyed: the slot may be half overwritten
            if magic != MAGIC or number != self.count + place + 1 or not _holds(data, at, slot[-1]):
                bad = place if bad is None else bad
            elif bad is not None:
                number = self.count + bad + 1
                raise self.damaged(
                    f"the slot of key {number} fails its checks", reason="damaged-slot", key=number
                )
            elif state == LIVE:
                self.numbers[digest] = number
        # incomplete slots at the end were left by a process that died before it used them
        self.count += len(data) // SLOT.size if bad is None else bad

    def _read_lines(self, size: int) -> None:
        if size <= self._lines:
            return
        with contextlib.closing(self._storage.open(FORGOTTEN, read_only=True)) as file:
            data = file.read_at(self._lines, size - self._lines)
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                said = orjson.loads(line)
                one = Forgetting(
                    said["number"],
                    said["subject"],
                    said["at"],
                    tuple(said["ids"]),
                    said["who"],
                    said["reason"],
                )
            except (ValueError, KeyError, TypeError):
                where = f"line {len(self.forgotten) + 1} of {FORGOTTEN!r}"
                raise self.damaged(f"{where} cannot be parsed", reason="damaged-line") from None
            self.forgotten.append(one)
            if self.numbers.get(digest_of(one.subject)) in one.ids:
                del self.numbers[digest_of(one.subject)]
        self._lines += len(whole)
        self.destroyed = frozenset(number for one in self.forgotten for number in one.ids)

    def slot(self, number: int) -> tuple[Any, ...]:
        """Return the slot of a key, from a file that stays open."""
        if self._file is None:
            self._file = self._storage.open(KEYS, read_only=True)
        return SLOT.unpack(self._file.read_at((number - 1) * SLOT.size, SLOT.size))

    def slots(self) -> list[tuple[Any, ...]]:
        """Return every slot, in order."""
        return list(SLOT.iter_unpack(self._storage.read(KEYS)[: self.count * SLOT.size]))

    def damaged(self, what: str, **facts: Any) -> KeyStoreError:
        """Return the error for damaged files."""
        return KeyStoreError(
            f"the keys in {self._storage.root} are damaged: {what}",
            hint="restore the folder of keys from its backup; values of the damaged key cannot be read without it",
            folder=str(self._storage.root),
            **facts,
        )

    # --- changing, under the lock ----------------------------------------------------------------------------------

    def append(self, digests: Sequence[bytes], slots: Sequence[bytes]) -> None:
        """Store new keys durably, each with the digest of its subject."""
        with contextlib.closing(self._storage.open(KEYS, create=True)) as file:
            file.truncate(self.count * SLOT.size)  # unused slots that a crash left behind
            file.write_at(self.count * SLOT.size, b"".join(slots))
            file.sync()
        self._storage.sync_dir(".")
        self.numbers.update(zip(digests, range(self.count + 1, self.count + 1 + len(slots)), strict=True))
        self.count += len(slots)
        self._version = self._stamp()

    def replace(self, slots: Sequence[bytes]) -> None:
        """Replace the file of slots atomically."""
        self._storage.write_atomic(KEYS, b"".join(slots))

    def append_line(self, one: Forgetting) -> None:
        """Add a forgotten subject durably; its keys count as destroyed from then on."""
        line = {
            "number": one.number,
            "subject": one.subject,
            "at": one.at,
            "ids": one.ids,
            "who": one.who,
            "reason": one.reason,
        }
        with contextlib.closing(self._storage.open(FORGOTTEN, create=True)) as file:
            file.truncate(self._lines)
            file.write_at(self._lines, orjson.dumps(line) + b"\n")
            file.sync()
        self._storage.sync_dir(".")

    def overwrite_destroyed(self) -> None:
        """Overwrite the slots of destroyed keys that have not been overwritten yet."""
        if not self.forgotten:
            return
        with contextlib.closing(self._storage.open(KEYS)) as file:
            changed = False
            for number in self.destroyed:
                at = (number - 1) * SLOT.size
                gone = packed(MAGIC, DESTROYED, number, 0, 0, b"", b"", b"")
                if file.read_at(at, SLOT.size) != gone:
                    file.write_at(at, gone)
                    changed = True
            if changed:
                file.sync()


def digest_of(subject: str) -> bytes:
    """Return the digest by which a slot names its subject."""
    return hashlib.blake2b(subject.encode(), digest_size=16, person=b"headwater-keys").digest()


def packed(*values: Any) -> bytes:
    """Return a slot with its checksum."""
    data = SLOT.pack(*values, 0)
    return data[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(data[:-8]))


def _holds(data: bytes, at: int, checksum: int) -> bool:
    return xxhash.xxh3_64_intdigest(data[at : at + SLOT.size - 8]) == checksum


def _wait_for(file: File, where: Callable[[], Any]) -> None:
    since = time.monotonic()
    while not file.try_lock():
        if time.monotonic() - since > _LOCK_TIMEOUT_S:
            raise KeyStoreError(
                f"the lock on the keys in {where()} is held by a process that does not release it",
                hint="end that process",
                reason="locked",
                folder=str(where()),
            )
        time.sleep(0.001)
