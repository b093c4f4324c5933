"""The state of a queue, folded from its records: which worker has which message, which are due again, which are dead.
Pure.

Every process that works on a queue folds the same records in the same order into the same state, without communicating:
a claim is a request, and the records before it decide which messages it gets. Time is the append time of the records,
which never goes back; no clock is read. The size of the state is that of the open messages (leased, waiting or dead);
all others are ranges.

A message is *fresh* until it is first handed out, then *leased*, and after that done, *returned* (due again at a time),
*dying* (delivered too often; the next process to see it writes its dead letter) or *dead*.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headwater.core.clock import Microseconds
from headwater.queues.message_positions import NONE, Mask, Places, Ranges, partition_of, place_of, to_ranges
from headwater.queues.queue_records import Op

Counts = npt.NDArray[np.int64]

CANDIDATES_MIN = 16
"""Number of candidates of a claim that are checked at first."""
LAPSED = "its lease expired"
"""The error of a message whose lease expired before it was acknowledged or given back."""


@dataclass
class Grant:
    """The messages that one claim got. Messages that are no longer `open` were acknowledged or given back, or their
    lease expired."""

    lease: int
    worker: str
    limit: int
    places: Places
    """Sorted, ascending."""
    until: Counts
    deliveries: Counts
    keys: Places | None
    open: Mask

    def find(self, places: Places) -> tuple[Counts, Places]:
        """Return the rows of those `places` that are still leased, and the places that are not."""
        at = np.searchsorted(self.places, places)
        at = np.minimum(at, len(self.places) - 1)
        held = (self.places[at] == places) & self.open[at]
        return at[held], places[~held]

    def earliest(self) -> int:
        """Return when the first open message's lease expires."""
        return int(self.until[self.open].min())


@dataclass
class DelayedMessages:
    """Messages that are due again, each at a time, as numpy columns sorted by position."""

    places: Places = field(default_factory=lambda: NONE)
    due: Counts = field(default_factory=lambda: NONE)
    deliveries: Counts = field(default_factory=lambda: NONE)
    keys: Places = field(default_factory=lambda: NONE)

    def __len__(self) -> int:
        return len(self.places)

    def add(self, places: Places, due: Counts, deliveries: Counts, keys: Places | None) -> None:
        """Add messages, due at the given times."""
        keys = np.zeros(len(places), dtype=np.int64) if keys is None else keys
        both = [
            np.concatenate(pair)
            for pair in zip(self._columns(), (places, due, deliveries, keys), strict=True)
        ]
        order = np.argsort(both[0], kind="stable")
        self.places, self.due, self.deliveries, self.keys = (column[order] for column in both)

    def _columns(self) -> tuple[Places, Counts, Counts, Places]:
        return self.places, self.due, self.deliveries, self.keys

    def find(self, places: Places) -> tuple[Counts, Mask]:
        """Return the row index of each position, and which positions are present."""
        if not len(self.places):
            return np.zeros(len(places), dtype=np.int64), np.zeros(len(places), dtype=bool)
        at = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
        return at, self.places[at] == places

    def remove(self, rows: Counts) -> None:
        """Remove the messages in these rows."""
        keep = np.ones(len(self.places), dtype=bool)
        keep[rows] = False
        self.places, self.due, self.deliveries, self.keys = (column[keep] for column in self._columns())


@dataclass(frozen=True)
class OperationOutcome:
    """The outcome of an operation: the messages that a claim got, or the positions that the operation's lease did not
    cover."""

    granted: Grant | None = None
    lost: Places = field(default_factory=lambda: NONE)


@dataclass
class Totals:
    """Counts of events since the queue was created."""

    delivered: int = 0
    acknowledged: int = 0
    returned: int = 0
    lapsed: int = 0
    buried: int = 0


