"""Webhook source, created by `CREATE SOURCE ... FROM WEBHOOK`. It reads nothing itself: the HTTP server passes each posted
request to it (`headwater.web.routes.hooks`), and writes the row of the delivery.

Guarantee: a delivery is answered once its row is durable. A delivery repeated under the same id gets the same answer and writes
nothing: the id is in the same commit as the row. A request without a valid signature, or with one outside the time tolerance,
writes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import orjson
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.arguments import span_us, text
from headwater.core.clock import Clock, Microseconds, SystemClock, from_us
from headwater.core.errors import UsageError
from headwater.core.json_csv import Convert, InputRows, decoded, has_decimal, json_decoder, read_json
from headwater.core.settings import parse_bytes
from headwater.core.webhook_signatures import SCHEMES, Scheme, Signed, check, secret_bytes
from headwater.sources.base import Event, Position, Quiet
from headwater.sources.clock_positions import owned
from headwater.sources.source_setup import SourceSetup
from headwater.sql.parser import parse_columns

COLUMNS = "delivery STRING NOT NULL, received_at TIMESTAMP NOT NULL, body STRING NOT NULL"
"""Columns of every record; the declared `columns` follow them."""
TOLERANCE = "5 minutes"
BODY_MAX = "1 MB"
ID_CHARACTERS_MAX = 255
CONTAINERS_MAX = 1_000_000
"""Maximum number of objects and arrays in one delivery: each takes as little as two bytes in the body, and 70 in memory."""
_OWN = ("delivery", "received_at", "body")
_LONG = re.compile(rb"\d{19}")
"""An integer that may exceed 64 bits: the fast JSON reader would return a float."""
_HEADER = "header:"
"""Prefix of a header name in `paths`."""


@dataclass(frozen=True)
class WebhookOptions:
    """The checked options of a source."""

    topic: str
    scheme: Scheme
    secrets: tuple[bytes, ...] = field(repr=False)
    tolerance_us: Microseconds
    body_bytes_max: int
    columns: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """A delivery with a verified signature and a parsed body: the row that it becomes, and the id by which a repetition is
    recognized."""

    id: str
    row: Mapping[str, Any]
    sent_us: Microseconds
    """Time of sending if the signature covers it, else time of arrival."""


def read_options(source: str, options: Mapping[str, Any]) -> WebhookOptions:
    """The checked options; UsageError names what is wrong."""
    scheme = text(options.get("scheme", "standard"), "scheme")
    if scheme not in SCHEMES:
        known = ", ".join(map(repr, SCHEMES))
        raise UsageError(
            f"scheme of source {source!r} must be one of {known}, not {scheme!r}",
            source=source,
            option="scheme",
            value=scheme,
        )
    given = [options[name] for name in ("secret", "previous_secret") if options.get(name) is not None]
    return WebhookOptions(
        topic=text(options.get("topic") or source, "topic"),
        scheme=scheme,
        secrets=tuple(secret_bytes(text(secret, "secret")) for secret in given),
        tolerance_us=span_us(options.get("tolerance", TOLERANCE), "tolerance"),
        body_bytes_max=parse_bytes(options.get("max_body", BODY_MAX)),
        columns=None if options.get("columns") is None else text(options["columns"], "columns"),
        paths=_read_paths(options.get("paths")),
    )


class WebhookSource:
    """A `DeclaredSource` whose rows are passed to it by the HTTP server."""

    def __init__(self, name: str, options: Mapping[str, Any], *, clock: Clock | None = None) -> None:
        self.name = name
        self.options = read_options(name, options)
        self._clock = clock or SystemClock()
        self.topic = self._define_topic()
        self._fields = [field for field in self.topic.schema if field.name not in _OWN]
        self._exact = {field.name for field in self._fields if has_decimal(field.type)}
        for column in self.options.paths:
            if column not in {field.name for field in self._fields}:
                raise UsageError(
                    f"paths of source {name!r} name the column {column!r}, which columns does not declare",
                    hint=f"columns = '{column} STRING'",
                    source=name,
                    option="paths",
                    column=column,
                )

    @classmethod
    def declared(cls, setup: SourceSetup) -> Self:
        """The source that a declaration asks for."""
        return cls(setup.name, setup.options)

    # --- declaring -------------------------------------------------------------------------------------------------

    def check(self) -> list[TopicDefinition]:
        """Return the topic that the source fills."""
        return [self.topic]

    def drop(self) -> None:
        """Do nothing: nothing was created in an external system."""

    def _define_topic(self) -> TopicDefinition:
        said = f"{COLUMNS}, {self.options.columns}" if self.options.columns else COLUMNS
        made = parse_columns(said)
        private, schema = dict(made.private), made.schema
        if subjects := sorted(set(private.values())):
            if len(subjects) > 1:
                raise UsageError(
                    f"the columns of source {self.name!r} are private by {' and '.join(subjects)}, but the body of a delivery, "
                    "which contains them all, can be private by one column only",
                    hint="declare all private columns PRIVATE BY the same column",
                    source=self.name,
                    subjects=tuple(subjects),
                )
            private["body"] = subjects[0]
            schema = pa.schema([f.with_nullable(f.nullable or f.name == "body") for f in schema])
        topic = define_topic(
            self.options.topic,
            schema,
            key=made.key,
            time=made.time,
            lateness=made.lateness_us,
            private=private,
        )
        return owned(self.name, topic)

    # --- what is delivered -----------------------------------------------------------------------------------------

    def delivered(self, headers: Mapping[str, str], body: bytes) -> Delivery:
        """Verify and parse a delivery. Raises SignatureError; UsageError or BadRowError if it is signed correctly but cannot be
        read."""
        now_us = self._clock.now_us()
        options = self.options
        signed = check(options.scheme, headers, body, options.secrets, now_us, options.tolerance_us)
        if len(body) > CONTAINERS_MAX and body.count(b"{") + body.count(b"[") > CONTAINERS_MAX:
            raise UsageError(
                f"the body has more than {CONTAINERS_MAX:,} objects and arrays",
                source=self.name,
                reason="containers",
            )
        try:
            written = body.decode()
            said = read_json(body, exact=False)
            if _LONG.search(body):
                said = json.loads(body)
            exact = read_json(body, exact=True) if self._exact else None
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"the body is not valid JSON: {error}", source=self.name, reason="json"
            ) from None
        known_by = self._id(signed, said)
        row: dict[str, Any] = {"delivery": known_by, "received_at": from_us(now_us), "body": written}
        try:
            for column in self._fields:
                row[column.name] = self._value(column, exact if column.name in self._exact else said, headers)
        except RecursionError:
            raise UsageError("the body is nested too deeply", source=self.name, reason="nesting") from None
        return Delivery(known_by, row, now_us if signed.at_us is None else signed.at_us)

    def _id(self, signed: Signed, said: Any) -> str:
        found = signed.id
        if self.options.scheme == "stripe":
            found = said.get("id") if isinstance(said, dict) else None
        if not isinstance(found, str) or not 0 < len(found) <= ID_CHARACTERS_MAX or not found.isprintable():
            where = {"github": "in the header X-GitHub-Delivery", "stripe": "in the field id of its body"}
            raise UsageError(
                "the delivery has no id by which a repeated delivery is recognised",
                detail=f"the id has 1 to {ID_CHARACTERS_MAX} characters and is expected "
                + where.get(self.options.scheme, "in the header webhook-id"),
                source=self.name,
                reason="no-id",
            )
        return found

    def _value(self, column: pa.Field, said: Any, headers: Mapping[str, str]) -> Any:
        """Return the value of a column at its path in the body or in the headers; None if it is missing."""
        path = self.options.paths.get(column.name, column.name)
        if path.startswith(_HEADER):
            value: Any = headers.get(path.removeprefix(_HEADER).strip().lower())
        else:
            value = said
            for step in path.split(".") if column.name in self.options.paths else [path]:
                value = _below(value, step)
        if value is None:
            return None
        kind = column.type
        if pa.types.is_string(kind):
            return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
        if pa.types.is_timestamp(kind) and isinstance(value, int | float) and not isinstance(value, bool):
            decode: Convert | None = _moment  # many senders write times so: seconds since 1970
        else:
            decode = json_decoder(kind)
        if decode is None:
            return value
        delivery = InputRows(self.options.topic, "the delivery", "nothing was written")
        return decoded(decode, value, column, delivery)

    # --- other methods of a source --------------------------------------------------------------------------------

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Yield no rows: the HTTP server passes rows to the source directly."""
        while True:
            yield Quiet(self._clock.now_us())

    def durable(self, sequence: int, position: Position | None) -> None:
        """Do nothing: the HTTP server answers the sender when it has written the row."""

    def end(self) -> int:
        """Return the current time: every delivery answered so far is in the log."""
        return self._clock.now_us()

    def close(self) -> None:
        """Do nothing: the source keeps no resources."""


def _below(value: Any, step: str) -> Any:
    """Return the value at one step of a path: by name in an object, by index in an array."""
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        return value[int(step)]
    return None


def _moment(value: Any) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)


def _read_paths(said: Any) -> dict[str, str]:
    if said is None:
        return {}
    hint = """paths = '{"amount": "data.object.amount", "event": "header:X-GitHub-Event"}'"""
    try:
        found = orjson.loads(text(said, "paths"))
    except ValueError as error:
        raise UsageError(f"paths is not valid JSON: {error}", hint=hint, option="paths") from None
    if not isinstance(found, dict) or not all(isinstance(path, str) and path for path in found.values()):
        raise UsageError(
            "paths must be a JSON object that maps each column to the place of its value",
            hint=hint,
            option="paths",
        )
    return found
