"""Random ids of commits by their numbers, which distinguish commits of the same number in different histories.

A restored older copy of a workspace assigns the following commit numbers again, to other commits. Whatever stores a commit
number from before stores the id with it, and `Log.commit_id` returns the id that the number has now.

The ids of the current journal are part of the state. When the journal is folded into a checkpoint, they go into a file of their
own, `commits/<first number>-<count>-<checksum>.ids`, 8 bytes each and zeros where an id is not known: the commit is from a
version without ids, or its record was lost. The newest `FILES_MAX` files are kept: some 16 million commits of small appends, in
128 MB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from headwater.core.errors import StorageError
from headwater.core.storage import Storage

FOLDER = "commits"
FILES_MAX = 4_096
_BYTES = 8
_NAME = re.compile(r"([0-9]{12,})-([0-9]+)-([0-9a-f]{16})\.ids\Z")
_UNKNOWN = bytes(_BYTES)

Stored = tuple[int, int, str]
"""A file of ids: its first number, the number of ids, and its name."""


@dataclass
class CommitIds:
    """Ids of the commits from number `first` on, in order; '' where an id is not known."""

    first: int = 1
    ids: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The number after the last commit's."""
        return self.first + len(self.ids)

    def add(self, sequence: int, identity: str) -> None:
        """Add the next commit. Numbers in between belong to records that were lost."""
        if not self.ids:
            self.first = sequence
        self.ids += [""] * (sequence - self.end)
        self.ids.append(identity)

    def get(self, sequence: int) -> str:
        """Return the id of a commit; '' if it is not known, or the commit is not in this range."""
        return self.ids[sequence - self.first] if self.first <= sequence < self.end else ""

    def forget(self, before: int) -> None:
        """Remove the ids of commits before a number from memory; files have them."""
        del self.ids[: max(before - self.first, 0)]
        self.first = max(self.first, before)


def keep(storage: Storage, known: CommitIds, there: Sequence[Stored]) -> None:
    """Store ids durably, and remove files of commits from `known.first` on, which are of another history or of an interrupted
    attempt.

    `there` are the files as listed before the check that no other process has continued with the log: this process may have
    been suspended since, and later files may belong to the process that continued.
    """
    data = b"".join([bytes.fromhex(identity) if identity else _UNKNOWN for identity in known.ids])
    if not data.strip(b"\0"):
        return
    name = f"{known.first:012d}-{len(known.ids)}-{xxhash.xxh3_64_hexdigest(data)}.ids"
    for found, _, file in there:
        if found >= known.first and file != name:
            storage.remove(f"{FOLDER}/{file}")
    storage.make_dirs(FOLDER)
    storage.write_atomic(f"{FOLDER}/{name}", data)
    for _, _, file in stored(storage)[:-FILES_MAX]:
        storage.remove(f"{FOLDER}/{file}")


def find(storage: Storage, sequence: int) -> str:
    """Return the id of a commit whose journal was folded into a checkpoint; '' if it is not known."""
    for first, count, file in reversed(stored(storage)):
        if first > sequence:
            continue
        if sequence >= first + count:
            return ""
        try:
            data = storage.read(f"{FOLDER}/{file}")
        except StorageError:
            return ""
        if file.endswith(f"-{xxhash.xxh3_64_hexdigest(data)}.ids"):
            at = (sequence - first) * _BYTES
            found = data[at : at + _BYTES]
            return found.hex() if found != _UNKNOWN else ""
        return ""
    return ""


def stored(storage: Storage) -> list[Stored]:
    """Return the files of ids, ordered by their first numbers."""
    names = map(_NAME.match, storage.list(FOLDER))
    return sorted((int(name[1]), int(name[2]), name[0]) for name in names if name is not None)
