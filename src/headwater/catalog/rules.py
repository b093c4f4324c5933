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
TELLING = frozenset({"_forgotten", "_excised"})
"""Topics with the records of deletions."""
_KEPT = TELLING | {"_dead", "_alerts", "_claims", "_answers", "_replies"}
HIDDEN = ("_partition", "_offset", "_appended_at", "_op", "_watermark", "_sequence", "_version")
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


def is_kept(name: str) -> bool:
    """Whether a topic of that name is created and written by the workspace itself."""
    return name.lower() in _KEPT or name.lower().startswith("_queue_")


def check_free(name: str) -> None:
    """Raise SchemaError if the name is reserved for topics of the workspace."""
    if is_kept(name):
        raise SchemaError(
            f"{name!r} is a topic that workspaces make themselves",
            hint="choose another name; all that do not begin with _ are yours",
        )


def check_topic(topic: TopicDeclaration) -> None:
    """Raise SchemaError if the definition of a topic is invalid."""
    names = topic.schema.names
    if not NAME.match(topic.name.removesuffix(f".{DEAD}")):
        raise SchemaError(
            f"{topic.name!r} cannot be the name of a topic",
            hint="use letters, digits and underscores, not starting with a digit",
        )
    if not names:
        raise SchemaError(f"topic {topic.name!r} needs at least one column")
    folded = [n.lower() for n in names]
    for name in names:
        if folded.count(name.lower()) > 1:
            raise SchemaError(f"topic {topic.name!r} has the column {name!r} twice (names ignore case)")
        if name.lower() in (*HIDDEN, *topic.source_columns.names):
            raise SchemaError(
                f"{name!r} is a column that every topic has; topic {topic.name!r} cannot declare it",
                hint="choose another name",
            )
    if not 1 <= topic.partitions <= PARTITIONS_MAX:
        raise SchemaError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {topic.partitions}")
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
            )
        _check_private(topic, check_column(topic, column), topic.schema.field(subject))


def _check_roles(topic: TopicDeclaration) -> None:
    name = topic.name
    for column in (*topic.key, *topic.partition_by, *filter(None, (topic.versioned_by, topic.clock))):
        if pa.types.is_nested(topic.schema.field(column).type):
            raise SchemaError(
                f"column {column!r} of topic {name!r} is nested and cannot be a key",
                hint="use a scalar column, such as an id",
            )
    if topic.key and not set(topic.partition_by) <= set(topic.key):
        raise SchemaError(
            f"partition_by of the keyed topic {name!r} must be part of its primary key",
            detail="otherwise two records of one key could lie in two partitions, with no order between them",
            hint=f"partition_by = '{', '.join(topic.key)}', or leave it out",
        )
    check_time(topic)
    if topic.cleanup not in ("delete", "compact"):
        raise SchemaError(f"cleanup is 'delete' or 'compact', not {topic.cleanup!r}")
    if topic.versioned_by is not None:
        _check_versioned(topic)
    if topic.cleanup == "compact" and not topic.key:
        raise SchemaError(
            f"topic {name!r} cannot be compacted: it has no primary key",
            hint="add PRIMARY KEY (...), or leave cleanup out",
        )
    if topic.versions_for_us is not None and not topic.key:
        raise SchemaError(f"topic {name!r} has no versions to keep: it has no primary key")
    if topic.durability is not None and topic.durability not in DURABILITIES:
        raise SchemaError(f"durability is one of {', '.join(DURABILITIES)}, not {topic.durability!r}")
    if topic.schema_changes not in ("follow", "refuse"):
        raise SchemaError(
            f"schema_changes is 'follow' or 'refuse', not {topic.schema_changes!r}",
            hint="'follow': the topic has the columns that its table has; 'refuse': the table stops instead",
        )
    _check_backlog(topic)
    if topic.retention_us is not None and topic.retention_us <= 0:
        raise SchemaError(f"the retention of topic {name!r} must be longer than nothing")
    if topic.retention_bytes is not None and topic.retention_bytes <= 0:
        raise SchemaError(
            f"retention_bytes of topic {name!r} must be more than nothing, not {topic.retention_bytes}",
            hint="write a size such as '10 GB', or leave it out to keep everything",
        )


