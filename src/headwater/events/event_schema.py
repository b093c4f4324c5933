"""The topic of an aggregate: a row for each event, with the fields of all events as typed columns, and the way back.

    aggregate_id  event  event_version  meta  <a column for every field of every event>

Fields of the same name in several events are one column, so SQL reads `sum(amount)` regardless of the event; a column that
is no field of an event is NULL in its rows. A new class or field adds columns. `meta` is a STRUCT, so that its fields cannot
collide with those of events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition, add_column, define_topic, widen_column
from headwater.core.clock import Microseconds, from_us
from headwater.core.errors import ConflictError, SchemaError, TopicExistsError, UnreadableEventError
from headwater.core.types import format_type
from headwater.events.aggregates import Aggregate, raising
from headwater.events.envelope import Recorded
from headwater.events.field_types import FieldType, fields_of
from headwater.log.protocol import Log

META = pa.struct(
    [
        ("command_id", pa.string()),
        ("command", pa.string()),
        ("command_hash", pa.int64()),
        ("correlation_id", pa.string()),
        ("causation_id", pa.string()),
        ("actor", pa.string()),
        ("reason", pa.string()),
    ]
)
OWN = (
    pa.field("aggregate_id", pa.string(), nullable=False),
    pa.field("event", pa.string(), nullable=False),
    pa.field("event_version", pa.int32(), nullable=False),
    pa.field("meta", META, nullable=False),
)
OWN_NAMES = tuple(field.name for field in OWN)
METADATA_COLUMNS = ("_offset", "_appended_at", "_version")
ALTER_ATTEMPTS_MAX = 20
NOTHING_PRIVATE: Mapping[str, str] = {}


class PlacedEvent(NamedTuple):
    """An event and its position."""

    event: Any
    version: int
    offset: int
    at: Microseconds


class DataclassColumns:
    """A dataclass as columns."""

    def __init__(self, kind: type, version: int = 1, reserved: Sequence[str] = ()) -> None:
        self.kind = kind
        self.version = version
        self.fields = fields_of(kind)
        self.names = list(self.fields)
        self.changed = [
            (name, shape) for name, (_, shape) in self.fields.items() if shape.to_row or shape.from_row
        ]
        for name, (_, shape) in self.fields.items():
            _check_field(kind, name, shape, reserved)

    @property
    def fields_of_topic(self) -> list[pa.Field]:
        """The columns, which are NULL in rows of other classes."""
        return [pa.field(name, shape.column) for name, (_, shape) in self.fields.items()]

    def to_row(self, event: Any) -> dict[str, Any]:
        """Return the columns of an event."""
        row = {name: getattr(event, name) for name in self.names}
        for name, shape in self.changed:
            if shape.to_row is not None:
                row[name] = shape.to_row(row[name])
        return row

    def from_row(self, row: Mapping[str, Any]) -> Any:
        """Return the event of a row; KeyError names a field without a value."""
        given = {}
        for name, (field, shape) in self.fields.items():
            value = row.get(name)
            if value is not None:
                given[name] = value if shape.from_row is None else shape.from_row(value)
            elif shape.optional:
                given[name] = None
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise KeyError(name)
        return self.kind(**given)

    def canonical(self, event: Any) -> Any:
        """Return the event as it is read back, so that a state does not depend on the process that folded it."""
        if not self.changed:
            return event
        row = self.to_row(event)
        back = {
            name: row[name] if shape.from_row is None or row[name] is None else shape.from_row(row[name])
            for name, shape in self.changed
        }
        return dataclasses.replace(event, **back)


class EventLayout:
    """The conversion between the events of an aggregate and rows."""

    def __init__(self, aggregate: Aggregate[Any, Any, Any]) -> None:
        self.aggregate = aggregate
        self._classes = {
            name: DataclassColumns(kind, aggregate.current(name), OWN_NAMES)
            for name, kind in aggregate.events.items()
        }
        self.columns = _merged(aggregate.name, self._classes.values(), set(aggregate.private.values()))

    def canonical(self, event: Any) -> Any:
        """See `DataclassColumns.canonical`."""
        return self._classes[type(event).__name__].canonical(event)

    def row(self, aggregate_id: str, event: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return an event as a row of the topic."""
        kind = self._classes[type(event).__name__]
        row = kind.to_row(event)
        row["aggregate_id"], row["event"], row["event_version"] = (
            aggregate_id,
            kind.kind.__name__,
            kind.version,
        )
        row["meta"] = meta
        return row

    def recorded(
        self, topic: TopicDefinition, partition: int, batch: pa.RecordBatch
    ) -> Iterator[Recorded[Any]]:
        """Yield the events of a batch, which has all columns of the topic and `METADATA_COLUMNS`."""
        stories = zip(batch.column("aggregate_id").to_pylist(), batch.column("meta").to_pylist(), strict=True)
        for placed, (aggregate_id, meta) in zip(self.placed(topic, batch), stories, strict=True):
            yield Recorded(
                placed.event,
                aggregate_id,
                placed.version,
                _moment(placed.at),
                topic.name,
                partition,
                placed.offset,
                meta["command_id"],
                meta["command"],
                meta["correlation_id"],
                meta["causation_id"],
                meta["actor"],
                meta["reason"],
            )

    def placed(self, topic: TopicDefinition, batch: pa.RecordBatch) -> Iterator[PlacedEvent]:
        """Yield the events of a batch without their context, for folding."""
        own = [name for name in topic.schema.names if name not in OWN_NAMES]
        columns = [
            batch.column(name) for name in ("aggregate_id", "event", "event_version", "_version", "_offset")
        ]
        moments = batch.column("_appended_at").cast(pa.int64())
        fields = [(name, batch.column(name).to_pylist()) for name in own]
        places = zip(*(column.to_pylist() for column in (*columns, moments)), strict=True)
        for place, (aggregate_id, name, written, version, offset, at) in enumerate(places):
            row = {column: value for column, values in fields if (value := values[place]) is not None}
            event = self._event(topic.name, (aggregate_id, version), name, written, row)
            yield PlacedEvent(event, version, offset, at)

    def _event(self, topic: str, where: tuple[str, int], name: str, version: int, row: dict[str, Any]) -> Any:
        """Return an event of any version ever written, converted step by step to the current version."""
        written = (name, version)
        while True:
            kind = self._classes.get(name)
            if kind is not None and version == kind.version:
                try:
                    return kind.from_row(row)
                except KeyError as missing:
                    why = ("missing-value", f"field {missing} has no value")
                    raise _unreadable(topic, where, written, why) from None
                except Exception as error:
                    why = ("invalid-value", f"{type(error).__name__}: {error}")
                    raise _unreadable(topic, where, written, why) from error
            step = self.aggregate.steps.get((name, version))
            if step is None:
                raise _unreadable(topic, where, written, self._why(name, version))
            (name, version), function = step
            row = raising(function, [dict(row)], topic, f"event {written[0]!r} of version {written[1]}")

    def _why(self, name: str, version: int) -> tuple[str, str]:
        """Return the reason why no class and no upcast reads an event: a slug, and a sentence."""
        kind = self._classes.get(name)
        if kind is None:
            return "unknown-event", f"{self.aggregate.name!r} has no event {name!r}, and no upcast from it"
        if version > kind.version:
            return (
                "newer-version",
                f"its version is {version}; this program reads {name!r} up to version {kind.version}",
            )
        return "no-upcast", f"no upcast is declared from version {version} of {name!r} to {version + 1}"


