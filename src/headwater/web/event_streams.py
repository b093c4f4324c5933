"""Streams that end when the client, the server or the matter ends: server-sent events, JSON lines and Arrow batches.

A stream has a position and no queue: the next piece is made when the one before it was sent. So a slow client holds up
nobody, and an idle one waits in the loop without a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headwater.web.problems import Problem, problem_of
from headwater.web.response_formats import ResponseFormat

RETRY_MS = 1_000
"""How soon a browser connects again after a stream has ended."""
KEEP_ALIVE = b": keep-alive\n\n"
ROWS_MAX = 1_000
"""Rows in one event."""


class IdleTime:
    """How long a stream has said nothing."""

    def __init__(self, keep_alive_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self.broken()

    def broken(self) -> None:
        """It has said something."""
        self._since = asyncio.get_running_loop().time()

    @property
    def too_long(self) -> bool:
        """Whether it is to say that it is still there."""
        return asyncio.get_running_loop().time() - self._since >= self._keep_alive_s


def event(kind: str, data: Mapping[str, object] | str, identity: str | None = None) -> bytes:
    """One server-sent event; `data` is JSON of one line."""
    text = data if isinstance(data, str) else orjson.dumps(dict(data)).decode("utf-8")
    head = f"id: {identity}\n" if identity is not None else ""
    return f"{head}event: {kind}\ndata: {text}\n\n".encode()


def end(reason: str) -> bytes:
    """The last event of a stream that the server ends."""
    return event("end", {"reason": reason})


def failed(error: Exception) -> bytes:
    """What became of a stream that cannot go on."""
    return event("error", problem_of(error).document())


class Streams:
    """Counts the streams that are open, and tells them when the server stops."""

    def __init__(self, most: int, retry_after_s: int, may_stay: Callable[[str], bool]) -> None:
        """`may_stay` says whether a client, by the digest of its token, may be told more."""
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
        """An answer of pieces; Problem 429 if there are too many streams."""
        if self.open >= self._most:
            raise Problem(
                429,
                "too-many-streams",
                f"{self._most:,} streams are open, which is as many as there may be",
                hint="close some, or come again later",
                retry_after_s=self._retry_after_s,
            )
        return _Stream(
            self,
            pieces,
            media_type=form.value,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})},
        )


class _Stream(StreamingResponse):
    """A response that is counted for as long as it lasts."""

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
        """Send the pieces; to HEAD the headers alone, after which the connection is free for the next request."""
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
        """The pieces for as long as the client's token is known: who loses it in the middle is told nothing more."""
        async for piece in self._pieces:
            if not self._streams.may_stay(guest):
                if self._is_events:
                    yield end("the token is not known any more")
                return
            yield piece
