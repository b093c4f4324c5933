"""Request and reply over the log: a request is a record of a topic, its reply a record of `<topic>_replies`, by call id.

Either side may crash and restart. A request is written once: a caller that sends it again under its id waits for the same
reply. A reply is written once, in the commit that advances the service's position. Other effects of a service should use the
call's id too: `store.execute(..., command_id=call.id)` has one effect, however often the call is processed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock
from headwater.core.errors import (
    CallFailedError,
    ConflictError,
    HeadwaterError,
    LogTimeoutError,
    SchemaError,
    StorageError,
    UsageError,
    shown,
)
from headwater.events.aggregates import parameter_hint, raising
from headwater.events.event_positions import KeyOffsets
from headwater.events.event_schema import DataclassColumns, ensure_columns
from headwater.events.field_types import hints_of
from headwater.events.service_thread import Background
from headwater.log.protocol import Append, CursorMove, Log

REPLIES = "_replies"
BATCH_CALLS = 200
"""Maximum number of calls that are answered in one commit."""
BATCH_MS = 20.0
"""Time after which answers are written, however many calls still wait."""
PIECE_MS = 500.0
"""Interval in which an event loop's wait for a reply is divided."""
ATTEMPTS_MAX = 20
CONFLICT_WAIT_MS = 20.0
REQUEST = (pa.field("call_id", pa.string(), nullable=False),)
REPLY = (pa.field("call_id", pa.string(), nullable=False), pa.field("error", pa.string()))
OPTIONS = {"versioned_by": "call_id"}


@dataclass(frozen=True)
class Call:
    """A call that is being served."""

    id: str
    """Id of the call, equal each time that it is processed: the command id for its effects."""
    topic: str


@dataclass(frozen=True)
class _Sent:
    """A sent call whose reply is awaited."""

    replies: TopicDefinition
    name: str


