"""Tables as responses: JSON, JSON lines or an Arrow stream, negotiated with the client."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response

from headwater.core.json_csv import distinct
from headwater.operators.zset.delta import concat_rows
from headwater.sinks.base.text_values import json_texts
from headwater.web.problems import Problem


class ResponseFormat(Enum):
    """Media types of a response with rows."""

    JSON = "application/json"
    NDJSON = "application/x-ndjson"
    ARROW = "application/vnd.apache.arrow.stream"
    EVENTS = "text/event-stream"


FEW_ROWS = 16
"""Number of rows up to which one row at a time is written faster than columns are."""
_ANY = {"*/*", "application/*", ""}
_ALSO = {"application/ndjson": ResponseFormat.NDJSON, "application/jsonl": ResponseFormat.NDJSON}


_ROWS = (ResponseFormat.JSON, ResponseFormat.NDJSON, ResponseFormat.ARROW)


def form_of(request: Request, offered: tuple[ResponseFormat, ...] = _ROWS) -> ResponseFormat:
    """Return the format that the Accept header prefers; the first one offered if the client accepts any; Problem 406."""
    accepted = request.headers.get("accept", "*/*")
    preferred = _preferred(accepted, offered)
    if preferred is None:
        raise Problem(
            406,
            "not-acceptable",
            f"no response format matches {accepted!r}",
            hint="Accept: " + ", ".join(form.value for form in offered),
        )
    return preferred


@lru_cache(maxsize=64)
def _preferred(accepted: str, offered: tuple[ResponseFormat, ...]) -> ResponseFormat | None:
    """Return the format that an Accept header prefers, or None if it accepts none of those offered."""
    wanted: list[tuple[float, int, str]] = []
    for part in accepted.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((_quality(p) for p in parameters if p.startswith("q=")), 1.0)
        if quality > 0:
            wanted.append((-quality, len(wanted), name))
    known = {form.value: form for form in offered} | {n: f for n, f in _ALSO.items() if f in offered}
    for _, _, name in sorted(wanted):
        if name in known:
            return known[name]
        if name in _ANY or (name == "text/*" and ResponseFormat.EVENTS in offered) or name == "text/html":
            return offered[0]
    return None


def _quality(text: str) -> float:
    try:
        return float(text[2:])
    except ValueError:
        return 1.0


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as a JSON response."""
    return Response(orjson.dumps(value), status, headers, media_type=ResponseFormat.JSON.value)


def rows_response(
    table: pa.Table, form: ResponseFormat, about: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Return rows as a response. In JSON, `about` has further members next to the rows; other formats have only `headers`."""
    if form is ResponseFormat.ARROW:
        return Response(arrow_bytes(table), 200, headers, media_type=form.value)
    objects = json_objects(table)
    if form is ResponseFormat.NDJSON:
        text = "\n".join(objects)
        return Response(text + "\n" if text else "", 200, headers, media_type=form.value)
    head = orjson.dumps(dict(about)).decode("utf-8")[:-1]
    body = f'{head}{"," if about else ""}"rows":[{",".join(objects)}]}}'
    return Response(body, 200, headers, media_type=form.value)


def json_objects(table: pa.Table | pa.RecordBatch) -> list[str]:
    """Return each row as a JSON object; NULL is null."""
    if isinstance(table, pa.Table):
        table = concat_rows(table.to_batches(), table.schema)
    if not table.num_columns or not table.num_rows:
        return ["{}"] * table.num_rows
    names = distinct(table.schema.names)
    if table.num_rows <= FEW_ROWS and all(map(_is_plain_in_json, table.schema.types)):
        columns = [column.to_pylist() for column in table.columns]
        rows = zip(*columns, strict=True)
        return [orjson.dumps(dict(zip(names, row, strict=True))).decode("utf-8") for row in rows]
    pieces: list[Any] = []
    for name, column in zip(names, table.columns, strict=True):
        label = ("," if pieces else "{") + orjson.dumps(name).decode("utf-8") + ":"
        texts = json_texts(column)
        pieces += [label, pc.fill_null(texts, "null") if texts.null_count else texts]
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    return [str(text) for text in joined.to_pylist()]


def _is_plain_in_json(kind: pa.DataType) -> bool:
    """Whether orjson writes values of a type exactly as `json_texts` does."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind))


def arrow_bytes(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
