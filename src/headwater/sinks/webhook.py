"""WEBHOOK: a view's changes as POST requests of JSON.

Guarantee: at least once, in order. A change is sent in one or more requests, and the next one only when all were answered
with 2xx; the position is kept in the workspace after that, so a crash in between sends requests again. Each has an
`Idempotency-Key`, the same for the same request: a receiver that remembers keys does everything once.

A body is {"sink", "view", "history", "tick", "since", "snapshot", "begins", "piece", "pieces"} and, in mode 'upsert', "deletes" (keys) and
then "upserts" (rows), in mode 'changelog' "records" with `_weight` and `_tick`. Times are ISO text, decimals are text, binaries
base64 (see `plain`). With "snapshot" true the pieces of this tick have all rows that there are: so it is at first, and
where changes cannot be followed (the position was lost, the view was built anew). The first of them says "begins": forget
what you had.

No answer, 408, 425, 429 and 5xx are tried again, after `Retry-After` where that is said. 400, 409, 413 and 422 refuse rows: the
request is sent again in halves until the rows are found, and the answer's body is the reason. Other answers stop the
sink. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import hmac
import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import orjson
import pyarrow as pa

from headwater.clock import Clock, SystemClock
from headwater.sinks.deliveries import Deliveries, Piece, StandKeeper
from headwater.sinks.plain import plain_values
from headwater.sinks.target import Change, Refused, Shape, SinkError, Stand, TargetDownError

KEY_HEADER = "Idempotency-Key"
SIGNATURE_HEADER = "Headwater-Signature"
_AGAIN = (408, 425, 429)
_REFUSED = (400, 409, 413, 422)
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


class WebhookTarget:
    """Somebody who takes POST requests at a URL."""

    guarantee: ClassVar[str] = (
        "at least once, in order: a request may come again with the same Idempotency-Key, after a crash or a lost answer"
    )
    readable: ClassVar[bool] = False
    """What it holds cannot be read back, and so not be compared with the view."""

    def __init__(
        self,
        url: str,
        keeper: StandKeeper,
        options: WebhookOptions | None = None,
        *,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SinkError(
                "the url of the sink is not the address of a web server", hint="url = 'https://host/path'"
            )
        self._url = parts
        self._shown = f"{parts.scheme}://{parts.hostname}{parts.path}"
        self._options = options or WebhookOptions()
        self._deliveries = Deliveries(keeper, self._options.rows)
        self._clock = clock or SystemClock()
        self._wait = wait or _pause
        self._connection: http.client.HTTPConnection | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The shape's."""
        return () if self._deliveries.shape is None else self._deliveries.shape.key

    def prepare(self, shape: Shape) -> None:
        """Nothing is sent before there is a change."""
        self._deliveries.prepare(shape)

    def held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are."""
        return rows

    def stand(self) -> Stand | None:
        """As it was kept."""
        return self._deliveries.stand()

    def apply(self, change: Change, before: Stand | None, after: Stand) -> None:
        """Send a change; the stand is kept when all of it was taken."""
        since = None if before is None else before.tick
        self._deliveries.apply(change, before, after, lambda piece, key: self._give(piece, key, after, since))

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Nobody can say: nothing. What is applied next is a snapshot."""
        return self._deliveries.contents()

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- requests --------------------------------------------------------------------------------------------------

    def _give(self, piece: Piece, key: str, after: Stand, since: int | None) -> list[Refused]:
        body = self._body(piece, after, since)
        status, said = self._post(body, key)
        if 200 <= status < 300:
            return []
        if status not in _REFUSED:
            raise SinkError(
                f"{self._shown} answers {status} {http.client.responses.get(status, '')}".rstrip(),
                detail=said or None,
                hint="check the address, and the token or secret, of the sink",
            )
        if not piece.rows.num_rows:
            raise SinkError(f"{self._shown} refuses rows that are gone, with {status}", detail=said or None)
        if len(piece) == 1:
            return [Refused(piece.first, f"{status}: {said}" if said else str(status))]
        parts = [part for part in piece.parts() if len(part)]
        shape = self._shape()
        return [one for part in parts for one in self._give(part, part.key(shape.sink, after), after, since)]

    def _post(self, body: bytes, key: str) -> tuple[int, str]:
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
        raise TargetDownError(f"{self._shown} does not take a request", detail=reason)

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

    def _body(self, piece: Piece, after: Stand, since: int | None) -> bytes:
        shape = self._shape()
        head: dict[str, Any] = {
            "sink": shape.sink,
            "view": shape.view,
            "history": after.history,
            "tick": after.tick,
            "since": since,
            "snapshot": piece.snapshot,
            "begins": piece.begins,
            "piece": piece.number,
            "pieces": piece.count,
        }
        if shape.mode == "upsert":
            return orjson.dumps({**head, "deletes": _objects(piece.deletes), "upserts": _objects(piece.rows)})
        return orjson.dumps({**head, "records": _objects(piece.rows)})

    def _shape(self) -> Shape:
        if self._deliveries.shape is None:
            raise RuntimeError("prepare comes first")
        return self._deliveries.shape


def _objects(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    names = rows.schema.names
    columns = [plain_values(column, readable=True) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
