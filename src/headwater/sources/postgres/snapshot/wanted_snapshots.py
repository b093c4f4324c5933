"""Requested snapshots of tables, partitions and single rows, and the changes in the stream that are skipped until they are
done.

The requests are part of the position of the next commit (`remembered`), so that the next session continues with them.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.sources.base import Position
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.postgres.rows.toast_pending import KEYS_MAX, IncompleteRows, Key, keys_of
from headwater.sources.postgres.server.connection import lsn_text
from headwater.sources.postgres.server.publications import Captured
from headwater.sources.postgres.session_state import SessionContext
from headwater.sources.postgres.snapshot.snapshot_rows import (
    XID_SPAN,
    SnapshotChunk,
    SnapshotRequest,
    rest_of,
    write_mark,
)

UNKNOWN = 1 << 62
"""Value of `SnapshotRequest.since` until the request's mark has come: no record of the table in the log counts as right."""


class WantedSnapshots:
    """The snapshots that a session still has to make while it reads the stream."""

    def __init__(self, at: SessionContext) -> None:
        self._at = at
        self.requests: list[SnapshotRequest] = []
        """Requests for whole tables and parts of them, in the order in which they are selected."""
        self.is_paused = False
        self._pending_keys: dict[str, dict[Key, None]] = {}
        """Keys of single rows that lack values, by table."""
        self._passed_over: dict[int, str] = {}
        """By oid of a resumed table: the mark up to which its changes in the stream are skipped."""
        self._awaited: dict[str, str] = {}
        """By table that is copied again or pruned: the mark after which the stream has no changes from before the request;
        empty once the mark has come."""
        self._noted = True
        self._is_noting = False

    # --- the part in positions ---------------------------------------------------------------------------------------

    def restore(self, position: Position, tables: Sequence[Captured]) -> None:
        """Restore the requests in a position, for tables that are still captured."""
        names = {str(table) for table in tables}
        requests = [SnapshotRequest.from_json(plain) for plain in position.get("snapshots", [])]
        self.requests = [request for request in requests if request.table in names]
        for request in self.requests:
            if request.since == UNKNOWN or request.prune:
                self._awaited[request.table] = self.mark()
        self.is_paused = bool(position.get("paused"))
        self._at.progress.missing = dict(position.get("missing", {}))
        for table, keys in position.get("lacking", {}).items():
            if table in names:
                self._pending_keys[table] = dict.fromkeys(map(tuple, keys))

    def remembered(self) -> dict[str, Any]:
        """Return the fields for the position of the commit under way."""
        self._noted, self._is_noting = True, False
        return {
            "snapshots": [request.to_json() for request in self.requests],
            "paused": self.is_paused,
            "missing": self._at.progress.missing,
            "lacking": {table: list(map(list, keys)) for table, keys in self._pending_keys.items() if keys},
        }

    def note(self) -> None:
        """Record that the last position lacks a change, so that another commit is needed."""
        self._noted = False

    @property
    def is_noted(self) -> bool:
        """Whether the last position contains all requests, and names all stopped tables. The changes of a stopped table in the
        stream are skipped, and would be lost if a later position did not name the table."""
        named = (self._at.progress.position or {}).get("stopped", [])
        return self._noted and named == sorted(self._at.tables.stopped)

    def ensure_noted(self) -> None:
        """Write a mark if the last position lacks a change: the mark causes a commit even if the stream has no other
        transaction."""
        if not self.is_noted and not self._is_noting:
            write_mark(self._at.connection, f"{self._at.options.slot} note")
            self._is_noting = True

    # --- tables ------------------------------------------------------------------------------------------------------

    def begin(self, tables: Sequence[Captured], position: int, *, settled: bool) -> None:
        """Request snapshots of tables for a new slot at `position`. Rows that their topics have already are from before the
        slot, and are replaced."""
        for table in tables:
            when = f"before {lsn_text(position)}, because the slot was lost"
            self._restart(table, when, settled=settled)

    def _restart(self, table: Captured, when: str, *, settled: bool = False) -> None:
        if table.is_outbox:
            self._at.progress.miss(table, when)
            self.note()
        elif self._at.history.is_empty(table.topic):
            self.request([table], settled=settled)
        elif table.is_keyed:
            self.request([table], replace=True, settled=settled)
        else:
            self._at.progress.miss(table, when)
            self.note()

    def request(
        self,
        tables: Sequence[Captured],
        *,
        replace: bool = False,
        part: int = 0,
        settled: bool = False,
    ) -> None:
        """Request snapshots of tables, or of the partition with oid `part`. `settled`: all transactions whose changes are not
        in the stream ended before it began. Otherwise the tables may have just been published, while transactions were
        running."""
        horizon = self._at.connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        horizon = None if settled else int(horizon) % XID_SPAN
        since = self._at.history.moment() if replace else 0
        self.requests += [
            SnapshotRequest(str(table), replace=replace, since=since, horizon=horizon, part=part)
            for table in tables
        ]
        self.note()

    def resume_table(self, table: Captured) -> None:
        """Resume a table whose changes were skipped, with a new snapshot. Its changes in the stream from before now are
        skipped, too: they may have columns that the topic could not take, and the snapshot has their result."""
        self.requests = [request for request in self.requests if request.table != str(table)]
        self._restart(table, "while it was stopped")
        if table.is_outbox:
            return
        self._passed_over[table.state.oid] = self.mark()

    def copy_again(self, table: Captured) -> None:
        """Request a new copy of a table whose rows were rewritten, while its changes continue to be emitted. The changes are
        right, except for unchanged TOAST values, which the server does not send: these are taken from the log only once the log
        has the rewritten rows."""
        name = str(table)
        mine = [request for request in self.requests if request.table == name]
        replace_all = any(request.replace for request in mine)
        horizon = None
        if any(request.horizon is not None for request in mine):
            now = self._at.connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            horizon = int(now) % XID_SPAN
        self.requests = [request for request in self.requests if request.table != name or request.prune]
        self.requests.append(SnapshotRequest(name, replace=replace_all, since=UNKNOWN, horizon=horizon))
        self._pending_keys.pop(name, None)
        self._awaited[name] = self.mark()
        self.note()

    def prune(self, table: Captured) -> None:
        """Request the deletion of rows that the topic has and the table does not. It runs after a mark, when the stream has no
        more rows of a partition that is gone."""
        if not any(request.prune for request in self.requests if request.table == str(table)):
            self.requests.append(SnapshotRequest(str(table), prune=True))
        self._awaited[str(table)] = self.mark()
        self.note()

    def since(self, table: str) -> int:
        """Return the commit of the log after which the topic's records of a table are right; 0 if all records are."""
        return max((request.since for request in self.requests if request.table == table), default=0)

    # --- single rows -------------------------------------------------------------------------------------------------

    def request_rows(
        self, incomplete: IncompleteRows, table: CapturedTable, under_way: SnapshotRequest | None
    ) -> None:
        """Request whole rows in place of changes that are skipped because they lack values. `under_way`: the request of the
        chunk in progress."""
        name = table.relation.table
        if any(one.table == name and one.is_whole and one != under_way for one in self.requests):
            return  # the whole table will be copied
        wanted = self._pending_keys.setdefault(name, {})
        keys = incomplete.keys(table, KEYS_MAX)
        if keys is not None and len(every := wanted | dict.fromkeys(keys)) <= KEYS_MAX:
            self._pending_keys[name] = every
        else:
            self.requests.append(SnapshotRequest(name))
            del self._pending_keys[name]

    def emptied(self, table: str) -> None:
        """Remove the requests for single rows of a table that was truncated."""
        if self._pending_keys.pop(table, {}):
            self.note()

    def discard_keys(self, batch: pa.RecordBatch, table: CapturedTable, name: str) -> None:
        """Remove the requests for single rows that were emitted."""
        wanted = self._pending_keys.get(name)
        if wanted and table.key:
            for key in keys_of(batch, table):
                wanted.pop(key, None)

    # --- marks in the stream -----------------------------------------------------------------------------------------

    def passes_over(self, oid: int) -> bool:
        """Whether the current changes of a table in the stream are skipped, because they are from before it was resumed."""
        return oid in self._passed_over

    def marked(self, mark: str) -> None:
        """Handle a mark in the stream: changes that were skipped up to it are emitted from now on."""
        for table in [table for table, awaited in self._awaited.items() if awaited == mark]:
            self._awaited[table] = ""
        self._passed_over = {oid: until for oid, until in self._passed_over.items() if until != mark}

    def trust(self) -> None:
        """Record, for rewritten tables whose mark has come, that records after the log's current end are right."""
        for name in [name for name, mark in self._awaited.items() if not mark]:
            del self._awaited[name]
            moment = self._at.history.moment()
            self.requests = [
                dataclasses.replace(request, since=moment)
                if request.table == name and request.since == UNKNOWN
                else request
                for request in self.requests
            ]
            self.note()

    def mark(self) -> str:
        """Write a mark into the WAL, and return it: everything after it in the stream was committed later than now."""
        mark = f"{self._at.options.slot} {uuid.uuid4().hex}"
        write_mark(self._at.connection, mark)
        return mark

    # --- order of execution ------------------------------------------------------------------------------------------

    def next(self) -> SnapshotRequest | None:
        """Return the request to select next: single rows that lack values first, even while snapshots are paused. None while a
        mark is awaited."""
        if self._passed_over or self._awaited:
            return None
        for table, keys in self._pending_keys.items():
            if keys:
                return SnapshotRequest(table, keys=tuple(keys))
        return self.requests[0] if self.requests and not self.is_paused else None

    def is_wanted(self, request: SnapshotRequest) -> bool:
        """Whether a request was not removed meanwhile."""
        return bool(request.keys) or request in self.requests

    def is_last_word(self, request: SnapshotRequest) -> bool:
        """Whether no single rows of the table are requested, so that the request can be settled before its rows are emitted."""
        return request.prune or not self._pending_keys.get(request.table)

    def forget(self, request: SnapshotRequest) -> None:
        """Remove a request."""
        self.note()
        if request.keys:
            self._pending_keys.pop(request.table, None)
        elif request in self.requests:
            self.requests.remove(request)

    def settle(self, chunk: SnapshotChunk) -> None:
        """Replace the request of a chunk by its rest; for a chunk of single rows, remove the keys that are done."""
        if chunk.request.keys:
            assert chunk.found is not None
            if chunk.found.result().is_cut:
                return  # the keys of rows that were not selected remain requested
            wanted = self._pending_keys.get(chunk.request.table, {})
            for key in set(chunk.request.keys) - chunk.pending.again:
                wanted.pop(key, None)
            return
        rest = rest_of(chunk)
        place = self.requests.index(chunk.request)
        self.requests[place : place + 1] = [] if rest is None else [rest]
