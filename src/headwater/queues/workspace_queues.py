"""The queue methods of `Workspace`. Queue modules are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.core.arguments import text as text_of
from headwater.core.clock import Clock
from headwater.core.errors import UsageError
from headwater.log.protocol import Log

if TYPE_CHECKING:
    from headwater.log.reader import Start
    from headwater.queues.queue import Queue
    from headwater.queues.queue_client import Ledgers


class Sharing:
    """The part of a `Workspace` that creates, opens and drops queues."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self._ledgers: Ledgers | None = None

    def queue(
        self,
        name: str,
        topic: str | None = None,
        *,
        worker: str | None = None,
        start: Start = "earliest",
        **options: Any,
    ) -> Queue:
        """Return the queue of that name. With a `topic`, create the queue if it does not exist: each record of the
        topic is a message.

        `options`: `lease` is how long a worker holds a message ('30 seconds'), `deliveries` how often a message is
        handed out before it is dead (5), `key` the columns whose messages are handed out one at a time and in order,
        `delay` the column with the time, or the seconds after the append, from which on a message may be handed out.
        `start` is the position at which a new queue begins. `worker` names the receiving worker; a unique name if left
        out. QueueExistsError, with the difference, if the queue exists with another definition.
        """
        from headwater.queues.queue import Queue
        from headwater.queues.queue_ddl import create_queue
        from headwater.queues.queue_definition import OPTIONS

        text_of(name, "name", hint='ws.queue("emails", topic="outbox")')
        for option in options:
            if option not in OPTIONS:
                raise UsageError(
                    f"a queue has no option {option!r}",
                    hint=f"its options are {', '.join(OPTIONS)}",
                    option=option,
                )
        if topic is not None:
            create_queue(self.log, name, text_of(topic, "topic"), start, options)
        elif options:
            raise UsageError(
                f"options of queue {name!r} are given without a topic",
                hint='to create the queue, name its topic: topic="outbox"',
                reason="options-without-topic",
                queue=name,
            )
        return Queue(self.log, self._clock, self._queues, name, worker)

    def queues(self) -> list[Queue]:
        """Return every queue, by name."""
        return [self.queue(name) for name in sorted(self.log.entries("queue"))]

    def drop_queue(self, name: str) -> None:
        """Drop a queue, with its leases and its dead messages. The topic stays unchanged."""
        from headwater.queues.queue_ddl import drop_queue

        drop_queue(self.log, text_of(name, "name"))

    def _close_queues(self) -> None:
        if self._ledgers is not None:
            self._ledgers.close()

    @property
    def _queues(self) -> Ledgers:
        if self._ledgers is None:
            from headwater.queues.queue_client import Ledgers

            self._ledgers = Ledgers(self.log, self._clock)
        return self._ledgers
