"""Versions of a sink's topic: a topic cannot be renamed, so another topic becomes active in place of the declared one.

The staging topic is called `<topic>_2`, `_3` and so on. The catalog entry `sink_versions` names the active topic and the
other versions; the declaration of the sink stays unchanged, so that the same declaration is recognized as the same.
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
    """The topic that a sink was declared with, the active one that it writes to, and the names of the other versions, if
    any."""

    declared: str
    in_force: str
    new: str | None = None
    old: str | None = None

    def of(self, version: Version) -> str | None:
        """Return the topic of a version."""
        return self.new if version == "new" else self.old


def topics_of(log: Log, sink: str, declared: str) -> Topics:
    """Return the topics of a sink that is declared with one of them."""
    entry = log.entries(VERSIONS).get(sink)
    if entry is None or entry.document.get("declared") != declared:
        return Topics(declared, declared)
    return Topics(**entry.document)


@dataclass(frozen=True)
class TopicVersions:
    """The versions of the topic of one sink, declared as `topic`. `make` returns a topic as the target of a version."""

    sink: str
    log: Log
    topic: str
    make: Callable[[str, Version], Target]
    checkpoint: Callable[[str], SinkCheckpoint | None]

    def existing(self) -> Collection[Version]:
        """See `TargetVersions`."""
        both: tuple[Version, Version] = ("new", "old")
        topics, named = self.log.topics(), self._topics()
        return [v for v in both if (name := named.of(v)) is not None and name in topics]

    def target(self, version: Version) -> Target:
        """See `TargetVersions`. The name of a staging topic is chosen and recorded here."""
        topics, entry = self._topics(), self._entry()
        name = topics.of(version)
        if name is None:
            name = self._free()
            self._put(replace(topics, new=name), entry)
        return self.make(name, version)

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """Make the other topic active, in one commit of the catalog."""
        entry = self._entry()
        topics = self._topics()
        name = topics.of(version)
        if self.sink not in self.log.entries(SINK):
            raise SinkNotFoundError(f"sink {self.sink!r} was dropped", sink=self.sink)
        if name is None:
            raise CheckpointConflictError(
                f"the {version} version of sink {self.sink!r} was removed", found=None
            )
        if version == "new" and topics.old is not None:
            refuse_kept(self.sink, self.named("old"))
        refuse_moved(self.sink, checkpoint, self.checkpoint(name), self.checkpoint(topics.in_force))
        new = None if version == "new" else topics.new
        self._put(replace(topics, in_force=name, new=new, old=topics.in_force), entry)

    def drop(self, version: Version) -> None:
        """Remove the topic, then its entry in the catalog."""
        entry = self._entry()
        topics = self._topics()
        name = topics.of(version)
        if name is not None:
            if name in self.log.topics():
                self.log.drop_topic(name)
            self._put(replace(topics, new=None) if version == "new" else replace(topics, old=None), entry)

    def named(self, version: Version) -> str:
        """See `TargetVersions`."""
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
                f"another process changed the versions of sink {self.sink!r}", found=None
            ) from error

    def _free(self) -> str:
        number = 2
        while (name := f"{self.topic}_{number}") in self.log.topics() or name in self.log.entries("view"):
            number += 1
        return name
