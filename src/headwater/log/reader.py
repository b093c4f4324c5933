"""Reads a topic as Arrow batches: over its partitions, up to a cut or following the end, with a policy for gaps.

Positions are plain numbers here; `cursor` and `group` store them.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import METADATA_COLUMNS, TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.core.clock import to_us
from headwater.core.errors import GapError, TopicNotFoundError, UsageError
from headwater.log.protocol import Log, PartitionInfo, TimeAxis

OnGap = Literal["fail", "earliest", "latest"]
Start = Literal["earliest", "latest"] | int | Mapping[int, int] | datetime
"""Where to begin: an end of the topic, an offset (of the one partition, or per partition), or a point in time."""

BATCH_ROWS = 65_536
WAIT_MS = 2_000.0
"""Longest single wait of a following reader, which bounds how late it notices that another thread has closed it."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read: the columns, the maximum rows of a batch, and what to do where rows were removed."""

    columns: tuple[str, ...] | None = None
    batch_rows: int = BATCH_ROWS
    on_gap: OnGap = "fail"

    def __post_init__(self) -> None:
        if self.on_gap not in get_args(OnGap):
            raise UsageError(
                f"on_gap must be 'fail', 'earliest' or 'latest', not {self.on_gap!r}",
                argument="on_gap",
                value=self.on_gap,
            )
        if (whole(self.batch_rows) or 0) < 1:
            raise UsageError(
                f"batch_rows must be an integer of at least 1, not {self.batch_rows!r}",
                argument="batch_rows",
                value=self.batch_rows,
            )


