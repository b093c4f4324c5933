"""What a workspace offers of queues. Loaded when it is first used."""

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
    """Part of a `Workspace`."""

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
        """The queue of that name; with a `topic`, made if it is not there: each record of the topic is a message of it.

        `options`: `lease` is how long a worker holds a message ('30 seconds'), `deliveries` how often it is handed out before
        it is dead (5), `key` the columns whose messages are handed out one at a time and in order, `delay` the column that says
        from when on. `start` is where a new queue begins. `worker` is who receives: a name of its own if left out.
        QueueExistsError, with the difference, if it is there and differs.
        """
        from headwater.queues.queue import Queue
        from headwater.queues.queue_ddl import create_queue
        from headwater.queues.queue_definition import OPTIONS

        text_of(name, "the name of a queue", hint='ws.queue("emails", topic="outbox")')
        for option in options:
            if option not in OPTIONS:
                raise UsageError(
                    f"a queue has no option {option!r}", hint=f"its options are {', '.join(OPTIONS)}"
                )
        if topic is not None:
            create_queue(self.log, name, text_of(topic, "the name of a topic"), start, options)
        elif options:
            raise UsageError(
                f"queue {name!r} is given options but no topic", hint='name it to make it: topic="outbox"'
            )
        return Queue(self.log, self._clock, self._queues, name, worker)

    def queues(self) -> list[Queue]:
        """Every queue, by name."""
        return [self.queue(name) for name in sorted(self.log.entries("queue"))]

    def drop_queue(self, name: str) -> None:
        """Forget a queue, with its leases and its dead messages. The topic stays as it is."""
        from headwater.queues.queue_ddl import drop_queue

        drop_queue(self.log, text_of(name, "the name of a queue"))

    def _close_queues(self) -> None:
        if self._ledgers is not None:
            self._ledgers.close()

    @property
    def _queues(self) -> Ledgers:
        if self._ledgers is None:
            from headwater.queues.queue_client import Ledgers

            self._ledgers = Ledgers(self.log, self._clock)
        return self._ledgers