class CallClient:
    """The callers' side of calls, for one workspace."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._key_offsets: dict[tuple[str, int], KeyOffsets] = {}

    def call(
        self, topic: str, request: Any, timeout_ms: float | None, call_id: str | None, returns: type | None
    ) -> Any:
        """Send a request, unless it was sent under its id before, and wait for its reply."""
        sent = self._send(topic, request, call_id)
        return _result(sent, self._reply(sent, timeout_ms), timeout_ms, returns)

    async def call_async(
        self, topic: str, request: Any, timeout_ms: float | None, call_id: str | None, returns: type | None
    ) -> Any:
        """`call` for an event loop. The wait is divided into intervals, so that a cancelled task leaves no thread waiting
        for longer."""
        sent = await asyncio.to_thread(self._send, topic, request, call_id)
        left = math.inf if timeout_ms is None else timeout_ms
        while True:
            row = await asyncio.to_thread(self._reply, sent, min(left, PIECE_MS))
            left -= PIECE_MS
            if row is not None or left <= 0:
                return _result(sent, row, timeout_ms, returns)

    def _send(self, topic: str, request: Any, call_id: str | None) -> _Sent:
        if not dataclasses.is_dataclass(request) or isinstance(request, type):
            raise UsageError(
                f"a request must be an instance of a dataclass, not {shown(request)}",
                hint="the fields of the dataclass are the columns of the topic",
                argument="request",
                value=request,
            )
        name = uuid.uuid4().hex if call_id is None else _checked(call_id)
        columns = DataclassColumns(type(request), reserved=_names(REQUEST))
        made = ensure_columns(self._log, topic, REQUEST, columns.fields_of_topic, OPTIONS)
        replies = ensure_columns(self._log, made.name + REPLIES, REPLY, [], OPTIONS)
        row = {"call_id": name, **columns.to_row(request)}
        batch = conform([row], made)
        append = Append(
            {made.name: [batch]}, expect={made.name: {name: 0}}, incarnations={made.name: made.incarnation}
        )
        try:
            self._log.append(append)
        except ConflictError:
            self._check_same(made, name, batch)
        return _Sent(replies, name)

    def _check_same(self, made: TopicDefinition, name: str, batch: pa.RecordBatch) -> None:
        """Raise UsageError if the id was used for another request."""
        found = self._find(made, name, batch.schema.names)
        asked = batch.to_pylist()[0]
        asked |= {column: None for column, _ in made.private if found and found.get(column) is None}
        if found is not None and found != asked:
            raise UsageError(
                f"call id {name!r} is already used for another request to {made.name!r}",
                hint="use a new id for a new request; the same request with the same id returns the same reply",
                topic=made.name,
                call_id=name,
            )

    def _reply(self, sent: _Sent, timeout_ms: float | None) -> dict[str, Any] | None:
        """Return the reply as a row; None if there is none in time."""
        began, topic = self._clock.steady_ms(), sent.replies.name
        while True:
            ends = self._log.ends([topic])[topic]
            current = self._log.topic(topic)
            row = self._find(current, sent.name, current.schema.names)
            left = None if timeout_ms is None else began + timeout_ms - self._clock.steady_ms()
            if row is not None or (left is not None and left <= 0) or not self._log.wait(topic, ends, left):
                return row

    def _find(self, topic: TopicDefinition, name: str, columns: list[str]) -> dict[str, Any] | None:
        with self._lock:
            known = (topic.name, topic.incarnation)
            if known not in self._key_offsets:
                self._key_offsets[known] = KeyOffsets(self._log, topic, ["call_id"])
            places = self._key_offsets[known]
            places.refresh()
            for batch in places.records(0, (name,), places.offsets(0, (name,)), columns):
                row: dict[str, Any] = batch.to_pylist()[0]
                return row
        return None


class Service(Background):
    """A function that answers calls: `run()` answers the present ones, `start()` continues in the background."""

    def __init__(self, log: Log, clock: Clock, topic: str, function: Callable[..., Any]) -> None:
        super().__init__(log.faults, f"service {topic}")
        request: Any = parameter_hint(function, 0)
        reply: Any = hints_of(function).get("return")
        if not _is_dataclass(request) or not _is_dataclass(reply):
            raise SchemaError(
                f"the request and the reply of {getattr(function, '__name__', function)!r} must be annotated with dataclasses",
                hint="def quote(request: Request, call: Call) -> Reply: with dataclasses for both",
                function=getattr(function, "__name__", str(function)),
                reason="not-annotated",
            )
        self._log = log
        self._clock = clock
        self._function = function
        self._called = self._plain(function)
        self._request = DataclassColumns(request, reserved=_names(REQUEST))
        self._answer = DataclassColumns(reply, reserved=_names(REPLY))
        self.topic = ensure_columns(log, topic, REQUEST, self._request.fields_of_topic, OPTIONS)
        self._replies = ensure_columns(
            log, self.topic.name + REPLIES, REPLY, self._answer.fields_of_topic, OPTIONS
        )
        self._cursor = self.name = f"serve {self.topic.name}"
        if log.cursor(self.topic.name, self._cursor) is None:
            log.create_cursor(self.topic.name, self._cursor, {0: 0}, False)
        self._key_offsets = KeyOffsets(log, self._replies, ["call_id"])

    def __call__(self, *arguments: Any) -> Any:
        """Call the function directly, for tests."""
        return self._function(*arguments)

    def run(self) -> int:
        """Answer all present calls, and return their number."""
        answered = 0
        while (count := self._answer_some()) is not None:
            answered += count
        return answered

    async def run_async(self) -> int:
        """`run` for an event loop."""
        return await asyncio.to_thread(self.run)

    def _step(self, timeout_s: float) -> None:
        ends = self._log.ends([self.topic.name])[self.topic.name]
        if self._answer_some() is None:
            self._log.wait(self.topic.name, ends, timeout_s * 1e3)

    def _answer_some(self) -> int | None:
        """Answer some calls in one commit; return the number of calls processed, None if there are no more."""
        stored = self._log.cursor(self.topic.name, self._cursor)
        start = stored.positions.get(0, 0) if stored is not None else 0
        end = min(self._log.ends([self.topic.name])[self.topic.name][0], start + BATCH_CALLS)
        if start >= end:
            return None
        names = [*self._log.topic(self.topic.name).schema.names, "_offset"]
        there = [
            row
            for batch in self._log.read(self.topic.name, 0, start, end, names)
            for row in batch.to_pylist()
        ]
        replies = self._replies_to(there)
        calls = [row for row in there if row["call_id"] in replies]
        if len(calls) < len(there):
            end = there[len(calls)]["_offset"]
        move = CursorMove(self.topic.name, self._cursor, {0: end})
        for _ in range(ATTEMPTS_MAX):
            seen = self._log.sequence()
            try:
                self._commit([reply for reply in replies.values() if reply is not None], move)
            except ConflictError:  # another service has answered one of these calls first
                self._log.wait_commit(seen, CONFLICT_WAIT_MS)
                self._key_offsets.refresh()
                replies = {name: None if self._answered(name) else reply for name, reply in replies.items()}
                continue
            return len(calls)
        raise ConflictError(
            f"another process wrote replies of {self.topic.name!r} first, {ATTEMPTS_MAX} times in a row",
            hint="run one service for a topic",
            topic=self.topic.name,
            attempts=ATTEMPTS_MAX,
        )

    def _replies_to(self, calls: list[dict[str, Any]]) -> dict[str, dict[str, Any] | None]:
        """Return the replies to the first of these calls, as many as time permits; None for calls that were answered before."""
        replies: dict[str, dict[str, Any] | None] = {}
        began = self._clock.steady_ms()
        self._key_offsets.refresh()
        for row in calls:
            name = row["call_id"]
            try:
                replies[name] = None if self._answered(name) else self._served(row)
            except HeadwaterError:
                if not replies:
                    raise
                break  # the calls before it are answered first
            if self._clock.steady_ms() - began > BATCH_MS:
                break
        return replies

    def _answered(self, name: str) -> bool:
        return bool(len(self._key_offsets.offsets(0, (name,))))

    def _commit(self, rows: list[dict[str, Any]], move: CursorMove) -> None:
        batches = {self._replies.name: [conform(rows, self._replies)]} if rows else {}
        expect = {self._replies.name: {row["call_id"]: 0 for row in rows}} if rows else {}
        made_for = {self._replies.name: self._replies.incarnation} if rows else {}
        self._log.append(Append(batches, expect=expect, moves=(move,), incarnations=made_for))

    def _served(self, row: dict[str, Any]) -> dict[str, Any]:
        name = row["call_id"]
        try:
            request = self._request.from_row(row)
        except KeyError as missing:
            return self._failed(row, f"the request has no value for field {missing}")
        except Exception as error:  # noqa: BLE001 - a class may refuse its fields with any error
            kind = self._request.kind.__name__
            return self._failed(row, f"the request is not a valid {kind}: {type(error).__name__}: {error}")
        try:
            arguments = (request, Call(name, self.topic.name))
            count = len(inspect.signature(self._function).parameters)
            reply = raising(self._called, arguments[:count], self.topic.name, f"call {name!r}")
            answer = {"call_id": name, **self._answer.to_row(reply)}
            conform([answer], self._replies)
        except ConflictError as error:  # a version named by the service does not match: that is the answer
            return self._failed(row, error.message)
        except HeadwaterError as error:
            if error.retryable or isinstance(error, StorageError):
                # not caused by the call, which is processed again
                raise
            return self._failed(row, error.message)
        except (AttributeError, TypeError, ValueError) as error:
            return self._failed(row, f"the reply is not a valid {self._answer.kind.__name__}: {error}")
        return answer

    def _failed(self, row: dict[str, Any], error: str) -> dict[str, Any]:
        """Return the reply of a failed call, with the columns that every reply copies from its request, such as the subject."""
        needed = [field.name for field in self._replies.schema if not field.nullable and field.name in row]
        return {**{column: row[column] for column in needed}, "error": error}


def _result(sent: _Sent, row: dict[str, Any] | None, timeout_ms: float | None, returns: type | None) -> Any:
    """Return the result of a reply for the caller; LogTimeoutError if there is no reply."""
    topic = sent.replies.name.removesuffix(REPLIES)
    if row is None:
        raise LogTimeoutError(
            f"call {sent.name!r} was not answered within {(timeout_ms or 0.0) / 1e3:g} seconds",
            detail="the request is in the log, and is answered once a service of its topic runs",
            hint=f"call again with call_id={sent.name!r} to wait for the same reply",
            topic=topic,
            call_id=sent.name,
            timeout_ms=timeout_ms,
        )
    if row["error"] is not None:
        raise CallFailedError(
            row["error"],
            detail=f"the service replied to call {sent.name!r} with this error",
            hint="the reply to a call id does not change: to try again, call with another id",
            topic=topic,
            call_id=sent.name,
        )
    if returns is None:
        return {name: value for name, value in row.items() if name not in _names(REPLY)}
    try:
        return DataclassColumns(returns).from_row(row)
    except Exception as error:
        why = (
            f"field {error} has no value"
            if isinstance(error, KeyError)
            else f"{type(error).__name__}: {error}"
        )
        raise UsageError(
            f"the reply to call {sent.name!r} cannot be read as {returns.__name__}: {why}",
            hint="`returns` must be the dataclass that the service returns; without it the reply is a dict",
            topic=topic,
            call_id=sent.name,
            returns=returns.__name__,
        ) from error


def _names(fields: tuple[pa.Field, ...]) -> tuple[str, ...]:
    return tuple(field.name for field in fields)


def _is_dataclass(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _checked(call_id: Any) -> str:
    if not isinstance(call_id, str) or not call_id or not call_id.isprintable():
        raise UsageError(
            f"call_id must be a string of printable characters, not {shown(call_id)}",
            argument="call_id",
            value=call_id,
        )
    return call_id
