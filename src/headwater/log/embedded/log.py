"""The embedded log: durable topics in a folder, shared by any number of processes of one machine.

Puts together the journal (core), segments, appends, staging and maintenance behind the Log protocol.
"""

from __future__ import annotations

import contextlib
import dataclasses

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import xxhash

from headwater.catalog import TopicDefinition
from headwater.clock import Clock, Microseconds, SystemClock
from headwater.errors import (
    ConflictError,
    CorruptionError,
    GapError,
    NewerVersionError,
    NotAWorkspaceError,
    TopicExistsError,
    UsageError,
    WorkspaceMissingError,
)
from headwater.log.assignment import share_out
from headwater.log.embedded import journal, recovery, staging
from headwater.log.embedded.append import (
    Appender,
    check_moves,
    durability_of,
    move_json,
    no_topic,
    punctuation_frame,
)
from headwater.log.embedded.core import Core, VoidedError
from headwater.log.embedded.maintenance import Maintenance
from headwater.log.embedded.segments import SegmentReader
from headwater.log.embedded.staging import EmbeddedStage
from headwater.log.embedded.state import PartitionState, Segment, State, TopicState
from headwater.log.embedded.verification import verify
from headwater.log.embedded.versions import Versions
from headwater.log.embedded.waiting import Notifier
from headwater.log.protocol import (
    Append,
    Capability,
    CursorInfo,
    CursorMove,
    Finding,
    GroupInfo,
    MaintenanceReport,
    PartitionInfo,
    TimeAxis,
)
from headwater.log.watermarks import NONE
from headwater.positions import Receipt
from headwater.settings import LogSettings
from headwater.storage import Storage

WORKSPACE_FILE = "headwater.json"
FORMAT = 1
RECHECK_MS = 1_000.0
"""A waiter looks by itself this often, in case a writer died between publishing and waking."""


