"""A named consumer position, stored in the log, with methods to read from it, commit it and compute its lag.

For a topic shared among several processes see `group`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import pyarrow as pa

from headwater.catalog.options import Option
from headwater.core.clock import Clock
from headwater.core.errors import UsageError
from headwater.log.protocol import CursorInfo, CursorMove, Log, TimeAxis
from headwater.log.reader import (
    BATCH_ROWS,
    OnGap,
    ReadOptions,
    Start,
    TopicReader,
    columns_of,
    resolve_start,
)

AutoCommit = Literal["before", "after"]
"""Commit each batch before it is handed out (at most once), or when the next one is asked for (at least once)."""


@runtime_checkable
class Consumer(Protocol):
    """A position that `ws.append(..., commit=...)` can move: a cursor, or a member of a group."""

    def pending_move(self) -> CursorMove:
        """Return the move that would commit everything handed out so far."""
        ...

    def committed(self, move: CursorMove) -> None:
        """Record that the move was stored."""
        ...

    def refused(self) -> None:
        """Record that the append was fenced: the uncommitted rows are handed out again."""
        ...


@dataclass(frozen=True)
class Lag:
    """Lag of a position: the number of rows not yet read, and the age in seconds of the oldest of them."""

    rows: int
    seconds: float


def make_cursor(log: Log, topic: str, name: str, start: Start, hold: bool | None) -> None:
    """Create a cursor at `start` if it does not exist; if `hold` is not None, set whether retention keeps its unread
    records."""
    stored = log.cursor(topic, name)
    if stored is None or (hold is not None and hold != stored.hold):
        positions = stored.positions if stored else resolve_start(log, topic, start)
        log.create_cursor(topic, name, positions, bool(hold))


CURSOR_OPTIONS = (
    Option(
        "start",
        "position",
        "'earliest'",
        "Position of a new cursor; an existing one stays where it was left.",
    ),
    Option(
        "hold",
        "boolean",
        "none",
        "Whether retention keeps records that the cursor has not read. None is false for a new cursor, and leaves an existing one as "
        "it is.",
    ),
    Option(
        "on_gap",
        "'fail' | 'earliest' | 'latest'",
        "'fail'",
        "Reaction when retention removed the records at the position: GapError, or continue at the first or after the last record, with "
        "the loss counted in `lost`.",
    ),
)
"""Options of `topic.cursor`."""
CURSOR_READ_OPTIONS = (
    Option(
        "follow",
        "boolean",
        "false",
        "Whether to wait for new records at the end of the topic. For a member of a group the default is true.",
    ),
    Option(
        "columns",
        "list of columns",
        "those of the topic",
        "Columns to read, also `_appended_at`, `_watermark` and `_sequence`.",
    ),
    Option("batch_rows", "whole number", f"{BATCH_ROWS}", "Largest number of rows in a batch."),
    Option(
        "commit",
        "'after' | 'before'",
        "none",
        "When a batch is committed by itself: when the next one is asked for (at least once), or before it is handed out (at most once). "
        "Without it, the program calls `commit()`.",
    ),
    Option("timeout", "seconds", "none", "With `follow`: time without a record after which reading ends."),
)
"""Options of `cursor.read`, and of `read` of a group's member."""


