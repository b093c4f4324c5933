"""The heart of the embedded log: one journal that all processes of a workspace follow, and the state it adds up to.

A commit is a record at the end of the newest journal, written under that journal's lock. It becomes visible, in order,
once it is as durable as it asks for: `flush` syncs everything up to a point and publishes that point in `head`.

Whoever holds the lock for too long (a frozen process) is left behind: the next journal is started beside it. The
frozen writer finds that journal when it wakes up and learns from its first record whether its commit still counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from headwater.clock import Clock
from headwater.errors import (
    ClosedError,
    HeadwaterError,
    LogTimeoutError,
    NewerVersionError,
    SyncFailedError,
    WorkspaceMissingError,
)
from headwater.log.embedded import recovery
from headwater.log.embedded.journal import (
    FOLDER,
    HEAD,
    Damage,
    Head,
    Record,
    Scanned,
    encode_record,
    journal_name,
    proven,
    read_head,
    scan,
    write_head,
)
from headwater.log.embedded.state import State
from headwater.settings import LogSettings
from headwater.storage import File, Storage

_SPIN_MS = (0.05, 0.1, 0.2, 0.5, 1.0)


class VoidedError(Exception):
    """The journal went on without this commit; do it again."""


@dataclass(frozen=True, order=True)
class Ticket:
    """Where a commit ends."""

    journal: int
    end: int


@dataclass(frozen=True)
class Pending:
    """A commit that is written and not yet visible."""

    end: int
    record: Record


class Core:
    """One process's view of a workspace's journal. Safe to use from several threads."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock) -> None:
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self.mutex = threading.RLock()
        self.state = State()
        self.visible_ends: dict[tuple[int, int], int] = {}
        self.findings: list[str] = []
        """What was cut or skipped since opening, in words."""
        self._pending: deque[Pending] = deque()
        self._writable: dict[str, File] = {}
        self._flush_gate = threading.Lock()
        self._flushing = 0
        self._crowded = False
        self._broken = False
        self._closed = False
        self._mended = False
        self._head_gate = threading.Lock()
        self._boot = storage.boot_id()[:16]
        self._head_file = storage.open(HEAD, create=True)
        self._flush_file = storage.open("flush.lock", create=True)
        self._head = Head(0, 0, 0)
        self._number = 0
        self._file: File | None = None
        self._applied = 0
        self._records = 0
        with self.mutex:
            self._load()
            self._recover()

    # --- opening -------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Take the state from the newest checkpoint and the journals after it."""
        published = read_head(self._head_file)
        trusted = published if published is not None and published.boot == self._boot else None
        loaded = recovery.load(self.storage, self.settings.receipts_max, trusted)
        if self._file is not None:
            self._file.close()
        self.state, self._number, self._applied = loaded.state, loaded.journal, loaded.applied
        self._records = loaded.records
        self._mended = loaded.mended
        self.findings += [f for f in loaded.findings if f not in self.findings]
        self._file = self.storage.open(journal_name(self._number))
        self._pending.clear()
        self._show_all()
        durable = trusted.durable if trusted is not None and trusted.journal == self._number else 0
        self._head = Head(self._number, self._applied, min(durable, self._applied))

    def _recover(self) -> None:
        """Complete what a crash left: unpublished commits count, a torn tail is cut. Skipped if a writer is alive."""
        file = self._journal_file()
        published = read_head(self._head_file)
        whole = Head(self._number, file.size(), published.durable if published else 0, self._boot)
        if published == whole and self._applied == whole.visible and not self._mended:
            return
        since = self.clock_ms()
        while not file.try_lock():
            published = read_head(self._head_file)
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
                self.checkpoint()

    def _journal_file(self) -> File:
        if self._closed or self._file is None:
            raise ClosedError("this workspace was closed", hint="open it again with hw.open")
        return self._file

    def close(self) -> None:
        """Close every handle. Nothing needs to be written for what was committed to be there."""
        with self.mutex:
            if self._closed:
                return
            self._closed = True
            for file in [self._head_file, self._flush_file, *self._writable.values()]:
                file.close()
            if self._file is not None:
                self._file.close()
            self._writable.clear()

    # --- following -----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what other processes have published."""
        with self.mutex:
            self._journal_file()
            head = read_head(self._head_file)
            if head is None:
                return
            if head.journal > self._number:
                self._advance_to(head.journal)
            if head.journal == self._number and head.visible > self._head.visible:
                self._fold(head.visible)
                self._seen(head)

    def _advance_to(self, number: int) -> None:
        """Follow the chain of journals; if a link is gone, or voids what was folded in, load anew."""
        while self._number < number:
            begin = recovery.begin_of(self.storage, self._number + 1)
            if begin is None or self._applied > begin.record["previous_end"]:
                self._load()
                return
            self._fold(begin.record["previous_end"])
            self._open_next(self._number + 1)

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
        """Fold the journal in up to `limit`."""
        if limit <= self._applied:
            return
        span = (self._applied, limit)
        for record, end, mended in recovery.follow(
            self.storage, self._journal_file(), span, self.state, self.findings
        ):
            self._mended = self._mended or mended
            if record is not None:
                self._apply(record, end)
            self._applied = end

    def _apply(self, record: Record, end: int) -> None:
        try:
            self.state.apply(record)
        except AttributeError:
            raise NewerVersionError(
                f"the journal has a record of kind {record['k']!r}, which this version does not know",
                hint="upgrade Headwater: pip install -U headwater",
                found=record["k"],
            ) from None
        self._applied = end
        self._records += 1
        self._pending.append(Pending(end, record))

    def _seen(self, head: Head) -> None:
        """Everything up to `head.visible` is visible to readers of this process."""
        self._head = max(self._head, head)
        while self._pending and self._pending[0].end <= self._head.visible:
            for part in self._pending.popleft().record.get("parts", ()):
                if isinstance(part, dict):
                    self.visible_ends[part["t"], part["p"]] = part["o"][1]

    def _show_all(self) -> None:
        self.visible_ends = {
            (topic.id, number): partition.end
            for topic in self.state.topics.values()
            for number, partition in enumerate(topic.partitions)
        }

    def visible_bytes(self, number: int) -> int:
        """How much of a journal is visible."""
        return self._head.visible if number == self._number else 0

    def visible_end(self, topic_id: int, partition: int) -> int:
        """The end of a partition for readers."""
        return self.visible_ends.get((topic_id, partition), 0)

    # --- writing -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[State]:
        """Hold the workspace's writer lock, with the state at the very end of the journal."""
        with self.mutex:
            self._acquire()
            try:
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
            time.sleep(_SPIN_MS[min(spins, len(_SPIN_MS) - 1)] / 1e3)
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
        """The journal at hand was removed: others have gone on by two checkpoints, or the workspace was deleted."""
        if not self.storage.exists(FOLDER):
            raise WorkspaceMissingError(
                f"the workspace in {self.storage.root} is gone",
                hint="was its folder moved or deleted? open it again",
                file=str(self.storage.root),
            )
        self._load()

    @staticmethod
    def clock_ms() -> float:
        """Real time for waits, whatever clock the records carry."""
        return time.monotonic() * 1e3

    def _catch_up(self, published: Head | None) -> None:
        """Under the lock: fold everything in; what is not a whole record, and what follows it, is a dead writer's and
        is cut, unless it is known to have counted."""
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
                [f for f in found if isinstance(f, Scanned)], published or read_head(self._head_file)
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
        """Up to which byte this journal surely counts."""
        proof = max(proven(found, self._number), self._head.visible)
        if published is not None and published.journal == self._number:
            proof = max(proof, published.visible if published.boot == self._boot else published.durable)
        return proof

    def commit(self, record: Record, blob: bytes = b"") -> Ticket:
        """Under `exclusive`: write a record. It counts once `flush` returns for its ticket."""
        file = self._journal_file()
        start = self._applied
        record["d"] = (self._head.journal, self._head.durable)
        data = encode_record(record, blob)
        try:
            file.write_at(start, data)
        except HeadwaterError:
            with contextlib.suppress(HeadwaterError):
                file.truncate(start)
            raise
        ticket = Ticket(self._number, start + len(data))
        if self.storage.exists(journal_name(self._number + 1)):
            self._enter_next()
            self._check_counted(ticket)
            return ticket
        self._apply(record, ticket.end)
        return ticket

    def tail(self) -> Ticket | None:
        """Under `exclusive`: the end of what is written and not yet visible; None if all is."""
        return Ticket(self._number, self._applied) if self._pending else None

    def next_stamp(self) -> tuple[int, int]:
        """Under `exclusive`: the sequence and the time of the next commit; time never goes back."""
        return self.state.seq + 1, max(self.state.at, self.clock.now_us())

    def writable(self, name: str, size: int) -> File:
        """Under `exclusive`: a segment opened for appending after its first `size` bytes; the rest is a dead writer's."""
        file = self._writable.get(name)
        if file is None:
            if len(self._writable) >= 256:
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

    # --- durability and visibility ---------------------------------------------------------------------------------

    def flush(self, ticket: Ticket, *, sync: bool, gather: bool = False) -> None:
        """Return once the commit is visible and, with `sync`, durable. VoidedError if the journal went on without it."""
        self._flushing += 1
        try:
            if gather and self._crowded:
                time.sleep(self.settings.group_window_ms / 1e3)
            self._crowded = self._flushing > 1
            with self._flush_gate, self._brief_lock(self._flush_file):
                self._flush(ticket, sync)
        finally:
            self._flushing -= 1

    def _flush(self, ticket: Ticket, sync: bool) -> None:
        published = read_head(self._head_file)
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
                    hint="it is not known whether this append will be there; the next one recovers",
                    file=journal_name(self._number),
                )
            number, end, todo = self._number, self._applied, list(self._pending)
        sync = sync or any(p.record.get("sync") for p in todo)
        if sync:
            self._sync(todo, number)
        durable = end if sync else (published.durable if published and published.journal == number else 0)
        self._publish(Head(number, end, durable, self._boot), todo)
        if self.storage.exists(
            journal_name(number + 1)
        ):  # whoever started it may not have seen what we published
            with self.mutex:
                if self._number == number:
                    self._enter_next()
                self._check_counted(ticket)

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
        """Whether a commit is part of the log, after the journal went on beyond it."""
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

    def _sync(self, todo: list[Pending], number: int) -> None:
        """Make pending commits durable: segments that the journal does not carry, new files' names, then the journal.

        Frames of earlier commits that nobody asked to sync go with them, see `State.soft`.
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
            return  # the journal went on meanwhile, and whoever took it on has synced what counts
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

    def _publish(self, head: Head, todo: list[Pending]) -> None:
        with self._head_gate, self._brief_lock(self._head_file):
            now = read_head(self._head_file)
            if now is None or now.boot != self._boot or now < head:
                write_head(self._head_file, head)
        with self.mutex:
            self._seen(head)
        self._wake(todo)

    def _publish_all(self) -> None:
        """Under the lock: everything written counts; sync it and show it."""
        todo = list(self._pending)
        self._sync(todo, self._number)
        self._publish(Head(self._number, self._applied, self._applied, self._boot), todo)

    def _wake(self, todo: list[Pending]) -> None:
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
    def _brief_lock(self, file: File) -> Iterator[None]:
        """One flusher, one publisher among all processes; a frozen one is not waited for: doing it twice is harmless."""
        since, spins = self.clock_ms(), 0
        locked = file.try_lock()
        while not locked and self.clock_ms() - since < self.settings.lock_timeout_ms:
            time.sleep(_SPIN_MS[min(spins, len(_SPIN_MS) - 1)] / 1e3)
            spins += 1
            locked = file.try_lock()
        try:
            yield
        finally:
            if locked and not self._closed:
                file.unlock()

    # --- new journals ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Under `exclusive`: fold the journal into a checkpoint and go on in a new one."""
        self._publish_all()
        for name in sorted(self.state.unsynced):
            self._sync_segment(name)
        self.state.unsynced.clear()
        recovery.write_checkpoint(self.storage, self.state, self._number, self._applied)
        with contextlib.closing(self.storage.open(journal_name(self._number + 1), create=True)) as file:
            self._wait_for(file)
            if recovery.begin_of(self.storage, self._number + 1) is None:
                self._begin(file, self._applied, fence=False)
        self._mended = False
        self._enter_next(unlock=True)
        recovery.clean(self.storage, self._number)

    @property
    def checkpoint_due(self) -> bool:
        """Whether the journal has grown so long that opening the workspace would take its time."""
        return (
            self._applied > self.settings.checkpoint_bytes or self._records > self.settings.checkpoint_records
        )

    @property
    def journal_number(self) -> int:
        """The journal that commits go to; it is part of new segments' names."""
        return self._number

    def _begin(self, file: File, previous_end: int, *, fence: bool) -> None:
        seq, at = self.next_stamp()
        record = {
            "k": "begin",
            "n": self._number + 1,
            "seq": seq,
            "at": at,
            "previous_end": previous_end,
            "fence": fence,
        }
        file.write_at(0, encode_record(record))
        file.sync()
        self.storage.sync_dir(FOLDER)

    def _fence(self, *, void: bool = False) -> None:
        """Start the next journal, without the lock of this one if need be. What its holder writes from now on is void;
        with `void`, after a sync that failed, so is everything that was not published."""
        number = self._number + 1
        try:
            file = self.storage.open(journal_name(number), exclusive=True)
        except FileExistsError:
            file = self.storage.open(journal_name(number))
        with contextlib.closing(file):
            self._wait_for(file)
            if recovery.begin_of(self.storage, number) is None:
                # the file exists from here on, and who writes or publishes looks for it afterwards: nothing slips through
                end = self._published_end() if void else self._last_whole()
                if not void:
                    self._fold(end)
                    self._sync([p for p in self._pending if p.end <= end], self._number)
                self._begin(file, end, fence=True)
                self.findings.append(
                    f"{journal_name(number - 1)} was left at byte {end}: "
                    + ("a sync failed" if void else "its writer died or did not move for too long")
                )
        self._broken = False
        self._enter_next()

    def _wait_for(self, file: File) -> None:
        """The lock of the next journal, which is held only as long as it takes to begin it."""
        since = self.clock_ms()
        while not file.try_lock():
            if self.clock_ms() - since > 2 * self.settings.lock_timeout_ms:
                raise LogTimeoutError(
                    f"{file.name} is held by a process that does not move",
                    hint="end that process: it was stopped while it took the workspace over from another",
                )
            time.sleep(0.001)

    def _published_end(self) -> int:
        head = read_head(self._head_file)
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
        """Go on in the next journal; if whoever started it died before its first record, finish that first."""
        if recovery.begin_of(self.storage, self._number + 1) is None:
            self._fence()
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
