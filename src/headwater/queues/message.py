"""Messages that `Queue.receive` returned: a row, its lease, and the operations on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Protocol, overload

import numpy as np
import pyarrow as pa

from headwater.catalog.rules import FORGOTTEN
from headwater.core.clock import Clock, from_us
from headwater.core.errors import LeaseLostError, UsageError
from headwater.core.positions import Token, split_token
from headwater.queues.message_positions import Mask, Places, offset_of, partition_of, place_of, shown
from headwater.queues.queue_client import QueueRequest
from headwater.queues.queue_dead_letters import own_columns
from headwater.queues.queue_definition import QueueDefinition
from headwater.queues.queue_state import Grant

Span = str | timedelta
ERROR_CHARACTERS_MAX = 2_000
"""Longest error text that is stored, in characters: it stays in the queue's records until its message is done."""


class Settling(Protocol):
    """The operations of a queue that a message calls."""

    name: str

    def ack(self, messages: Any) -> None: ...
    def nack(
        self, messages: Any, *, delay: Span | None = None, error: str | None = None, final: bool = False
    ) -> None: ...
    def release(self, messages: Any) -> None: ...
    def extend(self, messages: Any, lease: Span | None = None) -> None: ...


class Receiving(Settling, Protocol):
    """The operations of a queue that workers and asyncio consumers call."""

    definition: QueueDefinition
    clock: Clock

    def receive(
        self, max: int = 1, wait: float | None = 0, *, lease: Span | None = None, ack: Any = None
    ) -> Messages: ...

    def commit_id(self, message: Message) -> str | None:
        """Return the id of the commit that appended a message; see `Queue.commit_id`."""
        ...


class Messages(Sequence["Message"]):
    """The messages of one `receive`, in log order, under one lease.

    `rows` is all of them as a pyarrow Table. `queue.ack(messages)` acknowledges those that were not settled one by one.
    """

    def __init__(self, queue: Settling, grant: Grant | None = None, ask: QueueRequest | None = None) -> None:
        self.queue = queue
        self.lease = -1 if grant is None else grant.lease
        self.places: Places = np.empty(0, np.int64) if grant is None else grant.places.copy()
        self.deliveries = np.empty(0, np.int64) if grant is None else grant.deliveries.copy()
        self.until = np.empty(0, np.int64) if grant is None else grant.until.copy()
        self.settled: Mask = np.zeros(len(self.places), dtype=bool)
        """True for messages that were acknowledged or given back through this object."""
        self.commit: Token | None = None
        """Token of a commit made after the messages were handed out. It distinguishes this lease from a lease of the
        same number in an older copy of the workspace."""
        self.errors = {} if ask is None else ask.errors
        self._table = pa.table({}) if ask is None or ask.rows is None else ask.rows
        self._bodies = {} if ask is None else ask.bodies
        self._plain: list[dict[str, Any]] | None = None

    @property
    def rows(self) -> pa.Table:
        """The topic's columns of all messages, as the log has them."""
        return own_columns(self._table)

    @property
    def open(self) -> Places:
        """The positions of messages that are not settled."""
        return self.places[~self.settled]

    def row(self, number: int) -> dict[str, Any]:
        """Return the row of a message; the corrected row if the message was dead and an operator edited it."""
        if self._plain is None:
            self._plain = self.rows.to_pylist()
            for place, body in self._bodies.items():
                self._plain[int(np.searchsorted(self.places, place))] = body.to_pylist()[0]
        return self._plain[number]

    def table(self, number: int) -> pa.Table:
        """Return the row of a message as a table of one row; corrected rows as in `row`."""
        body = self._bodies.get(int(self.places[number]))
        return self.rows.slice(number, 1) if body is None else own_columns(body)

    def edited(self, number: int) -> bool:
        """Whether an operator edited this message while it was dead."""
        return int(self.places[number]) in self._bodies

    def op(self, number: int) -> str | None:
        """Return what the record of a message does ('upsert' or 'delete') on a topic with a primary key; None on other
        topics."""
        return self._table["_op"][number].as_py() if "_op" in self._table.column_names else None

    def sequence(self, number: int) -> int:
        """Return the number of the commit that appended a message."""
        return int(self._table["_sequence"][number].as_py())

    def forgotten(self, number: int) -> bool:
        """Whether private values of a message are unreadable because their subject was forgotten."""
        return FORGOTTEN in self._table.column_names and self._table[FORGOTTEN][number].as_py()

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        numbers = range(len(self.places))[index]
        return Message(self, numbers) if isinstance(numbers, int) else [Message(self, n) for n in numbers]

    def __iter__(self) -> Iterator[Message]:
        return (Message(self, number) for number in range(len(self.places)))

    def __repr__(self) -> str:
        return f"<{len(self)} messages of queue {self.queue.name}>"


