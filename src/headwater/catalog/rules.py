"""Validation rules for topic definitions, applied at creation and after every change.

Only the rules; the definition is in `headwater.catalog.definitions`, rules about time in `headwater.catalog.time_options`.
"""

from __future__ import annotations

import re
from typing import Literal, Protocol, get_args

import pyarrow as pa

from headwater.catalog.time_options import TimedTopic, check_time
from headwater.core.clock import Microseconds
from headwater.core.errors import SchemaError
from headwater.core.settings import DURABILITIES

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,199}\Z")
DEAD = "dead"
"""Part after the dot of the only kind of topic with a dot in its name: the dead messages of a queue."""
DELETION_TOPICS = frozenset({"_forgotten", "_excised"})
"""Topics with the records of deletions."""
_SYSTEM_TOPICS = DELETION_TOPICS | {"_dead", "_alerts", "_claims", "_answers", "_replies"}
METADATA_COLUMNS = ("_partition", "_offset", "_appended_at", "_op", "_watermark", "_sequence", "_version")
"""Metadata columns of every topic; user columns may not have these names."""
FORGOTTEN = "_forgotten"
"""Metadata column of topics with private columns: whether the key to a row's values was destroyed."""
PARTITIONS_MAX = 4096
WhenBehind = Literal["grow", "block", "refuse", "drop_oldest"]


class TopicDeclaration(TimedTopic, Protocol):
    """Fields of a topic's definition that the rules check."""

    @property
    def key(self) -> tuple[str, ...]: ...
    @property
    def partition_by(self) -> tuple[str, ...]: ...
    @property
    def versioned_by(self) -> str | None: ...
    @property
    def cleanup(self) -> str: ...
    @property
    def retention_us(self) -> Microseconds | None: ...
    @property
    def retention_bytes(self) -> int | None: ...
    @property
    def versions_for_us(self) -> Microseconds | None: ...
    @property
    def durability(self) -> str | None: ...
    @property
    def backlog_rows(self) -> int | None: ...
    @property
    def when_behind(self) -> str: ...
    @property
    def block_for_us(self) -> Microseconds | None: ...
    @property
    def schema_changes(self) -> str: ...
    @property
    def source_columns(self) -> pa.Schema: ...
    @property
    def private(self) -> tuple[tuple[str, str], ...]: ...


def is_system_topic(name: str) -> bool:
    """Whether a topic of that name is created and written by the workspace itself."""
    return name.lower() in _SYSTEM_TOPICS or name.lower().startswith("_queue_")


def check_free(name: str) -> None:
    """Raise SchemaError if the name is reserved for topics of the workspace."""
    if is_system_topic(name):
        raise SchemaError(
            f"topic name {name!r} is reserved for the workspace",
            hint="choose a name that does not begin with _",
            topic=name,
            reason="reserved-name",
        )


def check_topic(topic: TopicDeclaration) -> None:
    """Raise SchemaError if the definition of a topic is invalid."""
    names = topic.schema.names
    if not NAME.match(topic.name.removesuffix(f".{DEAD}")):
        raise SchemaError(
            f"{topic.name!r} cannot be the name of a topic",
            hint="use letters, digits and underscores, not starting with a digit",
            topic=topic.name,
            reason="invalid-name",
        )
    if not names:
        raise SchemaError(
            f"topic {topic.name!r} needs at least one column", topic=topic.name, reason="no-columns"
        )
    folded = [n.lower() for n in names]
    for name in names:
        if folded.count(name.lower()) > 1:
            raise SchemaError(
                f"topic {topic.name!r} has the column {name!r} twice (names ignore case)",
                topic=topic.name,
                column=name,
                reason="duplicate-column",
            )
        if name.lower() in (*METADATA_COLUMNS, *topic.source_columns.names):
            raise SchemaError(
                f"column {name!r} of topic {topic.name!r} has the name of a metadata column",
                hint="choose another name",
                topic=topic.name,
                column=name,
                reason="reserved-column",
            )
    if not 1 <= topic.partitions <= PARTITIONS_MAX:
        raise SchemaError(
            f"partitions of topic {topic.name!r} must be 1 to {PARTITIONS_MAX}, not {topic.partitions}",
            topic=topic.name,
            option="partitions",
            value=topic.partitions,
        )
    named = (topic.time, topic.versioned_by, topic.clock, topic.occurred, topic.sent)
    for column in (*topic.key, *topic.partition_by, *filter(None, named)):
        check_column(topic, column)
    _check_roles(topic)
    for column, subject in topic.private:
        if subject not in names:
            raise SchemaError(
                f"column {column!r} of topic {topic.name!r} cannot be PRIVATE BY ({subject}): there is no column {subject!r}",
                hint=f"its columns are {', '.join(names)}",
                topic=topic.name,
                private=column,
                reason="no-such-column",
            )
        _check_private(topic, check_column(topic, column), topic.schema.field(subject))


