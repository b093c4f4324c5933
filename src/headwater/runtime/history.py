"""What of the log is still there, and what stands in for the rest: when a view has a base, and when one is to be made.

Records are let go of only when every view has read them *and* a base has the views as they were after that. So a view whose
first records are gone can always be made again: from the base, and from the log after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.catalog import TopicDefinition, ViewDefinition
from headwater.clock import Clock, Microseconds, parse_span_us
from headwater.log.protocol import CursorMove, Log
from headwater.runtime.catalog import definitions
from headwater.runtime.pipeline import Slot
from headwater.runtime.units import Unit
from headwater.state.bases import Bases
from headwater.state.manifest import Manifest, ViewState

HOLD = "headwater_views"
"""The cursor that keeps a topic's records until every view has read them, and a base has it where one is needed."""
BASE_EVERY_US_MAX = parse_span_us("1 hour")
BASES_PER_RETENTION = 16
"""A base is made at most this often within a topic's retention: records stay a sixteenth longer, at most an hour."""


def first_offsets(log: Log, topic: str) -> list[int]:
    """Where the partitions of a topic begin now."""
    return [info.first for _, info in sorted(log.partitions(topic).items())]


def removed(log: Log, unit: Unit, begins: Mapping[str, Sequence[int]]) -> bool:
    """Whether records that a unit was made from are gone, if it began there.

    Compaction does not count: it takes only records that others replace.
    """
    return any(
        now > then
        for topic in unit.topics
        if topic in begins
        for now, then in zip(first_offsets(log, topic), begins[topic], strict=True)
    )


def hold_from_start(log: Log, reads: Sequence[str]) -> None:
    """Keep the records that a view has yet to read from being removed: all that are there."""
    topics = log.topics()
    for name in (n for n in reads if n in topics):
        starts = {p: info.first for p, info in log.partitions(name).items()}
        if log.cursor(name, HOLD) is None:
            log.create_cursor(name, HOLD, starts, hold=True)
        else:
            log.move_cursor(CursorMove(name, HOLD, starts))


def base_of(unit: Unit, base: Manifest | None) -> ViewState | None:
    """A unit as it was in a base, if it means the same still."""
    state = base.views.get(unit.name) if base is not None else None
    if state is None or state.extra.get("fingerprint") != unit.fingerprint:
        return None
    # one that had stopped read the units below it as they were then, which is not as they are in the base
    return None if state.status != "live" and unit.units else state


def base_slot(based: ViewState, slot: Slot) -> str:
    """The name of an arrangement in the base."""
    return f"{based.extra['identity']}/{slot.name}"


def let_go(log: Log, bases: Bases, manifest: Manifest, clock: Clock) -> None:
    """Let the log remove what every view has read, after a base was made if one is needed for that.

    For the engine of the workspace, or for who has claimed its place.
    """
    views = definitions(log).values()
    holds = [cursor for cursor in log.cursors() if cursor.name == HOLD]
    held = {cursor.topic: log.topic(cursor.topic) for cursor in holds}
    due = [topic for topic in held.values() if _is_removing(log, topic, clock)]
    base = bases.newest()
    if due and _settled(manifest) and _is_time(due, base, clock):
        bases.make(manifest)
        base = manifest
    for cursor in holds:
        upto = manifest if _is_only_compacted(held[cursor.topic]) else base
        if upto is None:
            continue
        read = [_position(view, cursor.topic, upto) for view in views if cursor.topic in view.reads]
        least = {p: min((r.get(p, 0) for r in read), default=0) for p in cursor.positions}
        moved = {p: end for p, end in least.items() if end > cursor.positions[p]}
        if moved:
            log.move_cursor(CursorMove(cursor.topic, HOLD, moved))


def _is_only_compacted(topic: TopicDefinition) -> bool:
    return topic.cleanup == "compact" and topic.retention_us is None and topic.retention_bytes is None


def _is_removing(log: Log, topic: TopicDefinition, clock: Clock) -> bool:
    """Whether there are records that retention would remove by now."""
    oldest = None if topic.retention_us is None else clock.now_us() - topic.retention_us
    for info in log.partitions(topic.name).values():
        if oldest is not None and info.oldest_appended_at is not None and info.oldest_appended_at < oldest:
            return True
        if topic.retention_bytes is not None and info.size_bytes > topic.retention_bytes:
            return True
    return False


def _is_time(due: Sequence[TopicDefinition], base: Manifest | None, clock: Clock) -> bool:
    if base is None:
        return True
    spans: list[Microseconds] = [
        BASE_EVERY_US_MAX if t.retention_us is None else t.retention_us // BASES_PER_RETENTION for t in due
    ]
    return clock.now_us() - base.committed_at >= min(BASE_EVERY_US_MAX, *spans)


def _settled(manifest: Manifest) -> bool:
    """Whether no view is being built: its state would be of no use as a base."""
    return all(view.status != "backfilling" for view in manifest.views.values())


def _position(view: ViewDefinition, topic: str, manifest: Manifest) -> Mapping[int, int]:
    """How far a view has read a topic: by itself, or through the table that the topic is."""
    state, table = manifest.views.get(view.name), manifest.views.get(topic)
    if state is None or state.incarnation != view.incarnation:
        return {}
    return state.positions.get(topic) or (table.positions.get(topic, {}) if table is not None else {})
