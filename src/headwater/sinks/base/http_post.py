"""POST requests to a web server: signed, idempotent by key, and retried.

Requests are signed as Standard Webhooks specifies (`headwater.core.webhook_signatures`): `webhook-id` equals the
`Idempotency-Key`, `webhook-timestamp` is the time of the attempt, and `webhook-signature` has one signature for each active
secret.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import hmac
import http.client
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from headwater.core.clock import Clock, SystemClock
from headwater.core.errors import SinkError, TargetDownError
from headwater.core.webhook_signatures import ID_HEADER, TIME_HEADER, secret_bytes, sign
from headwater.core.webhook_signatures import SIGNATURE_HEADER as STANDARD_SIGNATURE_HEADER
from headwater.sinks.base.circuit_breaker import Circuit, CircuitOptions, jittered

KEY_HEADER = "Idempotency-Key"
SIGNATURE_HEADER = "Headwater-Signature"
REFUSED = (400, 409, 413, 422)
"""Status codes by which a receiver rejects the content of this request, and not requests in general."""
_AGAIN = (408, 425, 429)
_REASON_CHARACTERS = 500
_RETRY_AFTER_MAX_S = 5.0
"""Longest `Retry-After`, in seconds, that is waited out here. A longer one is left to the circuit breaker, so that the
sender can be stopped meanwhile."""


def signature(secret: str, key: str, body: bytes) -> str:
    """Return the value of `Headwater-Signature`, which is sent in addition to the signature of Standard Webhooks: `sha256=`
    and the hexadecimal HMAC of the idempotency key, a dot and the body. Receivers compare with `hmac.compare_digest`."""
    return "sha256=" + hmac.new(secret.encode(), f"{key}.".encode() + body, hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class HttpPostOptions:
    """Options of POST requests. `secret` signs requests, and so does `previous_secret` while receivers change to the new
    one; `token` is sent as a bearer token. `timeout_s` limits the whole response of one attempt. A request is attempted up
    to `attempts` times in a row, with a growing pause before each retry, and has at most `rows` rows."""

    secret: str | None = None
    token: str | None = None
    timeout_s: float = 10.0
    attempts: int = 4
    pause_s: float = 0.2
    rows: int = 500
    previous_secret: str | None = None
    circuit: CircuitOptions = field(default_factory=CircuitOptions)
    whose: str = "the sink"
    """Sender of the requests, named in errors."""


class Hook:
    """A URL that takes POST requests. To be used by one thread at a time."""

    def __init__(
        self,
        url: str,
        options: HttpPostOptions | None = None,
        *,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
        circuit: Circuit | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """`circuit` is a circuit breaker that outlives this object; `chance` is the source of jitter."""
        self._options = options or HttpPostOptions()
        whose = self._options.whose
        self._url = parts = _address(url, whose)
        self.shown = _shown(parts)
        _check_texts(self._options, whose)
        _check_token(self._options.token, whose)
        self._clock = clock or SystemClock()
        self._wait = wait or _pause
        self._chance = chance
        self.circuit = circuit or Circuit(self._clock, self._options.circuit, chance)
        given = (self._options.secret, self._options.previous_secret)
        self._secrets = [secret_bytes(secret) for secret in given if secret is not None]
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def post(self, body: bytes, key: str) -> tuple[int, str]:
        """Return the status and the text of the response. TargetDownError if no attempt gets a response, each response asks
        for a retry, or the circuit breaker admits no attempt."""
        self.circuit.admit(self.shown)
        reason = ""
        for attempt in range(self._options.attempts):
            after_s: float | None = None
            try:
                status, said, asked = self._attempt(body, self._headers(body, key))
                if status not in _AGAIN and status < 500:
                    self.circuit.worked()
                    return status, said
                reason = f"the response was {status}: {said}" if said else f"the response was {status}"
                after_s = self._retry_after(asked)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = str(error) or type(error).__name__
            last = attempt + 1 == self._options.attempts
            too_long = after_s is not None and after_s > _RETRY_AFTER_MAX_S
            self.circuit.failed(reason, after_s if last or too_long else None)
            if last or too_long or self.circuit.state == "open":
                break
            pause_s = self._options.pause_s * 2**attempt
            self._wait(jittered(pause_s, self._chance) if after_s is None else after_s)
        raise TargetDownError(f"{self.shown} did not accept the request", detail=reason, url=self.shown)

    def _headers(self, body: bytes, key: str) -> dict[str, str]:
        """Return the headers of one attempt, which has a timestamp of its own."""
        headers = {"Content-Type": "application/json", KEY_HEADER: key, "User-Agent": "headwater"}
        if self._secrets:
            at_s = self._clock.now_us() // 1_000_000
            headers[ID_HEADER] = key
            headers[TIME_HEADER] = str(at_s)
            headers[STANDARD_SIGNATURE_HEADER] = sign(self._secrets, key, at_s, body)
        if self._options.secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._options.secret, key, body)
        if self._options.token is not None:
            headers["Authorization"] = f"Bearer {self._options.token}"
        return headers

    def _attempt(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, str | None]:
        """Return status, text and `Retry-After` of one response; OSError or HTTPException if there is none in time."""
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        connection = self._connected()
        if connection.sock is None:
            connection.connect()
        with _within(connection.sock, self._options.timeout_s):
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            said = answer.read(1 << 16).decode("utf-8", "replace").strip()[:_REASON_CHARACTERS]
        if answer.will_close or not answer.isclosed():
            self.close()
        return answer.status, said, answer.getheader("Retry-After")

    def _retry_after(self, said: str | None) -> float | None:
        """Return the seconds that a `Retry-After` header asks to wait, given as a number or as a date; None without a valid
        one."""
        if said is None:
            return None
        if said.strip().isdecimal():
            return float(said)
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            at = email.utils.parsedate_to_datetime(said).timestamp()
            return max(0.0, at - self._clock.now_us() / 1e6)
        return None

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(str(self._url.hostname), self._url.port, timeout=self._options.timeout_s)
        return self._connection


def _address(url: str, whose: str) -> SplitResult:
    """Return the parts of a URL; SinkError if no request can be sent there."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.port != 0
        good &= bool((parts.hostname or "").encode("idna")) and url.isprintable() and " " not in url
        good &= (parts.path + parts.query).isascii()
    except ValueError:
        good = False
    if not good:
        raise SinkError(
            f"the url of {whose} is not a valid http or https URL",
            hint="url = 'https://host/path', with %20 in place of a space",
            option="url",
        )
    return parts


