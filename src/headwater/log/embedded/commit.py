"""The write path of the embedded log: commits are written under one lock to one journal that all processes follow.

A commit is a record at the end of the newest journal, written under that journal's lock. It becomes visible, in order, once it
is as durable as it requires: `flush` syncs everything up to a point and publishes that point in `head`.

A process that holds the lock for too long (a frozen process) is fenced: another process starts the next journal. When the
frozen writer resumes it finds that journal and determines from its first record whether its own commit counts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from headwater.core.clock import Clock
from headwater.core.errors import HeadwaterError, LogTimeoutError, WorkspaceMissingError
from headwater.core.positions import new_id
from headwater.core.settings import LogSettings
from headwater.core.storage import File, Storage
from headwater.core.trusted_clock import TrustedClock
from headwater.log.embedded.journal import commit_ids, recovery
from headwater.log.embedded.journal.checkpoint import Checkpointing
from headwater.log.embedded.journal.clock_file import KeptAnchors
from headwater.log.embedded.journal.commit_outcome import not_known
from headwater.log.embedded.journal.durability import SPIN_MS, Flusher, Ticket, VoidedError
from headwater.log.embedded.journal.journal_file import (
    FOLDER,
    Damage,
    Head,
    Record,
    Scanned,
    encode_record,
    journal_name,
    proven,
    scan,
)
from headwater.log.embedded.journal.journal_state import JournalState

__all__ = ["Change", "Core", "Ticket", "VoidedError"]

Change = Callable[[JournalState], Record | None]
"""Returns a record to commit, given the state at the end of the journal, under the lock; None if there is nothing to change."""


class Core(Flusher):
    """Writes the commits of a workspace."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock) -> None:
        trusted = TrustedClock(clock, KeptAnchors(storage))
        super().__init__(storage, settings, trusted)
        self._checkpointing = Checkpointing(self.faults, self.clock_ms)
        trusted.begin(self.state.at)
        with self.mutex:
            self._recover()
            self._published.claim()

    def _recover(self) -> None:
        """Complete the work of a crashed process: unpublished commits count, a torn tail is cut. Skipped if a writer is
        alive."""
        file = self._journal_file()
        published = self._published.read()
        whole = Head(self._number, file.size(), published.durable if published else 0, self._boot)
        if published == whole and self._applied == whole.visible and not self._mended:
            return
        since = self.clock_ms()
        while not file.try_lock():
            published = self._published.read()
            if published is not None and published.boot == self._boot:
                self.refresh()
                return
            if self.clock_ms() - since > self.settings.lock_timeout_ms:
                self._fence()
                return
            time.sleep(0.001)
        try:
            if published is None or published.boot != self._boot:
                recovery.repair_after_power_loss(self.storage, self.findings, published)
                self._catch_up(published)
                with self._brief_lock(self._flush_file):
                    self._publish_all()
            elif not self.storage.exists(journal_name(self._number + 1)):
                self._catch_up(published)
                with self._brief_lock(self._flush_file):
                    self._publish_all()
        finally:
            with contextlib.suppress(HeadwaterError, OSError, ValueError):
                file.unlock()
        if self._mended:
            with self.exclusive():
                self._checkpointing.attempt(self.checkpoint)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[JournalState]:
        """Hold the workspace's writer lock, with the state at the very end of the journal."""
        with self.mutex:
            self._acquire()
            try:
                self._published.read()  # raises if another machine has opened the workspace
                yield self.state
            finally:
                if self._file is not None and not self._closed:
                    self._file.unlock()

    def _acquire(self) -> None:
        spins, size, since = 0, -1, self.clock_ms()
        while True:
            file = self._journal_file()
            if file.try_lock():
                if not file.linked():
                    self._reload()
                elif self._broken:
                    self._fence(void=True)
                elif not self.storage.exists(journal_name(self._number + 1)):
                    self._catch_up(None)
                    return
                else:
                    file.unlock()
                    self._enter_next()
                continue
            time.sleep(SPIN_MS[min(spins, len(SPIN_MS) - 1)] / 1e3)
            spins += 1
            if spins % 64 == 0:
                grown = file.size()
                if grown != size or self.storage.exists(journal_name(self._number + 1)):
                    size, since = grown, self.clock_ms()
                    if self.storage.exists(journal_name(self._number + 1)):
                        self._enter_next()
                elif self.clock_ms() - since > self.settings.lock_timeout_ms:
                    self._fence(void=self._broken)
                    size, since = -1, self.clock_ms()

    def _reload(self) -> None:
        """Load the state again, after checkpoints of other processes removed the current journal; WorkspaceMissingError if the
        workspace was deleted."""
        if not self.storage.exists(FOLDER):
            raise WorkspaceMissingError(
                f"the workspace in {self.storage.root} is gone",
                hint="was its folder moved or deleted? open it again",
                file=str(self.storage.root),
            )
        self._load()

    def _catch_up(self, published: Head | None) -> None:
        """Under the lock: apply the journal up to its end, and cut the incomplete record of a dead writer.

        A damaged record and all bytes after it are cut, unless they are proven to be part of the log.
        """
        file = self._journal_file()
        size = file.size()
        if size == self._applied:
            return
        found = list(scan(file, self._applied, size))
        if not any(isinstance(f, Damage) for f in found):
            for item in found:
                if isinstance(item, Scanned):
                    self._apply(item.record, item.end)
        else:
            proof = self._proof(
                [f for f in found if isinstance(f, Scanned)], published or self._published.read()
            )
            torn = next((f.start for f in found if isinstance(f, Damage) and f.start >= proof), None)
            if torn is None:
                torn = found[-1].end if found[-1].end is not None else min(proof, size)
            self._fold(torn)
        if self._applied < size:
            self.findings.append(
                f"{journal_name(self._number)}: {size - self._applied} bytes of an append that was never "
                f"acknowledged were cut at byte {self._applied}"
            )
            file.truncate(self._applied)

    def _proof(self, found: list[Scanned], published: Head | None) -> int:
        """Return the byte up to which the current journal is proven to be part of the log."""
        proof = max(proven(found, self._number), self._head.visible)
        if published is not None and published.journal == self._number:
            proof = max(proof, published.visible if published.boot == self._boot else published.durable)
        return proof

    def commit(self, record: Record, blob: bytes = b"") -> Ticket:
        """Under `exclusive`: write a record. It counts once `flush` returns for its ticket."""
        file = self._journal_file()
        start = self._applied
        record["d"] = (self._head.journal, self._head.durable)
        record["tag"] = new_id()
        data = encode_record(record, blob)
        try:
            file.write_at(start, data)
        except HeadwaterError:
            with contextlib.suppress(HeadwaterError):
                file.truncate(start)
            raise
        ticket = Ticket(self._number, start + len(data))
        with not_known():
            if self.left_behind():
                self._enter_next()
                self._check_counted(ticket)
                return ticket
            self._apply(record, ticket.end)
        return ticket

    def change(self, make: Change, *, sync: bool) -> Record | None:
        """Commit the record that `make` returns under the lock, and return it, stamped, once it counts; None if `make` returns
        None."""
        while True:
            try:
                with self.exclusive() as state:
                    record = make(state)
                    if record is None:
                        return None
                    seq, at = self.next_stamp()
                    record = {"seq": seq, "at": at, "sync": sync, **record}
                    ticket = self.commit(record)
                    self.checkpoint_if_due()
                self.flush(ticket, sync=sync)
                return record
            except VoidedError:
                continue

    def settle(self) -> None:
        """Make everything visible that any process has written so far; takes no lock if there is nothing to do."""
        while True:
            with self.mutex:
                self.refresh()
                if self._journal_file().size() == self._head.visible:
                    return
            try:
                with self.exclusive():
                    ticket = self.tail()
                if ticket is not None:
                    self.flush(ticket, sync=False)
                return
            except VoidedError:
                continue

    def tail(self) -> Ticket | None:
        """Under `exclusive`: return the end of the written commits that are not yet visible; None if there are none."""
        return Ticket(self._number, self._applied) if self._pending else None

    def next_stamp(self) -> tuple[int, int]:
        """Under `exclusive`: return the sequence and the time of the next commit; times never decrease."""
        return self.state.seq + 1, max(self.state.at, self.clock.now_us())

    def checkpoint_if_due(self) -> None:
        """Under `exclusive`, after a commit: make a checkpoint if the journal is so long that opening the workspace would be
        slow.

        A failed checkpoint is reported as a fault: commits do not depend on it.
        """
        if self._applied > self.settings.checkpoint_bytes or self._records > self.settings.checkpoint_records:
            self._checkpointing.attempt(self.checkpoint)

    def checkpoint(self) -> None:
        """Under `exclusive`: write a checkpoint and start a new journal."""
        with self._checkpointing.reported():
            self._checkpoint()

    def _checkpoint(self) -> None:
        self._publish_all()
        if self.state.unsynced and (self.state.suspect or self._checkpointing.fails):
            # a failed sync may have dropped the data that it was to write, and the next sync then succeeds without writing it
            recovery.rewrite_frames(self.storage, self.state.unsynced, self._number, self._applied)
        for name in sorted(self.state.unsynced):
            self._sync_segment(name)
        self.state.unsynced.clear()
        self.state.suspect = False
        ids = commit_ids.stored(self.storage)
        if not self.left_behind():  # a checkpoint must not contain commits that other processes have voided
            commit_ids.keep(self.storage, self.state.commits, ids)
            recovery.write_checkpoint(self.storage, self.state, self._number, self._applied)
        with self._next_journal() as is_due:
            if is_due:
                self._begin(self._applied, fence=False)
        self._mended = False
        self._enter_next(unlock=True)
        recovery.clean(self.storage, self._number)

    def _begin(self, previous_end: int, *, fence: bool, void: bool = False) -> None:
        """Under the lock of the next journal: write its first record durably, in place of the empty file."""
        seq, at = self.next_stamp()
        record = {
            "k": "begin",
            "n": self._number + 1,
            "seq": seq,
            "at": at,
            "tag": new_id(),
            "previous_end": previous_end,
            "fence": fence,
        }
        if void:
            record["void"] = True
        name = journal_name(self._number + 1)
        temporary = f"{name}.{os.getpid()}-{threading.get_ident():x}.tmp"
        with contextlib.closing(self.storage.open(temporary, create=True)) as file:
            try:
                while not file.try_lock():  # no process may commit to it before its name is durable
                    time.sleep(0.001)
                file.truncate(0)
                file.write_at(0, encode_record(record))
                file.sync()
                self.storage.rename(temporary, name)
            except HeadwaterError:
                with contextlib.suppress(HeadwaterError):
                    self.storage.remove(temporary)
                raise
            self.storage.sync_dir(FOLDER)

    @contextlib.contextmanager
    def _next_journal(self) -> Iterator[bool]:
        """Hold the lock of the next journal, created if it is missing, and yield whether this process has to begin it: not if
        others have begun it, or have removed the current journal, and perhaps the next one, since. The file is removed if it
        was not begun."""
        name = journal_name(self._number + 1)
        while True:
            with contextlib.closing(self.storage.open(name, create=True)) as file:
                self._wait_for(file)
                if not file.linked():  # the previous holder of the lock began or removed it
                    continue
                begun = recovery.begin_of(self.storage, self._number + 1) is not None
                try:
                    yield not begun and self._journal_file().linked()
                finally:
                    with contextlib.suppress(HeadwaterError):
                        if not begun and recovery.begin_of(self.storage, self._number + 1) is None:
                            self.storage.remove(name)
                return

    def _fence(self, *, void: bool = False) -> None:
        """Start the next journal, if need be without the lock of the current one. Commits that the holder of that lock writes
        from now on are void; with `void`, after a failed sync, so is everything that was not published."""
        number = self._number + 1
        with self._next_journal() as is_due:
            if is_due:
                # From here on the file exists, and every writer and publisher looks for it after writing, so that no commit is
                # missed.
                end = self._published_end() if void else self._last_whole()
                if not void:
                    self._fold(end)
                    self._sync([p for p in self._pending if p.end <= end], self._number)
                self._begin(end, fence=True, void=void)
                self.findings.append(
                    f"{journal_name(number - 1)} was left at byte {end}: "
                    + ("a sync failed" if void else "its writer died or did not move for too long")
                )
        self._broken = False
        self._enter_next()

    def _wait_for(self, file: File) -> None:
        """Wait for the lock of the next journal, which is held only as long as it takes to begin it."""
        since = self.clock_ms()
        while not file.try_lock():
            if self.clock_ms() - since > 2 * self.settings.lock_timeout_ms:
                raise LogTimeoutError(
                    f"{file.name} is held by a process that does not move",
                    hint="end that process: it was stopped while it took the workspace over from another",
                )
            time.sleep(0.001)

    def _published_end(self) -> int:
        head = self._published.read()
        known = self._head.visible if self._head.journal == self._number else 0
        return max(known, head.visible) if head is not None and head.journal == self._number else known

    def _last_whole(self) -> int:
        end = self._applied
        for found in scan(self._journal_file(), self._applied):
            if isinstance(found, Damage):
                break
            end = found.end
        return end

    def _enter_next(self, *, unlock: bool = False) -> None:
        """Continue in the next journal; begin it first if the process that created it died before writing its first record."""
        if recovery.begin_of(self.storage, self._number + 1) is None:
            if self._journal_file().linked():
                self._fence()
            else:
                self._reload()
            return
        if unlock:
            self._journal_file().unlock()
        for file in self._writable.values():
            file.close()
        self._writable.clear()
        self._advance_to(self._number + 1)
        file = self._journal_file()
        if unlock and not file.try_lock():
            return
        self._publish(Head(self._number, self._applied, self._applied, self._boot), [])
