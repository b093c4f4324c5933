"""Keys of subjects: created when a private value of a subject is first written, and destroyed when it is forgotten
(crypto-shredding).

A key is identified by its number, which encrypted values contain. It is stored wrapped by a master key (envelope encryption),
so that rotating the master rewraps keys and touches no record. Keys are in a folder of their own, next to the workspace and not
in it: a copy of the workspace cannot be decrypted without it, and a copy from before a deletion finds its keys destroyed.

Invariants of the folder, each file 0600 in a folder 0700:

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

import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headwater.core.arguments import kept_text
from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import KeyStoreError, UsageError
from headwater.core.storage import Storage
from headwater.privacy.key_files import LIVE, MAGIC, Forgetting, KeyFiles, digest_of, packed
from headwater.privacy.master_keys import KEY_BYTES, MasterKeys
from headwater.privacy.master_keys import Kms as Kms

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

T = TypeVar("T")

NONCE_BYTES = 12
_CIPHERS_MAX = 20_000
"""Number of ciphers kept in memory, 2.5 kB each; creating one again from its key takes some 12 µs."""
_UNWRAPPED_MAX = 500_000
"""Number of unwrapped keys kept in memory, 0.2 kB each; unwrapping one again takes as long once more."""


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
    hint = "pass the value of the column that PRIVATE BY names: ws.forget(7)"
    if isinstance(subject, bool) or not isinstance(subject, (int, str)) or subject == "":
        raise UsageError(
            f"a subject must be an integer or a string, not {subject!r}",
            hint=hint,
            argument="subject",
            value=subject,
        )
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
    """Keys in a folder, shared by the processes of one machine. No file is created before the first key.

    `KeyFiles` has the files; this class wraps, unwraps and caches what they hold.
    """

    def __init__(self, storage: Storage, clock: Clock, kms: Kms | None = None) -> None:
        self._storage = storage
        self._clock = clock
        self._kms = kms
        self._guard = threading.RLock()
        self._files = KeyFiles(storage)
        self._begin()

    def again(self) -> FileKeys:
        """Return an object for the same keys with its own lock, for a forked child."""
        return FileKeys(self._storage, self._clock, self._kms)

    @property
    def folder(self) -> Path:
        """The folder of the keys."""
        return self._storage.root

    def check(self) -> int:
        """Return the number of subjects with a key; KeyStoreError if a key cannot be unwrapped, or the service fails."""
        self.refresh()
        with self._guard:
            if self._files.numbers:
                self.cipher(max(self._files.numbers.values()))
            return len(self._files.numbers)

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        with self._guard:
            self._files.close()

    def _begin(self) -> None:
        self._readings = self._files.readings
        self._dropped = 0
        """Number of forgotten subjects whose keys are in no cache any more."""
        self._ciphers: dict[int, AESGCM] = {}
        self._unwrapped: dict[int, bytes] = {}
        self._master_keys = MasterKeys(self._storage, self._kms)
        self._by_master: dict[int, AESGCM] = {}

    # --- reading ---------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """See `SubjectKeys.refresh`. Costs a stat of two files if nothing is new."""
        with self._guard:
            if self._files.is_current():
                return
            with self._files.locked():
                self._read()
                self._files.overwrite_destroyed()

    def _read(self) -> None:
        """Under the lock: read new slots and lines; destroyed keys leave the caches also if what follows is damaged."""
        try:
            self._files.read()
        finally:
            if self._readings != self._files.readings:
                self._begin()  # keys were rewrapped
            for one in self._files.forgotten[self._dropped :]:
                for number in one.ids:
                    self._ciphers.pop(number, None)
                    self._unwrapped.pop(number, None)
            self._dropped = len(self._files.forgotten)

    def destroyed(self) -> frozenset[int]:
        """See `SubjectKeys.destroyed`."""
        return self._files.destroyed

    def forgotten(self) -> Sequence[Forgetting]:
        """See `SubjectKeys.forgotten`."""
        self.refresh()
        return tuple(self._files.forgotten)

    def cipher(self, number: int) -> AESGCM | None:
        """See `SubjectKeys.cipher`."""
        with self._guard:
            if (found := self._ciphers.get(number)) is not None:
                return found
            if number in self._files.destroyed:
                return None
            if not 0 < number <= self._files.count:
                raise KeyStoreError(
                    f"key {number} is missing from {self._storage.root}",
                    detail="its subject was not forgotten: the encrypted values exist, but not the key to them",
                    hint="restore the folder of keys that belongs to this workspace, or pass its path: "
                    'hw.open(..., keys="..."), or HEADWATER_KEYS',
                    reason="missing-key",
                    key=number,
                    folder=str(self._storage.root),
                )
            if (key := self._unwrapped.get(number)) is None:
                key = self._unwrap(number)
                _keep(self._unwrapped, number, key, _UNWRAPPED_MAX)
            made = _cipher(key)
            _keep(self._ciphers, number, made, _CIPHERS_MAX)
            return made

    def _unwrap(self, number: int) -> bytes:
        slot = self._files.slot(number)
        if self._master(slot[3]) is None:  # keys were rewrapped since the file was opened
            self.close()
            slot = self._files.slot(number)
        return self._opened(slot)

    def _opened(self, slot: tuple[Any, ...]) -> bytes:
        from cryptography.exceptions import InvalidTag

        _, _, number, master, _, digest, nonce, wrapped, _ = slot
        cipher = self._master(master)
        if cipher is None:
            raise self._files.damaged(
                f"master key {master}, which wraps key {number}, is missing",
                reason="missing-master-key",
                key=number,
            )
        try:
            return cipher.decrypt(nonce, wrapped, _bound(number, digest))
        except InvalidTag:
            self._by_master.clear()  # a service may have returned a wrong key: ask again next time
            self._master_keys = MasterKeys(self._storage, self._kms)
            raise self._files.damaged(
                f"key {number} cannot be unwrapped", reason="unwrap", key=number
            ) from None

    # --- masters ---------------------------------------------------------------------------------------------------

    def _master(self, number: int) -> AESGCM | None:
        if (found := self._by_master.get(number)) is None and (
            key := self._master_keys.get(number)
        ) is not None:
            found = self._by_master[number] = _cipher(key)
        return found

    def _current(self) -> int:
        """Under the lock: return the number of the master key for new keys; created if there is none and no key was wrapped by
        one."""
        if not self._master_keys.exist():
            if self._files.count:
                raise self._files.damaged("the master key is missing", reason="missing-master-key")
            fresh = {1: os.urandom(KEY_BYTES)}
            self._master_keys.write(1, fresh, self._master_keys.wrapped(fresh))
        master = self._master_keys.current()
        if not self._master_keys.checked(master):
            self._try(master)
        return master

    def _try(self, master: int) -> None:
        """Verify that a master key unwraps a key that it wrapped, if the file has no digest of it."""
        for number in range(self._files.count, 0, -1):
            slot = self._files.slot(number)
            if slot[1] == LIVE and slot[3] == master and number not in self._files.destroyed:
                self._opened(slot)
                return

    def rotate(self) -> int:
        """See `SubjectKeys.rotate`."""
        with self._guard, self._files.locked():
            self._read()
            if not self._files.count:
                return 0
            self._files.overwrite_destroyed()
            number = self._current() + 1
            keys = {**self._master_keys.all(), number: os.urandom(KEY_BYTES)}
            wrapped = self._master_keys.wrapped(keys)  # the service is not needed after this
            slots = self._files.slots()
            self._master_keys.write(number, keys, wrapped)
            self._files.replace([self._rewrapped(slot, number) for slot in slots])
            self._master_keys.write(number, {number: keys[number]}, wrapped)
            self._files.begin()
            self._read()
            return len(self._files.numbers)

    def _rewrapped(self, slot: tuple[Any, ...], master: int) -> bytes:
        if slot[1] != LIVE:
            return packed(*slot[:-1])
        return self._slot(slot[2], master, slot[4], slot[5], self._opened(slot))

    def _slot(self, number: int, master: int, at: Microseconds, digest: bytes, key: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        cipher = self._master(master)
        assert cipher is not None
        wrapped = cipher.encrypt(nonce, key, _bound(number, digest))
        return packed(MAGIC, LIVE, number, master, at, digest, nonce, wrapped)

    # --- changing --------------------------------------------------------------------------------------------------

    def of(self, subjects: Sequence[str]) -> list[int]:
        """See `SubjectKeys.of`."""
        digests = list(map(digest_of, subjects))
        with self._guard:
            numbers = self._files.numbers
            if any(digest not in numbers for digest in digests):
                with self._files.locked():
                    self._read()
                    self._files.overwrite_destroyed()
                    self._make([d for d in dict.fromkeys(digests) if d not in self._files.numbers])
                numbers = self._files.numbers
            return [numbers[digest] for digest in digests]

    def _make(self, digests: Sequence[bytes]) -> None:
        """Under the lock: create and store a key for each digest."""
        if not digests:
            return
        master, at = self._current(), self._clock.now_us()
        keys = [os.urandom(KEY_BYTES) for _ in digests]
        numbers = range(self._files.count + 1, self._files.count + 1 + len(digests))
        made = [
            self._slot(number, master, at, digest, key)
            for number, digest, key in zip(numbers, digests, keys, strict=True)
        ]
        self._files.append(digests, made)
        for number, key in zip(numbers, keys, strict=True):
            _keep(self._unwrapped, number, key, _UNWRAPPED_MAX)

    def forget(self, subject: str, who: str | None = None, reason: str | None = None) -> Forgetting:
        """See `SubjectKeys.forget`."""
        if not self._files.exist():
            raise nothing_kept(subject, ())
        with self._guard, self._files.locked():
            self._read()
            self._files.overwrite_destroyed()
            number = self._files.numbers.get(digest_of(subject))
            forgotten = self._files.forgotten
            if number is None:
                raise nothing_kept(subject, forgotten)
            one = Forgetting(
                len(forgotten) + 1, subject, self._clock.now_us(), (number,), who=who, reason=reason
            )
            self._files.append_line(one)
            self._read()
            self._files.overwrite_destroyed()
            return one


def nothing_kept(subject: str, forgotten: Sequence[Forgetting]) -> UsageError:
    """Return the error for a subject without a key."""
    before = next((one for one in reversed(forgotten) if one.subject == subject), None)
    if before is None:
        return UsageError(
            f"subject {subject!r} has no private values to forget",
            hint="a subject is a value of the column that PRIVATE BY names",
            reason="no-values",
            subject=subject,
        )
    return UsageError(
        f"subject {subject!r} is already forgotten, and has no private values since",
        hint="ws.deletions() lists every deletion and its progress",
        reason="forgotten",
        subject=subject,
        number=before.number,
    )


def _keep(kept: dict[int, T], number: int, value: T, most: int) -> None:
    """Cache a value, and evict the oldest quarter if the cache is full."""
    if len(kept) >= most:
        for old in list(kept)[: most // 4]:
            del kept[old]
    kept[number] = value


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _bound(number: int, digest: bytes) -> bytes:
    """Return the authenticated data of a wrapped key, which prevents its use in another slot."""
    return struct.pack("<q", number) + digest
