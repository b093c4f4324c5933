"""Makes commits durable and visible: they are synced, then published in `head`, for all processes.

`head` is the position up to which the log is visible; it advances only after everything below it is as durable as it requires.
`flush` decides when that is done.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from headwater.core.errors import HeadwaterError, LogTimeoutError
from headwater.core.storage import File
from headwater.log.embedded.journal.follow_journal import JournalFollower, PendingCommit
from headwater.log.embedded.journal.head import SLOTS_MAX
from headwater.log.embedded.journal.journal_file import Head
from headwater.log.embedded.journal.open_segments import OpenSegments

SPIN_MS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Sleep times between attempts to take a lock, increasing."""
STUCK_MS = 5.0


class Publisher:
    """Syncs and publishes what one process has written, or has found written."""

    def __init__(self, journal: JournalFollower, segments: OpenSegments) -> None:
        self._journal = journal
        self._segments = segments
        self._head_gate = threading.Lock()
        self.flush_file = journal.storage.open("flush.lock", create=True)
        self.stuck: set[str] = set()
        """Brief locks whose holder was found frozen: waited for once, not at every flush."""
        self.broken = False
        """Whether a sync of the current journal failed, so that nothing may be published in it any more."""

    def close(self) -> None:
        """Close the handle of the lock that flushes share."""
        self.flush_file.close()

    def sync(self, todo: list[PendingCommit], number: int) -> None:
        """Make pending commits durable: segments whose frames the journal does not carry, names of new files, then the journal.

        Frames of earlier commits that did not require a sync are synced with them, see `JournalState.soft`.
        """
        soft = dict(self._journal.state.soft)
        names = {name: new for name, (_, new) in soft.items()}
        for pending in todo:
            if pending.record["k"] == "append":
                for part in pending.record["parts"]:
                    if not part.get("i") or part.get("new"):
                        names[part["s"]] = names.get(part["s"], False) or bool(part.get("new"))
        try:
            for name, new in names.items():
                self._segments.sync(name)
                if new:
                    self._journal.storage.sync_dir(os.path.dirname(name))
            if number == self._journal.number:
                self._journal.file().sync()
        except HeadwaterError:
            with self._journal.mutex:
                if number == self._journal.number:
                    self.broken = True
                    raise
            return  # the process that began the next journal synced everything that counts
        for name, mark in soft.items():
            if self._journal.state.soft.get(name) == mark:
                self._journal.state.soft.pop(name, None)

    def publish_all(self) -> None:
        """Under the lock: sync and publish everything written."""
        todo = list(self._journal.pending)
        self.sync(todo, self._journal.number)
        self.publish(
            Head(self._journal.number, self._journal.applied, self._journal.applied, self._journal.boot), todo
        )

    def publish(self, head: Head, todo: list[PendingCommit]) -> None:
        """Make commits visible, to all processes and to this one, and wake those that wait for their topics."""
        with self._head_gate:
            self._publish_head(head)
        with self._journal.mutex:
            self._journal.publish(head)
        self._wake(todo)

    def _publish_head(self, head: Head) -> None:
        """Publish in the first slot whose lock is free: a frozen publisher keeps its own slot."""
        for slot in range(SLOTS_MAX):
            with self.brief_lock(self._journal.published.slot(slot)) as locked:
                if locked:
                    self._journal.published.write(slot, head)
                    return
        raise LogTimeoutError(
            f"{SLOTS_MAX} processes have stopped while they published an append, and block this one",
            hint="end the processes that were stopped while they appended to this workspace",
            reason="slots",
        )

    def _wake(self, todo: list[PendingCommit]) -> None:
        touched = set()
        for pending in todo:
            parts = pending.record.get("parts", ()) if pending.record["k"] == "append" else ()
            touched |= {part["t"] for part in parts}
            if pending.record["k"] == "group":
                topic = self._journal.state.topics.get(pending.record["group"]["topic"])
                touched |= {topic.id} if topic else set()
        for number in touched:
            topic = self._journal.state.ids.get(number)
            if topic is not None:
                with self._journal.mutex, contextlib.suppress(HeadwaterError):
                    file = self._segments.writable(f"{topic.folder}/wake", 0)
                    file.write_at(0, b"%020d" % self._journal.state.seq)

    @contextlib.contextmanager
    def brief_lock(self, file: File) -> Iterator[bool]:
        """Hold the lock of a file that is locked only briefly; yields False if its holder is frozen, which is waited for
        once."""
        since, spins = self._journal.clock_ms(), 0
        patience_ms = STUCK_MS if file.name in self.stuck else self._journal.settings.lock_timeout_ms
        locked = file.try_lock()
        while not locked and self._journal.clock_ms() - since < patience_ms:
            time.sleep(SPIN_MS[min(spins, len(SPIN_MS) - 1)] / 1e3)
            spins += 1
            locked = file.try_lock()
        if locked:
            self.stuck.discard(file.name)
        else:
            self.stuck.add(file.name)
        try:
            yield locked
        finally:
            if locked and not self._journal.closed:
                file.unlock()