def ensure_topic(log: Log, layout: EventLayout, partitions: int | None) -> TopicDefinition:
    """Return the topic of an aggregate, created if missing, with columns added for new fields."""
    options = {"versioned_by": "aggregate_id", "partitions": partitions or 1}
    return ensure_columns(
        log, layout.aggregate.name, OWN, layout.columns, options, private=layout.aggregate.private
    )


def ensure_columns(
    log: Log,
    name: str,
    own: Sequence[pa.Field],
    columns: Sequence[pa.Field],
    options: Mapping[str, Any],
    *,
    private: Mapping[str, str] = NOTHING_PRIVATE,
) -> TopicDefinition:
    """Return a versioned topic with its own columns and those of classes; SchemaError if an existing topic cannot be
    extended to it."""
    for _ in range(ALTER_ATTEMPTS_MAX):
        known = log.topics().get(name)
        try:
            if known is None:
                schema = pa.schema([*own, *columns])
                log.create_topic(define_topic(name, schema, options=options, private=private))
            else:
                wanted = _evolved(known, own, columns, options["versioned_by"], private)
                if wanted is known:
                    return known
                log.alter_topic(known, wanted)
        except (ConflictError, TopicExistsError):
            if known is None and name not in log.topics():
                raise  # a view has the name
            continue  # another process has just created or altered it
    return log.topic(name)


