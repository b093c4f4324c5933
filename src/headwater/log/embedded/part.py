"""What the sides of the embedded log share: the journal, the reader of segments, and how to commit one record."""

from __future__ import annotations

from collections.abc import Callable

from headwater.clock import Clock
from headwater.errors import UsageError
from headwater.log.embedded.conditions import no_topic
from headwater.log.embedded.core import Core, VoidedError
from headwater.log.embedded.journal import Record
from headwater.log.embedded.segments import SegmentReader
from headwater.log.embedded.state import PartitionState, State, TopicState
from headwater.settings import LogSettings
from headwater.storage import Storage

Change = Callable[[State], Record | None]
"""Makes a record under the lock, from the state at the end of the journal; None if there is nothing to change."""


class LogPart:
    """The base of each side."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock) -> None:
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self.core = Core(storage, settings, clock)
        self.reader = SegmentReader(storage)

    def _change(self, change: Change) -> None:
        """Commit one record that `change(state)` makes under the lock, durably as the workspace asks."""
        sync = self.settings.durability != "os"
        while True:
            try:
                with self.core.exclusive() as state:
                    record = change(state)
                    if record is None:
                        return
                    seq, at = self.core.next_stamp()
                    ticket = self.core.commit({"seq": seq, "at": at, "sync": sync, **record})
                self.core.flush(ticket, sync=sync)
                return
            except VoidedError:
                continue


def topic_of(state: State, name: str) -> TopicState:
    """A topic by name; TopicNotFoundError."""
    found = state.topics.get(name)
    if found is None:
        raise no_topic(name, state)
    return found


def partition_of(topic: TopicState, number: int) -> PartitionState:
    """A partition by number; UsageError."""
    if not 0 <= number < len(topic.partitions):
        raise UsageError(
            f"topic {topic.definition.name!r} has no partition {number}",
            hint=f"its partitions are 0 to {len(topic.partitions) - 1}",
        )
    return topic.partitions[number]
