"""One process's client of a queue: writes the requests of its threads in shared appends, and folds the queue's records.

There is no coordinator: a process appends a record without a check, and all processes that fold the records agree on
its outcome (`queue_state`). The first thread to submit writes for all threads of its process that wait by then, so that
they share a commit; appends of several processes share syncs in the log. Claims are visible at once but not synced by
themselves: a claim that is lost in a power failure was never made. Before an acknowledgement, or another change,
returns, it is synced with everything before it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import ConflictError
from headwater.core.group_commit import GroupCommit, Request
from headwater.core.positions import Receipt
from headwater.log.protocol import Append, CursorMove, Entry, Log
from headwater.queues import queue_checkpoint
from headwater.queues.encrypted_messages import opened
from headwater.queues.folded_queue import POSITION, FoldedQueue
from headwater.queues.message_positions import Places
from headwater.queues.prefetch import Window
from headwater.queues.queue_dead_letters import letters_of
from headwater.queues.queue_definition import QueueDefinition, entry_of
from headwater.queues.queue_records import Op, to_batch
from headwater.queues.queue_state import Grant, QueueState

CHECKPOINT_OPS = 2_000
"""Number of records after which a checkpoint is written, or half the number of open messages if that is more."""
SPARE = 64
"""Number of extra candidates that a claim names, in case other processes claim some first."""
FLOORS_EVERY_MS = 200.0
"""Shortest time between moves of the cursor that holds retention back, in milliseconds."""
DEAD_LETTER_ATTEMPTS = 20
"""Attempts to write dead letters at once. They are written only with every record before folded; if other processes
keep appending, the next request tries again."""
CLOSE_S = 10.0
"""Seconds that closing waits for running handlers."""


@dataclass(frozen=True)
class MessageClaim:
    """A request for messages."""

    worker: str
    count: int
    span_us: Microseconds
    deliveries: int


class QueueRequest(Request):
    """A request of one thread: operations on messages that it holds, an optional claim, and the outcome of both."""

    def __init__(self, ops: Sequence[Op] = (), claim: MessageClaim | None = None) -> None:
        super().__init__()
        self.ops = list(ops)
        self.claim = claim
        self.lost: list[tuple[Op, Places]] = []
        """Operations of this request, each with the positions that its lease no longer covered."""
        self.granted: Grant | None = None
        self.rows: pa.Table | None = None
        self.errors: dict[int, str] = {}
        self.bodies: dict[int, pa.Table] = {}
        """Edited rows of granted messages, by position."""
        self.receipt: Receipt | None = None


class Ledger:
    """A queue in this process, shared by all its threads: it writes their requests, and `FoldedQueue` has the state."""

    def __init__(self, log: Log, clock: Clock, entry: Entry) -> None:
        self.queue = QueueDefinition.from_entry(entry)
        self.sequence = entry.sequence
        self._log = log
        self._clock = clock
        self._gathering = GroupCommit(self._together)
        self._lock = threading.RLock()
        self._floors_ms = -FLOORS_EVERY_MS
        topic = log.topic(self.queue.state_topic)
        self._schema, self._incarnation = topic.row_schema, {topic.name: topic.incarnation}
        self._folded = FoldedQueue(log, self.queue)

    def submit(self, ask: QueueRequest) -> QueueRequest:
        """Carry out a request, in one commit with concurrent requests; returns when it is as durable as it must be."""
        self._gathering.submit(ask)
        return ask

    def current(self) -> QueueState:
        """Return the current state, read only. The caller holds `locked()` while it reads the state, if other threads
        may call."""
        with self._lock:
            with self._folded.changing():
                self._folded.refresh()
            return self._folded.state

    def locked(self) -> threading.RLock:
        """Return the lock under which the state does not change."""
        return self._lock

    def next_due(self) -> Microseconds | None:
        """Return when the next message that is not available now becomes available, as far as this process has read."""
        now = self._clock.now_us()
        with self._lock:
            due = (self._state.next_due(now), self._window.next_due(now))
        return min((moment for moment in due if moment is not None), default=None)

    def delayed(self) -> int:
        """Return the number of fresh messages whose delay is not over."""
        with self._lock, self._folded.changing():
            self._folded.refresh()
            return self._window.delayed(self._state, self._clock.now_us(), self._folded.ends())

    def peek(self, count: int) -> Places:
        """Return the messages that a claim made now would get."""
        with self._lock, self._folded.changing():
            self._folded.refresh()
            places, _ = self._window.candidates(self._state, count, self._clock.now_us(), self._folded.ends())
            return places[self._window.rows(places)[1]]

    def rows(self, places: Places) -> pa.Table:
        """Return the rows of those messages that are still in the log."""
        with self._lock, self._folded.changing():
            self._window.without_forgotten()
            return self._window.rows(places)[0]

    def keys_of(self, rows: pa.RecordBatch) -> Places | None:
        """Return the hash of each row's key; None if the queue is not ordered."""
        return self._window.keys_of(rows)

    @property
    def _state(self) -> QueueState:
        return self._folded.state

    @property
    def _window(self) -> Window:
        return self._folded.window

    # --- writing ---------------------------------------------------------------------------------------------------

    def _together(self, asks: Sequence[QueueRequest]) -> None:
        with self._lock:
            with self._folded.changing():
                self._carry_out(asks)
            for ask in asks:
                ask.done = True

    def _carry_out(self, asks: Sequence[QueueRequest]) -> None:
        self._folded.refresh()
        self._window.without_forgotten()
        now = self._clock.now_us()
        written: list[tuple[Op, QueueRequest | None]] = []
        for ask in asks:
            written += [(op, ask) for op in self._checked(ask, now)]
        lasting = bool(written)
        written += self._claims(asks, now)
        gaps = list(self._window.gaps)
        if gaps:
            written.append((Op("skip", ranges=tuple(gaps)), None))
        if not written and self._state.lapsing(now):
            written.append((Op("skip"), None))  # leases expire only when a record is folded
        if written:
            self._write(written, lasting=lasting)
            del self._window.gaps[: len(gaps)]
        else:
            self._move_floors()
        if self._state.dying:
            self._write_dead_letters()
        self._hand_out(asks)

    def _checked(self, ask: QueueRequest, now: Microseconds) -> Iterator[Op]:
        """Yield the operations whose leases are active, reduced to the positions that they cover; other operations are
        not written."""
        for op in ask.ops:
            if op.kind not in ("ack", "nack", "release", "extend") or op.lease is None:
                yield op
                continue
            held = self._state.covered(op.lease, op.worker, op.places, now)
            if not held.all():
                ask.lost.append((op, op.places[~held]))
            if held.any():
                yield op if held.all() else replace(op, places=op.places[held])

    def _claims(
        self, asks: Sequence[QueueRequest], now: Microseconds
    ) -> list[tuple[Op, QueueRequest | None]]:
        wishes = [(ask, ask.claim) for ask in asks if ask.claim is not None]
        wanted = sum(claim.count for _, claim in wishes)
        if not wanted:
            return []
        spare = (wanted if self.queue.key else 3 * wanted) + SPARE
        places, keys = self._window.candidates(self._state, wanted, now, self._folded.ends(), spare)
        ops: list[tuple[Op, QueueRequest | None]] = []
        left = len(places)
        for ask, claim in wishes:
            if left <= 0:
                break
            op = Op(
                "claim",
                worker=claim.worker,
                count=claim.count,
                span_us=claim.span_us,
                deliveries=claim.deliveries,
            )
            ops.append((op if ops else replace(op, places=places, keys=keys), ask))
            left -= claim.count
        return ops

    def _write(
        self,
        written: list[tuple[Op, QueueRequest | None]],
        *,
        lasting: bool,
        letters: dict[str, list[pa.RecordBatch]] | None = None,
    ) -> None:
        moves: tuple[CursorMove, ...] = ()
        if self._folded.since >= max(CHECKPOINT_OPS, self._folded.open_count() // 2):
            body = queue_checkpoint.encode(self._state)
            written.insert(0, (Op("checkpoint", lease=self._state.position, body=body), None))
            moves = (CursorMove(self.queue.state_topic, POSITION, {0: self._state.position}),)
            lasting, self._floors_ms = True, -FLOORS_EVERY_MS
        if lasting:
            moves += self._floor_moves()
        ops = [op for op, _ in written]
        batches = {self.queue.state_topic: [to_batch(ops, self._schema)], **(letters or {})}
        expect = {self.queue.state_topic: {0: self._state.position}} if letters else {}
        receipt = self._log.append(
            Append(batches, expect=expect, moves=moves, incarnations=self._incarnation, relaxed=not lasting)
        )
        first, end = receipt.positions[self.queue.state_topic][0]
        if first == self._state.position:
            at = self._appended_at(first, end)
            outcomes = [self._folded.fold(op, first + row, at) for row, op in enumerate(ops)]
        else:
            outcomes = self._folded.read_to(end)[first - end :]
        for (op, ask), outcome in zip(written, outcomes, strict=True):
            if ask is None:
                continue
            ask.receipt = receipt
            if len(outcome.lost):
                ask.lost.append((op, outcome.lost))
            if outcome.granted is not None:
                ask.granted = outcome.granted

    def _appended_at(self, first: int, end: int) -> Microseconds:
        """Return when records of this process were appended. The partition's last append time is used if they are still
        its end."""
        info = self._log.partitions(self.queue.state_topic)[0]
        last = info.end == end
        at = info.last_appended_at if last else self._log.appended_at(self.queue.state_topic, 0, first)
        assert at is not None
        return at

    def _write_dead_letters(self) -> None:
        """Write the dead letters of messages that were delivered too often, in one append with the 'bury' record."""
        for _ in range(DEAD_LETTER_ATTEMPTS):
            if not self._state.dying:
                return
            places = np.array(sorted(self._state.dying), dtype=np.int64)
            forgettings = self._window.without_forgotten()
            rows, there = self._window.rows(places)
            letters = letters_of(self._log, self.queue, self._state, places[there], rows)
            # a change of the count means that values may be encrypted with a newly made key: they are read again
            if self._window.without_forgotten() == forgettings:
                try:
                    self._write([(Op("bury", places), None)], lasting=True, letters=letters)
                    return
                except ConflictError:  # other processes appended, perhaps that these records were excised
                    pass
            self._folded.refresh()

    def _hand_out(self, asks: Sequence[QueueRequest]) -> None:
        """Attach the rows to each claim. Messages whose records were removed in spite of the queue's hold count as done."""
        got = [(ask, ask.granted) for ask in asks if ask.granted is not None]
        if not got:
            return
        places = np.concatenate([grant.places for _, grant in got])
        rows, there = self._window.rows(places)
        if not there.all():
            gone = [
                Op("ack", grant.places[~mine], grant.worker, grant.lease)
                for (_, grant), mine in zip(got, _split(there, got), strict=True)
                if not mine.all()
            ]
            self._write([(op, None) for op in gone], lasting=True)
        at = 0
        for (ask, grant), mine in zip(got, _split(there, got), strict=True):
            ask.rows = rows.slice(at, int(mine.sum()))
            at += int(mine.sum())
            if not mine.all():
                ask.granted = replace(
                    grant,
                    places=grant.places[mine],
                    until=grant.until[mine],
                    deliveries=grant.deliveries[mine],
                    keys=None if grant.keys is None else grant.keys[mine],
                    open=grant.open[mine],
                )
            if self._state.errors or self._state.bodies:
                mine_places, topic = grant.places[mine].tolist(), self._log.topic(self.queue.topic)
                errors, bodies = self._state.errors, self._state.bodies
                ask.errors = {p: errors[p] for p in mine_places if p in errors}
                ask.bodies = {p: opened(self._log, topic, bodies[p]) for p in mine_places if p in bodies}

    # --- retention hold --------------------------------------------------------------------------------------------

    def _floor_moves(self) -> tuple[CursorMove, ...]:
        """Return the move of the cursor that holds retention back to the first messages that are not done; empty if it
        moved recently."""
        now = self._clock.steady_ms()
        if now - self._floors_ms < FLOORS_EVERY_MS:
            return ()
        self._floors_ms = now
        known = self._log.cursor(self.queue.topic, self.queue.cursor)
        if known is None:
            return ()
        floors = {partition: self._state.floor(partition) for partition in known.positions}
        moved = {p: offset for p, offset in floors.items() if offset > known.positions[p]}
        return (CursorMove(self.queue.topic, self.queue.cursor, moved),) if moved else ()

    def _move_floors(self) -> None:
        for move in self._floor_moves():
            self._log.move_cursor(move)


def _split(mask: np.ndarray, got: Sequence[tuple[QueueRequest, Grant]]) -> list[np.ndarray]:
    return np.split(mask, np.cumsum([len(grant.places) for _, grant in got])[:-1])


class Working(Protocol):
    """A worker that processes a queue in threads of its own."""

    def stop_soon(self) -> None: ...
    def end(self, timeout_s: float) -> None: ...


class Ledgers:
    """The ledgers of a workspace, one for each queue, shared by its threads."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Ledger] = {}
        self.workers: weakref.WeakSet[Working] = weakref.WeakSet()
        """Workers that were started in this process."""
        self._pid = os.getpid()

    def close(self) -> None:
        """Stop the workers of this process; messages of handlers that run for longer than `CLOSE_S` go to other workers
        when their leases end."""
        working = list(self.workers) if self._pid == os.getpid() else []
        for worker in working:
            worker.stop_soon()
        for worker in working:
            worker.end(CLOSE_S)

    def of(self, name: str) -> Ledger:
        """Return the ledger of a queue, opened on first use; QueueNotFoundError."""
        entry = entry_of(self._log, name)
        if self._pid != os.getpid():  # in a forked child: threads of its parent may have held the locks
            self.__init__(self._log, self._clock)  # type: ignore[misc]
        with self._lock:
            known = self._open.get(entry.name)
            if known is None or known.sequence != entry.sequence:
                known = self._open[entry.name] = Ledger(self._log, self._clock, entry)
            return known
