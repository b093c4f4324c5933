"""Release of log records to retention: which records views still need, and when a base tick is made to replace the others.

Records are released only when every view has read them *and* a base has the views as of a later position. So a view whose
first records have been removed can always be rebuilt: from the base, and from the log after it. A view that is not part of the
tick, because it is stopped or being built, keeps everything from which it would be rebuilt: all records that it reads or, if
some of them have been released, the base that contains it; that base cannot be replaced until then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.clock import Clock, Microseconds, parse_span_us
from headwater.core.errors import CorruptionError, HeadwaterError
from headwater.engine.collections.collections import Collection, ViewCollection, view_of
from headwater.engine.collections.shadow_builds import SHADOW
from headwater.engine.collections.workload import definitions
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.log.protocol import CursorMove, FailedWork, HeldRecords, Log
from headwater.log.topic_names import VIEWS_HOLD
from headwater.plan.relations.metadata_columns import table_topic, table_with_hidden, versions_of
from headwater.state.base_ticks import Bases
from headwater.state.manifest import Manifest, ViewState

HOLD = VIEWS_HOLD
"""The cursor that keeps a topic's records until every view has read them and, if one is needed, a base covers them."""
BASE_EVERY_US_MAX = parse_span_us("1 hour")
BASES_PER_RETENTION = 16
"""Number of bases within a topic's retention: the interval between bases is a sixteenth of it, at most an hour, and
records stay that much longer."""


Begins = Mapping[str, Sequence[int]]
"""Where topics began when a collection was built: per topic its incarnation, the first offsets of its partitions, and
for a collection that needs every record, the offsets up to which the partitions were compacted."""


def beginning(log: Log, topic: str, *, every_record: bool = False) -> list[int]:
    """Return a topic's incarnation and the first offsets of its partitions; with `every_record`, also their compacted
    offsets."""
    parts = [info for _, info in sorted(log.partitions(topic).items())]
    compacted = [info.compacted_to for info in parts] if every_record else []
    return [log.topic(topic).incarnation, *(info.first for info in parts), *compacted]


def removed(log: Log, begins: Begins) -> bool:
    """Whether records from which a collection was built have been removed since: by retention, or with their whole topic.

    Compaction counts only for collections that need every record: it removes only records that others replace.
    """
    return any(not _is_there(log, topic, then) for topic, then in begins.items())


def _is_there(log: Log, topic: str, then: Sequence[int]) -> bool:
    if topic not in log.topics():
        return False
    now = beginning(log, topic, every_record=_needs_every_record(log, topic, then))
    return now[0] == then[0] and all(a <= b for a, b in zip(now[1:], then[1:], strict=True))


def _needs_every_record(log: Log, topic: str, then: Sequence[int]) -> bool:
    return len(then) > 1 + log.topic(topic).partitions


def hold_from_start(log: Log, reads: Sequence[str]) -> None:
    """Hold all existing records of a view's topics, because the view has yet to read them."""
    topics = log.topics()
    for name in (n for n in reads if n in topics):
        starts = {p: info.first for p, info in log.partitions(name).items()}
        if log.cursor(name, HOLD) is None:
            log.create_cursor(name, HOLD, starts, hold=True)
        else:
            log.move_cursor(CursorMove(name, HOLD, starts))


def base_of(log: Log, unit: Collection, base: Manifest | None) -> ViewState | None:
    """Return the state of a collection in a base; None if it is not there, or its meaning has changed since."""
    if base is None:
        return None
    name = unit.replaces if isinstance(unit, ViewCollection) and unit.replaces is not None else unit.name
    state = base.views.get(name)
    if state is None or state.status != "live" or state.record.fingerprint != unit.fingerprint:
        return None
    topics = log.topics()
    if any(t not in topics or topics[t].incarnation != then[0] for t, then in state.record.begins.items()):
        return None
    return state if all(base_slot(state, slot) in base.arrangements for slot in unit.slots) else None


def base_slot(based: ViewState, slot: ArrangementSpec) -> str:
    """Return the ID of an arrangement in the base."""
    return f"{based.record.identity}/{slot.name}"


