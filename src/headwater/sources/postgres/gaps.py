"""Gaps: tables whose changes the stream does not have all of, and what is done about each.

The facts of `identity` are part of the position, in the same commit as what follows from a difference: the table that has stopped, or
the snapshot that it is to have. So a difference is acted on once, wherever a process dies.

    on_gap = 'stop'       the table stops, and stays stopped until ALTER SOURCE ... RESTART, or until the option is changed
    on_gap = 'snapshot'   the table is snapshotted anew beside the stream

A column with a wider type is followed in both cases, by copying the table again: whether `USING` made other values of the old ones is
known to nobody. So is a column that was renamed, added with a default, or added under the name of a dropped one: the values that rows
have in it are not in the stream.
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
"""Where more partitions are to be copied at once, the whole table is."""
FOLLOWED = ("rewritten", "redefined")
"""Differences of the rows of a table whose changes are all in the stream."""


class Gaps:
    """The facts of the captured tables, compared and kept by one session."""

    def __init__(self, at: SessionContext, beside: IncrementalSnapshots) -> None:
        self._at = at
        self._beside = beside
        self._known = at.identities
        self._plain: dict[str, Any] | None = None

    def begin(self, captured: Sequence[Captured]) -> None:
        """Take the tables as they are: everything of them is still to be copied."""
        self._set(self._now(captured))

    def copied_from(self, table: Captured, partitions: Mapping[int, int | None]) -> None:
        """Prune a table that had other partitions when it was copied than when its identity was taken. What is attached meanwhile is
        copied once that is noticed; rows of it may have been copied already, and nobody would notice that it is gone by then."""
        if table.is_keyed and partitions != self._at.attached(str(table)):
            self._beside.prune(table)

    def restore(self, position: Position, captured: Sequence[Captured]) -> list[Captured]:
        """Compare the tables with what a position says of them; those that are to be snapshotted. Others have stopped."""
        known = {name: TableIdentity.from_json(plain) for name, plain in position.get("facts", {}).items()}
        gaps, now = {**position.get("gaps", {}), **self._stopped}, self._now(captured)
        had_stopped = {*position.get("stopped", ()), *self._at.tables.stopped}
        self._set({})
        anew: list[Captured] = []
        for table in captured:
            name = str(table)
            if (current := now.get(name)) is None:
                continue  # it is gone, and stops once that is noticed
            self._known[name] = current
            reason = gaps.get(name)
            if name in self._at.tables.absent and self.snapshots:
                reason = "it was not there for a while"
            if reason is None and name not in had_stopped and (was := known.get(name)) is not None:
                found = difference(was, current) or self._added_again(table, was, current)
                reason = self._resolve(table, found)
                if self._beside.is_refused(table):
                    self._known[name] = was  # what follows from the difference is decided behind the mark
                else:
                    self._prune(table, was, current)
            if reason is not None:
                self._act(table, reason, anew)
        if self.remembered() != {"facts": position.get("facts"), "gaps": position.get("gaps", {})}:
            self._beside.wanted.note()
        return anew

    def look(
        self,
        described: Collection[RelationMessage] | None = None,
        followed: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        """Compare all tables while the stream is read, or those that it has just described: by each, which one was described before it, and
        in which transaction. SessionEndedError if the next session is to go on with one of them."""
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
                raise SessionEndedError(f"table {name} is gone, renamed, or unlogged")
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
                    "redefined", "columns were renamed, or dropped and added, since it was changed"
                )
            if found is not None and found.kind not in FOLLOWED:
                raise SessionEndedError(f"table {name}: {found.reason}")
            reason = self._resolve(table, found or self._added_again(table, was, current))
            if self._beside.is_refused(table):
                continue
            self._known[name] = current
            self._plain = None
            self._beside.wanted.note()
            self._prune(table, was, current)
            if reason is not None:
                self.stop(table, reason)

    def look_for_stopped(self) -> None:
        """With on_gap = 'snapshot': SessionEndedError if a table is there again that had stopped because it was not, so that the next
        session takes it up."""
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
                raise SessionEndedError(f"table {table} is there again")

    def renew(self, tables: Sequence[Captured]) -> None:
        """Take tables as they are: they were taken up again, and are snapshotted."""
        self._known.update(self._now(tables))
        self._plain = None

    def stop(self, table: Captured, reason: str, hint: str | None = None) -> None:
        """Stop a table until somebody says what is to become of it."""
        self._at.tables.stop_gap(table, reason, hint)
        self._beside.wanted.note()

    @property
    def _stopped(self) -> dict[str, str]:
        """By table that has stopped because of a gap: what has happened to it."""
        stopped = self._at.tables.stopped.items()
        return {name: error.facts["gap"] for name, error in stopped if "gap" in error.facts}

    @property
    def snapshots(self) -> bool:
        """Whether gaps are closed by snapshots."""
        return self._at.options.on_gap == "snapshot"

    def to_json(self) -> dict[str, Any]:
        """The facts as part of a position."""
        if self._plain is None:
            self._plain = {name: identity.to_json() for name, identity in sorted(self._known.items())}
        return self._plain

    def remembered(self) -> dict[str, Any]:
        """What goes into the position of the commit that is being made."""
        return {"facts": self.to_json(), "gaps": self._stopped}

    def _set(self, identities: Mapping[str, TableIdentity]) -> None:
        self._known.clear()
        self._known.update(identities)
        self._plain = None

    def _now(self, tables: Sequence[Captured]) -> dict[str, TableIdentity]:
        found = read_identities(self._at.connection, self._at.publications, tables)
        return {str(table): found[table.state.oid] for table in tables if table.state.oid in found}

    def _act(self, table: Captured, reason: str, anew: list[Captured]) -> None:
        name = str(table)
        if not self.snapshots:
            if name not in self._at.tables.stopped:
                self.stop(table, reason)
            return
        self._at.tables.stopped.pop(name, None)
        self._at.tables.absent.discard(name)
        anew.append(table)

    def _resolve(self, table: Captured, found: Difference | None) -> str | None:
        """Why a table has a gap; None if it has none, if it is copied again as it is, or if its topic refuses it as it is."""
        if found is None:
            return None
        if table.is_outbox:
            if found.kind in FOLLOWED:
                return None
            raise self._events_lost(table, found.reason)
        if found.kind not in FOLLOWED:
            return found.reason
        if not table.is_keyed:  # its topic has what was inserted, and no later version of it
            return None
        try:
            change = self._at.tables.change_of(self._at.connection, self._at.publications, table)
        except SourceRefusedError as error:
            raise SessionEndedError(f"table {table} is gone: {error.message}") from None
        if change == "refused":
            # A row of it may never come, and it may fit again by the next one: the topic would lack what was not copied.
            self._beside.refuse(table)
            return None
        is_followed = change == "widened" or found.kind == "redefined"
        if is_followed and self._at.options.snapshot == "none" and not self.snapshots:
            return None
        if is_followed or self.snapshots:
            self._beside.copy_again(table)
            return None
        return found.reason

    def _added_again(self, table: Captured, was: TableIdentity, now: TableIdentity) -> Difference | None:
        """A difference if a new column has the name of one that the topic has: its rows have values of the other one."""
        definition = None if table.is_outbox else self._at.history.definition(table.topic)
        if definition is None or set(added_columns(was, now)).isdisjoint(definition.schema.names):
            return None
        return Difference("redefined", "a column was dropped, and another one has its name")

    def _may_differ(self, table: Captured, described: RelationMessage, now: TableIdentity) -> bool:
        """Whether columns that the stream describes may have other names in the catalog."""
        names = [column.name for column in described.columns]
        if names == [name for name in now.names if name is not None]:
            return False
        at = self._at
        try:
            relation = at.tables.relation_now(at.connection, at.publications, table)
        except SourceRefusedError as error:
            raise SessionEndedError(f"table {table} is gone: {error.message}") from None
        return may_differ(names, [column.name for column in relation.columns])

    def _prune(self, table: Captured, was: TableIdentity, now: TableIdentity) -> None:
        if not table.is_keyed or not has_lost_rows(was, now):
            return
        self._beside.prune(table)
        moved = moved_parts(was, now) if self._at.options.snapshot != "none" else []
        for part in moved if len(moved) <= PARTS_MAX else (0,):
            self._beside.wanted.request([table], part=part)

    def _prune_unseen(
        self, table: Captured, now: TableIdentity, followed: Mapping[int, tuple[int, int]]
    ) -> None:
        """Prune a table if the stream has rows of a partition that is none any more, or that was attached after them: it was one before,
        and what was deleted of it meanwhile was not sent. A look only knows of those that it has seen."""
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
            self._beside.prune(table)

    def _precedes(self, xid: int, attached: int) -> bool:
        """Whether a transaction began before the one that attached a partition. Numbers wrap around: one that seems to be still to come is
        of long ago."""
        if not xid or not 0 < (attached - xid) % XID_SPAN < XID_SPAN // 2:
            return False
        end = int(self._at.connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
        return 0 < (end - attached) % XID_SPAN < XID_SPAN // 2

    def _events_lost(self, table: Captured, reason: str) -> SlotError:
        at = self._at
        return SlotError(
            f"events of outbox {table} of source {at.source!r} may be lost: {reason}",
            detail="a snapshot cannot have events whose rows were deleted since",
            hint=f"ALTER SOURCE {at.source} RESTART begins anew, with the rows that the outbox has now",
            slot=at.options.slot,
            reason="events lost",
            source=at.source,
        )
