"""The handle of a topic for users: append to it, read it, keep positions in it. All its state is in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import is_stream
from headwater.catalog.definitions import TopicDefinition
from headwater.core.arguments import label, whole_number
from headwater.core.clock import Clock, SystemClock, from_us, to_us
from headwater.core.errors import UsageError
from headwater.core.positions import Receipt
from headwater.log.append_rows import Expect, append_rows, make_producer
from headwater.log.cursor import Cursor, check_name, make_cursor
from headwater.log.group import GroupMember, MemberOptions
from headwater.log.protocol import Log, PartitionInfo, ProducerWatermark, TimeAxis
from headwater.log.reader import (
    BATCH_ROWS,
    OnGap,
    ReadOptions,
    Start,
    TopicReader,
    columns_of,
    resolve_start,
)

END_OF_TIME = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
"""The latest event time: `finish` raises the watermark to it."""


class Topic:
    """A handle of a topic. Creating one costs nothing, and any number may exist."""

    def __init__(self, log: Log, name: str, clock: Clock | None = None) -> None:
        self.name = log.topic(name).name
        self._log = log
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    @property
    def definition(self) -> TopicDefinition:
        """The current definition of the topic."""
        return self._log.topic(self.name)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the topic declares."""
        return self.definition.schema

    def append(
        self,
        rows: Any,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        epoch: int | None = None,
        expect: Expect | None = None,
    ) -> Receipt:
        """Append rows in one commit and return when they are as durable as the topic guarantees.

        Rows are a list of dicts, a pyarrow Table or RecordBatch, a pandas or polars frame; or an iterator of dicts or batches
        or a RecordBatchReader, which may be larger than memory. If a row does not fit the topic, BadRowError is raised and
        nothing is written. Repeating a `producer` and `sequence` writes nothing and returns the first receipt. `expect` makes
        the append conditional: ConflictError if another writer was first.
        """
        return append_rows(
            self._log,
            {self.name: rows},
            producer=make_producer(producer, sequence, epoch),
            expect=None if expect is None else {self.name: expect},
        )

    def delete(self, rows: Any, **options: Any) -> Receipt:
        """Append a tombstone for the key of each row; the other columns may be left out. Options as for `append`."""
        if not self.definition.keyed:
            raise UsageError(
                f"topic {self.name!r} has no primary key, so its records cannot be deleted",
                hint="retention removes old records: ALTER TOPIC ... SET (retention = '7 days')",
                topic=self.name,
                reason="no-primary-key",
            )
        return self.append(_tombstones(rows), **options)

    def read(
        self,
        start: Start = "earliest",
        *,
        follow: bool = False,
        from_time: datetime | None = None,
        by: TimeAxis = "appended",
        columns: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        on_gap: OnGap = "fail",
        batch_rows: int = BATCH_ROWS,
        timeout: float | None = None,
    ) -> TopicReader:
        """Return an iterator over record batches, each of one partition: the topic's columns, `_partition`, `_offset`, and
        `_op` if keyed.

        `start` is 'earliest', 'latest', a datetime or {partition: offset}; partitions that a mapping leaves out begin at their
        earliest record, `partitions` selects the partitions to read. `from_time` (or a datetime as `start`) uses the index,
        without a scan: with `by='appended'` reading begins at the first record appended at or after it, with `by='event'` where
        no record before can have an event time at or after it; earlier event times may still follow. `columns` selects columns,
        also `_appended_at`, `_watermark` and `_sequence`. With `follow`, the iteration ends after `timeout` seconds without a
        record. `on_gap` decides what happens if the position was removed: 'fail' (GapError), or continue at the 'earliest'
        record or at the 'latest', with the loss counted in `lost`.
        """
        if from_time is not None:
            if start != "earliest":
                raise UsageError("pass start or from_time, not both", argument="from_time", value=from_time)
            start = from_time
        options = ReadOptions(columns_of(columns), batch_rows, on_gap)
        positions = resolve_start(self._log, self.name, start, by, partitions)
        return TopicReader(self._log, self.name, positions, options, follow=follow, timeout=timeout)

    def cursor(
        self, name: str, start: Start = "earliest", *, hold: bool | None = None, on_gap: OnGap = "fail"
    ) -> Cursor:
        """Return the named consumer position; created at `start` if it does not exist, else where it was left.

        `hold=True` keeps retention from removing records that it has not read; None leaves this setting as it is.
        """
        check_name(name)
        options = ReadOptions(on_gap=on_gap)
        make_cursor(self._log, self.name, name, start, hold)
        return Cursor(self._log, self.name, name, self._clock, on_gap=options.on_gap)

    def group(
        self,
        name: str,
        *,
        member: str | None = None,
        timeout: str | float = "10 seconds",
        start: Start = "earliest",
        on_gap: OnGap = "fail",
    ) -> GroupMember:
        """Join the group of that name as a member: a context manager that leaves the group at its end.

        Members share the partitions, each read by one member; a member without a beat for `timeout` loses its partitions.
        """
        options = MemberOptions(member, timeout, start, on_gap)
        return GroupMember(self._log, self.name, name, self._clock, options)

    def punctuate(self, moment: datetime, *, producer: str | None = None) -> None:
        """Declare that no record earlier than `moment` is to come: raises the watermark of every partition to it.

        On a topic `WITH (watermark = 'producers')` a `producer` declares it for its own records, and the watermark is the
        minimum over the producers that have punctuated or appended in their own name, and are not retired.
        """
        if self.definition.time is None:
            raise UsageError(
                f"topic {self.name!r} has no event time to punctuate",
                hint="declare one: WATERMARK FOR at AS at - INTERVAL '10 minutes'",
                topic=self.name,
                reason="no-event-time",
            )
        if not isinstance(moment, datetime):
            raise UsageError(
                f"punctuate takes a datetime, not {moment!r}",
                hint="topic.punctuate(datetime(2026, 1, 31, 12, tzinfo=UTC))",
                argument="moment",
                value=moment,
            )
        if producer is not None:
            self._log.declare_watermark(self.name, label(producer, "producer"), to_us(moment))
            return
        self._log.punctuate(self.name, {p: to_us(moment) for p in self._log.partitions(self.name)})

    def retire(self, producer: str) -> None:
        """Remove a producer: the watermark no longer waits for it. Its next punctuation or append adds it again."""
        if not self._log.retire(self.name, label(producer, "producer")):
            known = ", ".join(sorted(self._log.producer_watermarks(self.name)))
            raise UsageError(
                f"topic {self.name!r} has no producer {producer!r}",
                hint=f"its producers are {known}"
                if known
                else "it has none: a producer joins by an append or by topic.punctuate(t, producer=...)",
                topic=self.name,
                producer=producer,
            )

    def producer_watermarks(self) -> Mapping[str, ProducerWatermark]:
        """Return the producers of a topic `WITH (watermark = 'producers')`, each with its watermark."""
        return self._log.producer_watermarks(self.name)

    def finish(self) -> None:
        """End a bounded input: every window of it can close."""
        self.punctuate(END_OF_TIME)

    def watermark(self, partition: int, offset: int | None = None) -> datetime | None:
        """Return a partition's watermark at an offset, by default at its end. It never changes for a given offset."""
        partitions = self._log.partitions(self.name)
        partition = whole_number(partition, "partition")
        if partition not in partitions:
            raise UsageError(
                f"topic {self.name!r} has no partition {partition}",
                hint=f"its partitions are 0 to {len(partitions) - 1}",
                topic=self.name,
                partition=partition,
            )
        offset = partitions[partition].end if offset is None else whole_number(offset, "offset")
        moment = self._log.watermark(self.name, partition, offset)
        return None if moment is None else from_us(moment)

    def partitions(self) -> Mapping[int, PartitionInfo]:
        """Return the bounds of every partition, all as of one commit."""
        return self._log.partitions(self.name)


def _tombstones(rows: Any) -> Any:
    if is_stream(rows):
        return _tombstone_stream(rows)
    if isinstance(rows, (pa.RecordBatch, pa.Table)) or hasattr(rows, "__arrow_c_stream__"):
        return _tombstone_table(
            pa.table(rows) if not isinstance(rows, pa.RecordBatch) else pa.Table.from_batches([rows])
        )
    return [{**row, "_op": "delete"} if isinstance(row, Mapping) else row for row in rows]


def _tombstone_stream(rows: Any) -> Iterator[Any]:
    for row in rows:
        yield {**row, "_op": "delete"} if isinstance(row, Mapping) else _tombstone_table(pa.table(row))


def _tombstone_table(table: pa.Table) -> pa.Table:
    if "_op" in table.column_names:
        table = table.drop_columns(["_op"])
    return table.append_column("_op", pa.repeat(pa.scalar("delete"), table.num_rows))