class Message:
    """A message, leased to the worker that received it. A `with` block acknowledges the message at its end, or gives it
    back with the error that left the block."""

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: Messages, number: int) -> None:
        self._batch = batch
        self._number = number

    def __repr__(self) -> str:
        return f"<Message {self.id} of queue {self._batch.queue.name}, delivery {self.deliveries}>"

    @property
    def row(self) -> dict[str, Any]:
        """The columns of the message's record; the corrected row if the message was edited while it was dead."""
        return self._batch.row(self._number)

    @property
    def table(self) -> pa.Table:
        """The message's row as a pyarrow Table of one row."""
        return self._batch.table(self._number)

    @property
    def edited(self) -> bool:
        """Whether an operator edited the message while it was dead. Its row then differs from the record in the topic."""
        return self._batch.edited(self._number)

    @property
    def op(self) -> str | None:
        """What the record does, 'upsert' or 'delete', on a topic with a primary key; None on other topics."""
        return self._batch.op(self._number)

    @property
    def forgotten(self) -> bool:
        """Whether private values of the message read None because their subject was forgotten."""
        return self._batch.forgotten(self._number)

    @property
    def place(self) -> int:
        """Partition and offset of the message as one integer."""
        return int(self._batch.places[self._number])

    @property
    def id(self) -> str:
        """The permanent id of the message: partition and offset in its topic, such as 0-17."""
        return shown(self.place)

    @property
    def partition(self) -> int:
        """The partition of the message's record."""
        return partition_of(self.place)

    @property
    def sequence(self) -> int:
        """The number of the commit that appended the message's record."""
        return self._batch.sequence(self._number)

    @property
    def offset(self) -> int:
        """The offset of the message's record in its partition."""
        return offset_of(self.place)

    @property
    def deliveries(self) -> int:
        """Number of times the message was handed out, including this one."""
        return int(self._batch.deliveries[self._number])

    @property
    def error(self) -> str | None:
        """The error with which the previous delivery ended, or None."""
        return self._batch.errors.get(self.place)

    @property
    def until(self) -> datetime:
        """The time at which the lease expires, unless it is extended."""
        return from_us(int(self._batch.until[self._number]))

    @property
    def token(self) -> str:
        """The token of this delivery for the command line: `headwater queue ack QUEUE TOKEN`."""
        of = "" if self._batch.commit is None else f"~{self._batch.commit}"
        return f"{self.id}@{self._batch.lease}{of}"

    @property
    def queue_name(self) -> str:
        """The name of the queue that the message was received from."""
        return self._batch.queue.name

    @property
    def lease(self) -> int:
        """The number of the message's lease."""
        return self._batch.lease

    @property
    def settled(self) -> bool:
        """Whether the message was acknowledged or given back through this object or its batch."""
        return bool(self._batch.settled[self._number])

    def ack(self) -> None:
        """Acknowledge the message as done; durable when this returns."""
        self._batch.queue.ack(self)

    def nack(self, *, delay: Span | None = None, error: str | None = None, final: bool = False) -> None:
        """Give the message back as not done: it is handed out again, after `delay` if one is given. With `final` the
        message can never be done, and is dead at once."""
        self._batch.queue.nack(self, delay=delay, error=error, final=final)

    def release(self) -> None:
        """Give the message back unprocessed: it is handed out again at once, and this delivery does not count."""
        self._batch.queue.release(self)

    def extend(self, lease: Span | None = None) -> None:
        """Extend the lease to end this long after now, by default after the queue's lease duration."""
        self._batch.queue.extend(self, lease)

    def note(self, *, settled: bool = False, until: int | None = None) -> None:
        """Record locally that the message was settled, or when its lease now expires."""
        self._batch.settled[self._number] |= settled
        if until is not None:
            self._batch.until[self._number] = until

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.ack()
        else:
            with suppress(LeaseLostError):  # the error that left the block must not be masked
                self.nack(error=error_summary(error))


def refuse_final_delay(delay: Span | None, final: bool) -> None:
    """Raise UsageError if `final` is not a boolean, or if both `final` and a delay are given."""
    if not isinstance(final, bool):
        raise UsageError(
            f"final must be True or False, not {final!r}",
            hint="queue.nack(message, final=True)",
            argument="final",
            value=final,
        )
    if final and delay is not None:
        raise UsageError(
            "final and delay cannot be combined: a message that is dead is not delivered again",
            hint="leave out delay or final",
            reason="final-with-delay",
        )


def error_summary(error: BaseException) -> str:
    """Return an error's type and message, as a dead letter stores them."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def error_text(error: Any) -> str | None:
    """Return an error text as it is stored: truncated, and without characters that cannot be encoded, such as bytes of
    a file name."""
    if error is None:
        return None
    if not isinstance(error, str):
        raise UsageError(
            f"error must be a string, not {error!r}",
            hint="queue.nack(message, error=str(error))",
            argument="error",
            value=error,
        )
    short = error if len(error) <= ERROR_CHARACTERS_MAX else f"{error[:ERROR_CHARACTERS_MAX]}..."
    return short.encode("utf-8", "replace").decode()


def parse_token(text: str) -> tuple[int, int]:
    """Parse a token into position and lease. The caller compares the token's commit with the log."""
    try:
        place, _, lease = split_token(text.strip())[0].partition("@")
        partition, _, offset = place.partition("-")
        return place_of(int(partition), int(offset)), int(lease)
    except ValueError:
        raise UsageError(
            f"{text!r} is not the token of a message",
            hint="copy the token that `headwater queue receive` printed, such as 0-17@42",
            token=text,
        ) from None
