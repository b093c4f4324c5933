"""The state of a queue in one process, folded from the queue's records; it writes nothing, and takes no lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.core.errors import GapError
from headwater.log.protocol import Log
from headwater.queues import queue_checkpoint
from headwater.queues.prefetch import Window
from headwater.queues.queue_definition import QueueDefinition
from headwater.queues.queue_records import SCHEMA, Op, from_batch
from headwater.queues.queue_state import OperationOutcome, QueueState

POSITION = "state"
"""Name of the cursor on the queue's own topic at which opening starts to read."""


class FoldedQueue:
    """The state of a queue as far as this process has read its records, and the messages that it could lease next.

    Not thread-safe. State that an interrupted call left incomplete is rebuilt from the log by the next `changing`.
    """

    def __init__(self, log: Log, queue: QueueDefinition) -> None:
        self._log = log
        self._queue = queue
        self.window = Window(log, queue)
        self.since = 0
        """Number of records since the last checkpoint."""
        self._torn = False
        """True while the state is being changed. True at the beginning of a call: the previous call was interrupted or
        failed."""
        self.state = self._open()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Surround all calls that may change the state: an error or interrupt within leaves it to be rebuilt."""
        if self._torn:
            self.window = Window(self._log, self._queue)
            self.state = self._open()
        self._torn = True
        yield
        self._torn = False

    def refresh(self) -> None:
        """Fold the records that were appended since, by any process."""
        end = self._log.ends([self._queue.state_topic])[self._queue.state_topic][0]
        if end > self.state.position:
            try:
                self.read_to(end)
            except GapError:  # other processes wrote checkpoints and removed earlier records
                self.state = self._open()
                self.window.drop_cached()

    def read_to(self, end: int) -> list[OperationOutcome]:
        """Fold the records up to an offset, and return the outcome of each."""
        return [self.fold(*record) for record in self._records(self.state.position, end)]

    def fold(self, op: Op, number: int, at: Microseconds) -> OperationOutcome:
        """Fold one record, which was appended at an offset and a time."""
        self.since = 0 if op.kind == "checkpoint" else self.since + 1
        if op.kind == "gone":
            self.window.drop_cached(op.places)
        return self.state.apply(op, number, at)

    def ends(self) -> dict[int, int]:
        """Return the end of each partition of the messages' topic."""
        return dict(self._log.ends([self._queue.topic])[self._queue.topic])

    def open_count(self) -> int:
        """Return the number of entries that a checkpoint of the state has."""
        state = self.state
        return state.leased + len(state.waiting) + len(state.dead) + len(state.dying) + len(state.taken)

    def _open(self) -> QueueState:
        """Return the newest checkpoint with the later records folded in."""
        topic = self._queue.state_topic
        info, cursor = self._log.partitions(topic)[0], self._log.cursor(topic, POSITION)
        start = max(info.first, cursor.positions.get(0, 0) if cursor is not None else 0)
        found = list(self._records(start, info.end))
        state, bodies = QueueState(), [op for op, _, _ in found if op.kind == "checkpoint"]
        if bodies:
            newest = max(bodies, key=lambda op: op.lease or 0)
            state = queue_checkpoint.decode(newest.body or b"")
        self.state = state
        for op, number, at in found:
            if number >= state.position:
                self.fold(op, number, at)
        return state

    def _records(self, start: int, end: int) -> Iterator[tuple[Op, int, Microseconds]]:
        columns = [*SCHEMA.names, "_offset", "_appended_at"]
        for batch in self._log.read(self._queue.state_topic, 0, start, end, columns):
            numbers = batch.column("_offset").to_pylist()
            times = batch.column("_appended_at").cast(pa.int64()).to_pylist()
            yield from zip(from_batch(batch), numbers, times, strict=True)