def _check_roles(topic: TopicDeclaration) -> None:
    name = topic.name
    for column in (*topic.key, *topic.partition_by, *filter(None, (topic.versioned_by, topic.clock))):
        if pa.types.is_nested(topic.schema.field(column).type):
            raise SchemaError(
                f"column {column!r} of topic {name!r} is nested and cannot be a key",
                hint="use a scalar column, such as an id",
                topic=name,
                column=column,
                reason="nested",
            )
    if topic.key and not set(topic.partition_by) <= set(topic.key):
        raise SchemaError(
            f"partition_by of the keyed topic {name!r} must be part of its primary key",
            detail="otherwise two records of one key could be in two partitions, with no order between them",
            hint=f"partition_by = '{', '.join(topic.key)}', or leave it out",
            topic=name,
            option="partition_by",
            reason="not-in-key",
        )
    check_time(topic)
    if topic.cleanup not in ("delete", "compact"):
        raise SchemaError(
            f"cleanup must be 'delete' or 'compact', not {topic.cleanup!r}",
            topic=name,
            option="cleanup",
            value=topic.cleanup,
        )
    if topic.versioned_by is not None:
        _check_versioned(topic)
    if topic.cleanup == "compact" and not topic.key:
        raise SchemaError(
            f"topic {name!r} cannot be compacted: it has no primary key",
            hint="add PRIMARY KEY (...), or leave cleanup out",
            topic=name,
            option="cleanup",
            reason="no-primary-key",
        )
    if topic.versions_for_us is not None and not topic.key:
        raise SchemaError(
            f"versions_for of topic {name!r} needs a primary key",
            hint="add PRIMARY KEY (...), or leave versions_for out",
            topic=name,
            option="versions_for",
            reason="no-primary-key",
        )
    if topic.durability is not None and topic.durability not in DURABILITIES:
        raise SchemaError(
            f"durability must be one of {', '.join(DURABILITIES)}, not {topic.durability!r}",
            topic=name,
            option="durability",
            value=topic.durability,
        )
    if topic.schema_changes not in ("follow", "refuse"):
        raise SchemaError(
            f"schema_changes must be 'follow' or 'refuse', not {topic.schema_changes!r}",
            hint="with 'follow' the topic takes over the table's new columns; with 'refuse' capture of the table stops",
            topic=name,
            option="schema_changes",
            value=topic.schema_changes,
        )
    _check_backlog(topic)
    if topic.retention_us is not None and topic.retention_us <= 0:
        raise SchemaError(
            f"retention of topic {name!r} must be greater than zero",
            hint="write a duration such as '7 days', or leave it out to keep everything",
            topic=name,
            option="retention",
            reason="not-positive",
        )
    if topic.retention_bytes is not None and topic.retention_bytes <= 0:
        raise SchemaError(
            f"retention_bytes of topic {name!r} must be greater than zero, not {topic.retention_bytes}",
            hint="write a size such as '10 GB', or leave it out to keep everything",
            topic=name,
            option="retention_bytes",
            reason="not-positive",
        )


def _check_backlog(topic: TopicDeclaration) -> None:
    kinds = get_args(WhenBehind)
    if topic.when_behind not in kinds:
        raise SchemaError(
            f"when_behind must be one of {', '.join(kinds)}, not {topic.when_behind!r}",
            topic=topic.name,
            option="when_behind",
            value=topic.when_behind,
        )
    if topic.when_behind != "grow" and not topic.backlog_rows:
        raise SchemaError(
            f"when_behind = {topic.when_behind!r} of topic {topic.name!r} needs the option backlog_rows",
            topic=topic.name,
            option="backlog_rows",
            reason="missing-option",
            hint=f"WITH (backlog_rows = 100000, when_behind = '{topic.when_behind}')",
        )
    if topic.when_behind == "drop_oldest" and (topic.key or topic.versioned_by):
        raise SchemaError(
            f"topic {topic.name!r} cannot drop its oldest records: it has a key, whose last record may be among them",
            hint="when_behind = 'block' or 'refuse'",
            topic=topic.name,
            option="when_behind",
            reason="has-key",
        )
    if topic.block_for_us is not None and topic.when_behind != "block":
        raise SchemaError(
            f"block_for of topic {topic.name!r} needs when_behind = 'block'",
            topic=topic.name,
            option="block_for",
            reason="missing-option",
        )


