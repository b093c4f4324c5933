"""Parses posted bodies to rows of a topic: JSON, JSON lines and Arrow streams. Errors name the row and the column."""

from __future__ import annotations

import io
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import METADATA_COLUMNS, TopicDefinition
from headwater.core.arrow_bodies import StreamBounds, StreamError, StreamTooLargeError, read_stream
from headwater.core.errors import UsageError
from headwater.core.json_csv import UNREADABLE, InputRows, has_decimal, json_decoder, read_json, unreadable
from headwater.core.values import (
    converted_bytes,
    count_values,
    decoded_bytes,
    has_required_part,
    null_bytes,
)
from headwater.web.problems import Problem
from headwater.web.server_settings import ServerSettings

Rows = Any
"""A list of dicts, or an Arrow table."""
NOTHING_WRITTEN = "nothing of this append was written"
EXPANSION_MAX = 8
"""Maximum size of the decoded rows, as a multiple of the limit of the body: an Arrow stream may be compressed."""
CONTAINERS_PER_ROW = 8
"""Maximum number of objects and arrays in a JSON body per permitted row: each takes as few as two bytes in the body, and 70 in
memory."""
OBJECT_BYTES = 100
"""Size of a value as a Python object: columns with a nested NOT NULL field are checked as Python objects."""

_IGNORED = frozenset(name for name in METADATA_COLUMNS if name != "_op")
"""Metadata columns that a read returns and an append cannot set."""


class Media(Enum):
    """Kinds of bodies, with their media types."""

    JSON = "application/json"
    NDJSON = "application/x-ndjson"
    ARROW = "application/vnd.apache.arrow.stream"


_NAMES = {
    "application/json": Media.JSON,
    "application/x-ndjson": Media.NDJSON,
    "application/ndjson": Media.NDJSON,
    "application/jsonl": Media.NDJSON,
    "application/x-jsonlines": Media.NDJSON,
    "application/vnd.apache.arrow.stream": Media.ARROW,
}


def media_of(content_type: str | None, content_encoding: str | None = None) -> Media:
    """Return the kind of a body by its headers; Problem 415 for other headers. The kind is never guessed: a form on a web page
    cannot send any of these content types without a script."""
    if content_encoding not in (None, "", "identity"):
        raise Problem(
            415,
            "unsupported-encoding",
            f"content encoding {content_encoding!r} is not supported",
            hint="send the body unencoded; the buffers of an Arrow stream may be compressed",
        )
    name = (content_type or "").split(";")[0].strip().lower()
    found = _NAMES.get(name)
    if found is None:
        raise Problem(
            415,
            "unsupported-media-type",
            f"content type {name!r} is not supported" if name else "the request has no Content-Type",
            hint="Content-Type: " + ", ".join(media.value for media in Media),
        )
    return found


