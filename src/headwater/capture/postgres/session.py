"""One connection's life: made ready, the first snapshot if there is none, then the stream, until something breaks.

`headwater.capture.postgres.source` makes sessions, one after the other; what they share is their `Standing`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain

from headwater.capture.postgres.beside import Beside
from headwater.capture.postgres.connection import Connection, Replication, identifier, lsn_of, lsn_text
from headwater.capture.postgres.emptying import emptied
from headwater.capture.postgres.guard import EVERY_S, look_after, over_budget
from headwater.capture.postgres.handing import Handing
from headwater.capture.postgres.holding import GONE, begin_holding, check_still
from headwater.capture.postgres.intake import Intake
from headwater.capture.postgres.outbox import Outbox
from headwater.capture.postgres.setup import (
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
from headwater.capture.postgres.snapshot import copied
from headwater.capture.postgres.standing import Connected, SessionEndedError
from headwater.capture.postgres.stream import Assembly, Unit
from headwater.capture.source import Commit, Event, Position, Quiet, Rows
from headwater.clock import Microseconds
from headwater.errors import PublicationError, SlotError, SourceError, SourceRefusedError, TableStoppedError
from headwater.records import adapt

GATHER_ROWS = 20_000
GATHER_S = 0.005
"""Whole transactions are handed over together once there are so many rows, or this time after the first."""
TAKE_MESSAGES = 5_000
FLOW_MESSAGES = 500
"""Where so many come at once, there are more on the way, and it is worth waiting for them."""
QUIET_S = 0.2


class Session:
    """Reads on one connection. A SourceError that is not retryable is for the user."""

    def __init__(self, at: Connected) -> None:
        self._at = at
        self._standing = at.standing
        self._options = at.options
        self._beside = Beside(at)
        self._outbox = Outbox(at) if at.options.outbox is not None else None
        self._handing = Handing(at, self._beside, self._outbox)
        self._replication: Replication | None = None
        self._intake: Intake | None = None
        self._first: Position = {}

    def events(self) -> Iterator[Event]:
        """Everything that is not in the log yet, for as long as the connection holds."""
        assembly: Assembly | None = None
        try:
            yield from self._prepare()
            assembly = Assembly(max(self._standing.sequence, 0), self._at.folder)
            yield from self._stream(assembly)
        except SourceRefusedError as error:
            raise self._explained(error) from None
        finally:
            if assembly is not None:
                assembly.close()
            self._close()

    # --- before the stream -------------------------------------------------------------------------------------------

    def _prepare(self) -> Iterator[Event]:
        at, standing = self._at, self._standing
        standing.state = "connecting"
        check_server(at.connection, at.source)
        # Before anything was captured a table that is not there is a mistake; later on it stops, and the others go on.
        later = standing.position is not None
        captured = find_tables(at.connection, self._options, at.tables.stop_named if later else None)
        if later:
            captured = [table for table in captured if at.tables.is_free(table)]
        at.publications = self._publish(captured)
        at.filters = row_filters(at.connection, at.publications)
        at.tables.set(captured)
        self._replication = Replication(self._options.url, at.source)
        system = self._replication.command("IDENTIFY_SYSTEM")[0][0]
        slot = find_slot(at.connection, self._options.slot)
        if standing.position is not None:
            if standing.position.get("system") != system:
                raise self._other_server()
            check_slot(at.connection, slot, self._options.slot, at.source)
            yield from self._go_on(standing.position, captured)
            return
        self._first = {"slot": self._options.slot, "system": system, "tables": [str(t) for t in captured]}
        if partitions := partitions_of(at.connection, captured):
            self._first["partitions"] = {table: sorted(parts) for table, parts in partitions.items()}
        if slot is not None and self._options.slot_given:
            slot = check_slot(at.connection, slot, self._options.slot, at.source)
            yield from self._begin_in_chunks(slot.confirmed, captured, settled=False)
        else:
            yield from self._begin_with_slot(captured, has_old=slot is not None)

    def _go_on(self, position: Position, captured: Sequence[Captured]) -> Iterator[Event]:
        """From a position. Tables that it does not know are new; those that had stopped and are fit again are taken up."""
        at = self._at
        self._beside.restore(position, captured)
        known, stopped = set(position.get("tables", [])), set(position.get("stopped", []))
        for ahead in (True, False):  # of those that had stopped nothing more comes as they were
            some = [table for table in captured if (str(table) not in stopped) is ahead]
            yield from at.tables.learn_now(at.connection, at.publications, some, ahead=ahead)
        new = [table for table in captured if str(table) not in known]
        if {str(table) for table in captured} != known:
            position["tables"] = sorted(map(str, captured))
            self._beside.note()
        if self._options.snapshot != "none":
            fresh = [table for table in new if not table.is_outbox and at.history.is_empty(table.topic)]
            self._beside.request(fresh)
            for table in new:  # one that was left out for a while
                if not table.is_outbox and table not in fresh:
                    self._beside.take_up(table)
        self._take_in_partitions(position, captured)
        for table in captured:
            if str(table) in stopped and str(table) not in at.tables.stopped:
                self._beside.take_up(table)

    def _publish(self, captured: list[Captured]) -> list[str]:
        """See to it that the tables are published. A new one that cannot be stops alone, and is taken out of the list."""
        at, position = self._at, self._standing.position
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

    def _take_in_partitions(self, position: Position, captured: Sequence[Captured]) -> None:
        """Copy partitions that are new: what was in one before it became one was not in the stream."""
        now = partitions_of(self._at.connection, captured)
        was = position.get("partitions", {})
        for table in captured:
            if (parts := now.get(str(table))) is None or table.is_outbox:
                continue
            new = set(parts) - set(was.get(str(table), parts))
            if table.is_keyed and self._options.snapshot != "none":
                for oid in sorted(new):
                    self._beside.request([table], part=parts[oid])
        if (plain := {table: sorted(parts) for table, parts in now.items()}) != was:
            position["partitions"] = plain
            self._beside.note()

    def _begin_with_slot(self, captured: Sequence[Captured], *, has_old: bool) -> Iterator[Event]:
        """A new slot, in place of one of ours that nothing was read from, and what its snapshot has."""
        assert self._replication is not None
        if has_old:
            self._drop_slot()
        command = create_slot_command(
            self._replication.version, self._options.slot, failover=self._options.failover
        )
        self._replication.begin(command)
        self._standing.state = "waiting until transactions that are under way have ended, to begin after them"
        while (answer := self._replication.answer(QUIET_S)) is None:
            yield Quiet()
        _, point, snapshot, _ = answer[0]
        begins = lsn_of(str(point))
        try:
            if begins <= self._standing.sequence:
                raise self._other_server()
            if self._options.snapshot == "initial":
                yield from self._copy_all(captured, begins, str(snapshot))
            else:
                yield from self._begin_in_chunks(begins, captured, settled=True)
        except BaseException:
            if self._standing.sequence < begins:  # once it was handed over, the log may have it
                self._forsake_slot()
            raise

    def _begin_in_chunks(
        self, begins: int, captured: Sequence[Captured], *, settled: bool
    ) -> Iterator[Event]:
        yield from self._at.tables.learn_now(self._at.connection, self._at.publications, captured)
        if self._options.snapshot != "none":
            tables = [table for table in captured if not table.is_outbox]
            self._beside.begin(tables, begins, settled=settled)
        yield self._commit(begins)

    def _copy_all(self, captured: Sequence[Captured], begins: int, snapshot: str) -> Iterator[Event]:
        """All tables as of the slot's beginning, in one append. What the topics had before is replaced."""
        copier = Connection(self._options.url, self._at.source)
        try:
            yield from self._hold(copier, captured, snapshot)
            now_us: Microseconds = copier.value("SELECT (extract(epoch FROM now()) * 1000000)::int8")
            # The tables are as they will be until they are copied; what they were at the snapshot's moment no longer matters.
            yield from self._at.tables.learn_now(self._at.connection, self._at.publications, captured)
            for table in captured:
                if table.is_outbox and self._standing.sequence < 0:
                    yield from self._copy_outbox(copier, table, (begins, now_us, None))
            for table in captured:
                self._standing.state = f"copying table {table}"
                yield from self._copy(copier, table, (begins, now_us, None))
        finally:
            copier.close()
        yield self._commit(begins)

    def _hold(self, copier: Connection, captured: Sequence[Captured], snapshot: str) -> Iterator[Quiet]:
        """See to it that nobody empties or rewrites what is to be copied, and that nobody has since the snapshot."""
        names = [table.state.name for table in captured]
        try:
            while not begin_holding(copier, names, snapshot):
                self._standing.state = "waiting for whoever has one of the tables to himself, to copy it"
                yield Quiet()
        except SourceRefusedError as error:
            if error.facts.get("sqlstate") in GONE:
                raise SessionEndedError("a table is gone that was there just now") from None
            raise
        check_still(copier, self._at.connection, captured)

    def _copy(self, copier: Connection, table: Captured, stamps: tuple[int, int, None]) -> Iterator[Rows]:
        tables = self._at.tables
        shape = tables.table(tables.relation_now(self._at.connection, self._at.publications, table))
        if shape is None:
            return
        if not shape.key and not self._at.history.is_empty(table.topic):
            self._standing.miss(table, f"before {lsn_text(int(stamps[0]))}, since the slot was lost")
            return
        definition = tables.definition(table.topic)
        if shape.key:
            yield from emptied(self._at.history, definition, stamps)
        for batch in copied(copier, shape, self._at.filters.get(str(table)), stamps):
            yield Rows(table.topic, adapt(batch, definition.row_schema))

    def _copy_outbox(
        self, copier: Connection, table: Captured, stamps: tuple[int, int, None]
    ) -> Iterator[Event]:
        """The events that are in the outbox already, as they lie there; gone through twice, for topics are made before rows come."""
        shape = self._at.tables.outbox(
            self._at.tables.relation_now(self._at.connection, self._at.publications, table)
        )
        if shape is not None and self._outbox is not None:
            for batch in copied(copier, shape, None, stamps):
                yield from self._outbox.learn(self._outbox.read(batch))
            for batch in copied(copier, shape, None, stamps):
                yield from self._outbox.rows(self._outbox.read(batch))

    def _drop_slot(self) -> None:
        self._at.connection.rows("SELECT pg_drop_replication_slot(%s)", self._options.slot)

    def _forsake_slot(self) -> None:
        """A slot that nothing was read from would only cost the server; it may also be out of reach by now."""
        try:
            if self._replication is not None:
                self._replication.close()
            self._drop_slot()
        except SourceError:
            return  # what led here is what counts; the next start drops it

    def _other_server(self) -> SlotError:
        return SlotError(
            f"source {self._at.source!r} was read from another server than the one its url leads to now",
            detail="positions in the log of one server mean nothing on another",
            hint=f"ALTER SOURCE {self._at.source} RESTART snapshots the tables anew",
            slot=self._options.slot,
            reason="other server",
            source=self._at.source,
        )

    # --- the stream --------------------------------------------------------------------------------------------------

    def _stream(self, assembly: Assembly) -> Iterator[Event]:
        intake = self._start()
        looked = gathered = told = spoke = time.monotonic()
        said = self._standing.sequence
        wait_s = 0.0
        while True:
            messages = intake.take(TAKE_MESSAGES, wait_s)
            had = assembly.waiting
            for unit in assembly.feed(messages):
                yield from self._hand_over(unit)
            now = time.monotonic()
            gathered = gathered if had else now
            full = assembly.rows >= GATHER_ROWS or now - gathered >= GATHER_S
            ebbs = not intake.has_more and len(messages) < FLOW_MESSAGES
            if assembly.waiting and (full or ebbs):
                ready = assembly.take()
                assert ready is not None
                yield from self._hand_over(ready)
            if assembly.wants_reply or now - told >= 1.0:
                intake.tell(always=assembly.wants_reply)
                assembly.wants_reply, told = False, now
            if now - looked >= EVERY_S:
                self._look_after(intake)
                self._look_around()
                looked = now
            yield from self._beside.go_on()
            reached = None if assembly.waiting else assembly.reached
            wait_s = GATHER_S if assembly.waiting else QUIET_S
            said = max(said, self._standing.sequence)
            if (reached is not None and reached > said) or now - spoke >= QUIET_S:
                yield Quiet(reached, self._standing.position)
                spoke, said = time.monotonic(), said if reached is None else reached

    def _start(self) -> Intake:
        assert self._replication is not None
        options = {
            "proto_version": "2",
            "publication_names": ",".join(identifier(name) for name in self._at.publications),
            "messages": "true",
            "streaming": "on",
        }
        self._replication.start(self._options.slot, max(self._standing.sequence, 0), options)
        setting = "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'"
        timeout_ms = int(self._at.connection.value(setting))
        self._intake = Intake(self._replication, lambda: self._standing.durable, timeout_ms)
        self._standing.stream()
        return self._intake

    def _hand_over(self, unit: Unit) -> Iterator[Event]:
        """The rows of whole transactions, and what marks among them set off, as one append."""
        try:
            yield from self._handing.learn(unit)
            # What fails while rows are made of a small unit fails before any of them is handed over.
            rows = self._handing.rows(unit)
            rows = rows if unit.large is not None else iter(list(rows))
            count = 0
            for given in chain(rows, self._marked(unit)):
                yield given
                count += 1
            if count or not self._beside.is_noted:
                yield self._commit(unit.end)
        finally:
            unit.close()

    def _marked(self, unit: Unit) -> Iterator[Rows]:
        self._beside.saw(unit)
        yield from self._beside.marked(unit)

    def _explained(self, error: SourceRefusedError) -> SourceError:
        """What the server refused, as what it means here."""
        at = self._at
        if error.facts.get("sqlstate") == "55006":
            return slot_in_use(at.connection, self._options.slot, at.source)
        if error.facts.get("sqlstate") in ("42704", "55000"):
            try:
                if self._standing.position is not None:
                    slot = find_slot(at.connection, self._options.slot)
                    check_slot(at.connection, slot, self._options.slot, at.source)
                check_published(at.connection, at.publications, [])
            except SourceError as cause:
                return cause
        return error

    # --- upkeep ------------------------------------------------------------------------------------------------------

    def _look_after(self, intake: Intake) -> None:
        at = self._at
        self._standing.health = health = look_after(at.connection, self._options, at.source)
        if health.over_budget and self._options.over_wal == "drop_slot":
            intake.close()
            at.connection.rows(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
                "WHERE slot_name = %s AND active_pid IS NOT NULL",
                self._options.slot,
            )
            self._drop_slot()
            raise over_budget(self._options, at.source, health.retained_bytes, dropped=True)
        for table in check_published(at.connection, at.publications, at.tables.all()):
            if str(table) not in at.tables.stopped:
                add = f"ALTER PUBLICATION {identifier(at.publications[0])} ADD TABLE {table.state.name}"
                error = TableStoppedError("it is no longer part of the publication", hint=add)
                at.tables.stop(table.state.oid, error)
                self._beside.note()

    def _look_around(self) -> None:
        """SessionEndedError if there is more to be captured than there was: the next session takes it in."""
        at, position = self._at, self._standing.position
        if position is None:
            return
        known = {*position.get("tables", ()), *at.tables.stopped}
        if any(name.table == "*" for name in self._options.tables):
            found = find_tables(at.connection, self._options, lambda table, error: None)
            if new := [str(table) for table in found if str(table) not in known]:
                raise SessionEndedError(f"there is a new table {new[0]}")
        was = position.get("partitions", {})
        for table, parts in partitions_of(at.connection, at.tables.all()).items():
            if set(parts) - set(was.get(table, ())):
                raise SessionEndedError(f"table {table} has new partitions")

    def _commit(self, sequence: int) -> Commit:
        """The position goes with what was handed over."""
        position = dict(self._standing.position or self._first)
        position["lsn"] = lsn_text(sequence)
        changing = {**self._beside.remembered(), "stopped": sorted(self._at.tables.stopped)}
        for name, value in changing.items():
            position.pop(name, None)
            if value:
                position[name] = value
        self._standing.position, self._standing.sequence = position, sequence
        return Commit(sequence, position)

    def _close(self) -> None:
        if self._intake is not None:
            self._intake.close()
        self._beside.close()
        if self._replication is not None:
            self._replication.close()
        self._at.connection.close()
