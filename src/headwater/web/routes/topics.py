"""Route `/topics/{topic}`: POST appends rows, answered when they are durable; GET reads records, and can follow new ones."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from headwater.catalog.rules import FORGOTTEN
from headwater.core.positions import Receipt
from headwater.core.types import TIMESTAMP
from headwater.log.commit_history import check_commit, token_of
from headwater.log.reader import ReadOptions, TopicReader, resolve_start, shown_columns
from headwater.web import parameters
from headwater.web.commit_waiters import POLL_S
from headwater.web.event_streams import KEEP_ALIVE, RETRY_MS, ROWS_MAX, IdleTime, end, event, failed
from headwater.web.idempotency_keys import DELIVERIES, key_of
from headwater.web.idempotency_keys import TOPIC as KEYS
from headwater.web.ingest import Ingest, PostResult, Strangers
from headwater.web.problems import Problem, problem_of
from headwater.web.request_bodies import media_of
from headwater.web.request_limits import in_time
from headwater.web.response_formats import ResponseFormat, form_of, json_objects, json_response, rows_response
from headwater.web.server_context import ServedWorkspace, served

READ_ROWS = 1_000
READ_ROWS_MAX = 100_000
ROWS_AT_ONCE = 10_000
"""Number of rows above which responses have their own threads."""
READ_BYTES_MAX = 64 << 20
BATCH_ROWS = 8_192
BATCHES_AT_ONCE = 8
ROWS_ENDLESS = 10**15
_IN_PIECES = "send the rows in several requests; each has its own receipt"
PARAMETERS = ("from", "limit", "follow", "columns", "partition", "by", "on_gap")


async def append(request: Request) -> Response:
    """POST: append the rows of a body in one commit."""
    here = served(request)
    parameters.refuse_unknown(request, ())
    topic = request.path_params["topic"]
    if topic.lower() in (KEYS, DELIVERIES):
        raise Problem(403, "not-yours", f"topic {topic!r} is internal: only the server writes to it")
    media = media_of(request.headers.get("content-type"), request.headers.get("content-encoding"))
    body, reserved = b"", 0
    try:
        body, reserved = await received(request, here.ingest, here.settings.body_bytes_max, _IN_PIECES)
        key = None
        if (name := request.headers.get("idempotency-key")) is not None:
            key = key_of(name, request.scope["headwater.guest"], topic, media.value, body)
        done = await here.ingest.append(topic, body, media, key)
    finally:
        here.ingest.release(reserved)
    return receipt_response(done)


def receipt_response(done: PostResult) -> Response:
    """Return the response for written rows, whether written now or by an earlier post."""
    document = receipt_document(done.receipt)
    headers = {"Headwater-Receipt": document["receipt"]}
    if done.replayed:
        headers["Idempotency-Replayed"] = "true"
    return json_response(document, headers=headers)


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON, with its text form for `after=`."""
    return {
        "receipt": str(receipt),
        "rows": receipt.rows,
        "positions": {
            topic: {str(p): list(span) for p, span in sorted(parts.items())}
            for topic, parts in receipt.positions.items()
        },
    }


async def received(request: Request, room: Ingest | Strangers, most: int, hint: str) -> tuple[bytes, int]:
    """Return the body, and the space reserved for it: for received bytes, not for the announced length. Problem 413,
    with this hint, if the body has more than `most` bytes; 408 if it arrives too slowly."""
    return await in_time(request, _received(request, room, most, hint))


async def _received(request: Request, room: Ingest | Strangers, most: int, hint: str) -> tuple[bytes, int]:
    said = request.headers.get("content-length")
    length = int(said) if said is not None and re.fullmatch(r"\d{1,18}", said) else None
    if length is not None and length > most:
        raise _too_large(most, hint)
    room.check(length or 0)
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            if not piece:  # the last one is, and to join it with another would copy that
                continue
            if size + len(piece) > most:
                raise _too_large(most, hint)
            room.reserve(len(piece), size + len(piece))
            size += len(piece)
            pieces.append(piece)
    except BaseException:
        room.release(size)
        raise
    return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), size


def _too_large(most: int, hint: str) -> Problem:
    return Problem(
        413,
        "body-too-large",
        f"a body has at most {most:,} bytes",
        hint=hint,
        facts={"bytes_max": most},
        headers={"Connection": "close"},
    )


async def read(request: Request) -> Response:
    """GET: return records from a position on; with `follow`, also new ones."""
    here = served(request)
    parameters.refuse_unknown(request, PARAMETERS)
    if parameters.flag(request, "follow"):
        return await _follow(request, here)
    form = form_of(request, (ResponseFormat.JSON, ResponseFormat.NDJSON, ResponseFormat.ARROW))
    limit = parameters.whole(request, "limit", READ_ROWS, 1, READ_ROWS_MAX)
    work = here.run if limit <= ROWS_AT_ONCE else here.scan
    return await work(_page, request, here, form, limit)


def _page(request: Request, here: ServedWorkspace, form: ResponseFormat, limit: int) -> Response:
    reading = _Reading(request, here, follow=False)
    rows, more = reading.all(limit)
    place = reading.place
    return rows_response(
        rows,
        form,
        {"topic": reading.topic.name, "next": place, "more": more},
        {"Headwater-Next": place, "Headwater-More": str(more).lower()},
    )


