"""Keys of subjects: created when a private value of a subject is first written, and destroyed when it is forgotten
(crypto-shredding).

A key is identified by its number, which encrypted values contain. It is stored wrapped by a master key (envelope encryption),
so that rotating the master rewraps keys and touches no record. Keys are in a folder of their own, next to the workspace and not
in it: a copy of the workspace cannot be decrypted without it, and a copy from before a deletion finds its keys destroyed.

Invariants of `FileKeys`, each file 0600 in a folder 0700:

  master     JSON: the master keys by number, in plain or wrapped by a KMS, and the number of the current one (see
             `headwater.privacy.master_keys`)
  keys       slots of 128 bytes, key number n in slot n - 1: magic, state, number, master's number, time, digest of the
             subject, nonce, wrapped key, checksum; a destroyed one is zeros but for magic, state, number and checksum
  forgotten  one line of JSON for every forgotten subject, in order: subject, keys, time, user and reason
  lock       held while one of the other files is changed

Any other file there was left by a process that died, and is removed by the next holder of the lock: an unfinished replacement
of `keys` or `master` may contain keys that were destroyed since.

A subject counts as forgotten from the moment its line is durable: every process refuses the keys that it names from then on,
and the next process that opens the folder overwrites the slots if the writer of the line died before it did. Slots and lines
are only appended, so a process that has read the first n needs to read only the later ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import orjson
import xxhash

from headwater.core.arguments import kept_text
from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import KeyStoreError, UsageError
from headwater.core.storage import TEMPORARY, File, Storage
from headwater.privacy.master_keys import KEY_BYTES, MASTER, Masters
from headwater.privacy.master_keys import Wrapping as Wrapping

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

T = TypeVar("T")

NONCE_BYTES = 12
SLOT = struct.Struct("<4sB3xqqq16s12s48s12xQ")
KEYS, FORGOTTEN, LOCK = "keys", "forgotten", "lock"
_UNFINISHED = re.compile(rf"(?:{KEYS}|{FORGOTTEN}|{MASTER}){TEMPORARY}")
"""Temporary files of a process that died while it wrote one of the files."""
_MAGIC, _LIVE, _DESTROYED = b"HWKY", 1, 2
_CIPHERS_MAX = 20_000
"""Number of ciphers kept in memory, 2.5 kB each; creating one again from its key takes some 12 µs."""
_UNWRAPPED_MAX = 500_000
"""Number of unwrapped keys kept in memory, 0.2 kB each; unwrapping one again takes as long once more."""
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


class SubjectKeys(Protocol):
    """Store of the keys of a workspace's subjects."""

    def of(self, subjects: Sequence[str]) -> list[int]:
        """Return the number of each subject's key; missing keys are created durably."""
        ...

    def cipher(self, number: int) -> AESGCM | None:
        """Return the cipher of a key; None if the key was destroyed. KeyStoreError if this store never had it."""
        ...

    def refresh(self) -> None:
        """Apply what other processes have added or destroyed; call it before a batch is read or written."""
        ...

    def destroyed(self) -> frozenset[int]:
        """Return the numbers of the destroyed keys."""
        ...

    def forget(self, subject: str, who: str | None = None, reason: str | None = None) -> Forgetting:
        """Destroy a subject's key durably; UsageError if the subject has no key, or was already forgotten and got none
        since."""
        ...

    def forgotten(self) -> Sequence[Forgetting]:
        """Return every forgotten subject, in order."""
        ...

    def rotate(self) -> int:
        """Wrap all keys by a new master key, and destroy the previous one; return the number of keys."""
        ...


def subject_text(subject: Any) -> str:
    """Return the text of a subject for its key: the same for 7 and '7', because topics may have either."""
    hint = "it is the value of the column that others are PRIVATE BY: ws.forget(7)"
    if isinstance(subject, bool) or not isinstance(subject, (int, str)) or subject == "":
        raise UsageError(f"a subject is a whole number or a text, not {subject!r}", hint=hint)
    return kept_text(str(subject), "a subject", hint)


