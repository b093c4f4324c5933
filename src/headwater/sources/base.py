"""What a source is: something outside that hands over rows, and can go on from where the log has it.

A source knows nothing of the log. It is asked to read on from a position, which is plain JSON of its own making, and gives
events; `headwater.sources.source_runner` puts them into the log, each transaction as one atomic append that has the new position
in it. So whatever dies, and wherever: what is in the log and the position that goes with it are of one commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError

Position = dict[str, Any]
"""Where a source goes on from: plain JSON."""
AWAY = "waiting to connect"
"""How the state of a source begins, in words, while nobody answers where it reads."""
AGAIN = "trying again"
"""How it begins while what answers is an error."""


@dataclass(frozen=True)
class Rows:
    """Rows of the transaction under way; several may come before its end."""

    topic: str
    batch: pa.RecordBatch
    """In the topic's `row_schema`."""


@dataclass(frozen=True)
class Commit:
    """The rows since the last one are one atomic append, and the position is in the same commit."""

    sequence: int
    """Rises from one to the next: the log takes none twice."""
    position: Position


@dataclass(frozen=True)
class Evolve:
    """A topic is to be made, or to have these columns, before the rows that follow; given between transactions alone."""

    definition: TopicDefinition


@dataclass(frozen=True)
class Quiet:
    """There is nothing to hand over now. `sequence`: everything up to there was given, also if it brought no rows."""

    sequence: int | None = None
    position: Position | None = None


Event = Rows | Commit | Evolve | Quiet


class RowSource(Protocol):
    """Where rows come from."""

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Everything after what the log has: its last position, None before the first, and the sequence that it is of (-1).
        Never ends by itself: where there is nothing for a moment, it says so."""
        ...

    def durable(self, sequence: int, position: Position | None) -> None:
        """The log has everything up to there, durably: it need not be given again."""
        ...

    def end(self) -> int:
        """The sequence up to which there is something now: reading up to there misses nothing that is committed by now."""
        ...

    def close(self) -> None:
        """Let go of everything outside."""
        ...


# What a source may be able to do besides. Who has a use for it asks with `isinstance`; a kind that lacks it has no such member.


@runtime_checkable
class Stated(Protocol):
    """A source that says how it is doing."""

    @property
    def state(self) -> str:
        """What it does, or why it does nothing, in words."""
        ...


@runtime_checkable
class Busy(Protocol):
    """A source that may have more to do than its `end` says."""

    @property
    def busy(self) -> bool:
        """Whether there is something that it was asked for, or has received, and has not handed over."""
        ...


@runtime_checkable
class Finishing(Protocol):
    """A source that holds what nobody else has: it is to hand that over before it is closed."""

    def finish(self) -> bool:
        """Take in no more; whether all of it is handed over."""
        ...


@runtime_checkable
class SelfRestarting(Protocol):
    """A source that an error may have begin anew by itself."""

    def begins_anew(self, error: HeadwaterError) -> bool:
        """Whether reading everything again makes good what an error that has stopped it means."""
        ...


@runtime_checkable
class OfTables(Protocol):
    """A source of several tables, of which some may stop while the others go on."""

    @property
    def stopped(self) -> Mapping[str, HeadwaterError]:
        """By table: why it is not captured any more."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A source that counts the rows and messages it has accepted and rejected."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts since it was declared, by what is counted."""
        ...

    @property
    def last_refused(self) -> Sequence[str]:
        """What it has refused last."""
        ...


class Backlog(Protocol):
    """What a server keeps for the source that reads from it."""

    @property
    def retained_bytes(self) -> int:
        """What is kept."""
        ...

    @property
    def behind_bytes(self) -> int:
        """What the source has not confirmed yet."""
        ...

    @property
    def over_budget(self) -> bool:
        """Whether that is more than the source may cost."""
        ...


@runtime_checkable
class Retaining(Protocol):
    """A source whose server keeps what it has not confirmed."""

    @property
    def health(self) -> Backlog | None:
        """What the server keeps; None before that is known."""
        ...


@runtime_checkable
class Snapshotting(Protocol):
    """A source that reads a table again while it reads on: ALTER SOURCE ... SNAPSHOT."""

    def snapshot(self, table: str, where: str | None = None) -> None:
        """Have a table read, or those rows of it for which a condition holds."""
        ...


@runtime_checkable
class Restarting(Protocol):
    """A source that takes up a table which has stopped: ALTER SOURCE ... RESTART table."""

    def retry(self, table: str) -> None:
        """Take a table up again."""
        ...


@runtime_checkable
class Pausable(Protocol):
    """A source whose snapshots can rest: ALTER SOURCE ... PAUSE and RESUME."""

    def pause(self) -> None:
        """Let snapshots rest."""
        ...

    def resume(self) -> None:
        """Let them go on."""
        ...
