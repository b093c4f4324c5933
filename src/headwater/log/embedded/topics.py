"""The topics of the embedded log: created, altered, replaced and dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import ConflictError
from headwater.core.names import Named
from headwater.log.embedded.base import LogFolder, topic_of
from headwater.log.embedded.journal.file_names import TOPIC_FILES
from headwater.log.embedded.journal.journal_state import JournalState, TopicState
from headwater.log.topic_names import check_topic_name


class LogTopics:
    """Implements the methods of `headwater.log.protocol.Log` for topics."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder
        self._read: tuple[object, Mapping[str, TopicDefinition]] = None, {}
        """The topics, with their version: every tick reads them several times, and they rarely change."""

    def topics(self) -> Mapping[str, TopicDefinition]:
        """See `Log.topics`."""
        journal = self._folder.journal
        with journal.mutex:
            journal.refresh()
            if self._read[0] is not journal.topics_version:
                topics = sorted(journal.state.topics.items())
                found = Named({name: topic.definition for name, topic in topics})
                self._read = journal.topics_version, found
            return self._read[1]

    def topic(self, name: str) -> TopicDefinition:
        """See `Log.topic`."""
        self._folder.journal.refresh()
        return topic_of(self._folder.journal.state, name).definition

    def create_topic(self, definition: TopicDefinition) -> None:
        """See `Log.create_topic`."""

        def change(state: JournalState) -> dict[str, Any]:
            check_topic_name(definition.name, state.topics, state.entries)
            self.make_folder(definition.name, state.next_id)
            return _topic_record(state.next_id, definition)

        self._folder.change(change)

    def alter_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See `Log.alter_topic`."""

        def change(state: JournalState) -> dict[str, Any]:
            topic = topic_of(state, old.name)
            if topic.definition != old:
                raise ConflictError(
                    f"topic {old.name!r} was altered by another process",
                    hint="read its definition again, then alter it",
                    topic=old.name,
                    expected=old,
                    actual=topic.definition,
                )
            return _topic_record(topic.id, new)

        self._folder.change(change)

    def replace_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See `Log.replace_topic`."""
        replaced: list[TopicState] = []

        def change(state: JournalState) -> dict[str, Any]:
            topic = topic_of(state, old.name)
            read = any(name == topic.definition.name for name, _ in state.cursors)
            if topic.definition != old or read or any(p.end for p in topic.partitions):
                raise ConflictError(
                    f"topic {old.name!r} was altered, written to or read by another process",
                    hint="check it again; only a topic without records can be replaced",
                    topic=old.name,
                    expected=old,
                    actual=topic.definition,
                )
            replaced[:] = [topic]
            self.make_folder(new.name, state.next_id)
            return {**_topic_record(state.next_id, new), "drops": topic.id}

        self._folder.change(change)
        self._remove(replaced[0])

    def drop_topic(self, name: str) -> None:
        """See `Log.drop_topic`."""
        dropped: list[TopicState] = []

        def change(state: JournalState) -> dict[str, Any]:
            dropped[:] = [topic_of(state, name)]
            return {"k": "drop", "id": dropped[0].id}

        self._folder.change(change)
        self._remove(dropped[0])

    def make_folder(self, name: str, number: int) -> None:
        """Create the folder of a topic that is about to be committed."""
        folder = f"topics/{name}-{number}"
        self._folder.storage.make_dirs(folder)
        self._folder.core.segments.writable(f"{folder}/wake", 0)

    def _remove(self, topic: TopicState) -> None:
        """Delete the files of a topic that was dropped."""
        names = [s.name for p in topic.partitions for s in p.segments]
        self._folder.reader.forget(names)
        self._folder.core.segments.release([*names, f"{topic.folder}/wake"])
        self._folder.storage.remove_dir(topic.folder, TOPIC_FILES)


def _topic_record(number: int, definition: TopicDefinition) -> dict[str, Any]:
    marked = dataclasses.replace(definition, incarnation=number)
    return {"k": "topic", "id": number, "definition": marked.to_json()}
