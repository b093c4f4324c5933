"""A topic beside the topic of a sink: a topic cannot be renamed, so another one is in force in the place of the one that was declared.

The new topic is called `<topic>_2`, `_3` and so on. The entry of the catalog `sink_versions` says which one is in force, and which are beside
it; what the sink was declared with stays as it was, so that the same declaration is found to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace

from headwater.catalog.connectors import SINK
from headwater.core.errors import CheckpointConflictError, ConflictError, SinkNotFoundError
from headwater.log.protocol import Entry, Log
from headwater.sinks.base.blue_green import Version, refuse_kept, refuse_moved
from headwater.sinks.base.target import SinkCheckpoint, Target

VERSIONS = "sink_versions"


@dataclass(frozen=True)
class Topics:
    """The topic that a sink was declared with, the one that it writes to, and those beside it, as far as they are named."""

    declared: str
    in_force: str
    new: str | None = None
    old: str | None = None

    def of(self, version: Version) -> str | None:
        """The topic of a version."""
        return self.new if version == "new" else self.old


def topics_of(log: Log, sink: str, declared: str) -> Topics:
    """The topics of a sink that is declared with one of them."""
    entry = log.entries(VERSIONS).get(sink)
    if entry is None or entry.document.get("declared") != declared:
        return Topics(declared, declared)
    return Topics(**entry.document)


@dataclass(frozen=True)
class TopicVersions:
    """The versions of one sink's topic, which is declared as `topic`. `make` gives a topic as the target of a version."""

    sink: str
    log: Log
    topic: str
    make: Callable[[str, Version], Target]
    stand: Callable[[str], SinkCheckpoint | None]

    def there(self) -> Collection[Version]:
        """See `Versions`."""
        both: tuple[Version, Version] = ("new", "old")
        topics, named = self.log.topics(), self._topics()
        return [v for v in both if (name := named.of(v)) is not None and name in topics]

    def beside(self, version: Version) -> Target:
        """See `Versions`; the name of a new one is decided, and written down, here."""
        topics, entry = self._topics(), self._entry()
        name = topics.of(version)
        if name is None:
            name = self._free()
            self._put(replace(topics, new=name), entry)
        return self.make(name, version)

    def switch(self, version: Version, stand: SinkCheckpoint) -> None:
        """One commit: the other topic is in force."""
        entry = self._entry()
        topics = self._topics()
        name = topics.of(version)
        if self.sink not in self.log.entries(SINK):
            raise SinkNotFoundError(f"there is no sink {self.sink!r} any more", sink=self.sink)
        if name is None:
            raise CheckpointConflictError(f"sink {self.sink!r} has no {version} version any more", found=None)
        if version == "new" and topics.old is not None:
            refuse_kept(self.sink, self.named("old"))
        refuse_moved(self.sink, stand, self.stand(name), self.stand(topics.in_force))
        new = None if version == "new" else topics.new
        self._put(replace(topics, in_force=name, new=new, old=topics.in_force), entry)

    def drop(self, version: Version) -> None:
        """The topic, then what names it."""
        entry = self._entry()
        topics = self._topics()
        name = topics.of(version)
        if name is not None:
            if name in self.log.topics():
                self.log.drop_topic(name)
            self._put(replace(topics, new=None) if version == "new" else replace(topics, old=None), entry)

    def named(self, version: Version) -> str:
        """See `Versions`."""
        topics = self._topics()
        return f"topic {topics.of(version) or topics.in_force}"

    def _topics(self) -> Topics:
        return topics_of(self.log, self.sink, self.topic)

    def _entry(self) -> Entry | None:
        return self.log.entries(VERSIONS).get(self.sink)

    def _put(self, topics: Topics, was: Entry | None) -> None:
        try:
            expect = None if was is None else was.sequence
            self.log.put_entry(VERSIONS, self.sink, asdict(topics), expect=expect)
        except ConflictError as error:
            raise CheckpointConflictError(
                f"another process changes the versions of sink {self.sink!r}", found=None
            ) from error

    def _free(self) -> str:
        number = 2
        while (name := f"{self.topic}_{number}") in self.log.topics() or name in self.log.entries("view"):
            number += 1
        return name
