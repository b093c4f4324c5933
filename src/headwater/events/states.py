"""The states of aggregates in one process: from memory, a snapshot, or their events, whichever is nearest.

A cached state never becomes invalid: it is of a version, and later events are found by the index and folded onto it. The
exception are topics with private fields: when a subject was forgotten, the cache is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.core.errors import StorageError
from headwater.events.aggregates import Aggregate
from headwater.events.encrypted_state import ForgottenSubjects
from headwater.events.envelope import Recorded
from headwater.events.event_positions import KeyOffsets
from headwater.events.event_schema import EventLayout, PlacedEvent, all_columns
from headwater.events.snapshots import EVERY, Snapshot, Snapshots
from headwater.log.protocol import Log
from headwater.log.routing import partition_of_key

S = TypeVar("S")
CACHED_MAX = 10_000
"""Maximum number of aggregates whose states are cached."""


@dataclass(frozen=True)
class KnownAggregate(Generic[S]):
    """An aggregate at a version; `offset` is that of its last event, -1 before the first."""

    state: S
    version: int = 0
    offset: int = -1
    at: Microseconds | None = 0
    """Time at which the last event was appended; None if it was appended just now, and its time was not read yet."""
    kept: int = 0
    """Version of the last snapshot."""


class States(Generic[S]):
    """States by aggregate. Not thread-safe."""

    def __init__(
        self,
        log: Log,
        layout: EventLayout,
        places: KeyOffsets,
        snapshots: Snapshots,
        forgotten: ForgottenSubjects,
        cached_max: int = CACHED_MAX,
    ) -> None:
        self._log = log
        self._aggregate: Aggregate[S, Any, Any] = layout.aggregate
        self._layout = layout
        self._key_offsets = places
        self._snapshots = snapshots
        self._forgotten_subjects = forgotten
        self._cached_max = cached_max
        self._known: OrderedDict[str, KnownAggregate[S]] = OrderedDict()
        self._seen: dict[str, int] = {}
        """By cached aggregate, the offset up to which its partition was searched for events."""

    @property
    def topic(self) -> TopicDefinition:
        """The topic of the events."""
        return self._key_offsets.topic

    def partition(self, aggregate_id: str) -> int:
        """Return the partition of an aggregate's events."""
        return partition_of_key(self.topic, [aggregate_id])

    def current(self, aggregate_id: str) -> KnownAggregate[S]:
        """Return an aggregate with all events that the index has read."""
        known, partition = self._known.get(aggregate_id), self.partition(aggregate_id)
        after = -1 if known is None else max(known.offset, self._seen[aggregate_id] - 1)
        offsets = self._offsets(aggregate_id, after)
        if known is None and len(offsets):
            known = self._from_snapshot(aggregate_id, offsets)
            offsets = offsets if known is None else offsets[offsets > known.offset]
        if known is None:
            known = KnownAggregate(self._aggregate.initial)
        if len(offsets):
            known = self._folded(aggregate_id, known, offsets)
            known = self._kept(aggregate_id, known)
        self._remember(aggregate_id, known)
        self._seen[aggregate_id] = self._key_offsets.read_to(partition)
        return known

    def put(self, aggregate_id: str, known: KnownAggregate[S]) -> None:
        """Cache the state after events that this process has just appended."""
        self._remember(aggregate_id, self._kept(aggregate_id, known))

    def forget_forgotten(self) -> bool:
        """Drop the cache if a subject was forgotten since the last call, and return whether that is so."""
        if not self._forgotten_subjects.any_new():
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Drop the cache."""
        self._known.clear()
        self._seen.clear()

    def moment(self, aggregate_id: str, known: KnownAggregate[S]) -> Microseconds:
        """Return the time at which the last event of an aggregate was appended."""
        if known.at is not None:
            return known.at
        return self._log.appended_at(self.topic.name, self.partition(aggregate_id), known.offset) or 0

    def events(self, aggregate_id: str, after: int = -1) -> Iterator[Recorded[Any]]:
        """Return the events of an aggregate after an offset, in order."""
        return self._read(aggregate_id, self._offsets(aggregate_id, after))

    def at(self, aggregate_id: str, moment: Microseconds) -> KnownAggregate[S]:
        """Return an aggregate with the events that were appended at or before a time."""
        offsets = self._offsets(aggregate_id, -1)
        base = self._from_snapshot(aggregate_id, offsets)
        if base is None or base.at is None or base.at > moment:
            base = KnownAggregate(self._aggregate.own(self._aggregate.initial))
        for placed in self._placed(aggregate_id, offsets[offsets > base.offset]):
            if placed.at > moment:
                break
            base = self._next(base, placed)
        return base

    def _offsets(self, aggregate_id: str, after: int) -> npt.NDArray[np.int64]:
        return self._key_offsets.offsets(self.partition(aggregate_id), (aggregate_id,), after)

    def _read(self, aggregate_id: str, offsets: npt.NDArray[np.int64]) -> Iterator[Recorded[Any]]:
        partition, columns = self.partition(aggregate_id), all_columns(self.topic)
        for batch in self._key_offsets.records(partition, (aggregate_id,), offsets, columns):
            yield from self._layout.recorded(self.topic, partition, batch)

    def _from_snapshot(self, aggregate_id: str, offsets: npt.NDArray[np.int64]) -> KnownAggregate[S] | None:
        found = self._snapshots.find(aggregate_id)
        if (
            found is None
            or not 0 < found.version <= len(offsets)
            or offsets[found.version - 1] != found.offset
        ):
            # no snapshot, or one of another log
            return None
        return KnownAggregate(found.state, found.version, found.offset, found.at, found.version)

    def _folded(
        self, aggregate_id: str, known: KnownAggregate[S], offsets: npt.NDArray[np.int64]
    ) -> KnownAggregate[S]:
        known = replace(known, state=self._aggregate.own(known.state))
        for placed in self._placed(aggregate_id, offsets):
            known = self._next(known, placed)
        return known

    def _placed(self, aggregate_id: str, offsets: npt.NDArray[np.int64]) -> Iterator[PlacedEvent]:
        partition = self.partition(aggregate_id)
        columns = [name for name in all_columns(self.topic) if name != "meta"]
        for batch in self._key_offsets.records(partition, (aggregate_id,), offsets, columns):
            yield from self._layout.placed(self.topic, batch)

    def _next(self, known: KnownAggregate[S], placed: PlacedEvent) -> KnownAggregate[S]:
        state = self._aggregate.fold(known.state, placed.event)
        return KnownAggregate(state, placed.version, placed.offset, placed.at, known.kept)

    def _kept(self, aggregate_id: str, known: KnownAggregate[S]) -> KnownAggregate[S]:
        """Write a snapshot if many events were added since the last one. A failure is not retried at the next event."""
        if known.version - known.kept < EVERY:
            return known
        at = self.moment(aggregate_id, known)
        # the events are committed, whatever becomes of the snapshot
        with suppress(StorageError):
            # sync first: after a power failure, unsynced offsets may be used for other events
            self._log.sync()
            self._snapshots.keep(aggregate_id, Snapshot(known.version, known.offset, at, known.state))
        return replace(known, kept=known.version, at=at)

    def _remember(self, aggregate_id: str, known: KnownAggregate[S]) -> None:
        self._known[aggregate_id] = known
        self._known.move_to_end(aggregate_id)
        self._seen.setdefault(aggregate_id, 0)
        while len(self._known) > self._cached_max:
            gone, _ = self._known.popitem(last=False)
            del self._seen[gone]
