"""The current state of the captured tables: how their rows are decoded, which topic each fills, and which tables have
stopped."""

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
    """Lookups in the topics that a source fills. After a `Commit` is yielded and the source is read on, they include its
    rows."""

    def definition(self, topic: str) -> TopicDefinition | None:
        """Return the current definition of a topic; None if the topic does not exist."""
        ...

    def live_keys(self, topic: str) -> Iterator[pa.RecordBatch]:
        """Yield the key columns of the keys of a keyed topic whose last record is not a tombstone, in any order."""
        ...

    def last_values(
        self, topic: str, keys: pa.RecordBatch, columns: Sequence[str], since: int = 0, after: int = 0
    ) -> pa.RecordBatch:
        """Return these columns of the last record of each key, in the order of the keys, and the column `_found`: whether that
        record exists, is not a tombstone, was written after commit `since`, and has a `_source_position` greater than
        `after`."""
        ...

    def moment(self) -> int:
        """Return the number of the last commit in the log."""
        ...

    def is_empty(self, topic: str) -> bool:
        """Whether a topic does not exist, or was never written to."""
        ...


class Tables:
    """The tables of a source, by oid, as in the stream."""

    def __init__(self, source: str, options: PostgresOptions, history: TopicHistory) -> None:
        self.stopped: dict[str, HeadwaterError] = {}
        """Errors of the stopped tables, by table."""
        self.absent: set[str] = set()
        """Stopped tables that did not exist, or could not be captured."""
        self._source = source
        self._options = options
        self._history = history
        self._captured: dict[int, Captured] = {}
        self._types: dict[int, TypeFacts] = {}
        self._known: dict[RelationMessage, CapturedTable] = {}
        self._ahead: dict[RelationMessage, tuple[str, ...]] = {}
        """Descriptions from the catalog, each with the new columns. The catalog may be ahead of the stream: the stream may
        still send columns that the catalog no longer has."""
        self._definitions: dict[str, TopicDefinition] = {}
        self._widened: set[str] = set()

    def set(self, captured: Sequence[Captured]) -> None:
        """Replace the captured tables, and discard what was learned of earlier ones."""
        self._captured = {table.state.oid: table for table in captured}
        self._known.clear()
        self._ahead.clear()

    def topic(self, oid: int) -> str | None:
        """Return the topic that a table fills; None for the outbox, and for a table that is not captured or has stopped."""
        captured = self._captured.get(oid)
        gone = captured is None or captured.is_outbox or str(captured) in self.stopped
        return None if gone or captured is None else captured.topic

    def outbox(self, relation: RelationMessage) -> CapturedTable | None:
        """Return how rows of the outbox table are decoded; None if the relation is another table."""
        captured = self._captured.get(relation.oid)
        return self._known.get(relation) if captured is not None and captured.is_outbox else None

    def name(self, oid: int) -> str:
        """Return the name of a captured table, with its schema."""
        return str(self._captured[oid])

    def captured(self, name: str) -> Captured | None:
        """Return a table by its name with its schema; None if it is not captured."""
        return next((table for table in self._captured.values() if str(table) == name), None)

    def all(self) -> list[Captured]:
        """Return all captured tables, including stopped ones."""
        return list(self._captured.values())

    def definition(self, topic: str) -> TopicDefinition:
        """Return the definition of a topic whose table was learned."""
        return self._definitions[topic]

    def is_free(self, table: Captured) -> bool:
        """Whether the topic of a table is free or filled by this source. Otherwise the table is stopped."""
        known = self._history.definition(table.topic)
        if table.is_outbox or known is None or known.captured_by == self._source:
            return True
        hint = f"choose another topic for the table: tables = '{table} AS {table.state.schema}_{table.topic}'"
        error = SchemaError(
            f"topic {table.topic!r} already exists and does not belong to this source",
            hint=hint,
            topic=table.topic,
        )
        self.stop_named(str(table), error)
        return False

    def relation_now(
        self, connection: Connection, publications: Sequence[str], table: Captured
    ) -> RelationMessage:
        """Return a table as the stream would describe it now; SourceRefusedError if the table is gone."""
        facts = read_tables(connection.rows(RELATIONS_SQL, [table.state.oid])).get(table.state.oid)
        if facts is None:
            raise SourceRefusedError(
                f"table {table} was dropped", sqlstate=UNDEFINED_TABLE, source=self._source, table=str(table)
            )
        return facts.relation(published_columns(connection, publications, table.state))

    def learn(
        self, connection: Connection, relations: Sequence[RelationMessage], *, ahead: bool = False
    ) -> Iterator[Evolve]:
        """Learn how rows of these relations are decoded. Yields the topics that must be created or changed before their rows.

        `ahead`: the relations are from the catalog, and rows of an earlier shape may come before rows of this one. Then dropped
        columns, and changes that the topic's contract rejects, are handled only once the stream itself has them.
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
        """Learn how rows of these tables are decoded, by their current definition in the catalog; see `learn`. A table that is
        gone stops, and the other tables continue."""
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
        """Return how rows of this relation are decoded; None if they are not captured."""
        return self._known.get(relation) if self.topic(relation.oid) is not None else None

    def stop(self, oid: int, error: HeadwaterError) -> None:
        """Stop capturing a table, with the error as the reason."""
        self.stop_named(str(self._captured[oid]), error)

    def stop_absent(self, table: str, error: HeadwaterError) -> None:
        """Stop a table that does not exist or cannot be captured. Capture can resume once that has changed."""
        self.absent.add(table)
        self.stop_named(table, error)

    def stop_named(self, table: str, error: HeadwaterError) -> None:
        """Stop capturing a table, which need not exist any more, by its name."""
        captured = self.captured(table)
        self.stopped[table] = TableStoppedError(
            f"table {table} of source {self._source!r} has stopped: {error.message}",
            detail=error.detail or "changes of this table are no longer captured; all other tables continue",
            hint=f"{error.hint or 'correct the table'}; then ALTER SOURCE {self._source} RESTART {table} takes a new snapshot of it",
            **{
                **error.facts,
                "source": self._source,
                "table": table,
                "topic": None if captured is None else captured.topic,
            },
        )

    def stop_gap(self, table: Captured, reason: str, hint: str | None = None) -> None:
        """Stop capturing a table because changes of it are missing. `reason` describes the gap."""
        again = f"ALTER SOURCE {self._source} RESTART {table} takes a new snapshot of it"
        self.stopped[str(table)] = TableStoppedError(
            f"table {table} of source {self._source!r} has stopped: {reason}",
            detail="its topic may lack changes; changes of this table are no longer captured, all other tables continue",
            hint=f"{hint}; then {again}" if hint else f"{again}; on_gap = 'snapshot' does that automatically",
            source=self._source,
            table=str(table),
            topic=table.topic,
            gap=reason,
        )

    def change_of(
        self, connection: Connection, publications: Sequence[str], table: Captured
    ) -> Literal["refused", "widened", "none"]:
        """Compare a topic with the current definition of its table: 'refused' if the topic cannot take the definition,
        'widened' if a column has a wider type since the last call, else 'none'."""
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
                    reason="no-columns",
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
        hint=f"change column {column} of {captured} back, or DROP TOPIC {captured.topic} to create it again with the new type",
        column=column,
        reason="not-supported",
    )
