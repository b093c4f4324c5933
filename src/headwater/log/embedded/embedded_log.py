"""The embedded log: durable topics in a folder, shared by any number of processes of one machine.

Combines journal, segments, appends, staging and maintenance behind the Log protocol.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock, Microseconds, SystemClock
from headwater.core.errors import HeadwaterError
from headwater.core.faults import report_clock
from headwater.core.positions import Receipt
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.log.backpressure import retry_while_blocked
from headwater.log.embedded.append import Appender
from headwater.log.embedded.base import LogFolder, canonical_topic, topic_of
from headwater.log.embedded.catalog_entries import LogEntries
from headwater.log.embedded.consumers import LogConsumers
from headwater.log.embedded.creation import WORKSPACE_FILE, create_workspace, read_about
from headwater.log.embedded.excise import Excision
from headwater.log.embedded.journal.follow_journal import JOURNAL_FAULT
from headwater.log.embedded.key_counts import KeyCounts
from headwater.log.embedded.known_devices import DeviceClocks
from headwater.log.embedded.maintenance import Maintenance
from headwater.log.embedded.punctuation import LogPunctuation
from headwater.log.embedded.read import LogReads
from headwater.log.embedded.staging import EmbeddedStage
from headwater.log.embedded.topics import LogTopics
from headwater.log.embedded.verification import verify
from headwater.log.protocol import (
    Append,
    CursorInfo,
    CursorMove,
    Entry,
    Finding,
    GroupInfo,
    MaintenanceReport,
    PartitionInfo,
    Producer,
    ProducerInfo,
    ProducerWatermark,
    TimeAxis,
)
from headwater.log.topic_names import check_excision
from headwater.privacy.master_keys import KMS_VARIABLE, NamedService
from headwater.privacy.subject_keys import FileKeys, Kms

KEYS_VARIABLE = "HEADWATER_KEYS"
"""Environment variable with the folder of the keys to private columns, if it is not next to the workspace."""

_OPEN: weakref.WeakSet[EmbeddedLog] = weakref.WeakSet()


def _after_fork() -> None:
    for log in list(_OPEN):
        # Each log by itself: a log that is skipped would share its lock with the parent, which then excludes nobody.
        with contextlib.suppress(
            Exception
        ):  # the handles are closed by then, so that the next use of this log raises
            log.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class EmbeddedLog:
    """See `headwater.log.protocol.Log`. Open one with `EmbeddedLog.open`."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock, keys: FileKeys) -> None:
        self.storage, self.settings = storage, settings
        self._folder = folder = LogFolder(storage, settings, clock, keys)
        self._reads = LogReads(folder)
        self._topics = LogTopics(folder)
        self._entries = LogEntries(folder)
        self._consumers = LogConsumers(folder)
        self._begin(keys)

    def _begin(self, keys: FileKeys) -> None:
        """Create the parts that have handles, locks or threads of this process."""
        folder = self._folder
        self.keys, self.core, self.clock, self.reader = keys, folder.core, folder.clock, folder.reader
        self.faults = self.core.journal.faults
        self.clock.listen(functools.partial(report_clock, self.faults))
        read = self._reads.read_columns
        self._appender = Appender(self.core, KeyCounts(read), DeviceClocks(read), keys)
        self._punctuation = LogPunctuation(folder, self._appender)
        self._maintenance = Maintenance(self.core, self.reader, self.clock, self.faults)
        self._excision = Excision(self.core, self._maintenance)
        _OPEN.add(self)

    # --- opening and closing -----------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        create: bool = True,
        storage: Storage | None = None,
        keys: str | Path | None = None,
        kms: Kms | None = None,
    ) -> EmbeddedLog:
        """Open the log in a folder; the folder is created if it is missing and `create` is set. `settings` override the stored
        ones.

        `keys` is the folder of the keys to private columns; by default that of the variable HEADWATER_KEYS, or a folder next to
        the workspace. `kms` wraps their master keys; HEADWATER_KMS may name one.
        """
        storage = storage or Storage(path)
        if not storage.exists(WORKSPACE_FILE):
            create_workspace(storage, settings or LogSettings(), create)
        about = read_about(storage)
        if settings is None:
            settings = LogSettings(durability=about.get("durability", "fsync"))
        clock = clock or SystemClock()
        folder = Path(keys or os.environ.get(KEYS_VARIABLE) or f"{storage.root.absolute()}.keys")
        # A folder may have the keys of several workspaces: a workspace in the place of another one gets none of its keys.
        if kms is None and (named := os.environ.get(KMS_VARIABLE)):
            kms = NamedService(named)
        kept = FileKeys(Storage(folder / str(about["id"]), secret=True), clock, kms)
        return cls(storage, settings, clock, kept)

    @property
    def identity(self) -> str:
        """See `Log.identity`."""
        return str(read_about(self.storage)["id"])

    @property
    def findings(self) -> list[str]:
        """Descriptions of what recovery cut, restored or skipped since this log was opened."""
        return self.core.journal.findings

    def close(self) -> None:
        """Release every handle."""
        self._release(wait=True)

    def abandon(self) -> None:
        """Release every handle as a killed process would, without any orderly shutdown."""
        self._release(wait=False)

    def _release(self, *, wait: bool) -> None:
        _OPEN.discard(self)
        self._maintenance.stop(wait=wait)
        self._reads.close()
        self.core.close()
        self.reader.close()
        self.keys.close()

    def after_fork(self) -> None:
        """In a forked child: start again with its own handles, locks and threads.

        The parent's handles are closed without unlocking, because a lock shared by both processes would exclude neither.
        """
        self.core.disown()
        self.reader.disown()
        upkeep = self._maintenance.started
        with contextlib.suppress(HeadwaterError):  # the workspace is gone: the next use of this log raises
            keys = self.keys.again()
            self._folder.open(self.clock, keys)
            self._reads.open()
            self._begin(keys)
            if upkeep:
                self.start_upkeep()

    # --- topics and the catalog -----------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicDefinition]:
        """See `Log.topics`."""
        return self._topics.topics()

    def topic(self, name: str) -> TopicDefinition:
        """See `Log.topic`."""
        return self._topics.topic(name)

    def create_topic(self, definition: TopicDefinition) -> None:
        """See `Log.create_topic`."""
        self._topics.create_topic(definition)

    def alter_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See `Log.alter_topic`."""
        self._topics.alter_topic(old, new)

    def replace_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See `Log.replace_topic`."""
        self._topics.replace_topic(old, new)

    def drop_topic(self, name: str) -> None:
        """See `Log.drop_topic`."""
        self._topics.drop_topic(name)

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """See `Log.entries`."""
        return self._entries.entries(kind)

    def put_entry(self, kind: str, name: str, document: Mapping[str, Any], *, expect: int | None) -> Entry:
        """See `Log.put_entry`."""
        return self._entries.put_entry(kind, name, document, expect=expect)

    def drop_entry(self, kind: str, name: str, *, expect: int | None = None) -> None:
        """See `Log.drop_entry`."""
        self._entries.drop_entry(kind, name, expect=expect)

    # --- appending -------------------------------------------------------------------------------------------------------

    def append(self, append: Append) -> Receipt:
        """See `Log.append`."""
        return retry_while_blocked(self, self.clock, lambda: self._appender.append(append))

    def producer(self, name: str) -> ProducerInfo | None:
        """See `Log.producer`."""
        with self.core.journal.mutex:
            self.core.journal.refresh()
            return self.core.journal.visible_producers.get(name)

    def settle(self) -> None:
        """See `Log.settle`."""
        self.core.settle()

    def sync(self) -> None:
        """See `Log.sync`."""
        self.core.flusher.sync_visible()

    def stage(self, producer: Producer | None = None) -> EmbeddedStage:
        """See `Log.stage`."""
        wait = functools.partial(retry_while_blocked, self, self.clock)
        return EmbeddedStage(self.core, self._appender, wait, producer)

    # --- watermarks that no row raises ----------------------------------------------------------------------------------

    def punctuate(
        self,
        topic: str,
        moments: Mapping[int, Microseconds],
        *,
        idle_at: Mapping[int, int] | None = None,
    ) -> None:
        """See `Log.punctuate`."""
        self._punctuation.punctuate(topic, moments, idle_at=idle_at)

    def declare_watermark(self, topic: str, producer: str, moment: Microseconds) -> None:
        """See `Log.declare_watermark`."""
        self._punctuation.declare_watermark(topic, producer, moment)

    def retire(self, topic: str, producer: str, *, idle_since: Microseconds | None = None) -> bool:
        """See `Log.retire`."""
        return self._punctuation.retire(topic, producer, idle_since=idle_since)

    def producer_watermarks(self, topic: str) -> Mapping[str, ProducerWatermark]:
        """See `Log.producer_watermarks`."""
        return self._punctuation.producer_watermarks(topic)

    # --- reading --------------------------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """See `Log.partitions`."""
        return self._reads.partitions(topic)

    def ends(self, topics: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        """See `Log.ends`."""
        return self._reads.ends(topics)

    def cut(self, topics: Sequence[str]) -> tuple[int, Mapping[str, Mapping[int, int]]]:
        """See `Log.cut`."""
        return self._reads.cut(topics)

    def sequence(self) -> int:
        """See `Log.sequence`."""
        return self._reads.sequence()

    def commit_id(self, sequence: int) -> str | None:
        """See `Log.commit_id`."""
        return self._reads.commit_id(sequence)

    def read(
        self, topic: str, partition: int, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `Log.read`."""
        return self._reads.read(topic, partition, start, end, columns)

    def offset_at(self, topic: str, partition: int, moment: Microseconds, axis: TimeAxis) -> int:
        """See `Log.offset_at`."""
        return self._reads.offset_at(topic, partition, moment, axis)

    def watermark(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See `Log.watermark`."""
        return self._reads.watermark(topic, partition, offset)

    def appended_at(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See `Log.appended_at`."""
        return self._reads.appended_at(topic, partition, offset)

    def wait(self, topic: str, ends: Mapping[int, int], timeout_ms: float | None) -> bool:
        """See `Log.wait`."""
        return self._reads.wait(topic, ends, timeout_ms)

    def wait_commit(self, sequence: int, timeout_ms: float | None) -> bool:
        """See `Log.wait_commit`."""
        return self._reads.wait_commit(sequence, timeout_ms)

    # --- consumers ------------------------------------------------------------------------------------------------------

    def cursor(self, topic: str, name: str) -> CursorInfo | None:
        """See `Log.cursor`."""
        return self._consumers.cursor(topic, name)

    def cursors(self, topic: str | None = None) -> Sequence[CursorInfo]:
        """See `Log.cursors`."""
        return self._consumers.cursors(topic)

    def create_cursor(self, topic: str, name: str, positions: Mapping[int, int], hold: bool) -> CursorInfo:
        """See `Log.create_cursor`."""
        return self._consumers.create_cursor(topic, name, positions, hold)

    def drop_cursor(self, topic: str, name: str) -> None:
        """See `Log.drop_cursor`."""
        self._consumers.drop_cursor(topic, name)

    def move_cursor(self, move: CursorMove) -> None:
        """See `Log.move_cursor`."""
        self._consumers.move_cursor(move)

    def group(self, topic: str, name: str) -> GroupInfo | None:
        """See `Log.group`."""
        return self._consumers.group(topic, name)

    def beat(self, topic: str, group: str, member: str, timeout_ms: float) -> GroupInfo:
        """See `Log.beat`."""
        return self._consumers.beat(topic, group, member, timeout_ms)

    def release(self, topic: str, group: str, member: str, partitions: Sequence[int]) -> GroupInfo:
        """See `Log.release`."""
        return self._consumers.release(topic, group, member, partitions)

    def leave(self, topic: str, group: str, member: str) -> None:
        """See `Log.leave`."""
        self._consumers.leave(topic, group, member)

    # --- upkeep ------------------------------------------------------------------------------------------------------

    def maintain(self, *, force: bool = False, override_holds: bool = False) -> MaintenanceReport:
        """See `Log.maintain`."""
        return self._maintenance.run(force=force, override_holds=override_holds)

    def excise(self, topic: str, offsets: Mapping[int, Sequence[int]]) -> int:
        """See `Log.excise`."""
        self.core.journal.refresh()
        found = topic_of(self.core.journal.state, topic)
        check_excision(found.definition)
        return self._excision.run(found, offsets)

    def start_upkeep(self) -> None:
        """Start a background thread that seals, applies retention and compacts until the log is closed."""
        self._maintenance.start()

    def verify(self, topics: Sequence[str] | None = None) -> Iterator[Finding | int]:
        """See `Log.verify`."""
        self.core.journal.refresh()
        names = (
            None if topics is None else [canonical_topic(self.core.journal.state, name) for name in topics]
        )
        is_whole = names is None
        for found in verify(self.core, self.reader, names):
            is_whole = is_whole and isinstance(found, int)
            yield found
        if is_whole:
            self.faults.clear("background", JOURNAL_FAULT)