def release_records(log: Log, bases: Bases, manifest: Manifest, clock: Clock) -> None:
    """Let the log remove the records that every view has read, after making a base if that is needed first.

    The caller must be the engine of the workspace, or own the workspace in its place.
    """
    views = definitions(log).values()
    topics = log.topics()
    named = {topic for view in views for topic in view.reads}
    unheld = [topic for topic in named if topic in topics and log.cursor(topic, HOLD) is None]
    hold_from_start(log, sorted(unheld))
    holds = [cursor for cursor in log.cursors() if cursor.name == HOLD]
    held = {cursor.topic: log.topic(cursor.topic) for cursor in holds}
    due = [t for t in held.values() if _is_removing(log, t, clock) and not _is_kept_whole(t, manifest)]
    base = _newest(bases)
    if base is not None and base.tick > manifest.tick:
        return  # the state is from before the base: the next engine starts at the base
    if due and _is_time(due, base, clock) and _can_be_base(log, manifest, due):
        base = _live_part(manifest)
        bases.make(base)
    behind = _behind(log, manifest)
    for cursor in holds:
        upto = manifest if _is_only_compacted(held[cursor.topic]) else base
        if _is_kept_whole(held[cursor.topic], manifest):
            continue
        if upto is None or any(cursor.topic in _begins(s) for s in behind if s.name not in upto.views):
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


def failure_of(release: Callable[[], None]) -> tuple[FailedWork, ...]:
    """Release the records that views have read, and return the failure if there is one.

    After a failure the log keeps more records than necessary, and its other maintenance goes on.
    """
    try:
        release()
    except HeadwaterError as error:
        return (FailedWork.of("release of records that views have read", error),)
    return ()


def kept_private(state: ViewState) -> set[str]:
    """Return the topics of which a collection keeps private values."""
    return set(state.record.keeps)


def _is_kept_whole(topic: TopicDefinition, manifest: Manifest) -> bool:
    """Whether all records of a topic are kept while views keep its private values.

    If these are forgotten, the views' values are rebuilt from all records, which no base can replace.
    """
    if not topic.private or _is_only_compacted(topic):
        return False
    return any(topic.name in kept_private(state) for state in manifest.views.values())


def _is_only_compacted(topic: TopicDefinition) -> bool:
    """Whether a topic is only compacted, so that no record is removed that a view could need again."""
    return (
        topic.cleanup == "compact"
        and topic.versions_for_us is None
        and topic.retention_us is None
        and topic.retention_bytes is None
    )


def _is_removing(log: Log, topic: TopicDefinition, clock: Clock) -> bool:
    """Whether retention, or compaction that affects versions, would remove records of a topic now."""
    spans = [topic.retention_us, topic.versions_for_us if topic.cleanup == "compact" else None]
    shortest = min((span for span in spans if span is not None), default=None)
    oldest = None if shortest is None else clock.now_us() - shortest
    for info in log.partitions(topic.name).values():
        if info.compacted_to and topic.versions_for_us is not None:
            return True  # from now on it is unknown which other records are gone
        if oldest is not None and info.oldest_appended_at is not None and info.oldest_appended_at < oldest:
            return True
        rest = info.size_bytes - info.oldest_bytes
        if topic.retention_bytes is not None and rest >= topic.retention_bytes:
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
    except CorruptionError:  # the next one is made soon, while all state exists
        return None


def waiting(log: Log, manifest: Manifest | None, clock: Clock) -> tuple[HeldRecords, ...]:
    """Return the topics with records that retention would remove now, and the views that keep them.

    `manifest` is the newest tick. Records that only wait until the next base is due are not reported.
    """
    views = definitions(log)
    held = [log.topic(cursor.topic) for cursor in log.cursors() if cursor.name == HOLD]
    due = sorted(topic.name for topic in held if _is_removing(log, topic, clock))
    states = manifest.views if manifest is not None else {}
    found: dict[tuple[str, str], HeldRecords] = {}
    for state in _behind(log, manifest) if manifest is not None and due else ():
        everything = _needs_base(log, state)
        for topic in due:
            if everything or topic in _begins(state):
                name = table_topic(view_of(state.name.removesuffix(SHADOW)))
                found.setdefault((topic, name), _waiting(topic, name, state))
    for name, view in views.items():
        then = states.get(name)
        if then is None or then.incarnation != view.incarnation:
            for topic in (t for t in due if t in view.reads):
                found.setdefault((topic, name), _waiting(topic, name, None))
        for topic in kept_private(then).intersection(due) if then is not None else ():
            found.setdefault((topic, name), _kept_whole(topic, name))
    return tuple(found[place] for place in sorted(found))


