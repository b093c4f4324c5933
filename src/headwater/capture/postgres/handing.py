"""The rows of whole transactions, decoded, complete, and in the columns of their topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture.postgres.beside import Beside
from headwater.capture.postgres.decoding import INSERT, Changes, decode
from headwater.capture.postgres.emptying import emptied
from headwater.capture.postgres.filling import Earlier, Find, Mask, fill, find_earlier
from headwater.capture.postgres.gathering import Run
from headwater.capture.postgres.lacking import Lack
from headwater.capture.postgres.outbox import Happened, Outbox
from headwater.capture.postgres.relations import Table
from headwater.capture.postgres.standing import Connected
from headwater.capture.postgres.stream import Unit
from headwater.capture.source import Evolve, Rows
from headwater.errors import BadRowError
from headwater.records import adapt


class Handing:
    """Makes rows of topics from what the stream brought."""

    def __init__(self, at: Connected, beside: Beside, outbox: Outbox | None) -> None:
        self._at = at
        self._beside = beside
        self._outbox = outbox

    def learn(self, unit: Unit) -> Iterator[Evolve]:
        """What has to become of topics before rows of a unit can come."""
        relations = [relation for relation in unit.relations() if not self._beside.passes_over(relation.oid)]
        yield from self._at.tables.learn(self._at.connection, relations)
        if self._outbox is not None:
            for run in unit.runs():
                if (events := self._events(run)) is not None:
                    yield from self._outbox.learn(events)
            yield from self._outbox.learn(self._outbox.said(unit.messages))

    def rows(self, unit: Unit) -> Iterator[Rows]:
        """The rows of a unit, those of one topic in order."""
        for oid in unit.truncated:
            yield from self._truncated(oid, unit)
        earlier: dict[str, Earlier] = {}
        begun: set[str] = set()
        try:
            for number, run in enumerate(unit.runs()):
                if (events := self._events(run)) is not None:
                    assert self._outbox is not None
                    yield from self._outbox.rows(events)
                    continue
                topic, table = self._at.tables.topic(run.relation.oid), self._at.tables.table(run.relation)
                if topic is None or table is None or self._beside.passes_over(run.relation.oid):
                    continue
                batch = self._decoded(run, table, topic, unit, number if topic in begun else 0, earlier)
                begun.add(topic)
                if (
                    batch is not None
                    and batch.num_rows
                    and not self._beside.keeps_back(batch, run.relation.oid, table)
                ):
                    yield Rows(topic, adapt(batch, self._at.tables.definition(topic).row_schema))
        finally:
            for kept in earlier.values():
                kept.close()
        if self._outbox is not None:
            yield from self._outbox.rows(self._outbox.said(unit.messages))

    def _events(self, run: Run) -> list[Happened] | None:
        """The events of the outbox that the rows of a run are; None if it is of another table."""
        table = self._at.tables.outbox(run.relation)
        if table is None or self._outbox is None:
            return None
        batch = decode(run, table).batch
        return self._outbox.read(batch.filter(pc.equal(batch.column("_op"), INSERT)))

    def _decoded(
        self, run: Run, table: Table, topic: str, unit: Unit, number: int, earlier: dict[str, Earlier]
    ) -> pa.RecordBatch | None:
        """Whole rows. `number`: how many runs of the unit came before, if any of them is of the same table."""
        try:
            changes = decode(run, table)
        except BadRowError as error:
            self._at.tables.stop(run.relation.oid, error)
            self._beside.note()
            return None
        if not table.key:
            return changes.batch.filter(pc.equal(changes.batch.column("_op"), INSERT))
        if changes.unchanged and number and topic not in earlier:
            earlier[topic] = self._earlier(unit, number, topic)
        batch, lacking = self._filled(changes, table, topic, earlier.get(topic))
        if lacking.any():
            self._beside.lacks(Lack.of(changes, batch, lacking), table)
            batch = batch.filter(pa.array(~lacking))
        if topic in earlier:
            earlier[topic].add(batch, table.key)
        return batch

    def _earlier(self, unit: Unit, number: int, topic: str) -> Earlier:
        """The rows of the first runs of a unit once more: what comes now may need values of theirs."""
        kept = Earlier(self._at.folder)
        for place, run in enumerate(unit.runs()):
            if place >= number:
                break
            table = self._at.tables.table(run.relation)
            if table is not None and self._at.tables.topic(run.relation.oid) == topic:
                batch, lacking = self._filled(decode(run, table), table, topic, kept)
                kept.add(batch.filter(pa.array(~lacking)), table.key)
        return kept

    def _filled(
        self, changes: Changes, table: Table, topic: str, earlier: Earlier | None
    ) -> tuple[pa.RecordBatch, Mask]:
        """The rows with the values that were not sent, and which of them lack one that is not to be had."""
        finds: list[Find] = [] if earlier is None else [find_earlier(earlier)]
        since = self._beside.since(table.relation.table)

        def in_log(keys: pa.RecordBatch, columns: Sequence[str]) -> tuple[pa.RecordBatch, Mask]:
            found = self._at.history.last_values(topic, keys, columns, since)
            return found.select(list(columns)), np.asarray(found.column("_found"))

        return fill(changes, table, [*finds, in_log])

    def _truncated(self, oid: int, unit: Unit) -> Iterator[Rows]:
        topic = self._at.tables.topic(oid)
        self._beside.truncated(oid)
        if topic is None or self._beside.passes_over(oid):
            return
        definition = self._at.tables.definition(topic)
        if definition.keyed:
            assert unit.large is not None
            transaction = unit.large.transaction
            assert transaction is not None
            stamps = (transaction.position, transaction.time_us, transaction.xid)
            yield from emptied(self._at.history, definition, stamps)
