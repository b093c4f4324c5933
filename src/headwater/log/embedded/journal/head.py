"""The head of a workspace: how far its log is visible, published by whoever commits and read by everyone.

The head lies in slots, the files `head`, `head.1`, `head.2` and so on; the highest value of all slots is the head. A slot is
written only under the exclusive lock of its file, and only with a value above every slot, so that no slot ever falls. A publisher that does
not move (a frozen process) keeps its slot, and others publish in the next one: what the frozen publisher writes when it resumes
is below the head, and hides nothing.

Slot 0 says which other slots are in use: after its head follows one byte for each of them, which is written before the slot is first
published in and never cleared. So a reader finds all slots by reading slot 0.
"""

from __future__ import annotations

import threading

from headwater.core.errors import FencedError
from headwater.core.storage import File, Storage
from headwater.log.embedded.journal.journal_file import HEAD, HEAD_BYTES, Head, read_head, write_head

SLOTS_MAX = 8
"""So many publishers may be frozen at once."""
_IN_USE = b"\1"
_SLOT_0_BYTES = HEAD_BYTES + SLOTS_MAX - 1


def slot_name(number: int) -> str:
    """The file of a slot."""
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
        ):  # or each read of it would meet the end of the file, and look again
            self._files[0].truncate(_SLOT_0_BYTES)
        while len(self._files) < SLOTS_MAX and storage.exists(slot_name(len(self._files))):
            self.slot(len(self._files))  # the bytes in slot 0 are not synced, and may be lost with the power
        self._boots: frozenset[str] | None = None
        """The boots that the slots are of, once this process has published; None before."""

    def read(self) -> Head | None:
        """The head, or None if there is none. One of another boot says what was durable, and not what is visible."""
        heads = self._heads()
        first = heads[0]
        if self._boots is not None and first is not None and first.boot not in self._boots:
            raise FencedError(
                f"the workspace in {self._storage.root} was opened by another machine",
                detail="one machine at a time may use a workspace; this one has stopped, and has damaged nothing",
                hint="end the processes on one of the machines, then open the workspace again",
            )
        if len(heads) == 1:
            return first
        found = [head for head in heads if head is not None]
        return max(found, key=self._rank, default=None)

    def claim(self) -> None:
        """From now on a head of a boot that was not seen before is one of another machine."""
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
        """The file of a slot, made if it is missing. Its lock is the right to write it."""
        with self._guard:
            while len(self._files) <= number:
                self._files.append(self._storage.open(slot_name(len(self._files)), create=True))
            return self._files[number]

    def write(self, number: int, head: Head) -> None:
        """Under the lock of a slot: publish a head, unless as much is published."""
        now = self.read()
        if now is not None and now.boot == self._boot and now >= head:
            return  # others have published it, and perhaps more
        if number:
            self._files[0].write_at(HEAD_BYTES + number - 1, _IN_USE)
        write_head(self._files[number], head)
        if number:  # once more, to wake those who watch slot 0
            self._files[0].write_at(HEAD_BYTES + number - 1, _IN_USE)

    def linked(self) -> bool:
        """Whether the head still has a name: False once the workspace's folder was removed."""
        return self._files[0].linked()

    def close(self) -> None:
        """Close the slots, and with them their locks."""
        for file in self._files:
            file.close()