class BodyReader:
    """Parses bodies to rows for one topic; `conform` checks whether the rows fit the topic."""

    def __init__(
        self, topic: TopicDefinition, bytes_max: int, rows_max: int = ServerSettings.body_rows_max
    ) -> None:
        """`bytes_max`: maximum size of a body as it is sent. `rows_max`: maximum number of its rows."""
        self._topic = topic
        self._rows_max = rows_max
        self._bounds = StreamBounds(rows_max, bytes_max * EXPANSION_MAX)
        self.size = 0
        """Approximate size in bytes, in the columns of the topic, of the rows that were read last."""

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self._topic.given.schema}

    @cached_property
    def _row_bytes(self) -> int:
        """Minimum size of a row of JSON in the columns of the topic, in bytes."""
        return sum(map(null_bytes, self._types.values()))

    @cached_property
    def _exact(self) -> bool:
        return any(map(has_decimal, self._types.values()))

    @cached_property
    def _decoders(self) -> list[tuple[pa.Field, Callable[[Any], Any]]]:
        fields = self._topic.given.schema
        return [(field, decode) for field in fields if (decode := json_decoder(field.type)) is not None]

    def rows(self, body: bytes, media: Media) -> Rows:
        """Return the rows of a body, as Python or Arrow values. UsageError or BadRowError, which name the row or line, if they
        cannot be read; Problem 413 if they exceed the limits."""
        if media is Media.ARROW:
            return self._arrow(body)
        rows = self._lines(body) if media is Media.NDJSON else self._document(body)
        self._check_size(len(rows) * self._row_bytes)
        for row in rows:
            if isinstance(row, dict) and not _IGNORED.isdisjoint(row):  # type: ignore[redundant-expr]
                for name in row.keys() & _IGNORED:
                    del row[name]
        for field, decode in self._decoders:
            self._decode(rows, field, decode)
        return rows

    def _decode(self, rows: list[dict[str, Any]], field: pa.Field, decode: Callable[[Any], Any]) -> None:
        """Replace the JSON values of a column by values of its type, in place."""
        name, given = field.name, InputRows(self._topic.name, "row {}", NOTHING_WRITTEN)
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                continue  # type: ignore[unreachable]  # any JSON value: rejected later, with the row's number
            value = row.get(name)
            if value is None:
                continue
            try:
                row[name] = decode(value)
            except UNREADABLE:
                raise unreadable(value, field, given, number) from None

    # --- JSON ------------------------------------------------------------------------------------------------------

    def _document(self, body: bytes) -> list[dict[str, Any]]:
        self._check_containers(body)
        try:
            found = read_json(body, exact=self._exact)
        except ValueError as error:
            raise UsageError(
                f"the body is not JSON: {error}",
                hint="an object is one row, an array several; JSON lines are application/x-ndjson",
            ) from None
        if isinstance(found, dict):
            return [found]
        if not isinstance(found, list):
            raise UsageError(
                "the body is neither a JSON object nor an array of objects",
                hint='{"id": 1}, or [{"id": 1}, {"id": 2}]',
            )
        if len(found) > self._rows_max:
            raise self._too_many_rows()
        return found

    def _lines(self, body: bytes) -> list[dict[str, Any]]:
        self._check_containers(body)
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(io.BytesIO(body), start=1):
            if line.isspace():
                if number > 2 * self._rows_max:  # empty lines cost time, too
                    raise self._too_many_rows()
                continue
            try:
                row = read_json(line, exact=self._exact)
            except ValueError as error:
                raise UsageError(
                    f"line {number} is not JSON: {error}",
                    hint="JSON lines have one object per line",
                    topic=self._topic.name,
                    row=len(rows),
                    line=number,
                ) from None
            if len(rows) >= self._rows_max:
                raise self._too_many_rows()
            rows.append(row)
        return rows

    def _check_containers(self, body: bytes) -> None:
        """Raise Problem 413 for a body with too many objects and arrays, before it is parsed. Brackets within texts count, too;
        usual bodies have far fewer of them than the limit."""
        most = CONTAINERS_PER_ROW * self._rows_max
        if len(body) > 2 * most and body.count(b"{") + body.count(b"[") > most:
            raise Problem(
                413,
                "body-too-large",
                f"the body has more than {most:,} objects and arrays",
                hint="send the rows in several requests",
            )

    # --- Arrow -----------------------------------------------------------------------------------------------------

    def _arrow(self, body: bytes) -> pa.Table:
        try:
            table, size = read_stream(body, self._bounds)
        except StreamTooLargeError as error:
            raise Problem(
                413,
                "body-too-large",
                f"the Arrow stream is too large: {error}",
                hint="send the rows in several requests",
            ) from None
        except StreamError as error:
            raise UsageError(
                "the body is not a supported Arrow stream",
                detail=str(error) or None,
                hint="docs/http.md lists the types; views of strings, as polars writes them, are sent as plain strings",
                topic=self._topic.name,
                reason="arrow-stream",
            ) from None
        topic = self._topic.given
        if not topic.nested_places and table.schema.equals(topic.row_schema):  # nothing is converted
            self._check_size(size)
            return table
        if not _IGNORED.isdisjoint(table.column_names):
            table = table.select([i for i, name in enumerate(table.column_names) if name not in _IGNORED])
        self._check_size(self._size_of(table))
        return table

    # --- bounds ----------------------------------------------------------------------------------------------------

    def _check_size(self, size: int) -> None:
        self.size = size
        if size > self._bounds.bytes_max:
            raise Problem(
                413,
                "body-too-large",
                f"the rows take about {size:,} bytes in the columns of topic {self._topic.name!r}, "
                f"more than the limit of {self._bounds.bytes_max:,}",
                hint="send the rows in several requests",
            )

    def _size_of(self, rows: pa.Table) -> int:
        """Return the approximate size of rows in the columns of the topic, in bytes. Missing columns are NULL, which takes
        space, too."""
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        size = 0
        for name in given.keys() - self._types.keys():  # `_op`, and columns that are rejected later
            size += sum(map(decoded_bytes, given[name].chunks))
        for name, kind in self._types.items():
            column = given.get(name)
            if column is None:
                size += rows.num_rows * null_bytes(kind)
            elif column.type == kind:
                size += column.nbytes
            else:
                size += sum(converted_bytes(chunk, kind) for chunk in column.chunks)
            if column is not None and has_required_part(kind):
                size += OBJECT_BYTES * sum(map(count_values, column.chunks))
        return size

    def _too_many_rows(self) -> Problem:
        return Problem(
            413,
            "body-too-large",
            f"the body has more than {self._rows_max:,} rows",
            hint="send the rows in several requests; headwater serve --body-rows N raises the limit",
        )
