"""Interface of a source: a reader of an external system that yields rows and can resume from the position in the log.

A source does not use the log. It is asked to read on from a position, which is plain JSON that the source defined, and yields
events. `headwater.sources.source_runner` writes each transaction to the log as one atomic append, with the new position in the
same commit. So after a crash at any point, the rows in the log and the position stored with them belong to the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError

Position = dict[str, Any]
"""Position from which a source resumes: plain JSON."""
AWAY = "waiting to connect"
"""First words of the state of a source while the system that it reads from does not answer."""
AGAIN = "trying again"
"""First words of the state while the external system answers with an error."""


@dataclass(frozen=True)
class Rows:
    """Rows of the current transaction. A transaction may have several of these events before its `Commit`."""

    topic: str
    batch: pa.RecordBatch
    """Rows in the topic's `row_schema`."""


@dataclass(frozen=True)
class Commit:
    """End of a transaction: the rows since the last `Commit` become one atomic append, with the position in the same commit."""

    sequence: int
    """Sequence of the commit. Sequences increase from commit to commit: the log accepts each sequence once."""
    position: Position


@dataclass(frozen=True)
class Evolve:
    """Request to create a topic, or to change its columns, before the rows that follow. Yielded only between transactions."""

    definition: TopicDefinition


@dataclass(frozen=True)
class Quiet:
    """The source has no more rows at present. `sequence`: everything up to this sequence was yielded, even if it contained no
    rows."""

    sequence: int | None = None
    position: Position | None = None


Event = Rows | Commit | Evolve | Quiet


class RowSource(Protocol):
    """A source of rows."""

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Yield everything after the position: the last position in the log, None before the first. `sequence` is the sequence
        of that position, -1 before the first. The iterator never ends by itself: while the source has nothing new, it yields
        `Quiet`."""
        ...

    def durable(self, sequence: int, position: Position | None) -> None:
        """Acknowledge that the log has everything up to the sequence durably: the source need not yield it again."""
        ...

    def end(self) -> int:
        """Return the current end of the source as a sequence: reading up to it includes everything committed so far."""
        ...

    def close(self) -> None:
        """Release all external resources."""
        ...


# Optional interfaces of a source. Callers test for them with `isinstance`; a kind without the ability does not have the member.


@runtime_checkable
class Stated(Protocol):
    """A source that reports a state."""

    @property
    def state(self) -> str:
        """Current activity of the source, or the reason why it is idle, in words."""
        ...


@runtime_checkable
class Busy(Protocol):
    """A source that may have work left even though its `end` was reached."""

    @property
    def busy(self) -> bool:
        """Whether the source has requests to fulfil, or received data that it has not yielded."""
        ...


@runtime_checkable
class Finishing(Protocol):
    """A source that holds data which exists nowhere else: it must yield this data before it is closed."""

    def finish(self) -> bool:
        """Stop receiving. Returns whether all received data was yielded."""
        ...


@runtime_checkable
class SelfRestarting(Protocol):
    """A source that can recover from certain errors by restarting from scratch."""

    def restarts(self, error: HeadwaterError) -> bool:
        """Whether reading everything again repairs the error that stopped the source."""
        ...


@runtime_checkable
class OfTables(Protocol):
    """A source of several tables: some tables may stop while the others continue."""

    @property
    def stopped(self) -> Mapping[str, HeadwaterError]:
        """Error of each stopped table, by table."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A source that counts the rows and messages it has accepted and rejected."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts since the source was declared, by name of the counter."""
        ...

    @property
    def last_refused(self) -> Sequence[str]:
        """Messages rejected most recently."""
        ...


class Backlog(Protocol):
    """WAL or other data that an external server retains for the source."""

    @property
    def retained_bytes(self) -> int:
        """Number of bytes that the server retains."""
        ...

    @property
    def behind_bytes(self) -> int:
        """Number of bytes that the source has not confirmed yet."""
        ...

    @property
    def over_budget(self) -> bool:
        """Whether the retained bytes exceed the budget of the source."""
        ...


@runtime_checkable
class Retaining(Protocol):
    """A source whose server retains data until the source confirms it."""

    @property
    def health(self) -> Backlog | None:
        """Data retained by the server; None until the first measurement."""
        ...


@runtime_checkable
class Snapshotting(Protocol):
    """A source that can snapshot a table again while it continues to read: ALTER SOURCE ... SNAPSHOT."""

    def snapshot(self, table: str, where: str | None = None) -> None:
        """Request a snapshot of a table, or of the rows of it that match a condition."""
        ...


@runtime_checkable
class Restarting(Protocol):
    """A source that can resume a stopped table: ALTER SOURCE ... RESTART table."""

    def retry(self, table: str) -> None:
        """Resume capture of a table."""
        ...


@runtime_checkable
class Pausable(Protocol):
    """A source whose snapshots can be paused: ALTER SOURCE ... PAUSE and RESUME."""

    def pause(self) -> None:
        """Pause snapshots."""
        ...

    def resume(self) -> None:
        """Resume snapshots."""
        ...