class Cursor:
    """A durable position in each partition of a topic.

    `read` begins at the last committed position, so rows that were handed out and not committed come again after a crash: at
    least once. `commit="before"` changes that to at most once, and `ws.append(..., commit=cursor)` to exactly once for the rows
    appended. One reader at a time: the position belongs to the newest `read`.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        name: str,
        clock: Clock,
        *,
        on_gap: OnGap = "fail",
    ) -> None:
        self.topic = topic
        self.name = name
        self._log = log
        self._clock = clock
        self._on_gap: OnGap = ReadOptions(on_gap=on_gap).on_gap
        self._reader: TopicReader | None = None
        self._committed: dict[int, int] = {}
        self._lost_committed = 0

    def __repr__(self) -> str:
        return f"<Cursor {self.name} on {self.topic}>"

    def read(
        self,
        *,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        batch_rows: int = BATCH_ROWS,
        commit: AutoCommit | None = None,
        timeout: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches from the committed position on, in the form of `Topic.read`.

        You call `commit()` once you have processed the rows handed out; or `commit` does it for each batch: "after" when you
        ask for the next batch (at least once), "before" handing it out (at most once).
        """
        check_auto_commit(commit)
        stored = self._stored()
        options = ReadOptions(columns_of(columns), batch_rows, self._on_gap)
        self._committed, self._lost_committed = dict(stored.positions), 0
        self._reader = TopicReader(
            self._log, self.topic, stored.positions, options, follow=follow, timeout=timeout
        )
        return self._batches(self._reader, commit)

    def _batches(self, reader: TopicReader, commit: AutoCommit | None) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            if commit == "before":
                self.commit()
            yield batch
            if commit == "after":
                self.commit()
        if commit is not None:
            self.commit()

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Store durably that everything handed out so far is processed; or, with `positions`, every record before them."""
        if positions is not None:
            move = CursorMove(self.topic, self.name, self._places(positions), lost=self._lost_pending())
        else:
            move = self.pending_move()
        if move.positions or move.lost:
            self._log.move_cursor(move)
            self.committed(move)

    def pending_move(self) -> CursorMove:
        """Return the move that `commit()` would store, for `ws.append(..., commit=cursor)`."""
        reached = self._reader.positions if self._reader else {}
        moved = {p: offset for p, offset in reached.items() if offset != self._committed.get(p)}
        return CursorMove(self.topic, self.name, moved, lost=self._lost_pending())

    def committed(self, move: CursorMove) -> None:
        """Record that a move was stored; the next commit then leaves it out."""
        self._committed.update(move.positions)
        self._lost_committed += move.lost

    def refused(self) -> None:
        """Record that an append with this cursor's move was fenced: the uncommitted rows are handed out again."""
        if self._reader is not None:
            self._reader.seek(self._committed)

    def position(self) -> dict[int, int]:
        """Return the committed position: the next offset to read in each partition."""
        return dict(self._stored().positions)

    def lag(self) -> Lag:
        """Return how far the committed position is behind the end of the topic."""
        return lag_of(self._log, self._stored(), self._clock)

    def seek(self, to: Start, *, by: TimeAxis = "appended") -> dict[int, int]:
        """Move the committed position durably, and an open reader with it; a mapping moves only the partitions it names."""
        positions = (
            self._places(to) if isinstance(to, Mapping) else resolve_start(self._log, self.topic, to, by)
        )
        self._log.move_cursor(CursorMove(self.topic, self.name, positions))
        self._committed.update(positions)
        if self._reader is not None:
            self._reader.seek(positions)
        return positions

    @property
    def lost(self) -> int:
        """Number of rows that retention removed before this cursor read them."""
        return self._stored().lost + self._lost_pending()

    def drop(self) -> None:
        """Delete the cursor; a new cursor of the same name may begin anywhere."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._log.drop_cursor(self.topic, self.name)

    def _places(self, given: Mapping[int, int]) -> dict[int, int]:
        """Return the given offsets as plain numbers by partition; UsageError for a partition that does not exist."""
        found = resolve_start(self._log, self.topic, given)
        return {p: offset for p, offset in found.items() if p in given}

    def _lost_pending(self) -> int:
        return (self._reader.lost if self._reader else 0) - self._lost_committed

    def _stored(self) -> CursorInfo:
        return stored_cursor(self._log, self.topic, self.name)


def stored_cursor(log: Log, topic: str, name: str) -> CursorInfo:
    """Return a cursor as it is stored; UsageError if it was dropped."""
    stored = log.cursor(topic, name)
    if stored is None:
        raise UsageError(
            f"cursor {name!r} of topic {topic!r} was dropped",
            hint=f"topic.cursor({name!r}) creates a new one",
            topic=topic,
            cursor=name,
            reason="dropped",
        )
    return stored


def lag_of(log: Log, cursor: CursorInfo, clock: Clock) -> Lag:
    """Return how far a stored position is behind the end of its topic, as of now.

    Gaps between records count as rows; a gap after the last record, such as a punctuation at the end, does not.
    """
    rows, oldest = 0, None
    for partition, info in log.partitions(cursor.topic).items():
        position = max(cursor.positions.get(partition, 0), info.first)
        if position < info.end:
            appended_at = log.appended_at(cursor.topic, partition, position)
            if appended_at is not None:
                rows += info.end - position
                oldest = appended_at if oldest is None else min(oldest, appended_at)
    return Lag(rows, 0.0 if oldest is None else max(0, clock.now_us() - oldest) / 1e6)


def check_auto_commit(commit: Any) -> None:
    """Raise UsageError unless `commit` is 'before', 'after' or None."""
    if commit is not None and commit not in get_args(AutoCommit):
        raise UsageError(
            f"commit must be 'before', 'after' or None, not {commit!r}", argument="commit", value=commit
        )


def check_name(name: Any) -> None:
    """Raise UsageError unless a name of a cursor, group or member is 1 to 200 printable characters."""
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be the name of a cursor or group",
            hint="use 1 to 200 printable characters",
            argument="name",
            value=name,
        )
