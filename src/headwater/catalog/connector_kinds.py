"""The kinds of sources and sinks, a row each: what is known of a kind without the libraries that it needs.

A new kind is a module and a row. The parser reads the options here, EXPLAIN the guarantee, and `headwater.sources.registry`
and `headwater.sinks.registry` load the class of a kind when one of its sources or sinks is opened. The class is named as
text, because it lies in a package above this one and may need a library that is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

MODES = ("upsert", "append", "changelog")


@dataclass(frozen=True)
class ConnectorKind:
    """What sources and sinks of a kind have in common."""

    made_by: str
    """`module:class`. The class makes one from its declaration in a class method `declared`."""
    options: tuple[str, ...]
    """What WITH may say."""
    settable: tuple[str, ...]
    """The options that ALTER may change, where it is to go on from where it is. The others say what it is."""

    def load(self) -> Any:
        """The class that it is made by."""
        module, _, name = self.made_by.partition(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class SourceKind(ConnectorKind):
    """A kind of source. The first of its options is the one that it cannot do without."""

    guarantee: str
    """What is promised of it, in a sentence for EXPLAIN."""
    extra: str | None = None
    """The extra of the package that brings its libraries."""
    rows: Literal["read", "received", "handed over"] = "read"
    """How its rows come: they are asked for; they are sent while it listens, and there is nothing to catch up with; or nobody
    reads them, and who serves HTTP writes what it is given."""
    positions: Literal["time", "lsn"] = "time"
    """What a position is to its users."""


@dataclass(frozen=True)
class SinkKind(ConnectorKind):
    """A kind of sink. Its class says what is promised of it."""

    modes: tuple[str, ...] = MODES
    """How it takes changes; the first is the one it takes them in unless `mode` says another."""
    extra: str | None = None
    """The extra of the package that brings its libraries."""
    readable: bool = True
    """Whether what it holds can be read back, and so be compared with its view. Where it cannot, its checkpoint is in the log."""


SOURCE_KINDS: Mapping[str, SourceKind] = {
    "postgres": SourceKind(
        made_by="headwater.sources.postgres.postgres_source:PostgresSource",
        options=(
            "url",
            "tables",
            "slot",
            "publication",
            "snapshot",
            "failover",
            "max_wal",
            "over_wal",
            "on_gap",
            "outbox",
            "outbox_prefix",
            "chunk_rows",
            "types",
        ),
        settable=("url", "tables", "max_wal", "over_wal", "on_gap", "chunk_rows", "types"),
        guarantee="exactly once: a transaction is one append, with its position in the server's log in the same commit",
        extra="postgres",
        positions="lsn",
    ),
    "files": SourceKind(
        made_by="headwater.sources.files.files_source:FilesSource",
        options=(
            "path",
            "topic",
            "format",
            "columns",
            "key",
            "pattern",
            "header",
            "delimiter",
            "null",
            "multiline",
            "time_format",
            "extra",
            "on_error",
            "settle",
        ),
        settable=("path", "null", "time_format", "extra", "on_error", "settle"),
        guarantee="exactly once: every whole line once, with how far each file was read in the same commit",
    ),
    "python": SourceKind(
        made_by="headwater.sources.python_source:PythonSource",
        options=("class", "options", "every"),
        settable=("options", "every"),
        guarantee="exactly once, as far as what it reads can be read again from a position: rows and position are one commit",
    ),
    "webhook": SourceKind(
        made_by="headwater.sources.webhook_source:WebhookSource",
        options=(
            "secret",
            "previous_secret",
            "scheme",
            "topic",
            "columns",
            "paths",
            "tolerance",
            "max_body",
        ),
        settable=("secret", "previous_secret", "columns", "paths", "tolerance", "max_body"),
        guarantee="exactly once, as far as its sender tries again: a delivery's row and id are one commit, durable when it is "
        "answered",
        rows="handed over",
    ),
    "statsd": SourceKind(
        made_by="headwater.sources.statsd.statsd_source:StatsdSource",
        options=("port", "topic", "host", "every", "rows", "receive_buffer", "lateness"),
        settable=("port", "host", "every", "rows", "receive_buffer"),
        guarantee="at most once: what was not yet appended when a process dies is gone, and nothing is there twice; losses are "
        "counted",
        rows="received",
    ),
}
SINK_KINDS: Mapping[str, SinkKind] = {
    "postgres": SinkKind(
        made_by="headwater.sinks.postgres.target:PostgresTarget",
        options=("url", "table", "key", "mode", "adopt", "on_error"),
        settable=("url", "on_error"),
        extra="postgres",
    ),
    "redis": SinkKind(
        made_by="headwater.sinks.redis.target:RedisTarget",
        options=("url", "key", "as", "prefix", "score", "member", "adopt", "on_error"),
        settable=("url", "on_error"),
        modes=("upsert",),
        extra="redis",
    ),
    "search": SinkKind(
        made_by="headwater.sinks.search.target:SearchTarget",
        options=("path", "key", "text", "language", "accents", "adopt", "on_error"),
        settable=("on_error",),
        modes=("upsert",),
        extra="search",
    ),
    "lake": SinkKind(
        made_by="headwater.sinks.iceberg.target:LakeTarget",
        options=(
            "warehouse",
            "table",
            "key",
            "mode",
            "catalog",
            "file_rows",
            "snapshots",
            "adopt",
            "on_error",
        ),
        settable=("catalog", "file_rows", "snapshots", "on_error"),
        extra="lake",
    ),
    "parquet": SinkKind(
        made_by="headwater.sinks.parquet.target:ParquetTarget",
        options=("path", "key", "mode", "adopt", "on_error"),
        settable=("on_error",),
    ),
    "topic": SinkKind(
        made_by="headwater.sinks.topic.target:TopicTarget",
        options=("topic", "key", "mode", "partitions", "durability", "cleanup", "adopt", "on_error"),
        settable=("on_error",),
    ),
    "webhook": SinkKind(
        made_by="headwater.sinks.webhook.target:WebhookTarget",
        options=(
            "url",
            "key",
            "mode",
            "secret",
            "previous_secret",
            "token",
            "timeout",
            "rows",
            "open_after",
            "open_for",
            "on_error",
        ),
        settable=(
            "secret",
            "previous_secret",
            "token",
            "timeout",
            "rows",
            "open_after",
            "open_for",
            "on_error",
        ),
        readable=False,
    ),
    "python": SinkKind(
        made_by="headwater.sinks.python.target:PythonTarget",
        options=("function", "key", "mode", "rows", "on_error"),
        settable=("rows", "on_error"),
        readable=False,
    ),
}
