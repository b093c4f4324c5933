"""What is posted, as rows of a topic: JSON, JSON lines and Arrow streams, or an error that names the row and the column."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import pyarrow as pa

from headwater.catalog import HIDDEN, TopicDefinition
from headwater.errors import UsageError
from headwater.texts import decoded, has_decimal, json_decoder, read_json
from headwater.web.problems import Problem

Rows = Any
"""A list of dicts, or an Arrow table."""
NOTHING_WRITTEN = "nothing of this append was written"
EXPANSION_MAX = 8
"""An Arrow stream may be compressed: so many times the limit of a body it may be once it is read."""

_IGNORED = frozenset(name for name in HIDDEN if name != "_op")
"""Columns that a read gives and an append cannot."""


class Media(Enum):
    """The kinds of bodies, by their media types."""

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
    """What a body is, by its headers. Nothing is guessed: a form on a web page can send none of these by itself."""
    if content_encoding not in (None, "", "identity"):
        raise Problem(
            415,
            "unsupported-encoding",
            f"bodies are not taken in encoding {content_encoding!r}",
            hint="send it as it is; an Arrow stream may be compressed inside",
        )
    name = (content_type or "").split(";")[0].strip().lower()
    found = _NAMES.get(name)
    if found is None:
        raise Problem(
            415,
            "unsupported-media-type",
            f"a body of type {name!r} is not taken" if name else "the type of the body is not said",
            hint="Content-Type: " + ", ".join(media.value for media in Media),
        )
    return found


class BodyReader:
    """Makes rows of bodies for one topic; whether they fit it is for `conform` to say."""

    def __init__(self, topic: TopicDefinition, bytes_max: int) -> None:
        self._topic = topic
        self._bytes_max = bytes_max
        fields = list(topic.given.schema)
        self._exact = any(has_decimal(field.type) for field in fields)
        self._decoders = [
            (field, decode) for field in fields if (decode := json_decoder(field.type)) is not None
        ]

    def rows(self, body: bytes, media: Media) -> Rows:
        """The rows, with values of Python or Arrow; UsageError or BadRowError, with the place, where they cannot be read."""
        if media is Media.ARROW:
            return _arrow(body, self._bytes_max)
        rows = (
            _lines(body, self._topic, self._exact) if media is Media.NDJSON else _document(body, self._exact)
        )
        for row in rows:
            if isinstance(row, dict):
                for name in row.keys() & _IGNORED:
                    del row[name]
        for field, decode in self._decoders:
            self._decode(rows, field, decode)
        return rows

    def _decode(self, rows: list[dict[str, Any]], field: pa.Field, decode: Callable[[Any], Any]) -> None:
        """Put values in place of the texts that JSON has for them."""
        name = field.name
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                continue  # type: ignore[unreachable]  # JSON may have anything here: refused later, with its number
            value = row.get(name)
            if value is not None:
                row[name] = decoded(
                    decode, value, self._topic.name, f"row {number}", number, field, NOTHING_WRITTEN
                )


def _document(body: bytes, exact: bool) -> list[dict[str, Any]]:
    try:
        found = read_json(body, exact=exact)
    except ValueError as error:
        raise UsageError(
            f"the body is not JSON: {error}",
            hint="an object is a row, an array has several; JSON lines are application/x-ndjson",
        ) from None
    if isinstance(found, dict):
        return [found]
    if not isinstance(found, list):
        raise UsageError(
            "the body is neither a JSON object nor an array of objects",
            hint='{"id": 1}, or [{"id": 1}, {"id": 2}]',
        )
    return found


def _lines(body: bytes, topic: TopicDefinition, exact: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(body.split(b"\n"), start=1):
        if not line or line.isspace():
            continue
        try:
            row = read_json(line, exact=exact)
        except ValueError as error:
            raise UsageError(
                f"line {number} is not JSON: {error}",
                hint="JSON lines have one object per line",
                topic=topic.name,
                row=len(rows),
                line=number,
            ) from None
        rows.append(row)
    return rows


def _arrow(body: bytes, bytes_max: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    size = 0
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            for field in stream.schema:
                _check_type(field.type)
            for batch in stream:
                batch.validate(full=True)
                size += batch.nbytes
                if size > bytes_max * EXPANSION_MAX:
                    raise Problem(
                        413,
                        "body-too-large",
                        "the stream is too large once it is read",
                        hint="send it in pieces",
                    )
                batches.append(batch)
            table = pa.Table.from_batches(batches, schema=stream.schema)
            return table.select([i for i, name in enumerate(table.column_names) if name not in _IGNORED])
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise UsageError(
            "the body is not an Arrow stream", detail=str(error).splitlines()[0] if str(error) else None
        ) from None


def _check_type(kind: pa.DataType) -> None:
    """ArrowInvalid for types that no writer makes, and that Arrow does not survive converting."""
    types = pa.types
    if types.is_decimal(kind) and not (0 < kind.precision <= 76 and abs(kind.scale) <= 76):
        raise pa.ArrowInvalid(f"{kind} is no type")
    if types.is_dictionary(kind):
        _check_type(kind.value_type)
    elif types.is_map(kind):
        _check_type(kind.key_type)
        _check_type(kind.item_type)
    elif types.is_nested(kind):
        for place in range(kind.num_fields):
            _check_type(kind.field(place).type)
