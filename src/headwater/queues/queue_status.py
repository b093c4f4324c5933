"""Status of a queue, for people and for metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwater.core.clock import Clock
from headwater.log.protocol import Log
from headwater.queues.message_positions import partition_of
from headwater.queues.queue_client import Ledger


@dataclass(frozen=True)
class QueueStanding:
    """The status of a queue: numbers of messages by state, and totals since the queue was created."""

    queue: str
    topic: str
    waiting: int
    """Available now. Offsets without a record (punctuation) may be counted until a process has read past them."""
    leased: int
    delayed: int
    dead: int
    oldest_seconds: float | None
    """The age of the oldest message that is not done; None if all are done."""
    workers: int
    """Number of workers that lease messages."""
    delivered: int
    acknowledged: int
    returned: int
    lapsed: int


def standing_of(log: Log, clock: Clock, ledger: Ledger) -> QueueStanding:
    """Return the status of a queue now."""
    now, topic = clock.now_us(), ledger.queue.topic
    late = ledger.delayed()
    with ledger.locked():
        state = ledger.current()
        ends = log.ends([topic])[topic]
        taken = dict.fromkeys(ends, 0)
        for first, end in state.taken:
            taken[partition_of(first)] += end - first
        fresh = sum(max(0, end - taken[p]) for p, end in ends.items())
        again = int((state.waiting.due <= now).sum())
        lapsed = sum(int((g.open & (g.until <= now)).sum()) for g in state.leases.values())
        ages = [log.appended_at(topic, p, state.floor(p)) for p, end in ends.items() if state.floor(p) < end]
        oldest = min((at for at in ages if at is not None), default=None)
        holders = {g.worker for g in state.leases.values() if bool(np.any(g.open & (g.until > now)))}
        totals = state.totals
        return QueueStanding(
            ledger.queue.name,
            topic,
            waiting=fresh - late + again + lapsed + len(state.dying),
            leased=state.leased - lapsed,
            delayed=late + len(state.waiting) - again,
            dead=len(state.dead),
            oldest_seconds=None if oldest is None else max(0, now - oldest) / 1e6,
            workers=len(holders),
            delivered=totals.delivered,
            acknowledged=totals.acknowledged,
            returned=totals.returned,
            lapsed=totals.lapsed,
        )
