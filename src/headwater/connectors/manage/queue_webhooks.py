"""Messages of a queue as POST requests to a web server (`ws.post`), with the delivery guarantees of the queue.

A message answered with 2xx is acknowledged. An answer that this message is wrong as it is (400, 413, 422) moves it to the
dead letters at once, with the answer as its error: the same request would get the same answer. Any other outcome returns the
message to the queue, to be posted again after a pause that doubles, with jitter; after the queue's `deliveries` it is moved
to the dead letters. The requests are those of `headwater.sinks.base.http_post`: signed, retried several times, with the same
idempotency key each time. While the receiver is down (the circuit breaker is open) nothing is posted, and the probes that
detect its recovery do not count as deliveries of a message.

A body is {"queue", "topic", "id", "deliveries", "row"}, with "op" if the topic has a primary key; values are written as by a
WEBHOOK sink. An answer that rejects all requests alike (3xx, 401, 403, 404, ...) stops the posting, and leaves messages as
they were.
"""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import orjson
import xxhash

from headwater.core.arguments import span_us, text, whole_number
from headwater.core.clock import Microseconds
from headwater.core.errors import SinkError, TargetDownError, UsageError
from headwater.queues.message import Message, Span
from headwater.queues.queue import Queue
from headwater.queues.queue_worker import BACK_OFF, Worker, WorkOptions, WorkReport
from headwater.sinks.base.circuit_breaker import Circuit, CircuitOptions, jittered
from headwater.sinks.base.http_post import REFUSED, Hook, HttpPostOptions
from headwater.sinks.base.json_values import plain_values

PROBES_MAX = 20
"""Number of times that one message may find the receiver still down before that counts as a delivery: perhaps the message
itself brings it down."""
POLL_S = 0.2

_log = logging.getLogger("headwater")


@dataclass(frozen=True)
class PostOptions:
    """The options of `ws.post`, which it takes as keywords."""

    secret: str | None = None
    """Secret that signs requests, as in Standard Webhooks."""
    previous_secret: str | None = None
    """Second secret that requests are also signed with, while the receiver changes from it to `secret`."""
    token: str | None = None
    """Bearer token of the header `Authorization`."""
    timeout: Span = "10 seconds"
    """Longest time of a request with its answer."""
    open_after: int = CircuitOptions.opens_after
    """Number of failures in a row after which the circuit opens and nothing is posted."""
    open_for: Span = f"{CircuitOptions.open_s} s"
    """Time that the circuit stays open before one request is tried."""
    delay: Span = BACK_OFF
    """Time after which a message that was not accepted is posted again, doubled with each delivery."""
    threads: int = 1
    """Number of threads that post."""
    idle: float | None = None
    """Seconds without a message after which posting ends; None to continue until `stop()`."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> PostOptions:
        """Return the options that a caller names; UsageError for an unknown option."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise UsageError(
                    f"{name!r} is not an option of posting a queue",
                    hint=f"the options are {', '.join(known)}",
                    option=name,
                    reason="unknown-option",
                )
        return cls(**options)

    @property
    def requests(self) -> HttpPostOptions:
        """The options of requests."""
        return HttpPostOptions(
            self.secret,
            self.token,
            timeout_s=span_us(self.timeout, "timeout") / 1e6,
            previous_secret=self.previous_secret,
            circuit=CircuitOptions(
                whole_number(self.open_after, "open_after", least=1), span_us(self.open_for, "open_for") / 1e6
            ),
        )


class _NotTaken(Exception):
    """The answer of a receiver; the message is posted again."""


class _Refused(_NotTaken):
    """The answer of a receiver that will never take the message."""


class _NotPosted(Exception):
    """The message was not posted, for lack of time or because posting ends: it counts as not delivered."""


