"""The opened folder that the modules of the embedded log share: journal, segment reader, clock and keys."""

from __future__ import annotations

from headwater.core.clock import Clock
from headwater.core.errors import UsageError
from headwater.core.names import canonical_name
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.core.trusted_clock import TrustedClock
from headwater.log.embedded.commit import Change, Core
from headwater.log.embedded.journal.journal_file import Record
from headwater.log.embedded.journal.journal_state import JournalState, PartitionState, TopicState
from headwater.log.embedded.segments.segment_reader import SegmentReader
from headwater.log.topic_names import no_topic
from headwater.privacy.subject_keys import SubjectKeys


class LogFolder:
    """The opened folder of a workspace: its journal and segments, with the clock and the keys that belong to them."""

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock, keys: SubjectKeys) -> None:
        self.storage = storage
        self.settings = settings
        self.open(clock, keys)

    def open(self, clock: Clock, keys: SubjectKeys) -> None:
        """Open journal and segments with handles and locks of this process; called again in a forked child."""
        self.keys = keys
        self.core = Core(self.storage, self.settings, clock)
        self.journal = self.core.journal
        self.clock: TrustedClock = self.journal.clock
        self.reader = SegmentReader(self.storage)

    def change(self, change: Change) -> Record | None:
        """Commit the record that `change(state)` returns under the lock, with the durability of the workspace."""
        return self.core.change(change, sync=self.settings.durability != "os")


def topic_of(state: JournalState, name: str) -> TopicState:
    """Return a topic by name, in any case; TopicNotFoundError."""
    found = state.topics.get(canonical_topic(state, name))
    if found is None:
        raise no_topic(name, state.topics)
    return found


def canonical_topic(state: JournalState, name: str) -> str:
    """Return a topic's name as it is declared; unchanged if there is no such topic."""
    return canonical_name(state.topics, name) or name


def partition_of(topic: TopicState, number: int) -> PartitionState:
    """Return a partition by number; UsageError."""
    if not 0 <= number < len(topic.partitions):
        raise UsageError(
            f"topic {topic.definition.name!r} has no partition {number}",
            hint=f"its partitions are 0 to {len(topic.partitions) - 1}",
            topic=topic.definition.name,
            partition=number,
        )
    return topic.partitions[number]
