"""Messages of a queue as POST requests: `ws.post`. Each is delivered as the queue does it, to somebody's web server.

Answered with 2xx, a message is acknowledged. An answer that says that this message is wrong as it is (400, 413, 422) makes it dead at once, with the
answer as its error: the same request would get the same answer. Whatever else comes of a request gives the message back, to be posted again after a pause
that doubles and differs; after the queue's `deliveries` it is dead. The requests are those of
`headwater.sinks.base.http_post`: signed, tried several times, and known by a key that is the same each time. While the receiver is down (the
circuit is open) nothing is posted, and finding out whether it still is does not wear messages out.

A body is {"queue", "topic", "id", "deliveries", "row"}, with "op" where the topic has a primary key; the values are written as a WEBHOOK
sink does it. An answer that says that requests are wrong as such (3xx, 401, 403, 404, ...) stops the posting, and leaves messages as they were.
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
from headwater.queues.queue_worker import BACK_OFF, Worker, WorkReport
from headwater.sinks.base.circuit_breaker import Circuit, CircuitOptions, jittered
from headwater.sinks.base.http_post import REFUSED, Hook, HttpPostOptions
from headwater.sinks.base.json_values import plain_values

PROBES_MAX = 20
"""So often a message may find the receiver still down before that counts as a delivery: perhaps it is what brings it down."""
LOOK_S = 0.2

_log = logging.getLogger("headwater")


@dataclass(frozen=True)
class PostOptions:
    """`secret` signs requests, and so does `previous_secret` while receivers go over to the new one; `token` is sent as a bearer token. A
    request has `timeout` for its whole answer. After `open_after` failures in a row the receiver is left alone for `open_for`. A message
    comes again after `delay`, doubled each time. Messages are posted by so many `threads`; with `idle` it is over once nothing has come
    for so many seconds."""

    secret: str | None = None
    previous_secret: str | None = None
    token: str | None = None
    timeout: Span = "10 seconds"
    open_after: int = CircuitOptions.opens_after
    open_for: Span = f"{CircuitOptions.open_s} s"
    delay: Span = BACK_OFF
    threads: int = 1
    idle: float | None = None

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> PostOptions:
        """As a caller names them; UsageError if there is no such option."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise UsageError(
                    f"posting has no option {name!r}", hint=f"its options are {', '.join(known)}"
                )
        return cls(**options)

    @property
    def requests(self) -> HttpPostOptions:
        """What of it is about requests."""
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
    """What the receiver said; the message comes again."""


class _Refused(_NotTaken):
    """What the receiver said of a message that it will never take."""


class _NotPosted(Exception):
    """There was no time, or no use, for the message: as if it had not been handed out."""


class Poster(Worker):
    """A `Worker` that posts messages: a context manager, with `stop()` and `wait()`, which raise what has stopped it."""

    def __init__(self, queue: Queue, url: str, options: PostOptions | None = None) -> None:
        options = options or PostOptions()
        self._url = text(url, "the url that messages are posted to", hint='ws.post("emails", "https://...")')
        self._whose = f"queue {queue.name!r}"
        self._requests = replace(options.requests, whose=self._whose)
        self._sequence, self._commit_id = queue.sequence, queue.commit_id
        self.circuit = Circuit(queue.clock, self._requests.circuit)
        self._hooks: dict[int, Hook] = {}
        Hook(self._url, self._requests)  # what cannot be is told here, not in a thread
        super().__init__(queue, self._post, threads=options.threads, delay=options.delay, idle=options.idle)

    def wait(self, timeout: float | None = None) -> WorkReport:
        """See `Worker`."""
        try:
            return super().wait(timeout)
        finally:
            self._let_go()

    def end(self, timeout_s: float) -> None:
        """See `Worker`."""
        super().end(timeout_s)
        self._let_go()

    def _let_go(self) -> None:
        """Close the connections of threads that are over."""
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
        """A connection for each thread, and one circuit for all."""
        mine = threading.get_ident()
        if mine not in self._hooks:
            made = Hook(self._url, self._requests, clock=self._queue.clock, circuit=self.circuit)
            self._hooks[mine] = made
        return self._hooks[mine]

    def _admitted(self, hook: Hook) -> bool:
        """Wait until the receiver may be posted to; False if the posting is to end before that."""
        while True:
            try:
                self.circuit.admit(hook.shown)
                return True
            except TargetDownError:
                if self._stopping.wait(LOOK_S):
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
            hint=f"check the address, and the token or secret; the messages of {self._whose} stay where they are",
        )
        _log.error("%s is posted no more: %s", self._whose, self._error)
        self._stopping.set()
        raise _NotPosted

    def _key(self, message: Message) -> str:
        """The same each time that a message is posted, unless somebody has edited it: then it is another request. The id of its
        commit tells it from the message at the same place in an older copy of the workspace, which may have been answered."""
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

    # --- giving back -----------------------------------------------------------------------------------------------

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
