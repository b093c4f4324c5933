"""The workspace methods for event sourcing: stores, reactions and calls. The modules are imported at first use."""

from __future__ import annotations

import abc
import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.core.arguments import label, text
from headwater.core.clock import Clock
from headwater.core.errors import UsageError, shown
from headwater.log.protocol import Log
from headwater.log.reader import wait_ms

if TYPE_CHECKING:
    from headwater.events.aggregate_store import Store
    from headwater.events.aggregates import Aggregate
    from headwater.events.calls import CallClient, Service
    from headwater.events.reactions import Reaction, Since
    from headwater.events.service_thread import Background

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")
T = TypeVar("T")
CLOSE_S = 10.0
"""Maximum time for which closing waits for a step of a reaction or a service."""


class EventSourcing(abc.ABC):
    """The part of a `Workspace` for event sourcing."""

    def __init__(self, log: Log, clock: Clock, path: Path | None) -> None:
        self.log = log
        self.path = path
        self._clock = clock
        self._stores: dict[str, Store[Any, Any, Any]] = {}
        self._calls: CallClient | None = None
        self._in_background: weakref.WeakSet[Background] = weakref.WeakSet()

    @abc.abstractmethod
    def view(self, name: str) -> Any:
        """Return the view of that name."""

    @abc.abstractmethod
    def newest_tick(self) -> int:
        """Return the number of the newest tick; 0 before the first tick."""

    def store(self, aggregate: Aggregate[S, C, E], *, partitions: int | None = None) -> Store[S, C, E]:
        """Return the store of one kind of aggregate, which executes commands and loads states and histories. Its events are
        the topic of its name, which is created, and extended with columns for new fields of the event classes. Starts no
        JVM."""
        from headwater.events.aggregate_store import Store
        from headwater.events.aggregates import Aggregate

        if not isinstance(aggregate, Aggregate):
            raise UsageError(
                f"store() takes an Aggregate, not {shown(aggregate)}",
                hint='ws.store(Aggregate("account", decide, fold))',
                argument="aggregate",
                value=aggregate,
            )
        known = self._stores.get(aggregate.name)
        if known is None or known.aggregate is not aggregate:
            folder = self.path / "events" if self.path is not None else None
            known = Store(self.log, self._clock, aggregate, folder=folder, partitions=partitions)
            self._stores[aggregate.name] = known
        return known

    def reaction(
        self, name: str, to: Store[Any, Any, Any] | str, *, since: Since = "beginning"
    ) -> Callable[[Callable[..., Any]], Reaction]:
        """Declare a reaction: a function of the events of a store, or of the changes of a view, that returns commands.

        `since` is the start of a reaction with a new name: all past events (the rows of a view), only future ones, or a
        time. An existing reaction continues from its position. `run()` of the returned object reacts to present input,
        `start()` continues in the background.
        """
        from headwater.events.aggregate_store import Store
        from headwater.events.reactions import EventFeed, Reaction, ViewFeed, event_kinds

        label(name, "reaction")
        if not isinstance(to, (str, Store)):
            raise UsageError(
                f"reaction() takes a store or the name of a view, not {shown(to)}",
                hint='ws.reaction("welcome", ws.store(account)), or ws.reaction("welcome", "a_view")',
                argument="to",
                value=to,
            )

        def declare(function: Callable[..., Any]) -> Reaction:
            feed = (
                ViewFeed(self.log, self.view(to), name, since, self.newest_tick)
                if isinstance(to, str)
                else EventFeed(self.log, to, name, since, event_kinds(function, to))
            )
            made = Reaction(name, function, feed, self.log.faults)
            self._in_background.add(made)
            return made

        return declare

    def serve(self, topic: str) -> Callable[[Callable[..., Any]], Service]:
        """Declare the service that answers calls to a topic: a function of a request and optionally of the `Call` that
        returns a reply; all are dataclasses. `run()` of the returned object answers present calls, `start()` continues in
        the background."""
        from headwater.events.calls import Service

        text(topic, "topic", hint='@ws.serve("payouts")')

        def declare(function: Callable[..., Any]) -> Service:
            made = Service(self.log, self._clock, topic, function)
            self._in_background.add(made)
            return made

        return declare

    def call(
        self,
        topic: str,
        request: Any,
        timeout: float | None = 30,
        *,
        call_id: str | None = None,
        returns: type[T] | None = None,
    ) -> T | Any:
        """Send a request to the service of a topic, and wait for the reply: an object of `returns`, or a dict.

        The same `call_id` again sends nothing and waits for the same reply, also after a crash and from another process.
        LogTimeoutError if there is none within `timeout` seconds (None: no limit); CallFailedError if the reply is an error.
        """
        return self._checked_calls(topic, returns).call(topic, request, wait_ms(timeout), call_id, returns)

    async def call_async(
        self,
        topic: str,
        request: Any,
        timeout: float | None = 30,
        *,
        call_id: str | None = None,
        returns: type[T] | None = None,
    ) -> T | Any:
        """`call` for an event loop."""
        calls = self._checked_calls(topic, returns)
        return await calls.call_async(topic, request, wait_ms(timeout), call_id, returns)

    def _checked_calls(self, topic: Any, returns: Any) -> CallClient:
        """Return the client for calls; UsageError if the arguments are invalid."""
        text(topic, "topic", hint='ws.call("payouts", Payout(...))')
        if returns is not None and not _is_dataclass(returns):
            raise UsageError(
                f"returns must be a dataclass, not {returns!r}",
                hint="returns=PaidOut",
                argument="returns",
                value=returns,
            )
        if self._calls is None:
            from headwater.events.calls import CallClient

            self._calls = CallClient(self.log, self._clock)
        return self._calls

    def _close_stores(self) -> None:
        """Stop reactions and services in the background, and close files."""
        running = list(self._in_background)
        for one in running:
            one.stop_soon()
        for one in running:
            one.end(CLOSE_S)
        for store in self._stores.values():
            store.close()


def _is_dataclass(given: Any) -> bool:
    return isinstance(given, type) and dataclasses.is_dataclass(given)