@dataclass
class MemoryKeys:
    """Keys in memory only, for a workspace in memory."""

    clock: Clock
    _numbers: dict[str, int] = field(default_factory=dict)
    _ciphers: list[AESGCM | None] = field(default_factory=list)
    _forgotten: list[Forgetting] = field(default_factory=list)

    def of(self, subjects: Sequence[str]) -> list[int]:
        """See `SubjectKeys.of`."""
        for subject in subjects:
            if subject not in self._numbers:
                self._ciphers.append(_cipher(os.urandom(KEY_BYTES)))
                self._numbers[subject] = len(self._ciphers)
        return [self._numbers[subject] for subject in subjects]

    def cipher(self, number: int) -> AESGCM | None:
        """See `SubjectKeys.cipher`."""
        return self._ciphers[number - 1]

    def refresh(self) -> None:
        """See `SubjectKeys.refresh`."""

    def destroyed(self) -> frozenset[int]:
        """See `SubjectKeys.destroyed`."""
        return frozenset(number for one in self._forgotten for number in one.ids)

    def forget(self, subject: str, who: str | None = None, reason: str | None = None) -> Forgetting:
        """See `SubjectKeys.forget`."""
        number = self._numbers.pop(subject, None)
        if number is None:
            raise nothing_kept(subject, self._forgotten)
        self._ciphers[number - 1] = None
        made = Forgetting(len(self._forgotten) + 1, subject, self.clock.now_us(), (number,), who, reason)
        self._forgotten.append(made)
        return made

    def forgotten(self) -> Sequence[Forgetting]:
        """See `SubjectKeys.forgotten`."""
        return tuple(self._forgotten)

    def rotate(self) -> int:
        """See `SubjectKeys.rotate`. There is no master key in memory."""
        return 0


