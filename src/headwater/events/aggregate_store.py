"""The store of one kind of aggregate in a workspace: executes commands, loads states and histories (`ws.store(aggregate)`)."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from headwater.core.arguments import whole_number
from headwater.core.clock import Clock, from_us, timestamp, to_us
from headwater.core.errors import AggregateNotFoundError, HeadwaterError, UsageError, shown
from headwater.core.group_commit import GroupCommit, Limits
from headwater.core.storage import Storage
from headwater.events.aggregates import SUBJECT, Aggregate
from headwater.events.code_fingerprint import fingerprint_of
from headwater.events.command_loop import CommandLoop, EventIndexes, PendingCommand
from headwater.events.encrypted_state import ForgottenSubjects, StateEncryption
from headwater.events.envelope import NO_CONTEXT, Context, History, Loaded, Outcome, Recorded, Step
from headwater.events.event_positions import KeyOffsets
from headwater.events.event_schema import EventLayout, all_columns, ensure_topic
from headwater.events.snapshots import Snapshots
from headwater.events.states import KnownAggregate, States
from headwater.log.protocol import Log

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")

GROUP_MAX = 2_000
"""Maximum number of commands that are decided and written together."""
ID_CHARACTERS_MAX = 500


@dataclasses.dataclass(frozen=True)
class Send(Generic[C]):
    """A command addressed to an aggregate, as reactions return it. Created by `store.send`."""

    store: Store[Any, C, Any]
    aggregate_id: str
    command: C
    command_id: str | None = None
    context: Context = NO_CONTEXT
    version: int | None = None


class Store(Generic[S, C, E]):
    """Executes commands and loads states. All methods are thread-safe; those with `_async` are for event loops."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        aggregate: Aggregate[S, C, E],
        *,
        folder: Path | None = None,
        partitions: int | None = None,
    ) -> None:
        """`folder` holds indexes and snapshots, which may be deleted; without a folder none are stored on disk."""
        self.aggregate = aggregate
        layout = self._layout = EventLayout(aggregate)
        topic = ensure_topic(log, layout, partitions)
        self.topic = topic.name
        self._log = log
        self._lock = threading.RLock()
        storage = None if folder is None else Storage(folder)
        own = f"{topic.name.lower()}-{topic.incarnation}"
        if storage is not None:
            storage.make_dirs(own)
        index = None if folder is None else folder / own
        self._key_offsets = KeyOffsets(log, topic, ["aggregate_id"], index and index / "aggregates")
        self._commands = KeyOffsets(
            log, topic, ["aggregate_id", "meta.command_id"], index and index / "commands"
        )
        forgotten = ForgottenSubjects(topic, log.keys)
        encryption = StateEncryption(log.keys, forgotten, topic.name) if topic.private else None
        code = _code_of(aggregate)
        self.snapshots = Snapshots(storage, f"{own}/snapshots", code, aggregate.state_type, encryption)
        if any(subject != SUBJECT for _, subject in topic.private):
            self.snapshots.why_not = "the private fields of its events have several subjects"
        self._states: States[S] = States(log, layout, self._key_offsets, self.snapshots, forgotten)
        indexes = EventIndexes(self._key_offsets, self._commands)
        self._deciding = CommandLoop(log, clock, layout, self._states, indexes, self._lock)
        self._gathering: GroupCommit[PendingCommand] = GroupCommit(
            self._deciding.work, Limits(most=GROUP_MAX)
        )
        self._threads: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<Store {self.topic}>"

    # --- commands --------------------------------------------------------------------------------------------------

    def execute(
        self,
        aggregate_id: str,
        command: C,
        *,
        command_id: str | None = None,
        actor: str | None = None,
        reason: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        version: int | None = None,
    ) -> Outcome[E]:
        """Decide a command on the current state of the aggregate, append its events, and return when they are durable.

        CommandRefusedError if `decide` refuses the command. If another process was first, the command is decided again on
        the new state. The same `command_id` again, for the same aggregate, has no second effect and gets the same answer,
        also after a crash and from another process; without one the command gets an id of its own. `version` is the version
        that the aggregate must have, else ConflictError. Actor, reason, correlation id and causation id are stored in every
        event.
        """
        context = Context(actor, reason, correlation_id, causation_id)
        ask = self._ask(Send(self, aggregate_id, command, command_id, context, version))
        self._gathering.submit(ask)
        return _outcome(ask)

    async def execute_async(
        self,
        aggregate_id: str,
        command: C,
        *,
        command_id: str | None = None,
        actor: str | None = None,
        reason: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        version: int | None = None,
    ) -> Outcome[E]:
        """`execute` for an event loop. The command is executed even if the awaiting task is cancelled."""
        context = Context(actor, reason, correlation_id, causation_id)
        ask = self._ask(Send(self, aggregate_id, command, command_id, context, version))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"headwater-{self.topic}")
        await asyncio.shield(self._gathering.post(ask, self._threads))
        return _outcome(ask)

    def send(
        self,
        aggregate_id: str,
        command: C,
        *,
        command_id: str | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Send[C]:
        """Return a command for a reaction to issue; the command is not executed by this method."""
        return Send(self, aggregate_id, command, command_id, Context(actor, reason))

    def execute_all(self, sends: Iterable[Send[C]]) -> list[Outcome[E] | HeadwaterError]:
        """Execute many commands independently, in as few commits as possible; return the outcome or the error of each."""
        asks = [self._ask(send) for send in sends]
        self._gathering.submit_all(asks)
        return [ask.error if isinstance(ask.error, HeadwaterError) else _outcome(ask) for ask in asks]

    async def execute_all_async(self, sends: Iterable[Send[C]]) -> list[Outcome[E] | HeadwaterError]:
        """`execute_all` for an event loop."""
        return await asyncio.to_thread(self.execute_all, list(sends))

    def _ask(self, send: Send[Any]) -> PendingCommand:
        if not isinstance(send, Send):
            raise UsageError(
                f"expected a command from store.send(), not {shown(send)}",
                hint="store.execute_all([store.send(aggregate_id, command)])",
                reason="not-a-send",
                value=send,
            )
        _check_id(send.aggregate_id, "aggregate_id")
        if not isinstance(send.command, self.aggregate.commands):
            names = ", ".join(kind.__name__ for kind in self.aggregate.commands)
            raise UsageError(
                f"{shown(send.command)} is not a command of aggregate {self.aggregate.name!r}",
                hint=f"its commands are {names}",
                aggregate=self.aggregate.name,
                command=send.command,
            )
        if send.command_id is not None:
            _check_id(send.command_id, "command_id")
        if send.version is not None:
            whole_number(send.version, "version")
        if not send.context.plain:
            raise UsageError(
                f"actor, reason, correlation_id and causation_id must be strings, not {send.context!r}",
                reason="context-not-text",
                value=send.context,
            )
        given = send.command_id is not None
        command_id = send.command_id or uuid.uuid4().hex
        return PendingCommand(send.aggregate_id, send.command, command_id, given, send.context, send.version)

    # --- states ----------------------------------------------------------------------------------------------------

    def load(self, aggregate_id: str) -> Loaded[S]:
        """Return the current state of an aggregate; AggregateNotFoundError if it has no events."""
        _check_id(aggregate_id, "aggregate_id")
        with self._lock:
            self._deciding.refresh()
            return self._loaded(aggregate_id, self._states.current(aggregate_id))

    async def load_async(self, aggregate_id: str) -> Loaded[S]:
        """`load` for an event loop."""
        return await asyncio.to_thread(self.load, aggregate_id)

    def __contains__(self, aggregate_id: str) -> bool:
        try:
            self.load(aggregate_id)
        except AggregateNotFoundError:
            return False
        return True

    def at(self, aggregate_id: str, when: datetime) -> Loaded[S]:
        """Return an aggregate as of a time, with the events that were appended by then."""
        _check_id(aggregate_id, "aggregate_id")
        if not isinstance(when, datetime):
            raise UsageError(
                f"the time of a past state must be a datetime, not {shown(when)}",
                hint='store.at("7", datetime(2026, 1, 31, 12, tzinfo=UTC))',
                argument="when",
                value=when,
            )
        with self._lock:
            self._deciding.refresh()
            found = self._states.at(aggregate_id, to_us(when))
            return self._loaded(aggregate_id, found, when)

    async def at_async(self, aggregate_id: str, when: datetime) -> Loaded[S]:
        """`at` for an event loop."""
        return await asyncio.to_thread(self.at, aggregate_id, when)

    def events(self, aggregate_id: str) -> list[Recorded[E]]:
        """Return the events of an aggregate, in order; an empty list if it has none."""
        _check_id(aggregate_id, "aggregate_id")
        with self._lock:
            self._deciding.refresh()
            return list(self._states.events(aggregate_id))

    async def events_async(self, aggregate_id: str) -> list[Recorded[E]]:
        """`events` for an event loop."""
        return await asyncio.to_thread(self.events, aggregate_id)

    def recorded(self, partition: int, start: int, end: int) -> list[Recorded[E]]:
        """Return the events of all aggregates in a range of offsets, in order."""
        topic = self._states.topic
        read = self._log.read(topic.name, partition, start, end, all_columns(topic))
        return [one for batch in read for one in self._layout.recorded(topic, partition, batch)]

    def history(self, aggregate_id: str) -> History:
        """Return the history of an aggregate: every event with its context and the state after it. Printing it gives a
        report."""
        steps: list[Step[S, E]] = []
        state = self.aggregate.initial
        for recorded in self.events(aggregate_id):
            state = self.aggregate.fold(self.aggregate.own(state), recorded.event)
            steps.append(Step(recorded, state))
        if not steps:
            raise self._unknown(aggregate_id)
        return History(steps)

    async def history_async(self, aggregate_id: str) -> History:
        """`history` for an event loop."""
        return await asyncio.to_thread(self.history, aggregate_id)

    def forget(self) -> None:
        """Drop the states in memory; later requests load them from snapshots and events."""
        with self._lock:
            self._states.forget()

    def close(self) -> None:
        """Close files and threads. Executed commands are durable without a close."""
        if self._threads is not None:
            self._threads.shutdown()
        self._key_offsets.close()
        self._commands.close()

    def _loaded(self, aggregate_id: str, known: KnownAggregate[S], when: datetime | None = None) -> Loaded[S]:
        if not known.version:
            raise self._unknown(aggregate_id, when)
        at = from_us(self._states.moment(aggregate_id, known))
        return Loaded(aggregate_id, known.version, self.aggregate.own(known.state), at)

    def _unknown(self, aggregate_id: str, when: datetime | None = None) -> AggregateNotFoundError:
        by_then = "" if when is None else f" up to {timestamp(when)}"
        facts: dict[str, Any] = {} if when is None else {"at": when}
        return AggregateNotFoundError(
            f"aggregate {aggregate_id!r} of {self.aggregate.name!r} has no events{by_then}",
            hint="check the id; an aggregate begins with the first command that is executed on it",
            topic=self.topic,
            aggregate_id=aggregate_id,
            **facts,
        )


def _outcome(ask: PendingCommand) -> Outcome[Any]:
    if ask.error is not None:
        raise ask.error
    assert ask.outcome is not None
    return ask.outcome


def _check_id(given: Any, argument: str) -> None:
    if not isinstance(given, str) or not 0 < len(given) <= ID_CHARACTERS_MAX or not given.isprintable():
        raise UsageError(
            f"{argument} must be a string of 1 to {ID_CHARACTERS_MAX} printable characters, not {shown(given)}",
            argument=argument,
            value=given,
        )


def _code_of(aggregate: Aggregate[Any, Any, Any]) -> str:
    """Return the fingerprint that a snapshot depends on: the code of the fold and of the upcast steps, the shapes of state
    and events, and the declared version."""
    steps: Sequence[Any] = [
        part for key in sorted(aggregate.steps) for part in (*key, aggregate.steps[key][1])
    ]
    initial = repr(aggregate.initial)
    things = [aggregate.fold_function, aggregate.state_type, *aggregate.events.values(), *steps]
    return fingerprint_of([*things, str(aggregate.version), initial])
