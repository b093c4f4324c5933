"""The kinds of sources: each is opened by the class that its row in `headwater.catalog.connector_kinds` names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol, cast

from headwater.catalog.connector_kinds import SOURCE_KINDS
from headwater.catalog.connectors import SourceDefinition
from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import UsageError
from headwater.core.extras import require
from headwater.log.protocol import Log
from headwater.sources.base import RowSource
from headwater.sources.log_lookup import Lookups
from headwater.sources.source_runner import producer_of
from headwater.sources.source_setup import SourceSetup

KEYS = "keys"
"""Folder of the key indexes of captured topics, next to the folders for temporary data."""


HANDED_OVER = frozenset(name for name, kind in SOURCE_KINDS.items() if kind.rows == "handed over")
"""Kinds whose rows the HTTP server receives and writes; no process reads them."""
LISTENING = frozenset(name for name, kind in SOURCE_KINDS.items() if kind.rows != "read")
"""Kinds that receive pushed data: there is no backlog to read, because data sent while no process listens is lost."""


class DeclaredSource(RowSource, Protocol):
    """A source that can be declared in SQL."""

    def check(self) -> list[TopicDefinition]:
        """Check that the source can be captured; returns the topics that it fills, with their current columns. Raises the
        problem found."""
        ...

    def drop(self) -> None:
        """Remove what was created for the source in the external system."""
        ...


def open_source(made: SourceDefinition, log: Log, folder: Path) -> DeclaredSource:
    """Return a source, not yet connected. `folder` is for temporary data that does not fit in memory."""
    kind = SOURCE_KINDS.get(made.kind)
    if kind is None:
        raise UsageError(
            f"this version of Headwater has no sources of kind {made.kind!r}",
            hint="upgrade Headwater",
            source=made.name,
            kind=made.kind,
        )
    options = made.resolved()
    if kind.extra is not None:
        require(kind.extra, f"source {made.name!r} from {made.kind.capitalize()}")
    setup = SourceSetup(
        made.name,
        options,
        made.generation,
        Lookups(log, folder.parent / KEYS),
        partial(log.producer, producer_of(made.name, made.generation)),
        folder,
    )
    return cast(DeclaredSource, kind.load().declared(setup))
