"""Data classes of event sourcing: an event as recorded, the context and the outcome of a command, a loaded state, a history."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from headwater.core.positions import Receipt

E = TypeVar("E")
S = TypeVar("S")


@dataclass(frozen=True)
class Context:
    """The context of a command that is stored in every event: actor, reason, and correlation."""

    actor: str | None = None
    reason: str | None = None
    correlation_id: str | None = None
    """Id shared by related commands and events; by default the command's own id."""
    causation_id: str | None = None
    """Cause of the command: the id of an event, if a reaction issued it."""

    @property
    def plain(self) -> bool:
        """Whether every field is text or None."""
        said = (self.actor, self.reason, self.correlation_id, self.causation_id)
        return all(one is None or isinstance(one, str) for one in said)


NO_CONTEXT = Context()


@dataclass(frozen=True)
class Recorded(Generic[E]):
    """An event with position and context."""

    event: E
    aggregate_id: str
    version: int
    """Number among the aggregate's events, from 1."""
    at: datetime
    """Time of the append."""
    topic: str
    partition: int
    offset: int
    command_id: str
    command: str
    """Class name of the command that led to the event."""
    correlation_id: str
    causation_id: str | None
    actor: str | None
    reason: str | None

    @property
    def id(self) -> str:
        """Identifier of the event, unique in the workspace."""
        return f"{self.topic}/{self.aggregate_id}/{self.version}"

    def caused(self, actor: str | None = None, reason: str | None = None) -> Context:
        """Return the context of a command that this event leads to."""
        return Context(actor, reason, self.correlation_id, self.id)


@dataclass(frozen=True)
class Outcome(Generic[E]):
    """The outcome of a command: the same for every caller that uses its id."""

    aggregate_id: str
    command_id: str
    version: int
    """Version of the aggregate after the command."""
    events: tuple[E, ...]
    receipt: Receipt = field(repr=False)
    """Positions of the events: `ws.query(..., after=outcome.receipt)`."""
    repeated: bool = field(default=False, compare=False)
    """Whether the command had been executed before."""


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """The state of an aggregate at a version."""

    aggregate_id: str
    version: int
    state: S
    at: datetime
    """Time at which the last event was appended."""


@dataclass(frozen=True)
class Step(Generic[S, E]):
    """One event of a history, and the state after it."""

    recorded: Recorded[E]
    state: S

    def __str__(self) -> str:
        found = self.recorded
        context = [f"by {found.actor}"] if found.actor else []
        context += [f"because {found.reason}"] if found.reason else []
        context += [f"after {found.causation_id}"] if found.causation_id else []
        story = ", ".join([f"{found.command} {found.command_id}", *context])
        return f"{found.version:>4}  {found.at:%Y-%m-%d %H:%M:%S}  {found.event}  ({story})\n      -> {self.state}"


class History(tuple[Step[Any, Any], ...]):
    """The history of an aggregate, event by event; printed, it is a readable report."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))
