"""Begins and enters the next journal: after a checkpoint, or to fence a frozen writer."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from headwater.core.errors import HeadwaterError, LogTimeoutError
from headwater.core.positions import new_id
from headwater.core.storage import File
from headwater.log.embedded.journal import recovery
from headwater.log.embedded.journal.durability import Publisher
from headwater.log.embedded.journal.follow_journal import JournalFollower
from headwater.log.embedded.journal.journal_file import (
    FOLDER,
    Damage,
    Head,
    encode_record,
    journal_name,
    scan,
)
from headwater.log.embedded.journal.open_segments import OpenSegments


class NextJournal:
    """The step of one process from the journal that it follows to the next."""

    def __init__(self, journal: JournalFollower, segments: OpenSegments, publisher: Publisher) -> None:
        self._journal = journal
        self._segments = segments
        self._publisher = publisher

    def begin(self) -> None:
        """Under the writer's lock, after a checkpoint: begin the next journal where this one ends, unless others have."""
        with self._locked() as is_due:
            if is_due:
                self._write(self._journal.applied, fence=False)

    def fence(self, *, void: bool = False) -> None:
        """Start the next journal, if need be without the lock of the current one. Commits that the holder of that lock writes
        from now on are void; with `void`, after a failed sync, so is everything that was not published."""
        number = self._journal.number + 1
        with self._locked() as is_due:
            if is_due:
                # From here on the file exists, and every writer and publisher looks for it after writing, so that no commit is
                # missed.
                end = self._published_end() if void else self._last_whole()
                if not void:
                    self._journal.fold(end)
                    self._publisher.sync(
                        [p for p in self._journal.pending if p.end <= end], self._journal.number
                    )
                self._write(end, fence=True, void=void)
                self._journal.findings.append(
                    f"{journal_name(number - 1)} was closed at byte {end}: "
                    + ("a sync failed" if void else "its writer died or was stopped for too long")
                )
        self._publisher.broken = False
        self.enter()

    def enter(self, *, unlock: bool = False) -> None:
        """Continue in the next journal; begin it first if the process that created it died before writing its first record."""
        if recovery.begin_of(self._journal.storage, self._journal.number + 1) is None:
            if self._journal.file().linked():
                self.fence()
            else:
                self._journal.reload()
            return
        if unlock:
            self._journal.file().unlock()
        self._segments.close()
        self._journal.advance_to(self._journal.number + 1)
        file = self._journal.file()
        if unlock and not file.try_lock():
            return
        self._publisher.publish(
            Head(self._journal.number, self._journal.applied, self._journal.applied, self._journal.boot), []
        )

    def _write(self, previous_end: int, *, fence: bool, void: bool = False) -> None:
        """Under the lock of the next journal: write its first record durably, in place of the empty file."""
        seq, at = self._journal.next_stamp()
        record = {
            "k": "begin",
            "n": self._journal.number + 1,
            "seq": seq,
            "at": at,
            "tag": new_id(),
            "previous_end": previous_end,
            "fence": fence,
        }
        if void:
            record["void"] = True
        name = journal_name(self._journal.number + 1)
        temporary = f"{name}.{os.getpid()}-{threading.get_ident():x}.tmp"
        with contextlib.closing(self._journal.storage.open(temporary, create=True)) as file:
            try:
                while not file.try_lock():  # no process may commit to it before its name is durable
                    time.sleep(0.001)
                file.truncate(0)
                file.write_at(0, encode_record(record))
                file.sync()
                self._journal.storage.rename(temporary, name)
            except HeadwaterError:
                with contextlib.suppress(HeadwaterError):
                    self._journal.storage.remove(temporary)
                raise
            self._journal.storage.sync_dir(FOLDER)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock of the next journal, created if it is missing, and yield whether this process must begin it. False if
        another process has begun it, or has since removed the current journal (and perhaps the next one). At the end, a file
        that was not begun is removed."""
        name = journal_name(self._journal.number + 1)
        while True:
            with contextlib.closing(self._journal.storage.open(name, create=True)) as file:
                self._wait_for(file)
                if not file.linked():  # the previous holder of the lock replaced or removed the file
                    continue
                begun = recovery.begin_of(self._journal.storage, self._journal.number + 1) is not None
                try:
                    yield not begun and self._journal.file().linked()
                finally:
                    with contextlib.suppress(HeadwaterError):
                        if (
                            not begun
                            and recovery.begin_of(self._journal.storage, self._journal.number + 1) is None
                        ):
                            self._journal.storage.remove(name)
                return

    def _wait_for(self, file: File) -> None:
        """Wait for the lock of the next journal, which is held only as long as it takes to begin it."""
        since = self._journal.clock_ms()
        while not file.try_lock():
            if self._journal.clock_ms() - since > 2 * self._journal.settings.lock_timeout_ms:
                raise LogTimeoutError(
                    f"the lock on {file.name} is held by a process that does not release it",
                    hint="end that process: it was stopped while it took over the workspace from another",
                    file=file.name,
                )
            time.sleep(0.001)

    def _published_end(self) -> int:
        head = self._journal.published.read()
        known = self._journal.head.visible if self._journal.head.journal == self._journal.number else 0
        return (
            max(known, head.visible) if head is not None and head.journal == self._journal.number else known
        )

    def _last_whole(self) -> int:
        end = self._journal.applied
        for found in scan(self._journal.file(), self._journal.applied):
            if isinstance(found, Damage):
                break
            end = found.end
        return end
