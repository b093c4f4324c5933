"""Errors as problem documents (RFC 9457), without details that clients must not see."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from headwater.core import errors as e

MEDIA_TYPE = "application/problem+json"
VALUE_CHARACTERS_MAX = 200
"""Longest text of an invalid value, in characters; longer ones are cut."""

logger = logging.getLogger("headwater.web")

_STATUSES: tuple[tuple[type[e.HeadwaterError], int], ...] = (
    (e.TopicNotFoundError, 404),
    (e.ViewNotFoundError, 404),
    (e.SinkNotFoundError, 404),
    (e.SourceNotFoundError, 404),
    (e.QueueNotFoundError, 404),
    (e.AlertNotFoundError, 404),
    (e.RowNotFoundError, 404),
    (e.LetterNotFoundError, 404),
    (e.MessageNotFoundError, 404),
    (e.AggregateNotFoundError, 404),
    (e.SignatureError, 401),
    (e.BadRowError, 422),
    (e.SchemaError, 422),
    (e.UsageError, 400),
    (e.ConflictError, 409),
    (e.AlreadyWrittenError, 409),
    (e.FencedError, 409),
    (e.GapError, 410),
    (e.OtherHistoryError, 410),
    (e.BacklogError, 429),
    (e.DiskFullError, 507),
)
_SHOWN_FACTS = (
    "topic",
    "view",
    "sink",
    "source",
    "row",
    "line",
    "column",
    "value",
    "expected",
    "tick",
    "first_available",
    "last_available",
    "last_tick",
    "status",
    "partition",
    "position",
)
"""Facts of errors that are useful to a client; other facts may contain file names."""


class Problem(Exception):
    """An error response. Its headers may say, by `retry_after`, when the client may retry."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        hint: str | None = None,
        facts: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.hint = hint
        self.facts = dict(facts or {})
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """Return the problem document."""
        return {
            "type": f"urn:headwater:problem:{self.kind}",
            "title": self.kind.replace("-", " "),
            "status": self.status,
            "detail": _whole(self.detail),
            **({} if self.hint is None else {"hint": _whole(self.hint)}),
            **{name: _plain(value) for name, value in self.facts.items()},
        }

    def response(self) -> Response:
        """Return the problem as a response."""
        return Response(
            orjson.dumps(self.document()), self.status, media_type=MEDIA_TYPE, headers=self.headers
        )


def retry_after(seconds: int) -> dict[str, str]:
    """Return the header that tells a client to retry after so many seconds."""
    return {"Retry-After": str(seconds)}


def problem_of(error: Exception) -> Problem:
    """Return the problem for an error. An error that clients must not see is logged, with an id that its response has too."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, e.HeadwaterError) and (status := _status(error)) is not None:
        facts = {
            "occasion" if name == "status" else name: error.facts[name]
            for name in _SHOWN_FACTS
            if name in error.facts
        }
        return Problem(
            status,
            error.code,
            error.message if error.detail is None else f"{error.message}: {error.detail}",
            hint=error.hint,
            facts=facts,
            headers=retry_after(1) if status in (429, 503) else None,
        )
    number = secrets.token_hex(8)
    logger.error("internal error %s", number, exc_info=error, extra={"error_id": number})
    return Problem(
        500,
        "internal-error",
        "internal error: the log of the server has the details",
        hint=f"look for {number} in the log of the server",
        facts={"id": number},
    )


def _status(error: e.HeadwaterError) -> int | None:
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    if isinstance(error, e.ViewUnavailableError):
        return 404 if error.facts.get("status") == "missing" else 503
    if isinstance(error, e.TickNotKeptError):
        first, tick = error.facts.get("first_available"), error.facts.get("tick")
        return 410 if isinstance(first, int) and isinstance(tick, int) and tick < first else 404
    if isinstance(error, e.StorageError | e.CorruptionError):
        return None  # contains file names
    return 503 if error.retryable or isinstance(error, e.ClosedError) else None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and value.bit_length() < 64:  # orjson cannot encode longer ones
        return value
    text = _whole(value if isinstance(value, str) else e.shown(value, VALUE_CHARACTERS_MAX + 1))
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 1] + "…"


def _whole(text: str) -> str:
    """Return the text without lone surrogates: JSON input may contain them, JSON output must not."""
    return text.encode("utf-8", "replace").decode()
