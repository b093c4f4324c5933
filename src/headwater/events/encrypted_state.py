"""Encryption of derived data of aggregates with private fields, by the aggregate's own key, and detection of destroyed keys.

A subject is forgotten by destroying its key (crypto-shredding). States in memory contain values that were readable when they
were folded. `ForgottenSubjects` reports that keys were destroyed since: a holder of states checks it before each use, and folds
again.
"""

from __future__ import annotations

import hashlib

from headwater.catalog.definitions import TopicDefinition
from headwater.privacy.column_encryption import decrypt, encrypt
from headwater.privacy.subject_keys import NONCE_BYTES, SubjectKeys

CLAIMS = "headwater:claims"
"""Key subject for the digests of private names: it stands for no person, and must not be forgotten."""


class ForgottenSubjects:
    """Detects that subjects were forgotten since the last check. Free of cost for topics without private columns."""

    def __init__(self, topic: TopicDefinition, keys: SubjectKeys) -> None:
        self._keys = keys if topic.private else None
        self._seen = self._count()

    def _count(self) -> int:
        if self._keys is None:
            return 0
        self._keys.refresh()
        return len(self._keys.destroyed())

    def any_new(self) -> bool:
        """Whether subjects were forgotten since the last call, which this call becomes."""
        before, self._seen = self._seen, self._count()
        return self._seen != before

    def any_pending(self) -> bool:
        """Whether subjects were forgotten since the last call of `any_new`, without resetting it."""
        return self._count() != self._seen


class StateEncryption:
    """Encrypts with the key of an aggregate, and never with a key that was created after the data was read."""

    def __init__(self, keys: SubjectKeys, forgotten: ForgottenSubjects, topic: str) -> None:
        self._keys = keys
        self._forgotten_subjects = forgotten
        self._bound = topic.encode()

    def encrypt(self, aggregate_id: str, data: bytes) -> bytes:
        """Return the encrypted bytes; ValueError if they may contain data of a forgotten subject."""
        (number,) = self._keys.of([aggregate_id])
        made = (
            None if self._forgotten_subjects.any_pending() else encrypt(data, number, self._keys, self._bound)
        )
        if made is None:
            raise ValueError("a subject was forgotten since the data was read")
        return made

    def decrypt(self, data: bytes) -> bytes:
        """Return the bytes that `encrypt` returned; ValueError if the key was destroyed, CorruptionError if the data is not
        encrypted."""
        self._keys.refresh()
        found = decrypt(data, self._keys, self._bound)
        if found is None:
            raise ValueError("the key was destroyed")
        return found


def digest_of(keys: SubjectKeys, name: str) -> str:
    """Return a keyed digest of a name: holders of the keys can compare names, but the name cannot be read."""
    (number,) = keys.of([CLAIMS])
    cipher = keys.cipher(number)
    assert cipher is not None
    secret = cipher.encrypt(
        bytes(NONCE_BYTES), b"", b"claims"
    )  # the only use of this nonce: a secret derived from the key
    return hashlib.blake2b(name.encode(), digest_size=16, key=secret).hexdigest()
