"""What is kept of aggregates with private fields besides their events, encrypted by the aggregate's own key; and when that was destroyed.

States in memory are made of values that were readable when they were folded. `Forgettings` says when that may be over: whoever
holds some looks before each use, and folds anew.
"""

from __future__ import annotations

import hashlib

from headwater.catalog.definitions import TopicDefinition
from headwater.privacy.column_encryption import seal, unseal
from headwater.privacy.subject_keys import NONCE_BYTES, SubjectKeys

CLAIMS = "headwater:claims"
"""The subject whose key private names are digested by: it is nobody, and is not to be forgotten."""


class Forgettings:
    """Whether somebody was forgotten since this was last asked. Costs nothing for topics without private columns."""

    def __init__(self, topic: TopicDefinition, keys: SubjectKeys) -> None:
        self._keys = keys if topic.private else None
        self._seen = self._count()

    def _count(self) -> int:
        if self._keys is None:
            return 0
        self._keys.refresh()
        return len(self._keys.destroyed())

    def any_new(self) -> bool:
        """Whether there were some; they are taken note of."""
        before, self._seen = self._seen, self._count()
        return self._seen != before

    def any_pending(self) -> bool:
        """The same, and they stay to be taken note of."""
        return self._count() != self._seen


class Sealing:
    """Encrypts by the key of an aggregate, and never by one that was made after what is encrypted was read."""

    def __init__(self, keys: SubjectKeys, forgettings: Forgettings, topic: str) -> None:
        self._keys = keys
        self._forgettings = forgettings
        self._bound = topic.encode()

    def sealed(self, aggregate_id: str, data: bytes) -> bytes:
        """The bytes, encrypted; ValueError if they may be of somebody who was forgotten."""
        (number,) = self._keys.of([aggregate_id])
        made = None if self._forgettings.any_pending() else seal(data, number, self._keys, self._bound)
        if made is None:
            raise ValueError("what is to be kept may have been forgotten")
        return made

    def opened(self, data: bytes) -> bytes:
        """What `sealed` encrypted; ValueError if the key was destroyed, CorruptionError if it is something else."""
        self._keys.refresh()
        found = unseal(data, self._keys, self._bound)
        if found is None:
            raise ValueError("the key was destroyed")
        return found


def digest_of(keys: SubjectKeys, name: str) -> str:
    """A name as it can be compared by who has the keys, and read by nobody."""
    (number,) = keys.of([CLAIMS])
    cipher = keys.cipher(number)
    assert cipher is not None
    secret = cipher.encrypt(
        bytes(NONCE_BYTES), b"", b"claims"
    )  # the one use of that nonce: a secret drawn from the key
    return hashlib.blake2b(name.encode(), digest_size=16, key=secret).hexdigest()