class FileKeys:
    """Keys in a folder, shared by the processes of one machine. No file is created before the first key."""

    def __init__(self, storage: Storage, clock: Clock, wrapping: Wrapping | None = None) -> None:
        self._storage = storage
        self._clock = clock
        self._wrapping = wrapping
        self._guard = threading.RLock()
        self._file: File | None = None
        self._begin()

    def again(self) -> FileKeys:
        """Return an object for the same keys with its own lock, for a forked child."""
        return FileKeys(self._storage, self._clock, self._wrapping)

    @property
    def folder(self) -> Path:
        """The folder of the keys."""
        return self._storage.root

    def check(self) -> int:
        """Return the number of subjects with a key; KeyStoreError if a key cannot be unwrapped, or the service fails."""
        self.refresh()
        with self._guard:
            if self._numbers:
                self.cipher(max(self._numbers.values()))
            return len(self._numbers)

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        with self._guard:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _begin(self) -> None:
        self.close()
        self._version: tuple[int, int, int] = (0, 0, 0)
        self._numbers: dict[bytes, int] = {}
        self._slots = 0
        self._lines = 0
        self._forgotten: list[Forgetting] = []
        self._destroyed: frozenset[int] = frozenset()
        self._ciphers: dict[int, AESGCM] = {}
        self._unwrapped: dict[int, bytes] = {}
        self._masters = Masters(self._storage, self._wrapping)
        self._by_master: dict[int, AESGCM] = {}

    # --- reading ---------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """See `SubjectKeys.refresh`. Costs a stat of two files if nothing is new."""
        with self._guard:
            if self._look() == self._version:
                return
            with self._locked():
                self._read()
                self._finish()

    def _look(self) -> tuple[int, int, int]:
        """Return a stamp of the files that differs whenever another process has changed something."""
        return (self._storage.inode(KEYS), self._size(KEYS), self._size(FORGOTTEN))

    def _size(self, name: str) -> int:
        return self._storage.size(name) if self._storage.exists(name) else 0

    def _read(self) -> None:
        """Under the lock: read new slots and lines."""
        now = self._look()
        if now[0] != self._version[0]:
            self._begin()  # keys were rewrapped
        self._read_lines(now[2])
        self._read_slots(now[1] // SLOT.size)
        self._version = now

    def _read_slots(self, count: int) -> None:
        if count <= self._slots:
            return
        with contextlib.closing(self._storage.open(KEYS, read_only=True)) as file:
            data = file.read_at(self._slots * SLOT.size, (count - self._slots) * SLOT.size)
        bad: int | None = None
        for place, slot in enumerate(SLOT.iter_unpack(data)):
            magic, state, number, _, _, digest, _, _, _ = slot
            at = place * SLOT.size
            if self._slots + place + 1 in self._destroyed:
                continue  # it may be half overwritten
            if magic != _MAGIC or number != self._slots + place + 1 or not _holds(data, at, slot[-1]):
                bad = place if bad is None else bad
            elif bad is not None:
                raise self._damaged(f"the slot of key {self._slots + bad + 1} is not what was written")
            elif state == _LIVE:
                self._numbers[digest] = number
        # incomplete slots at the end were left by a process that died before it used them
        self._slots += len(data) // SLOT.size if bad is None else bad

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
                where = f"line {len(self._forgotten) + 1} of {FORGOTTEN!r}"
                raise self._damaged(f"{where} is not what was written") from None
            self._forgotten.append(one)
            if self._numbers.get(_digest(one.subject)) in one.ids:
                del self._numbers[_digest(one.subject)]
            for number in one.ids:
                self._ciphers.pop(number, None)
                self._unwrapped.pop(number, None)
        self._lines += len(whole)
        self._destroyed = frozenset(number for one in self._forgotten for number in one.ids)

    def destroyed(self) -> frozenset[int]:
        """See `SubjectKeys.destroyed`."""
        return self._destroyed

    def forgotten(self) -> Sequence[Forgetting]:
        """See `SubjectKeys.forgotten`."""
        self.refresh()
        return tuple(self._forgotten)

    def cipher(self, number: int) -> AESGCM | None:
        """See `SubjectKeys.cipher`."""
        with self._guard:
            if (found := self._ciphers.get(number)) is not None:
                return found
            if number in self._destroyed:
                return None
            if not 0 < number <= self._slots:
                raise KeyStoreError(
                    f"key {number} is not in {self._storage.root}",
                    detail="nothing was forgotten: the values are there, and the keys to them are not",
                    hint="bring back the folder of keys that belongs to this workspace, or say where it is: "
                    'hw.open(..., keys="..."), or HEADWATER_KEYS',
                    folder=str(self._storage.root),
                )
            if (key := self._unwrapped.get(number)) is None:
                key = self._unwrap(number)
                _keep(self._unwrapped, number, key, _UNWRAPPED_MAX)
            made = _cipher(key)
            _keep(self._ciphers, number, made, _CIPHERS_MAX)
            return made

    def _unwrap(self, number: int) -> bytes:
        slot = self._kept(number)
        if self._master(slot[3]) is None:  # keys were rewrapped since the file was opened
            self.close()
            slot = self._kept(number)
        return self._opened(slot)

    def _kept(self, number: int) -> tuple[Any, ...]:
        if self._file is None:
            self._file = self._storage.open(KEYS, read_only=True)
        return SLOT.unpack(self._file.read_at((number - 1) * SLOT.size, SLOT.size))

    def _opened(self, slot: tuple[Any, ...]) -> bytes:
        from cryptography.exceptions import InvalidTag

        _, _, number, master, _, digest, nonce, wrapped, _ = slot
        cipher = self._master(master)
        if cipher is None:
            raise self._damaged(f"master key {master}, by which key {number} is wrapped, is not among them")
        try:
            return cipher.decrypt(nonce, wrapped, _bound(number, digest))
        except InvalidTag:
            self._by_master.clear()  # a service may have returned a wrong key: ask again next time
            self._masters = Masters(self._storage, self._wrapping)
            raise self._damaged(f"key {number} cannot be unwrapped") from None

    def _damaged(self, what: str) -> KeyStoreError:
        return KeyStoreError(
            f"the keys in {self._storage.root} are damaged: {what}",
            hint="bring the folder back from where it is kept safe; values of that key cannot be read without it",
            folder=str(self._storage.root),
        )

    # --- masters ---------------------------------------------------------------------------------------------------

    def _master(self, number: int) -> AESGCM | None:
        if (found := self._by_master.get(number)) is None and (key := self._masters.get(number)) is not None:
            found = self._by_master[number] = _cipher(key)
        return found

    def _current(self) -> int:
        """Under the lock: return the number of the master key for new keys; created if there is none and no key was wrapped by
        one."""
        if not self._masters.exist():
            if self._slots:
                raise self._damaged("the master key is missing")
            fresh = {1: os.urandom(KEY_BYTES)}
            self._masters.write(1, fresh, self._masters.wrapped(fresh))
        master = self._masters.current()
        if not self._masters.checked(master):
            self._try(master)
        return master

    def _try(self, master: int) -> None:
        """Verify that a master key unwraps a key that it wrapped, if the file has no digest of it."""
        for number in range(self._slots, 0, -1):
            slot = self._kept(number)
            if slot[1] == _LIVE and slot[3] == master and number not in self._destroyed:
                self._opened(slot)
                return

    def rotate(self) -> int:
        """See `SubjectKeys.rotate`."""
        with self._guard, self._locked():
            self._read()
            if not self._slots:
                return 0
            self._finish()
            number = self._current() + 1
            keys = {**self._masters.all(), number: os.urandom(KEY_BYTES)}
            wrapped = self._masters.wrapped(keys)  # the service is not needed after this
            slots = list(SLOT.iter_unpack(self._storage.read(KEYS)[: self._slots * SLOT.size]))
            self._masters.write(number, keys, wrapped)
            again = [self._rewrapped(slot, number) for slot in slots]
            self._storage.write_atomic(KEYS, b"".join(again))
            self._masters.write(number, {number: keys[number]}, wrapped)
            self._begin()
            self._read()
            return len(self._numbers)

    def _rewrapped(self, slot: tuple[Any, ...], master: int) -> bytes:
        if slot[1] != _LIVE:
            return _packed(*slot[:-1])
        return self._slot(slot[2], master, slot[4], slot[5], self._opened(slot))

    def _slot(self, number: int, master: int, at: Microseconds, digest: bytes, key: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        cipher = self._master(master)
        assert cipher is not None
        wrapped = cipher.encrypt(nonce, key, _bound(number, digest))
        return _packed(_MAGIC, _LIVE, number, master, at, digest, nonce, wrapped)

    # --- changing --------------------------------------------------------------------------------------------------

    def of(self, subjects: Sequence[str]) -> list[int]:
        """See `SubjectKeys.of`."""
        digests = list(map(_digest, subjects))
        with self._guard:
            if any(digest not in self._numbers for digest in digests):
                with self._locked():
                    self._read()
                    self._finish()
                    self._make([d for d in dict.fromkeys(digests) if d not in self._numbers])
            return [self._numbers[digest] for digest in digests]

    def _make(self, digests: Sequence[bytes]) -> None:
        """Under the lock: create and store a key for each digest."""
        if not digests:
            return
        master, at = self._current(), self._clock.now_us()
        keys = [os.urandom(KEY_BYTES) for _ in digests]
        numbers = range(self._slots + 1, self._slots + 1 + len(digests))
        made = [
            self._slot(number, master, at, digest, key)
            for number, digest, key in zip(numbers, digests, keys, strict=True)
        ]
        with contextlib.closing(self._storage.open(KEYS, create=True)) as file:
            file.truncate(self._slots * SLOT.size)  # unused slots that a crash left behind
            file.write_at(self._slots * SLOT.size, b"".join(made))
            file.sync()
        self._storage.sync_dir(".")
        self._numbers.update(zip(digests, numbers, strict=True))
        for number, key in zip(numbers, keys, strict=True):
            _keep(self._unwrapped, number, key, _UNWRAPPED_MAX)
        self._slots += len(digests)
        self._version = self._look()

    def forget(self, subject: str, who: str | None = None, reason: str | None = None) -> Forgetting:
        """See `SubjectKeys.forget`."""
        if not self._storage.exists(KEYS):
            raise nothing_kept(subject, ())
        with self._guard, self._locked():
            self._read()
            self._finish()
            number = self._numbers.get(_digest(subject))
            if number is None:
                raise nothing_kept(subject, self._forgotten)
            one = Forgetting(
                len(self._forgotten) + 1, subject, self._clock.now_us(), (number,), who=who, reason=reason
            )
            line = {
                "number": one.number,
                "subject": subject,
                "at": one.at,
                "ids": one.ids,
                "who": who,
                "reason": reason,
            }
            with contextlib.closing(self._storage.open(FORGOTTEN, create=True)) as file:
                file.truncate(self._lines)
                file.write_at(self._lines, orjson.dumps(line) + b"\n")
                file.sync()
            self._storage.sync_dir(".")
            self._read()
            self._finish()
            return one

    def _finish(self) -> None:
        """Under the lock: overwrite the slots of destroyed keys that have not been overwritten yet."""
        if not self._forgotten:
            return
        with contextlib.closing(self._storage.open(KEYS)) as file:
            changed = False
            for number in self._destroyed:
                at = (number - 1) * SLOT.size
                gone = _packed(_MAGIC, _DESTROYED, number, 0, 0, b"", b"", b"")
                if file.read_at(at, SLOT.size) != gone:
                    file.write_at(at, gone)
                    changed = True
            if changed:
                file.sync()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._storage.make_dirs(".")
        with contextlib.closing(self._storage.open(LOCK, create=True)) as file:
            _wait_for(file, lambda: self._storage.root)
            for name in self._storage.files("."):
                if _UNFINISHED.fullmatch(name):
                    self._storage.remove(name)
            yield


def _wait_for(file: File, where: Callable[[], Any]) -> None:
    since = time.monotonic()
    while not file.try_lock():
        if time.monotonic() - since > _LOCK_TIMEOUT_S:
            raise KeyStoreError(
                f"the keys in {where()} are held by a process that does not move",
                hint="end that process",
                folder=str(where()),
            )
        time.sleep(0.001)


def nothing_kept(subject: str, forgotten: Sequence[Forgetting]) -> UsageError:
    """Return the error for a subject without a key."""
    before = next((one for one in reversed(forgotten) if one.subject == subject), None)
    if before is None:
        return UsageError(
            f"there is nothing to forget of subject {subject!r}: no private value of theirs was ever kept",
            hint="a subject is the value of the column that others are PRIVATE BY",
            subject=subject,
        )
    return UsageError(
        f"subject {subject!r} was forgotten already, and nothing of theirs was kept since",
        hint="ws.deletions() tells of every forgetting, and what has become of it",
        subject=subject,
        number=before.number,
    )


def _keep(kept: dict[int, T], number: int, value: T, most: int) -> None:
    """Cache a value, and evict the oldest quarter if the cache is full."""
    if len(kept) >= most:
        for old in list(kept)[: most // 4]:
            del kept[old]
    kept[number] = value


def _packed(*values: Any) -> bytes:
    data = SLOT.pack(*values, 0)
    return data[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(data[:-8]))


def _holds(data: bytes, at: int, checksum: int) -> bool:
    return xxhash.xxh3_64_intdigest(data[at : at + SLOT.size - 8]) == checksum


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _digest(subject: str) -> bytes:
    return hashlib.blake2b(subject.encode(), digest_size=16, person=b"headwater-keys").digest()


def _bound(number: int, digest: bytes) -> bytes:
    """Return the authenticated data of a wrapped key, which prevents its use in another slot."""
    return struct.pack("<q", number) + digest
