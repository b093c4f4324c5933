"""A topic as a source of a streaming query: the query's offsets, the end of the next batch, and the reading of a batch.

One instance lives in a process next to the driver for as long as the query runs; stateless copies go to tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import TopicNotFoundError
from headwater.log.commit_history import token_of
from headwater.log.cuts import next_cut
from headwater.log.protocol import Log
from headwater.log.reader import resolve_start
from headwater.spark_datasource.conversion import arrow_schema
from headwater.spark_datasource.offsets import Positions, StreamOffset, batch_start
from headwater.spark_datasource.options import ReadSettings
from headwater.spark_datasource.topic_reader import available, read_slice, slices


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's `DataSourceStreamReader` for a topic. A batch never ends inside an atomic append."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        self._settings = settings
        self._initial: dict[str, Any] | None = None
        self._target: Positions | None = None
        self._target_sequence = 0
        self._wanted = arrow_schema(schema, settings.place.log().topic(settings.place.topic))

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query. Spark calls this repeatedly; the result stays the same."""
        if self._initial is None:
            log, topic = self._topic()
            start = resolve_start(log, topic.name, self._settings.starting)
            self._initial = StreamOffset(topic.name, topic.incarnation, start, initial=True).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxRowsPerTrigger` as a limit, or no limit."""
        rows = self._settings.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of a batch from `start`; `start` itself, unchanged, if there are no new records."""
        log, topic = self._topic()
        at = StreamOffset.from_json(start)
        at.check(topic)
        at.check_history(log)
        begin = available(log, topic.name, at.positions, self._settings)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = log.ends([topic.name])[topic.name]
        for partition, position in begin.items():
            if position > ends[partition]:
                raise _shrunk(topic.name, partition, position, ends[partition])
        whole = next_cut(log, [topic.name], {topic.name: begin}, rows)
        cut, last = whole.positions[topic.name], whole.sequence
        # Both are cuts in the same commit order, so the lower offset of each partition is that of the earlier cut.
        end = {p: max(at.positions[p], min(to, (self._target or cut)[p])) for p, to in cut.items()}
        if self._target is not None:
            last = min(last, self._target_sequence)
        commit = token_of(log, last)
        if at.initial:
            return StreamOffset(topic.name, topic.incarnation, end, at.positions, commit=commit).to_json()
        if end == at.positions:
            return start
        return StreamOffset(topic.name, topic.incarnation, end, commit=commit).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the topic's current end the end of the query."""
        log, topic = self._topic()
        self._target_sequence, ends = log.cut([topic.name])
        self._target = ends[topic.name]

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the topic, for the progress that Spark reports."""
        log, topic = self._topic()
        return StreamOffset(topic.name, topic.incarnation, log.ends([topic.name])[topic.name]).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of a batch."""
        log, topic = self._topic()
        begin, to = StreamOffset.from_json(start), StreamOffset.from_json(end)
        to.check(topic)
        to.check_history(log)
        if not begin.initial:
            begin.check(topic)
            begin.check_history(log)
        return slices(log, topic, batch_start(begin, to), to.positions, self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of a slice; runs in a task."""
        return read_slice(partition, self._settings, self._wanted)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: Spark's checkpoint stores the query's position."""

    def _topic(self) -> tuple[Log, TopicDefinition]:
        log = self._settings.place.log()
        return log, log.topic(self._settings.place.topic)


def _shrunk(topic: str, partition: int, position: int, end: int) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"partition {partition} of topic {topic!r} ends at {end}, before the query's position {position}",
        detail="the workspace was replaced by an older copy of it, or by another workspace",
        hint="start the query with a new checkpointLocation",
        topic=topic,
        partition=partition,
        position=position,
        end=end,
    )
