"""The captured tables as they are now: how their rows are decoded, which topic each fills, and which have had to stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from headwater.capture.postgres.connection import Connection, identifier, literal
from headwater.capture.postgres.copying import decode_copy
from headwater.capture.postgres.filling import Mask, Places, as_texts
from headwater.capture.postgres.messages import Relation
from headwater.capture.postgres.options import PostgresOptions
from headwater.capture.postgres.pgtypes import TYPES_SQL, TypeFacts, read_types, unknown_types
from headwater.capture.postgres.relations import (
    RELATIONS_SQL,
    Table,
    TableColumn,
    TableFacts,
    definition_of,
    evolve,
    read_tables,
    table_of,
)
from headwater.capture.postgres.setup import Captured, published_columns
from headwater.capture.source import Evolve
from headwater.catalog import TopicDefinition
from headwater.errors import HeadwaterError, SchemaError, TableStoppedError
from headwater.hashing import identities

KEYS_PER_STATEMENT = 1_000


class History(Protocol):
    """What the log knows of the topics that a source fills. What was committed is in it when reading goes on."""

    def definition(self, topic: str) -> TopicDefinition | None:
        """A topic as it is declared now; None if there is none."""
        ...

    def live_keys(self, topic: str) -> Iterator[pa.RecordBatch]:
        """The keys of a keyed topic whose last record is no tombstone, as its key columns, in any order."""
        ...

    def last_values(self, topic: str, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """For each key, in order, these columns of its last record, and `_found`: whether there is one that is no tombstone."""
        ...


class Tables:
    """The tables of a source, by the oid that the stream names them by."""

    def __init__(self, source: str, options: PostgresOptions, history: History) -> None:
        self.stopped: dict[str, HeadwaterError] = {}
        """By table: why it is not captured any more."""
        self._source = source
        self._options = options
        self._history = history
        self._captured: dict[int, Captured] = {}
        self._types: dict[int, TypeFacts] = {}
        self._known: dict[Relation, Table] = {}
        self._definitions: dict[str, TopicDefinition] = {}

    def set(self, captured: Sequence[Captured]) -> None:
        """These are the tables now."""
        self._captured = {table.state.oid: table for table in captured}
        self._known.clear()

    def topic(self, oid: int) -> str | None:
        """The topic that a table fills; None if it is not captured, or has stopped."""
        captured = self._captured.get(oid)
        gone = captured is None or captured.is_outbox or str(captured) in self.stopped
        return None if gone or captured is None else captured.topic

    def outbox(self, relation: Relation) -> Table | None:
        """How rows of the outbox are decoded; None if they are of another table."""
        captured = self._captured.get(relation.oid)
        return self._known.get(relation) if captured is not None and captured.is_outbox else None

    def captured(self, name: str) -> Captured | None:
        """A table by its name with the schema's."""
        return next((table for table in self._captured.values() if str(table) == name), None)

    def all(self) -> list[Captured]:
        """Every table, also those that have stopped."""
        return list(self._captured.values())

    def definition(self, topic: str) -> TopicDefinition:
        """A topic that was declared."""
        return self._definitions[topic]

    def relation_now(self, connection: Connection, publications: Sequence[str], table: Captured) -> Relation:
        """A table as the stream would describe it now."""
        facts = read_tables(connection.rows(RELATIONS_SQL, [table.state.oid]))[table.state.oid]
        return facts.relation(published_columns(connection, publications, table.state))

    def learn(self, connection: Connection, relations: Sequence[Relation]) -> Iterator[Evolve]:
        """Make these tables known, as they are described; gives what has to become of their topics before their rows come."""
        for relation in relations:
            captured = self._captured.get(relation.oid)
            if relation not in self._known and captured is not None and str(captured) not in self.stopped:
                yield from self._learn(connection, relation)

    def learn_now(
        self, connection: Connection, publications: Sequence[str], captured: Sequence[Captured]
    ) -> Iterator[Evolve]:
        """The same, as the catalog has them now."""
        yield from self.learn(
            connection, [self.relation_now(connection, publications, table) for table in captured]
        )

    def table(self, relation: Relation) -> Table | None:
        """How rows of this shape are decoded; None if they are not wanted."""
        return self._known.get(relation) if self.topic(relation.oid) is not None else None

    def stop(self, oid: int, error: HeadwaterError) -> None:
        """A table cannot be captured any more."""
        self.stop_named(str(self._captured[oid]), error)

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

    def find_in_table(
        self, connection: Connection, table: Table, keys: pa.RecordBatch, columns: Sequence[str]
    ) -> tuple[pa.RecordBatch, Mask]:
        """The columns' values as they are in the database now, and which keys are still there."""
        shown = [*table.key, *(name for name in columns if name not in table.key)]
        narrow = Table(
            table.relation, tuple(_column(table, name) for name in shown), table.key, table.keyless
        )
        name = identifier(table.relation.namespace, table.relation.name)
        batches = []
        for start in range(0, keys.num_rows, KEYS_PER_STATEMENT):
            texts = [as_texts(column) for column in keys.slice(start, KEYS_PER_STATEMENT).columns]
            tuples = ", ".join(f"({', '.join(map(literal, key))})" for key in zip(*texts, strict=True))
            chosen = ", ".join(map(identifier, table.key))
            statement = (
                f"SELECT {', '.join(map(identifier, shown))} FROM {name} WHERE ({chosen}) IN ({tuples})"
            )
            lines = [line for part in connection.copied(f"COPY ({statement}) TO STDOUT") for line in part]
            batches.append(decode_copy(lines, narrow))
        found = pa.Table.from_batches(batches).combine_chunks()
        places = _places_of(keys, found.select(list(table.key)))
        indices = pa.array(places, mask=places < 0)
        arrays = [_flat(found.column(name)).take(indices) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns)), places >= 0

    def _learn(self, connection: Connection, relation: Relation) -> Iterator[Evolve]:
        captured = self._captured[relation.oid]
        declared = self._options.types.get(str(captured), {})
        unknown = unknown_types((column.type_oid for column in relation.columns), self._types)
        if unknown:
            self._types.update(read_types(connection.rows(TYPES_SQL, unknown)))
        facts: Mapping[int, TableFacts] = read_tables(connection.rows(RELATIONS_SQL, [relation.oid]))
        try:
            table = table_of(relation, facts.get(relation.oid), self._types, declared)
            if captured.is_outbox:
                self._known[relation] = replace(table, key=())
                return
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
                if evolution.definition != definition:
                    definition = evolution.definition
                    yield Evolve(definition)
        except SchemaError as error:
            self.stop(relation.oid, error)
            return
        self._known[relation] = table
        self._definitions[captured.topic] = definition


def _refusal(captured: Captured, column: str, reason: str) -> SchemaError:
    return SchemaError(
        reason,
        hint=f"change column {column} of {captured} back, or DROP TOPIC {captured.topic} to begin it anew with the new type",
    )


def _column(table: Table, name: str) -> TableColumn:
    return next(column for column in table.columns if column.name == name)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _places_of(keys: pa.RecordBatch, found: pa.Table) -> Places:
    """Where in `found` each key is, or -1."""
    if not found.num_rows:
        return np.full(keys.num_rows, -1)
    low, high = identities([_flat(column) for column in found.columns], found.num_rows, exact=False)
    order = np.argsort(low, kind="stable")
    mine, other = identities(keys.columns, keys.num_rows, exact=False)
    at = np.minimum(np.searchsorted(low[order], mine), len(low) - 1)
    same = (low[order[at]] == mine) & (high[order[at]] == other)
    return np.where(same, order[at], -1)
