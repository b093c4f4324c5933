"""What the sides of the embedded log share: the journal, the reader of segments, and how to commit one record."""

from __future__ import annotations

from headwater.clock import Clock
from headwater.errors import UsageError
from headwater.keys import Keys
from headwater.log.embedded.core import Change, Core
from headwater.log.embedded.journal import Record
from headwater.log.embedded.segments import SegmentReader
from headwater.log.embedded.state import PartitionState, State, TopicState
from headwater.log.names import no_topic
from headwater.settings import LogSettings
from headwater.spelling import spelling
from headwater.storage import Storage


class LogPart:
    """The base of each side."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock, keys: Keys) -> None:
        self.keys = keys
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self.core = Core(storage, settings, clock)
        self.reader = SegmentReader(storage)

    def _change(self, change: Change) -> Record | None:
        """Commit one record that `change(state)` makes under the lock, durably as the workspace asks."""
        return self.core.change(change, sync=self.settings.durability != "os")


def topic_of(state: State, name: str) -> TopicState:
    """A topic by name, in any case; TopicNotFoundError."""
    found = state.topics.get(spelled(state, name))
    if found is None:
        raise no_topic(name, state.topics)
    return found


def spelled(state: State, name: str) -> str:
    """A topic's name as it is declared; as it is written if there is no such topic."""
    return spelling(state.topics, name) or name


def partition_of(topic: TopicState, number: int) -> PartitionState:
    """A partition by number; UsageError."""
    if not 0 <= number < len(topic.partitions):
        raise UsageError(
            f"topic {topic.definition.name!r} has no partition {number}",
            hint=f"its partitions are 0 to {len(topic.partitions) - 1}",
        )
    return topic.partitions[number]
