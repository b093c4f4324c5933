"""The head of a workspace: the position up to which its log is visible, published by committing processes and read by all.

The head is stored in slots, the files `head`, `head.1`, `head.2` and so on; the highest value of all slots is the head. A slot
is written only under the exclusive lock of its file, and only with a value above every slot, so that no slot ever decreases. A
frozen publisher keeps its slot locked, and others publish in the next slot: a value that the frozen publisher writes when it
resumes is below the head, and hides nothing.

Slot 0 lists the other slots in use: after its head follows one byte for each of them, which is written before the first
publication in that slot and never cleared. A reader therefore finds all slots by reading slot 0.
"""

from __future__ import annotations

import threading

from headwater.core.errors import FencedError
from headwater.core.storage import File, Storage
from headwater.log.embedded.journal.journal_file import HEAD, HEAD_BYTES, Head, read_head, write_head

SLOTS_MAX = 8
"""Maximum number of publishers that may be frozen at the same time."""
_IN_USE = b"\1"
_SLOT_0_BYTES = HEAD_BYTES + SLOTS_MAX - 1


def slot_name(number: int) -> str:
    """Return the file name of a slot."""
    return HEAD if number == 0 else f"{HEAD}.{number}"


class PublishedHead:
    """The head, as one process reads and writes it."""

    def __init__(self, storage: Storage, boot: str) -> None:
        self._storage = storage
        self._boot = boot
        self._guard = threading.Lock()
        self._files = [storage.open(HEAD, create=True)]
        if (
            self._files[0].size() < _SLOT_0_BYTES
        ):  # otherwise each read would reach the end of the file, and retry
            self._files[0].truncate(_SLOT_0_BYTES)
        while len(self._files) < SLOTS_MAX and storage.exists(slot_name(len(self._files))):
            self.slot(len(self._files))  # unsynced bytes in slot 0 may be lost with the power
        self._boots: frozenset[str] | None = None
        """Boot ids found in the slots; None until this process has published."""

    def read(self) -> Head | None:
        """Return the head, or None if there is none. A head of another boot states what was durable, but not what is visible.
        FencedError if another machine has opened the workspace."""
        heads = self._heads()
        first = heads[0]
        if self._boots is not None and first is not None and first.boot not in self._boots:
            raise FencedError(
                f"the workspace in {self._storage.root} was opened by another machine",
                detail="only one machine at a time may use a workspace; this process has stopped, and nothing is damaged",
                hint="end the processes on one of the machines, then open the workspace again",
                reason="other-machine",
            )
        if len(heads) == 1:
            return first
        found = [head for head in heads if head is not None]
        return max(found, key=self._rank, default=None)

    def claim(self) -> None:
        """Treat a head with any boot id not seen so far as that of another machine from now on."""
        self._boots = frozenset({self._boot, *(head.boot for head in self._heads() if head is not None)})

    def _heads(self) -> list[Head | None]:
        first, in_use = read_head(self._files[0], SLOTS_MAX - 1)
        if (highest := len(in_use.rstrip(b"\0"))) >= len(self._files):
            self.slot(highest)
        return [first, *(read_head(file)[0] for file in self._files[1:])]

    def _rank(self, head: Head) -> tuple[int, bool, int]:
        ours = head.boot == self._boot
        return head.journal, ours, head.visible if ours else head.durable

    def slot(self, number: int) -> File:
        """Return the file of a slot, created if it is missing. Its lock is the right to write it."""
        with self._guard:
            while len(self._files) <= number:
                self._files.append(self._storage.open(slot_name(len(self._files)), create=True))
            return self._files[number]

    def write(self, number: int, head: Head) -> None:
        """Under the lock of a slot: publish a head, unless an equal or higher one is published."""
        now = self.read()
        if now is not None and now.boot == self._boot and now >= head:
            return  # another process has published it, or a higher one
        if number:
            self._files[0].write_at(HEAD_BYTES + number - 1, _IN_USE)
        write_head(self._files[number], head)
        if number:  # a second write, to wake the watchers of slot 0
            self._files[0].write_at(HEAD_BYTES + number - 1, _IN_USE)

    def linked(self) -> bool:
        """Whether the head still has a name: False once the workspace's folder was removed."""
        return self._files[0].linked()

    def close(self) -> None:
        """Close the slots, and with them their locks."""
        for file in self._files:
            file.close()
