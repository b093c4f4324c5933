"""The columns that a record of a topic has besides its own: found by their names, and no part of `*`.

What a record is (`_op`) and where and when it came into the log. In a keyed topic's current table they are those of the
record that is current. They are read from the log only for who names them.
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
"""All of them; a topic without a key has no `_op`, and one without private columns no `_forgotten`."""
WATERMARK = "_watermark"
"""The watermark that a record met: for the engine alone."""
EVERY = pa.schema([*READABLE, *CAPTURED, (WATERMARK, TIMESTAMP)])
"""Those that can be named, those of captured topics among them, and that one."""
_RECORDS = "._records"
_CHANGELOG = ".changelog"
POSITION = ("_partition", "_offset", "_appended_at")
"""Those that say which record it is."""
VERSIONED = pa.schema([("_valid_from", TIMESTAMP), ("_valid_to", TIMESTAMP), ("_version", pa.string())])
"""Those that a version of a row has besides: when it was valid, half open, and what it is known by for ever."""


def hidden_schema(topic: TopicDefinition) -> pa.Schema:
    """The hidden columns that a topic has."""
    return hidden_fields(topic, [*READABLE.names, *CAPTURED.names])


def hidden_among(words: Iterable[str]) -> tuple[str, ...]:
    """Which hidden columns are among the words of a query, in any case."""
    folded = {word.lower() for word in words}
    return tuple(name for name in EVERY.names if name in folded and name != WATERMARK)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of hidden columns, those of the engine too, in the order that they always have."""
    wanted = set(names)
    return tuple(name for name in EVERY.names if name in wanted)


def hidden_fields(topic: TopicDefinition, names: Iterable[str]) -> pa.Schema:
    """Hidden columns of a topic by name, those of the engine too, as far as it has them."""
    lacks = {*(() if topic.key else ("_op",)), *(() if topic.captured_by else CAPTURED.names)}
    lacks |= set() if topic.private else {FORGOTTEN}
    wanted = set(names) - lacks
    return pa.schema([f for f in EVERY if f.name in wanted])


def hidden_in(query: str) -> tuple[str, ...]:
    """Which hidden columns a query may mean: the names that stand in its text."""
    return hidden_among(word.text for word in words_of(query) if word.is_name) if "_" in query else ()


def table_with_hidden(topic: str) -> str:
    """The name of the unit that keeps a keyed topic's table with its hidden columns: a name that no topic can have."""
    return f"{topic}{_RECORDS}"


def versions_of(topic: str) -> str:
    """The name of the relation of all versions of a keyed topic's rows, and of the unit that keeps it."""
    return f"{topic}.{VERSIONS}"


def is_versions(name: str) -> bool:
    """Whether a name is that of the versions of a topic."""
    return name.endswith(f".{VERSIONS}")


def changelog_of(topic: str) -> str:
    """The name of the relation of all records of a keyed topic, tombstones too, with the watermark that each met."""
    return f"{topic}{_CHANGELOG}"


def is_changelog(name: str) -> bool:
    """Whether a name is that of the records of a keyed topic."""
    return name.endswith(_CHANGELOG)


def table_topic(unit: str) -> str:
    """The topic whose table a unit keeps, with hidden columns or without, or all versions of its rows, or its records."""
    return unit.removesuffix(_RECORDS).removesuffix(f".{VERSIONS}").removesuffix(_CHANGELOG)


def version_hidden(topic: TopicDefinition) -> pa.Schema:
    """The hidden columns that versions of a keyed topic's rows have: those of the record that each is, and their own."""
    return pa.schema([*hidden_schema(topic), *VERSIONED])


def version_schema(topic: TopicDefinition, columns: Sequence[str] | None = None) -> pa.Schema:
    """The columns of the versions of a topic's rows, or these of them, and after them all hidden ones, marked."""
    own = topic.schema if columns is None else pa.schema([topic.schema.field(name) for name in columns])
    return pa.schema([*own, *_marked(version_hidden(topic))])


def topic_schema(topic: TopicDefinition, hidden: Sequence[str]) -> pa.Schema:
    """The columns of a topic, and after them these hidden ones, as far as it has them, marked."""
    return pa.schema([*topic.schema, *_marked(hidden_fields(topic, hidden))])


def every_hidden(topic: TopicDefinition) -> pa.Schema:
    """All hidden columns of a topic, that of the engine too."""
    return hidden_fields(topic, EVERY.names)


def marked(schema: pa.Schema, topic: TopicDefinition) -> pa.Schema:
    """The columns of a topic's table, of which those that are not its own are known as hidden."""
    own = set(topic.schema.names)
    return pa.schema([f if f.name in own else f.with_metadata({HIDDEN: b""}) for f in schema])


def _marked(fields: Iterable[pa.Field]) -> list[pa.Field]:
    """Columns that are known as hidden to those who read their tables."""
    return [field.with_metadata({HIDDEN: b""}) for field in fields]


def visible(schema: pa.Schema) -> list[str]:
    """The columns of a schema that are not marked as hidden."""
    return [field.name for field in schema if HIDDEN not in (field.metadata or {})]


def read_records(
    log: Log, topic: str, partition: int, span: tuple[int, int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of a partition in a half-open span of offsets, with these columns, hidden ones among them."""
    stored = [name for name in columns if name != "_partition"]
    if len(stored) == len(columns):
        yield from log.read(topic, partition, *span, stored)
        return
    for batch in log.read(topic, partition, *span, stored or ["_offset"]):
        known = pa.array(np.full(batch.num_rows, partition, np.int32))
        arrays = [known if name == "_partition" else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Records with the types of a schema, in which a tombstone may lack what no row may."""
    columns = [batch.column(field.name) for field in schema]
    columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
