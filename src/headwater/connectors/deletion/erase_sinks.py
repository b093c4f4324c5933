"""Deletion in the sinks of views: each target is brought to where it has none of the deleted data; the rest is reported.

A target that has rows by key equals its view once it is at the tick that rebuilt the view: changed rows were replaced there.
A target that keeps replaced data (an index with deleted documents in it, files that are only added to) is rebuilt as a
staging version, switched, and the previous version is dropped, as is a version that was kept before. The old data that the
target itself retains is queried each time, if the target supports it; data that was sent on is out of reach, and is reported
so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headwater.catalog.connectors import SINK, SinkDefinition
from headwater.connectors.deletion.copied_topics import replaced
from headwater.connectors.manage.rebuild_sink import drop_old, old, rebuild
from headwater.core.clock import Clock
from headwater.core.errors import ConflictError, HeadwaterError
from headwater.core.faults import Component
from headwater.engine.collections.collections import view_of
from headwater.engine.deletion.rebuild_after_delete import views_of
from headwater.log.deletion_entries import DeletionEntry, deletion_entries, put_deletion
from headwater.log.protocol import Log
from headwater.sinks.base.target import PastKeeping, Since, Target, TargetPast
from headwater.sinks.registry import is_readable, wanted_of
from headwater.sinks.topic.versions import topics_of
from headwater.state.manifest import Manifest

if TYPE_CHECKING:
    from headwater.connectors.manage.sink_manager import Sinks

BEYOND: Mapping[str, str] = {
    "postgres": "the server's own backups, and its log of changes where that is archived",
    "redis": "what the server has written to its append-only file or snapshots, until they are rewritten",
    "lake": "files that no snapshot references any more, until orphan files are removed",
    "topic": "readers of the topic that have copied its records",
    "webhook": "what was delivered",
    "python": "what was delivered",
}
"""Old data of a target that no sink can reach, by kind."""
RETAINED: Mapping[str, str] = {
    "postgres": "dead tuples of the table, once it is reconciled, until it is vacuumed",
    "lake": "older snapshots of the table, once it is reconciled, until they are expired",
}
"""Old data that a target retains and can be queried about, by kind."""
_EXCISED = ("are excised then", "were excised")
"""Wording before and after the excision."""


@dataclass(frozen=True)
class SinkErasure:
    """A sink of a view from which data was deleted: `at` is the time since which the sink has none of it, None while it may."""

    sink: str
    kind: str
    at: int | None
    detail: str
    beyond: str | None
    past: TargetPast | None = None
    """Old data retained by the target itself; None for kinds without a report."""


class ProbedTargets:
    """Targets that are queried about old data, each connected to once for all deletions."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._targets: dict[str, Target | HeadwaterError] = {}

    def __enter__(self) -> ProbedTargets:
        return self

    def __exit__(self, *_: object) -> None:
        for target in self._targets.values():
            if not isinstance(target, HeadwaterError):
                target.close()

    def past(self, made: SinkDefinition, since: Since) -> TargetPast:
        """Return the old data that a target reports."""
        try:
            target = self._target(made.name)
            assert isinstance(target, PastKeeping), made.kind
            return target.past(since)
        except HeadwaterError as error:
            was = self._targets.get(made.name)
            if was is not None and not isinstance(was, HeadwaterError):
                was.close()
            self._targets[made.name] = error
            return TargetPast(
                None, f"{RETAINED[made.kind]}: the target could not be queried, {error.message}"
            )

    def _target(self, name: str) -> Target:
        known = self._targets.get(name)
        if known is None:
            known = self._targets[name] = self._sinks.prepared(name)
        if isinstance(known, HeadwaterError):
            raise known
        return known


def affected_sinks(
    log: Log,
    manifest: Manifest | None,
    sinks: Sinks,
    entry: DeletionEntry,
    asked: ProbedTargets | None = None,
) -> list[SinkErasure]:
    """Return the sinks of the views that a deletion affects, as of the newest tick; with `asked`, including their old data."""
    views = {name.lower() for name in views_of(log, manifest, entry)}
    done = entry.sinks
    found = []
    for name, made in sinks.definitions().items():
        if view_of(made.view).lower() in views:
            at = done.get(name)
            detail = "to be rebuilt" if _needs_rebuild(made) else "to be reconciled"
            if at is not None:
                detail = "rebuilt" if _needs_rebuild(made) else "reconciled"
            past = None
            if asked is not None and made.kind in RETAINED:
                past = TargetPast(None, RETAINED[made.kind])
                if at is not None:
                    past = asked.past(made, Since(entry.tick or 0, entry.at, at))
            beyond = BEYOND.get(made.kind)
            if made.kind == "topic" and entry.excises:
                detail = f"{detail}, and the records that it had copied {_EXCISED[at is not None]}"
            found.append(SinkErasure(name, made.kind, at, detail, beyond, past))
    return found


