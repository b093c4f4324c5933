"""Mapping of a Postgres table to Headwater: how its rows are decoded, which topic it fills, and how the topic follows schema
changes.

The replication stream describes a table before its first row and again after each change (`RelationMessage`). Facts missing in
the stream, such as the primary key of a table with REPLICA IDENTITY FULL, come from the server's catalog (`TableFacts`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import (
    CAPTURED,
    OP_TYPE,
    TopicDefinition,
    add_column,
    define_topic,
    drop_not_null,
    widen_column,
)
from headwater.catalog.rules import check_topic
from headwater.core.errors import SchemaError
from headwater.core.types import WIDER
from headwater.sources.postgres.decode.pgoutput import RelationColumn, RelationMessage
from headwater.sources.postgres.decode.postgres_types import ColumnType, Types, counterpart

RELATIONS_SQL = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
       a.attname::text, a.atttypid::bigint, a.atttypmod, a.attndims::int, a.attgenerated::text,
       array_position((p.indkey::int2[])[0:p.indnkeyatts - 1], a.attnum),
       array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index p ON p.indrelid = c.oid AND p.indisprimary AND p.indimmediate
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisreplident
WHERE c.oid = ANY(%s::oid[])
ORDER BY c.oid, a.attnum
"""
"""Query for the tables with given oids; `read_tables` reads the result."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column in the server's catalog. `generated` is s(tored), v(irtual) or empty."""

    name: str
    type_oid: int
    typmod: int
    dimensions: int
    generated: str


@dataclass(frozen=True)
class TableFacts:
    """A table in the server's catalog.

    `primary_key` is empty if the key is deferrable, because two rows may then have the same key within a transaction.
    `identity_key` are the columns of the index named by REPLICA IDENTITY USING INDEX.
    """

    oid: int
    namespace: str
    name: str
    kind: str
    identity: str
    columns: tuple[ColumnFacts, ...]
    primary_key: tuple[str, ...]
    identity_key: tuple[str, ...]

    def relation(self, published: Collection[str] | None = None) -> RelationMessage:
        """Return the description of the table as the stream will send it, with the columns that are `published`; None means all
        columns that are not generated."""
        keys = {"d": self.primary_key, "i": self.identity_key, "n": ()}
        key = keys.get(self.identity, tuple(column.name for column in self.columns))
        columns = [
            RelationColumn(c.name, c.type_oid, c.typmod, c.name in key)
            for c in self.columns
            if (not c.generated if published is None else c.name in published)
        ]
        return RelationMessage(self.oid, self.namespace, self.name, self.identity, tuple(columns))


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, and its counterpart in a topic."""

    name: str
    type: ColumnType


@dataclass(frozen=True)
class CapturedTable:
    """Decoder of a table's rows. `keyless` is the reason why there is no key, None with a key; without a key, the topic is
    append-only."""

    relation: RelationMessage
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    keyless: str | None
    divided: bool = False
    """Whether the table is partitioned. Tables may inherit from a table that is not; their rows are not rows of the table."""

    @cached_property
    def schema(self) -> pa.Schema:
        """The table's columns, all nullable, and `_op`."""
        return pa.schema([*((c.name, c.type.kind) for c in self.columns), ("_op", OP_TYPE)])

    @cached_property
    def stamped_schema(self) -> pa.Schema:
        """The columns of `schema` and the capture columns with the origin of each row."""
        return pa.schema([*self.schema, *CAPTURED])

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        """Indices of the key columns in `schema`."""
        return tuple(self.schema.names.index(name) for name in self.key)


@dataclass(frozen=True)
class UnsupportedChange:
    """A schema change that the topic cannot follow."""

    column: str
    reason: str


@dataclass(frozen=True)
class Evolution:
    """Effect of a schema change on the topic. `definition` is the topic after the change; unchanged if there is no effect.

    Dropped columns stay in the topic and are null from then on; a renamed column is one dropped and one added.
    """

    definition: TopicDefinition
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    widened: tuple[str, ...]
    refused: tuple[UnsupportedChange, ...]


def read_tables(rows: Iterable[Sequence[Any]]) -> dict[int, TableFacts]:
    """Return the tables in the result of RELATIONS_SQL, by oid."""
    found = {}
    for (oid, namespace, name, kind, identity), group in groupby(rows, key=lambda row: tuple(row[:5])):
        columns = [row for row in group if row[5] is not None]  # a table may have no columns
        keys = [
            tuple(row[5] for row in sorted(columns, key=lambda row: row[at] or 0) if row[at] is not None)
            for at in (10, 11)
        ]
        facts = tuple(ColumnFacts(*row[5:10]) for row in columns)
        found[oid] = TableFacts(oid, namespace, name, kind, identity, facts, *keys)
    return found


