"""A worker's handle on a queue: receives messages, acknowledges them, gives them back. All state of a queue is in the log."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.catalog.rules import FORGOTTEN
from headwater.core.arguments import label, whole_number
from headwater.core.clock import Clock, Microseconds, from_us
from headwater.core.errors import (
    LeaseLostError,
    MessageNotFoundError,
    QueueNotFoundError,
    TopicNotFoundError,
    UsageError,
)
from headwater.core.positions import split_token
from headwater.log.commit_history import check_commit, token_of
from headwater.log.protocol import Log
from headwater.log.reader import wait_ms
from headwater.queues.message import Message, Messages, Span, error_text, parse_token, refuse_final_delay
from headwater.queues.message_positions import OFFSET_BITS, Places, shown
from headwater.queues.queue_client import Ledger, Ledgers, MessageClaim, QueueRequest
from headwater.queues.queue_definition import QueueDefinition, delay_of, lease_of
from headwater.queues.queue_records import Kind, Op
from headwater.queues.queue_status import QueueStanding, standing_of

if TYPE_CHECKING:
    from headwater.queues.queue_asyncio import AsyncQueue
    from headwater.queues.queue_worker import Worker

WAIT_MS = 1_000.0
"""Longest wait of a blocking receive before it looks again, in milliseconds."""
RECEIVED_MAX = 100_000
"""Upper bound of the messages of one receive; a larger `max` is cut to this."""


class Queue:
    """A worker's handle on a queue. Handles are cheap to create, and threads may share one.

    A message is leased to one worker at a time. An acknowledged message is done and never comes again. A message that
    was given back, or whose lease expired, is handed out again; after the queue's maximum number of deliveries it is
    dead. So every message is processed at least once.
    """

    def __init__(
        self, log: Log, clock: Clock, ledgers: Ledgers, name: str, worker: str | None = None
    ) -> None:
        self._log = log
        self.clock = clock
        self._ledgers = ledgers
        self._known, self._pid = ledgers.of(name), os.getpid()
        self.definition: QueueDefinition = self._known.queue
        self.name = self.definition.name
        self.sequence = self._known.sequence
        """Distinguishes this queue from dropped queues of the same name."""
        self.worker = f"{os.getpid()}-{uuid.uuid4().hex[:8]}" if worker is None else label(worker, "worker")

    def __repr__(self) -> str:
        return f"<Queue {self.name} on {self.definition.topic}>"

    # --- receiving -------------------------------------------------------------------------------------------------

    def receive(
        self,
        max: int = 1,
        wait: float | None = 0,
        *,
        lease: Span | None = None,
        ack: Any = None,
    ) -> Messages:
        """Return up to `max` messages, leased to this worker: those available now, or else the first to arrive within
        `wait` seconds (None: no limit). Empty if nothing arrived in time.

        `ack` are processed messages to acknowledge in the same commit, which saves one. LeaseLostError if some of them
        are no longer leased to this worker: nothing is received then.
        """
        count = whole_number(max, "max", least=1, hint="queue.receive(max=10, wait=5)")
        patience = wait_ms(wait, "wait")
        span = self.definition.lease_us if lease is None else lease_of(lease)
        claim = MessageClaim(self.worker, min(count, RECEIVED_MAX), span, self.definition.deliveries)
        ops = [] if ack is None else self._ops("ack", ack)
        begun = self.clock.steady_ms()
        while True:
            seen = self._log.sequence()
            ask = self._submit(QueueRequest(ops, claim))
            got = Messages(self, ask.granted, ask)
            if ack is not None:
                if ask.lost and got:
                    self.release(got)  # LeaseLostError is raised below, so the caller never gets these
                self._settle(ack, ask, "acknowledged")
                ops, ack = [], None
            if got:
                got.commit = token_of(self._log, self._log.sequence())
                return got
            left = WAIT_MS if patience is None else begun + patience - self.clock.steady_ms()
            if left <= 0:
                return Messages(self)
            due = self._known.next_due()
            until_due = WAIT_MS if due is None else (due - self.clock.now_us()) / 1e3 + 1
            self._log.wait_commit(seen, _at_least(1.0, left, WAIT_MS, until_due))

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages, waiting for more; the caller acknowledges each or gives it back: `with message: ...`."""
        while True:
            yield from self.receive(1, None)

    def __aiter__(self) -> AsyncIterator[Message]:
        return aiter(self.aio)

    @property
    def aio(self) -> AsyncQueue:
        """The queue with awaitable methods, for asyncio."""
        from headwater.queues.queue_asyncio import AsyncQueue

        return AsyncQueue(self)

    # --- settling --------------------------------------------------------------------------------------------------

    def ack(self, messages: Message | Messages | Iterable[Message]) -> None:
        """Acknowledge messages as done: durable when this returns, and they are never handed out again. LeaseLostError
        if some are no longer leased to this worker; the others are acknowledged all the same."""
        self._settle(messages, self._submit(QueueRequest(self._ops("ack", messages))), "acknowledged")

    def nack(
        self,
        messages: Message | Messages | Iterable[Message],
        *,
        delay: Span | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> None:
        """Give messages back as not done: they are handed out again, after `delay` if one is given, or are dead if this was
        their last delivery. `error` is the reason. With `final` the messages can never be done, and are dead at once."""
        refuse_final_delay(delay, final)
        ops = self._ops("nack", messages, span_us=delay_of(delay), error=error_text(error))
        if final:
            ops = [replace(op, deliveries=1) for op in ops]
        self._settle(messages, self._submit(QueueRequest(ops)), "given back")

    def release(self, messages: Message | Messages | Iterable[Message]) -> None:
        """Give messages back unprocessed: they are handed out again at once, and this delivery does not count."""
        self._settle(messages, self._submit(QueueRequest(self._ops("release", messages))), "given back")

    def extend(self, messages: Message | Messages | Iterable[Message], lease: Span | None = None) -> None:
        """Extend the leases of messages to end this long after now, by default after the queue's lease duration."""
        span = self.definition.lease_us if lease is None else lease_of(lease)
        ask = self._submit(QueueRequest(self._ops("extend", messages, span_us=span)))
        until = self.clock.now_us() + span
        self._refuse_lost(ask, "extended")
        if isinstance(messages, Messages):
            messages.until[~messages.settled] = until
        else:
            for message in _each(messages):
                message.note(until=until)

    def settle(
        self,
        tokens: Sequence[str],
        kind: Kind,
        *,
        delay: Span | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> None:
        """Apply `ack`, `nack`, `release` or `extend` to messages given by their tokens. OtherHistoryError for a token
        that was issued before an older copy of the workspace was restored."""
        refuse_final_delay(delay, final)
        span, once = delay_of(delay) if kind == "nack" else 0, 1 if final else None
        if kind == "extend":
            span = self.definition.lease_us if delay is None else lease_of(delay)
        ops = []
        for token in tokens:
            place, lease = parse_token(token)
            check_commit(self._log, split_token(token.strip())[1], "the token")
            self._refuse_unknown(place)
            op = Op(kind, np.array([place]), self.worker, lease, span_us=span, error=error_text(error))
            ops.append(replace(op, deliveries=once))
        self._refuse_lost(self._submit(QueueRequest(ops)), "settled")

    def commit_id(self, message: Message) -> str | None:
        """Return the random id of the commit that appended a message's record; None if the id is unknown: the commit is
        older than such ids, or its id is no longer kept. Empty if the commit is not visible."""
        return self._log.commit_id(message.sequence)

    # --- looking ---------------------------------------------------------------------------------------------------

    def standing(self) -> QueueStanding:
        """Return the status of the queue: numbers of waiting, leased, delayed and dead messages, and the age of the
        oldest one not done."""
        return standing_of(self._log, self.clock, self._ledger())

    def leases(self) -> list[dict[str, Any]]:
        """Return a row for each active lease, by expiry time, the earliest first."""
        ledger, now = self._ledger(), self.clock.now_us()
        with ledger.locked():
            held = [(g, g.open & (g.until > now)) for g in ledger.current().leases.values()]
            found = [
                {
                    "worker": grant.worker,
                    "messages": int(mine.sum()),
                    "first": shown(int(grant.places[mine][0])),
                    "deliveries": int(grant.deliveries[mine].max()),
                    "until": from_us(int(grant.until[mine].min())),
                }
                for grant, mine in held
                if mine.any()
            ]
        return sorted(found, key=lambda row: row["until"])

    def peek(self, max: int = 10) -> pa.Table:
        """Return the rows that would be handed out next, with `_partition` and `_offset`, without leasing them."""
        count = whole_number(max, "max", least=1)
        places = self._ledger().peek(count)
        return _placed(self._ledger().rows(places), places)

    # --- working ---------------------------------------------------------------------------------------------------

    def work(self, handler: Callable[[Any], object], **options: Any) -> Worker:
        """Call `handler(message)` for every message, in threads of this process, until `stop()`; see `Worker`, and
        `WorkOptions` for the options."""
        from headwater.queues.queue_worker import Worker, WorkOptions

        worker = Worker(self, handler, WorkOptions(**options))
        self._ledgers.workers.add(worker)
        return worker

    # --- within ----------------------------------------------------------------------------------------------------

    def _ledger(self) -> Ledger:
        return self._ledgers.of(self.name)

    def _submit(self, ask: QueueRequest) -> QueueRequest:
        if self._pid != os.getpid():
            self._known, self._pid = self._ledger(), os.getpid()
        try:
            return self._known.submit(ask)
        except TopicNotFoundError as error:
            if error.facts.get("topic") == self.definition.topic:
                raise
            raise QueueNotFoundError(
                f"queue {self.name!r} was dropped", reason="dropped", queue=self.name
            ) from None

    def _ops(
        self, kind: Kind, messages: Any, *, span_us: Microseconds | None = None, error: str | None = None
    ) -> list[Op]:
        """Return an operation for each lease that the messages belong to."""
        by_lease: Mapping[int, Places]
        if isinstance(messages, Messages):
            self._refuse_foreign(messages.queue.name)
            by_lease = {messages.lease: messages.open} if len(messages.open) else {}
        else:
            found: dict[int, list[int]] = {}
            for message in _each(messages):
                self._refuse_foreign(message.queue_name)
                found.setdefault(message.lease, []).append(message.place)
            by_lease = {lease: np.array(sorted(places), np.int64) for lease, places in found.items()}
        return [
            Op(kind, places, self.worker, lease, span_us=span_us, error=error)
            for lease, places in by_lease.items()
        ]

    def _settle(self, messages: Any, ask: QueueRequest, what: str) -> None:
        lost = {place for _, places in ask.lost for place in places.tolist()}
        if isinstance(messages, Messages):
            messages.settled |= ~np.isin(messages.places, np.array(sorted(lost), np.int64))
        else:
            for message in _each(messages):
                message.note(settled=message.place not in lost)
        self._refuse_lost(ask, what)

    def _refuse_foreign(self, queue: str) -> None:
        if queue != self.name:
            raise UsageError(
                f"the message belongs to queue {queue!r}, not to {self.name!r}",
                hint="message.ack() acknowledges it in its own queue",
                queue=self.name,
                message_queue=queue,
            )

    def _refuse_unknown(self, place: int) -> None:
        ledger = self._ledger()
        with ledger.locked():
            taken = ledger.current().taken.contains(np.array([place]))
        if not taken[0]:
            raise MessageNotFoundError(
                f"message {shown(place)} of queue {self.name!r} was never delivered",
                hint=f"`headwater queue receive {self.name}` delivers the next messages",
                queue=self.name,
                place=shown(place),
            )

    def _refuse_lost(self, ask: QueueRequest, what: str) -> None:
        lost = np.concatenate([places for _, places in ask.lost]) if ask.lost else np.empty(0, np.int64)
        if not len(lost):
            return
        ledger = self._ledger()
        with ledger.locked():
            grant = ledger.current().holder(int(lost[0]))
        holder = None if grant is None else grant.worker
        names = [shown(place) for place in lost.tolist()]
        which = f"message {names[0]}" if len(names) == 1 else f"{len(names)} messages (first: {names[0]})"
        raise LeaseLostError(
            f"{which} of queue {self.name!r} cannot be {what}: worker {self.worker!r} does not hold its lease",
            detail=f"worker {holder!r} holds the lease now"
            if holder is not None and holder != self.worker
            else "the lease expired, the message was acknowledged or given back before, or its record was excised",
            hint="discard the work or make it idempotent; a worker that needs more time calls message.extend()",
            queue=self.name,
            worker=self.worker,
            messages=names,
            holder=holder,
        )


def _at_least(least: float, *waits: float) -> float:
    return sorted((least, min(waits)))[1]


def _each(messages: Any) -> list[Message]:
    found = [messages] if isinstance(messages, Message) else messages
    if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        found = list(found)
        if all(isinstance(message, Message) for message in found):
            return found
    raise UsageError(
        f"expected messages that receive() returned, not {messages!r}",
        hint="queue.ack(message), or queue.ack(messages)",
        argument="messages",
        value=messages,
    )


def _placed(rows: pa.Table, places: Places) -> pa.Table:
    partitions = pa.array((places >> OFFSET_BITS).astype(np.int32))
    names = [name for name in rows.column_names if name not in ("_offset", "_appended_at", FORGOTTEN)]
    return (
        rows.select(names).append_column("_partition", partitions).append_column("_offset", rows["_offset"])
    )