def _needs_rebuild(made: SinkDefinition) -> bool:
    """Whether a target keeps old data when rows are replaced, so that it has to be rebuilt."""
    return made.kind == "search" or (
        is_readable(made) and made.kind != "topic" and wanted_of(made).mode != "upsert"
    )


class Erasure:
    """Removes deleted data from sinks."""

    def __init__(self, log: Log, clock: Clock, sinks: Callable[[], Sinks]) -> None:
        self._log = log
        self._clock = clock
        self._sinks = sinks
        self._component = Component(log.faults, "background", "deletion in sinks")
        self._thread: threading.Thread | None = None
        self.excise: Callable[[DeletionEntry, str, str, Mapping[int, list[int]]], None] | None = None
        """Callback that removes copied records from the topic of a sink, for an excision."""

    def start(self) -> None:
        """Start a thread, next to an engine, if deletions are pending and no thread is running."""
        if self._due() and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name="headwater-erase", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self.erase()
        except Exception as error:  # noqa: BLE001 - the next look tries again
            self._component.failed(
                error, "deleted data may still be in sinks; `headwater deletions` lists where"
            )
        else:
            self._component.works()

    def _due(self) -> list[DeletionEntry]:
        if not self._log.entries(SINK):
            return []
        entries = deletion_entries(self._log).values()
        return [e for e in entries if e.tick is not None and not e.followed]

    def erase(self) -> bool:
        """Do what can be done now, and return whether copies were excised, for which their sinks may have to follow in turn.
        The first error is raised after all sinks were tried."""
        failed: HeadwaterError | None = None
        excised = False
        for entry in self._due():
            done = dict(entry.sinks)
            open_ = False
            for one in affected_sinks(self._log, None, self._sinks(), entry):
                if one.at is not None:
                    continue
                assert entry.tick is not None, "it is due"
                try:
                    if self._erase_from(one.sink, entry.tick):
                        excised |= one.kind == "topic" and self._excise_copies(one.sink, entry)
                        done[one.sink] = self._clock.now_us()
                    else:
                        open_ = True
                except HeadwaterError as error:
                    failed, open_ = failed or error, True
            followed_by = replace(entry, sinks=done, followed=not open_)
            if followed_by != entry:
                with suppress(ConflictError):
                    put_deletion(self._log, followed_by, expect=entry.sequence)
        if failed is not None:
            raise failed
        return excised

    def _excise_copies(self, sink: str, entry: DeletionEntry) -> bool:
        """Remove the copies of excised records from the topic of a reconciled sink, and return whether there were any."""
        if not entry.excises or self.excise is None:
            return False
        made = self._sinks().definitions()[sink]
        topic = topics_of(self._log, sink, str(made.options["topic"])).in_force
        found = replaced(self._log, self._log.topic(topic), entry.since or 0)
        if found:
            self.excise(entry, sink, topic, found)
        return bool(found)

    def _erase_from(self, name: str, tick: int) -> bool:
        """Bring a sink to a tick, and return whether it has nothing from before the tick any more."""
        sinks = self._sinks()
        if _has_versions(sinks, name):
            drop_old(sinks, name)
        if _needs_rebuild(sinks.definitions()[name]):
            rebuild(sinks, name, verify=False)
            drop_old(sinks, name)
            if sinks.is_open(name):
                # it may have stopped, since rows of its append-only view were deleted
                sinks.resume(name)
            return True
        reached = sinks.status(name).status.tick
        return reached is not None and reached >= tick


def _has_versions(sinks: Sinks, name: str) -> bool:
    if not is_readable(sinks.definitions()[name]):
        return False
    try:
        return old(sinks, name) is not None
    except HeadwaterError:
        # a kind without versions has no previous one
        return False
