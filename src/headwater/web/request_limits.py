"""Requests as they come in: how many connections there may be, and how long a head and a body may take.

What is too slow is told so, with 408, and its connection ends; a connection too many is told to come again, with 503.
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
from headwater.web.problems import MEDIA_TYPE, Problem
from headwater.web.server_settings import ServerSettings

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

T = TypeVar("T")
FILES_KEPT = 256
"""Files of the process that are left to the workspace, out of those that the system gives it."""


async def in_time(request: Request, reading: Awaitable[T]) -> T:
    """What is read of a body; Problem 408 if it takes longer than the server's settings say."""
    seconds = request.app.state.served.settings.body_s
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError:
        raise _too_slow(
            "body", seconds, "send it faster, or in pieces; headwater serve --body-timeout '5 minutes'"
        ) from None


async def whole(request: Request, bytes_max: int, what: str) -> bytes:
    """A body that is to be small; Problem 413 if it is not."""
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
    """What speaks HTTP on each connection, within the bounds of the settings."""
    most = connections_max(settings)

    class Bounded(_Bounded):
        """For these settings."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.connections_max, self.head_s = most, settings.head_s
            self.stall_s = settings.stall_s
            self.retry_after_s = settings.retry_after_s

    return Bounded


def raise_files_max(settings: ServerSettings) -> None:
    """Let the process have a file for each connection, as far as the system lets it raise its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.connections_max + FILES_KEPT
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max(settings: ServerSettings) -> int:
    """How many there may be: where the system gives fewer files than that, those that it gives."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings.connections_max
    return min(settings.connections_max, max(soft - FILES_KEPT, soft // 2))


class _Bounded(HttpToolsProtocol):
    """uvicorn's, with a time for heads and a number of connections."""

    connections_max: int
    head_s: float
    stall_s: float
    retry_after_s: int
    _awaiting_head: TimerHandle | None = None
    _stalled: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """One more, or one too many."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._end_with(
                Problem(
                    503,
                    "too-many-connections",
                    f"there are {self.connections_max:,} connections already",
                    hint="come again a little later; headwater serve --connections N lets more in",
                    retry_after_s=self.retry_after_s,
                )
            )
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        """What comes between requests begins the next one, even if it is an empty line."""
        if self.transport.is_closing():
            return
        under_way: RequestResponseCycle | None = self.cycle
        if self._awaiting_head is None and (under_way is None or under_way.response_complete):
            self._await_head()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_awaiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._stop_awaiting()
        self._stop_stalling()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request may end its connection: an answer that its client takes in too slowly does."""
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]

    def pause_writing(self) -> None:
        """The client takes in less than it is sent: for a while that is all right."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken in what was sent."""
        self._stop_stalling()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for long; what the client has not taken in by now it never will."""
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
            self._end_with(_too_slow("head", self.head_s, "send it at once"))

    def _end_with(self, problem: Problem) -> None:
        """Answer without having read a request, and hang up."""
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
        f"the {what} of the request did not come within {seconds:g} s",
        hint=hint,
        facts={"seconds_max": seconds},
        headers={"Connection": "close"},
    )
