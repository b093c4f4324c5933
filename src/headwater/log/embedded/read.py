"""Reads of the embedded log: bounds, records, seeks, watermarks and waiting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError, GapError, UsageError, WorkspaceMissingError
from headwater.log.embedded.base import LogFolder, partition_of, topic_of
from headwater.log.embedded.creation import WORKSPACE_FILE
from headwater.log.embedded.journal import commit_ids
from headwater.log.embedded.journal.journal_file import HEAD
from headwater.log.embedded.journal.journal_state import PartitionState, Segment, TopicState
from headwater.log.embedded.journal.notify import Notifier
from headwater.log.protocol import PartitionInfo, TimeAxis
from headwater.log.watermarks import NONE
from headwater.privacy.column_encryption import decrypt_columns, stored_columns

RECHECK_MS = 2_000.0
"""Interval at which a waiting reader checks on its own, in case a writer died between publishing and waking it."""


class LogReads:
    """Implements the reading methods of `headwater.log.protocol.Log`."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder
        self.open()

    def open(self) -> None:
        """Create a notifier with handles of this process; called again in a forked child."""
        self._notifier = Notifier()

    def close(self) -> None:
        """Close the notifier and end every wait."""
        self._notifier.close()

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """See `Log.partitions`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            found = topic_of(self._folder.journal.state, topic)
            return {p: self._info(found, p, s) for p, s in enumerate(found.partitions)}

    def _info(self, topic: TopicState, number: int, partition: PartitionState) -> PartitionInfo:
        end = self._folder.journal.visible_end(topic.id, number)
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
            oldest_bytes=segments[0].size if segments else 0,
            ahead=partition.ahead,
            compacted_to=_compacted_to(segments),
            heard_at=partition.heard,
        )

    def ends(self, topics: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        """See `Log.ends`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            found = {name: topic_of(self._folder.journal.state, name) for name in topics}
            return {
                name: {p: self._folder.journal.visible_end(t.id, p) for p in range(t.definition.partitions)}
                for name, t in found.items()
            }

    def cut(self, topics: Sequence[str]) -> tuple[int, Mapping[str, Mapping[int, int]]]:
        """See `Log.cut`."""
        with self._folder.journal.mutex:
            ends = self.ends(topics)
            return self._folder.journal.visible_seq, ends

    def sequence(self) -> int:
        """See `Log.sequence`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            return self._folder.journal.visible_seq

    def commit_id(self, sequence: int) -> str | None:
        """See `Log.commit_id`."""
        with self._folder.journal.mutex:
            if sequence > self._folder.journal.visible_seq:
                self._folder.journal.refresh()
            if not 0 < sequence <= self._folder.journal.visible_seq:
                return ""
            known = self._folder.journal.state.commits
            found = (
                known.get(sequence)
                if sequence >= known.first
                else commit_ids.find(self._folder.storage, sequence)
            )
            return found or None

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
            except CorruptionError as error:
                error.facts.update(topic=topic, partition=partition)
                raise
            except WorkspaceMissingError as error:
                # the segment was rewritten or removed since: look it up again, once for each segment
                if missing == segment.name or not self._folder.storage.exists(WORKSPACE_FILE):
                    raise
                missing = error.facts.get("file", segment.name)
                self._folder.reader.forget([segment.name])
                continue
            at = max(at, min(end, segment.end))

    def _read_segment(
        self, segment: Segment, topic: TopicState, start: int, end: int, columns: list[str]
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield batches, each with the offset to continue from after it."""
        stored = stored_columns(columns, topic.definition)
        needed = stored if "_offset" in stored else [*stored, "_offset"]
        for batch in self._folder.reader.read(segment, topic.definition, start, end, needed):
            after = batch.column("_offset")[-1].as_py() + 1
            shown = decrypt_columns(batch, topic.definition, self._folder.keys, columns)
            yield shown if shown.schema.names == columns else shown.select(columns), after

    def _segments(
        self, topic: str, partition: int, start: int, end: int
    ) -> tuple[TopicState, list[Segment], int]:
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            found = topic_of(self._folder.journal.state, topic)
            place = partition_of(found, partition)
            segments = [s for s in place.from_offset(start) if s.first < end]
            return found, [dataclasses.replace(s, index=list(s.index)) for s in segments[:1]], place.first

    def read_columns(
        self, topic: TopicState, partition: int, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range for a holder of the lock, including records that are not visible yet."""
        for segment in topic.partitions[partition].from_offset(start):
            yield from self._folder.reader.read(
                segment, topic.definition, start, min(end, segment.end), columns
            )

    def offset_at(self, topic: str, partition: int, moment: Microseconds, axis: TimeAxis) -> int:
        """See `Log.offset_at`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            found = topic_of(self._folder.journal.state, topic)
            place, end = partition_of(found, partition), self._folder.journal.visible_end(found.id, partition)
            if axis == "event":
                return self._event_offset(found, place, moment, end)
            for segment in place.segments:
                if segment.at1 >= moment and segment.end > place.first:
                    at = self._folder.reader.offset_at_time(segment, moment)
                    if at is not None:
                        return min(max(at, place.first), end)
            return end

    def _event_offset(self, topic: TopicState, place: PartitionState, moment: int, end: int) -> int:
        if topic.definition.time is None:
            raise no_event_time(topic.definition.name)
        for segment in place.segments:
            if segment.tmax >= moment:
                at = self._folder.reader.offset_at_event(segment, topic.definition, moment)
                if at is not None:
                    return min(at, end)
        return end

    def watermark(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See `Log.watermark`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            found = topic_of(self._folder.journal.state, topic)
            level = self._watermark(found, partition_of(found, partition), offset)
            return None if level == NONE else level

    def _watermark(self, topic: TopicState, place: PartitionState, offset: int) -> int:
        if offset >= place.end:
            return place.watermark
        for segment in place.from_offset(offset):
            return self._folder.reader.watermark(segment, topic.definition, offset)
        return place.watermark

    def appended_at(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See `Log.appended_at`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            found = topic_of(self._folder.journal.state, topic)
            end = self._folder.journal.visible_end(found.id, partition)
            for segment in partition_of(found, partition).from_offset(offset):
                at = self._folder.reader.appended_at(segment, offset)
                if at is not None and offset < end:
                    return at
            return None

    def wait(self, topic: str, ends: Mapping[int, int], timeout_ms: float | None) -> bool:
        """See `Log.wait`."""

        def wake() -> str:
            with self._folder.journal.mutex:
                return f"{topic_of(self._folder.journal.state, topic).folder}/wake"

        def has_grown() -> bool:
            now = self.ends([topic])[topic]
            return any(now.get(p, 0) > end for p, end in ends.items())

        return self._wait_for(has_grown, wake, timeout_ms)

    def wait_commit(self, sequence: int, timeout_ms: float | None) -> bool:
        """See `Log.wait_commit`. Every commit that becomes visible is published by a write to `head`."""
        return self._wait_for(lambda: self.sequence() > sequence, lambda: HEAD, timeout_ms)

    def _wait_for(
        self, condition: Callable[[], bool], wake: Callable[[], str], timeout_ms: float | None
    ) -> bool:
        """Block until the condition holds; check it whenever the file named by `wake` is written. Return False at the
        timeout."""
        deadline = None if timeout_ms is None else self._folder.journal.clock_ms() + timeout_ms
        while True:
            path = self._folder.storage.path(wake())
            count = self._notifier.count(path)
            if condition():
                return True
            left = (
                RECHECK_MS
                if deadline is None
                else min(RECHECK_MS, deadline - self._folder.journal.clock_ms())
            )
            if left <= 0:
                return False
            self._notifier.wait(path, count, left)


def all_columns(topic: TopicDefinition) -> list[str]:
    """Return the columns of a read by default: the topic's columns and its metadata columns."""
    own = [*topic.schema.names, "_offset", "_appended_at", "_watermark", "_sequence"]
    return [*own, *(n for n in topic.storage_schema.names if n not in topic.schema.names)]


def _columns(topic: TopicDefinition, columns: Sequence[str] | None) -> list[str]:
    everything = all_columns(topic)
    for name in columns or ():
        if name not in everything and not (name == FORGOTTEN and topic.private):
            raise UsageError(
                f"topic {topic.name!r} has no column {name!r}",
                hint=f"its columns are {', '.join(everything)}",
                topic=topic.name,
                column=name,
            )
    return everything if columns is None else list(columns)


def _compacted_to(segments: Sequence[Segment]) -> int:
    # The record that superseded a removed one is in some sealed segment, not always in a compacted one.
    sealed = [s for s in segments if s.kind == "parquet"]
    return sealed[-1].end if any(s.compacted for s in sealed) else 0


def gap(topic: str, partition: int, position: int, first: int) -> GapError:
    """Return the error for a position that retention has removed."""
    return GapError(
        f"offset {position} of partition {partition} of topic {topic!r} was removed; the first available is {first}",
        detail=f"{first - position} rows were missed",
        hint="read from 'earliest', or pass on_gap='earliest' or 'latest' to continue and count the lost rows",
        topic=topic,
        partition=partition,
        position=position,
        first_available=first,
        missed=first - position,
    )


def no_event_time(topic: str) -> UsageError:
    """Return the error for an event-time request on a topic without event time."""
    return UsageError(
        f"topic {topic!r} has no event time",
        hint="declare WATERMARK FOR a TIMESTAMP column when creating it",
        topic=topic,
        reason="no-event-time",
    )