def _shown(parts: SplitResult) -> str:
    """Return the server of a URL for error messages, without the path: knowledge of the path often suffices to post there."""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{'/...' if parts.path.strip('/') or parts.query else ''}"


def _check_texts(options: HttpPostOptions, whose: str) -> None:
    """Raise SinkError if a secret or a token is not text, for example a number written without quotes. The value is not
    shown."""
    for name in ("secret", "previous_secret", "token"):
        given = getattr(options, name)
        if given is not None and not isinstance(given, str):
            raise SinkError(
                f"the {name} of {whose} must be a text, not {type(given).__name__}",
                hint=f"{name} = env('NAME') reads it from an environment variable",
                option=name,
            )


def _check_token(token: str | None, whose: str) -> None:
    """Raise SinkError if a header cannot hold the token. The token is not shown: the reader of the error may not know it."""
    if token is not None and not (token.isascii() and token.isprintable()):
        raise SinkError(
            f"the token of {whose} contains characters that an HTTP header cannot have",
            hint="remove a line break at its end; `printf %s` writes none",
            option="token",
        )


@contextlib.contextmanager
def _within(connected: socket.socket, seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer: a socket's timeout applies to each read, and a receiver may send byte by
    byte."""
    late = threading.Event()

    def break_off() -> None:
        late.set()
        with contextlib.suppress(OSError):
            # shut down the plain socket: the method of TLS would let data still being sent go on unencrypted
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, break_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError("timed out")


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