class QueueState:
    """The state that a queue's records fold to."""

    def __init__(self) -> None:
        self.taken = Ranges()
        """All positions that were ever handed out, or have no message: any other position is fresh."""
        self.leases: dict[int, Grant] = {}
        self.waiting = DelayedMessages()
        self.dying: dict[int, int] = {}
        """Number of deliveries by position, of messages whose dead letters are not written yet."""
        self.dead: set[int] = set()
        self.errors: dict[int, str] = {}
        """The last error of each open or dying message."""
        self.bodies: dict[int, bytes] = {}
        """Rows to which dead messages were edited, kept until the messages are done."""
        self.busy: set[int] = set()
        """Hashes of keys with a leased message."""
        self.totals = Totals()
        self.position = 0
        """The number of the next record to fold."""
        self._lapses: list[tuple[int, int]] = []
        self._candidates: tuple[Places, Places | None] = NONE, None
        """Candidates that the last claim left, for the claims after it in the same append."""

    # --- looking ---------------------------------------------------------------------------------------------------

    @property
    def leased(self) -> int:
        """Number of leased messages."""
        return sum(int(grant.open.sum()) for grant in self.leases.values())

    def next_due(self, now: Microseconds) -> Microseconds | None:
        """Return the time at which the next delay ends or lease expires, or None."""
        later = self.waiting.due[self.waiting.due > now]
        due = [int(later.min())] if len(later) else []
        due += [self._lapses[0][0]] if self._lapses else []
        return min(due, default=None)

    def lapsing(self, now: Microseconds) -> bool:
        """Whether a lease has expired that no record has expired yet."""
        return bool(self._lapses) and self._lapses[0][0] <= now

    def covered(self, lease: int, worker: str | None, places: Places, now: Microseconds) -> Mask:
        """Return which of these positions a worker's lease covers at a time."""
        grant = self.leases.get(lease)
        if grant is None or (worker is not None and grant.worker != worker):
            return np.zeros(len(places), dtype=bool)
        at = np.minimum(np.searchsorted(grant.places, places), len(grant.places) - 1)
        found: Mask = (grant.places[at] == places) & grant.open[at] & (grant.until[at] > now)
        return found

    def holder(self, place: int) -> Grant | None:
        """Return the lease that covers a message; None if the message is not leased."""
        for grant in self.leases.values():
            if len(grant.find(np.array([place]))[0]):
                return grant
        return None

    def floor(self, partition: int) -> int:
        """Return the first offset of a partition that is not done: the queue needs no record before it."""
        begin, end = place_of(partition, 0), place_of(partition + 1, 0)
        lowest = self.taken.first_outside(begin)
        for grant in self.leases.values():
            mine = grant.places[grant.open & (grant.places >= begin) & (grant.places < lowest)]
            lowest = min(lowest, int(mine[0])) if len(mine) else lowest
        mine = self.waiting.places[(self.waiting.places >= begin) & (self.waiting.places < lowest)]
        lowest = min(lowest, int(mine[0])) if len(mine) else lowest
        lowest = min([lowest, *(p for p in self.dying if partition_of(p) == partition)])
        return min(lowest, end) - begin

    # --- folding ---------------------------------------------------------------------------------------------------

    def apply(self, op: Op, number: int, at: Microseconds) -> OperationOutcome:
        """Fold one record: `number` is its offset in the queue's topic, `at` its append time."""
        self.position = number + 1
        self._lapse(at)
        match op.kind:
            case "claim":
                return self._claim(op, number, at)
            case "ack" | "nack" | "release" | "extend":
                return self._settle(op, at)
            case "skip":
                for first, end in op.ranges:
                    self.taken.add(first, end)
            case "bury":
                for place in op.places.tolist():
                    if self.dying.pop(place, None) is not None:
                        self.dead.add(place)
                        self.totals.buried += 1
                self._forget(op.places)  # their dead letters store it
            case "replay":
                return self._replay(op, at)
            case "gone":
                self._excised(op.places)
        return OperationOutcome()

    def _lapse(self, at: Microseconds) -> None:
        """Expire leases up to a time: their messages are due again, or dying."""
        while self._lapses and self._lapses[0][0] <= at:
            _, lease = heapq.heappop(self._lapses)
            grant = self.leases.get(lease)
            if grant is None:
                continue
            rows = np.flatnonzero(grant.open & (grant.until <= at))
            if len(rows):
                self.totals.lapsed += len(rows)
                for place in grant.places[rows].tolist():
                    self.errors[place] = LAPSED
                self._return(grant, rows, grant.until[rows])
            if lease in self.leases:
                heapq.heappush(self._lapses, (grant.earliest(), lease))

    def _claim(self, op: Op, number: int, at: Microseconds) -> OperationOutcome:
        places, keys = (op.places, op.keys) if len(op.places) else self._candidates
        count, candidates_max = op.count or 0, max(CANDIDATES_MIN, 2 * (op.count or 0))
        while True:  # most candidates are free, so the first few usually suffice
            chosen = np.flatnonzero(
                self._free(places[:candidates_max], None if keys is None else keys[:candidates_max], at)
            )[:count]
            if len(chosen) == count or candidates_max >= len(places):
                break
            candidates_max *= 4
        after = int(chosen[-1]) + 1 if len(chosen) else len(places)
        self._candidates = places[after:], None if keys is None else keys[after:]
        if not len(chosen):
            return OperationOutcome()
        chosen = chosen[np.argsort(places[chosen])]
        places, keys = places[chosen], None if keys is None else keys[chosen]
        deliveries = np.ones(len(chosen), dtype=np.int64)
        fresh = places
        if len(self.waiting):
            rows, again = self.waiting.find(places)
            deliveries[again] += self.waiting.deliveries[rows[again]]
            self.waiting.remove(rows[again])
            fresh = places[~again]
        for first, end in zip(*to_ranges(fresh), strict=True):
            self.taken.add(first, end)
        until = np.full(len(chosen), at + (op.span_us or 0))
        grant = Grant(
            number,
            op.worker or "",
            op.deliveries or 1,
            places,
            until,
            deliveries,
            keys,
            np.ones(len(chosen), bool),
        )
        self.hold(grant)
        self.totals.delivered += len(chosen)
        return OperationOutcome(granted=grant)

    def _free(self, places: Places, keys: Places | None, at: Microseconds) -> Mask:
        """Return which positions a claim could get: fresh or due ones; on an ordered queue only the first of each key
        that is not busy."""
        free = ~self.taken.contains(places)
        if len(self.waiting):
            rows, again = self.waiting.find(places)
            free |= again & (self.waiting.due[rows] <= at)
        if keys is not None:
            free &= ~np.isin(keys, np.fromiter(self.busy, np.int64, len(self.busy)))
            free &= _firsts_of(keys, free)
        return free

    def hold(self, grant: Grant) -> None:
        """Add a lease."""
        self.leases[grant.lease] = grant
        heapq.heappush(self._lapses, (grant.earliest(), grant.lease))
        if grant.keys is not None:
            self.busy.update(grant.keys[grant.open].tolist())

    def _settle(self, op: Op, at: Microseconds) -> OperationOutcome:
        grant = self.leases.get(op.lease if op.lease is not None else -1)
        if grant is None or grant.worker != op.worker:
            return OperationOutcome(lost=op.places)
        rows, lost = grant.find(op.places)
        if not len(rows):
            return OperationOutcome(lost=lost)
        if op.kind == "ack":
            self.totals.acknowledged += len(rows)
            self._forget(grant.places[rows])
            self._release(grant, rows)
        elif op.kind == "nack":
            self.totals.returned += len(rows)
            for place in grant.places[rows].tolist() if op.error else ():
                self.errors[place] = op.error or ""
            self._return(grant, rows, np.full(len(rows), at + (op.span_us or 0)), op.deliveries)
        elif op.kind == "release":
            self.totals.returned += len(rows)
            grant.deliveries[rows] -= 1
            self._again(grant, rows, np.full(len(rows), at))
            self._release(grant, rows)
        else:
            grant.until[rows] = at + (op.span_us or 0)
            heapq.heappush(self._lapses, (grant.earliest(), grant.lease))
        return OperationOutcome(lost=lost)

    def _return(self, grant: Grant, rows: Counts, due: Counts, limit: int | None = None) -> None:
        """End the lease of messages that are not done: they are due again, or dying if they were delivered too often."""
        worn = grant.deliveries[rows] >= (grant.limit if limit is None else limit)
        self.dying.update(
            zip(grant.places[rows[worn]].tolist(), grant.deliveries[rows[worn]].tolist(), strict=True)
        )
        self._again(grant, rows[~worn], due[~worn])
        self._release(grant, rows)

    def _again(self, grant: Grant, rows: Counts, due: Counts) -> None:
        if len(rows):
            keys = None if grant.keys is None else grant.keys[rows]
            self.waiting.add(grant.places[rows], due, grant.deliveries[rows], keys)

    def _release(self, grant: Grant, rows: Counts) -> None:
        grant.open[rows] = False
        if grant.keys is not None:
            self.busy.difference_update(grant.keys[rows].tolist())
        if not grant.open.any():
            del self.leases[grant.lease]

    def _replay(self, op: Op, at: Microseconds) -> OperationOutcome:
        """Make dead messages wait again, with their deliveries reset to zero."""
        dead = np.fromiter((place in self.dead for place in op.places.tolist()), bool, len(op.places))
        found = op.places[dead]
        if len(found):
            self.dead.difference_update(found.tolist())
            self._forget(found)
            keys = None if op.keys is None else op.keys[dead]
            zeros = np.zeros(len(found), dtype=np.int64)
            self.waiting.add(found, np.full(len(found), at), zeros, keys)
            if op.body is not None:
                self.bodies[int(found[0])] = op.body
        return OperationOutcome(lost=op.places[~dead])

    def _excised(self, places: Places) -> None:
        """Remove messages from the state, whether leased, waiting, dying or dead."""
        for first, end in zip(*to_ranges(places), strict=True):
            self.taken.add(first, end)
        for grant in list(self.leases.values()):
            rows, _ = grant.find(places)
            if len(rows):
                self._release(grant, rows)
        rows, there = self.waiting.find(places)
        self.waiting.remove(rows[there])
        for place in places.tolist():
            self.dying.pop(place, None)
        self.dead.difference_update(places.tolist())
        self._forget(places)

    def _forget(self, places: Places) -> None:
        """Drop the errors and edited rows of messages."""
        if self.errors or self.bodies:
            for place in places.tolist():
                self.errors.pop(place, None)
                self.bodies.pop(place, None)


def _firsts_of(keys: Places, free: Mask) -> Mask:
    """Return, of the free positions, the first of each key."""
    at = np.flatnonzero(free)
    first = np.zeros(len(keys), dtype=bool)
    first[at[np.unique(keys[at], return_index=True)[1]]] = True
    return first
