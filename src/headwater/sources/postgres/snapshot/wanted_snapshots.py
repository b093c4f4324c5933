"""Which tables, parts of tables and single rows are to be snapshotted, and what of the stream is left out until they are.

What is wanted is part of the position of the next commit (`remembered`), so that the next session goes on with it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.sources.base import Position
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.postgres.rows.toast_pending import KEYS_MAX, Key, Lack, keys_of
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
"""The moment of a request before its mark has come: nothing that the log has of the table is known to be right."""


class WantedSnapshots:
    """What a session has still to snapshot beside its stream."""

    def __init__(self, at: SessionContext) -> None:
        self._at = at
        self.requests: list[SnapshotRequest] = []
        """Whole tables and parts of them, in the order in which they are selected."""
        self.is_paused = False
        self._lacking: dict[str, dict[Key, None]] = {}
        """By table: keys of single rows that lack values."""
        self._passed_over: dict[int, str] = {}
        self._awaited: dict[str, str] = {}
        """By table that is copied again: the mark behind what the stream has of it from before it was rewritten."""
        self._noted = True
        self._is_noting = False

    # --- what a position remembers -----------------------------------------------------------------------------------

    def restore(self, position: Position, tables: Sequence[Captured]) -> None:
        """What a position remembers of the tables that are still captured."""
        names = {str(table) for table in tables}
        requests = [SnapshotRequest.from_json(plain) for plain in position.get("snapshots", [])]
        self.requests = [request for request in requests if request.table in names]
        for request in self.requests:
            if request.since == UNKNOWN or request.prune:
                self._awaited[request.table] = self.mark()
        self.is_paused = bool(position.get("paused"))
        self._at.standing.missing = dict(position.get("missing", {}))
        for table, keys in position.get("lacking", {}).items():
            if table in names:
                self._lacking[table] = dict.fromkeys(map(tuple, keys))

    def remembered(self) -> dict[str, Any]:
        """What goes into the position of the commit that is being made."""
        self._noted, self._is_noting = True, False
        return {
            "snapshots": [request.to_json() for request in self.requests],
            "paused": self.is_paused,
            "missing": self._at.standing.missing,
            "lacking": {table: list(map(list, keys)) for table, keys in self._lacking.items() if keys},
        }

    def note(self) -> None:
        """Something is to be part of the position that is not yet."""
        self._noted = False

    @property
    def is_noted(self) -> bool:
        """Whether the last position says everything, and names the tables that have stopped, whatever has stopped them: what the stream
        has of those is left out, and a position behind it that does not name them would lose it."""
        named = (self._at.standing.position or {}).get("stopped", [])
        return self._noted and named == sorted(self._at.tables.stopped)

    def have_noted(self) -> None:
        """See to it that a commit comes whose position says everything: where none would come by itself, a mark makes one."""
        if not self.is_noted and not self._is_noting:
            write_mark(self._at.connection, f"{self._at.options.slot} note")
            self._is_noting = True

    # --- tables ------------------------------------------------------------------------------------------------------

    def begin(self, tables: Sequence[Captured], position: int, *, settled: bool) -> None:
        """Have tables snapshotted as of a new slot; what their topics have already is from before it, and is replaced."""
        for table in tables:
            when = f"before {lsn_text(position)}, since the slot was lost"
            self._begin_anew(table, when, settled=settled)

    def _begin_anew(self, table: Captured, when: str, *, settled: bool = False) -> None:
        if table.is_outbox:
            self._at.standing.miss(table, when)
            self.note()
        elif self._at.history.is_empty(table.topic):
            self.request([table], settled=settled)
        elif table.is_keyed:
            self.request([table], replace=True, settled=settled)
        else:
            self._at.standing.miss(table, when)
            self.note()

    def request(
        self,
        tables: Sequence[Captured],
        *,
        replace: bool = False,
        part: int = 0,
        settled: bool = False,
    ) -> None:
        """Have tables snapshotted, or a partition of one, by its oid. `settled`: whatever is not in the stream has ended before it began;
        else they may have been published just now, while transactions were under way."""
        horizon = self._at.connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        horizon = None if settled else int(horizon) % XID_SPAN
        since = self._at.history.moment() if replace else 0
        self.requests += [
            SnapshotRequest(str(table), replace=replace, since=since, horizon=horizon, part=part)
            for table in tables
        ]
        self.note()

    def take_up(self, table: Captured) -> None:
        """Snapshot a table anew whose changes were left out. What the stream still has of it from before now is left out, too:
        it may have the shape that the topic could not take, and the snapshot has what came of it."""
        self.requests = [request for request in self.requests if request.table != str(table)]
        self._begin_anew(table, "while it was stopped")
        if table.is_outbox:
            return
        self._passed_over[table.state.oid] = self.mark()

    def copy_again(self, table: Captured) -> None:
        """Copy a table whose rows were rewritten, while its changes go on: they are right, but for values that the server does not
        send because they did not change. Those are taken from the log only once the rewritten rows are in it."""
        name = str(table)
        mine = [request for request in self.requests if request.table == name]
        replace_all = any(request.replace for request in mine)
        horizon = None
        if any(request.horizon is not None for request in mine):
            now = self._at.connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            horizon = int(now) % XID_SPAN
        self.requests = [request for request in self.requests if request.table != name or request.prune]
        self.requests.append(SnapshotRequest(name, replace=replace_all, since=UNKNOWN, horizon=horizon))
        self._lacking.pop(name, None)
        self._awaited[name] = self.mark()
        self.note()

    def prune(self, table: Captured) -> None:
        """Delete the rows that the topic has and the table has not. Those of a partition that is gone were in the stream before now."""
        if not any(request.prune for request in self.requests if request.table == str(table)):
            self.requests.append(SnapshotRequest(str(table), prune=True))
        self._awaited[str(table)] = self.mark()
        self.note()

    def since(self, table: str) -> int:
        """The moment of the log after which what it has of a table is right."""
        return max((request.since for request in self.requests if request.table == table), default=0)

    # --- single rows -------------------------------------------------------------------------------------------------

    def lacks(self, lack: Lack, table: CapturedTable, under_way: SnapshotRequest | None) -> None:
        """Rows that are left out because they lack values are to be had as a whole."""
        name = table.relation.table
        if any(one.table == name and one.is_whole and one != under_way for one in self.requests):
            return  # everything is still to come
        wanted = self._lacking.setdefault(name, {})
        keys = lack.keys(table, KEYS_MAX)
        if keys is not None and len(every := wanted | dict.fromkeys(keys)) <= KEYS_MAX:
            self._lacking[name] = every
        else:
            self.requests.append(SnapshotRequest(name))
            del self._lacking[name]

    def emptied(self, table: str) -> None:
        """No row of a table is wanted any more: it was emptied."""
        if self._lacking.pop(table, {}):
            self.note()

    def are_had(self, batch: pa.RecordBatch, table: CapturedTable, name: str) -> None:
        """Rows that came are lacking no longer."""
        wanted = self._lacking.get(name)
        if wanted and table.key:
            for key in keys_of(batch, table):
                wanted.pop(key, None)

    # --- marks in the stream -----------------------------------------------------------------------------------------

    def passes_over(self, oid: int) -> bool:
        """Whether what the stream has of a table is from before it was taken up again."""
        return oid in self._passed_over

    def marked(self, mark: str) -> None:
        """A mark was in the stream: what was left out up to it is over."""
        for table in [table for table, awaited in self._awaited.items() if awaited == mark]:
            self._awaited[table] = ""
        self._passed_over = {oid: until for oid, until in self._passed_over.items() if until != mark}

    def trust(self) -> None:
        """What comes of rewritten tables from now on is right."""
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
        """Write a mark into the stream: what comes behind it is later than now."""
        mark = f"{self._at.options.slot} {uuid.uuid4().hex}"
        write_mark(self._at.connection, mark)
        return mark

    # --- one after the other -----------------------------------------------------------------------------------------

    def next(self) -> SnapshotRequest | None:
        """What is to be selected next: single rows that are lacking, whatever rests."""
        if self._passed_over or self._awaited:
            return None
        for table, keys in self._lacking.items():
            if keys:
                return SnapshotRequest(table, keys=tuple(keys))
        return self.requests[0] if self.requests and not self.is_paused else None

    def is_wanted(self, request: SnapshotRequest) -> bool:
        """Whether a request is still there."""
        return bool(request.keys) or request in self.requests

    def is_last_word(self, request: SnapshotRequest) -> bool:
        """Whether rows of a request are not wanted once more, for what they lack."""
        return request.prune or not self._lacking.get(request.table)

    def forget(self, request: SnapshotRequest) -> None:
        """Want a request no more."""
        self.note()
        if request.keys:
            self._lacking.pop(request.table, None)
        elif request in self.requests:
            self.requests.remove(request)

    def settle(self, chunk: SnapshotChunk) -> None:
        """What is left to be done behind a chunk."""
        if chunk.request.keys:
            assert chunk.found is not None
            if chunk.found.result().is_cut:
                return  # those of the rest are selected next
            wanted = self._lacking.get(chunk.request.table, {})
            for key in set(chunk.request.keys) - chunk.held.again:
                wanted.pop(key, None)
            return
        rest = rest_of(chunk)
        place = self.requests.index(chunk.request)
        self.requests[place : place + 1] = [] if rest is None else [rest]
