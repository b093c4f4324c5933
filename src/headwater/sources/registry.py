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
"""Where indexes of the keys of captured topics are, beside what is for a moment only."""


HANDED_OVER = frozenset(name for name, kind in SOURCE_KINDS.items() if kind.rows == "handed over")
"""Kinds that nobody reads: who serves HTTP is handed their rows, and writes them."""
LISTENING = frozenset(name for name, kind in SOURCE_KINDS.items() if kind.rows != "read")
"""Kinds that are sent to: there is nothing to catch up with while nobody listens."""


class DeclaredSource(RowSource, Protocol):
    """A source that can be declared in SQL."""

    def check(self) -> list[TopicDefinition]:
        """See that it can be captured, and say which topics it fills, as they are to be now; raises what is wrong."""
        ...

    def drop(self) -> None:
        """Remove what was made for it outside."""
        ...


def open_source(made: SourceDefinition, log: Log, folder: Path) -> DeclaredSource:
    """A source, not connected yet; `folder` is for what does not fit in memory."""
    kind = SOURCE_KINDS.get(made.kind)
    if kind is None:
        raise UsageError(f"this version of Headwater has no sources of kind {made.kind!r}")
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
