"""A session on one connection: preparation, the first snapshot if there is no position, then the stream until an error.

`headwater.sources.postgres.postgres_source` makes sessions, one after the other; they share a `SessionState`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from headwater.core.errors import PublicationError, SourceError, SourceRefusedError
from headwater.sources.base import Commit, Event, Position, Quiet, Rows
from headwater.sources.postgres.emit_rows import RowEmitter
from headwater.sources.postgres.first_copy import FirstCopy
from headwater.sources.postgres.gaps import Gaps
from headwater.sources.postgres.outbox import Outbox
from headwater.sources.postgres.rows.column_attributes import Attributes
from headwater.sources.postgres.rows.table_identity import known_parts
from headwater.sources.postgres.server.connection import Replication, identifier, lsn_of, lsn_text
from headwater.sources.postgres.server.publications import (
    Captured,
    check_published,
    check_server,
    check_slot,
    create_slot_command,
    find_slot,
    find_tables,
    partitions_of,
    prepare_publications,
    row_filters,
    slot_in_use,
)
from headwater.sources.postgres.server.server_identity import (
    begins_before,
    check_confirmed,
    check_history,
    other_server,
    read_server,
    undecodable,
)
from headwater.sources.postgres.server.slot_monitor import EVERY_S
from headwater.sources.postgres.server.stream_overlap import LastTransaction, Overlap
from headwater.sources.postgres.session_state import SessionContext, SessionEndedError
from headwater.sources.postgres.snapshot.incremental_snapshot import IncrementalSnapshots
from headwater.sources.postgres.stream.receiver import Receiver
from headwater.sources.postgres.stream.transactions import TransactionAssembler, TransactionGroup
from headwater.sources.postgres.upkeep import Upkeep, drop_slot
from headwater.sources.row_sizes import BYTES_MAX

GATHER_ROWS = 20_000
GATHER_S = 0.005
"""Whole transactions are emitted together once they have `GATHER_ROWS` rows, or `GATHER_S` seconds after the first."""
TAKE_MESSAGES = 5_000
FLOW_MESSAGES = 500
"""Number of messages in one read from which on more are expected, so that it is worth waiting for them."""
QUIET_S = 0.2
AGAIN_S = 1.0
"""Delay after which all tables are compared once more when the stream has described one: the catalog may show a change of the
table a little later than the stream."""

_log = logging.getLogger("headwater")


class CaptureSession:
    """Reads a source on one connection. A SourceError that is not retryable needs an action of the user."""

    def __init__(self, at: SessionContext) -> None:
        self._at = at
        self._progress = at.progress
        self._options = at.options
        self._incremental = IncrementalSnapshots(at)
        self._outbox = Outbox(at) if at.options.outbox is not None else None
        self._attributes = Attributes(at.connection)
        self._emitter = RowEmitter(at, self._incremental, self._outbox, self._attributes)
        self._gaps = Gaps(at, self._incremental)
        self._first_copy = FirstCopy(at, self._gaps, self._outbox)
        self._upkeep = Upkeep(at, self._gaps, self._incremental)
        self._replication: Replication | None = None
        self._receiver: Receiver | None = None
        self._first: Position = {}
        self._amended: Position = {}

    def events(self) -> Iterator[Event]:
        """Yield everything that is not in the log yet, until the connection ends."""
        assembly: TransactionAssembler | None = None
        is_prepared = False
        try:
            yield from self._prepare()
            is_prepared = True
            overlap = self._start()
            assembly = TransactionAssembler(max(self._progress.taken, 0), self._at.folder, overlap)
            yield from self._stream(assembly)
        except SourceRefusedError as error:
            if is_prepared and _is_internal(error):
                if self._progress.streaming:
                    raise self._without_streaming(error) from None
                raise undecodable(self._at.source, self._options.slot, error) from None
            raise self._explained(error) from None
        finally:
            if assembly is not None:
                assembly.close()
            self._close()

    # --- before the stream -------------------------------------------------------------------------------------------

    def _prepare(self) -> Iterator[Event]:
        at, progress = self._at, self._progress
        progress.state = "connecting"
        check_server(at.connection, at.source)
        # Before the first position a missing table is a configuration error; later it stops, and the other tables continue.
        later = progress.position is not None
        captured = find_tables(at.connection, self._options, at.tables.stop_absent if later else None)
        if progress.position is not None:
            self._stop_missing(progress.position, captured)
            captured = [table for table in captured if at.tables.is_free(table)]
        at.publications = self._publish(captured)
        at.filters = row_filters(at.connection, at.publications)
        at.tables.set(captured)
        self._attributes.begin(progress.position, captured)
        self._replication = Replication(self._options.url, at.source)
        server = read_server(self._replication)
        slot = find_slot(at.connection, self._options.slot)
        if progress.position is not None:
            position, taken = progress.position, progress.taken
            if position.get("system") != server.system:
                raise other_server(at.source, self._options.slot)
            check_history(self._replication, server, position, taken, at.source)
            slot = check_slot(at.connection, slot, self._options.slot, at.source)
            check_confirmed(slot, position, taken, at.source)
            if position.get("timeline") != server.timeline:
                self._amend("timeline", server.timeline)
            yield from self._go_on(position, captured)
            return
        self._first = {
            "slot": self._options.slot,
            "system": server.system,
            "timeline": server.timeline,
            "tables": [str(t) for t in captured],
        }
        self._gaps.begin(captured)
        if slot is not None and self._options.slot_given:
            slot = check_slot(at.connection, slot, self._options.slot, at.source)
            if slot.confirmed <= progress.taken:
                raise begins_before(at.source, slot.name, slot.confirmed, progress.taken)
            yield from self._begin_in_chunks(slot.confirmed, captured, settled=False)
        else:
            yield from self._begin_with_slot(captured, has_old=slot is not None)

    def _stop_missing(self, position: Position, captured: Sequence[Captured]) -> None:
        """Stop captured tables that a pattern for a whole schema no longer finds: their topics have rows of tables that are
        gone."""
        schemas = tuple(f"{name.schema}." for name in self._options.tables if name.table == "*")
        there = {*map(str, captured), *self._at.tables.stopped}
        for name in dict.fromkeys((*position.get("tables", ()), *position.get("stopped", ()))):
            if name not in there and name.startswith(schemas):
                error = SourceRefusedError(
                    f"table {name} no longer exists, or can no longer be captured",
                    hint="create the table again, or keep its topic as it is",
                    table=str(name),
                    reason="no-table",
                )
                self._at.tables.stop_absent(name, error)

    def _go_on(self, position: Position, captured: Sequence[Captured]) -> Iterator[Event]:
        """Resume from a position. Tables that the position does not list are new; tables that had stopped and can be captured
        again are resumed with a snapshot."""
        at = self._at
        self._incremental.wanted.restore(position, captured)
        known, stopped = set(position.get("tables", [])), set(position.get("stopped", []))
        gaps = self._gaps.restore(position, captured)
        for ahead in (True, False):  # tables that had stopped send no more rows of an earlier shape
            some = [table for table in captured if (str(table) not in stopped) is ahead]
            yield from at.tables.learn_now(at.connection, at.publications, some, ahead=ahead)
        new = [table for table in captured if str(table) not in known]
        if {str(table) for table in captured} != known:
            self._amend("tables", sorted(map(str, captured)))
        if self._options.snapshot != "none":
            fresh = [table for table in new if not table.is_outbox and at.history.is_empty(table.topic)]
            self._incremental.wanted.request(fresh)
            for table in new:  # not captured for a while: its topic has rows already
                if not table.is_outbox and table not in fresh:
                    self._incremental.wanted.resume_table(table)
        self._request_new_partitions(position, captured)
        for table in captured:
            if (table in gaps or str(table) in stopped) and str(table) not in at.tables.stopped:
                self._incremental.wanted.resume_table(table)

    def _amend(self, name: str, value: Any) -> None:
        """Change a field of the next position. The current position keeps its value: what the change requires, such as a
        snapshot of a new partition, is part of the next position too, and the session may end before that is committed."""
        self._amended[name] = value
        self._incremental.wanted.note()

    def _publish(self, captured: list[Captured]) -> list[str]:
        """Publish the tables, and return the names of the publications. A new table that cannot be published stops, and is
        removed from `captured`; the other tables continue."""
        at, position = self._at, self._progress.position
        try:
            return prepare_publications(at.connection, self._options, captured)
        except PublicationError:
            if position is None:
                raise
        known = [table for table in captured if str(table) in position.get("tables", ())]
        names = prepare_publications(at.connection, self._options, known)
        for table in [table for table in captured if table not in known]:
            try:
                names = prepare_publications(at.connection, self._options, [*known, table])
                known.append(table)
            except PublicationError as error:
                at.tables.stop_named(str(table), error)
                captured.remove(table)
        return names

    def _request_new_partitions(self, position: Position, captured: Sequence[Captured]) -> None:
        """Request snapshots of new partitions: rows that a table had before it was attached as a partition were not in the
        stream."""
        if self._options.snapshot == "none":
            return
        now = partitions_of(self._at.connection, [table for table in captured if table.is_keyed])
        for table in captured:
            parts = now.get(str(table), {})
            for oid in sorted(parts.keys() - known_parts(position, str(table), parts)):
                self._incremental.wanted.request([table], part=oid)

    def _begin_with_slot(self, captured: Sequence[Captured], *, has_old: bool) -> Iterator[Event]:
        """Create the slot, replacing an own slot that nothing was read from, and begin with the tables as of the slot's
        snapshot."""
        assert self._replication is not None
        if has_old:
            drop_slot(self._at)
        command = create_slot_command(
            self._replication.version, self._options.slot, failover=self._options.failover
        )
        self._replication.begin(command)
        self._progress.state = "waiting for running transactions to end, before the slot can be created"
        while (answer := self._replication.answer(QUIET_S)) is None:
            yield Quiet()
        _, point, snapshot, _ = answer[0]
        begins = lsn_of(str(point))
        try:
            if begins <= self._progress.taken:
                raise begins_before(self._at.source, self._options.slot, begins, self._progress.taken)
            if self._options.snapshot == "initial":
                yield from self._first_copy.copy_all(captured, begins, str(snapshot))
                yield self._commit(begins)
            else:
                yield from self._begin_in_chunks(begins, captured, settled=True, snapshot=str(snapshot))
        except BaseException:
            if self._progress.sequence < begins:  # else the commit was yielded, and the log may have it
                self._forsake_slot()
            raise

    def _begin_in_chunks(
        self, begins: int, captured: Sequence[Captured], *, settled: bool, snapshot: str | None = None
    ) -> Iterator[Event]:
        """Begin with snapshots of the tables in chunks, while the stream is read. The outbox is copied before the stream: its
        events are not rows of a keyed topic, in which live changes would take precedence over copied rows."""
        yield from self._at.tables.learn_now(self._at.connection, self._at.publications, captured)
        wanted = self._options.snapshot != "none"
        for table in captured:
            if table.is_outbox and wanted and snapshot is not None:
                yield from self._first_copy.copy_all([table], begins, snapshot)
            elif table.is_outbox and (self._progress.began_before or (wanted and self._has_rows(table))):
                self._progress.miss(
                    table, f"before {lsn_text(begins)}, where slot {self._options.slot} begins"
                )
        if wanted:
            tables = [table for table in captured if not table.is_outbox]
            self._incremental.wanted.begin(tables, begins, settled=settled)
        yield self._commit(begins)

    def _has_rows(self, table: Captured) -> bool:
        return bool(self._at.connection.value(f"SELECT EXISTS (SELECT FROM {table.state.name})"))

    def _forsake_slot(self) -> None:
        """Drop a slot that nothing was read from, because the server would retain WAL for it. Errors are ignored: the server
        may be unreachable by now."""
        try:
            if self._replication is not None:
                self._replication.close()
            drop_slot(self._at)
        except SourceError:
            return  # the caller raises the original error; the next start drops the slot

    # --- the stream --------------------------------------------------------------------------------------------------

    def _stream(self, assembly: TransactionAssembler) -> Iterator[Event]:
        receiver = self._receiver
        assert receiver is not None
        compared = gathered = replied = spoke = time.monotonic()
        said = self._progress.sequence
        wait_s = 0.0
        while True:
            messages = receiver.take(TAKE_MESSAGES, wait_s)
            had = assembly.waiting
            for unit in assembly.feed(messages):
                compared = min(compared, self._compare_described(assembly))
                yield from self._hand_over(unit)
            now = time.monotonic()
            gathered = gathered if had else now
            full = assembly.rows >= GATHER_ROWS or now - gathered >= GATHER_S
            ebbs = not receiver.has_more and len(messages) < FLOW_MESSAGES
            if assembly.waiting and (full or ebbs):
                compared = min(compared, self._compare_described(assembly))
                ready = assembly.take()
                assert ready is not None
                yield from self._hand_over(ready)
            if assembly.wants_reply or now - replied >= 1.0:
                receiver.send_status(always=assembly.wants_reply)
                assembly.wants_reply, replied = False, now
            if now - compared >= EVERY_S or self._incremental.is_outdated:
                self._incremental.is_outdated = False
                position = self._progress.position
                self._upkeep.run(receiver, None if position is None else {**position, **self._amended})
                compared = time.monotonic()
            yield from self._incremental.go_on()
            if self._incremental.resumed:
                self._gaps.renew(self._incremental.resumed)
                self._incremental.resumed.clear()
            reached = None if assembly.waiting else assembly.reached
            wait_s = GATHER_S if assembly.waiting else QUIET_S
            said = max(said, self._progress.sequence)
            if (reached is not None and reached > said) or now - spoke >= QUIET_S:
                yield Quiet(reached, self._progress.position)
                spoke, said = time.monotonic(), said if reached is None else reached

    def _start(self) -> Overlap | None:
        """Begin to stream. Returns the check of transactions that are sent again; None if the position has no anchor for it.

        The slot is compared with the position once more when the stream has acquired it: until then the slot may have been
        advanced, or dropped and created again under its name; afterwards Postgres refuses both.
        """
        assert self._replication is not None
        at, progress = self._at, self._progress
        options = {
            "proto_version": "2",
            "publication_names": ",".join(identifier(name) for name in at.publications),
            "messages": "true",
            "streaming": "on" if progress.streaming else "off",
        }
        # 0: from the confirmed position of the slot. Transactions that were captured already are sent again, compared, and
        # skipped.
        self._replication.start(self._options.slot, 0, options)
        found = find_slot(at.connection, self._options.slot)
        slot = check_slot(at.connection, found, self._options.slot, at.source)
        position = progress.position or {}
        check_confirmed(slot, position, progress.taken, at.source)
        if slot.active_pid is None:
            raise SessionEndedError("the replication stream and the catalog come from two different servers")
        setting = "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'"
        timeout_ms = int(at.connection.value(setting))
        self._receiver = Receiver(self._replication, lambda: progress.durable, timeout_ms)
        progress.stream()
        if "anchor" not in position:
            return None
        anchor = LastTransaction.from_json(position["anchor"])
        return Overlap(at.source, slot.name, anchor, progress.taken, slot.confirmed)

    def _compare_described(self, assembly: TransactionAssembler) -> float:
        """Compare the tables that the stream has just described, before their rows are emitted. Returns the time that counts as
        the last comparison of all tables: after a description, one that makes the next comparison due in `AGAIN_S`."""
        if not assembly.described:
            return time.monotonic()
        self._gaps.compare(assembly.described, assembly.followed)
        assembly.described.clear()
        assembly.followed.clear()
        return time.monotonic() - EVERY_S + AGAIN_S

    def _hand_over(self, unit: TransactionGroup) -> Iterator[Event]:
        """Yield the rows of whole transactions, and the rows of a chunk whose mark is among them, as one append."""
        try:
            yield from self._emitter.learn(unit)
            # An error in the conversion of a small group is raised before any of its rows is yielded.
            rows = self._emitter.rows(unit)
            rows = rows if unit.large is not None else _convert_ahead(rows)
            count = 0
            for given in chain(rows, self._marked(unit)):
                yield given
                count += 1
            anchor = None if unit.last is None else LastTransaction.of(unit.last)
            if count or not self._incremental.wanted.is_noted:
                yield self._commit(unit.end, anchor)
            elif anchor is not None and self._progress.position is not None:
                self._progress.position = {**self._progress.position, "anchor": anchor.to_json()}
        finally:
            unit.close()

    def _marked(self, unit: TransactionGroup) -> Iterator[Rows]:
        self._incremental.saw(unit)
        yield from self._incremental.marked(unit)

    def _without_streaming(self, error: SourceRefusedError) -> SessionEndedError:
        """Turn off streaming of large transactions, and return the error that ends this session: the next session reads
        transactions once they are committed.

        Postgres fails to decode some transactions while they are under way, such as one that undid a TRUNCATE and then altered
        the table, and decodes the same transactions at their commit.
        """
        progress = self._progress
        progress.streaming = False
        progress.notes["streaming"] = (
            f"transactions are read at their commit, because Postgres could not decode a transaction in progress: {error.message}"
        )
        _log.warning("source %r: %s", self._at.source, progress.notes["streaming"])
        return SessionEndedError(progress.notes["streaming"], detail=error.detail, source=self._at.source)

    def _explained(self, error: SourceRefusedError) -> SourceError:
        """Return the cause of an error of the server, such as a slot in use or a dropped publication; else the error itself."""
        at = self._at
        if error.facts.get("sqlstate") == "55006":
            return slot_in_use(at.connection, self._options.slot, at.source)
        if error.facts.get("sqlstate") in ("42704", "55000"):
            try:
                if self._progress.position is not None:
                    slot = find_slot(at.connection, self._options.slot)
                    check_slot(at.connection, slot, self._options.slot, at.source)
                check_published(at.connection, at.publications, [])
            except SourceError as cause:
                return cause
            if error.facts.get("sqlstate") == "42704":
                return _not_published(error, at.source)
        return error

    def _commit(self, sequence: int, anchor: LastTransaction | None = None) -> Commit:
        """Return the commit of the rows yielded since the last one, with its position; `anchor` is their last transaction."""
        position = {**(self._progress.position or self._first), **self._amended}
        position["lsn"] = lsn_text(sequence)
        position.setdefault("anchor", LastTransaction(sequence).to_json())
        if anchor is not None:
            position["anchor"] = anchor.to_json()
        changing = {
            **self._incremental.wanted.remembered(),
            **self._gaps.remembered(),
            "columns": self._attributes.remembered(),
            "stopped": sorted(self._at.tables.stopped),
        }
        position.pop("partitions", None)  # written by an earlier version of Headwater
        for name, value in changing.items():
            position.pop(name, None)
            if value:
                position[name] = value
        self._progress.position, self._progress.sequence = position, sequence
        return Commit(sequence, position)

    def _close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._incremental.close()
        if self._replication is not None:
            self._replication.close()
        self._at.connection.close()


def _convert_ahead(rows: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the rows, the first one only after all were converted, or `BYTES_MAX` bytes of them."""
    made: list[Rows] = []
    size = 0
    for given in rows:
        made.append(given)
        size += given.batch.nbytes
        if size > BYTES_MAX:
            break
    yield from made
    del made
    yield from rows


def _is_internal(error: SourceRefusedError) -> bool:
    """Whether the error is an internal error of the server (SQLSTATE class XX)."""
    return str(error.facts.get("sqlstate") or "").startswith("XX")


def _not_published(error: SourceRefusedError, source: str) -> PublicationError:
    """Return the error for changes that were made while a publication did not exist: Postgres before version 18 fails at them,
    and sends nothing after them."""
    return PublicationError(
        f"a publication of source {source!r} was dropped and created again: changes made in between are not in the stream",
        detail=error.message,
        hint=f"ALTER SOURCE {source} RESTART creates a new slot and takes a new snapshot of the tables; "
        "on_gap = 'snapshot' does that automatically",
        reason="unpublished",
        source=source,
    )