def columns_of(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the `columns` of a read as a tuple; UsageError if a name occurs twice."""
    if isinstance(given, str):
        raise UsageError(
            "columns must be a list of names", hint=f"columns=[{given!r}]", argument="columns", value=given
        )
    names = None if given is None else tuple(given)
    for at, name in enumerate(names or ()):
        if name in (names or ())[:at]:
            raise UsageError(f"columns has {name!r} twice", column=name, reason="duplicate-column")
    return names


def whole(value: Any) -> int | None:
    """Return a whole number of any type, including numpy's, as an int; None for any other value."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def wait_ms(timeout: Any, what: str = "timeout") -> float | None:
    """Return a timeout in milliseconds; None means no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, (bool, str)) or not hasattr(timeout, "__float__") or not float(timeout) >= 0:
        raise UsageError(
            f"{what} must be a number of seconds, not {timeout!r}",
            hint=f"{what}=1.5",
            argument=what,
            value=timeout,
        )
    return None if math.isinf(float(timeout)) else float(timeout) * 1_000


def resolve_start(
    log: Log, topic: str, start: Start, by: TimeAxis = "appended", partitions: Sequence[int] | None = None
) -> dict[int, int]:
    """Return the offset to begin at in each partition; a partition that a mapping leaves out begins at its earliest."""
    infos = log.partitions(topic)
    chosen = _chosen(topic, infos, partitions)
    if isinstance(start, datetime):
        if by not in get_args(TimeAxis):
            raise UsageError(f"by must be 'appended' or 'event', not {by!r}", argument="by", value=by)
        if by == "event" and log.topic(topic).time is None:
            raise UsageError(
                f"topic {topic!r} has no event time to seek by",
                hint="by='appended' uses the append time; WATERMARK FOR declares an event time",
                topic=topic,
                reason="no-event-time",
            )
        return {p: log.offset_at(topic, p, to_us(start), by) for p in chosen}
    if isinstance(start, (int, np.integer)) and not isinstance(start, bool):
        if len(chosen) != 1:
            raise UsageError(
                f"offset {start} is ambiguous: topic {topic!r} is read from {len(chosen)} partitions",
                hint="write {partition: offset}",
                topic=topic,
                offset=start,
                partitions=len(chosen),
            )
        start = {chosen[0]: start}
    if isinstance(start, Mapping):
        given = dict(_place(topic, infos, p, offset) for p, offset in start.items())
        return {p: given.get(p, infos[p].first) for p in chosen}
    if start not in ("earliest", "latest"):
        raise UsageError(
            f"{start!r} is not a position to read from",
            hint="use 'earliest', 'latest', an offset, {partition: offset}, or a datetime",
            argument="start",
            value=start,
        )
    return {p: infos[p].first if start == "earliest" else infos[p].end for p in chosen}


def _chosen(topic: str, infos: Mapping[int, PartitionInfo], partitions: Sequence[int] | None) -> list[int]:
    if partitions is None:
        return sorted(infos)
    if not _is_list(partitions):
        raise UsageError(
            f"partitions must be a list of numbers, not {partitions!r}",
            hint=f"partitions=[{partitions!r}]",
            argument="partitions",
            value=partitions,
        )
    return sorted({_partition(topic, infos, partition) for partition in partitions})


def _is_list(given: Any) -> bool:
    return hasattr(given, "__iter__") and not isinstance(given, str)


def _partition(topic: str, infos: Mapping[int, PartitionInfo], given: Any) -> int:
    number = whole(given)
    if number is None or number not in infos:
        raise _no_partition(topic, infos, given)
    return number


def _place(topic: str, infos: Mapping[int, PartitionInfo], partition: Any, offset: Any) -> tuple[int, int]:
    """Return a partition and an offset in it as plain numbers; UsageError if they do not exist."""
    partition, number = _partition(topic, infos, partition), whole(offset)
    if number is None or not 0 <= number <= infos[partition].end:
        raise UsageError(
            f"offset {offset!r} is not in partition {partition} of topic {topic!r}",
            hint=f"its offsets begin at {infos[partition].first} and end before {infos[partition].end}",
            topic=topic,
            partition=partition,
            offset=offset,
        )
    return partition, number


def _no_partition(topic: str, infos: Mapping[int, PartitionInfo], partition: Any) -> UsageError:
    return UsageError(
        f"topic {topic!r} has no partition {partition!r}",
        hint=f"its partitions are 0 to {len(infos) - 1}",
        topic=topic,
        partition=partition,
    )


def shown_columns(definition: TopicDefinition, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of a batch, in order; UsageError for a column that the topic does not have."""
    op = ("_op",) if definition.keyed else ()
    if columns is None:
        return (*definition.schema.names, "_partition", "_offset", *op)
    metadata = {name for name in METADATA_COLUMNS if name not in ("_op", "_version")} | {
        *op,
        *definition.source_columns.names,
    }
    if definition.versioned_by is not None:
        metadata.add("_version")
    if definition.private:
        metadata.add(FORGOTTEN)
    for name in columns:
        if name not in metadata and name not in definition.schema.names:
            raise UsageError(
                f"topic {definition.name!r} has no column {name!r}",
                hint=f"its columns are {', '.join([*definition.schema.names, *sorted(metadata)])}",
                topic=definition.name,
                column=name,
            )
    return tuple(columns)


def _repeated(partition: int, rows: int) -> pa.Array:
    # Built from a buffer: the first conversion of Python or numpy values makes pyarrow load pandas, which is slow.
    buffer = pa.py_buffer(np.full(rows, partition, np.int32))
    return pa.Array.from_buffers(pa.int32(), rows, [None, buffer])


class PartitionFeed:
    """Batches of one partition up to an end offset. `position` is the next offset to read, `lost` counts rows skipped."""

    def __init__(
        self, log: Log, topic: str, partition: int, start: int, end: int, options: ReadOptions
    ) -> None:
        self.partition = partition
        self.position = start
        self.end = end
        self.lost = 0
        self._log = log
        self._topic = topic
        self._options = options
        self._shown = shown_columns(log.topic(topic), options.columns)
        self._batches = self._read()

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, or None at the end. After an error, calling it again retries."""
        try:
            batch = next(self._batches, None)
        except BaseException:
            self._batches = self._read()
            raise
        if batch is None:
            self.position = max(self.position, self.end)
        return batch

    def _read(self) -> Iterator[pa.RecordBatch]:
        stored = [c for c in self._shown if c != "_partition"]
        if "_offset" not in stored:
            stored.append("_offset")
        while self.position < self.end:
            try:
                for batch in self._log.read(self._topic, self.partition, self.position, self.end, stored):
                    for at in range(0, batch.num_rows, self._options.batch_rows):
                        piece = batch.slice(at, self._options.batch_rows)
                        self.position = piece.column("_offset")[-1].as_py() + 1
                        yield self._show(piece)
                return
            except GapError as gap:
                self._skip(gap)

    def _show(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            _repeated(self.partition, piece.num_rows) if name == "_partition" else piece.column(name)
            for name in self._shown
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(self._shown))

    def _skip(self, gap: GapError) -> None:
        if self._options.on_gap == "fail":
            raise gap
        to = gap.first_available if self._options.on_gap == "earliest" else self.end
        if to <= self.position:
            raise gap
        self.lost += to - self.position
        self.position = to


class TopicReader:
    """An iterator over record batches, each of one partition.

    `positions` is the next offset of each partition after the batches yielded: reading from it continues without a gap. `lost`
    counts rows that were removed before they could be read (`on_gap`). Partitions take turns. With `follow` it blocks until
    there are more records, without polling, and ends only by `close()` or after `timeout` seconds without a record. Otherwise
    it reads up to a cut taken at its creation, which splits no append.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        positions: Mapping[int, int],
        options: ReadOptions,
        *,
        follow: bool = False,
        timeout: float | None = None,
    ) -> None:
        shown_columns(log.topic(topic), options.columns)
        self.positions = dict(positions)
        self.lost = 0
        self._log = log
        self._topic = topic
        self._options = options
        self._follow = follow
        self._timeout_ms = wait_ms(timeout)
        self._ends = {p: info.end for p, info in log.partitions(topic).items() if p in self.positions}
        self._feeds: deque[PartitionFeed] = deque()
        self._closed = False

    def __iter__(self) -> TopicReader:
        return self

    def __next__(self) -> pa.RecordBatch:
        while not self._closed:
            batch = self._take()
            if batch is not None:
                return batch
            if self._open_feeds():
                continue
            if not self._follow or not self._wait():
                break
        raise StopIteration

    def seek(self, positions: Mapping[int, int]) -> None:
        """Continue from other positions."""
        self._feeds.clear()
        self.positions.update(positions)

    def close(self) -> None:
        """End the iteration; a thread that waits in it returns within `WAIT_MS`."""
        self._closed = True
        self._feeds.clear()

    def _take(self) -> pa.RecordBatch | None:
        while self._feeds:
            feed = self._feeds.popleft()
            before = feed.lost
            batch = feed.next()
            self.lost += feed.lost - before
            self.positions[feed.partition] = feed.position
            if batch is not None:
                self._feeds.append(feed)
                return batch
        return None

    def _open_feeds(self) -> bool:
        if self._follow:
            infos = self._log.partitions(self._topic)
            self._ends = {p: infos[p].end for p in self.positions}
        for partition, position in self.positions.items():
            if position < self._ends[partition]:
                end = self._ends[partition]
                self._feeds.append(
                    PartitionFeed(self._log, self._topic, partition, position, end, self._options)
                )
            elif self._follow and position > self._ends[partition]:
                raise recreated(self._topic)
        return bool(self._feeds)

    def _wait(self) -> bool:
        """Wait for rows, in short waits; return False if closed meanwhile or at the timeout."""
        left = math.inf if self._timeout_ms is None else self._timeout_ms
        while not self._closed:
            piece = min(left, WAIT_MS)
            if self._log.wait(self._topic, self.positions, piece):
                return True
            left -= piece
            if left <= 0:
                self._log.partitions(self._topic)  # raises if the topic was dropped, not just idle
                break
        return False


def recreated(topic: str) -> TopicNotFoundError:
    """Return the error of a reader whose position is beyond the end of the topic."""
    return TopicNotFoundError(
        f"topic {topic!r} was dropped and created again while it was read",
        hint="start a new read from 'earliest'",
        topic=topic,
        reason="recreated",
    )
