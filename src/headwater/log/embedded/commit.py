"""The write path of the embedded log: commits are written under one lock to one journal that all processes follow.

A commit is a record at the end of the newest journal, written under that journal's lock. It becomes visible, in order, once it
is as durable as it requires: `flush` syncs everything up to a point and publishes that point in `head`.

A process that holds the lock for too long (a frozen process) is fenced: another process starts the next journal. When the
frozen writer resumes it finds that journal and determines from its first record whether its own commit counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from headwater.core.clock import Clock
from headwater.core.errors import HeadwaterError
from headwater.core.positions import new_id
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.core.trusted_clock import TrustedClock
from headwater.log.embedded.journal import commit_ids, recovery
from headwater.log.embedded.journal.checkpoint import Checkpointing
from headwater.log.embedded.journal.clock_file import KeptAnchors
from headwater.log.embedded.journal.commit_outcome import outcome_unknown
from headwater.log.embedded.journal.durability import SPIN_MS, Publisher
from headwater.log.embedded.journal.flush import Flusher, Ticket, VoidedError
from headwater.log.embedded.journal.follow_journal import JournalFollower
from headwater.log.embedded.journal.journal_file import (
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
from headwater.log.embedded.journal.next_journal import NextJournal
from headwater.log.embedded.journal.open_segments import OpenSegments

__all__ = ["Change", "Core", "Ticket", "VoidedError"]

Change = Callable[[JournalState], Record | None]
"""Returns a record to commit, given the state at the end of the journal, under the lock; None if there is nothing to change."""


class Core:
    """Writes the commits of a workspace. `journal` has what is read, `flusher` waits until a commit counts."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock) -> None:
        self.storage = storage
        self.settings = settings
        trusted = TrustedClock(clock, KeptAnchors(storage))
        self.journal = JournalFollower(storage, settings, trusted)
        self.segments = OpenSegments(storage, self.journal.mutex)
        self.publisher = Publisher(self.journal, self.segments)
        self.next_journal = NextJournal(self.journal, self.segments, self.publisher)
        self.flusher = Flusher(self.journal, self.publisher, self.next_journal)
        self._checkpointing = Checkpointing(self.journal.faults, self.journal.clock_ms)
        trusted.begin(self.journal.state.at)
        with self.journal.mutex:
            self._recover()
            self.journal.published.claim()

    def close(self) -> None:
        """Close every handle. Committed data does not depend on it."""
        with self.journal.mutex:
            if not self.journal.closed:
                self.publisher.close()
                self.journal.close()
                self.segments.close()

    def disown(self) -> None:
        """Close the handles that a forked child inherited from its parent, without taking or releasing a lock."""
        self.journal.close()
        self.publisher.close()
        self.segments.close()

    def _recover(self) -> None:
        """Complete the work of a crashed process: unpublished commits count, a torn tail is cut. Skipped if a writer is
        alive."""
        file = self.journal.file()
        published = self.journal.published.read()
        whole = Head(
            self.journal.number, file.size(), published.durable if published else 0, self.journal.boot
        )
        if published == whole and self.journal.applied == whole.visible and not self.journal.repaired:
            return
        since = self.journal.clock_ms()
        while not file.try_lock():
            published = self.journal.published.read()
            if published is not None and published.boot == self.journal.boot:
                self.journal.refresh()
                return
            if self.journal.clock_ms() - since > self.settings.lock_timeout_ms:
                self.next_journal.fence()
                return
            time.sleep(0.001)
        try:
            if published is None or published.boot != self.journal.boot:
                recovery.repair_after_power_loss(self.storage, self.journal.findings, published)
                self._catch_up(published)
                with self.publisher.brief_lock(self.publisher.flush_file):
                    self.publisher.publish_all()
            elif not self.storage.exists(journal_name(self.journal.number + 1)):
                self._catch_up(published)
                with self.publisher.brief_lock(self.publisher.flush_file):
                    self.publisher.publish_all()
        finally:
            with contextlib.suppress(HeadwaterError, OSError, ValueError):
                file.unlock()
        if self.journal.repaired:
            with self.exclusive():
                self._checkpointing.attempt(self.checkpoint)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[JournalState]:
        """Hold the workspace's writer lock, with the state at the very end of the journal."""
        with self.journal.mutex:
            self._acquire()
            try:
                self.journal.published.read()  # raises if another machine has opened the workspace
                yield self.journal.state
            finally:
                self.journal.unlock()

    def _acquire(self) -> None:
        spins, size, since = 0, -1, self.journal.clock_ms()
        while True:
            file = self.journal.file()
            if file.try_lock():
                if not file.linked():
                    self.journal.reload()
                elif self.publisher.broken:
                    self.next_journal.fence(void=True)
                elif not self.storage.exists(journal_name(self.journal.number + 1)):
                    self._catch_up(None)
                    return
                else:
                    file.unlock()
                    self.next_journal.enter()
                continue
            time.sleep(SPIN_MS[min(spins, len(SPIN_MS) - 1)] / 1e3)
            spins += 1
            if spins % 64 == 0:
                grown = file.size()
                if grown != size or self.storage.exists(journal_name(self.journal.number + 1)):
                    size, since = grown, self.journal.clock_ms()
                    if self.storage.exists(journal_name(self.journal.number + 1)):
                        self.next_journal.enter()
                elif self.journal.clock_ms() - since > self.settings.lock_timeout_ms:
                    self.next_journal.fence(void=self.publisher.broken)
                    size, since = -1, self.journal.clock_ms()

    def _catch_up(self, published: Head | None) -> None:
        """Under the lock: apply the journal up to its end, and cut the incomplete record of a dead writer.

        A damaged record and all bytes after it are cut, unless they are proven to be part of the log.
        """
        file = self.journal.file()
        size = file.size()
        if size == self.journal.applied:
            return
        found = list(scan(file, self.journal.applied, size))
        if not any(isinstance(f, Damage) for f in found):
            for item in found:
                if isinstance(item, Scanned):
                    self.journal.apply(item.record, item.end)
        else:
            proof = self._proof(
                [f for f in found if isinstance(f, Scanned)], published or self.journal.published.read()
            )
            torn = next((f.start for f in found if isinstance(f, Damage) and f.start >= proof), None)
            if torn is None:
                torn = found[-1].end if found[-1].end is not None else min(proof, size)
            self.journal.fold(torn)
        if self.journal.applied < size:
            self.journal.findings.append(
                f"{journal_name(self.journal.number)}: {size - self.journal.applied} bytes of an append that was never "
                f"acknowledged were truncated at byte {self.journal.applied}"
            )
            file.truncate(self.journal.applied)

    def _proof(self, found: list[Scanned], published: Head | None) -> int:
        """Return the byte up to which the current journal is proven to be part of the log."""
        proof = max(proven(found, self.journal.number), self.journal.head.visible)
        if published is not None and published.journal == self.journal.number:
            proof = max(
                proof, published.visible if published.boot == self.journal.boot else published.durable
            )
        return proof

    def commit(self, record: Record, blob: bytes = b"") -> Ticket:
        """Under `exclusive`: write a record. It counts once `flush` returns for its ticket."""
        file = self.journal.file()
        start = self.journal.applied
        record["d"] = (self.journal.head.journal, self.journal.head.durable)
        record["tag"] = new_id()
        data = encode_record(record, blob)
        try:
            file.write_at(start, data)
        except HeadwaterError:
            with contextlib.suppress(HeadwaterError):
                file.truncate(start)
            raise
        ticket = Ticket(self.journal.number, start + len(data))
        with outcome_unknown():
            if self.journal.left_behind():
                self.next_journal.enter()
                self.flusher.check_counted(ticket)
                return ticket
            self.journal.apply(record, ticket.end)
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
                    seq, at = self.journal.next_stamp()
                    record = {"seq": seq, "at": at, "sync": sync, **record}
                    ticket = self.commit(record)
                    self.checkpoint_if_due()
                self.flusher.flush(ticket, sync=sync)
                return record
            except VoidedError:
                continue

    def settle(self) -> None:
        """Make everything visible that any process has written so far; takes no lock if there is nothing to do."""
        while True:
            with self.journal.mutex:
                self.journal.refresh()
                if self.journal.file().size() == self.journal.head.visible:
                    return
            try:
                with self.exclusive():
                    ticket = self.tail()
                if ticket is not None:
                    self.flusher.flush(ticket, sync=False)
                return
            except VoidedError:
                continue

    def tail(self) -> Ticket | None:
        """Under `exclusive`: return the end of the written commits that are not yet visible; None if there are none."""
        return Ticket(self.journal.number, self.journal.applied) if self.journal.pending else None

    def checkpoint_if_due(self) -> None:
        """Under `exclusive`, after a commit: make a checkpoint if the journal is so long that opening the workspace would be
        slow.

        A failed checkpoint is reported as a fault: commits do not depend on it.
        """
        if (
            self.journal.applied > self.settings.checkpoint_bytes
            or self.journal.records > self.settings.checkpoint_records
        ):
            self._checkpointing.attempt(self.checkpoint)

    def checkpoint(self) -> None:
        """Under `exclusive`: write a checkpoint and start a new journal."""
        with self._checkpointing.reported():
            self._checkpoint()

    def _checkpoint(self) -> None:
        self.publisher.publish_all()
        if self.journal.state.unsynced and (self.journal.state.suspect or self._checkpointing.fails):
            # a failed sync may have dropped the data that it was to write, and the next sync then succeeds without writing it
            recovery.rewrite_frames(
                self.storage, self.journal.state.unsynced, self.journal.number, self.journal.applied
            )
        for name in sorted(self.journal.state.unsynced):
            self.segments.sync(name)
        self.journal.state.unsynced.clear()
        self.journal.state.suspect = False
        ids = commit_ids.stored(self.storage)
        if (
            not self.journal.left_behind()
        ):  # a checkpoint must not contain commits that other processes have voided
            commit_ids.keep(self.storage, self.journal.state.commits, ids)
            recovery.write_checkpoint(
                self.storage, self.journal.state, self.journal.number, self.journal.applied
            )
        self.next_journal.begin()
        self.journal.repaired = False
        self.next_journal.enter(unlock=True)
        recovery.clean(self.storage, self.journal.number)
