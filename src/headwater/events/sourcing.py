"""What a workspace offers of event sourcing: stores, reactions and calls. Loaded when it is first used."""

from __future__ import annotations

import abc
import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.clock import Clock
from headwater.log.protocol import Log

if TYPE_CHECKING:
    from headwater.events.aggregate import Aggregate
    from headwater.events.background import Background
    from headwater.events.calls import Calls, Service
    from headwater.events.reactions import Reaction, Since
    from headwater.events.store import Store

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")
T = TypeVar("T")
CLOSE_S = 10.0
"""So long closing waits for what a reaction or a service is doing."""


class EventSourcing(abc.ABC):
    """Part of a `Workspace`."""

    def __init__(self, log: Log, clock: Clock, path: Path | None) -> None:
        self.log = log
        self.path = path
        self._clock = clock
        self._stores: dict[str, Store[Any, Any, Any]] = {}
        self._calls: Calls | None = None
        self._in_background: weakref.WeakSet[Background] = weakref.WeakSet()

    @abc.abstractmethod
    def view(self, name: str) -> Any:
        """The view of that name."""

    @abc.abstractmethod
    def _newest_tick(self) -> int:
        """The last tick; 0 before the first."""

    def store(self, aggregate: Aggregate[S, C, E], *, partitions: int | None = None) -> Store[S, C, E]:
        """The aggregates of one kind: commands in, states and histories out. Their events are the topic of its name, which is
        made, and given columns for what is new, as the classes of the events say. Starts no JVM."""
        from headwater.events.store import Store

        known = self._stores.get(aggregate.name)
        if known is None or known.aggregate is not aggregate:
            folder = self.path / "events" if self.path is not None else None
            known = Store(self.log, self._clock, aggregate, folder=folder, partitions=partitions)
            self._stores[aggregate.name] = known
        return known

    def reaction(
        self, name: str, to: Store[Any, Any, Any] | str, *, since: Since = "beginning"
    ) -> Callable[[Callable[..., Any]], Reaction]:
        """Declare a reaction: a function of the events of a store, or of the changes of a view, that gives commands.

        `since` says what a reaction of a new name begins with: all past events (the rows of a view), only what comes from now on,
        or a time. It goes on where it was left. `run()` of what is returned reacts to what is there, `start()` keeps at it.
        """
        from headwater.events.reactions import EventFeed, Reaction, ViewFeed, event_kinds

        def declare(function: Callable[..., Any]) -> Reaction:
            feed = (
                ViewFeed(self.log, self.view(to), name, since, self._newest_tick)
                if isinstance(to, str)
                else EventFeed(self.log, to, name, since, event_kinds(function, to))
            )
            made = Reaction(name, function, feed)
            self._in_background.add(made)
            return made

        return declare

    def serve(self, topic: str) -> Callable[[Callable[..., Any]], Service]:
        """Declare who answers calls to a topic: a function of a request, and if it likes of the `Call`, that gives a reply; all
        dataclasses. `run()` of what is returned answers what is there, `start()` keeps at it."""
        from headwater.events.calls import Service

        def declare(function: Callable[..., Any]) -> Service:
            made = Service(self.log, self._clock, topic, function)
            self._in_background.add(made)
            return made

        return declare

    def call(
        self,
        topic: str,
        request: Any,
        timeout: float = 30,
        *,
        call_id: str | None = None,
        returns: type[T] | None = None,
    ) -> T | Any:
        """Send a request to whoever serves a topic, and wait for the reply: an object of `returns`, or a dict.

        The same `call_id` again sends nothing and waits for the same reply, also after a crash and from another process.
        LogTimeoutError if there is none in `timeout` seconds; CallFailedError if the reply is that it failed.
        """
        if self._calls is None:
            from headwater.events.calls import Calls

            self._calls = Calls(self.log, self._clock)
        return self._calls.call(topic, request, timeout, call_id, returns)

    async def call_async(
        self,
        topic: str,
        request: Any,
        timeout: float = 30,
        *,
        call_id: str | None = None,
        returns: type[T] | None = None,
    ) -> T | Any:
        """`call` for an event loop."""
        return await asyncio.to_thread(self.call, topic, request, timeout, call_id=call_id, returns=returns)

    def _close_stores(self) -> None:
        """Stop what goes on in the background, and let go of files."""
        running = list(self._in_background)
        for one in running:
            one.stop_soon()
        for one in running:
            one.end(CLOSE_S)
        for store in self._stores.values():
            store.close()
