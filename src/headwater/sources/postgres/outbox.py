"""Outbox pattern: the application writes events in the same transaction as its change; they are routed to topics by aggregate
type.

An event is a row inserted into the outbox's table, which may be deleted at once, or a message of `pg_logical_emit_message` with
JSON content. Either has `aggregatetype`, the topic; `aggregateid`, the entity that the event is about; `type`, the kind of
event; `payload`, JSON; and optionally `id`. Underscores in these names are ignored.

An existing topic keeps its columns: columns named like fields of the payload are filled from the payload, and `id`,
`aggregate_id` and `type` from the event if the payload lacks them. An event that does not fit stops the source, because it
could not be stored anywhere else: after the topic is changed, the source continues from the same position. A missing topic is
created with the columns `id, aggregate_id, type, payload`. The events of one aggregate are in order.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import OPS, adapt
from headwater.catalog.definitions import CAPTURED, OP_TYPE, TopicDefinition, define_topic
from headwater.catalog.rules import NAME
from headwater.core.errors import SourceError
from headwater.core.json_csv import read_json
from headwater.core.types import format_type
from headwater.core.values import UNFIT, array_of
from headwater.sources.base import Evolve, Rows
from headwater.sources.postgres.decode.pgoutput import LogicalMessage
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction
from headwater.sources.postgres.session_state import SessionContext

_PLAIN = pa.schema(
    [("id", pa.string()), ("aggregate_id", pa.string()), ("type", pa.string()), ("payload", pa.string())]
)
_FIELDS = {
    "id": "id",
    "aggregatetype": "topic",
    "aggregateid": "aggregate_id",
    "type": "type",
    "payload": "payload",
}
_UPSERT = OPS.index("upsert")

Happened = dict[str, Any]
"""An event: topic, id, aggregate_id, type, payload, and the capture columns."""


class Outbox:
    """Converts events to rows of their topics."""

    def __init__(self, at: SessionContext) -> None:
        self._at = at
        self._topics: dict[str, TopicDefinition] = {}

    def read(self, rows: pa.RecordBatch) -> list[Happened]:
        """Return the events in rows of the outbox's table."""
        names = {name: _FIELDS.get(name.lower().replace("_", "")) for name in rows.schema.names}
        missing = {"topic", "payload"} - set(names.values())
        if missing:
            wanted = "aggregatetype" if "topic" in missing else "payload"
            raise self._error(
                f"outbox table {self._at.options.outbox} has no column {wanted}",
                "add the column",
                table=str(self._at.options.outbox),
                column=wanted,
            )
        kept = {name: field or name for name, field in names.items() if field or name in CAPTURED.names}
        columns = {field: rows.column(name).to_pylist() for name, field in kept.items()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def read_messages(self, messages: Sequence[tuple[LogicalMessage, CapturedTransaction]]) -> list[Happened]:
        """Return the events in logical messages with the outbox's prefix."""
        found = []
        for message, transaction in messages:
            if message.prefix == self._at.options.outbox_prefix:
                stamps = zip(
                    CAPTURED.names,
                    (transaction.position, _time(transaction.time_us), transaction.xid),
                    strict=True,
                )
                found.append({**self._opened(message.content), **dict(stamps)})
        return found

    def learn(self, events: Sequence[Happened]) -> Iterator[Evolve]:
        """Yield the topics that must be created before rows of the events."""
        for name in dict.fromkeys(event.get("topic") for event in events):
            if name in self._topics:
                continue
            if not isinstance(name, str) or not NAME.match(name):
                raise self._error(
                    f"an event names the topic {name!r}, which is not a valid name of a topic",
                    "use letters, digits and underscores in aggregatetype",
                    topic=name,
                )
            definition = self._at.history.definition(name)
            if definition is None:
                made = define_topic(name, _PLAIN, options={"partition_by": "aggregate_id"})
                definition = self._topics[name] = replace(made, captured_by=self._at.source)
                yield Evolve(definition)
            self._topics[name] = definition

    def rows(self, events: Sequence[Happened]) -> Iterator[Rows]:
        """Yield the events as rows of their topics, in order."""
        by_topic: dict[str, list[Happened]] = {}
        for event in events:
            by_topic.setdefault(event["topic"], []).append(event)
        for topic, mine in by_topic.items():
            definition = self._at.history.definition(topic) or self._topics[topic]
            yield Rows(topic, self._fit(mine, definition))

    def _fit(self, events: list[Happened], definition: TopicDefinition) -> pa.RecordBatch:
        plain = definition.schema.names == _PLAIN.names
        filled = [_plain(event) if plain else self._fields(event, definition) for event in events]
        columns = [self._column(filled, field, definition) for field in definition.given.schema]
        names = list(definition.given.schema.names)
        if definition.keyed:
            columns.append(pa.repeat(pa.scalar(_UPSERT, OP_TYPE), len(events)))
            names.append("_op")
        for field in CAPTURED:
            columns.append(pa.array([event.get(field.name) for event in events], field.type))
            names.append(field.name)
        return adapt(pa.RecordBatch.from_arrays(columns, names=names), definition.given.row_schema)

    def _fields(self, event: Happened, definition: TopicDefinition) -> Mapping[str, Any]:
        payload = event.get("payload")
        try:
            body = read_json(payload, exact=True) if isinstance(payload, (str, bytes)) else payload
        except ValueError:
            body = None
        if not isinstance(body, Mapping):
            raise self._error(
                f"event {event.get('id')!r} for topic {definition.name!r} has a payload that is not a JSON object",
                f"write an object with the fields {', '.join(definition.schema.names)}",
                topic=definition.name,
                event=event.get("id"),
                reason="payload-not-a-json-object",
            )
        own = {
            name: event.get(name)
            for name in ("id", "aggregate_id", "type")
            if name in definition.schema.names
        }
        unknown = [name for name in body if name not in definition.schema.names]
        if unknown:
            raise self._error(
                f"event {event.get('id')!r} has a field {unknown[0]!r}, which topic {definition.name!r} does not have",
                f"ALTER TOPIC {definition.name} ADD COLUMN {unknown[0]} ..., or remove the field from the payload",
                topic=definition.name,
                event=event.get("id"),
                field=unknown[0],
            )
        return {**own, **body}

    def _column(
        self, rows: list[Mapping[str, Any]], field: pa.Field, definition: TopicDefinition
    ) -> pa.Array:
        value: Any = None
        try:
            values = []
            for row in rows:
                value = row.get(field.name)
                values.append(None if value is None else _value(value, field.type))
                if value is None and not field.nullable:
                    raise ValueError("NOT NULL")
            return array_of(values, field.type)
        except (*UNFIT, ArithmeticError) as error:
            raise self._error(
                f"an event has {value!r} for column {field.name!r} of topic {definition.name!r}, which is "
                f"{format_type(field.type)}",
                f"change the type of the column, or the events ({error})",
                topic=definition.name,
                column=field.name,
                value=value,
            ) from None

    def _opened(self, content: bytes) -> Happened:
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, Mapping):
            raise self._error(
                f"a logical message with prefix {self._at.options.outbox_prefix!r} is not a JSON object",
                'write {"aggregatetype": "orders", "aggregateid": "1", "type": "placed", "payload": {...}}',
                reason="message-not-a-json-object",
            )
        named = {_FIELDS.get(name.lower().replace("_", "")): value for name, value in body.items()}
        return {name: value for name, value in named.items() if name is not None}

    def _error(self, message: str, hint: str, **facts: Any) -> SourceError:
        return SourceError(
            f"the outbox of source {self._at.source!r} cannot continue: {message}",
            hint=hint,
            source=self._at.source,
            **facts,
        )


def _plain(event: Happened) -> Mapping[str, Any]:
    return {name: _text(event.get(name)) for name in _PLAIN.names}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def _time(time_us: int) -> datetime.datetime | None:
    return (
        datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=time_us)
        if time_us
        else None
    )


def _value(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to the type of its column: times and decimals may be texts in JSON; a string column accepts any
    value."""
    if pa.types.is_string(kind):
        return _text(value)
    if pa.types.is_timestamp(kind) and isinstance(value, str):
        moment = datetime.datetime.fromisoformat(value)
        return moment if moment.tzinfo or kind.tz is None else moment.replace(tzinfo=datetime.UTC)
    if pa.types.is_date(kind) and isinstance(value, str):
        return datetime.date.fromisoformat(value)
    if pa.types.is_decimal(kind) and isinstance(value, (str, int)):
        return Decimal(value)
    if pa.types.is_floating(kind) and isinstance(value, (Decimal, int)) and not isinstance(value, bool):
        return float(value)
    if pa.types.is_nested(kind):
        return json.loads(json.dumps(value, default=float))
    return value