def _check_private(topic: TopicDeclaration, column: pa.Field, subject: pa.Field) -> None:
    """Raise SchemaError unless a private column is only used as a value, and its subject column is unencrypted and NOT NULL."""
    roles = {
        "key": topic.key,
        "partition": topic.routing,
        "time": (topic.time,),
        "device clock": (topic.clock, topic.occurred, topic.sent),
    }
    if subject.name in dict(topic.private):
        itself = "itself" if subject.name == column.name else "also a PRIVATE column"
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE BY ({subject.name}): that is {itself}",
            detail="the subject must still be readable when its key has been destroyed",
            hint="name a column that is not encrypted, such as a meaningless id",
            topic=topic.name,
            private=column.name,
            reason="private-subject",
        )
    for role, columns in roles.items():
        if column.name in columns:
            raise SchemaError(
                f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE: it is a {role} column",
                detail="the log needs its value, also when the key of its subject has been destroyed",
                hint="leave PRIVATE out, or use another column in its place, such as a meaningless id",
                topic=topic.name,
                private=column.name,
                role=role,
                reason="needed-by-log",
            )
    if not column.nullable:
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE and NOT NULL: it is NULL once its subject is forgotten",
            hint="leave NOT NULL out",
            topic=topic.name,
            private=column.name,
            reason="not-null",
        )
    if pa.types.is_nested(column.type):
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE: it is nested",
            hint="make its fields columns of their own, or store it as JSON in a STRING",
            topic=topic.name,
            private=column.name,
            reason="nested",
        )
    if not (pa.types.is_integer(subject.type) or pa.types.is_string(subject.type)):
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE BY ({subject.name}): "
            "a subject must be an integer or a STRING",
            topic=topic.name,
            private=column.name,
            reason="subject-type",
        )
    if subject.nullable:
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE BY ({subject.name}): "
            f"{subject.name} is nullable, and a row without a subject has no key to encrypt with",
            hint=f"declare {subject.name} NOT NULL",
            topic=topic.name,
            private=column.name,
            reason="nullable-subject",
        )
    if FORGOTTEN in (name.lower() for name in topic.schema.names):
        raise SchemaError(
            f"column {FORGOTTEN!r} of topic {topic.name!r} has the name of a metadata column of topics with private columns",
            hint="choose another name",
            topic=topic.name,
            private=column.name,
            reason="reserved-column",
        )


def _check_versioned(topic: TopicDeclaration) -> None:
    if topic.cleanup == "compact" or topic.retention_us is not None or topic.retention_bytes is not None:
        what = "compacted" if topic.cleanup == "compact" else "given a retention"
        raise SchemaError(
            f"topic {topic.name!r} is event-sourced (versioned_by = {topic.versioned_by!r}) and cannot be {what}",
            detail="every event of an aggregate is needed to rebuild it",
            hint="leave cleanup and retention out",
            topic=topic.name,
            reason="event-sourced",
        )
    if topic.routing != (topic.versioned_by,):
        raise SchemaError(
            f"topic {topic.name!r} is versioned_by {topic.versioned_by!r} and must be partitioned by the same column",
            hint=f"partition_by = '{topic.versioned_by}', or leave it out",
            topic=topic.name,
            option="partition_by",
            reason="not-versioned-by",
        )


def check_column(topic: TopicDeclaration, column: str) -> pa.Field:
    """Return a column of a topic; SchemaError if it has none of that name."""
    if column not in topic.schema.names:
        raise SchemaError(
            f"topic {topic.name!r} has no column {column!r}",
            hint=f"its columns are {', '.join(topic.schema.names)}",
            topic=topic.name,
            column=column,
            reason="no-such-column",
        )
    return topic.schema.field(column)
