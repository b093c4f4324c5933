"""WEBHOOK: the changes of a view as POST requests of JSON.

Guarantee: at least once, in order. A change is sent in one or more requests, and the next change only when all were answered
with 2xx; the checkpoint is stored in the workspace after that, so after a crash in between requests are sent again. Each has
an `Idempotency-Key`, the same for the same request: a receiver that remembers keys processes everything once.

A body is {"sink", "view", "history", "tick", "id", "since", "since_id", "snapshot", "begins", "piece", "pieces"} and, in
mode 'upsert', "deletes" (keys) and then "upserts" (rows), in mode 'changelog' "records" with `_weight` and `_tick`. Times
are ISO text, decimals are text, binaries base64 (see `headwater.sinks.base.json_values`). "id" is the id of the tick: the
same number with another id is a tick of another history, from an older copy of the workspace that was restored, and so is a
"since" that is not the tick sent last. With "snapshot" true the pieces of this tick have all existing rows. This is so at
first, and when changes cannot be followed (the checkpoint was lost, the view was rebuilt). The first piece of a snapshot has
"begins" true: the receiver must delete what it had.

No answer, 408, 425, 429 and 5xx are retried, after `Retry-After` if given, else after growing pauses with jitter; after
several consecutive failures the circuit breaker opens (`circuit`). 400, 409, 413 and 422 reject rows: the request is sent
again in halves until the rows are found, and the body of the answer is the reason. Other answers stop the sink. Redirects
are not followed.
"""

from __future__ import annotations

import http.client
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import orjson
import pyarrow as pa

from headwater.core.arguments import span_us, text
from headwater.core.clock import Clock
from headwater.core.positions import Token
from headwater.sinks.base.at_least_once import ChangePiece, CheckpointKeeper, Deliveries
from headwater.sinks.base.circuit_breaker import Circuit, CircuitOptions
from headwater.sinks.base.http_post import (
    KEY_HEADER,
    REFUSED,
    SIGNATURE_HEADER,
    Hook,
    HttpPostOptions,
    signature,
)
from headwater.sinks.base.json_values import plain_values
from headwater.sinks.base.sink_setup import SinkSetup
from headwater.sinks.base.target import RefusedRow, SinkCheckpoint, SinkError, TargetChange, TargetShape

__all__ = ["KEY_HEADER", "SIGNATURE_HEADER", "HttpPostOptions", "WebhookTarget", "signature"]


class WebhookTarget:
    """A receiver of POST requests at a URL."""

    guarantee: ClassVar[str] = (
        "at least once, in order: a request is repeated with the same Idempotency-Key after a crash or a lost response"
    )

    def __init__(
        self,
        url: str,
        keeper: CheckpointKeeper,
        options: HttpPostOptions | None = None,
        *,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._options = options or HttpPostOptions()
        self._hook = Hook(url, self._options, clock=clock, wait=wait, chance=chance)
        self._deliveries = Deliveries(keeper, self._options.rows)

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        options = setup.options
        url = text(options.get("url"), "url")
        chosen = HttpPostOptions(
            secret=options.get("secret"),
            token=options.get("token"),
            timeout_s=span_us(options.get("timeout", "10 seconds"), "timeout") / 1e6,
            rows=setup.count("rows", 500),
            previous_secret=options.get("previous_secret"),
            circuit=CircuitOptions(
                setup.count("open_after", CircuitOptions.opens_after),
                span_us(options.get("open_for", f"{CircuitOptions.open_s} s"), "open_for") / 1e6,
            ),
        )
        return cls(url, setup.keeper(url), chosen)

    @property
    def circuit(self) -> Circuit:
        """Circuit breaker of the receiver."""
        return self._hook.circuit

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        return () if self._deliveries.shape is None else self._deliveries.shape.key

    def prepare(self, shape: TargetShape) -> None:
        """Set the shape; no request is sent before the first change."""
        self._deliveries.prepare(shape)

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged."""
        return rows

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint from the workspace."""
        return self._deliveries.checkpoint()

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Send a change, and store the checkpoint when all of it was accepted."""
        since = None if before is None else before.token
        self._deliveries.apply(change, before, after, lambda piece, key: self._give(piece, key, after, since))

    def last_delivered(self) -> Token | None:
        """Return the tick that was delivered last, as recorded next to the workspace."""
        return self._deliveries.last_delivered()

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Return nothing, since the receiver cannot be read. The next change is a snapshot."""
        return self._deliveries.contents()

    def close(self) -> None:
        """Close the connection."""
        self._hook.close()

    # --- requests --------------------------------------------------------------------------------------------------

    def _give(
        self, piece: ChangePiece, key: str, after: SinkCheckpoint, since: Token | None
    ) -> list[RefusedRow]:
        body = self._body(piece, after, since)
        status, said = self._hook.post(body, key)
        if 200 <= status < 300:
            return []
        if status not in REFUSED:
            raise SinkError(
                f"{self._hook.shown} responded with {status} {http.client.responses.get(status, '')}".rstrip(),
                detail=said or None,
                hint="check the url, and the token or secret, of the sink",
                url=self._hook.shown,
                status=status,
            )
        if not piece.rows.num_rows:
            raise SinkError(
                f"{self._hook.shown} rejected deletions with {status}",
                detail=said or None,
                hint="accept deletions in the receiver: rows that no longer exist cannot be diverted",
                url=self._hook.shown,
                status=status,
            )
        if len(piece) == 1:
            return [RefusedRow(piece.first, f"{status}: {said}" if said else str(status))]
        parts = [part for part in piece.parts() if len(part)]
        shape = self._shape()
        return [one for part in parts for one in self._give(part, part.key(shape.sink, after), after, since)]

    def _body(self, piece: ChangePiece, after: SinkCheckpoint, since: Token | None) -> bytes:
        shape = self._shape()
        head: dict[str, Any] = {
            "sink": shape.sink,
            "view": shape.view,
            "history": after.history,
            "tick": after.tick,
            "since": None if since is None else since.number,
            "snapshot": piece.snapshot,
            "begins": piece.begins,
            "piece": piece.number,
            "pieces": piece.count,
        }
        if after.id:
            head |= {"id": after.id, "since_id": None if since is None else since.id or None}
        if shape.mode == "upsert":
            return orjson.dumps({**head, "deletes": _objects(piece.deletes), "upserts": _objects(piece.rows)})
        return orjson.dumps({**head, "records": _objects(piece.rows)})

    def _shape(self) -> TargetShape:
        if self._deliveries.shape is None:
            raise RuntimeError("prepare was not called")
        return self._deliveries.shape


def _objects(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    names = rows.schema.names
    columns = [plain_values(column, readable=True) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
