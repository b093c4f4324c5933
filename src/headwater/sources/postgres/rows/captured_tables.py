"""The captured tables as they are now: how their rows are decoded, which topic each fills, and which have had to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError, SchemaError, SourceRefusedError, TableStoppedError
from headwater.sources.base import Evolve
from headwater.sources.postgres.decode.pgoutput import RelationMessage
from headwater.sources.postgres.decode.postgres_types import TYPES_SQL, TypeFacts, read_types, unknown_types
from headwater.sources.postgres.decode.relations import (
    RELATIONS_SQL,
    CapturedTable,
    TableFacts,
    definition_of,
    evolve,
    read_tables,
    table_of,
)
from headwater.sources.postgres.rows.schema_changes import breaks_contract, with_marks
from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.server.options import PostgresOptions
from headwater.sources.postgres.server.publications import Captured, check_partitions, published_columns

UNDEFINED_TABLE = "42P01"


class TopicHistory(Protocol):
    """What the log knows of the topics that a source fills. What was committed is in it when reading goes on."""

    def definition(self, topic: str) -> TopicDefinition | None:
        """A topic as it is declared now; None if there is none."""
        ...

    def live_keys(self, topic: str) -> Iterator[pa.RecordBatch]:
        """The keys of a keyed topic whose last record is no tombstone, as its key columns, in any order."""
        ...

    def last_values(
        self, topic: str, keys: pa.RecordBatch, columns: Sequence[str], since: int = 0, after: int = 0
    ) -> pa.RecordBatch:
        """For each key, in order, these columns of its last record, and `_found`: whether there is one that is no tombstone, that
        was written after a moment, and whose `_source_position` is after a position."""
        ...

    def moment(self) -> int:
        """What was written up to now, as a number that rises."""
        ...

    def is_empty(self, topic: str) -> bool:
        """Whether nothing was ever written to a topic, or there is none."""
        ...


class Tables:
    """The tables of a source, by the oid that the stream names them by."""

    def __init__(self, source: str, options: PostgresOptions, history: TopicHistory) -> None:
        self.stopped: dict[str, HeadwaterError] = {}
        """By table: why it is not captured any more."""
        self.absent: set[str] = set()
        """Those among them that were not there, or not such as can be captured."""
        self._source = source
        self._options = options
        self._history = history
        self._captured: dict[int, Captured] = {}
        self._types: dict[int, TypeFacts] = {}
        self._known: dict[RelationMessage, CapturedTable] = {}
        self._ahead: dict[RelationMessage, tuple[str, ...]] = {}
        """Known from the catalog, which may be ahead of the stream: what is gone there is not gone yet. With the columns that
        are new."""
        self._definitions: dict[str, TopicDefinition] = {}
        self._widened: set[str] = set()

    def set(self, captured: Sequence[Captured]) -> None:
        """These are the tables now."""
        self._captured = {table.state.oid: table for table in captured}
        self._known.clear()
        self._ahead.clear()

    def topic(self, oid: int) -> str | None:
        """The topic that a table fills; None if it is not captured, or has stopped."""
        captured = self._captured.get(oid)
        gone = captured is None or captured.is_outbox or str(captured) in self.stopped
        return None if gone or captured is None else captured.topic

    def outbox(self, relation: RelationMessage) -> CapturedTable | None:
        """How rows of the outbox are decoded; None if they are of another table."""
        captured = self._captured.get(relation.oid)
        return self._known.get(relation) if captured is not None and captured.is_outbox else None

    def name(self, oid: int) -> str:
        """A captured table's name with the schema's."""
        return str(self._captured[oid])

    def captured(self, name: str) -> Captured | None:
        """A table by its name with the schema's."""
        return next((table for table in self._captured.values() if str(table) == name), None)

    def all(self) -> list[Captured]:
        """Every table, also those that have stopped."""
        return list(self._captured.values())

    def definition(self, topic: str) -> TopicDefinition:
        """A topic that was declared."""
        return self._definitions[topic]

    def is_free(self, table: Captured) -> bool:
        """Whether a table can have its topic. One whose topic is somebody else's stops."""
        known = self._history.definition(table.topic)
        if table.is_outbox or known is None or known.captured_by == self._source:
            return True
        hint = f"give it another topic: tables = '{table} AS {table.state.schema}_{table.topic}'"
        error = SchemaError(
            f"topic {table.topic!r} is there already, and this source does not fill it", hint=hint
        )
        self.stop_named(str(table), error)
        return False

    def relation_now(
        self, connection: Connection, publications: Sequence[str], table: Captured
    ) -> RelationMessage:
        """A table as the stream would describe it now."""
        facts = read_tables(connection.rows(RELATIONS_SQL, [table.state.oid])).get(table.state.oid)
        if facts is None:
            raise SourceRefusedError(f"table {table} is gone", sqlstate=UNDEFINED_TABLE, source=self._source)
        return facts.relation(published_columns(connection, publications, table.state))

    def learn(
        self, connection: Connection, relations: Sequence[RelationMessage], *, ahead: bool = False
    ) -> Iterator[Evolve]:
        """Make these tables known, as they are described; gives what has to become of their topics before their rows come.

        `ahead`: rows of another shape may come before those of this one. Then columns that are gone, and changes that the
        topic's contract refuses, wait until the stream itself is there.
        """
        for relation in relations:
            captured = self._captured.get(relation.oid)
            is_known = relation in self._known and (ahead or relation not in self._ahead)
            if not is_known and captured is not None and str(captured) not in self.stopped:
                yield from self._learn(connection, relation, ahead)

    def learn_now(
        self,
        connection: Connection,
        publications: Sequence[str],
        captured: Sequence[Captured],
        *,
        ahead: bool = False,
    ) -> Iterator[Evolve]:
        """The same, as the catalog has them now. A table that is gone stops, and no other."""
        relations = []
        for table in captured:
            try:
                relations.append(self.relation_now(connection, publications, table))
            except SourceRefusedError as error:
                if error.facts.get("sqlstate") != UNDEFINED_TABLE:
                    raise
                self.stop_named(str(table), error)
        yield from self.learn(connection, relations, ahead=ahead)

    def table(self, relation: RelationMessage) -> CapturedTable | None:
        """How rows of this shape are decoded; None if they are not wanted."""
        return self._known.get(relation) if self.topic(relation.oid) is not None else None

    def stop(self, oid: int, error: HeadwaterError) -> None:
        """A table cannot be captured any more."""
        self.stop_named(str(self._captured[oid]), error)

    def stop_absent(self, table: str, error: HeadwaterError) -> None:
        """A table is not there, or is not one that can be captured; it may come back."""
        self.absent.add(table)
        self.stop_named(table, error)

    def stop_named(self, table: str, error: HeadwaterError) -> None:
        """The same, of a table that may not be there any more."""
        captured = self.captured(table)
        self.stopped[table] = TableStoppedError(
            f"table {table} of source {self._source!r} has stopped: {error.message}",
            detail=error.detail or "its changes are not taken any more; all other tables go on",
            hint=f"{error.hint or 'mend the table'}; then ALTER SOURCE {self._source} RESTART {table} snapshots it anew",
            source=self._source,
            table=table,
            topic=None if captured is None else captured.topic,
        )

    def stop_gap(self, table: Captured, reason: str, hint: str | None = None) -> None:
        """A table cannot be captured any more because changes of it are missing."""
        again = f"ALTER SOURCE {self._source} RESTART {table} takes a new snapshot of it"
        self.stopped[str(table)] = TableStoppedError(
            f"table {table} of source {self._source!r} has stopped: {reason}",
            detail="its topic may lack changes; no more of them are taken, all other tables go on",
            hint=f"{hint}; then {again}"
            if hint
            else f"{again}; with on_gap = 'snapshot' that happens by itself",
            source=self._source,
            table=str(table),
            topic=table.topic,
            gap=reason,
        )

    def change_of(
        self, connection: Connection, publications: Sequence[str], table: Captured
    ) -> Literal["refused", "widened", "none"]:
        """What the topic makes of its table as that is now: it cannot follow, or has a column of a wider type since it was asked
        last."""
        relation = self.relation_now(connection, publications, table)
        definition = self._history.definition(table.topic)
        if definition is None:
            return "none"
        try:
            now, _ = self._table(connection, relation, table)
        except SchemaError:
            return "refused"
        evolution = evolve(definition, now)
        if evolution.refused or breaks_contract(definition, evolution, now) is not None:
            return "refused"
        was_widened = str(table) in self._widened
        self._widened.discard(str(table))
        return "widened" if was_widened or evolution.widened else "none"

    def _table(
        self, connection: Connection, relation: RelationMessage, captured: Captured
    ) -> tuple[CapturedTable, TableFacts | None]:
        declared = self._options.types.get(str(captured), {})
        unknown = unknown_types((column.type_oid for column in relation.columns), self._types)
        if unknown:
            self._types.update(read_types(connection.rows(TYPES_SQL, unknown)))
        facts = read_tables(connection.rows(RELATIONS_SQL, [relation.oid])).get(relation.oid)
        return table_of(relation, facts, self._types, declared), facts

    def _learn(self, connection: Connection, relation: RelationMessage, ahead: bool) -> Iterator[Evolve]:
        captured = self._captured[relation.oid]
        try:
            table, facts = self._table(connection, relation, captured)
            if captured.is_outbox:
                self._known[relation] = replace(table, key=())
                return
            if not table.columns:
                raise SchemaError(
                    f"table {captured} has no columns",
                    hint=f"ALTER TABLE {captured.state.name} ADD COLUMN ...",
                )
            check_partitions(connection, captured.state, table.key)
            definition = self._history.definition(captured.topic) or self._definitions.get(captured.topic)
            if definition is None:
                definition = definition_of(table, captured.topic, self._source)
                yield Evolve(definition)
            else:
                evolution = evolve(definition, table)
                if evolution.refused:
                    self.stop(
                        relation.oid,
                        _refusal(captured, evolution.refused[0].column, evolution.refused[0].reason),
                    )
                    return
                refusal = breaks_contract(definition, evolution, table)
                if refusal is not None:
                    self._definitions[captured.topic] = definition
                    if not ahead:
                        self.stop(relation.oid, refusal)
                    return
                changed = evolution.definition
                if evolution.widened:
                    self._widened.add(str(captured))
                added = self._ahead.pop(relation, ()) or evolution.added
                if ahead:
                    self._ahead[relation] = added
                else:
                    changed = with_marks(definition, evolution, table, facts, added)
                if changed != definition:
                    definition = changed
                    yield Evolve(definition)
        except (SchemaError, SourceRefusedError) as error:
            self.stop(relation.oid, error)
            return
        self._known[relation] = table
        self._definitions[captured.topic] = definition


def _refusal(captured: Captured, column: str, reason: str) -> SchemaError:
    return SchemaError(
        reason,
        hint=f"change column {column} of {captured} back, or DROP TOPIC {captured.topic} to begin it anew with the new type",
    )
