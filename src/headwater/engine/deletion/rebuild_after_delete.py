"""Removal of deleted values from everything that views store: state is rebuilt from the log, and the old state is removed.

A deletion (a forgotten subject, or excised records) is an entry of the catalog, which is written once reads of the log
no longer return the values. The next tick retracts the values from every view that contains any of them (`retract`),
and rebuilds the views from which they cannot be retracted. Runs of different views share files, so the tick copies the
runs of all other views. Once it is committed, all earlier ticks are removed, and so is what the base has of the
affected views. So no part of the state is older than the deletion, and a past tick is computed from the log as it reads
now. After a crash in between, the entry is unchanged, and the next tick does the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core.errors import ConflictError
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.dependencies import above
from headwater.engine.collections.retention_holds import kept_private, removed
from headwater.engine.collections.shadow_builds import SHADOW
from headwater.engine.collections.workload import definitions
from headwater.engine.input.excised_records import drop, offsets_of
from headwater.log.deletion_entries import DeletionEntry, deletion_entries, put_deletion
from headwater.log.protocol import Log
from headwater.plan.relations.metadata_columns import table_topic
from headwater.state.base_ticks import Bases
from headwater.state.manifest import Manifest, ViewState
from headwater.state.run_refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer

REASON = "values in it were deleted"
TAKEN = "taken"
"""Key in a manifest's `extra`: the deletions that the tick was the first to apply, or that are not settled yet."""
REWRITTEN = "headwater.rewritten"
"""Metadata key of the result of a query on a past tick: the deletions since that tick."""


def pending(log: Log) -> dict[str, DeletionEntry]:
    """Return the deletions that the log has applied but the state has not."""
    return {name: e for name, e in deletion_entries(log).items() if e.logged and e.tick is None}


def views_of(log: Log, manifest: Manifest | None, entry: DeletionEntry) -> list[str]:
    """Return the views that a deletion has affected, or will affect, sources first."""
    if entry.views is not None:
        return list(entry.views)
    topics = set(entry.topics)
    return _views(log, topics) if manifest is None else _touched(log, manifest, [entry])[1]


def _views(log: Log, topics: set[str]) -> list[str]:
    """Return the views that read any of these topics, directly or through other views, sources first."""
    direct = [v.name for v in definitions(log).values() if topics & {table_topic(name) for name in v.reads}]
    return _and_above(log, direct)


def _and_above(log: Log, views: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for view in views for name in above(log, view)))


def _touched(
    log: Log, manifest: Manifest, entries: Iterable[DeletionEntry]
) -> tuple[list[ViewState], list[str]]:
    """Return the states in a manifest that these deletions affect, and the affected views.

    A forgotten subject affects states that keep private values of a topic; an excision affects all states built from a topic.
    """
    forgotten, excised = set[str](), set[str]()
    for entry in entries:
        (forgotten if entry.forgets else excised).update(entry.topics)
    direct = {
        name
        for name, state in manifest.views.items()
        if forgotten & kept_private(state) or excised & set(state.record.begins)
    }
    tables = {table_topic(name) for name in direct if manifest.views[name].record.table}
    named = [view_of(name.removesuffix(SHADOW)) for name in direct]
    views = _and_above(log, dict.fromkeys([*named, *(_views(log, tables) if tables else ())]))
    states = [s for n, s in manifest.views.items() if n in direct or view_of(n.removesuffix(SHADOW)) in views]
    return states, views


def touched(log: Log, before: Manifest | None, done: Mapping[str, DeletionEntry]) -> list[str]:
    """Return the views from which these deletions remove values."""
    return [] if before is None else _touched(log, before, done.values())[1]


def rewritten(log: Log, tick: int, found: pa.Table) -> pa.Table:
    """Return the result of a query on a past tick, with metadata that names the deletions since: it differs from the
    result then."""
    entries = deletion_entries(log).items()
    since = sorted(name for name, e in entries if e.tick is None or e.tick > tick)
    if not since:
        return found
    return found.replace_schema_metadata({**(found.schema.metadata or {}), REWRITTEN: ", ".join(since)})


def resting_on(log: Log, store: StateStore, topic: str) -> dict[str, Mapping[int, int]]:
    """Return the views that read a topic and can be rebuilt only from their base, with the positions up to which the
    base has read the topic."""
    base = Bases(store.storage).newest()
    found: dict[str, Mapping[int, int]] = {}
    for state in base.views.values() if base is not None else ():
        begins = state.record.begins
        if topic in begins and removed(log, begins):
            found[table_topic(view_of(state.name))] = state.positions.get(topic, {})
    return found


