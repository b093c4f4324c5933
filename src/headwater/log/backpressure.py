"""Backpressure: rejects or delays an append while a cursor with `hold` is too far behind. Pure except for the wait.

The topic's `when_behind` decides whether the topic grows, the append is rejected, or the append waits. Both backends call this
module under their locks.
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
"""Time that an append waits if the topic sets no `block_for`."""
PIECE_MS = 1_000.0


class FollowedLog(Protocol):
    """The methods of a log that `retry_while_blocked` needs."""

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
    """Raise BacklogError if appending `rows` more rows would leave a holding cursor more than the topic's limit behind.

    An append is accepted or rejected as a whole: an append that is larger than the limit is accepted if no cursor is behind.
    The cursor that keeps records for views is ignored, because views advance on their own.
    """
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
                f"cursor {cursor.name!r} is {behind:,} rows behind on topic {topic.name!r}, whose backlog_rows is {limit:,}",
                detail=f"nothing of this append of {rows:,} rows was written",
                hint=f"append again when {cursor.name!r} has caught up; ALTER TOPIC {topic.name} SET (when_behind = 'grow') "
                "removes the limit",
                topic=topic.name,
                cursor=cursor.name,
                rows=behind,
                backlog_rows=limit,
            )


def retry_while_blocked(log: FollowedLog, clock: Clock, append: Callable[[], Receipt]) -> Receipt:
    """Run `append`; on a topic with `when_behind = 'block'`, retry until its holding cursors have caught up.

    Raises BacklogError after the topic's `block_for`.
    """
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
                waited = f"the append waited for {format_span(span)}, and nothing of it was written"
                facts = {**error.facts, "waited": format_span(span)}
                raise BacklogError(error.message, detail=waited, hint=error.hint, **facts) from None
            if seen is not None:
                log.wait_commit(seen, min(left, PIECE_MS))
            seen = log.sequence()  # before the attempt, so that a commit during it ends the next wait


def rows_kept(topic: TopicDefinition) -> int | None:
    """Return the number of records that a partition keeps on a topic with `when_behind = 'drop_oldest'`; None on other
    topics."""
    if topic.when_behind != "drop_oldest" or topic.backlog_rows is None:
        return None
    return -(-topic.backlog_rows // topic.partitions)


def segment_rows(topic: TopicDefinition) -> int | None:
    """Return the number of records at which a segment of a topic that drops its oldest is closed; None on other topics.

    Retention removes whole segments only, so they must be small compared with `rows_kept`.
    """
    kept = rows_kept(topic)
    return None if kept is None else max(1, kept // 8)
