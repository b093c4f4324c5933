"""Gaps: tables for which the stream does not contain all changes, and how each gap is handled.

The identities of tables (`table_identity`) are part of the position, in the same commit as the consequence of a difference: the
table that has stopped, or the snapshot that was requested. So each difference is handled exactly once, even if the process
crashes.

    on_gap = 'stop'       the table stops, and stays stopped until ALTER SOURCE ... RESTART, or until the option is changed
    on_gap = 'snapshot'   the table is copied again while the stream continues

A change of a column to a wider type does not stop the table in either case: the table is copied again, because `USING` may have
computed other values from the old ones. The same applies to a column that was renamed, added with a default, or added under the
name of a dropped column: the values of existing rows in that column are not in the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headwater.core.errors import SlotError, SourceRefusedError
from headwater.sources.base import Position
from headwater.sources.postgres.decode.pgoutput import RelationMessage
from headwater.sources.postgres.rows.table_identity import (
    Difference,
    TableIdentity,
    added_columns,
    difference,
    has_lost_rows,
    may_differ,
    moved_parts,
    new_parts,
    read_identities,
)
from headwater.sources.postgres.server.publications import Captured, check_published, find_tables
from headwater.sources.postgres.session_state import SessionContext, SessionEndedError
from headwater.sources.postgres.snapshot.incremental_snapshot import IncrementalSnapshots
from headwater.sources.postgres.snapshot.snapshot_rows import XID_SPAN

PARTS_MAX = 20
"""Maximum number of partitions copied one by one; beyond it, the whole table is copied."""
FOLLOWED = ("rewritten", "redefined")
"""Kinds of differences that change existing rows of a table, while the stream has all of its inserts, updates and deletes."""


class Gaps:
    """Compares and stores the identities of the captured tables, for one session."""

    def __init__(self, at: SessionContext, incremental: IncrementalSnapshots) -> None:
        self._at = at
        self._incremental = incremental
        self._known = at.identities
        self._plain: dict[str, Any] | None = None

    def begin(self, captured: Sequence[Captured]) -> None:
        """Store the current identities of the tables without a comparison: all of their rows are still to be copied."""
        self._set(self._now(captured))

    def copied_from(self, table: Captured, partitions: Mapping[int, int | None]) -> None:
        """Prune a table that had other partitions at its copy than in its stored identity. A partition that was attached in
        between is copied again once a comparison finds it. But if it is detached before that, no comparison finds that the rows
        which were already copied from it are gone."""
        if table.is_keyed and partitions != self._at.attached(str(table)):
            self._incremental.prune(table)

    def restore(self, position: Position, captured: Sequence[Captured]) -> list[Captured]:
        """Compare the tables with their identities in a position. Returns the tables with a gap that a snapshot closes; with
        on_gap = 'stop', tables with a gap are stopped instead."""
        known = {name: TableIdentity.from_json(plain) for name, plain in position.get("facts", {}).items()}
        gaps, now = {**position.get("gaps", {}), **self._stopped}, self._now(captured)
        had_stopped = {*position.get("stopped", ()), *self._at.tables.stopped}
        self._set({})
        to_copy: list[Captured] = []
        for table in captured:
            name = str(table)
            if (current := now.get(name)) is None:
                continue  # the table is gone; a later check stops it
            self._known[name] = current
            reason = gaps.get(name)
            if name in self._at.tables.absent and self.snapshots:
                reason = "it did not exist for some time"
            if reason is None and name not in had_stopped and (was := known.get(name)) is not None:
                found = difference(was, current) or self._added_again(table, was, current)
                reason = self._resolve(table, found)
                if self._incremental.is_refused(table):
                    self._known[name] = was  # the difference is handled once the mark has come
                else:
                    self._prune(table, was, current)
            if reason is not None:
                self._act(table, reason, to_copy)
        if self.remembered() != {"facts": position.get("facts"), "gaps": position.get("gaps", {})}:
            self._incremental.wanted.note()
        return to_copy

    def compare(
        self,
        described: Collection[RelationMessage] | None = None,
        followed: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        """Compare all tables while the stream is read, or only those that the stream has just described (`described`).
        `followed`: by oid of a described relation, the oid of the table that was described right before it, and the
        transaction. SessionEndedError if a table needs a new session."""
        shapes: dict[int, list[RelationMessage]] = {}
        for relation in described or ():
            shapes.setdefault(relation.oid, []).append(relation)
        roots = {root for root, _ in followed.values()}
        tables = [
            table
            for table in self._at.tables.all()
            if (described is None or table.state.oid in roots or table.state.oid in shapes)
            and str(table) not in self._at.tables.stopped
        ]
        now = self._now(tables)
        for table in tables:
            name = str(table)
            was, current = self._known.get(name), now.get(name)
            if was is None:
                continue
            if current is None or current.name != name or not current.logged:
                raise SessionEndedError(f"table {name} was dropped, renamed, or made unlogged")
            if new_parts(was, current):
                raise SessionEndedError(f"table {name} has new partitions")
            self._prune_unseen(table, current, followed)
            is_other = any(
                self._may_differ(table, shape, current) for shape in shapes.get(table.state.oid, ())
            )
            if current == was and not is_other:
                continue
            found = difference(was, current)
            if found is None and is_other:
                found = Difference(
                    "redefined", "columns were renamed, or dropped and added, after the row was changed"
                )
            if found is not None and found.kind not in FOLLOWED:
                raise SessionEndedError(f"table {name}: {found.reason}")
            reason = self._resolve(table, found or self._added_again(table, was, current))
            if self._incremental.is_refused(table):
                continue
            self._known[name] = current
            self._plain = None
            self._incremental.wanted.note()
            self._prune(table, was, current)
            if reason is not None:
                self.stop(table, reason)

    def check_stopped(self) -> None:
        """With on_gap = 'snapshot': raise SessionEndedError if a table that had stopped because of a gap or because it was
        missing can be captured again, so that the next session resumes it."""
        tables = self._at.tables
        waiting = {*self._stopped, *(tables.absent & tables.stopped.keys())} if self.snapshots else set()
        if not waiting:
            return
        there = find_tables(self._at.connection, self._at.options, lambda table, error: None)
        gone = {*map(str, check_published(self._at.connection, self._at.publications, there))}
        for table in there:
            was = tables.captured(str(table))
            is_same = was is not None and was.state.oid == table.state.oid
            if str(table) in waiting and not (is_same and str(table) in gone):
                raise SessionEndedError(f"table {table} exists again")

    def renew(self, tables: Sequence[Captured]) -> None:
        """Store the current identities of tables that were resumed, and are copied again."""
        self._known.update(self._now(tables))
        self._plain = None

    def stop(self, table: Captured, reason: str, hint: str | None = None) -> None:
        """Stop a table because of a gap."""
        self._at.tables.stop_gap(table, reason, hint)
        self._incremental.wanted.note()

    @property
    def _stopped(self) -> dict[str, str]:
        """Reasons of the gaps, by name of the table that each has stopped."""
        stopped = self._at.tables.stopped.items()
        return {name: error.facts["gap"] for name, error in stopped if "gap" in error.facts}

    @property
    def snapshots(self) -> bool:
        """Whether gaps are closed by snapshots."""
        return self._at.options.on_gap == "snapshot"

    def to_json(self) -> dict[str, Any]:
        """Return the identities as part of a position."""
        if self._plain is None:
            self._plain = {name: identity.to_json() for name, identity in sorted(self._known.items())}
        return self._plain

    def remembered(self) -> dict[str, Any]:
        """Return the fields for the position of the commit under way."""
        return {"facts": self.to_json(), "gaps": self._stopped}

    def _set(self, identities: Mapping[str, TableIdentity]) -> None:
        self._known.clear()
        self._known.update(identities)
        self._plain = None

    def _now(self, tables: Sequence[Captured]) -> dict[str, TableIdentity]:
        found = read_identities(self._at.connection, self._at.publications, tables)
        return {str(table): found[table.state.oid] for table in tables if table.state.oid in found}

    def _act(self, table: Captured, reason: str, to_copy: list[Captured]) -> None:
        name = str(table)
        if not self.snapshots:
            if name not in self._at.tables.stopped:
                self.stop(table, reason)
            return
        self._at.tables.stopped.pop(name, None)
        self._at.tables.absent.discard(name)
        to_copy.append(table)

    def _resolve(self, table: Captured, found: Difference | None) -> str | None:
        """Return the reason of a table's gap. None if there is no gap, if a new copy was requested, or if the topic rejects the
        table's current definition."""
        if found is None:
            return None
        if table.is_outbox:
            if found.kind in FOLLOWED:
                return None
            raise self._events_lost(table, found.reason)
        if found.kind not in FOLLOWED:
            return found.reason
        if not table.is_keyed:  # the topic has the inserted rows, and no later versions of them
            return None
        try:
            change = self._at.tables.change_of(self._at.connection, self._at.publications, table)
        except SourceRefusedError as error:
            raise SessionEndedError(f"table {table} was dropped: {error.message}") from None
        if change == "refused":
            # Not left to the next row in the stream: none may come, or the definition may fit again by then, and the topic
            # would lack rows that were not copied.
            self._incremental.refuse(table)
            return None
        is_followed = change == "widened" or found.kind == "redefined"
        if is_followed and self._at.options.snapshot == "none" and not self.snapshots:
            return None
        if is_followed or self.snapshots:
            self._incremental.copy_again(table)
            return None
        return found.reason

    def _added_again(self, table: Captured, was: TableIdentity, now: TableIdentity) -> Difference | None:
        """Return a difference if a new column has the name of an existing column of the topic: the topic's rows have the values
        of the dropped column."""
        definition = None if table.is_outbox else self._at.history.definition(table.topic)
        if definition is None or set(added_columns(was, now)).isdisjoint(definition.schema.names):
            return None
        return Difference("redefined", "a column was dropped, and another column was given its name")

    def _may_differ(self, table: Captured, described: RelationMessage, now: TableIdentity) -> bool:
        """Whether columns that the stream has described may have other names in the catalog."""
        names = [column.name for column in described.columns]
        if names == [name for name in now.names if name is not None]:
            return False
        at = self._at
        try:
            relation = at.tables.relation_now(at.connection, at.publications, table)
        except SourceRefusedError as error:
            raise SessionEndedError(f"table {table} was dropped: {error.message}") from None
        return may_differ(names, [column.name for column in relation.columns])

    def _prune(self, table: Captured, was: TableIdentity, now: TableIdentity) -> None:
        if not table.is_keyed or not has_lost_rows(was, now):
            return
        self._incremental.prune(table)
        moved = moved_parts(was, now) if self._at.options.snapshot != "none" else []
        for part in moved if len(moved) <= PARTS_MAX else (0,):
            self._incremental.wanted.request([table], part=part)

    def _prune_unseen(
        self, table: Captured, now: TableIdentity, followed: Mapping[int, tuple[int, int]]
    ) -> None:
        """Prune a table if the stream has rows of a former partition, or of a partition that was attached after these rows were
        written (so that it was detached in between): rows deleted from it while it was detached were not sent. `_prune` does
        not cover this, because a comparison shows only partitions that were attached at the time of a comparison."""
        if not table.is_keyed or table.state.kind != "p":
            return
        captured = {table.state.oid for table in self._at.tables.all()}
        written = {
            oid: xid
            for oid, (root, xid) in followed.items()
            if root == table.state.oid and oid not in captured
        }
        is_gone = not written.keys() <= now.parts.keys()
        if is_gone or any(self._precedes(xid, now.parts[oid].attached) for oid, xid in written.items()):
            self._incremental.prune(table)

    def _precedes(self, xid: int, attached: int) -> bool:
        """Whether a transaction began before the one that attached a partition. Transaction ids wrap around: an id of
        `attached` that seems to lie in the future is from long ago."""
        if not xid or not 0 < (attached - xid) % XID_SPAN < XID_SPAN // 2:
            return False
        end = int(self._at.connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
        return 0 < (end - attached) % XID_SPAN < XID_SPAN // 2

    def _events_lost(self, table: Captured, reason: str) -> SlotError:
        at = self._at
        return SlotError(
            f"events of outbox {table} of source {at.source!r} may be lost: {reason}",
            detail="a snapshot does not contain events whose rows were deleted in the meantime",
            hint=f"ALTER SOURCE {at.source} RESTART starts again from the rows that the outbox has now",
            slot=at.options.slot,
            reason="events lost",
            source=at.source,
        )
