"""Taking what was deleted out of everything that views keep: state is built anew from the log, and what held it is removed.

A deletion (a subject that was forgotten, records that were excised) is an entry of the catalog, put once the log itself no
longer gives the values out. The next tick takes it back from every view that holds something of it (`mending`), and builds those anew
from which it cannot be. Runs of different views share files, so in that tick all others are copied; once it is made, all ticks before it are removed, and what a base
held of these views. So nothing of the state is older than the deletion, and a past tick is computed from the log as it
reads now. A crash in between leaves the entry as it was, and the next tick does it again.
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
from headwater.engine.collections.shadow_builds import BESIDE
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
"""In a tick: the deletions that it was the first to follow, or that are not settled yet."""
REWRITTEN = "headwater.rewritten"
"""In the metadata of what a past tick shows: the deletions since."""


def pending(log: Log) -> dict[str, DeletionEntry]:
    """The deletions that the state does not follow yet, and the log does."""
    return {name: e for name, e in deletion_entries(log).items() if e.logged and e.tick is None}


def views_of(log: Log, manifest: Manifest | None, entry: DeletionEntry) -> list[str]:
    """The views that a deletion touches, sources first: those that it has touched, or those that it will."""
    if entry.views is not None:
        return list(entry.views)
    topics = set(entry.topics)
    return _views(log, topics) if manifest is None else _touched(log, manifest, [entry])[1]


def _views(log: Log, topics: set[str]) -> list[str]:
    """The views that read one of these topics, directly or through others, sources first."""
    direct = [v.name for v in definitions(log).values() if topics & {table_topic(name) for name in v.reads}]
    return _and_above(log, direct)


def _and_above(log: Log, views: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for view in views for name in above(log, view)))


def _touched(
    log: Log, manifest: Manifest, entries: Iterable[DeletionEntry]
) -> tuple[list[ViewState], list[str]]:
    """What is in a tick of these deletions, and the views among it. What was forgotten is in what keeps private values of a topic;
    what was excised, in everything that is made of it."""
    forgotten, excised = set[str](), set[str]()
    for entry in entries:
        (forgotten if entry.forgets else excised).update(entry.topics)
    direct = {
        name
        for name, state in manifest.views.items()
        if forgotten & kept_private(state) or excised & set(state.record.begins)
    }
    tables = {table_topic(name) for name in direct if manifest.views[name].record.table}
    named = [view_of(name.removesuffix(BESIDE)) for name in direct]
    views = _and_above(log, dict.fromkeys([*named, *(_views(log, tables) if tables else ())]))
    states = [s for n, s in manifest.views.items() if n in direct or view_of(n.removesuffix(BESIDE)) in views]
    return states, views


def touched(log: Log, before: Manifest | None, done: Mapping[str, DeletionEntry]) -> list[str]:
    """The views that these deletions have made anew, after this tick."""
    return [] if before is None else _touched(log, before, done.values())[1]


def rewritten(log: Log, tick: int, found: pa.Table) -> pa.Table:
    """What a past tick shows, with a note of the deletions since: it is not what was shown then."""
    entries = deletion_entries(log).items()
    since = sorted(name for name, e in entries if e.tick is None or e.tick > tick)
    if not since:
        return found
    return found.replace_schema_metadata({**(found.schema.metadata or {}), REWRITTEN: ", ".join(since)})


def resting_on(log: Log, store: StateStore, topic: str) -> dict[str, Mapping[int, int]]:
    """The views that read a topic and can only be made again from their base, with how far that has read it."""
    base = Bases(store.storage).newest()
    found: dict[str, Mapping[int, int]] = {}
    for state in base.views.values() if base is not None else ():
        begins = state.record.begins
        if topic in begins and removed(log, begins):
            found[table_topic(view_of(state.name))] = state.positions.get(topic, {})
    return found


def arrangements(log: Log, manifest: Manifest, entries: Iterable[DeletionEntry]) -> dict[str, str]:
    """The arrangements of a tick that hold what was deleted, with the reason why they are not to be kept."""
    gone = _touched(log, manifest, entries)[0]
    return {name: REASON for state in gone for name in manifest.kept_for(state)}


def copied(
    store: StateStore, writer: Writer, refs: Mapping[str, tuple[RunRef, ...]]
) -> dict[str, tuple[RunRef, ...]]:
    """Runs in files of their own, without what lay beside them."""

    def moved(ref: RunRef) -> RunRef:
        return ref if ref.file in writer.files else writer.add(store.open_run(ref), ticks=ref.ticks)

    return {name: tuple(map(moved, each)) for name, each in refs.items()}


def settle(
    log: Log, store: StateStore, bases: Bases, manifest: Manifest, done: Mapping[str, DeletionEntry]
) -> None:
    """A tick without what was deleted is made: remove everything that is older, and say so."""
    without(log, store, bases, list(done.values()), manifest)
    store.collect(1)
    said = {"tick": manifest.tick, "settled_at": manifest.committed_at}
    for name, entry in done.items():
        drop(store.storage, name)
        _say(log, entry, {**said, **manifest.extra[TAKEN][name]})


def taken(
    log: Log, before: Manifest | None, done: Mapping[str, DeletionEntry], mended: set[str]
) -> dict[str, dict[str, list[str]]]:
    """What a tick says of deletions that it has followed: the views that it has taken them from, and which of these need not be
    made anew for that. Until it is settled it is said again, for who finds a tick whose engine died before."""
    known = before.extra.get(TAKEN, {}) if before is not None else {}
    open_ = pending(log)
    views = touched(log, before, done)
    said = {"views": views, "mended": [view for view in views if view in mended]}
    return {**{n: told for n, told in known.items() if n in open_}, **dict.fromkeys(done, said)}


def settle_nothing(log: Log, done: Mapping[str, DeletionEntry], at: int) -> None:
    """The same where there is no state at all."""
    for entry in done.values():
        _say(log, entry, {"tick": 0, "settled_at": at, "views": [], "mended": []})


def _say(log: Log, entry: DeletionEntry, found: Mapping[str, Any]) -> None:
    with suppress(ConflictError):  # another engine was first
        put_deletion(log, replace(entry, offsets=None, **found), expect=entry.sequence)


def without(
    log: Log, store: StateStore, bases: Bases, entries: list[DeletionEntry], manifest: Manifest | None
) -> None:
    """Take what these deletions touch out of the base, and copy what is left of it."""
    base = bases.newest()
    if base is None or (manifest is not None and base.tick > manifest.tick):
        return
    held = [entry for entry in entries if any(_is_in(state, entry) for state in base.views.values())]
    if held:
        _strip(store, bases, base, _touched(log, base, held)[0])


def _is_in(state: ViewState, entry: DeletionEntry) -> bool:
    """Whether a base may hold something of a deletion: of records that came after it, it does not."""
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
    """Remove the state at once, for who cannot wait for a tick: of a copy of the workspace from before something was forgotten.
    Views are not there until the next run makes them. To be called by who has claimed the workspace."""
    base = bases.newest()
    if base is not None:
        _strip(store, bases, base, [state for state in base.views.values() if kept_private(state)])
    store.drop()
