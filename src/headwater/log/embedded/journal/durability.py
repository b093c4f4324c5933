"""Makes commits durable and visible: one sync and one publication for all commits written by then.

`head` is the position up to which the log is visible; it advances only after everything below it is as durable as it requires.
"""

from __future__ import annotations

import abc
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headwater.core.errors import HeadwaterError, LogTimeoutError, SyncFailedError, WorkspaceMissingError
from headwater.core.settings import LogSettings
from headwater.core.storage import File, Storage
from headwater.core.trusted_clock import TrustedClock
from headwater.log.embedded.journal import recovery
from headwater.log.embedded.journal.commit_outcome import not_known
from headwater.log.embedded.journal.follow_journal import Follower, PendingCommit
from headwater.log.embedded.journal.head import SLOTS_MAX
from headwater.log.embedded.journal.journal_file import FOLDER, Head, journal_name

OPEN_FILES_MAX = 256
"""Maximum number of segments kept open for appending."""
SPIN_MS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Sleep times between attempts to take a lock, increasing."""
STUCK_MS = 5.0


class VoidedError(Exception):
    """The journal continued without this commit; the caller must repeat it."""


@dataclass(frozen=True, order=True)
class Ticket:
    """End position of a commit: journal number and byte."""

    journal: int
    end: int


class Flusher(Follower, abc.ABC):
    """A follower that also syncs and publishes."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: TrustedClock) -> None:
        super().__init__(storage, settings, clock)
        self._flush_gate = threading.Lock()
        self._head_gate = threading.Lock()
        self._flush_file = storage.open("flush.lock", create=True)
        self._flushing = 0
        self._stuck: set[str] = set()
        """Brief locks whose holder was found frozen: waited for once, not at every flush."""
        self._crowded = False
        self._broken = False

    def disown(self) -> None:
        """Close the handles that a forked child inherited from its parent, without taking or releasing a lock."""
        self._closed = True
        self._published.close()
        for file in [self._flush_file, self._file, *self._writable.values()]:
            if file is not None:
                file.close()

    def close(self) -> None:
        """Close every handle. Committed data does not depend on it."""
        with self.mutex:
            if not self._closed:
                self._flush_file.close()
            super().close()

    def writable(self, name: str, size: int) -> File:
        """Under `exclusive`: return a segment opened for appending at byte `size`; bytes of a dead writer after it are cut."""
        file = self._writable.get(name)
        if file is None:
            if len(self._writable) >= OPEN_FILES_MAX:
                self._writable.pop(next(iter(self._writable))).close()
            if size == 0:
                self.storage.make_dirs(os.path.dirname(name))
            file = self._writable[name] = self.storage.open(name, create=size == 0)
            if file.size() > size:
                file.truncate(size)
        return file

    def release(self, names: list[str]) -> None:
        """Close segments that take no more appends."""
        with self.mutex:
            for name in names:
                if file := self._writable.pop(name, None):
                    file.close()

    def flush(self, ticket: Ticket, *, sync: bool, gather: bool = False) -> None:
        """Return once the commit is visible and, with `sync`, durable. VoidedError if the journal continued without it."""
        self._flushing += 1
        try:
            if gather and self._crowded:
                time.sleep(self.settings.group_window_ms / 1e3)
            self._crowded = self._flushing > 1
            # the lock may not be obtained, but syncing twice is harmless
            with not_known(), self._flush_gate, self._brief_lock(self._flush_file):
                self._flush(ticket, sync)
        finally:
            self._flushing -= 1

    def _flush(self, ticket: Ticket, sync: bool) -> None:
        published = self._published.read()
        if published is not None and published.journal >= ticket.journal:
            with self.mutex:
                if self._settled(ticket, published, sync):
                    return
        with self.mutex:
            self._journal_file()
            if self._number > ticket.journal:
                self._check_counted(ticket)
                return
            if self._broken:
                raise SyncFailedError(
                    f"{journal_name(self._number)} could not be synced to disk by another append",
                    hint="the next append recovers what is there",
                    file=journal_name(self._number),
                )
            number, end, todo = self._number, self._applied, list(self._pending)
        sync = sync or any(p.record.get("sync") for p in todo)
        if sync:
            try:
                self._sync(todo, number)
            except HeadwaterError:
                self._void_unsynced(number)
                raise
        durable = end if sync else (published.durable if published and published.journal == number else 0)
        self._publish(Head(number, end, durable, self._boot), todo)
        if self._number > number or self.left_behind():
            with self.mutex:  # the process that began the next journal may not have seen this publication
                if self._number == number:
                    self._enter_next()
                self._check_counted(ticket)

    def left_behind(self) -> bool:
        """Whether other processes have begun the next journal. Both it and the current journal may be removed later, the
        current one first."""
        return self.storage.exists(journal_name(self._number + 1)) or not self._journal_file().linked()

    def _void_unsynced(self, number: int) -> None:
        """Begin the next journal without the data that a failed sync may have dropped, before another process syncs and
        publishes it."""
        with self.mutex, contextlib.suppress(HeadwaterError):
            if self._broken and self._number == number:
                self._fence(void=True)

    def sync_visible(self) -> None:
        """Return once every visible commit is durable: one sync for all commits that did not require one."""
        while True:
            with self.mutex:
                self.refresh()
                ticket = Ticket(self._number, self._head.visible)
            published = self._published.read()
            if published is not None and published.boot == self._boot:
                done = Ticket(published.journal, published.durable)
                if done >= ticket:  # every journal is synced before the next one is begun
                    return
            with contextlib.suppress(VoidedError):
                self.flush(ticket, sync=True)
                return

    def _settled(self, ticket: Ticket, published: Head, sync: bool) -> bool:
        if published.journal > ticket.journal:
            self._advance_to(published.journal)
            self._check_counted(ticket)
            return True
        if (published.durable if sync else published.visible) < ticket.end:
            return False
        self._seen(published)
        return True

    def counted(self, ticket: Ticket) -> bool:
        """Whether a commit is part of the log, after the journal continued past it."""
        with self.mutex:
            try:
                self._check_counted(ticket)
            except VoidedError:
                return False
            return self._number > ticket.journal

    def _check_counted(self, ticket: Ticket) -> None:
        begin = recovery.begin_of(self.storage, ticket.journal + 1)
        end = self.state.ends.get(ticket.journal) if begin is None else begin.record["previous_end"]
        if end is not None and end < ticket.end:
            raise VoidedError

    def _sync(self, todo: list[PendingCommit], number: int) -> None:
        """Make pending commits durable: segments whose frames the journal does not carry, names of new files, then the journal.

        Frames of earlier commits that did not require a sync are synced with them, see `JournalState.soft`.
        """
        soft = dict(self.state.soft)
        names = {name: new for name, (_, new) in soft.items()}
        for pending in todo:
            if pending.record["k"] == "append":
                for part in pending.record["parts"]:
                    if not part.get("i") or part.get("new"):
                        names[part["s"]] = names.get(part["s"], False) or bool(part.get("new"))
        try:
            for name, new in names.items():
                self._sync_segment(name)
                if new:
                    self.storage.sync_dir(os.path.dirname(name))
            if number == self._number:
                self._journal_file().sync()
        except HeadwaterError:
            with self.mutex:
                if number == self._number:
                    self._broken = True
                    raise
            return  # the process that began the next journal synced everything that counts
        for name, mark in soft.items():
            if self.state.soft.get(name) == mark:
                self.state.soft.pop(name, None)

    def _sync_segment(self, name: str) -> None:
        file = self._writable.get(name)
        if file is not None:
            file.sync()
            return
        try:
            other = self.storage.open(name)
        except WorkspaceMissingError:
            if self.storage.exists(FOLDER):
                return  # sealed or removed meanwhile, by a commit that came after a sync
            raise
        with contextlib.closing(other):
            other.sync()

    def _publish(self, head: Head, todo: list[PendingCommit]) -> None:
        with self._head_gate:
            self._publish_head(head)
        with self.mutex:
            self._seen(head)
        self._wake(todo)

    def _publish_head(self, head: Head) -> None:
        """Publish in the first slot whose lock is free: a frozen publisher keeps its own slot."""
        for slot in range(SLOTS_MAX):
            with self._brief_lock(self._published.slot(slot)) as locked:
                if locked:
                    self._published.write(slot, head)
                    return
        raise LogTimeoutError(
            f"{SLOTS_MAX} processes that do not move are publishing what they have appended",
            hint="end the processes that were stopped while they appended to this workspace",
        )

    def _publish_all(self) -> None:
        """Under the lock: sync and publish everything written."""
        todo = list(self._pending)
        self._sync(todo, self._number)
        self._publish(Head(self._number, self._applied, self._applied, self._boot), todo)

    def _wake(self, todo: list[PendingCommit]) -> None:
        touched = set()
        for pending in todo:
            parts = pending.record.get("parts", ()) if pending.record["k"] == "append" else ()
            touched |= {part["t"] for part in parts}
            if pending.record["k"] == "group":
                topic = self.state.topics.get(pending.record["group"]["topic"])
                touched |= {topic.id} if topic else set()
        for number in touched:
            topic = self.state.ids.get(number)
            if topic is not None:
                with self.mutex, contextlib.suppress(HeadwaterError):
                    file = self._writable.get(f"{topic.folder}/wake") or self.writable(
                        f"{topic.folder}/wake", 0
                    )
                    file.write_at(0, b"%020d" % self.state.seq)

    @contextlib.contextmanager
    def _brief_lock(self, file: File) -> Iterator[bool]:
        """Hold the lock of a file that is locked only briefly; yields False if its holder is frozen, which is waited for
        once."""
        since, spins = self.clock_ms(), 0
        patience_ms = STUCK_MS if file.name in self._stuck else self.settings.lock_timeout_ms
        locked = file.try_lock()
        while not locked and self.clock_ms() - since < patience_ms:
            time.sleep(SPIN_MS[min(spins, len(SPIN_MS) - 1)] / 1e3)
            spins += 1
            locked = file.try_lock()
        if locked:
            self._stuck.discard(file.name)
        else:
            self._stuck.add(file.name)
        try:
            yield locked
        finally:
            if locked and not self._closed:
                file.unlock()

    @abc.abstractmethod
    def _fence(self, *, void: bool = False) -> None:
        """Begin the next journal, without the unpublished commits if `void`: see `commit`."""

    @abc.abstractmethod
    def _enter_next(self, *, unlock: bool = False) -> None:
        """Continue in the next journal, which another process has begun: see `commit`."""