def arrangements(log: Log, manifest: Manifest, entries: Iterable[DeletionEntry]) -> dict[str, str]:
    """Return the arrangements of a tick that contain deleted values, with the reason why they must not be kept."""
    gone = _touched(log, manifest, entries)[0]
    return {name: REASON for state in gone for name in manifest.kept_for(state)}


def copied(
    store: StateStore, writer: Writer, refs: Mapping[str, tuple[RunRef, ...]]
) -> dict[str, tuple[RunRef, ...]]:
    """Return the runs, each copied to files of this tick unless this tick has written it, without the other runs of its
    old file."""

    def moved(ref: RunRef) -> RunRef:
        return ref if ref.file in writer.files else writer.add(store.open_run(ref), ticks=ref.ticks)

    return {name: tuple(map(moved, each)) for name, each in refs.items()}


def settle(
    log: Log, store: StateStore, bases: Bases, manifest: Manifest, done: Mapping[str, DeletionEntry]
) -> None:
    """Remove everything that is older than a tick without the deleted values, and record in the entries that this is done."""
    without(log, store, bases, list(done.values()), manifest)
    store.collect(1)
    said = {"tick": manifest.tick, "settled_at": manifest.committed_at}
    for name, entry in done.items():
        drop(store.storage, name)
        _say(log, entry, {**said, **manifest.extra[TAKEN][name]})


def taken(
    log: Log, before: Manifest | None, done: Mapping[str, DeletionEntry], retracted: set[str]
) -> dict[str, dict[str, list[str]]]:
    """Return a tick's manifest entry on the deletions that it applies: the affected views, and those that need no rebuild.

    The entry is repeated until the deletion is settled, so that a later engine finds it if this engine dies first.
    """
    known = before.extra.get(TAKEN, {}) if before is not None else {}
    open_ = pending(log)
    views = touched(log, before, done)
    said = {"views": views, "mended": [view for view in views if view in retracted]}
    return {**{n: document for n, document in known.items() if n in open_}, **dict.fromkeys(done, said)}


def settle_nothing(log: Log, done: Mapping[str, DeletionEntry], at: int) -> None:
    """Record that deletions are settled in a workspace that has no state."""
    for entry in done.values():
        _say(log, entry, {"tick": 0, "settled_at": at, "views": [], "mended": []})


def _say(log: Log, entry: DeletionEntry, found: Mapping[str, Any]) -> None:
    with suppress(ConflictError):  # another engine has recorded it first
        put_deletion(log, replace(entry, offsets=None, **found), expect=entry.sequence)


def without(
    log: Log, store: StateStore, bases: Bases, entries: list[DeletionEntry], manifest: Manifest | None
) -> None:
    """Remove the states that these deletions affect from the base, and copy the remaining runs of the base."""
    base = bases.newest()
    if base is None or (manifest is not None and base.tick > manifest.tick):
        return
    held = [entry for entry in entries if any(_is_in(state, entry) for state in base.views.values())]
    if held:
        _strip(store, bases, base, _touched(log, base, held)[0])


def _is_in(state: ViewState, entry: DeletionEntry) -> bool:
    """Whether a base may contain values of a deletion; it has none of records that were appended later."""
    offsets = offsets_of(entry)
    if entry.forgets or not offsets:
        return True
    if set(entry.topics) & set(state.record.begins) - {entry.of}:
        return True
    read = state.positions.get(entry.of, {})
    return any(mine[0] < read.get(partition, 0) for partition, mine in offsets.items())


def _strip(store: StateStore, bases: Bases, base: Manifest, gone: list[ViewState]) -> None:
    names = {name for state in gone for name in base.kept_for(state)}
    bases.restore(base.files)
    writer = store.begin(base.tick, base.epoch)
    try:
        kept = copied(store, writer, {n: refs for n, refs in base.arrangements.items() if n not in names})
        writer.flush()
        left = {n: replace(s, change=None) for n, s in base.views.items() if s not in gone}
        bases.replace(replace(base, arrangements=kept, views=left))
    finally:
        store.abandon(writer)


def drop_state(store: StateStore, bases: Bases) -> None:
    """Remove the state at once, if a copy of the workspace from before a deletion must not keep it until the next tick.

    The views are unavailable until the next run rebuilds them. The caller must own the workspace.
    """
    base = bases.newest()
    if base is not None:
        _strip(store, bases, base, [state for state in base.views.values() if kept_private(state)])
    store.drop()
