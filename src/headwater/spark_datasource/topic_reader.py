"""Reads a topic in Spark tasks: plans the offsets to read, splits them into tasks, and reads one task's share.

A task gets ranges of offsets, opens the workspace itself and passes Arrow batches to Spark. Tasks keep no state, so
Spark can repeat them anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import GapError, TopicNotFoundError
from headwater.log.protocol import Log
from headwater.log.reader import PartitionFeed, ReadOptions, resolve_start
from headwater.spark_datasource.conversion import arrow_schema, to_spark
from headwater.spark_datasource.options import ReadSettings


@dataclass(frozen=True)
class OffsetSpan:
    """A range of offsets of one partition, half open."""

    partition: int
    start: int
    end: int


class TopicSlice(InputPartition):
    """The offset ranges of one task."""

    def __init__(self, topic: str, incarnation: int, ranges: Sequence[OffsetSpan]) -> None:
        super().__init__(None)
        self.topic = topic
        self.incarnation = incarnation
        self.ranges = tuple(ranges)


class TopicBatchReader(DataSourceReader):
    """Reads a topic from its start position up to one cut, taken when the query is planned."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        self._settings = settings
        self._wanted = arrow_schema(schema, settings.place.log().topic(settings.place.topic))

    def partitions(self) -> list[InputPartition]:
        """Return the slices of the topic up to its current end."""
        log = self._settings.place.log()
        topic = log.topic(self._settings.place.topic)
        start = resolve_start(log, topic.name, self._settings.starting)
        end = log.ends([topic.name])[topic.name]
        return slices(log, topic, start, end, self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of a slice; runs in a task."""
        return read_slice(partition, self._settings, self._wanted)


def slices(
    log: Log,
    topic: TopicDefinition,
    start: Mapping[int, int],
    end: Mapping[int, int],
    settings: ReadSettings,
) -> list[InputPartition]:
    """Split the records between two positions into tasks of about `rows_per_task` offsets."""
    start = available(log, topic.name, start, settings)
    pieces = [
        piece
        for partition in sorted(start)
        for piece in _cut(OffsetSpan(partition, start[partition], end[partition]), settings.rows_per_task)
    ]
    tasks: list[list[OffsetSpan]] = []
    room = 0
    for piece in pieces:
        size = piece.end - piece.start
        if size > room:
            tasks.append([])
            room = settings.rows_per_task
        tasks[-1].append(piece)
        room -= size
    return [TopicSlice(topic.name, topic.incarnation, ranges) for ranges in tasks]


def _cut(whole: OffsetSpan, rows_max: int) -> Iterator[OffsetSpan]:
    """Split a range into pieces of about equal size, none larger than allowed."""
    span = whole.end - whole.start
    count = -(-span // rows_max)
    for i in range(count):
        first, after = (whole.start + span * j // count for j in (i, i + 1))
        yield OffsetSpan(whole.partition, first, after)


def available(log: Log, topic: str, start: Mapping[int, int], settings: ReadSettings) -> dict[int, int]:
    """Return readable positions: where records were removed, the first remaining offset, or GapError if gaps are to fail."""
    first = {p: info.first for p, info in log.partitions(topic).items()}
    for partition, at in start.items():
        if at < first[partition] and settings.on_gap == "fail":
            raise removed(topic, partition, at, first[partition])
    return {p: max(at, first[p]) for p, at in start.items()}


def removed(topic: str, partition: int, at: int, first: int) -> GapError:
    """Return the error for a reader whose next record was removed before it was read."""
    return GapError(
        f"offset {at} of partition {partition} of topic {topic!r} was removed before it was read; "
        f"the first available is {first}",
        detail=f"{first - at} offsets are missing: retention or compaction removed their records",
        hint='skip them with .option("onGap", "skip"), start again with another checkpointLocation, or keep records '
        f"longer: ALTER TOPIC {topic} SET (retention = ...)",
        topic=topic,
        partition=partition,
        position=at,
        first_available=first,
        missed=first - at,
    )


def read_slice(
    partition: InputPartition, settings: ReadSettings, wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read the records of a slice. Spark passes another kind of partition when there is nothing to read, which yields
    nothing."""
    if not isinstance(partition, TopicSlice):
        return
    options = ReadOptions(tuple(wanted.names), on_gap=settings.on_gap)
    name = partition.topic
    log = settings.place.log()
    if log.topic(name).incarnation != partition.incarnation:
        raise TopicNotFoundError(
            f"topic {name!r} was dropped and recreated during the read",
            hint="read it again",
            reason="recreated",
            topic=name,
        )
    for each in partition.ranges:
        feed = PartitionFeed(log, name, each.partition, each.start, each.end, options)
        try:
            while (batch := feed.next()) is not None:
                yield to_spark(batch, wanted, name)
        except GapError as gap:
            raise removed(name, each.partition, gap.position, gap.first_available) from None
