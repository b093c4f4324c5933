"""Sequences derived from the clock, for sources whose external system has no positions.

If the log has everything up to a point in time, it has everything that the external system offered at that time. So the end of
such a source is the current time. A scan that begins later and yields everything it finds reaches this end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import CAPTURED, TopicDefinition
from headwater.core.clock import Clock, Microseconds
from headwater.sources.base import Quiet

SAID_FIRST_MS = 500.0
"""Delay after rows until the first report that nothing is new. Later reports are further apart, because each may be a commit.
"""


class ClockPositions:
    """Sequences of one run of a source. They increase even if the clock is set back."""

    def __init__(self, clock: Clock, sequence: int, said_every_ms: float) -> None:
        """`sequence` is the last sequence in the log; `said_every_ms` is the longest interval between reports that nothing is
        new."""
        self.last = sequence
        self._clock = clock
        self._said_every_ms = said_every_ms
        self._pause_ms = 0.0
        self._said_ms = clock.steady_ms()

    def now(self) -> int:
        """Return the time at which a scan begins."""
        return max(self._clock.now_us(), self.last + 1)

    def within(self) -> int:
        """Return the sequence of a commit that is not the last of a scan: it claims no completeness."""
        self.last += 1
        return self.last

    def up_to(self, moment: int) -> int:
        """Return the sequence of a commit after which the log has everything that was available at `moment`."""
        self.last = max(self.last + 1, moment)
        self.report_next()
        return self.last

    def quiet_event(self, moment: int) -> Quiet:
        """Return the event for a scan that found nothing new. Only some of these events have a sequence, at increasing
        intervals."""
        now = self._clock.steady_ms()
        if now - self._said_ms < self._pause_ms:
            return Quiet()
        self._pause_ms = min(max(self._pause_ms * 2, SAID_FIRST_MS), self._said_every_ms)
        self._said_ms = now
        self.last = max(self.last + 1, moment)
        return Quiet(self.last)

    def report_next(self) -> None:
        """Make the next `quiet_event` report its sequence: a caller may be waiting for it."""
        self._pause_ms = 0.0


def owned(source: str, topic: TopicDefinition) -> TopicDefinition:
    """Return the topic as one that only this source writes."""
    return dataclasses.replace(topic, captured_by=source)


def rows_of(topic: TopicDefinition) -> TopicDefinition:
    """Return the topic without the capture columns: rows are conformed to it before `captured` adds the columns of their
    origin."""
    return topic if topic.captured_by is None else dataclasses.replace(topic, captured_by=None)


def captured(
    batch: pa.RecordBatch,
    topic: TopicDefinition,
    position: int | Sequence[int],
    time_us: Microseconds | Sequence[Microseconds],
    transaction: int | None = None,
) -> pa.RecordBatch:
    """Return conformed rows of `rows_of(topic)` with the capture columns added: position, time and transaction of their origin.
    `position` and `time_us` are one value for all rows, or one per row."""
    if topic.captured_by is None:
        return batch
    count = batch.num_rows
    times = pa.array(np.full(count, time_us, np.int64)).cast(CAPTURED.field("_source_time").type)
    arrays = [
        pa.array(np.full(count, position, np.int64)),
        times,
        pa.nulls(count, pa.int64())
        if transaction is None
        else pa.array(np.full(count, transaction, np.int64)),
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=topic.row_schema)