class _Reading:
    """A read of a topic with the parameters of a request. Its methods block."""

    def __init__(self, request: Request, here: ServedWorkspace, *, follow: bool) -> None:
        query = request.query_params
        self.topic = here.log.topic(request.path_params["topic"])
        self._log = here.log
        infos = self._log.partitions(self.topic.name)
        wanted = None
        if (text := query.get("columns")) is not None:
            wanted = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        self.columns = shown_columns(self.topic, wanted)
        read = tuple(dict.fromkeys((*self.columns, "_partition", "_offset", "_sequence")))
        partitions = None
        if "partition" in query:
            partitions = [parameters.whole(request, "partition", 0, 0, len(infos) - 1)]
        place = request.headers.get("last-event-id") if follow else None
        start: Any = (
            parameters.places(place)
            if place
            else parameters.start_of(query.get("from", "latest" if follow else "earliest"), infos)
        )
        self._commit = parameters.commit_of(place or query.get("from"))
        check_commit(self._log, self._commit, "the position")
        by: Any = query.get("by", "appended")
        begin = resolve_start(self._log, self.topic.name, start, by, partitions)
        on_gap: Any = query.get("on_gap", "fail")
        options = ReadOptions(read, ROWS_MAX if follow else BATCH_ROWS, on_gap)
        self._reader = TopicReader(
            self._log, self.topic.name, begin, options, follow=follow, timeout=0 if follow else None
        )
        self.positions: Mapping[int, int] = dict(begin)
        self._last = 0

    def next(self, limit: int) -> pa.RecordBatch | None:
        """Return the next records, at most `limit`; None if there are no more now."""
        batch = next(self._reader, None)
        positions = dict(self._reader.positions)
        if batch is not None and batch.num_rows > limit:
            batch = batch.slice(0, limit)
            positions[batch.column("_partition")[0].as_py()] = batch.column("_offset")[-1].as_py() + 1
            self._reader.seek(positions)
        self.positions = positions
        if batch is None:
            return None
        if batch.num_rows and (last := batch.column("_sequence")[-1].as_py()) > self._last:
            self._last = last
        return batch.select(list(self.columns))

    @property
    def place(self) -> str:
        """The current position, as text from which a read can continue, with the last commit that was read."""
        if self._last and (self._commit is None or self._commit.number < self._last):
            self._commit = token_of(self._log, self._last)
        return parameters.place_text(self.positions, self._commit)

    def all(self, limit: int) -> tuple[pa.Table, bool]:
        """Return the records up to a limit, and whether there are more."""
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        while rows < limit and size < READ_BYTES_MAX and (batch := self.next(limit - rows)) is not None:
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        ends = self._log.ends([self.topic.name])[self.topic.name]
        more = any(position < ends[p] for p, position in self.positions.items())
        if not batches:
            return pa.table({name: pa.array([], self._type(name)) for name in self.columns}), more
        return pa.Table.from_batches(batches), more

    def next_rows(self, limit: int) -> list[tuple[list[str], str]]:
        """Return a few available batches, each as JSON objects with the position after it."""
        found: list[tuple[list[str], str]] = []
        while limit > 0 and len(found) < BATCHES_AT_ONCE and (batch := self.next(limit)) is not None:
            found.append((json_objects(batch), self.place))
            limit -= batch.num_rows
        return found

    def _type(self, name: str) -> pa.DataType:
        if name in self.topic.schema.names:
            return self.topic.schema.field(name).type
        return _HIDDEN_TYPES.get(name, pa.string())


_HIDDEN_TYPES = {
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_appended_at": TIMESTAMP,
    "_watermark": TIMESTAMP,
    "_sequence": pa.int64(),
    "_version": pa.int64(),
    FORGOTTEN: pa.bool_(),
}


async def _follow(request: Request, here: ServedWorkspace) -> Response:
    form = form_of(request, (ResponseFormat.EVENTS, ResponseFormat.NDJSON))
    limit = parameters.whole(request, "limit", ROWS_ENDLESS, 1, ROWS_ENDLESS)
    reading = await here.run(_Reading, request, here, follow=True)
    return here.streams.respond(_pieces(here, reading, form, limit), form)


async def _pieces(
    here: ServedWorkspace, reading: _Reading, form: ResponseFormat, limit: int
) -> AsyncGenerator[bytes, None]:
    """Yield records as they are appended. An event's id is its position: a client that reconnects with it continues
    after it."""
    events = form is ResponseFormat.EVENTS
    idle = IdleTime(here.settings.keep_alive_s)
    if events:
        yield f"retry: {RETRY_MS}\n\n".encode()
    with here.watch.topic(reading.topic.name) as bell:
        while limit > 0 and not here.streams.stopping.is_set():
            rung = bell.rung
            try:
                found = await here.stream_step(reading.next_rows, limit)
            except Exception as error:  # noqa: BLE001 - the response has begun: its last event reports the error
                yield (
                    failed(error) if events else orjson.dumps({"error": problem_of(error).document()}) + b"\n"
                )
                return
            for objects, place in found:
                limit -= len(objects)
                idle.broken()
                if events:
                    yield event("records", f'{{"next":"{place}","rows":[{",".join(objects)}]}}', place)
                else:
                    yield ("\n".join(objects) + "\n").encode()
            if not found:
                await bell.wait(POLL_S, rung)
                if idle.too_long:
                    idle.broken()
                    yield KEEP_ALIVE if events else b"\n"
    if events:
        yield end("the server stops" if limit > 0 else "the limit is reached")
