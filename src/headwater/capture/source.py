"""What a source is: something outside that hands over rows, and can go on from where the log has it.

A source knows nothing of the log. It is asked to read on from a position, which is plain JSON of its own making, and gives
events; `headwater.capture.capturing` puts them into the log, each transaction as one atomic append that has the new position
in it. So whatever dies, and wherever: what is in the log and the position that goes with it are of one commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headwater.catalog import TopicDefinition

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


class Source(Protocol):
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
