"""Backpressure: what becomes of an append when a cursor marked `hold` is too far behind. Pure but for the wait.

The topic decides: it grows, or the append is refused, or it waits. Both backends ask here, under their locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock, Microseconds, format_span, parse_span_us
from headwater.core.errors import BacklogError
from headwater.core.positions import Receipt
from headwater.log.protocol import CursorInfo, CursorMove
from headwater.log.topic_names import VIEWS_HOLD

BLOCK_FOR_US: Microseconds = parse_span_us("1 minute")
"""So long an append waits where the topic does not say."""
PIECE_MS = 1_000.0


class FollowedLog(Protocol):
    """What a wait needs of a log."""

    def sequence(self) -> int: ...
    def wait_commit(self, sequence: int, timeout_ms: float | None) -> bool: ...
    def topic(self, name: str) -> TopicDefinition: ...


def check_backlog(
    topic: TopicDefinition,
    ends: Mapping[int, int],
    rows: int,
    cursors: Iterable[CursorInfo],
    moves: Iterable[CursorMove] = (),
) -> None:
    """BacklogError if so many rows more would leave a holding cursor too far behind. An append is taken as a whole: one that is
    larger than the limit is written when nothing is behind. The cursor with which records are kept for views counts not: a
    view follows by itself."""
    limit = topic.backlog_rows
    if limit is None or topic.when_behind not in ("block", "refuse") or not rows:
        return
    moved = {(move.topic, move.cursor): move.positions for move in moves}
    for cursor in cursors:
        if not cursor.hold or cursor.name == VIEWS_HOLD:
            continue
        at = {**cursor.positions, **moved.get((topic.name, cursor.name), {})}
        behind = sum(end - min(end, at.get(p, 0)) for p, end in ends.items())
        if behind and behind + rows > limit:
            raise BacklogError(
                f"cursor {cursor.name!r} is {behind:,} rows behind on topic {topic.name!r}, which takes {limit:,}",
                detail=f"nothing of this append of {rows:,} rows was written",
                hint=f"append again when {cursor.name!r} has caught up; ALTER TOPIC {topic.name} SET (when_behind = 'grow') "
                "lets it grow",
                topic=topic.name,
                cursor=cursor.name,
                rows=behind,
                backlog_rows=limit,
            )


def patiently(log: FollowedLog, clock: Clock, append: Callable[[], Receipt]) -> Receipt:
    """Append; where the topic says 'block', wait until its readers have caught up. BacklogError after its `block_for`."""
    began: float | None = None
    seen: int | None = None
    while True:
        try:
            return append()
        except BacklogError as error:
            topic = log.topic(str(error.topic))
            if topic.when_behind != "block":
                raise
            began = clock.steady_ms() if began is None else began
            span = BLOCK_FOR_US if topic.block_for_us is None else topic.block_for_us
            left = began + span / 1e3 - clock.steady_ms()
            if left <= 0:
                waited = f"it has waited for {format_span(span)}, and nothing of it was written"
                raise BacklogError(error.message, detail=waited, hint=error.hint, **error.facts) from None
            if seen is not None:
                log.wait_commit(seen, min(left, PIECE_MS))
            seen = log.sequence()  # before the next attempt: what comes after it is not missed


def rows_kept(topic: TopicDefinition) -> int | None:
    """How many records each partition keeps of a topic that drops its oldest; None of others."""
    if topic.when_behind != "drop_oldest" or topic.backlog_rows is None:
        return None
    return -(-topic.backlog_rows // topic.partitions)


def segment_rows(topic: TopicDefinition) -> int | None:
    """At how many records a segment of such a topic is closed: only whole ones are removed."""
    kept = rows_kept(topic)
    return None if kept is None else max(1, kept // 8)