class EmbeddedLog:
    """See `headwater.log.protocol.Log`. Open one with `EmbeddedLog.open`."""

    capabilities = frozenset(Capability)

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock) -> None:
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self.core = Core(storage, settings, clock)
        self.reader = SegmentReader(storage)
        self._versions = Versions(self._read_keys)
        self._appender = Appender(self.core, self._versions)
        self._notifier = Notifier()
        self._maintenance = Maintenance(self.core, self.reader, clock)

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
    ) -> EmbeddedLog:
        """The log in a folder; made if it is missing and `create`. Settings given here win over the stored ones."""
        storage = storage or Storage(path)
        if not storage.exists(WORKSPACE_FILE):
            _create(storage, settings or LogSettings(), create)
        about = _about(storage)
        if about.get("format", 0) > FORMAT:
            raise NewerVersionError(
                f"workspace {storage.root} was written by a newer version of Headwater (format {about['format']})",
                detail=f"this version reads formats up to {FORMAT}",
                hint="upgrade Headwater: pip install -U headwater",
                found=about["format"],
                supported=FORMAT,
            )
        if settings is None:
            settings = LogSettings(durability=about.get("durability", "fsync"))
        return cls(storage, settings, clock or SystemClock())

    @property
    def findings(self) -> list[str]:
        """What recovery cut, restored or skipped since this log was opened."""
        return self.core.findings

    def close(self) -> None:
        """Release every handle."""
        self._maintenance.stop()
        self._notifier.close()
        self.core.close()
        self.reader.close()

    def abandon(self) -> None:
        """Let go of everything as a killed process would: no orderly work at all."""
        self._maintenance.stop(wait=False)
        self._notifier.close()
        self.core.close()
        self.reader.close()

    # --- topics --------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicDefinition]:
        """See `Log.topics`."""
        self.core.refresh()
        return {name: topic.definition for name, topic in sorted(self.core.state.topics.items())}

    def create_topic(self, definition: TopicDefinition) -> None:
        """See `Log.create_topic`."""

        def change(state: State) -> dict[str, Any]:
            if definition.name in state.topics:
                raise TopicExistsError(
                    f"topic {definition.name!r} exists already",
                    hint="CREATE TOPIC IF NOT EXISTS, or choose another name",
                    topic=definition.name,
                )
            folder = f"topics/{definition.name}-{state.next_id}"
            self.storage.make_dirs(folder)
            self.core.writable(f"{folder}/wake", 0)
            return {"k": "topic", "id": state.next_id, "definition": definition.to_json()}

        self._change(change)

    def alter_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See `Log.alter_topic`."""

        def change(state: State) -> dict[str, Any]:
            topic = _topic(state, old.name)
            if topic.definition != old:
                raise ConflictError(
                    f"topic {old.name!r} was altered by someone else",
                    hint="look at it again, then alter it",
                    topic=old.name,
                    expected=old,
                    actual=topic.definition,
                )
            return {"k": "topic", "id": topic.id, "definition": new.to_json()}

        self._change(change)

    def drop_topic(self, name: str) -> None:
        """See `Log.drop_topic`."""
        dropped: list[TopicState] = []

        def change(state: State) -> dict[str, Any]:
            dropped[:] = [_topic(state, name)]
            return {"k": "drop", "id": dropped[0].id}

        self._change(change)
        names = [s.name for p in dropped[0].partitions for s in p.segments]
        self.reader.forget(names)
        self.core.release([*names, f"{dropped[0].folder}/wake"])
        self.storage.remove_dir(dropped[0].folder)

    def _change(self, change: Any) -> None:
        """Commit one record that `change(state)` makes under the lock, durably as the workspace asks."""
        sync = self.settings.durability != "os"
        while True:
            try:
                with self.core.exclusive() as state:
                    record = change(state)
                    if record is None:
                        return
                    seq, at = self.core.next_stamp()
                    ticket = self.core.commit({"seq": seq, "at": at, "sync": sync, **record})
                self.core.flush(ticket, sync=sync)
                return
            except VoidedError:
                continue

    # --- appending -------------------------------------------------------------------------------------------------------

    def append(self, append: Append) -> Receipt:
        """See `Log.append`."""
        return self._appender.append(append)

    def stage(self) -> EmbeddedStage:
        """See `Log.stage`."""
        return EmbeddedStage(self.core, self._appender)

    def punctuate(self, topic: str, moments: Mapping[int, Microseconds]) -> None:
        """See `Log.punctuate`."""
        while True:
            try:
                with self.core.exclusive() as state:
                    found = _topic(state, topic)
                    ticket, sync = self._appender.punctuate(found, moments)
                self.core.flush(ticket, sync=sync)
                return
            except VoidedError:
                continue

    # --- reading ---------------------------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """See `Log.partitions`."""
        with self.core.mutex:
            self.core.refresh()
            found = _topic(self.core.state, topic)
            return {p: self._info(found, p, s) for p, s in enumerate(found.partitions)}

    def _info(self, topic: TopicState, number: int, partition: PartitionState) -> PartitionInfo:
        end = self.core.visible_end(topic.id, number)
        segments = [s for s in partition.segments if s.first < end]
        level = partition.watermark
        if end != partition.end:
            level = self._watermark(topic, partition, end)
        return PartitionInfo(
            first=partition.first,
            end=end,
            rows=sum(s.rows for s in segments),
            size_bytes=sum(s.size for s in segments),
            segments=len(segments),
            watermark=None if level == NONE else level,
            last_appended_at=segments[-1].at1 if segments else None,
            oldest_appended_at=segments[0].at0 if segments else None,
            ahead=partition.ahead,
        )

    def ends(self, topics: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        """See `Log.ends`."""
        with self.core.mutex:
            self.core.refresh()
            found = [_topic(self.core.state, name) for name in topics]
            return {
                t.definition.name: {p: self.core.visible_end(t.id, p) for p in range(t.definition.partitions)}
                for t in found
            }

    def read(
        self, topic: str, partition: int, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `Log.read`."""
        at = start
        missing: str | None = None
        while at < end:
            found, segments, first = self._segments(topic, partition, at, end)
            if at < first:
                raise gap(topic, partition, at, first)
            if not segments:
                return
            wanted = _columns(found.definition, columns)
            segment = segments[0]
            try:
                for batch in self._read_segment(segment, found, at, min(end, segment.end), wanted):
                    yield batch[0]
                    at = batch[1]
            except WorkspaceMissingError as error:
                # the segment was rewritten or removed since; look again, once for each
                if missing == segment.name or not self.storage.exists(WORKSPACE_FILE):
                    raise
                missing = error.facts.get("file", segment.name)
                self.reader.forget([segment.name])
                continue
            at = max(at, min(end, segment.end))

    def _read_segment(
        self, segment: Segment, topic: TopicState, start: int, end: int, columns: list[str]
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Batches with the offset to go on from after each."""
        needed = columns if "_offset" in columns else [*columns, "_offset"]
        for batch in self.reader.read(segment, topic.definition, start, end, needed):
            after = batch.column("_offset")[-1].as_py() + 1
            yield batch if len(needed) == len(columns) else batch.select(columns), after

    def _segments(
        self, topic: str, partition: int, start: int, end: int
    ) -> tuple[TopicState, list[Segment], int]:
        with self.core.mutex:
            self.core.refresh()
            found = _topic(self.core.state, topic)
            place = _partition(found, partition)
            segments = [s for s in place.from_offset(start) if s.first < end]
            return found, [dataclasses.replace(s, index=list(s.index)) for s in segments[:1]], place.first

    def _read_keys(self, topic: TopicState, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        columns = [topic.definition.versioned_by or "", "_version"]
        for segment in topic.partitions[partition].from_offset(start):
            yield from self.reader.read(segment, topic.definition, start, min(end, segment.end), columns)

    def offset_at(self, topic: str, partition: int, moment: Microseconds, axis: TimeAxis) -> int:
        """See `Log.offset_at`."""
        with self.core.mutex:
            self.core.refresh()
            found = _topic(self.core.state, topic)
            place, end = _partition(found, partition), self.core.visible_end(found.id, partition)
            if axis == "event":
                return self._event_offset(found, place, moment, end)
            for segment in place.segments:
                if segment.at1 >= moment and segment.end > place.first:
                    at = self.reader.offset_at_time(segment, moment)
                    if at is not None:
                        return min(max(at, place.first), end)
            return end

    def _event_offset(self, topic: TopicState, place: PartitionState, moment: int, end: int) -> int:
        if topic.definition.time is None:
            raise no_event_time(topic.definition.name)
        for segment in place.segments:
            if segment.tmax >= moment:
                at = self.reader.offset_at_event(segment, topic.definition, moment)
                if at is not None:
                    return min(at, end)
        return end

    def watermark(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See `Log.watermark`."""
        with self.core.mutex:
            self.core.refresh()
            found = _topic(self.core.state, topic)
            level = self._watermark(found, _partition(found, partition), offset)
            return None if level == NONE else level

    def _watermark(self, topic: TopicState, place: PartitionState, offset: int) -> int:
        if offset >= place.end:
            return place.watermark
        for segment in place.from_offset(offset):
            return self.reader.watermark(segment, topic.definition, offset)
        return place.watermark

    def appended_at(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See `Log.appended_at`."""
        with self.core.mutex:
            self.core.refresh()
            found = _topic(self.core.state, topic)
            end = self.core.visible_end(found.id, partition)
            for segment in _partition(found, partition).from_offset(offset):
                at = self.reader.appended_at(segment, offset)
                if at is not None and offset < end:
                    return at
            return None

    def wait(self, topic: str, ends: Mapping[int, int], timeout_ms: float | None) -> bool:
        """See `Log.wait`."""
        deadline = None if timeout_ms is None else self.core.clock_ms() + timeout_ms
        path = ""
        while True:
            with self.core.mutex:
                found = _topic(self.core.state, topic)
                path = self.storage.path(f"{found.folder}/wake")
            count = self._notifier.count(path)
            now = self.ends([topic])[topic]
            if any(now.get(p, 0) > end for p, end in ends.items()):
                return True
            left = RECHECK_MS if deadline is None else min(RECHECK_MS, deadline - self.core.clock_ms())
            if left <= 0:
                return False
            self._notifier.wait(path, count, left)

    # --- cursors and groups ------------------------------------------------------------------------------------------

    def cursor(self, topic: str, name: str) -> CursorInfo | None:
        """See `Log.cursor`."""
        self.core.refresh()
        return self.core.state.cursors.get((topic, name))

    def cursors(self, topic: str | None = None) -> Sequence[CursorInfo]:
        """See `Log.cursors`."""
        self.core.refresh()
        return [c for (t, _), c in sorted(self.core.state.cursors.items()) if topic in (None, t)]

    def create_cursor(self, topic: str, name: str, positions: Mapping[int, int], hold: bool) -> CursorInfo:
        """See `Log.create_cursor`."""

        def change(state: State) -> dict[str, Any] | None:
            _topic(state, topic)
            known = state.cursors.get((topic, name))
            if known is not None and known.hold == hold:
                return None
            plain = {str(p): o for p, o in positions.items()}
            return {"k": "cursor", "topic": topic, "name": name, "positions": plain, "hold": hold}

        self._change(change)
        return self.core.state.cursors[topic, name]

    def drop_cursor(self, topic: str, name: str) -> None:
        """See `Log.drop_cursor`."""
        self._change(lambda _: {"k": "uncursor", "topic": topic, "name": name})

    def move_cursor(self, move: CursorMove) -> None:
        """See `Log.move_cursor`."""

        def change(state: State) -> dict[str, Any]:
            check_moves(state, [move])
            return {"k": "commit", "move": move_json(move)}

        self._change(change)

    def group(self, topic: str, name: str) -> GroupInfo | None:
        """See `Log.group`."""
        self.core.refresh()
        return self.core.state.groups.get((topic, name))

    def beat(self, topic: str, group: str, member: str, timeout_ms: float) -> GroupInfo:
        """See `Log.beat`. Beats are written to a small file each, unsynced: they matter only to the living."""
        beats = _beats_folder(topic, group)
        self.storage.make_dirs(beats)
        self._write_beat(f"{beats}/{_safe(member)}", timeout_ms)
        self.core.refresh()
        known = self.core.state.groups.get((topic, group))
        if known is None or member not in known.members or self._silent(known):
            self._change(lambda state: self._regroup(state, topic, group, joins=member))
        return self.core.state.groups[topic, group]

    def release(self, topic: str, group: str, member: str, partitions: Sequence[int]) -> GroupInfo:
        """See `Log.release`."""

        def change(state: State) -> dict[str, Any] | None:
            known = state.groups.get((topic, group))
            if known is None:
                return None
            given = {p for p in partitions if known.owners.get(p) == member and known.wanted.get(p) != member}
            if not given:
                return None
            owners = {p: known.wanted[p] if p in given else o for p, o in known.owners.items()}
            return _group_record(dataclasses.replace(known, owners=owners))

        self._change(change)
        return self.core.state.groups[topic, group]

    def leave(self, topic: str, group: str, member: str) -> None:
        """See `Log.leave`."""
        self._change(lambda state: self._regroup(state, topic, group, leaves=member))
        self.storage.remove(f"{_beats_folder(topic, group)}/{_safe(member)}")

    def _regroup(
        self, state: State, topic: str, group: str, *, joins: str | None = None, leaves: str | None = None
    ) -> dict[str, Any] | None:
        """The group's record after someone joined, left or fell silent; None if nothing changes."""
        found = _topic(state, topic)
        known = state.groups.get((topic, group)) or GroupInfo(topic, group, 0, (), {}, {})
        gone = {leaves, *self._silent(known)} - {joins}
        members = tuple(sorted(({*known.members} | ({joins} if joins else set())) - gone - {None}))
        if members == known.members:
            return None
        partitions = range(found.definition.partitions)
        wanted = share_out(found.definition.partitions, members, known.wanted)
        owners = {}
        for partition in partitions:
            owner = known.owners.get(partition)
            if owner not in members:
                owner = wanted.get(partition)
            if owner is not None:
                owners[partition] = owner
        return _group_record(GroupInfo(topic, group, known.generation + 1, members, owners, wanted))

    def _write_beat(self, name: str, timeout_ms: float) -> None:
        with contextlib.closing(self.storage.open(name, create=True)) as file:
            file.write_at(0, b"%024.3f %024.3f" % (self.clock.steady_ms(), timeout_ms))

    def _silent(self, group: GroupInfo) -> set[str]:
        """Members whose last beat is older than their timeout."""
        now, silent = self.clock.steady_ms(), set()
        for member in group.members:
            try:
                text = self.storage.read(f"{_beats_folder(group.topic, group.name)}/{_safe(member)}")
                last, timeout = (float(word) for word in text.split())
            except (WorkspaceMissingError, ValueError):
                last, timeout = float("-inf"), 0.0
            if not last <= now or now - last > timeout:  # a beat from the future is from before a restart
                silent.add(member)
        return silent

    # --- upkeep ------------------------------------------------------------------------------------------------------

    def maintain(self, *, force: bool = False, override_holds: bool = False) -> MaintenanceReport:
        """See `Log.maintain`."""
        return self._maintenance.run(force=force, override_holds=override_holds)

    def start_upkeep(self) -> None:
        """Seal, retain and compact by itself from now on, in a thread, until the log is closed."""
        self._maintenance.start()

    def verify(self, topics: Sequence[str] | None = None) -> Iterator[Finding | int]:
        """See `Log.verify`."""
        self.core.refresh()
        return verify(self.core, self.reader, topics)


def _create(storage: Storage, settings: LogSettings, create: bool) -> None:
    if not create:
        raise WorkspaceMissingError(
            f"there is no workspace in {storage.root}", hint="`headwater init` makes one", file=str(storage.root)
        )
    if storage.root.is_file():
        raise NotAWorkspaceError(f"{storage.root} is a file", hint="give the name of a folder")
    storage.make_dirs(".")
    strangers = [n for n in storage.list(".") if n not in _OWN_NAMES and not n.startswith((".", WORKSPACE_FILE))]
    if strangers:
        raise NotAWorkspaceError(
            f"{storage.root} is not a workspace: it holds {strangers[0]!r} and no {WORKSPACE_FILE}",
            hint="give the name of a new or empty folder",
        )
    for folder in (journal.FOLDER, recovery.CHECKPOINTS, "topics", "groups", staging.FOLDER):
        storage.make_dirs(folder)
    with contextlib.suppress(FileExistsError), contextlib.closing(
        storage.open(journal.journal_name(1), exclusive=True)
    ) as file:
        begin = {"k": "begin", "seq": 0, "at": 0, "previous_end": 0, "fence": False}
        file.write_at(0, journal.encode_record(begin))
        file.sync()
        storage.sync_dir(journal.FOLDER)
    about = {"format": FORMAT, "id": uuid.uuid4().hex, "durability": settings.durability}
    about["checksum"] = _checksum(about)
    storage.write_atomic(WORKSPACE_FILE, orjson.dumps(about, option=orjson.OPT_INDENT_2))


def _about(storage: Storage) -> dict[str, Any]:
    """What headwater.json says of the workspace."""
    data = storage.read(WORKSPACE_FILE)
    try:
        about = orjson.loads(data)
        # what a newer format puts here is for its own version to check
        if about["format"] > FORMAT or about["checksum"] == _checksum(about):
            return dict(about)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        pass
    raise CorruptionError(
        f"{WORKSPACE_FILE} is damaged at byte 0: its checksum does not hold",
        detail="it says only the format and the durability of the workspace; the records are not touched by this",
        hint="restore the file from a backup, or copy that of another workspace of this version",
        file=WORKSPACE_FILE,
        offset=0,
    )


def _checksum(about: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in about.items() if key != "checksum"}
    return xxhash.xxh3_64_hexdigest(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))


_OWN_NAMES = {
    journal.FOLDER,
    recovery.CHECKPOINTS,
    "topics",
    "groups",
    staging.FOLDER,
    journal.HEAD,
    "flush.lock",
    "maintain.lock",
}


def all_columns(topic: TopicDefinition) -> list[str]:
    """What a read gives by default: the topic's columns and the hidden ones it has."""
    own = [*topic.schema.names, "_offset", "_appended_at", "_watermark", "_sequence"]
    return [*own, *(n for n in topic.storage_schema.names if n not in topic.schema.names)]


def _columns(topic: TopicDefinition, columns: Sequence[str] | None) -> list[str]:
    everything = all_columns(topic)
    for name in columns or ():
        if name not in everything:
            raise UsageError(
                f"topic {topic.name!r} has no column {name!r}", hint=f"its columns are {', '.join(everything)}"
            )
    return everything if columns is None else list(columns)


def gap(topic: str, partition: int, position: int, first: int) -> GapError:
    """The error for a position that retention has removed."""
    return GapError(
        f"offset {position} of partition {partition} of topic {topic!r} was removed; the first available is {first}",
        detail=f"{first - position} rows were missed",
        hint="read from 'earliest', or declare on_gap='earliest' or 'latest' to go on and count the loss",
        topic=topic,
        partition=partition,
        position=position,
        first_available=first,
        missed=first - position,
    )


def no_event_time(topic: str) -> UsageError:
    """The error for asking a topic without event time about it."""
    return UsageError(
        f"topic {topic!r} has no event time", hint="declare WATERMARK FOR a TIMESTAMP column when creating it"
    )


def _topic(state: State, name: str) -> TopicState:
    found = state.topics.get(name)
    if found is None:
        raise no_topic(name, state)
    return found


def _partition(topic: TopicState, number: int) -> PartitionState:
    if not 0 <= number < len(topic.partitions):
        raise UsageError(
            f"topic {topic.definition.name!r} has no partition {number}",
            hint=f"its partitions are 0 to {len(topic.partitions) - 1}",
        )
    return topic.partitions[number]


def _group_record(group: GroupInfo) -> dict[str, Any]:
    plain = dataclasses.asdict(group)
    for side in ("owners", "wanted"):
        plain[side] = {str(p): m for p, m in plain[side].items()}
    return {"k": "group", "group": plain}


def _beats_folder(topic: str, group: str) -> str:
    return f"groups/{topic}/{_safe(group)}"


def _safe(name: str) -> str:
    """A name as a file name."""
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in name)