def _evolved(
    known: TopicDefinition,
    own: Sequence[pa.Field],
    columns: Sequence[pa.Field],
    versioned_by: str,
    private: Mapping[str, str],
) -> TopicDefinition:
    fits = known.versioned_by == versioned_by and all(
        field.name in known.schema.names and known.schema.field(field.name).type == field.type
        for field in own
    )
    if not fits:
        raise SchemaError(
            f"topic {known.name!r} already exists with other columns",
            detail=f"expected are {', '.join(field.name for field in own)}, and versioned_by = '{versioned_by}'",
            hint="choose another name",
            reason="other-layout",
            topic=known.name,
        )
    wanted = known
    for column in columns:
        if column.name not in wanted.schema.names:
            wanted = add_column(wanted, column, private.get(column.name))
        elif column.name in private and dict(wanted.private).get(column.name) != private[column.name]:
            raise SchemaError(
                f"field {column.name!r} of {known.name!r} cannot become private by {private[column.name]!r}: existing events "
                "store it otherwise",
                hint="rename the field, and declare an upcast from the old name; with `private` as before, the events can be read",
                topic=known.name,
                field=column.name,
                subject=private[column.name],
            )
        elif wanted.schema.field(column.name).type != column.type:
            try:
                wanted = widen_column(wanted, column.name, column.type)
            except SchemaError as error:
                raise SchemaError(
                    error.message,
                    detail=error.detail,
                    hint="rename the field, and declare an upcast from the old name",
                    topic=known.name,
                    field=column.name,
                ) from None
    return wanted


def _merged(name: str, classes: Iterable[DataclassColumns], subjects: Collection[str]) -> list[pa.Field]:
    found: dict[str, tuple[pa.Field, str]] = {}
    for kind in classes:
        for column, (_, shape) in kind.fields.items():
            field = pa.field(column, shape.column, nullable=column not in subjects)
            known, first = found.setdefault(column, (field, kind.kind.__name__))
            if known.type != field.type:
                raise SchemaError(
                    f"field {column!r} is {format_type(known.type)} in {first} and {format_type(field.type)} in "
                    f"{kind.kind.__name__}",
                    detail=f"the events of {name!r} share a topic, in which fields of the same name are one column",
                    hint="rename one of the fields, or give both the same type",
                    aggregate=name,
                    field=column,
                )
    return [field for field, _ in found.values()]


def _check_field(kind: type, name: str, shape: FieldType, reserved: Sequence[str]) -> None:
    if name.lower() in reserved:
        raise SchemaError(
            f"field {name!r} of {kind.__name__} has a reserved name",
            hint=f"rename the field; every row has the columns {', '.join(reserved)}",
            field=name,
            reason="reserved-name",
        )
    if shape.column is None:
        raise SchemaError(
            f"field {name!r} of {kind.__name__} has a type that a column cannot hold",
            hint="replace a tuple of different types by a dataclass",
            field=name,
            reason="no-column-type",
        )


def _unreadable(
    topic: str, where: tuple[str, int], written: tuple[str, int], why: tuple[str, str]
) -> UnreadableEventError:
    return UnreadableEventError(
        f"event {where[1]} of {where[0]!r} in topic {topic!r} cannot be read: {written[0]!r} of version {written[1]}",
        detail=why[1],
        hint=f'run the program that wrote it, or declare an upcast: @aggregate.upcast("{written[0]}", {written[1]})',
        reason=why[0],
        topic=topic,
        aggregate_id=where[0],
        version=where[1],
        event=written[0],
        event_version=written[1],
    )


def _moment(at_us: int) -> datetime:
    return from_us(at_us).astimezone(UTC)


def all_columns(topic: TopicDefinition) -> Sequence[str]:
    """Return the columns of a topic that `EventLayout.recorded` needs."""
    return [*topic.schema.names, *METADATA_COLUMNS]
