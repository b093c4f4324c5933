"""An event as it stands in the log, what is told of a command, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from headwater.core.positions import Receipt

E = TypeVar("E")
S = TypeVar("S")


@dataclass(frozen=True)
class Context:
    """What travels with a command into every event: who, why, and what it belongs to."""

    actor: str | None = None
    reason: str | None = None
    correlation_id: str | None = None
    """Shared by all that belongs together; of a command that has none, its own id."""
    causation_id: str | None = None
    """What led to the command: the id of an event, if a reaction issued it."""

    @property
    def plain(self) -> bool:
        """Whether all that is said is text."""
        said = (self.actor, self.reason, self.correlation_id, self.causation_id)
        return all(one is None or isinstance(one, str) for one in said)


NOTHING_SAID = Context()


@dataclass(frozen=True)
class Recorded(Generic[E]):
    """An event with its place and its story."""

    event: E
    aggregate_id: str
    version: int
    """Its number among the aggregate's events, from 1."""
    at: datetime
    """When it was appended."""
    topic: str
    partition: int
    offset: int
    command_id: str
    command: str
    """The class of the command that it comes from."""
    correlation_id: str
    causation_id: str | None
    actor: str | None
    reason: str | None

    @property
    def id(self) -> str:
        """Tells it from every other event of the workspace."""
        return f"{self.topic}/{self.aggregate_id}/{self.version}"

    def caused(self, actor: str | None = None, reason: str | None = None) -> Context:
        """The context of a command that this event leads to."""
        return Context(actor, reason, self.correlation_id, self.id)


@dataclass(frozen=True)
class Outcome(Generic[E]):
    """What came of a command: the same for everyone who asks with its id."""

    aggregate_id: str
    command_id: str
    version: int
    """Of the aggregate, after it."""
    events: tuple[E, ...]
    receipt: Receipt = field(repr=False)
    """Where the events are: `ws.query(..., after=outcome.receipt)`."""
    repeated: bool = field(default=False, compare=False)
    """Whether it was done before."""


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """An aggregate as it is at a version."""

    aggregate_id: str
    version: int
    state: S
    at: datetime
    """When its last event was appended."""


@dataclass(frozen=True)
class Step(Generic[S, E]):
    """One event of a history, and the state that it led to."""

    recorded: Recorded[E]
    state: S

    def __str__(self) -> str:
        found = self.recorded
        told = [f"by {found.actor}"] if found.actor else []
        told += [f"because {found.reason}"] if found.reason else []
        told += [f"after {found.causation_id}"] if found.causation_id else []
        story = ", ".join([f"{found.command} {found.command_id}", *told])
        return f"{found.version:>4}  {found.at:%Y-%m-%d %H:%M:%S}  {found.event}  ({story})\n      -> {self.state}"


class History(tuple[Step[Any, Any], ...]):
    """How an aggregate came about, event by event; printed, it explains itself."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))
