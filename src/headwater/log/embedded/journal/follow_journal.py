"""Follows the journal: the state that all processes of a workspace agree on, and how much of it is visible.

Only reads. `durability` makes commits durable and visible, `commit` writes them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.core.errors import ClosedError, CorruptionError, WorkspaceMissingError
from headwater.core.faults import Faults
from headwater.core.settings import LogSettings
from headwater.core.storage import File, Storage
from headwater.core.trusted_clock import TrustedClock
from headwater.log.embedded.journal import recovery
from headwater.log.embedded.journal.head import PublishedHead
from headwater.log.embedded.journal.journal_file import FOLDER, Head, Record, journal_name
from headwater.log.embedded.journal.journal_state import JournalState
from headwater.log.embedded.journal.record_kinds import TOPIC_KINDS, apply_record, fold_entry, fold_producer
from headwater.log.protocol import Entry, ProducerInfo
from headwater.log.topic_names import EntryKey

JOURNAL_FAULT = "journal"


@dataclass(frozen=True)
class PendingCommit:
    """A commit that is written and not yet visible."""

    end: int
    record: Record


class JournalFollower:
    """One process's view of a workspace's journal. Safe to use from several threads."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: TrustedClock) -> None:
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self.mutex = threading.RLock()
        self.state = JournalState()
        self.visible_ends: dict[tuple[int, int], int] = {}
        self.visible_entries: dict[EntryKey, Entry] = {}
        self.entries_version = object()
        """Another object after every change of `visible_entries`."""
        self.topics_version = object()
        """Another object after every change of the definition of a topic in `state`."""
        self.visible_producers: dict[str, ProducerInfo] = {}
        self.visible_seq = 0
        """Number of the last visible commit."""
        self.findings: list[str] = []
        """Descriptions of what was cut or skipped since opening."""
        self.pending: deque[PendingCommit] = deque()
        """Commits that are written and not yet visible, in order."""
        self.faults = Faults(storage, clock)
        self.closed = False
        self.repaired = False
        """Whether damaged records were repaired or left out since the last checkpoint."""
        self.boot = storage.boot_id()[:16]
        self.published = PublishedHead(storage, self.boot)
        self.head = Head(0, 0, 0)
        """Position up to which this process knows the log to be visible and durable."""
        self.number = 0
        """The journal that commits go to; it is part of new segments' names."""
        self._file: File | None = None
        self.applied = 0
        """Byte of the journal up to which the state has its records."""
        self.records = 0
        """Number of records of the journal that the state has."""
        with self.mutex:
            self.load()

    @staticmethod
    def clock_ms() -> float:
        """Return real time for waits, independent of the clock of the records."""
        return time.monotonic() * 1e3

    def load(self) -> None:
        """Load the state from the newest checkpoint and the journals after it."""
        published = self.published.read()
        while True:
            try:
                loaded = recovery.load(self.storage, self.settings.receipts_max, published, self.boot)
                file = self.storage.open(journal_name(loaded.journal))
                break
            except (WorkspaceMissingError, CorruptionError):
                # Others may have continued in the next journal meanwhile, and removed the one being read.
                before, published = published, self.published.read()
                if before is None or published is None or published.journal == before.journal:
                    raise
        if self._file is not None:
            self._file.close()
        self.state, self.number, self.applied = loaded.state, loaded.journal, loaded.applied
        self.records = loaded.records
        self.repaired = loaded.repaired
        self.findings += [f for f in loaded.findings if f not in self.findings]
        self._report(loaded.lost)
        self._file = file
        self.pending.clear()
        self._show_all()
        durable = published.durable if published is not None and published.journal == self.number else 0
        self.head = Head(self.number, self.applied, min(durable, self.applied))

    def file(self) -> File:
        """Return the file of the current journal; ClosedError after `close`."""
        if self.closed or self._file is None:
            raise ClosedError("this workspace was closed", hint="open it again with hw.open")
        return self._file

    def unlock(self) -> None:
        """Release the lock of the journal, unless its handle is closed, which released it."""
        if self._file is not None and not self.closed:
            self._file.unlock()

    def reload(self) -> None:
        """Load the state again, after checkpoints of other processes removed the current journal; WorkspaceMissingError if the
        workspace was deleted."""
        if not self.storage.exists(FOLDER):
            raise WorkspaceMissingError(
                f"the workspace in {self.storage.root} no longer exists",
                hint="was its folder moved or deleted? open it again",
                file=str(self.storage.root),
            )
        self.load()

    def left_behind(self) -> bool:
        """Whether other processes have begun the next journal. Both it and the current journal may be removed later, the
        current one first."""
        return self.storage.exists(journal_name(self.number + 1)) or not self.file().linked()

    def next_stamp(self) -> tuple[int, int]:
        """Under the writer's lock: return the sequence and the time of the next commit; times never decrease."""
        return self.state.seq + 1, max(self.state.at, self.clock.now_us())

    def close(self) -> None:
        """Close the handles, without taking the mutex: a forked child has the handles of its parent, and no lock."""
        self.closed = True
        self.published.close()
        if self._file is not None:
            self._file.close()

    def refresh(self) -> None:
        """Apply the commits that other processes have published."""
        with self.mutex:
            self.file()
            if not self.published.linked():
                raise WorkspaceMissingError(
                    f"the workspace in {self.storage.root} no longer exists",
                    hint="was its folder moved or deleted? open it again",
                    file=str(self.storage.root),
                )
            head = self.published.read()
            if head is None:
                return
            if head.journal > self.number:
                self.advance_to(head.journal)
            if head.journal == self.number and head.visible > self.head.visible:
                self.fold(head.visible)
                self.publish(head)

    def advance_to(self, number: int) -> None:
        """Follow the chain of journals; reload if a journal is missing, or voids a record that was applied."""
        while self.number < number:
            begin = recovery.begin_of(self.storage, self.number + 1)
            if begin is None or self.applied > begin.record["previous_end"]:
                self.load()
                return
            self.fold(begin.record["previous_end"])
            try:
                self._open_next(self.number + 1)
            except WorkspaceMissingError:  # removed since `begin_of` read it
                self.load()
                return

    def _open_next(self, number: int) -> None:
        file = self.storage.open(journal_name(number))
        self.file().close()
        self._file, self.number, self.applied, self.records = file, number, 0, 0
        self.pending.clear()
        self._show_all()
        self.head = Head(number, 0, 0)
        begin = recovery.begin_of(self.storage, number)
        if begin is not None:
            self.fold(begin.end)

    def fold(self, limit: int) -> None:
        """Apply the records of the journal up to byte `limit`."""
        if limit <= self.applied:
            return
        span = (self.applied, limit)
        lost: list[str] = []
        for record, end, repaired in recovery.follow(
            self.storage, self.file(), span, self.state, self.findings, lost
        ):
            self.repaired = self.repaired or repaired
            if record is not None:
                self.apply(record, end)
            self.applied = end
        self._report(lost)

    def _report(self, lost: Sequence[str]) -> None:
        """Report lost records of the journal as a fault, which a verification without findings clears."""
        if lost:
            self.faults.report(
                "background",
                JOURNAL_FAULT,
                "; ".join(lost),
                "check cursors and definitions, then run headwater verify: the warning ends when it finds no damage",
            )

    def apply(self, record: Record, end: int) -> None:
        """Apply one record of the journal, which ends at byte `end`."""
        apply_record(self.state, record)
        if record["k"] in TOPIC_KINDS:
            self.topics_version = object()
        self.applied = end
        self.records += 1
        self.pending.append(PendingCommit(end, record))

    def publish(self, head: Head) -> None:
        """Make everything up to `head.visible` visible to readers of this process."""
        self.head = max(self.head, head)
        while self.pending and self.pending[0].end <= self.head.visible:
            record = self.pending.popleft().record
            self.visible_seq = record["seq"]
            if fold_entry(self.visible_entries, record):
                self.entries_version = object()
            fold_producer(self.visible_producers, record)
            for part in record.get("parts", ()):
                if isinstance(part, dict):
                    self.visible_ends[part["t"], part["p"]] = part["o"][1]

    def _show_all(self) -> None:
        self.visible_seq = self.state.seq
        self.visible_entries = dict(self.state.entries)
        self.entries_version, self.topics_version = object(), object()
        producers = self.state.producers.items()
        self.visible_producers = {name: ProducerInfo(p.last, p.epoch, p.note) for name, p in producers}
        self.visible_ends = {
            (topic.id, number): partition.end
            for topic in self.state.topics.values()
            for number, partition in enumerate(topic.partitions)
        }

    def visible_bytes(self, number: int) -> int:
        """Return the number of visible bytes of a journal; 0 for any but the current one."""
        return self.head.visible if number == self.number else 0

    def visible_end(self, topic_id: int, partition: int) -> int:
        """Return the end of a partition for readers."""
        return self.visible_ends.get((topic_id, partition), 0)