def _check_backlog(topic: TopicDeclaration) -> None:
    kinds = get_args(WhenBehind)
    if topic.when_behind not in kinds:
        raise SchemaError(f"when_behind is one of {', '.join(kinds)}, not {topic.when_behind!r}")
    if topic.when_behind != "grow" and not topic.backlog_rows:
        raise SchemaError(
            f"topic {topic.name!r} does not say how far behind its readers may be",
            hint=f"WITH (backlog_rows = 100000, when_behind = '{topic.when_behind}')",
        )
    if topic.when_behind == "drop_oldest" and (topic.key or topic.versioned_by):
        raise SchemaError(
            f"topic {topic.name!r} cannot drop its oldest records: it has a key, whose last record may be among them",
            hint="when_behind = 'block' or 'refuse'",
        )
    if topic.block_for_us is not None and topic.when_behind != "block":
        raise SchemaError(f"block_for of topic {topic.name!r} goes with when_behind = 'block'")


def _check_private(topic: TopicDeclaration, column: pa.Field, subject: pa.Field) -> None:
    """Raise SchemaError unless a private column is only used as a value, and its subject column is unencrypted and NOT NULL."""
    roles = {
        "a key column": topic.key,
        "a partition column": topic.routing,
        "the time column": (topic.time,),
        "a column of device clocks": (topic.clock, topic.occurred, topic.sent),
    }
    if subject.name in dict(topic.private):
        itself = "itself" if subject.name == column.name else "a column that is PRIVATE too"
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE BY ({subject.name}): that is {itself}",
            detail="who is meant must still be known when the key is gone",
            hint="name a column that is in plain, such as an id that says nothing by itself",
            topic=topic.name,
            private=column.name,
        )
    for role, columns in roles.items():
        if column.name in columns:
            raise SchemaError(
                f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE: it is {role}",
                detail="the log goes by its value, and must still do so when the key to it is gone",
                hint="leave PRIVATE out, or go by another column, such as an id that says nothing by itself",
                topic=topic.name,
                private=column.name,
            )
    if not column.nullable:
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE and NOT NULL: it reads NULL once its subject was forgotten",
            hint="leave NOT NULL out",
            topic=topic.name,
            private=column.name,
        )
    if pa.types.is_nested(column.type):
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE: it is nested",
            hint="make its fields columns of their own, or keep it as JSON in a STRING",
            topic=topic.name,
            private=column.name,
        )
    if not (pa.types.is_integer(subject.type) or pa.types.is_string(subject.type)):
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE BY ({subject.name}): "
            "a subject is a whole number or a text",
            topic=topic.name,
            private=column.name,
        )
    if subject.nullable:
        raise SchemaError(
            f"column {column.name!r} of topic {topic.name!r} cannot be PRIVATE BY ({subject.name}): "
            f"{subject.name} may be NULL, and then there is nobody whose key it is",
            hint=f"declare {subject.name} NOT NULL",
            topic=topic.name,
            private=column.name,
        )
    if FORGOTTEN in (name.lower() for name in topic.schema.names):
        raise SchemaError(
            f"topic {topic.name!r} has private columns, and {FORGOTTEN!r} is a column that it has by itself",
            hint="choose another name",
            topic=topic.name,
            private=column.name,
        )


def _check_versioned(topic: TopicDeclaration) -> None:
    if topic.cleanup == "compact" or topic.retention_us is not None or topic.retention_bytes is not None:
        what = "compacted" if topic.cleanup == "compact" else "given a retention"
        raise SchemaError(
            f"topic {topic.name!r} is event-sourced (versioned_by = {topic.versioned_by!r}) and cannot be {what}",
            detail="every event of an aggregate is needed to rebuild it",
            hint="leave cleanup and retention out",
        )
    if topic.routing != (topic.versioned_by,):
        raise SchemaError(
            f"topic {topic.name!r} is versioned_by {topic.versioned_by!r} and must be partitioned by it too",
            hint=f"partition_by = '{topic.versioned_by}', or leave it out",
        )


def check_column(topic: TopicDeclaration, column: str) -> pa.Field:
    """Return a column of a topic; SchemaError if it has none of that name."""
    if column not in topic.schema.names:
        raise SchemaError(
            f"topic {topic.name!r} has no column {column!r}",
            hint=f"its columns are {', '.join(topic.schema.names)}",
            topic=topic.name,
        )
    return topic.schema.field(column)