def _kept_whole(topic: str, view: str) -> HeldRecords:
    reason = "the topic has private columns: if a subject is forgotten, the view is rebuilt from all records"
    return HeldRecords(
        topic, view, "private", reason, f"DROP VIEW {view}, or excise the records: `headwater excise {topic}`"
    )


def _waiting(topic: str, view: str, state: ViewState | None) -> HeldRecords:
    if state is not None and state.status == "stopped":
        hint = f"`headwater rebuild {view}` once its cause is corrected; or CREATE OR REPLACE the view, or DROP VIEW {view}"
        return HeldRecords(topic, view, "stopped", state.reason, hint)
    hint = "a run of the engine builds the view: `headwater run --once`"
    return HeldRecords(topic, view, "backfilling", state.reason if state is not None else None, hint)


def _behind(log: Log, manifest: Manifest) -> list[ViewState]:
    """Return the states of existing views, and of tables, that are not part of a tick."""
    views = definitions(log)
    return [
        state
        for state in manifest.views.values()
        if state.status != "live"
        and (state.record.table or view_of(state.name.removesuffix(SHADOW)) in views)
    ]


def _begins(state: ViewState) -> Begins:
    begins: Begins = state.record.begins
    return begins


def _needs_base(log: Log, state: ViewState) -> bool:
    """Whether a view that is not part of the tick is built, or would be rebuilt, from the base that contains it.

    That is the case if records from which it was built have been removed, or may be removed at any time.
    """
    begins = _begins(state)
    return (
        state.record.base is not None
        or removed(log, begins)
        or any(_may_be_removed(log, t, begins[t]) for t in begins)
    )


def _may_be_removed(log: Log, topic: str, then: Sequence[int]) -> bool:
    """Whether records from these begins on may be removed; declaring a retention first holds all existing records."""
    definition, hold = log.topic(topic), log.cursor(topic, HOLD)
    compacts = definition.cleanup == "compact" and _needs_every_record(log, topic, then)
    if definition.retention_us is None and definition.retention_bytes is None and not compacts:
        return False
    return hold is None or any(
        hold.positions.get(p, 0) > first for p, first in enumerate(then[1 : 1 + definition.partitions])
    )


def _can_be_base(log: Log, manifest: Manifest, due: Sequence[TopicDefinition]) -> bool:
    """Whether the live views of a tick can become a base without the others.

    The others must not need a base. If they read all topics from which records are to be removed, a base would release
    nothing.
    """
    behind = _behind(log, manifest)
    read = {topic for state in behind for topic in _begins(state)}
    return not any(_needs_base(log, s) for s in behind) and not read.issuperset(t.name for t in due)


def _live_part(manifest: Manifest) -> Manifest:
    """Return a tick without the views that are not live."""
    live = {name: state for name, state in manifest.views.items() if state.status == "live"}
    if len(live) == len(manifest.views):
        return manifest
    identities = {state.record.identity for state in live.values()}
    kept = {
        name: refs for name, refs in manifest.arrangements.items() if name.rpartition("/")[0] in identities
    }
    return dataclasses.replace(manifest, views=live, arrangements=kept)


def _is_rebuilt(view: ViewDefinition, topic: str, manifest: Manifest) -> bool:
    """Whether a view, or the table of the topic, is being built from the complete log."""
    states = [manifest.views.get(view.name), *_tables(topic, manifest)]
    return any(s is not None and s.status == "backfilling" and s.record.base is None for s in states)


def _position(view: ViewDefinition, topic: str, manifest: Manifest) -> Mapping[int, int]:
    """Return the positions up to which a view has read a topic, directly or through the topic's table."""
    state = manifest.views.get(view.name)
    if state is None or state.incarnation != view.incarnation:
        return {}
    if topic in state.positions:
        return state.positions[topic]
    tables = [table.positions.get(topic, {}) for table in _tables(topic, manifest)]
    partitions = {p for positions in tables for p in positions}
    return {p: min(positions.get(p, 0) for positions in tables) for p in partitions}


def _tables(topic: str, manifest: Manifest) -> list[ViewState]:
    names = (topic, table_with_hidden(topic), versions_of(topic))
    found = (manifest.views.get(name) for name in names)
    return [table for table in found if table is not None and table.record.table]
