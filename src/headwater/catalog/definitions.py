"""Definitions of topics, and the changes of a topic that keep every old record readable.

Names of topics and views share one namespace and ignore case, as in SQL: see `headwater.core.names.canonical_name`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from headwater.catalog import statement_options
from headwater.catalog.dropped_columns import DroppedColumn, SchemaChanges
from headwater.catalog.options import names_of, settable_of
from headwater.catalog.rules import METADATA_COLUMNS as METADATA_COLUMNS
from headwater.catalog.rules import WhenBehind, check_column, check_topic
from headwater.catalog.time_options import OCCURRED, SENT, STORED, WatermarkBy, with_clock
from headwater.core.arguments import span_us, whole_number
from headwater.core.clock import Microseconds, format_span, parse_span_us
from headwater.core.errors import SchemaError, UsageError
from headwater.core.settings import Durability, format_bytes, parse_bytes
from headwater.core.types import TIMESTAMP, WIDER, format_type, parse_type, quote

Cleanup = Literal["delete", "compact"]

OP_TYPE = pa.int8()
"""Type of `_op` in active segments: an index in `headwater.catalog.conform.OPS`."""
CAPTURED = pa.schema(
    [("_source_position", pa.int64()), ("_source_time", TIMESTAMP), ("_transaction", pa.int64())]
)
"""Origin of a record of a captured topic: the position in the source's own log, which rises, the commit time there, and the
transaction."""
TOMBSTONE_RETENTION_US = parse_span_us("1 day")


@dataclass(frozen=True)
class TopicDefinition:
    """Definition of a topic. `schema` has the user's columns, with their nullability."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    time: str | None = None
    lateness_us: Microseconds = 0
    max_ahead_us: Microseconds | None = None
    idle_after_us: Microseconds | None = None
    partitions: int = 1
    partition_by: tuple[str, ...] = ()
    versioned_by: str | None = None
    cleanup: Cleanup = "delete"
    retention_us: Microseconds | None = None
    retention_bytes: int | None = None
    tombstone_retention_us: Microseconds = TOMBSTONE_RETENTION_US
    durability: Durability | None = None
    schema_version: int = 0
    watermark: WatermarkBy = "events"
    producer_timeout_us: Microseconds | None = None
    versions_for_us: Microseconds | None = None
    """Time for which compaction keeps superseded records, for readers of versions."""
    clock: str | None = None
    """Column that identifies the device whose clock made a row's times; `occurred` and `sent` are the columns of these
    times."""
    occurred: str | None = None
    sent: str | None = None
    captured_by: str | None = None
    """The source that is the topic's only writer."""
    schema_changes: SchemaChanges = "follow"
    """Reaction of the topic to changed columns of the captured table."""
    dropped: tuple[DroppedColumn, ...] = ()
    """Columns that were dropped from the captured table."""
    backlog_rows: int | None = None
    """Maximum lag of a cursor with `hold`; `when_behind` decides about an append beyond that."""
    when_behind: WhenBehind = "grow"
    block_for_us: Microseconds | None = None
    private: tuple[tuple[str, str], ...] = ()
    """Columns that are stored encrypted, each with its subject column: see `headwater.privacy.column_encryption`."""
    incarnation: int = field(default=0, compare=False)
    """Set by the log: distinguishes the topic from an earlier one of the same name."""

    @property
    def keyed(self) -> bool:
        """Whether the topic is a table's changelog."""
        return bool(self.key)

    @property
    def routing(self) -> tuple[str, ...]:
        """Columns whose hash selects a row's partition; empty if rows are spread."""
        return self.partition_by or self.key or ((self.versioned_by,) if self.versioned_by else ())

    @cached_property
    def given(self) -> TopicDefinition:
        """The definition that appended rows must fit: this one without the columns that the log fills."""
        if self.clock is None:
            return self
        own = pa.schema([f for f in self.schema if f.name not in STORED.names])
        return dataclasses.replace(self, schema=own, time=self.time if self.time in own.names else None)

    @cached_property
    def row_schema(self) -> pa.Schema:
        """Columns of conformed rows: the topic's, all nullable (a tombstone has only its key), `_op` if keyed, and their origin
        if captured."""
        fields = [f.with_nullable(True) for f in self.schema]
        op = [pa.field("_op", OP_TYPE)] if self.keyed else []
        return pa.schema([*fields, *op, *self.source_columns])

    @cached_property
    def nested_places(self) -> tuple[int, ...]:
        """The places of the columns whose values have parts."""
        return tuple(place for place, field in enumerate(self.schema) if pa.types.is_nested(field.type))

    @cached_property
    def null_places(self) -> tuple[int, ...]:
        """The places of the columns that may refuse a NULL, as a whole or in a part of it."""
        required = (
            place for place, field in enumerate(self.schema) if not field.nullable or field.name == self.time
        )
        return tuple(sorted({*required, *self.nested_places}))

    @property
    def source_columns(self) -> pa.Schema:
        """Metadata columns of captured records."""
        return pa.schema([]) if self.captured_by is None else CAPTURED

    @cached_property
    def storage_schema(self) -> pa.Schema:
        """Columns of stored records before offsets: those of rows, with private ones as encrypted bytes, and `_version`, which
        the log fills."""
        private = dict(self.private)
        stored = [pa.field(f.name, pa.binary()) if f.name in private else f for f in self.row_schema]
        versioned = [pa.field("_version", pa.int64())] if self.versioned_by is not None else []
        return pa.schema([*stored, *versioned])

    def to_json(self) -> dict[str, Any]:
        """Return a plain form that `from_json` reads back."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "schema"}
        plain = {k: v for k, v in plain.items() if k not in _LATER or v != _LATER[k]}
        columns = [[f.name, format_type(f.type), f.nullable] for f in self.schema]
        if self.dropped:
            plain["dropped"] = [one.to_json() for one in self.dropped]
        if self.private:
            plain["private"] = [list(pair) for pair in self.private]
        return {**{k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}, "columns": columns}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TopicDefinition:
        """Return the definition that `to_json` wrote."""
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k != "columns"
        }
        schema = pa.schema([pa.field(n, parse_type(t), nullable) for n, t, nullable in plain["columns"]])
        if "dropped" in values:
            values["dropped"] = tuple(map(DroppedColumn.from_json, values["dropped"]))
        if "private" in values:
            values["private"] = tuple((column, subject) for column, subject in values["private"])
            hidden = dict(values["private"])  # older definitions may have them NOT NULL
            schema = pa.schema([f.with_nullable(f.nullable or f.name in hidden) for f in schema])
        return cls(schema=schema, **values)

    def to_sql(self) -> str:
        """Return the CREATE TOPIC statement that creates this topic."""
        lines = [f"  {_show(f, dict(self.private).get(f.name))}" for f in self.schema]
        if self.key:
            lines.append(f"  PRIMARY KEY ({', '.join(map(quote, self.key))})")
        if self.time:
            late = f" - INTERVAL '{format_span(self.lateness_us)}'"
            lines.append(f"  WATERMARK FOR {quote(self.time)} AS {quote(self.time)}{late}")
        options = ", ".join(f"{name} = {value}" for name, value in self.options().items())
        return f"CREATE TOPIC {quote(self.name)} (\n" + ",\n".join(lines) + f"\n) WITH ({options})"

    def options(self) -> dict[str, str]:
        """Return the WITH options that differ from the default, as SQL literals."""
        shown: dict[str, str] = {"partitions": str(self.partitions)}
        for name in (
            "partition_by",
            "versioned_by",
            "cleanup",
            "durability",
            "watermark",
            "clock",
            "occurred",
            "sent",
            "schema_changes",
            "when_behind",
        ):
            value = getattr(self, name)
            if value and (name, value) not in _USUAL:
                shown[name] = f"'{', '.join(value) if isinstance(value, tuple) else value}'"
        for name in (
            "retention",
            "max_ahead",
            "idle_after",
            "producer_timeout",
            "tombstone_retention",
            "versions_for",
            "block_for",
        ):
            span = getattr(self, f"{name}_us")
            if span is not None and (name, span) != ("tombstone_retention", TOMBSTONE_RETENTION_US):
                shown[name] = f"'{format_span(span)}'"
        if self.retention_bytes is not None:
            shown["retention_bytes"] = f"'{format_bytes(self.retention_bytes)}'"
        if self.backlog_rows is not None:
            shown["backlog_rows"] = str(self.backlog_rows)
        return shown


ALTERABLE = settable_of(statement_options.TOPIC)
"""Options that may change later: none of them changes the meaning of a record in the log."""
OPTION_NAMES = names_of(statement_options.TOPIC)
_USUAL = (
    ("cleanup", "delete"),
    ("watermark", "events"),
    ("occurred", OCCURRED),
    ("sent", SENT),
    ("schema_changes", "follow"),
    ("when_behind", "grow"),
)
_LATER: dict[str, Any] = {
    "watermark": "events",
    "producer_timeout_us": None,
    "clock": None,
    "occurred": None,
    "sent": None,
}
_LATER |= {"versions_for_us": None, "captured_by": None, "schema_changes": "follow"}
_LATER |= {"dropped": (), "private": ()}
_LATER |= {"backlog_rows": None, "when_behind": "grow", "block_for_us": None}
"""Fields that a definition stores only if they differ from these defaults, because earlier versions lack them."""


def define_topic(
    name: str,
    schema: pa.Schema,
    *,
    key: tuple[str, ...] = (),
    time: str | None = None,
    lateness: Any = 0,
    options: Mapping[str, Any] | None = None,
    private: Mapping[str, str] | None = None,
) -> TopicDefinition:
    """Return a checked definition. `options` are the WITH options, `private` the columns to be encrypted, each with its subject
    column."""
    values = _read_options(options or {})
    values["private"] = tuple(sorted((private or {}).items()))
    schema = pa.schema([pa.field(f.name, _column_type(f), f.nullable and f.name not in key) for f in schema])
    if values.get("clock") is not None:
        schema, values = with_clock(name, schema, key, values)
    lateness_us = lateness if isinstance(lateness, int) else span_us(lateness, "lateness")
    topic = TopicDefinition(name=name, schema=schema, key=key, time=time, lateness_us=lateness_us, **values)
    check_topic(topic)
    return topic


def alter_options(topic: TopicDefinition, options: Mapping[str, Any]) -> TopicDefinition:
    """Return the definition with other retention, durability and the like."""
    for name in options:
        if name in OPTION_NAMES and name not in ALTERABLE:
            raise SchemaError(
                f"{name} of topic {topic.name!r} cannot be changed after the topic is created",
                hint="create a new topic and copy the records into it: CREATE TOPIC ... AS SELECT",
                topic=topic.name,
                option=name,
                reason="fixed-option",
            )
    changed = dataclasses.replace(topic, **_read_options(options))
    check_topic(changed)
    return changed


def add_column(topic: TopicDefinition, field: pa.Field, subject: str | None = None) -> TopicDefinition:
    """Return the definition with one more nullable column at the end; private by `subject`, if given."""
    if field.name in topic.schema.names:
        raise SchemaError(
            f"topic {topic.name!r} already has a column {field.name!r}",
            topic=topic.name,
            column=field.name,
            reason="duplicate-column",
        )
    if not field.nullable:
        raise SchemaError(
            f"column {field.name!r} cannot be added NOT NULL to topic {topic.name!r}",
            detail="records that are already in the log have no value for it",
            hint=f"ALTER TOPIC {topic.name} ADD COLUMN {quote(field.name)} {format_type(_column_type(field))}",
            topic=topic.name,
            column=field.name,
            reason="not-null",
        )
    if subject is not None:
        topic = replace(topic, private=tuple(sorted((*topic.private, (field.name, subject)))))
    return _evolve(topic, [*topic.schema, pa.field(field.name, _column_type(field))])


def widen_column(topic: TopicDefinition, column: str, kind: pa.DataType) -> TopicDefinition:
    """Return the definition with a column of a wider type, in which every old value is unchanged."""
    field = check_column(topic, column)
    _column_type(pa.field(column, kind))
    if kind == field.type:
        return topic
    if column in topic.routing and kind not in WIDER.get(field.type, ()):
        raise _not_wider(topic, field, kind)
    if kind not in WIDER.get(field.type, ()) and not _wider_decimal(field.type, kind):
        raise _not_wider(topic, field, kind)
    return _evolve(
        topic, [pa.field(f.name, kind, f.nullable) if f.name == column else f for f in topic.schema]
    )


def drop_not_null(topic: TopicDefinition, column: str) -> TopicDefinition:
    """Return the definition with a column made nullable."""
    check_column(topic, column)
    if column in topic.key or column in (topic.time, topic.clock):
        what = "key" if column in topic.key else "time" if column == topic.time else "clock"
        raise SchemaError(
            f"column {column!r} of topic {topic.name!r} cannot become nullable: it is a {what} column",
            topic=topic.name,
            column=column,
            reason=f"{what}-column",
        )
    return _evolve(topic, [f.with_nullable(True) if f.name == column else f for f in topic.schema])


def accept_drop(topic: TopicDefinition, column: str) -> TopicDefinition:
    """Return the definition in which views may continue with NULL in a column that was dropped from the captured table."""
    name = check_column(topic, column).name
    if name not in (one.column for one in topic.dropped):
        raise SchemaError(
            f"column {name!r} of topic {topic.name!r} was not dropped from the captured table",
            topic=topic.name,
            column=name,
            reason="not-dropped",
        )
    marks = (replace(one, accepted=True) if one.column == name else one for one in topic.dropped)
    return replace(topic, dropped=tuple(marks))


def _evolve(topic: TopicDefinition, fields: list[pa.Field]) -> TopicDefinition:
    changed = dataclasses.replace(topic, schema=pa.schema(fields), schema_version=topic.schema_version + 1)
    check_topic(changed)
    return changed


def difference(old: TopicDefinition, new: TopicDefinition) -> list[str]:
    """Return the differences between two topic definitions as lines; empty if they are equal."""
    lines = []
    before, after = ({f.name: _show(f, dict(t.private).get(f.name)) for f in t.schema} for t in (old, new))
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name, ""), after.get(name, "")
        if was != now:
            lines += [f"{sign} {field}" for sign, field in (("-", was), ("+", now)) if field]
    if not lines and list(before) != list(after):
        lines += [f"- columns {', '.join(before)}", f"+ columns {', '.join(after)}"]
    for name in (f.name for f in dataclasses.fields(old)):
        if name not in ("schema", "name", "schema_version", "incarnation", "dropped", "private") and getattr(
            old, name
        ) != getattr(new, name):
            shown = name.removesuffix("_us")
            lines += [f"- {shown} = {_plain(old, name)}", f"+ {shown} = {_plain(new, name)}"]
    return lines


def _plain(topic: TopicDefinition, name: str) -> Any:
    value = getattr(topic, name)
    if name.endswith("_us") and value is not None:
        return format_span(value)
    return ", ".join(value) if isinstance(value, tuple) else value


def _show(field: pa.Field, subject: str | None = None) -> str:
    private = "" if subject is None else f" PRIVATE BY ({quote(subject)})"
    return f"{quote(field.name)} {format_type(field.type)}{'' if field.nullable else ' NOT NULL'}{private}"


def _column_type(field: pa.Field) -> pa.DataType:
    try:
        format_type(field.type)
    except SchemaError as error:
        raise SchemaError(
            f"column {field.name!r}: {error.message}", hint=error.hint, column=field.name, **error.facts
        ) from None
    return field.type


def _wider_decimal(old: pa.DataType, new: pa.DataType) -> bool:
    if not (pa.types.is_decimal128(old) and pa.types.is_decimal128(new)):
        return False
    return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)


def _not_wider(topic: TopicDefinition, field: pa.Field, kind: pa.DataType) -> SchemaError:
    wider = " or ".join(format_type(w) for w in WIDER.get(field.type, ()))
    return SchemaError(
        f"column {field.name!r} of topic {topic.name!r} cannot change from {format_type(field.type)} "
        f"to {format_type(kind)}",
        detail="records that are already in the log must keep their values",
        hint=f"it can be widened to {wider}" if wider else "add a new column with the new type instead",
        topic=topic.name,
        column=field.name,
        reason="not-wider",
    )


def _read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in OPTION_NAMES:
            raise UsageError(
                f"{name!r} is not an option of a topic",
                hint=f"the options are {', '.join(OPTION_NAMES)}",
                option=name,
                reason="unknown-option",
            )
        if value is None:
            field = f"{name}_us" if name in _SPANS else name
            values[field] = TopicDefinition.__dataclass_fields__[field].default
        elif name in _SPANS:
            values[f"{name}_us"] = span_us(value, name)
        elif name == "retention_bytes":
            values[name] = parse_bytes(value)
        elif name == "partition_by":
            values[name] = _columns(value)
        elif name in ("partitions", "backlog_rows"):
            values[name] = _count(name, value)
        else:
            values[name] = value
    return values


_SPANS: tuple[str, ...] = ("retention", "tombstone_retention", "max_ahead", "idle_after", "producer_timeout")
_SPANS += ("versions_for", "block_for")


def _count(name: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return whole_number(value, name, hint=f"write {name} = 4")


def _columns(value: Any) -> tuple[str, ...]:
    columns = value.split(",") if isinstance(value, str) else value
    if not isinstance(columns, Sequence) or not all(isinstance(c, str) for c in columns):
        raise UsageError(
            f"partition_by must name columns, not {value!r}",
            hint="write partition_by = 'user', or 'shop, user'",
            option="partition_by",
            value=value,
        )
    return tuple(c.strip().strip("`") for c in columns)
