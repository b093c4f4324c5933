"""Sequences for sources whose outside counts nothing: moments of the clock.

That the log has everything up to a moment means: whatever was there to be had at that moment is in the log. So the end of such
a source is simply now, and a look that begins later and hands over all it finds gets there.
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
"""How soon after rows it is said that there is nothing more; then less and less often, because each may be a commit."""


class Moments:
    """The sequences that one reading of a source hands out, which rise even if the clock is set back."""

    def __init__(self, clock: Clock, sequence: int, said_every_ms: float) -> None:
        """`sequence` is what the log has; `said_every_ms`: how rarely it is said, at least, that nothing is new."""
        self.last = sequence
        self._clock = clock
        self._said_every_ms = said_every_ms
        self._pause_ms = 0.0
        self._said_ms = clock.steady_ms()

    def now(self) -> int:
        """The moment at which a look begins."""
        return max(self._clock.now_us(), self.last + 1)

    def within(self) -> int:
        """The sequence of a commit that is not the last of a look: it claims nothing."""
        self.last += 1
        return self.last

    def up_to(self, moment: int) -> int:
        """The sequence of a commit with which everything that was there at a moment is in the log."""
        self.last = max(self.last + 1, moment)
        self.speak()
        return self.last

    def quiet(self, moment: int) -> Quiet:
        """Nothing was there that the log does not have; said now and then."""
        now = self._clock.steady_ms()
        if now - self._said_ms < self._pause_ms:
            return Quiet()
        self._pause_ms = min(max(self._pause_ms * 2, SAID_FIRST_MS), self._said_every_ms)
        self._said_ms = now
        self.last = max(self.last + 1, moment)
        return Quiet(self.last)

    def speak(self) -> None:
        """Say so at the next opportunity: somebody may wait for it."""
        self._pause_ms = 0.0


def owned(source: str, topic: TopicDefinition) -> TopicDefinition:
    """A topic that a source fills, and nobody else."""
    return dataclasses.replace(topic, captured_by=source)


def rows_of(topic: TopicDefinition) -> TopicDefinition:
    """What rows have to fit before `captured` tells where they come from."""
    return topic if topic.captured_by is None else dataclasses.replace(topic, captured_by=None)


def captured(
    batch: pa.RecordBatch,
    topic: TopicDefinition,
    position: int | Sequence[int],
    time_us: Microseconds | Sequence[Microseconds],
    transaction: int | None = None,
) -> pa.RecordBatch:
    """Conformed rows of `rows_of(topic)` with what a captured topic says of where they come from: the same of all, or of each."""
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
