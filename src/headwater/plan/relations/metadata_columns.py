"""Metadata columns of the records of a topic: selected by name, and no part of `*`.

They describe the kind of a record (`_op`) and its position and time in the log. In a keyed topic's current table they are
those of the current record of each key. They are read from the log only for queries that name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import CAPTURED, TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.core.types import TIMESTAMP
from headwater.log.protocol import Log
from headwater.sql.duckdb.from_clause import HIDDEN
from headwater.sql.lexer import words_of
from headwater.sql.system_time import VERSIONS

READABLE = pa.schema(
    [
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_appended_at", TIMESTAMP),
        ("_op", pa.string()),
        (FORGOTTEN, pa.bool_()),
    ]
)
"""All metadata columns of records; a topic without a key has no `_op`, and a topic without private columns no `_forgotten`."""
WATERMARK = "_watermark"
"""The watermark at the arrival of a record; for the engine only."""
EVERY = pa.schema([*READABLE, *CAPTURED, (WATERMARK, TIMESTAMP)])
"""All metadata columns: those that queries can name, including those of captured topics, and the engine's `_watermark`."""
_RECORDS = "._records"
_CHANGELOG = ".changelog"
POSITION = ("_partition", "_offset", "_appended_at")
"""The metadata columns that identify a record."""
VERSIONED = pa.schema([("_valid_from", TIMESTAMP), ("_valid_to", TIMESTAMP), ("_version", pa.string())])
"""The additional metadata columns of row versions: the half-open interval of validity, and the permanent ID of the version."""


def hidden_schema(topic: TopicDefinition) -> pa.Schema:
    """Return the metadata columns of a topic that queries can name."""
    return hidden_fields(topic, [*READABLE.names, *CAPTURED.names])


def hidden_among(words: Iterable[str]) -> tuple[str, ...]:
    """Return the metadata columns that occur among the words of a query, in any case."""
    folded = {word.lower() for word in words}
    return tuple(name for name in EVERY.names if name in folded and name != WATERMARK)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of metadata columns, including the engine's, in their canonical order."""
    wanted = set(names)
    return tuple(name for name in EVERY.names if name in wanted)


def hidden_fields(topic: TopicDefinition, names: Iterable[str]) -> pa.Schema:
    """Return metadata columns by name, including the engine's, without those that the topic does not have."""
    lacks = {*(() if topic.key else ("_op",)), *(() if topic.captured_by else CAPTURED.names)}
    lacks |= set() if topic.private else {FORGOTTEN}
    wanted = set(names) - lacks
    return pa.schema([f for f in EVERY if f.name in wanted])


def hidden_in(query: str) -> tuple[str, ...]:
    """Return the metadata columns that a query may refer to: those whose names occur in its text."""
    return hidden_among(word.text for word in words_of(query) if word.is_name) if "_" in query else ()


def table_with_hidden(topic: str) -> str:
    """Return the name of the collection that keeps a keyed topic's table with metadata columns: no topic can have this
    name."""
    return f"{topic}{_RECORDS}"


def versions_of(topic: str) -> str:
    """Return the name of the relation of all versions of a keyed topic's rows, and of the collection that keeps it."""
    return f"{topic}.{VERSIONS}"


def is_versions(name: str) -> bool:
    """Whether a name is that of the versions of a topic."""
    return name.endswith(f".{VERSIONS}")


def changelog_of(topic: str) -> str:
    """Return the name of the relation of all records of a keyed topic, including tombstones, with the watermark of their
    arrival."""
    return f"{topic}{_CHANGELOG}"


def is_changelog(name: str) -> bool:
    """Whether a name is that of the records of a keyed topic."""
    return name.endswith(_CHANGELOG)


def table_topic(unit: str) -> str:
    """Return the topic of a collection: its table with or without metadata columns, its row versions, or its records."""
    return unit.removesuffix(_RECORDS).removesuffix(f".{VERSIONS}").removesuffix(_CHANGELOG)


def version_hidden(topic: TopicDefinition) -> pa.Schema:
    """Return the metadata columns of the versions of a keyed topic's rows: those of the record of each version, and the
    additional ones."""
    return pa.schema([*hidden_schema(topic), *VERSIONED])


def version_schema(topic: TopicDefinition, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of the versions of a topic's rows: all or the given columns of the topic, then the marked metadata
    columns."""
    own = topic.schema if columns is None else pa.schema([topic.schema.field(name) for name in columns])
    return pa.schema([*own, *_marked(version_hidden(topic))])


def topic_schema(topic: TopicDefinition, hidden: Sequence[str]) -> pa.Schema:
    """Return the columns of a topic, followed by the given metadata columns that the topic has, which are marked."""
    return pa.schema([*topic.schema, *_marked(hidden_fields(topic, hidden))])


def every_hidden(topic: TopicDefinition) -> pa.Schema:
    """Return all metadata columns of a topic, including the engine's."""
    return hidden_fields(topic, EVERY.names)


def marked(schema: pa.Schema, topic: TopicDefinition) -> pa.Schema:
    """Return the schema of a topic's table with all columns that are not the topic's own marked as metadata columns."""
    own = set(topic.schema.names)
    return pa.schema([f if f.name in own else f.with_metadata({HIDDEN: b""}) for f in schema])


def _marked(fields: Iterable[pa.Field]) -> list[pa.Field]:
    """Mark columns as metadata columns in their field metadata, for readers of their tables."""
    return [field.with_metadata({HIDDEN: b""}) for field in fields]


def visible(schema: pa.Schema) -> list[str]:
    """Return the columns of a schema that are not marked as metadata columns."""
    return [field.name for field in schema if HIDDEN not in (field.metadata or {})]


def read_records(
    log: Log, topic: str, partition: int, span: tuple[int, int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition in a half-open span of offsets, with these columns, including metadata columns."""
    stored = [name for name in columns if name != "_partition"]
    if len(stored) == len(columns):
        yield from log.read(topic, partition, *span, stored)
        return
    for batch in log.read(topic, partition, *span, stored or ["_offset"]):
        known = pa.array(np.full(batch.num_rows, partition, np.int32))
        arrays = [known if name == "_partition" else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast records to the types of a schema; a tombstone may be NULL in columns where rows may not."""
    columns = [batch.column(field.name) for field in schema]
    columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
