"""Limits on incoming requests: the number of connections, and the time that a request's head and body may take.

A request that is too slow is answered with 408 and its connection is closed; a connection too many is answered with 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import resource
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headwater.web.large_responses import ABORT
from headwater.web.problems import MEDIA_TYPE, Problem, retry_after
from headwater.web.server_settings import ServerSettings

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

T = TypeVar("T")
FILES_KEPT = 256
"""File descriptors of the process that are left to the workspace."""


async def in_time(request: Request, reading: Awaitable[T]) -> T:
    """Return the result of reading a body; Problem 408 if that takes longer than the setting allows."""
    seconds = request.app.state.served.settings.body_s
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError:
        raise _too_slow(
            "body",
            seconds,
            "send it faster, or in several requests; headwater serve --body-timeout '5 minutes'",
        ) from None


async def whole(request: Request, bytes_max: int, what: str) -> bytes:
    """Return a body that must be small; Problem 413 if it is not."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > bytes_max:
            raise Problem(
                413,
                "body-too-large",
                f"{what} has at most {bytes_max:,} bytes",
                headers={"Connection": "close"},
            )
    return body


def protocol_of(settings: ServerSettings) -> type[asyncio.Protocol]:
    """Return the HTTP protocol class of the server, with the limits of the settings."""
    most = connections_max(settings)

    class Bounded(_Bounded):
        """The protocol with the limits of these settings."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.connections_max, self.head_s = most, settings.head_s
            self.stall_s = settings.stall_s
            self.retry_after_s = settings.retry_after_s

    return Bounded


def raise_files_max(settings: ServerSettings) -> None:
    """Raise the process's limit of open files towards one per connection, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.connections_max + FILES_KEPT
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max(settings: ServerSettings) -> int:
    """Return the maximum number of connections: the setting's, or fewer if the system allows fewer open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings.connections_max
    return min(settings.connections_max, max(soft - FILES_KEPT, soft // 2))


class _Bounded(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a time limit for heads and a limit on the number of connections."""

    connections_max: int
    head_s: float
    stall_s: float
    retry_after_s: int
    _awaiting_head: TimerHandle | None = None
    _within_head = False
    _stalled: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head, or reject the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._end_with(
                Problem(
                    503,
                    "too-many-connections",
                    f"{self.connections_max:,} connections are open, which is the limit",
                    hint="retry later; headwater serve --connections N raises the limit",
                    headers=retry_after(self.retry_after_s),
                )
            )
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        """Begin to wait for a head: any data between requests, even an empty line, begins the next request."""
        if self.transport.is_closing():
            return
        under_way: RequestResponseCycle | None = self.cycle
        self._within_head |= under_way is None or under_way.response_complete
        super().data_received(data)
        if self._within_head and self._awaiting_head is None:  # most heads come in one piece
            self._await_head()

    def on_headers_complete(self) -> None:
        """Stop the time limit: the head is complete."""
        self._within_head = False
        self._stop_awaiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of a body on without a copy if no other piece waits: uvicorn would copy it into a buffer and out of it."""
        cycle: Any = self.cycle
        if not cycle.body:
            cycle.body = b""  # adding to empty bytes copies nothing
        elif isinstance(cycle.body, bytes):
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all time limits."""
        self._stop_awaiting()
        self._stop_stalling()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Pass the connection's abort function to the request: a response that its client reads too slowly is aborted."""
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]

    def pause_writing(self) -> None:
        """Begin the time limit of a client that does not read; the connection is aborted at its end."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit: the client has read the data sent."""
        self._stop_stalling()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Abort the connection of an idle client that has not read all data sent: it never will."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _stop_stalling(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _await_head(self) -> None:
        self._awaiting_head = self.loop.call_later(self.head_s, self._head_is_late)

    def _stop_awaiting(self) -> None:
        if self._awaiting_head is not None:
            self._awaiting_head.cancel()
            self._awaiting_head = None

    def _head_is_late(self) -> None:
        self._awaiting_head = None
        if not self.transport.is_closing():
            self._end_with(_too_slow("head", self.head_s, "send the head of a request without pauses"))

    def _end_with(self, problem: Problem) -> None:
        """Respond without having read a request, and close the connection."""
        body = orjson.dumps(problem.document())
        headers = {
            "Content-Type": MEDIA_TYPE,
            "Content-Length": str(len(body)),
            **problem.headers,
            "Connection": "close",
        }
        head = f"HTTP/1.1 {problem.status} {http.HTTPStatus(problem.status).phrase}\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"{head}{lines}\r\n".encode("latin-1") + body)
        self.transport.close()


def _too_slow(what: str, seconds: float, hint: str) -> Problem:
    return Problem(
        408,
        f"{what}-too-slow",
        f"the {what} of the request did not arrive within {seconds:g} s",
        hint=hint,
        facts={"seconds_max": seconds},
        headers={"Connection": "close"},
    )
