"""Sends large responses in pieces, as fast as the client reads them, with limits on their time and on their total size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from headwater.web.problems import Problem, retry_after

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from headwater.web.server_settings import ServerSettings

PIECE_BYTES = 256 << 10
ABORT = "headwater.abort"
"""Key in a request's scope of the function that aborts its connection."""


class ResponseSender:
    """Sends responses. Counts the bytes of large ones that clients have not read yet, so that slow clients cannot fill
    the memory. For the event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.bytes = 0

    async def send(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a response; 429 instead, if too many bytes of other responses are unread. A client that is too slow is
        disconnected."""
        if isinstance(response, StreamingResponse) or len(response.body) <= PIECE_BYTES:
            await response(scope, receive, send)
            return
        size = len(response.body)
        if self.bytes and self.bytes + size > self._settings.answers_bytes_max:
            await _too_busy(self._settings).response()(scope, receive, send)
            return
        self.bytes += size
        try:
            async with asyncio.timeout(self._settings.answer_s):
                await _send_pieces(response, send)
        except TimeoutError:
            if (abort := scope.get(ABORT)) is not None:
                abort()
        finally:
            self.bytes -= size


async def _send_pieces(response: Response, send: Send) -> None:
    """Send a body piece by piece: the connection requests the next piece when the previous one is nearly sent."""
    body = memoryview(response.body)
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
    )
    for start in range(0, len(body), PIECE_BYTES):
        last = start + PIECE_BYTES >= len(body)
        piece = bytes(body[start : start + PIECE_BYTES])
        await send({"type": "http.response.body", "body": piece, "more_body": not last})


def _too_busy(settings: ServerSettings) -> Problem:
    return Problem(
        429,
        "too-busy",
        "the buffer of large responses is full: other clients have not read theirs yet",
        hint="retry later, or request fewer rows: limit=",
        headers=retry_after(settings.retry_after_s),
    )
