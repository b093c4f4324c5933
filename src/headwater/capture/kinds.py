"""The kinds of sources: what each is made from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

from headwater.capture.capturing import producer_of
from headwater.capture.lookups import Lookups
from headwater.capture.source import Source
from headwater.catalog import TopicDefinition
from headwater.connections import SourceDefinition
from headwater.errors import UsageError
from headwater.log.protocol import Log

KEYS = "keys"
"""Where indexes of the keys of captured topics are, beside what is for a moment only."""


HANDED_OVER = frozenset({"webhook"})
"""Kinds that nobody reads: who serves HTTP is handed their rows, and writes them."""
LISTENING = frozenset({"webhook", "statsd"})
"""Kinds that are sent to: there is nothing to catch up with while nobody listens."""


class DeclaredSource(Source, Protocol):
    """A source that can be declared in SQL."""

    def check(self) -> list[TopicDefinition]:
        """See that it can be captured, and say which topics it fills, as they are to be now; raises what is wrong."""
        ...

    def drop(self) -> None:
        """Remove what was made for it outside."""
        ...


def open_source(made: SourceDefinition, log: Log, folder: Path) -> DeclaredSource:
    """A source, not connected yet; `folder` is for what does not fit in memory."""
    options = made.resolved()
    standing = partial(log.producer, producer_of(made.name, made.generation))
    if made.kind == "postgres":
        from headwater.capture.postgres.source import PostgresSource

        return PostgresSource(made.name, options, Lookups(log, folder.parent / KEYS), folder)
    if made.kind == "files":
        from headwater.capture.files.source import FilesSource

        return FilesSource(made.name, options, Lookups(log).definition, standing)
    if made.kind == "python":
        from headwater.capture.python import PythonSource

        return PythonSource(made.name, options, Lookups(log).definition, standing)
    if made.kind == "webhook":
        from headwater.capture.webhook import WebhookSource

        return WebhookSource(made.name, options)
    if made.kind == "statsd":
        from headwater.capture.statsd.source import StatsdSource

        return StatsdSource(made.name, options, Lookups(log).definition, standing)
    raise UsageError(f"this version of Headwater has no sources of kind {made.kind!r}")
