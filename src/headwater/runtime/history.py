"""What of the log is still there, and what stands in for the rest: when a view has a base, and when one is to be made.

Records are let go of only when every view has read them *and* a base has the views as they were after that. So a view whose
first records are gone can always be made again: from the base, and from the log after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.catalog import TopicDefinition, ViewDefinition
from headwater.clock import Clock, Microseconds, parse_span_us
from headwater.errors import CorruptionError
from headwater.log.protocol import CursorMove, Log
from headwater.runtime.catalog import definitions
from headwater.runtime.hidden import table_with_hidden
from headwater.runtime.pipeline import Slot
from headwater.runtime.units import Unit, ViewUnit
from headwater.state.bases import Bases
from headwater.state.manifest import Manifest, ViewState

HOLD = "headwater_views"
"""The cursor that keeps a topic's records until every view has read them, and a base has it where one is needed."""
BASE_EVERY_US_MAX = parse_span_us("1 hour")
BASES_PER_RETENTION = 16
"""A base is made at most this often within a topic's retention: records stay a sixteenth longer, at most an hour."""


Begins = Mapping[str, Sequence[int]]
"""Where topics began when a unit was built: of each its incarnation, then the first offsets of its partitions."""


def beginning(log: Log, topic: str) -> list[int]:
    """A topic's incarnation, and where its partitions begin now."""
    return [log.topic(topic).incarnation, *(info.first for _, info in sorted(log.partitions(topic).items()))]


def removed(log: Log, begins: Begins) -> bool:
    """Whether records that a unit was made from are gone, if it began there: by retention, or with their whole topic.

    Compaction does not count: it takes only records that others replace.
    """
    return any(not _is_there(log, topic, then) for topic, then in begins.items())


def _is_there(log: Log, topic: str, then: Sequence[int]) -> bool:
    if topic not in log.topics():
        return False
    now = beginning(log, topic)
    return now[0] == then[0] and all(a <= b for a, b in zip(now[1:], then[1:], strict=True))


def hold_from_start(log: Log, reads: Sequence[str]) -> None:
    """Keep the records that a view has yet to read from being removed: all that are there."""
    topics = log.topics()
    for name in (n for n in reads if n in topics):
        starts = {p: info.first for p, info in log.partitions(name).items()}
        if log.cursor(name, HOLD) is None:
            log.create_cursor(name, HOLD, starts, hold=True)
        else:
            log.move_cursor(CursorMove(name, HOLD, starts))


def base_of(log: Log, unit: Unit, base: Manifest | None) -> ViewState | None:
    """A unit as it was in a base, if it means the same still."""
    if base is None:
        return None
    name = unit.replaces if isinstance(unit, ViewUnit) and unit.replaces is not None else unit.name
    state = base.views.get(name)
    if state is None or state.status != "live" or state.extra.get("fingerprint") != unit.fingerprint:
        return None
    topics = log.topics()
    if any(t not in topics or topics[t].incarnation != then[0] for t, then in state.extra["begins"].items()):
        return None
    return state if all(base_slot(state, slot) in base.arrangements for slot in unit.slots) else None


def base_slot(based: ViewState, slot: Slot) -> str:
    """The name of an arrangement in the base."""
    return f"{based.extra['identity']}/{slot.name}"


def let_go(log: Log, bases: Bases, manifest: Manifest, clock: Clock) -> None:
    """Let the log remove what every view has read, after a base was made if one is needed for that.

    For the engine of the workspace, or for who has claimed its place.
    """
    views = definitions(log).values()
    topics = log.topics()
    unheld = {t for view in views for t in view.reads if t in topics and log.cursor(t, HOLD) is None}
    hold_from_start(log, sorted(unheld))
    holds = [cursor for cursor in log.cursors() if cursor.name == HOLD]
    held = {cursor.topic: log.topic(cursor.topic) for cursor in holds}
    due = [topic for topic in held.values() if _is_removing(log, topic, clock)]
    base = _newest(bases)
    if base is not None and base.tick > manifest.tick:
        return  # state from before the base: the next engine begins at the base
    if due and _all_live(manifest) and _is_time(due, base, clock):
        bases.make(manifest)
        base = manifest
    for cursor in holds:
        upto = manifest if _is_only_compacted(held[cursor.topic]) else base
        if upto is None:
            continue
        read = [
            {} if _is_rebuilt(view, cursor.topic, manifest) else _position(view, cursor.topic, upto)
            for view in views
            if cursor.topic in view.reads
        ]
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


def _newest(bases: Bases) -> Manifest | None:
    try:
        return bases.newest()
    except CorruptionError:  # then the next one is made soon, while all state is there
        return None


def _all_live(manifest: Manifest) -> bool:
    """Whether every view is part of the tick: what one that is being built, or has stopped, would be made of again is
    in the base before, and in records that stay until it goes on or is dropped."""
    return all(view.status == "live" for view in manifest.views.values())


def _is_rebuilt(view: ViewDefinition, topic: str, manifest: Manifest) -> bool:
    """Whether a view, or the table of the topic, is being built from the log, all of which it needs."""
    states = [manifest.views.get(view.name), *_tables(topic, manifest)]
    return any(s is not None and s.status == "backfilling" and "base" not in s.extra for s in states)


def _position(view: ViewDefinition, topic: str, manifest: Manifest) -> Mapping[int, int]:
    """How far a view has read a topic: by itself, or through the table that the topic is."""
    state = manifest.views.get(view.name)
    if state is None or state.incarnation != view.incarnation:
        return {}
    if topic in state.positions:
        return state.positions[topic]
    tables = [table.positions.get(topic, {}) for table in _tables(topic, manifest)]
    partitions = {p for positions in tables for p in positions}
    return {p: min(positions.get(p, 0) for positions in tables) for p in partitions}


def _tables(topic: str, manifest: Manifest) -> list[ViewState]:
    found = (manifest.views.get(name) for name in (topic, table_with_hidden(topic)))
    return [table for table in found if table is not None and table.extra.get("table")]
