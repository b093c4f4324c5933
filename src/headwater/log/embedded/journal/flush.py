"""Waits until commits are durable and visible: one sync and one publication for all commits written by then."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass

from headwater.core.errors import HeadwaterError, SyncFailedError
from headwater.log.embedded.journal import recovery
from headwater.log.embedded.journal.commit_outcome import outcome_unknown
from headwater.log.embedded.journal.durability import Publisher
from headwater.log.embedded.journal.follow_journal import JournalFollower
from headwater.log.embedded.journal.journal_file import Head, journal_name
from headwater.log.embedded.journal.next_journal import NextJournal


class VoidedError(Exception):
    """The journal continued without this commit; the caller must repeat it."""


@dataclass(frozen=True, order=True)
class Ticket:
    """End position of a commit: journal number and byte."""

    journal: int
    end: int


class Flusher:
    """Flushes the commits of one process's threads, many at once, and says whether a commit counts."""

    def __init__(self, journal: JournalFollower, publisher: Publisher, following: NextJournal) -> None:
        self._journal = journal
        self._publisher = publisher
        self._next = following
        self._flush_gate = threading.Lock()
        self._flushing = 0
        self._crowded = False

    def flush(self, ticket: Ticket, *, sync: bool, gather: bool = False) -> None:
        """Return once the commit is visible and, with `sync`, durable. VoidedError if the journal continued without it."""
        self._flushing += 1
        try:
            if gather and self._crowded:
                time.sleep(self._journal.settings.group_window_ms / 1e3)
            self._crowded = self._flushing > 1
            # the lock may not be obtained, but syncing twice is harmless
            with outcome_unknown(), self._flush_gate, self._publisher.brief_lock(self._publisher.flush_file):
                self._flush(ticket, sync)
        finally:
            self._flushing -= 1

    def _flush(self, ticket: Ticket, sync: bool) -> None:
        published = self._journal.published.read()
        if published is not None and published.journal >= ticket.journal:
            with self._journal.mutex:
                if self._settled(ticket, published, sync):
                    return
        with self._journal.mutex:
            self._journal.file()
            if self._journal.number > ticket.journal:
                self.check_counted(ticket)
                return
            if self._publisher.broken:
                raise SyncFailedError(
                    f"{journal_name(self._journal.number)} could not be synced to disk by another append",
                    hint="the next append recovers from what is on disk",
                    file=journal_name(self._journal.number),
                )
            number, end, todo = self._journal.number, self._journal.applied, list(self._journal.pending)
        sync = sync or any(p.record.get("sync") for p in todo)
        if sync:
            try:
                self._publisher.sync(todo, number)
            except HeadwaterError:
                self._void_unsynced(number)
                raise
        durable = end if sync else (published.durable if published and published.journal == number else 0)
        self._publisher.publish(Head(number, end, durable, self._journal.boot), todo)
        if self._journal.number > number or self._journal.left_behind():
            with (
                self._journal.mutex
            ):  # the process that began the next journal may not have seen this publication
                if self._journal.number == number:
                    self._next.enter()
                self.check_counted(ticket)

    def _void_unsynced(self, number: int) -> None:
        """Begin the next journal without the data that a failed sync may have dropped, before another process syncs and
        publishes it."""
        with self._journal.mutex, contextlib.suppress(HeadwaterError):
            if self._publisher.broken and self._journal.number == number:
                self._next.fence(void=True)

    def sync_visible(self) -> None:
        """Return once every visible commit is durable: one sync for all commits that did not require one."""
        while True:
            with self._journal.mutex:
                self._journal.refresh()
                ticket = Ticket(self._journal.number, self._journal.head.visible)
            published = self._journal.published.read()
            if published is not None and published.boot == self._journal.boot:
                done = Ticket(published.journal, published.durable)
                if done >= ticket:  # every journal is synced before the next one is begun
                    return
            with contextlib.suppress(VoidedError):
                self.flush(ticket, sync=True)
                return

    def _settled(self, ticket: Ticket, published: Head, sync: bool) -> bool:
        if published.journal > ticket.journal:
            self._journal.advance_to(published.journal)
            self.check_counted(ticket)
            return True
        if (published.durable if sync else published.visible) < ticket.end:
            return False
        self._journal.publish(published)
        return True

    def counted(self, ticket: Ticket) -> bool:
        """Whether a commit is part of the log, after the journal continued past it."""
        with self._journal.mutex:
            try:
                self.check_counted(ticket)
            except VoidedError:
                return False
            return self._journal.number > ticket.journal

    def check_counted(self, ticket: Ticket) -> None:
        """VoidedError if the journal of a commit ended before it."""
        begin = recovery.begin_of(self._journal.storage, ticket.journal + 1)
        end = self._journal.state.ends.get(ticket.journal) if begin is None else begin.record["previous_end"]
        if end is not None and end < ticket.end:
            raise VoidedError
