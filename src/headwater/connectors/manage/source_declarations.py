"""The declared sources, and the topics that they fill."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.catalog.connectors import SOURCE, SourceDefinition, altered
from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.definitions import difference as topic_difference
from headwater.connectors.manage.declarations import ConnectorDeclarations
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.errors import (
    HeadwaterError,
    SourceError,
    SourceExistsError,
    SourceNotFoundError,
    UsageError,
)
from headwater.log.protocol import Entry, Log
from headwater.sources.base import SelfRestarting
from headwater.sources.registry import DeclaredSource, open_source
from headwater.sources.source_faults import KIND, clear_all
from headwater.sources.source_runner import producer_of
from headwater.sql.statements import CreateSource, SetSource

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

_CHECKED_OPTIONS = {"url", "tables", "types", "path", "columns"}
"""Options that are tried by connecting before they are set."""
SPILL = "staging"
"""Folder in the workspace for data that a source cannot hold in memory."""


class SourceDeclarations:
    """The declared sources of a workspace. A source is connected to when its declaration is checked."""

    def __init__(self, log: Log, root: Path, views: Callable[[], Views]) -> None:
        self._log = log
        self._root = root
        self._views = views
        self.entries = ConnectorDeclarations(
            log, SOURCE, SourceDefinition.from_document, SourceExistsError, SourceNotFoundError
        )

    def open(self, made: SourceDefinition) -> DeclaredSource:
        """Return the source of a declaration, not connected yet."""
        return open_source(made, self._log, self._root / SPILL)

    def create(self, statement: CreateSource) -> None:
        """CREATE SOURCE: connect, check that the source can be captured, and create its topics, so that views may read them
        at once."""
        if not self.entries.is_new(statement):
            return
        made = statement.definition
        source = self.open(made)
        try:
            topics = source.check()
        finally:
            source.close()
        self._fill(made.name, topics)
        self.entries.put(replace(made, generation=self._generation(made.name)))
        clear_all(self._log.faults, made.name)

    def _fill(self, name: str, topics: Sequence[TopicDefinition]) -> None:
        """Create the topics of a source, or add its columns to existing ones."""
        for topic in topics:
            self._refuse_other(name, topic)
        for topic in topics:
            define(self._log, self._views, topic)

    def _generation(self, name: str) -> int:
        """Return the generation of the replaced source, or an unused one, since a dropped source of the name may have used
        others."""
        entry = self._log.entries(SOURCE).get(name)
        if entry is not None:
            return self.entries.read(entry).generation
        return next(g for g in itertools.count() if self._log.producer(producer_of(name, g)) is None)

    def _refuse_other(self, name: str, topic: TopicDefinition) -> None:
        existing = self._log.topics().get(topic.name)
        if existing is None or existing.captured_by == name:
            return
        whose = f"source {existing.captured_by!r}" if existing.captured_by else "other programs"
        raise UsageError(
            f"source {name!r} cannot fill topic {topic.name!r}, which exists and is filled by {whose}",
            detail="\n    ".join(topic_difference(existing, topic)),
            hint=f"name another topic, such as {name}_{topic.name}: tables = '... AS ...', or topic = '...'",
            topic=topic.name,
            source=name,
        )

    def drop(self, entry: Entry) -> None:
        """DROP SOURCE: remove what the source created in the external system; its topics stay, without a writer."""
        source = self.open(self.entries.read(entry))
        try:
            source.drop()
        finally:
            source.close()
        self._log.drop_entry(SOURCE, entry.name, expect=entry.sequence)
        clear_all(self._log.faults, entry.name)

    def set(self, statement: SetSource) -> None:
        """ALTER SOURCE ... SET: the process that reads the source, this one or another, restarts it with these options from
        its position."""
        entry = self.entries.entry(statement.name)
        was = self.entries.read(entry)
        made = altered(was, statement.options)
        if made == was:
            return
        source = self.open(made)
        try:
            topics = source.check() if _CHECKED_OPTIONS & set(statement.options) else []
        finally:
            source.close()
        self._fill(made.name, topics)
        self.entries.put(made, entry)
        # its stopped tables stay stopped until they are read again
        self._log.faults.clear(KIND, made.name)

    def restart(self, entry: Entry) -> None:
        """Create the external objects of a source again, and read everything from the start. Until then the topics stay
        unchanged."""
        name, made = entry.name, self.entries.read(entry)
        source = self.open(made)
        try:
            source.drop()
            source.check()
        finally:
            source.close()
        self.entries.put(replace(made, generation=made.generation + 1), entry)
        clear_all(self._log.faults, name)

    def restarts_itself(self, entry: Entry, error: HeadwaterError) -> bool:
        """Whether a source that stopped with an error is to be restarted automatically, according to its `on_gap`."""
        made = self.entries.read(entry)
        known = self._log.producer(producer_of(made.name, made.generation))
        if not isinstance(error, SourceError) or known is None or known.sequence < 0:
            return False
        source = self.open(made)
        return isinstance(source, SelfRestarting) and source.restarts(error)