class Poster(Worker):
    """A `Worker` that posts messages: a context manager, with `stop()` and `wait()`, which raise the error that stopped it."""

    def __init__(self, queue: Queue, url: str, options: PostOptions | None = None) -> None:
        options = options or PostOptions()
        self._url = text(url, "url", hint='ws.post("emails", "https://...")')
        self._whose = f"queue {queue.name!r}"
        self._requests = replace(options.requests, whose=self._whose)
        self._sequence, self._commit_id = queue.sequence, queue.commit_id
        self.circuit = Circuit(queue.clock, self._requests.circuit)
        self._hooks: dict[int, Hook] = {}
        # an invalid url is reported here, not in a thread
        Hook(self._url, self._requests)
        work = WorkOptions(threads=options.threads, delay=options.delay, idle=options.idle)
        super().__init__(queue, self._post, work)

    def wait(self, timeout: float | None = None) -> WorkReport:
        """See `Worker`."""
        try:
            return super().wait(timeout)
        finally:
            self._close_ended()

    def end(self, timeout_s: float) -> None:
        """See `Worker`."""
        super().end(timeout_s)
        self._close_ended()

    def _close_ended(self) -> None:
        """Close the connections of threads that have ended."""
        alive = {thread.ident for thread in self._threads if thread.is_alive()}
        for ident in [one for one in self._hooks if one not in alive]:
            self._hooks.pop(ident).close()

    # --- posting ---------------------------------------------------------------------------------------------------

    def _post(self, message: Message) -> None:
        hook, body, key = self._hook(), self._body(message), self._key(message)
        for probe in range(PROBES_MAX + 1):
            if not self._admitted(hook):
                raise _NotPosted
            down = self.circuit.state != "closed"
            try:
                status, said = hook.post(body, key)
            except TargetDownError as error:
                if down and probe < PROBES_MAX:
                    continue
                raise _NotTaken(error.detail or error.message) from None
            self._answered(status, said, hook)
            return

    def _hook(self) -> Hook:
        """Return the client of this thread; all threads share one circuit breaker."""
        mine = threading.get_ident()
        if mine not in self._hooks:
            made = Hook(self._url, self._requests, clock=self._queue.clock, circuit=self.circuit)
            self._hooks[mine] = made
        return self._hooks[mine]

    def _admitted(self, hook: Hook) -> bool:
        """Wait until the circuit breaker admits a request; return False if posting ends before that."""
        while True:
            try:
                self.circuit.admit(hook.shown)
                return True
            except TargetDownError:
                if self._stopping.wait(POLL_S):
                    return False

    def _answered(self, status: int, said: str, hook: Hook) -> None:
        if 200 <= status < 300:
            return
        if status in REFUSED:
            kind = _NotTaken if status == http.client.CONFLICT else _Refused
            raise kind(f"{status}: {said}" if said else str(status))
        self._error = SinkError(
            f"{hook.shown} answers {status} {http.client.responses.get(status, '')}".rstrip(),
            detail=said or None,
            hint=f"check the address, and the token or secret; the messages stay in {self._whose}",
            status=status,
            queue=self._queue.name,
        )
        _log.error("posting of %s has stopped: %s", self._whose, self._error)
        self._stopping.set()
        raise _NotPosted

    def _key(self, message: Message) -> str:
        """Return the idempotency key, the same each time that a message is posted unless it was edited: then it is another
        request. The id of its commit distinguishes it from the message at the same position in an older copy of the
        workspace, which may have been acknowledged."""
        name = f"{self._queue.name}/{self._sequence}/{message.id}"
        if (commit := self._commit_id(message)) is not None:
            name = f"{name}~{commit}"
        if not message.edited:
            return name
        return f"{name}/{xxhash.xxh3_64_hexdigest(orjson.dumps(message.row, default=str))}"

    def _body(self, message: Message) -> bytes:
        (row,) = message.table.combine_chunks().to_batches()
        columns = {name: plain_values(row[name], readable=True)[0] for name in row.schema.names}
        head: dict[str, Any] = {
            "queue": self._queue.name,
            "topic": self._queue.definition.topic,
            "id": message.id,
            "deliveries": message.deliveries,
        }
        if message.op is not None:
            head["op"] = message.op
        return orjson.dumps({**head, "row": columns})

    # --- returning messages ----------------------------------------------------------------------------------------

    def _give_back(self, messages: list[Message], error: BaseException) -> None:
        if isinstance(error, _NotPosted):
            self._release(messages)
        else:
            super()._give_back(messages, error)

    def _is_final(self, error: BaseException) -> bool:
        return isinstance(error, _Refused)

    def _said(self, error: BaseException) -> str:
        return str(error) if isinstance(error, _NotTaken) else super()._said(error)

    def _pause_us(self, deliveries: int) -> Microseconds:
        return int(jittered(super()._pause_us(deliveries)))
