"""Follows the journal: the state that all processes of a workspace agree on, and how much of it is visible.

Only reads. `durability` makes commits visible, `commit` writes them.
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
from headwater.log.embedded.journal.journal_file import Head, Record, journal_name
from headwater.log.embedded.journal.journal_state import JournalState
from headwater.log.embedded.journal.record_kinds import apply_record, fold_entry, fold_producer
from headwater.log.protocol import Entry, ProducerInfo
from headwater.log.topic_names import EntryKey

JOURNAL_FAULT = "journal"


@dataclass(frozen=True)
class PendingCommit:
    """A commit that is written and not yet visible."""

    end: int
    record: Record


class Follower:
    """One process's view of a workspace's journal. Safe to use from several threads."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: TrustedClock) -> None:
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self.mutex = threading.RLock()
        self.state = JournalState()
        self.visible_ends: dict[tuple[int, int], int] = {}
        self.visible_entries: dict[EntryKey, Entry] = {}
        self.visible_producers: dict[str, ProducerInfo] = {}
        self.visible_seq = 0
        """Number of the last visible commit."""
        self.findings: list[str] = []
        """Descriptions of what was cut or skipped since opening."""
        self._pending: deque[PendingCommit] = deque()
        self._writable: dict[str, File] = {}
        self.faults = Faults(storage, clock)
        self._closed = False
        self._mended = False
        self._boot = storage.boot_id()[:16]
        self._published = PublishedHead(storage, self._boot)
        self._head = Head(0, 0, 0)
        self._number = 0
        self._file: File | None = None
        self._applied = 0
        self._records = 0
        with self.mutex:
            self._load()

    @staticmethod
    def clock_ms() -> float:
        """Return real time for waits, independent of the clock of the records."""
        return time.monotonic() * 1e3

    @property
    def journal_number(self) -> int:
        """The journal that commits go to; it is part of new segments' names."""
        return self._number

    def _load(self) -> None:
        """Load the state from the newest checkpoint and the journals after it."""
        published = self._published.read()
        while True:
            try:
                loaded = recovery.load(self.storage, self.settings.receipts_max, published, self._boot)
                file = self.storage.open(journal_name(loaded.journal))
                break
            except (WorkspaceMissingError, CorruptionError):
                # Others may have continued in the next journal meanwhile, and removed the one being read.
                before, published = published, self._published.read()
                if before is None or published is None or published.journal == before.journal:
                    raise
        if self._file is not None:
            self._file.close()
        self.state, self._number, self._applied = loaded.state, loaded.journal, loaded.applied
        self._records = loaded.records
        self._mended = loaded.mended
        self.findings += [f for f in loaded.findings if f not in self.findings]
        self._report(loaded.lost)
        self._file = file
        self._pending.clear()
        self._show_all()
        durable = published.durable if published is not None and published.journal == self._number else 0
        self._head = Head(self._number, self._applied, min(durable, self._applied))

    def _journal_file(self) -> File:
        if self._closed or self._file is None:
            raise ClosedError("this workspace was closed", hint="open it again with hw.open")
        return self._file

    def close(self) -> None:
        """Close every handle. Committed data does not depend on it."""
        with self.mutex:
            if self._closed:
                return
            self._closed = True
            self._published.close()
            for file in self._writable.values():
                file.close()
            if self._file is not None:
                self._file.close()
            self._writable.clear()

    def refresh(self) -> None:
        """Apply the commits that other processes have published."""
        with self.mutex:
            self._journal_file()
            if not self._published.linked():
                raise WorkspaceMissingError(
                    f"the workspace in {self.storage.root} is gone",
                    hint="was its folder moved or deleted? open it again",
                    file=str(self.storage.root),
                )
            head = self._published.read()
            if head is None:
                return
            if head.journal > self._number:
                self._advance_to(head.journal)
            if head.journal == self._number and head.visible > self._head.visible:
                self._fold(head.visible)
                self._seen(head)

    def _advance_to(self, number: int) -> None:
        """Follow the chain of journals; reload if a journal is missing, or voids a record that was applied."""
        while self._number < number:
            begin = recovery.begin_of(self.storage, self._number + 1)
            if begin is None or self._applied > begin.record["previous_end"]:
                self._load()
                return
            self._fold(begin.record["previous_end"])
            try:
                self._open_next(self._number + 1)
            except WorkspaceMissingError:  # removed since `begin_of` read it
                self._load()
                return

    def _open_next(self, number: int) -> None:
        file = self.storage.open(journal_name(number))
        self._journal_file().close()
        self._file, self._number, self._applied, self._records = file, number, 0, 0
        self._pending.clear()
        self._show_all()
        self._head = Head(number, 0, 0)
        begin = recovery.begin_of(self.storage, number)
        if begin is not None:
            self._fold(begin.end)

    def _fold(self, limit: int) -> None:
        """Apply the records of the journal up to byte `limit`."""
        if limit <= self._applied:
            return
        span = (self._applied, limit)
        lost: list[str] = []
        for record, end, mended in recovery.follow(
            self.storage, self._journal_file(), span, self.state, self.findings, lost
        ):
            self._mended = self._mended or mended
            if record is not None:
                self._apply(record, end)
            self._applied = end
        self._report(lost)

    def _report(self, lost: Sequence[str]) -> None:
        """Report lost records of the journal as a fault, which a verification without findings clears."""
        if lost:
            self.faults.report(
                "background",
                JOURNAL_FAULT,
                "; ".join(lost),
                "check cursors and definitions, then run headwater verify: where it finds the log whole, this is over",
            )

    def _apply(self, record: Record, end: int) -> None:
        apply_record(self.state, record)
        self._applied = end
        self._records += 1
        self._pending.append(PendingCommit(end, record))

    def _seen(self, head: Head) -> None:
        """Make everything up to `head.visible` visible to readers of this process."""
        self._head = max(self._head, head)
        while self._pending and self._pending[0].end <= self._head.visible:
            record = self._pending.popleft().record
            self.visible_seq = record["seq"]
            fold_entry(self.visible_entries, record)
            fold_producer(self.visible_producers, record)
            for part in record.get("parts", ()):
                if isinstance(part, dict):
                    self.visible_ends[part["t"], part["p"]] = part["o"][1]

    def _show_all(self) -> None:
        self.visible_seq = self.state.seq
        self.visible_entries = dict(self.state.entries)
        producers = self.state.producers.items()
        self.visible_producers = {name: ProducerInfo(p.last, p.epoch, p.note) for name, p in producers}
        self.visible_ends = {
            (topic.id, number): partition.end
            for topic in self.state.topics.values()
            for number, partition in enumerate(topic.partitions)
        }

    def visible_bytes(self, number: int) -> int:
        """Return the number of visible bytes of a journal; 0 for any but the current one."""
        return self._head.visible if number == self._number else 0

    def visible_end(self, topic_id: int, partition: int) -> int:
        """Return the end of a partition for readers."""
        return self.visible_ends.get((topic_id, partition), 0)
