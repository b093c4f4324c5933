"""Records of one partition, in plain lists: append, read, seek, expire and compact.

Has no access to other partitions, cursors or locks; `memory_log` decides when each operation happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import DELETE, adapt, op_names
from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import FOREVER_US, Microseconds
from headwater.core.types import TIMESTAMP
from headwater.log.backpressure import rows_kept
from headwater.log.watermarks import NONE, event_times, row_watermarks, watermark_array


@dataclass
class MemorySegment:
    """Rows that one commit wrote to one partition: the topic's columns as of then, and the metadata columns."""

    batch: pa.RecordBatch
    appended_at: Microseconds

    @property
    def offsets(self) -> list[int]:
        """Offsets of the segment's records, ascending; gaps are where compaction removed records."""
        offsets: list[int] = self.batch.column("_offset").to_pylist()
        return offsets

    def keep(self, mask: Sequence[bool]) -> MemorySegment:
        """Return the segment with only the records marked."""
        return MemorySegment(self.batch.filter(pa.array(mask, pa.bool_())), self.appended_at)


@dataclass
class Partition:
    """Records of a partition, and the few facts that outlive them."""

    first: int = 0
    end: int = 0
    segments: list[MemorySegment] = field(default_factory=list)
    ahead: int = 0
    heard_at: Microseconds = 0
    compacted_to: int = 0
    last_appended_at: Microseconds | None = None
    watermarks: list[tuple[int, Microseconds]] = field(default_factory=lambda: [(0, NONE)])
    """(offset, watermark from that offset on), ascending in both."""

    def append(
        self,
        batch: pa.RecordBatch,
        topic: TopicDefinition,
        appended_at: Microseconds,
        sequence: int,
        versions: Sequence[int] | None,
    ) -> tuple[int, int]:
        """Append the rows of one commit; return the range of offsets that they were given."""
        rows, first = batch.num_rows, self.end
        before = self.watermarks[-1][1]
        times = event_times(batch, topic)
        if times is None:
            running, after, ahead = np.full(rows, before, dtype=np.int64), before, 0
        else:
            running, after, ahead = row_watermarks(times, before, appended_at, topic)
        for row, watermark in enumerate([*running.tolist()[1:], after]):
            self._raise_watermark(first + row + 1, watermark)
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns["_offset"] = pa.array(range(first, first + rows), pa.int64())
        columns["_appended_at"] = pa.array([appended_at] * rows, pa.int64()).view(TIMESTAMP)
        columns["_watermark"] = watermark_array(running)
        columns["_sequence"] = pa.array([sequence] * rows, pa.int64())
        if versions is not None:
            columns["_version"] = pa.array(versions, pa.int64())
        self.segments.append(MemorySegment(pa.RecordBatch.from_pydict(columns), appended_at))
        self.end = first + rows
        self.ahead += ahead
        self.last_appended_at = self.heard_at = appended_at
        return first, self.end

    def punctuate(self, moment: Microseconds, at: Microseconds | None) -> None:
        """Raise the watermark, which takes one offset without a record; `at` is None if the punctuation is no sign of
        activity."""
        self.heard_at = self.heard_at if at is None else at
        self.end += 1
        self._raise_watermark(self.end, moment)

    def _raise_watermark(self, offset: int, watermark: Microseconds) -> None:
        if watermark > self.watermarks[-1][1]:
            self.watermarks.append((offset, watermark))

    def watermark(self, offset: int) -> Microseconds | None:
        """Return the watermark at an offset."""
        value = next(watermark for at, watermark in reversed(self.watermarks) if at <= offset)
        return None if value == NONE else value

    def read(
        self, topic: TopicDefinition, start: int, end: int, columns: Sequence[str]
    ) -> list[pa.RecordBatch]:
        """Return the records of a range, in today's schema."""
        schema = reading_schema(topic)
        batches = []
        for segment in self.segments:
            kept = segment.keep([start <= offset < end for offset in segment.offsets]).batch
            if kept.num_rows:
                if topic.keyed:
                    at = kept.schema.get_field_index("_op")
                    kept = kept.set_column(at, "_op", op_names(kept.column("_op")))
                batches.append(adapt(kept, schema).select(list(columns)))
        return batches

    def records(self, topic: TopicDefinition) -> Iterator[tuple[int, Microseconds, Microseconds]]:
        """Yield (offset, append time, event time) of every record, NONE where it has no event time."""
        for segment in self.segments:
            times = event_times(segment.batch, topic)
            moments = [NONE] * segment.batch.num_rows if times is None else times.tolist()
            for offset, moment in zip(segment.offsets, moments, strict=True):
                yield offset, segment.appended_at, moment

    def expire(self, topic: TopicDefinition, now: Microseconds, limit: int) -> list[MemorySegment]:
        """Remove from the front the records that retention no longer keeps, never an offset at or past `limit`."""
        removed = []
        while self.segments and self.segments[0].offsets[-1] < limit and self._is_due(topic, now):
            removed.append(self.segments.pop(0))
            self.first = removed[-1].offsets[-1] + 1
        return removed

    def _is_due(self, topic: TopicDefinition, now: Microseconds) -> bool:
        too_old = topic.retention_us is not None and self.segments[0].appended_at < now - topic.retention_us
        rest = self.size_bytes - self.oldest_bytes
        too_much = topic.retention_bytes is not None and rest >= topic.retention_bytes
        kept = rows_kept(topic)
        too_many = kept is not None and self.rows - len(self.segments[0].offsets) >= kept
        return too_old or too_much or too_many

    def compact(self, topic: TopicDefinition, now: Microseconds, limit: int) -> int:
        """Keep only the latest record of each key among those before `limit`, and remove it too if it is a tombstone older than
        the tombstone retention. Records younger than the topic's `versions_for` are all kept.

        Neither offsets nor watermarks change. Returns the number of records removed.
        """
        latest: dict[tuple[Any, ...], int] = {}
        settled = FOREVER_US if topic.versions_for_us is None else now - topic.versions_for_us
        for segment in self.segments:
            for offset, key in zip(segment.offsets, _keys(segment, topic), strict=True):
                if offset < limit and segment.appended_at < settled:
                    latest[key] = offset
        before, compacted = self.rows, []
        for segment in self.segments:
            expired = segment.appended_at < now - topic.tombstone_retention_us
            ops = segment.batch.column("_op").to_pylist()
            mask = [
                offset >= limit
                or segment.appended_at >= settled
                or (latest[key] == offset and not (op == DELETE and expired))
                for offset, key, op in zip(segment.offsets, _keys(segment, topic), ops, strict=True)
            ]
            if any(mask):
                compacted.append(segment.keep(mask))
        self.segments = compacted
        if before > self.rows:
            self.compacted_to = limit
        return before - self.rows

    def excise(self, gone: set[int]) -> int:
        """Remove the records at these offsets; return how many there were. Watermarks do not change."""
        before = self.rows
        kept = [s.keep([offset not in gone for offset in s.offsets]) for s in self.segments]
        self.segments = [segment for segment in kept if segment.batch.num_rows]
        return before - self.rows

    @property
    def rows(self) -> int:
        """Number of records kept."""
        return sum(segment.batch.num_rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Memory of the records in bytes."""
        return sum(segment.batch.nbytes for segment in self.segments)

    @property
    def oldest_bytes(self) -> int:
        """Bytes of the first segment."""
        return self.segments[0].batch.nbytes if self.segments else 0


def reading_schema(topic: TopicDefinition) -> pa.Schema:
    """Return the columns that can be read: the topic's own as they are stored now, then the metadata columns."""
    fields = [topic.storage_schema.field(name) for name in topic.schema.names]
    fields += [pa.field("_offset", pa.int64()), pa.field("_appended_at", TIMESTAMP)]
    fields += [pa.field("_watermark", TIMESTAMP), pa.field("_sequence", pa.int64())]
    if topic.keyed:
        fields.append(pa.field("_op", pa.string()))
    fields += topic.source_columns
    if topic.versioned_by is not None:
        fields.append(pa.field("_version", pa.int64()))
    return pa.schema(fields)


def writing_schema(topic: TopicDefinition) -> pa.Schema:
    """Return the columns of a conformed batch."""
    return topic.row_schema


def comparable(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return key values in a form for which Python's equality is that of SQL keys: NaN equals NaN."""
    return tuple("NaN" if value != value else value for value in values)


def _keys(segment: MemorySegment, topic: TopicDefinition) -> list[tuple[Any, ...]]:
    columns = [pc.cast(segment.batch.column(n), topic.schema.field(n).type).to_pylist() for n in topic.key]
    return [comparable(values) for values in zip(*columns, strict=True)]
