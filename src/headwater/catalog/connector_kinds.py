"""The kinds of sources and sinks, one row each: the facts about a kind that do not need its libraries.

A new kind is a module and a row. The parser reads the options here, EXPLAIN the guarantee, and `headwater.sources.registry` and
`headwater.sinks.registry` load the class of a kind when one of its sources or sinks is opened. The class is named as text,
because it is in a package above this one and may need a library that is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from headwater.catalog import sink_options, source_options
from headwater.catalog.options import Option

MODES = ("upsert", "append", "changelog")


@dataclass(frozen=True)
class ConnectorKind:
    """Common facts about the sources or sinks of a kind."""

    made_by: str
    """`module:class`. The class has a class method `declared`, which creates an instance from a declaration."""
    options: tuple[Option, ...]
    """Options allowed in WITH. ALTER may change the settable ones while the connector continues from its position; the others
    define its identity."""

    def load(self) -> Any:
        """Return the class of the kind."""
        module, _, name = self.made_by.partition(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class SourceKind(ConnectorKind):
    """A kind of source. The first of its options is required."""

    guarantee: str
    """Guarantee of the kind, in a sentence for EXPLAIN."""
    extra: str | None = None
    """Extra of the package with the libraries of the kind; None without one."""
    rows: Literal["read", "received", "handed over"] = "read"
    """How rows arrive: 'read' by the source; 'received' while it listens, with no backlog to catch up; or 'handed over',
    written by the HTTP server that gets them."""
    positions: Literal["time", "lsn"] = "time"
    """Meaning of a position for users."""


@dataclass(frozen=True)
class SinkKind(ConnectorKind):
    """A kind of sink. Its guarantee is in its class."""

    modes: tuple[str, ...] = MODES
    """Modes in which it takes changes; the first is the default for `mode`."""
    extra: str | None = None
    """Extra of the package with the libraries of the kind; None without one."""
    readable: bool = True
    """Whether the target's content can be read back, and so be compared with its view. Otherwise its checkpoint is in the
    log."""


SOURCE_KINDS: Mapping[str, SourceKind] = {
    "postgres": SourceKind(
        made_by="headwater.sources.postgres.postgres_source:PostgresSource",
        options=source_options.POSTGRES,
        guarantee="exactly once: a transaction is one append, with its position in the server's log in the same commit",
        extra="postgres",
        positions="lsn",
    ),
    "files": SourceKind(
        made_by="headwater.sources.files.files_source:FilesSource",
        options=source_options.FILES,
        guarantee="exactly once: every whole line once, with how far each file was read in the same commit",
    ),
    "python": SourceKind(
        made_by="headwater.sources.python_source:PythonSource",
        options=source_options.PYTHON,
        guarantee="exactly once, if what it reads can be read again from a position: rows and position are one commit",
    ),
    "webhook": SourceKind(
        made_by="headwater.sources.webhook_source:WebhookSource",
        options=source_options.WEBHOOK,
        guarantee="exactly once, if the sender retries: a delivery's row and id are one commit, durable when it is answered",
        rows="handed over",
    ),
    "statsd": SourceKind(
        made_by="headwater.sources.statsd.statsd_source:StatsdSource",
        options=source_options.STATSD,
        guarantee="at most once: what a process had not appended when it died is lost; nothing is duplicated, and losses are counted",
        rows="received",
    ),
}
SINK_KINDS: Mapping[str, SinkKind] = {
    "postgres": SinkKind(
        made_by="headwater.sinks.postgres.target:PostgresTarget",
        options=sink_options.POSTGRES,
        extra="postgres",
    ),
    "redis": SinkKind(
        made_by="headwater.sinks.redis.target:RedisTarget",
        options=sink_options.REDIS,
        modes=("upsert",),
        extra="redis",
    ),
    "search": SinkKind(
        made_by="headwater.sinks.search.target:SearchTarget",
        options=sink_options.SEARCH,
        modes=("upsert",),
        extra="search",
    ),
    "lake": SinkKind(
        made_by="headwater.sinks.iceberg.target:LakeTarget",
        options=sink_options.LAKE,
        extra="lake",
    ),
    "parquet": SinkKind(
        made_by="headwater.sinks.parquet.target:ParquetTarget",
        options=sink_options.PARQUET,
    ),
    "topic": SinkKind(
        made_by="headwater.sinks.topic.target:TopicTarget",
        options=sink_options.TOPIC,
    ),
    "webhook": SinkKind(
        made_by="headwater.sinks.webhook.target:WebhookTarget",
        options=sink_options.WEBHOOK,
        readable=False,
    ),
    "python": SinkKind(
        made_by="headwater.sinks.python.target:PythonTarget",
        options=sink_options.PYTHON,
        readable=False,
    ),
}