def table_of(
    relation: RelationMessage,
    facts: TableFacts | None,
    types: Types,
    declared: Mapping[str, pa.DataType] | None = None,
) -> CapturedTable:
    """Return the decoder for rows of a table as the stream describes it.

    `facts` is the table in the catalog, None if it was dropped; `types` has all types that `unknown_types` returned; `declared`
    are column types that the user chose instead of the default. SchemaError if a declared type does not fit.
    """
    dimensions = {column.name: column.dimensions for column in facts.columns} if facts else {}
    columns = []
    for column in relation.columns:
        try:
            kind = counterpart(
                column.type_oid,
                column.typmod,
                types,
                dimensions=dimensions.get(column.name, 1),
                declared=(declared or {}).get(column.name),
            )
        except SchemaError as error:
            where = f"column {column.name!r} of table {relation.table}"
            raise SchemaError(
                f"{where}: {error.message}",
                hint=error.hint,
                table=str(relation.table),
                column=column.name,
            ) from None
        columns.append(TableColumn(column.name, kind))
    key, keyless = _key(relation, facts)
    nested = [c.name for c in columns if c.name in key and pa.types.is_nested(c.type.kind)]
    if nested:
        key, keyless = (
            (),
            f"its key contains the array {nested[0]}; declare that column STRING to use the key",
        )
    return CapturedTable(relation, tuple(columns), key, keyless, facts is not None and facts.kind == "p")


def definition_of(
    table: CapturedTable, topic: str, source: str, options: Mapping[str, Any] | None = None
) -> TopicDefinition:
    """Return the topic that a table fills. Only key columns are NOT NULL: the current catalog does not describe the older rows
    that the stream may still send."""
    schema = pa.schema([pa.field(column.name, column.type.kind) for column in table.columns])
    definition = define_topic(topic, schema, key=table.key, options=options)
    definition = dataclasses.replace(definition, captured_by=source)
    check_topic(definition)
    return definition


def evolve(definition: TopicDefinition, table: CapturedTable) -> Evolution:
    """Return the effect of the current columns of a table on the topic that it fills."""
    now = {column.name: column.type.kind for column in table.columns}
    added, widened, refused = [], [], []
    dropped = [f.name for f in definition.schema if f.name not in now]
    if definition.key != table.key:
        refused.append(UnsupportedChange(", ".join(definition.key), _key_reason(definition, table)))
    for name in dropped:
        if name not in definition.key and not definition.schema.field(name).nullable:
            definition = drop_not_null(definition, name)
    for name, kind in now.items():
        try:
            if name not in definition.schema.names:
                definition = add_column(definition, pa.field(name, kind))
                added.append(name)
            elif not _fits(kind, definition.schema.field(name).type):
                definition = widen_column(definition, name, kind)
                widened.append(name)
        except SchemaError as error:
            refused.append(UnsupportedChange(name, error.message))
    return Evolution(definition, tuple(added), tuple(dropped), tuple(widened), tuple(refused))


def _key(relation: RelationMessage, facts: TableFacts | None) -> tuple[tuple[str, ...], str | None]:
    """Return the columns that identify a row in every message, and None; or no columns, and the reason."""
    sent = [column.name for column in relation.columns]
    flagged = [column.name for column in relation.columns if column.key]
    primary = facts.primary_key if facts else ()
    if relation.identity in "di" and flagged:
        known = primary if relation.identity == "d" else facts.identity_key if facts else ()
        return (tuple(known) if sorted(known) == sorted(flagged) else tuple(flagged)), None
    if relation.identity == "i":
        return (), "the index of its REPLICA IDENTITY was dropped"
    if relation.identity == "n":
        return (), "it has REPLICA IDENTITY NOTHING, so its updates and deletes are not in the stream"
    if not primary or relation.identity == "d":
        return (), "it has no primary key that is checked immediately"
    if not set(primary) <= set(sent):
        return (), "the publication leaves out a column of its primary key"
    return tuple(primary), None


def _key_reason(definition: TopicDefinition, table: CapturedTable) -> str:
    was = f"({', '.join(definition.key)})" if definition.key else "none"
    now = f"({', '.join(table.key)})" if table.key else f"none: {table.keyless}"
    return f"the key of table {table.relation.table} was {was} and is {now}"


def _fits(kind: pa.DataType, into: pa.DataType) -> bool:
    """Whether a column of a topic with type `into` can hold every value of type `kind` unchanged."""
    if kind == into or into in WIDER.get(kind, ()):
        return True
    if not (pa.types.is_decimal128(kind) and pa.types.is_decimal128(into)):
        return False
    return bool(into.scale >= kind.scale and into.precision - into.scale >= kind.precision - kind.scale)
