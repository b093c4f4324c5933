"""POST requests to somebody's web server: signed, known by a key when they are repeated, and tried again."""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import hmac
import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headwater.clock import Clock, SystemClock
from headwater.errors import SinkError, TargetDownError

KEY_HEADER = "Idempotency-Key"
SIGNATURE_HEADER = "Headwater-Signature"
_AGAIN = (408, 425, 429)
_REASON_CHARACTERS = 500
_RETRY_AFTER_MAX_S = 60.0


def signature(secret: str, key: str, body: bytes) -> str:
    """What the signature header of a request must be: `sha256=` and the HMAC, in hexadecimal, of the idempotency key, a dot and
    the body. Receivers compare with `hmac.compare_digest`."""
    return "sha256=" + hmac.new(secret.encode(), f"{key}.".encode() + body, hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class WebhookOptions:
    """`secret` signs requests; `token` is sent as a bearer token; a request waits `timeout_s` for its answer, is tried
    `attempts` times in a row, a longer pause before each, and has `rows` rows at most."""

    secret: str | None = None
    token: str | None = None
    timeout_s: float = 10.0
    attempts: int = 4
    pause_s: float = 0.2
    rows: int = 500


class Hook:
    """Somebody who takes POST requests at a URL. One thread at a time."""

    def __init__(
        self,
        url: str,
        options: WebhookOptions | None = None,
        *,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
        whose: str = "the sink",
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SinkError(
                f"the url of {whose} is not the address of a web server", hint="url = 'https://host/path'"
            )
        self._url = parts
        self.shown = f"{parts.scheme}://{parts.hostname}{parts.path}"
        self._options = options or WebhookOptions()
        self._clock = clock or SystemClock()
        self._wait = wait or _pause
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def post(self, body: bytes, key: str) -> tuple[int, str]:
        """The status and the text of an answer; TargetDownError if there is none, or it says to come again, every time."""
        headers = {"Content-Type": "application/json", KEY_HEADER: key, "User-Agent": "headwater"}
        if self._options.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._options.secret, key, body)
        if self._options.token is not None:
            headers["Authorization"] = f"Bearer {self._options.token}"
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        reason = ""
        for attempt in range(self._options.attempts):
            after_s: float | None = None
            try:
                connection = self._connected()
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                said = answer.read(1 << 16).decode("utf-8", "replace").strip()[:_REASON_CHARACTERS]
                if answer.will_close or not answer.isclosed():
                    self.close()
                if answer.status not in _AGAIN and answer.status < 500:
                    return answer.status, said
                reason = f"it answers {answer.status}: {said}" if said else f"it answers {answer.status}"
                after_s = self._retry_after(answer.getheader("Retry-After"))
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = str(error) or type(error).__name__
            if attempt + 1 < self._options.attempts:
                pause = self._options.pause_s * 2**attempt if after_s is None else after_s
                self._wait(min(pause, _RETRY_AFTER_MAX_S))
        raise TargetDownError(f"{self.shown} does not take a request", detail=reason)

    def _retry_after(self, said: str | None) -> float | None:
        """Seconds that an answer asks to wait: given as such, or as a date."""
        if said is None:
            return None
        if said.strip().isdigit():
            return float(said)
        with contextlib.suppress(ValueError, TypeError):
            at = email.utils.parsedate_to_datetime(said).timestamp()
            return max(0.0, at - self._clock.now_us() / 1e6)
        return None

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(str(self._url.hostname), self._url.port, timeout=self._options.timeout_s)
        return self._connection


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
