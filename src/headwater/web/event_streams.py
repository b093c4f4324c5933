"""Response streams that end when the client, the server or the source ends: server-sent events, JSON lines and Arrow batches.

A stream has a position and no queue: the next piece is computed after the previous one was sent. So a slow client
delays no other, and an idle stream waits in the event loop without a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headwater.web.problems import Problem, problem_of, retry_after
from headwater.web.response_formats import ResponseFormat

RETRY_MS = 1_000
"""Delay after which a browser reconnects when a stream has ended, in milliseconds."""
KEEP_ALIVE = b": keep-alive\n\n"
ROWS_MAX = 1_000
"""Maximum number of rows in one event."""


class IdleTime:
    """The time since a stream sent its last piece."""

    def __init__(self, keep_alive_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self.broken()

    def broken(self) -> None:
        """Restart the idle time: the stream has sent a piece."""
        self._since = asyncio.get_running_loop().time()

    @property
    def too_long(self) -> bool:
        """Whether a keep-alive is due."""
        return asyncio.get_running_loop().time() - self._since >= self._keep_alive_s


def event(kind: str, data: Mapping[str, object] | str, identity: str | None = None) -> bytes:
    """Return one server-sent event; `data` is JSON on one line."""
    text = data if isinstance(data, str) else orjson.dumps(dict(data)).decode("utf-8")
    head = f"id: {identity}\n" if identity is not None else ""
    return f"{head}event: {kind}\ndata: {text}\n\n".encode()


def end(reason: str) -> bytes:
    """Return the last event of a stream that the server ends."""
    return event("end", {"reason": reason})


def failed(error: Exception) -> bytes:
    """Return the last event of a stream that failed."""
    return event("error", problem_of(error).document())


class Streams:
    """Limits the number of open streams, and signals them to end when the server stops."""

    def __init__(self, most: int, retry_after_s: int, may_stay: Callable[[str], bool]) -> None:
        """`may_stay` decides whether a client, given by the digest of its token, may receive more of a stream."""
        self._most = most
        self._retry_after_s = retry_after_s
        self.may_stay = may_stay
        self.open = 0
        self.stopping = asyncio.Event()

    def respond(
        self,
        pieces: AsyncGenerator[bytes, None],
        form: ResponseFormat,
        headers: Mapping[str, str] | None = None,
    ) -> StreamingResponse:
        """Return a response that streams pieces; Problem 429 if too many streams are open."""
        if self.open >= self._most:
            raise Problem(
                429,
                "too-many-streams",
                f"{self._most:,} streams are open, which is the limit",
                hint="close a stream, or retry later",
                headers=retry_after(self._retry_after_s),
            )
        return _Stream(
            self,
            pieces,
            media_type=form.value,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})},
        )


class _Stream(StreamingResponse):
    """A response that counts as an open stream until it ends."""

    def __init__(
        self,
        streams: Streams,
        pieces: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(pieces, headers=headers, media_type=media_type)
        self._streams = streams
        self._pieces = pieces
        self._is_events = media_type == ResponseFormat.EVENTS.value

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces. A HEAD request gets the headers only, and its connection is free for the next request."""
        if scope["method"] == "HEAD":
            await self._pieces.aclose()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        self._streams.open += 1
        self.body_iterator = self._permitted(scope.get("headwater.guest", ""))
        try:
            await super().__call__(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            self._streams.open -= 1
            await self._pieces.aclose()

    async def _permitted(self, guest: str) -> AsyncIterator[bytes]:
        """Yield pieces while the client's token is valid: a client whose token is revoked gets nothing more."""
        async for piece in self._pieces:
            if not self._streams.may_stay(guest):
                if self._is_events:
                    yield end("the token was revoked")
                return
            yield piece
